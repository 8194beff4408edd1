/* Models of SentencePiece: any bytes. What is accepted becomes a tokenizer.json that can be opened, or
 * is refused with a reason. */
#include "driver.h"

#include "worker/data/tokenizers/convert.h"
#include "worker/data/tokenizers/tokenizer.h"

#include <string.h>

static void encode(const struct tokenizer *t)
{
    static const char text[] = " a the  caf\xc3\xa9\n\xe2\x96\x81 x";
    struct tokenizer_scratch *s = tokenizer_scratch_open(t);
    struct token_ids ids = {0};
    struct dt_error err = {0};
    (void)tokenizer_encode(t, s, text, strlen(text), true, &ids, &err);
    token_ids_clear(&ids);
    tokenizer_scratch_close(s);
}

int dt_fuzz(const uint8_t *data, size_t size)
{
    const struct convert_options o = {0};
    struct dt_text json = {0};
    struct dt_error err = {0};
    struct tokenizer *t = NULL;
    if (convert_sentencepiece(data, size, &o, &json, &err) == 0 &&
        tokenizer_parse(&t, "fuzz", json.data, json.size, &err) == 0) {
        encode(t);
        tokenizer_close(t);
    }
    dt_text_clear(&json);
    return 0;
}
