/* WordLevel: a piece is a token, or the unknown token. */
#include "worker/data/tokenizers/parts.h"

#include <stdlib.h>
#include <string.h>

struct wordlevel {
    const struct vocabulary *vocabulary;
    int32_t unknown;
    char *unknown_token;
};

static void close_wordlevel(void *state)
{
    struct wordlevel *w = state;
    free(w->unknown_token);
    free(w);
}

static int open_wordlevel(void **state, const cJSON *model, const struct vocabulary *v, struct dt_error *err)
{
    const char *unknown = NULL;
    if (part_text(model, "unk_token", "<unk>", &unknown, err) != 0) {
        return -1;
    }
    struct wordlevel *w = dt_alloc(sizeof *w);
    *w = (struct wordlevel){v, vocabulary_find(v, unknown, strlen(unknown)), dt_strdup(unknown)};
    *state = w;
    return 0;
}

static int encode_wordlevel(const void *state, void *scratch, const char *piece, size_t size, struct token_ids *out,
                            struct dt_error *err)
{
    (void)scratch;
    const struct wordlevel *w = state;
    int32_t id = vocabulary_find(w->vocabulary, piece, size);
    if (id < 0) {
        id = w->unknown;
    }
    if (id < 0) {
        char word[64], shown[64];
        return dt_fail(err, DT_INVALID, "%s: not in model.vocab, and neither is the unknown token %s; add it",
                       dt_text_excerpt(piece, size, word, sizeof word),
                       dt_text_excerpt(w->unknown_token, strlen(w->unknown_token), shown, sizeof shown));
    }
    token_ids_add(out, id);
    return 0;
}

const struct token_model_ops token_model_wordlevel = {
    .type = "WordLevel", .open = open_wordlevel, .encode = encode_wordlevel, .close = close_wordlevel};
