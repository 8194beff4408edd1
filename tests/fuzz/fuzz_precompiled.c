/* SentencePiece's map of characters, as it lies in a model: any bytes. An accepted map is applied to
 * texts without a read outside of it. */
#include "driver.h"

#include "worker/data/tokenizers/characters.h"
#include "worker/data/tokenizers/parts.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

static void apply(const struct normalizer *n)
{
    struct dt_text text = {0}, out = {0};
    struct dt_error err = {0};
    for (uint32_t c = 1; c < 0x3000; c += 7) {
        char bytes[4];
        dt_text_add(&text, bytes, utf8_write(c, bytes));
        dt_text_puts(&text, c % 2 == 0 ? "e\xcc\x81" : "");
    }
    if (normalizer_apply(n, text.data, text.size, &out, &err) != 0 ||
        utf8_valid(dt_text_str(&out), out.size) != out.size) {
        abort();
    }
    dt_text_clear(&text);
    dt_text_clear(&out);
}

int dt_fuzz(const uint8_t *data, size_t size)
{
    size_t bytes = sodium_base64_ENCODED_LEN(size, sodium_base64_VARIANT_ORIGINAL);
    char *base64 = dt_alloc(bytes);
    struct normalizer *n = NULL;
    struct dt_error err = {0};
    (void)sodium_bin2base64(base64, bytes, data, size, sodium_base64_VARIANT_ORIGINAL);
    cJSON *json = cJSON_CreateObject();
    (void)cJSON_AddStringToObject(json, "type", "Precompiled");
    (void)cJSON_AddStringToObject(json, "precompiled_charsmap", base64);
    if (normalizer_open(&n, json, &err) == 0) {
        apply(n);
        normalizer_close(n);
    }
    cJSON_Delete(json);
    free(base64);
    return 0;
}
