/* See the header. */
#include "worker/engine/text_bytes.h"

#include "base/file.h"
#include "base/text.h"
#include "worker/data/tokenizers/tokenizer.h"

#include <stdlib.h>

struct text_bytes {
    int64_t count;  /* ids; 0: the tokenizer was not found, or a text is not its tokens one behind the other */
    int32_t *bytes; /* of each id; 0 for an id without a token, which no text has */
};

/* True if the tokenizer at `path` is that of the source, and says what each id stands for. */
static bool read_bytes(struct text_bytes *b, const char *path, uint64_t hash)
{
    struct tokenizer *t = NULL;
    struct dt_error ignored;
    uint64_t is;
    if (path == NULL || !dt_file_exists(path) || tokenizer_hash_file(path, &is, &ignored) != 0 || is != hash ||
        tokenizer_open(&t, path, &ignored) != 0) {
        return false;
    }
    int64_t count = tokenizer_vocabulary(t);
    size_t size;
    bool known = true;
    b->bytes = dt_alloc((size_t)count * sizeof *b->bytes);
    for (int64_t i = 0; i < count && known; i++) {
        if (tokenizer_token(t, (int32_t)i, &size) != NULL) {
            int64_t bytes = tokenizer_text_bytes(t, (int32_t)i);
            known = bytes >= 0;
            b->bytes[i] = (int32_t)bytes;
        }
    }
    b->count = known ? count : 0;
    tokenizer_close(t);
    return true;
}

struct text_bytes *text_bytes_open(const struct data_source *s, const char *named, const char *folder)
{
    struct text_bytes *b = dt_alloc(sizeof *b);
    char *beside = folder != NULL ? dt_format("%s/tokenizer.json", folder) : NULL;
    (void)(read_bytes(b, named, s->tokenizer_hash) || read_bytes(b, beside, s->tokenizer_hash) ||
           read_bytes(b, s->tokenizer_path, s->tokenizer_hash));
    free(beside);
    return b;
}

bool text_bytes_known(const struct text_bytes *b)
{
    return b->count > 0;
}

int64_t text_bytes_count(const struct text_bytes *b, const struct data_source *s, const struct batch *batch)
{
    const int32_t *targets = batch->at[s->targets];
    int64_t count = batch_used(batch, s->targets), bytes = 0;
    for (int64_t i = 0; i < count; i++) {
        bytes += targets[i] >= 0 && targets[i] < b->count ? b->bytes[targets[i]] : 0;
    }
    return bytes;
}

void text_bytes_close(struct text_bytes *b)
{
    if (b != NULL) {
        free(b->bytes);
        free(b);
    }
}
