/* dtdata encode and decode: standard input to ids, and ids to text, in bounded memory. */
#include "base/text.h"
#include "cmd/dtdata/coder.h"
#include "cmd/dtdata/commands.h"
#include "cmd/dtdata/stop.h"
#include "cmd/dtdata/unpack.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { PIECE_BYTES = 1 << 16 };

/* Where the pieces of standard input go. */
struct use {
    const struct coder *coder;
    struct tokenizer_stream *stream;
    struct tokenizer_decoder *decoder;
    struct token_ids ids;
    struct dt_text text;
    bool any;       /* ids were printed */
    int64_t id;     /* the digits so far; -1: none */
    long long word; /* number of ids so far */
};
typedef int use_piece(struct use *u, const char *piece, size_t size, struct dt_error *err);

static void print_ids(struct use *u)
{
    for (size_t i = 0; i < u->ids.count; i++) {
        (void)printf("%s%" PRId32, u->any ? " " : "", u->ids.ids[i]);
        u->any = true;
    }
    u->ids.count = 0;
}

static int encode_piece(struct use *u, const char *piece, size_t size, struct dt_error *err)
{
    int result = u->stream != NULL ? tokenizer_stream_add(u->stream, piece, size, &u->ids, err)
                                   : coder_encode(u->coder, NULL, piece, size, &u->ids, err);
    print_ids(u);
    return result;
}

static int decode_id(struct use *u, struct dt_error *err)
{
    u->word++;
    if (u->id >= u->coder->vocabulary) {
        return dt_fail(err, DT_INVALID, "-: id %" PRId64 " (number %lld) is beyond the vocabulary of %" PRId64, u->id,
                       u->word, u->coder->vocabulary);
    }
    if (u->decoder != NULL) {
        tokenizer_decoder_add(u->decoder, (int32_t)u->id, &u->text);
    } else {
        const int32_t id = (int32_t)u->id;
        coder_decode(u->coder, &id, 1, &u->text);
    }
    u->id = -1;
    return 0;
}

static int decode_piece(struct use *u, const char *piece, size_t size, struct dt_error *err)
{
    for (size_t i = 0; i < size; i++) {
        char c = piece[i];
        if (c >= '0' && c <= '9') {
            u->id = (u->id < 0 ? 0 : u->id) * 10 + (c - '0');
            u->id = u->id < INT32_MAX ? u->id : INT32_MAX;
        } else if (c != ' ' && c != '\n' && c != '\t' && c != '\r' && c != ',') {
            return dt_fail(err, DT_INVALID, "-: behind id %lld: give ids as numbers with spaces between them", u->word);
        } else if (u->id >= 0 && decode_id(u, err) != 0) {
            return -1;
        }
    }
    (void)fwrite(dt_text_str(&u->text), 1, u->text.size, stdout);
    dt_text_reset(&u->text);
    return 0;
}

static int each_piece(use_piece *piece, struct use *u, struct dt_error *err)
{
    struct unpack *in;
    if (unpack_open(&in, "-", err) != 0) {
        return -1;
    }
    char *buffer = dt_alloc(PIECE_BYTES);
    size_t got = 1;
    int result = 0;
    while (result == 0 && got > 0) {
        result = unpack_read(in, (unsigned char *)buffer, PIECE_BYTES, &got, err) != 0 || stop_check(err) != 0
                     ? -1
                     : piece(u, buffer, got, err);
    }
    free(buffer);
    unpack_close(in);
    return result;
}

static int encode_all(const struct coder *c, struct dt_error *err)
{
    struct use u = {.coder = c};
    struct tokenizer_scratch *scratch = c->tokenizer != NULL ? tokenizer_scratch_open(c->tokenizer) : NULL;
    u.stream = scratch != NULL ? tokenizer_stream_open(c->tokenizer, scratch) : NULL;
    int result = each_piece(encode_piece, &u, err);
    if (result == 0 && u.stream != NULL) {
        result = tokenizer_stream_end(u.stream, &u.ids, err);
        print_ids(&u);
    }
    (void)puts("");
    if (scratch != NULL) {
        tokenizer_stream_close(u.stream);
        tokenizer_scratch_close(scratch);
    }
    token_ids_clear(&u.ids);
    return result;
}

static int decode_all(const struct coder *c, struct dt_error *err)
{
    struct use u = {.coder = c, .id = -1};
    u.decoder = c->tokenizer != NULL ? tokenizer_decoder_open(c->tokenizer, false) : NULL;
    int result = each_piece(decode_piece, &u, err);
    if (result == 0 && u.id >= 0) {
        result = decode_id(&u, err);
    }
    if (result == 0 && u.decoder != NULL) {
        tokenizer_decoder_end(u.decoder, &u.text);
    }
    (void)fwrite(dt_text_str(&u.text), 1, u.text.size, stdout);
    if (u.decoder != NULL) {
        tokenizer_decoder_close(u.decoder);
    }
    dt_text_clear(&u.text);
    return result;
}

static int run(const char *name, int argc, char **argv, int (*all)(const struct coder *, struct dt_error *))
{
    static const struct option options[] = {{"tokenizer", required_argument, NULL, 't'}, {0}};
    const char *tokenizer = NULL;
    int c;
    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (c != 't') {
            return command_usage("%s: wrong option", name);
        }
        tokenizer = optarg;
    }
    if (tokenizer == NULL || optind != argc) {
        return command_usage("%s: give --tokenizer PATH, and the %s on standard input", name,
                             all == encode_all ? "text" : "ids");
    }
    struct coder coder;
    struct dt_error err = {0};
    if (coder_open(&coder, tokenizer, &err) != 0) {
        return command_fail(&err, err.status == DT_NOT_FOUND ? DT_EXIT_USAGE : DT_EXIT_FAILED);
    }
    int code = all(&coder, &err) == 0 ? DT_EXIT_DONE
               : stop_signal() != 0   ? 128 + stop_signal()
                                      : command_fail(&err, DT_EXIT_FAILED);
    coder_close(&coder);
    return code;
}

int run_encode(int argc, char **argv)
{
    return run("encode", argc, argv, encode_all);
}

int run_decode(int argc, char **argv)
{
    return run("decode", argc, argv, decode_all);
}
