/* dtdata inspect: what is in token shards and in files of labelled rows. */
#include "base/file.h"
#include "base/scan.h"
#include "base/text.h"
#include "cmd/dtdata/coder.h"
#include "cmd/dtdata/commands.h"
#include "worker/data/safetensors.h"
#include "worker/data/shards.h"

#include <cjson/cJSON.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { SHOWN_BYTES = 400, SHOWN_IDS = 200 };

struct inspect_options {
    const char *tokenizer; /* null: the one that the file names */
    const char *end;       /* the token that ends documents, where the file does not say; null: the tokenizer's */
    bool raw;              /* ids without a header */
    int64_t samples;
};

/* Opens the tokenizer of a file: 1, or 0 if it is not known. name, path, hash: what the file says of it. */
static int open_coder(struct coder *c, const struct inspect_options *o, const char *file, const char *name,
                      const char *path, bool has_hash, uint64_t hash, struct dt_error *err)
{
    bool bytes = name != NULL && strcmp(name, "bytes") == 0;
    const char *tokenizer = o->tokenizer != NULL ? o->tokenizer : bytes ? "bytes" : path;
    *c = (struct coder){0};
    if (tokenizer == NULL || (o->tokenizer == NULL && !bytes && !dt_file_exists(tokenizer))) {
        return 0;
    }
    if (coder_open(c, tokenizer, err) != 0) {
        return -1;
    }
    if (coder_end_with(c, o->end, err) != 0) {
        coder_close(c);
        return -1;
    }
    if (has_hash && c->hash != hash && o->tokenizer == NULL) { /* changed since */
        coder_close(c);
        return 0;
    }
    const struct shard_info info = {.has_tokenizer_hash = has_hash, .tokenizer_hash = hash};
    struct shard_info named = info;
    (void)snprintf(named.tokenizer, sizeof named.tokenizer, "%s", name != NULL ? name : "unknown");
    if (shard_check_tokenizer(&named, file, tokenizer, c->hash, err) != 0) {
        coder_close(c);
        return -1;
    }
    return 1;
}

/* Prints ids as text on one line, or as numbers; "..." where more follow. */
static void show_ids(const struct coder *c, bool known, const int32_t *ids, size_t count, bool more)
{
    struct dt_text text, line;
    dt_text_init(&text);
    dt_text_init(&line);
    if (known) {
        coder_decode(c, ids, count, &text);
        size_t size = text.size < SHOWN_BYTES ? text.size : SHOWN_BYTES;
        while (size < text.size && size > 0 && ((unsigned char)text.data[size] & 0xc0) == 0x80) {
            size--;
        }
        more = more || size < text.size;
        dt_text_add_visible(&line, dt_text_str(&text), size, false);
    } else {
        for (size_t i = 0; i < count; i++) {
            dt_text_printf(&line, "%s%" PRId32, i > 0 ? " " : "", ids[i]);
        }
    }
    (void)printf("%s%s\n", dt_text_str(&line), more ? "..." : "");
    dt_text_clear(&line);
    dt_text_clear(&text);
}

/* ---- token shards ---- */

/* The first documents of a shard, each with the place of its ids. */
static void show_documents(const struct shard *s, const struct coder *c, bool known, int64_t samples)
{
    /* shards of llm.c have the id before each document: none ends at the first one */
    int64_t end_id = s->info.document_end, at = !s->has_info && (int64_t)shard_id(s, 0) == end_id;
    int32_t *ids = dt_alloc(SHOWN_IDS * sizeof *ids);
    for (int64_t i = 0; i < samples && at < s->token_count; i++) {
        int64_t end = at;
        while (end < s->token_count && (int64_t)shard_id(s, end) != end_id) {
            if (end - at < SHOWN_IDS) {
                ids[end - at] = (int32_t)shard_id(s, end);
            }
            end++;
        }
        int64_t shown = end - at < SHOWN_IDS ? end - at : SHOWN_IDS;
        (void)printf("  %s %" PRId64 ", ", end_id >= 0 ? "document" : "text", i + 1);
        if (end > at) {
            (void)printf("ids %" PRId64 " to %" PRId64 "%s: ", at, end - 1,
                         end < s->token_count ? "" : ", not ended in this shard");
        } else {
            (void)printf("no ids before %" PRId64 ": ", end);
        }
        show_ids(c, known, ids, (size_t)shown, shown < end - at);
        at = end + 1;
    }
    free(ids);
}

static void say_shard(const struct shard *s, const char *path, int64_t max_id, uint64_t hash)
{
    char size[32];
    bool same = !s->info.has_hash || s->info.hash == hash;
    dt_text_say(stdout, "%s: %" PRId64 " tokens of %d bytes (%s), largest id %" PRId64, path, s->token_count, s->width,
                dt_text_bytes((double)s->map_bytes, size, sizeof size), max_id);
    if (s->has_info) {
        dt_text_say(stdout, "  tokenizer %s, vocabulary %" PRId64 ", from %" PRId64 " files",
                    s->info.tokenizer[0] != 0 ? s->info.tokenizer : "unknown", s->info.vocabulary,
                    s->info.source_count);
    } else {
        dt_text_say(stdout, "  no %s.json: tokenizer and vocabulary unknown", path);
    }
    dt_text_say(stdout, "  xxh3 %016" PRIx64 "%s", hash,
                !s->info.has_hash ? ", nothing to compare with"
                : same            ? ", as written"
                                  : "");
}

static int check_shard(const struct shard *s, const char *path, int64_t max_id, uint64_t hash, struct dt_error *err)
{
    if (s->info.has_hash && s->info.hash != hash) {
        return dt_fail(err, DT_INVALID,
                       "%s: hash %016" PRIx64 ", but its JSON says %016" PRIx64 ": changed or damaged; make it again",
                       path, hash, s->info.hash);
    }
    if (s->info.vocabulary != 0 && max_id >= s->info.vocabulary) {
        return dt_fail(err, DT_INVALID,
                       "%s: largest id %" PRId64 " does not fit into the vocabulary of %" PRId64 "; make it again",
                       path, max_id, s->info.vocabulary);
    }
    return 0;
}

static int inspect_shard(const char *path, const struct inspect_options *o, struct dt_error *err)
{
    struct shard s;
    struct coder c;
    if ((o->raw ? shard_open_raw(&s, path, err) : shard_open(&s, path, err)) != 0) {
        return -1;
    }
    int64_t max_id = 0;
    uint64_t hash = 0;
    shard_measure(&s, &max_id, &hash);
    say_shard(&s, path, max_id, hash);
    int result = check_shard(&s, path, max_id, hash, err);
    int known = result == 0 ? open_coder(&c, o, path, s.info.tokenizer, s.info.tokenizer_path,
                                         s.info.has_tokenizer_hash, s.info.tokenizer_hash, err)
                            : -1;
    if (known == 0 && o->end != NULL) {
        known = dt_fail(err, DT_INVALID, "%s: --end %s: its tokenizer is not known; give --tokenizer", path, o->end);
    }
    if (known >= 0) {
        s.info.document_end = s.info.document_end < 0 && known > 0 ? c.end : s.info.document_end;
        show_documents(&s, &c, known > 0, o->samples);
        coder_close(&c);
    }
    shard_close(&s);
    return known >= 0 ? 0 : -1;
}

/* ---- labelled rows ---- */

struct row_file {
    struct st_file *file;
    const struct st_tensor *ids, *starts, *labels;
    cJSON *names; /* null: labels are numbers */
};

/* 1 of a tensor that may lie unaligned. */
static int64_t integer_at(const struct st_tensor *t, int64_t i)
{
    int64_t value;
    memcpy(&value, (const char *)t->data + i * (int64_t)sizeof value, sizeof value);
    return value;
}

static int open_rows(struct row_file *f, const char *path, struct dt_error *err)
{
    *f = (struct row_file){0};
    if (st_open(&f->file, path, err) != 0) {
        return -1;
    }
    f->ids = st_find(f->file, "ids");
    f->starts = st_find(f->file, "starts");
    f->labels = st_find(f->file, "labels");
    const char *names = st_metadata(f->file, "label_names");
    bool good = f->ids != NULL && f->starts != NULL && f->labels != NULL && f->ids->type == DT_I32 &&
                f->starts->type == DT_I64 && f->starts->numel == f->labels->numel + 1 &&
                f->labels->type == (names != NULL ? DT_I64 : DT_F32);
    if (!good) {
        return dt_fail(err, DT_INVALID, "%s: neither a token shard nor labelled rows of dtdata tokenize", path);
    }
    for (int64_t i = 0; i < f->starts->numel; i++) {
        int64_t before = i > 0 ? integer_at(f->starts, i - 1) : 0, at = integer_at(f->starts, i);
        bool ends = i + 1 < f->starts->numel || at == f->ids->numel;
        if (at < before || at > f->ids->numel || (i == 0 && at != 0) || !ends) {
            return dt_fail(err, DT_INVALID, "%s: starts of rows are damaged at %" PRId64 "; make it again", path, i);
        }
    }
    f->names = names != NULL ? dt_scan_parse(names, strlen(names), path, NULL, err) : NULL;
    return names == NULL || f->names != NULL ? 0 : -1;
}

static void close_rows(struct row_file *f)
{
    cJSON_Delete(f->names);
    st_close(f->file);
}

static void show_label(const struct row_file *f, int64_t i)
{
    if (f->labels->type == DT_F32) {
        float number;
        memcpy(&number, (const char *)f->labels->data + i * (int64_t)sizeof number, sizeof number);
        (void)printf("%g", (double)number);
        return;
    }
    int64_t k = integer_at(f->labels, i);
    const char *name = k >= 0 && k < INT32_MAX ? cJSON_GetStringValue(cJSON_GetArrayItem(f->names, (int)k)) : NULL;
    char shown[128];
    (void)printf("%s", name != NULL ? dt_text_excerpt(name, strlen(name), shown, sizeof shown) : "no label");
}

static void show_rows(const struct row_file *f, const struct coder *c, bool known, int64_t samples)
{
    int32_t *ids = dt_alloc(SHOWN_IDS * sizeof *ids);
    for (int64_t i = 0; i < samples && i < f->labels->numel; i++) {
        int64_t begin = integer_at(f->starts, i), count = integer_at(f->starts, i + 1) - begin;
        int64_t shown = count < SHOWN_IDS ? count : SHOWN_IDS;
        memcpy(ids, (const char *)f->ids->data + begin * (int64_t)sizeof *ids, (size_t)shown * sizeof *ids);
        (void)printf("  row %" PRId64 ", %" PRId64 " ids, label ", i + 1, count);
        show_label(f, i);
        (void)printf(": ");
        show_ids(c, known, ids, (size_t)shown, shown < count);
    }
    free(ids);
}

static int inspect_rows(const char *path, const struct inspect_options *o, struct dt_error *err)
{
    struct row_file f;
    struct coder c;
    if (open_rows(&f, path, err) != 0) {
        close_rows(&f);
        return -1;
    }
    const char *name = st_metadata(f.file, "tokenizer"), *hash = st_metadata(f.file, "tokenizer_hash");
    char *labels = f.names != NULL ? cJSON_PrintUnformatted(f.names) : dt_strdup("numbers");
    dt_text_say(stdout, "%s: %" PRId64 " rows, %" PRId64 " ids", path, f.labels->numel, f.ids->numel);
    dt_text_say(stdout, "  tokenizer %s, labels %s", name != NULL ? name : "unknown", labels);
    free(labels);
    int known = open_coder(&c, o, path, name, st_metadata(f.file, "tokenizer_path"), hash != NULL,
                           hash != NULL ? strtoull(hash, NULL, 16) : 0, err);
    if (known >= 0) {
        show_rows(&f, &c, known > 0, o->samples);
        coder_close(&c);
    }
    close_rows(&f);
    return known >= 0 ? 0 : -1;
}

int run_inspect(int argc, char **argv)
{
    static const struct option options[] = {{"tokenizer", required_argument, NULL, 't'},
                                            {"samples", required_argument, NULL, 'n'},
                                            {"end", required_argument, NULL, 'e'},
                                            {"format", required_argument, NULL, 'f'},
                                            {0}};
    struct inspect_options o = {.samples = 2};
    long long number = 0;
    int c, code = DT_EXIT_DONE;
    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (c == 't') {
            o.tokenizer = optarg;
        } else if (c == 'n' && dt_parse_int64(optarg, &number) && number >= 0) {
            o.samples = number;
        } else if (c == 'e') {
            o.end = optarg;
        } else if (c == 'f' && (strcmp(optarg, "nanogpt") == 0 || strcmp(optarg, "auto") == 0)) {
            o.raw = *optarg == 'n';
        } else if (c == 'f') {
            return command_usage("--format %s: give nanogpt (ids without a header) or auto", optarg);
        } else {
            return c == 'n' ? command_usage("--samples %s: give a whole number", optarg)
                            : command_usage("inspect: wrong option");
        }
    }
    if (optind == argc) {
        return command_usage("inspect: no files; give token shards or labelled rows");
    }
    for (int i = optind; i < argc; i++) {
        struct dt_error err = {0};
        struct stat st;
        bool rows = dt_text_ends_with(argv[i], ".safetensors");
        if (stat(argv[i], &st) == 0 && S_ISDIR(st.st_mode)) {
            return command_usage("inspect: %s is a folder; name its shards: %s/*.bin, or *.safetensors", argv[i],
                                 argv[i]);
        }
        if ((rows ? inspect_rows : inspect_shard)(argv[i], &o, &err) != 0) {
            code = command_fail(&err, DT_EXIT_FAILED);
        }
    }
    return code;
}
