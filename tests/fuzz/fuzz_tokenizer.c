/* tokenizer.json from anywhere: opened or refused, and what was opened encodes and decodes any text. A
 * zero byte ends the file; what follows is the text. */
#include "driver.h"

#include "base/text.h"
#include "worker/data/tokenizers/tokenizer.h"

#include <stdlib.h>
#include <string.h>

/* A small tokenizer, for inputs that are only a text. */
static const char small[] =
    "{\"added_tokens\":[{\"id\":3,\"content\":\"<|x|>\",\"special\":true,\"normalized\":false,\"lstrip\":true,"
    "\"rstrip\":"
    "true,\"single_word\":false}],\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\"},\"decoder\":{"
    "\"type\":"
    "\"Sequence\",\"decoders\":[{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\"_\","
    "\"start\":1,\"stop\":1}]},\"model\":{\"type\":\"WordLevel\",\"unk_token\":\"?\",\"vocab\":{\"?\":0,\"_a\":1,\"<"
    "0xC3>\":2}}}";

static void check_stream(const struct tokenizer *t, struct tokenizer_scratch *s, const char *text, size_t size,
                         const struct token_ids *whole)
{
    struct token_ids ids = {0};
    struct dt_error err;
    struct tokenizer_stream *r = tokenizer_stream_open(t, s);
    size_t half = size / 2;
    if (tokenizer_stream_add(r, text, half, &ids, &err) != 0 ||
        tokenizer_stream_add(r, text + half, size - half, &ids, &err) != 0 ||
        tokenizer_stream_end(r, &ids, &err) != 0 || ids.count != whole->count ||
        (ids.count > 0 && memcmp(ids.ids, whole->ids, ids.count * sizeof *ids.ids) != 0)) {
        abort();
    }
    tokenizer_stream_close(r);
    token_ids_clear(&ids);
}

static void try_text(const struct tokenizer *t, const char *text, size_t size)
{
    struct tokenizer_scratch *s = tokenizer_scratch_open(t);
    struct token_ids ids = {0};
    struct token_sequence pair = {0};
    struct dt_text out;
    struct dt_error err;
    dt_text_init(&out);
    if (tokenizer_encode(t, s, text, size, false, &ids, &err) == 0) {
        check_stream(t, s, text, size, &ids);
        tokenizer_decode(t, ids.ids, ids.count, true, &out);
        (void)tokenizer_encode_pair(t, s, text, size, text, size, 7, &pair, &err);
    }
    ids.count = 0;
    for (size_t i = 0; i < size && i < 64; i++) {
        token_ids_add(&ids, (int32_t)(unsigned char)text[i] - 2);
    }
    tokenizer_decode(t, ids.ids, ids.count, false, &out);
    for (size_t i = 0; i < ids.count; i++) {
        if (ids.ids[i] >= tokenizer_vocabulary(t)) {
            size_t n;
            (void)(tokenizer_token(t, ids.ids[i], &n) != NULL ? abort() : (void)0);
        }
    }
    dt_text_clear(&out);
    token_ids_clear(&ids);
    token_sequence_clear(&pair);
    tokenizer_scratch_close(s);
}

int dt_fuzz(const uint8_t *data, size_t size)
{
    static struct tokenizer *fixed;
    struct tokenizer *t;
    struct dt_error err;
    const char *bytes = (const char *)data;
    const char *zero = size > 0 ? memchr(bytes, 0, size) : NULL;
    size_t json = zero != NULL ? (size_t)(zero - bytes) : size;
    if (fixed == NULL && tokenizer_parse(&fixed, "small", small, sizeof small - 1, &err) != 0) {
        abort();
    }
    try_text(fixed, bytes, size);
    if (tokenizer_parse(&t, "fuzz", bytes, json, &err) == 0) {
        const char *text = zero != NULL ? zero + 1 : "aA 1\n";
        try_text(t, text, zero != NULL ? size - json - 1 : 5);
        tokenizer_close(t);
    }
    return 0;
}
