/* See the header. Texts come in windows, so that those of like lengths are computed together and none waits for the
 * end of a long file. Vectors are written in the order of the texts. */
#include "cmd/train/embed.h"

#include "base/file.h"
#include "base/scan.h"
#include "worker/data/tokenizers/tokenizer.h"
#include "worker/run/embed.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    WINDOW_BATCHES = 32,
    WINDOW_BYTES = 16 << 20,
    LINE_MAX_BYTES = 64 << 20,
    NPY_HEADER = 128 /* a multiple of 64, with room for any number of rows */
};

bool train_check_embed(const struct train_embed *e, const char *beside)
{
    if (e->path == NULL && (e->texts != NULL || e->pooling != NULL || e->normalize)) {
        (void)fprintf(stderr, "train: %s: only with --embed; see train --help\n",
                      e->texts != NULL     ? "--texts"
                      : e->pooling != NULL ? "--pooling"
                                           : "--normalize");
        return false;
    }
    if (e->path != NULL && beside != NULL) {
        (void)fprintf(stderr, "train: --embed: not beside %s; it runs alone\n", beside);
        return false;
    }
    return true;
}

/* ---- texts ---- */

struct reader {
    FILE *from;
    const char *path;
    char *line;
    size_t room;
    int64_t number; /* of the last line */
    bool json;      /* each line is an object with "text" */
};

static bool is_standard(const char *path)
{
    return path == NULL || strcmp(path, "-") == 0;
}

static int reader_open(struct reader *r, const char *path, struct dt_error *err)
{
    *r = (struct reader){.from = stdin, .path = is_standard(path) ? "standard input" : path};
    if (!is_standard(path)) {
        r->from = fopen(path, "re");
        r->json =
            dt_text_ends_with(path, ".jsonl") || dt_text_ends_with(path, ".json") || dt_text_ends_with(path, ".ndjson");
    }
    return r->from != NULL ? 0 : dt_fail_errno(err, "--texts: %s", path);
}

static void reader_close(struct reader *r)
{
    if (r->from != NULL && r->from != stdin) {
        (void)fclose(r->from);
    }
    free(r->line);
}

/* Appends the next text to `out`. False: there is none, or `err` says why. A line of standard input that is an object
 * with "text" makes all of them such lines. */
static bool reader_next(struct reader *r, struct dt_text *out, struct dt_error *err)
{
    enum dt_scan_found found = DT_SCAN_NONE;
    const char *other = NULL;
    errno = 0;
    ssize_t got = getline(&r->line, &r->room, r->from);
    if (got < 0) {
        if (ferror(r->from)) {
            (void)dt_fail_errno(err, "%s", r->path);
        }
        return false;
    }
    size_t size = (size_t)got, mark = r->number++ == 0 ? dt_text_mark(r->line, size, &other) : 0;
    size -= size > 0 && r->line[size - 1] == '\n';
    size -= size > mark && r->line[size - 1] == '\r';
    const char *line = r->line + mark;
    size -= mark;
    char *where = dt_format("%s:%lld", r->path, (long long)r->number);
    bool first = r->from == stdin && r->number == 1 && size > 0 && line[0] == '{';
    if (size > LINE_MAX_BYTES || other != NULL) {
        (void)dt_fail(err, DT_INVALID, "%s: %s", where,
                      other != NULL ? "the text is not UTF-8" : "the line has more than 64 MiB");
    } else if (!r->json && !first) {
        dt_text_add(out, line, size);
    } else if (dt_scan_record(line, size, where, "text", out, &found, first ? NULL : err) == 0 &&
               found == DT_SCAN_FOUND) {
        r->json = true;
    } else if (first) {
        dt_text_reset(out);
        dt_text_add(out, line, size);
    } else if (err->status == DT_OK) {
        (void)dt_fail(err, DT_INVALID, "%s: no text under \"text\"; give lines like {\"text\": \"a text\"}", where);
    }
    free(where);
    return err->status == DT_OK;
}

/* ---- vectors ---- */

struct writer {
    FILE *to;
    const char *path; /* null: standard output */
    char *unfinished; /* the file until it is whole; null: there is none */
    bool npy;
    int64_t width, rows;
};

static int writer_open(struct writer *w, const char *path, int64_t width, struct dt_error *err)
{
    *w = (struct writer){.to = stdout, .path = path, .width = width};
    if (path == NULL) {
        return 0;
    }
    w->npy = dt_text_ends_with(path, ".npy");
    if (dt_file_is_device(path)) {
        w->to = fopen(path, "we");
        return w->to != NULL ? 0 : dt_fail_errno(err, "-o: %s", path);
    }
    w->unfinished = dt_format("%s.tmp-%ld", path, (long)getpid());
    int fd = dt_file_create(w->unfinished, err);
    w->to = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (fd < 0) {
        return dt_wrap(err, "-o");
    }
    static const char room[NPY_HEADER];
    return !w->npy || fwrite(room, 1, NPY_HEADER, w->to) == NPY_HEADER ? 0 : dt_fail_errno(err, "%s", path);
}

/* The header is padded with spaces up to its last byte, a newline. False: it is not written. */
static bool put_header(const struct writer *w)
{
    char header[NPY_HEADER];
    memset(header, ' ', sizeof header);
    memcpy(header, "\x93NUMPY\x01", 8); /* version 1.0: with the NUL at its end */
    header[8] = (char)(NPY_HEADER - 10);
    header[9] = 0;
    int size =
        snprintf(header + 10, sizeof header - 10, "{'descr': '<f4', 'fortran_order': False, 'shape': (%lld, %lld), }",
                 (long long)w->rows, (long long)w->width);
    header[10 + size] = ' ';
    header[NPY_HEADER - 1] = '\n';
    return fseek(w->to, 0, SEEK_SET) == 0 && fwrite(header, 1, sizeof header, w->to) == sizeof header &&
           fflush(w->to) == 0;
}

static void put_vector(struct writer *w, const struct embed_row *r)
{
    if (w->npy) {
        (void)fwrite(r->vector, sizeof *r->vector, (size_t)w->width, w->to);
    } else {
        (void)fprintf(w->to, "{\"row\": %lld, \"tokens\": %lld, \"embedding\": [", (long long)w->rows,
                      (long long)r->count);
        for (int64_t i = 0; i < w->width; i++) {
            (void)fprintf(w->to, "%s%.9g", i > 0 ? ", " : "", (double)r->vector[i]);
        }
        (void)fputs("]}\n", w->to);
    }
    w->rows++;
}

/* rc: whether all was written so far; a file that is not whole goes away. */
static int writer_close(struct writer *w, int rc, struct dt_error *err)
{
    bool wrong = w->to != NULL && (fflush(w->to) != 0 || ferror(w->to));
    if (w->npy && w->to != NULL && rc == 0 && !wrong) {
        wrong = !put_header(w);
    }
    if (w->to != NULL && w->to != stdout) {
        wrong = fclose(w->to) != 0 || wrong;
    }
    if (rc == 0 && wrong) {
        rc = dt_fail(err, DT_IO, "%s: cannot be written", w->path != NULL ? w->path : "standard output");
    }
    if (rc == 0 && w->unfinished != NULL && rename(w->unfinished, w->path) != 0) {
        rc = dt_fail_errno(err, "%s", w->path);
    }
    if (rc != 0 && w->unfinished != NULL) {
        (void)unlink(w->unfinished);
    }
    free(w->unfinished);
    return rc;
}

/* ---- windows ---- */

struct window {
    const struct tokenizer *tokenizer; /* null: ids are bytes */
    struct tokenizer_scratch *scratch;
    struct token_sequence *encoded;
    struct embed_row *rows;
    float *vectors;
    int64_t room, count, cut; /* cut: texts that were too long, of all windows */
};

static void window_open(struct window *w, const struct tokenizer *t, int64_t room, int64_t width)
{
    *w = (struct window){.tokenizer = t, .room = room};
    w->scratch = t != NULL ? tokenizer_scratch_open(t) : NULL;
    w->encoded = dt_alloc((size_t)room * sizeof *w->encoded);
    w->rows = dt_alloc((size_t)room * sizeof *w->rows);
    w->vectors = dt_alloc((size_t)(room * width) * sizeof *w->vectors);
    for (int64_t i = 0; i < room; i++) {
        w->rows[i].vector = w->vectors + i * width;
    }
}

static void window_close(struct window *w)
{
    for (int64_t i = 0; i < w->room; i++) {
        token_sequence_clear(&w->encoded[i]);
    }
    tokenizer_scratch_close(w->scratch);
    free(w->encoded);
    free(w->rows);
    free(w->vectors);
}

/* Adds a text to the window. */
static int window_add(struct window *w, const struct embedder *e, const struct dt_text *text, struct dt_error *err)
{
    struct token_sequence *q = &w->encoded[w->count];
    int64_t longest = embedder_longest(e);
    struct token_ids whole = {0};
    bool cut = false;
    if (w->tokenizer != NULL) {
        if (tokenizer_encode_pair(w->tokenizer, w->scratch, dt_text_str(text), text->size, NULL, 0, longest, q, err) !=
            0) {
            return -1;
        }
        cut = (int64_t)q->ids.count >= longest &&
              tokenizer_encode(w->tokenizer, w->scratch, dt_text_str(text), text->size, true, &whole, err) == 0 &&
              (int64_t)whole.count > longest;
    } else {
        token_ids_clear(&q->ids);
        for (size_t i = 0; i < text->size && (int64_t)i < longest; i++) {
            token_ids_add(&q->ids, (uint8_t)text->data[i]);
        }
        cut = (int64_t)text->size > longest;
    }
    token_ids_clear(&whole);
    if (q->ids.count == 0) {
        return dt_fail(err, DT_INVALID, "the text has no tokens, so it has no vector; take it out");
    }
    w->cut += cut;
    w->rows[w->count].ids = q->ids.ids;
    w->rows[w->count].types = w->tokenizer != NULL ? q->types : NULL;
    w->rows[w->count++].count = (int64_t)q->ids.count;
    return 0;
}

static void strip(struct dt_text *text)
{
    size_t first = 0, end = text->size;
    while (first < end && isspace((unsigned char)text->data[first])) {
        first++;
    }
    while (end > first && isspace((unsigned char)text->data[end - 1])) {
        end--;
    }
    struct dt_text kept;
    dt_text_init(&kept);
    dt_text_add(&kept, dt_text_str(text) + first, end - first);
    dt_text_clear(text);
    *text = kept;
}

static int embed_all(struct embedder *e, const struct embed_options *options, struct reader *r, struct window *w,
                     struct writer *out, struct dt_error *err)
{
    struct dt_text text;
    size_t prompt = options->prompt != NULL ? strlen(options->prompt) : 0;
    bool more = true;
    int rc = 0;
    dt_text_init(&text);
    while (more && rc == 0) {
        w->count = 0;
        for (size_t bytes = 0; rc == 0 && w->count < w->room && bytes < WINDOW_BYTES; bytes += text.size) {
            struct dt_text one;
            dt_text_init(&one);
            dt_text_reset(&text);
            more = reader_next(r, &one, err);
            rc = err->status == DT_OK ? 0 : -1;
            if (more) {
                dt_text_add(&text, prompt > 0 ? options->prompt : "", prompt);
                dt_text_add(&text, dt_text_str(&one), one.size);
                if (options->strips) {
                    strip(&text);
                }
                rc = window_add(w, e, &text, err);
                rc = rc == 0 ? 0 : dt_wrap(err, "%s:%lld", r->path, (long long)r->number);
            }
            dt_text_clear(&one);
            if (!more) {
                break;
            }
        }
        rc = rc == 0 ? embedder_run(e, w->rows, w->count, out->rows, err) : rc;
        for (int64_t i = 0; i < w->count && rc == 0; i++) {
            put_vector(out, &w->rows[i]);
        }
    }
    dt_text_clear(&text);
    return rc;
}

/* ---- all of it ---- */

/* Names with commas between. */
static int read_pooling(const char *names, bool *pools, struct dt_error *err)
{
    memset(pools, 0, POOLED_KINDS * sizeof *pools);
    for (const char *at = names; at != NULL;) {
        size_t size = strcspn(at, ",");
        int kind = 0;
        while (kind < POOLED_KINDS &&
               (strlen(pooling_names[kind]) != size || strncmp(pooling_names[kind], at, size) != 0)) {
            kind++;
        }
        if (kind == POOLED_KINDS) {
            return dt_fail(err, DT_USAGE,
                           "--pooling: %s: must be cls, max, mean, mean_sqrt_len_tokens, weightedmean or lasttoken, or "
                           "some with commas between",
                           names);
        }
        pools[kind] = true;
        at = at[size] == ',' ? at + size + 1 : NULL;
    }
    return 0;
}

static int open_tokenizer(struct tokenizer **out, const struct model_source *s, const struct embedder *e,
                          struct dt_error *err)
{
    if (s->tokenizer != NULL) {
        return tokenizer_open(out, s->tokenizer, err);
    }
    return embedder_vocabulary(e) == 256
               ? 0
               : dt_fail(err, DT_INVALID,
                         "%s: there is no tokenizer.json beside the weights nor as data.tokenizer, and the model does "
                         "not read bytes: it has %lld tokens",
                         s->path, (long long)embedder_vocabulary(e));
}

static int embed(const struct train_embed *o, struct reader *r, struct dt_error *err)
{
    struct model_source source;
    struct embed_options options = {0};
    struct embedder *e = NULL;
    struct tokenizer *tokenizer = NULL;
    struct window window = {0};
    struct writer out = {0};
    struct dt_text notes;
    dt_text_init(&notes);
    int rc = model_source_open(&source, o->path, &notes, err);
    if (notes.size > 0) {
        dt_text_say(stderr, "train: %s", dt_text_str(&notes));
    }
    rc = rc == 0 ? embed_settings(&source, o->pooling == NULL, &options, err) : rc;
    rc = rc == 0 && o->pooling != NULL ? read_pooling(o->pooling, options.pools, err) : rc;
    options.normalize = options.normalize || o->normalize;
    options.batch_size = o->batch_size > 0 ? o->batch_size : options.batch_size;
    rc = rc == 0 ? embedder_open(&e, &source, &options, err) : rc;
    rc = rc == 0 ? open_tokenizer(&tokenizer, &source, e, err) : rc;
    if (rc == 0) {
        window_open(&window, tokenizer, options.batch_size * WINDOW_BATCHES, embedder_width(e));
        rc = writer_open(&out, o->output, embedder_width(e), err);
        rc = rc == 0 ? embed_all(e, &options, r, &window, &out, err) : rc;
        rc = writer_close(&out, rc, err);
        if (window.cut > 0) {
            (void)fprintf(stderr, "train: --embed: %lld of %lld texts were cut at %lld tokens\n", (long long)window.cut,
                          (long long)out.rows, (long long)embedder_longest(e));
        }
        window_close(&window);
    }
    tokenizer_close(tokenizer);
    embedder_close(e);
    embed_options_clear(&options);
    model_source_close(&source);
    dt_text_clear(&notes);
    return rc;
}

int train_embed(const struct train_embed *e)
{
    struct dt_error err = {.status = DT_OK};
    struct reader r = {0};
    int rc = reader_open(&r, e->texts, &err);
    rc = rc == 0 ? embed(e, &r, &err) : rc;
    reader_close(&r);
    if (rc != 0) {
        dt_text_say(stderr, "train: %s", err.text);
    }
    return rc == 0 ? DT_EXIT_DONE : err.status == DT_NO_MEMORY || err.status == DT_IO ? 1 : DT_EXIT_USAGE;
}
