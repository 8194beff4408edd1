/* The tokenizers of stories: `tokenize TOKENIZER.JSON` answers requests on stdin, one a line, whose
 * texts are in hexadecimal digits.
 *   e HEX          the ids of a text, without special tokens
 *   s HEX          with them
 *   p HEX HEX      of a pair, with them: ids
 *   d 0|1 ID...    the text of ids, in hex; 1: without special tokens
 *   r SEED HEX     the ids of a text that comes in random parts; the decoder's parts must be
 *                  tokenizer_decode's text
 *   w HEX          the pieces of a text, in hex
 * An answer is one line; an error is "! text". `tokenize TOKENIZER.JSON FILE...` prints the number of
 * ids, their hash and the milliseconds of the processor for each file. */
#include "base/file.h"
#include "base/text.h"
#include "worker/data/tokenizers/tokenizer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

struct session {
    struct tokenizer *t;
    struct tokenizer_scratch *s;
    struct dt_error err;
};

static void from_hex(const char *hex, struct dt_text *out)
{
    unsigned byte;
    dt_text_reset(out);
    for (; sscanf(hex, "%2x", &byte) == 1 && hex[0] != ' '; hex += 2) {
        char c = (char)byte;
        dt_text_add(out, &c, 1);
        if (hex[1] == 0 || hex[2] == 0 || hex[2] == ' ' || hex[2] == '\n') {
            break;
        }
    }
}

static void print_hex(const char *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        printf("%02x", (unsigned char)bytes[i]);
    }
}

static int print_ids(struct session *k, int rc, const struct token_ids *ids)
{
    if (rc != 0) {
        return printf("! %s\n", k->err.text);
    }
    for (size_t i = 0; i < ids->count; i++) {
        printf(i > 0 ? " %d" : "%d", ids->ids[i]);
    }
    return printf("\n");
}

static uint32_t next_random(uint64_t *x)
{
    *x = *x * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*x >> 33);
}

/* The text of ids by parts; false: not the whole's. */
static bool decodes_alike(struct session *k, const struct token_ids *ids)
{
    struct dt_text whole, parts;
    dt_text_init(&whole);
    dt_text_init(&parts);
    tokenizer_decode(k->t, ids->ids, ids->count, false, &whole);
    struct tokenizer_decoder *d = tokenizer_decoder_open(k->t, false);
    for (size_t i = 0; i < ids->count; i++) {
        tokenizer_decoder_add(d, ids->ids[i], &parts);
    }
    tokenizer_decoder_end(d, &parts);
    tokenizer_decoder_close(d);
    bool alike = whole.size == parts.size && memcmp(dt_text_str(&whole), dt_text_str(&parts), whole.size) == 0;
    dt_text_clear(&whole);
    dt_text_clear(&parts);
    return alike;
}

static int encode_parts(struct session *k, uint64_t seed, const struct dt_text *text, struct token_ids *ids)
{
    struct tokenizer_stream *r = tokenizer_stream_open(k->t, k->s);
    size_t most = next_random(&seed) % 3 == 0 ? 7 : 40000;
    int rc = 0;
    for (size_t at = 0; at < text->size && rc == 0;) {
        size_t n = next_random(&seed) % most + 1;
        n = n > text->size - at ? text->size - at : n;
        rc = tokenizer_stream_add(r, text->data + at, n, ids, &k->err);
        at += n;
    }
    rc = rc == 0 ? tokenizer_stream_end(r, ids, &k->err) : rc;
    tokenizer_stream_close(r);
    if (rc == 0 && !decodes_alike(k, ids)) {
        rc = dt_fail(&k->err, DT_INTERNAL, "the decoder's parts are not the whole");
    }
    return rc;
}

static void print_piece(void *context, const char *piece, size_t size)
{
    (void)context;
    print_hex(piece, size);
    printf(" ");
}

static void answer(struct session *k, char *line, struct dt_text *text, struct dt_text *second)
{
    struct token_ids ids = {0};
    char *rest = line + 2;
    if (*line == 'e' || *line == 's') {
        from_hex(rest, text);
        int rc = tokenizer_encode(k->t, k->s, dt_text_str(text), text->size, *line == 's', &ids, &k->err);
        print_ids(k, rc, &ids);
    } else if (*line == 'r') {
        uint64_t seed = strtoull(rest, &rest, 10);
        from_hex(rest + 1, text);
        print_ids(k, encode_parts(k, seed, text, &ids), &ids);
    } else if (*line == 'p') {
        struct token_sequence q = {0};
        from_hex(rest, text);
        from_hex(strchr(rest, ' ') + 1, second);
        int rc = tokenizer_encode_pair(k->t, k->s, dt_text_str(text), text->size, dt_text_str(second), second->size, 0,
                                       &q, &k->err);
        print_ids(k, rc, &q.ids);
        token_sequence_clear(&q);
    } else if (*line == 'w') {
        from_hex(rest, text);
        if (tokenizer_pieces(k->t, k->s, dt_text_str(text), text->size, print_piece, NULL, &k->err) != 0) {
            printf("! %s", k->err.text);
        }
        printf("\n");
    } else {
        bool skip = *rest++ == '1';
        for (char *end; *rest != 0 && *rest != '\n'; rest = end) {
            long id = strtol(rest, &end, 10);
            if (end == rest) {
                break;
            }
            token_ids_add(&ids, (int32_t)id);
        }
        dt_text_reset(text);
        tokenizer_decode(k->t, ids.ids, ids.count, skip, text);
        print_hex(dt_text_str(text), text->size);
        printf("\n");
    }
    token_ids_clear(&ids);
    (void)fflush(stdout);
}

static int encode_file(struct session *k, const char *path)
{
    struct dt_text text;
    struct token_ids ids = {0};
    dt_text_init(&text);
    int rc = dt_file_read(path, (size_t)1 << 30, &text, &k->err);
    clock_t begin = clock();
    rc = rc == 0 ? tokenizer_encode(k->t, k->s, dt_text_str(&text), text.size, false, &ids, &k->err) : rc;
    double ms = (double)(clock() - begin) * 1e3 / CLOCKS_PER_SEC;
    if (rc == 0) {
        printf("%zu %016" PRIx64 " %.3f\n", ids.count, XXH3_64bits(ids.ids, ids.count * sizeof *ids.ids), ms);
    } else {
        printf("! %s\n", k->err.text);
    }
    dt_text_clear(&text);
    token_ids_clear(&ids);
    return rc;
}

int main(int argc, char **argv)
{
    struct session k = {0};
    if (argc < 2 || tokenizer_open(&k.t, argv[1], &k.err) != 0) {
        (void)printf("! %s\n", argc < 2 ? "usage: tokenize TOKENIZER.JSON [FILE...]" : k.err.text);
        return 1;
    }
    k.s = tokenizer_scratch_open(k.t);
    for (int i = 2; i < argc; i++) {
        (void)encode_file(&k, argv[i]);
    }
    struct dt_text text, second;
    dt_text_init(&text);
    dt_text_init(&second);
    char *line = NULL;
    size_t room = 0;
    while (argc == 2 && getline(&line, &room, stdin) > 0) {
        answer(&k, line, &text, &second);
    }
    free(line);
    dt_text_clear(&text);
    dt_text_clear(&second);
    tokenizer_scratch_close(k.s);
    tokenizer_close(k.t);
    return 0;
}
