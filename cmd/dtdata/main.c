/* dtdata: text -> token shards, and what is in shards. What it does with files is
 * cmd/dtdata/corpus.c and shards_write.c. */
#include "base/file.h"
#include "base/signals.h"
#include "base/text.h"
#include "cmd/dtdata/baseline.h"
#include "worker/data/data.h"
#include "cmd/dtdata/corpus.h"
#include "worker/data/shards.h"

#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BYTES_VOCABULARY = 256, END_OF_TEXT = 0 };
/* most of each text that is looked at: seconds, not minutes */
#define BASELINE_BYTES ((int64_t)16 << 20)

static const char help[] = "usage: dtdata COMMAND [options] PATH...\n"
                           "\n"
                           "  tokenize PATH...    text files, .gz files, folders of them, or - for standard\n"
                           "                      input -> DIR/train-00000.bin ... and val-00000.bin ...\n"
                           "      -o DIR              where the shards go [shards]\n"
                           "      --tokenizer bytes   one id per byte, 0 after each file or record [bytes]\n"
                           "      --val FRACTION      share of the text held out as whole files for val\n"
                           "                          [0.05; 0 when there is only one file]; also --holdout\n"
                           "      --shard_tokens N    most tokens per shard [100000000]\n"
                           "      --text_key KEY      where the text is in .jsonl records [text]\n"
                           "      --overwrite         replace shards that are in DIR\n"
                           "                      Hidden names, shards and DIR are passed over; binary and\n"
                           "                      empty files, UTF-8 byte order marks, and records\n"
                           "                      with \\u0000 or half of a surrogate pair in the text,\n"
                           "                      left out and counted. Text is UTF-8; ends of lines\n"
                           "                      stay as they are.\n"
                           "\n"
                           "  inspect FILE...     header, counts, tokenizer and hash of shards\n"
                           "\n"
                           "  baseline --train GLOB --val GLOB\n"
                           "                      bits per byte of gzip and of n-gram models on val\n"
                           "\n"
                           "  --help  --version\n"
                           "\n"
                           "Exit codes: 0 done, 1 bad or unreadable data, disk full, 2 wrong use.\n";

static volatile sig_atomic_t stopped;

static void on_signal(int number)
{
    stopped = number;
}

static int fail(const struct dt_error *err, int code)
{
    (void)fprintf(stderr, "dtdata: %s\n", err->text);
    return code;
}

static int usage(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static int usage(const char *fmt, ...)
{
    struct dt_error err;
    va_list args;
    va_start(args, fmt);
    (void)dt_fail_v(&err, DT_INVALID, fmt, args);
    va_end(args);
    (void)fail(&err, DT_EXIT_USAGE);
    (void)fprintf(stderr, "dtdata --help lists commands and options\n");
    return DT_EXIT_USAGE;
}

struct tokenize_options {
    const char *dir, *text_key;
    double val; /* -1: not given */
    int64_t shard_tokens;
    bool overwrite;
};

static int go_on(struct dt_error *err)
{
    return stopped == 0 ? 0 : dt_fail(err, DT_STOPPED, "stopped");
}

/* One id per byte. */
static int write_bytes(void *context, const unsigned char *text, size_t size, struct dt_error *err)
{
    struct shard_writer *w = context;
    uint16_t ids[4096];
    if (go_on(err) != 0) {
        return -1;
    }
    for (size_t at = 0; at < size;) {
        size_t n = size - at < 4096 ? size - at : 4096;
        for (size_t i = 0; i < n; i++) {
            ids[i] = text[at + i];
        }
        if (shard_writer_add(w, ids, n, err) != 0) {
            return -1;
        }
        at += n;
    }
    return 0;
}

static int write_end(struct shard_writer *w, struct dt_error *err)
{
    static const uint16_t end = END_OF_TEXT;
    return shard_writer_add(w, &end, 1, err);
}

static int write_record(void *context, const unsigned char *text, size_t size, struct dt_error *err)
{
    return write_bytes(context, text, size, err) == 0 ? write_end(context, err) : -1;
}

struct left_out {
    struct corpus_left_out records, marks;
};

static int write_file(struct shard_writer *w, const char *path, const char *text_key, struct left_out *left_out,
                      struct dt_error *err)
{
    shard_writer_source(w, path);
    if (corpus_is_records(path)) {
        return corpus_read_records(path, text_key, write_record, w, &left_out->records, &left_out->marks, err);
    }
    int64_t before = shard_writer_tokens(w);
    if (corpus_read(path, write_bytes, w, &left_out->marks, err) != 0) {
        return -1;
    }
    /* a pipe may turn out to be empty */
    return shard_writer_tokens(w) > before ? write_end(w, err) : 0;
}

static int open_writer(struct shard_writer **w, const char *prefix, const struct tokenize_options *o,
                       struct dt_error *err)
{
    return shard_writer_open(w, o->dir, prefix, "bytes", BYTES_VOCABULARY, o->shard_tokens, o->overwrite, err);
}

static void say(const char *what, size_t files, const struct shard_writer *w, const char *dir)
{
    dt_text_say(stdout, "%s: %zu file%s, %" PRId64 " tokens in %d shard%s: %s/%s-*.bin", what, files,
                files == 1 ? "" : "s", shard_writer_tokens(w), shard_writer_shards(w),
                shard_writer_shards(w) == 1 ? "" : "s", dir, what);
}

static int write_all(const struct corpus *c, const struct tokenize_options *o, struct left_out *left_out,
                     struct dt_error *err)
{
    struct shard_writer *train = NULL, *val = NULL;
    size_t held_out = 0;
    int result = -1;
    if (open_writer(&train, "train", o, err) != 0 || open_writer(&val, "val", o, err) != 0) {
        goto out;
    }
    for (size_t i = 0; i < c->count; i++) {
        held_out += c->files[i].held_out;
        if (write_file(c->files[i].held_out ? val : train, c->files[i].path, o->text_key, left_out, err) != 0) {
            goto out;
        }
    }
    if (shard_writer_tokens(train) == 0 || (held_out > 0 && shard_writer_tokens(val) == 0)) {
        (void)dt_fail(err, DT_INVALID, "%s%s: no text for %s: what was read is empty; give other files",
                      c->files[0].path, c->count > 1 ? " and others" : "",
                      shard_writer_tokens(train) == 0 ? "train" : "val");
        goto out;
    }
    if (shard_writer_finish(train, err) != 0 || shard_writer_finish(val, err) != 0 || go_on(err) != 0 ||
        shard_writer_commit(val, err) != 0 || shard_writer_commit(train, err) != 0) {
        goto out;
    }
    say("train", c->count - held_out, train, o->dir);
    if (held_out > 0) {
        say("val", held_out, val, o->dir);
    }
    result = 0;
out:
    shard_writer_close(train);
    shard_writer_close(val);
    return result;
}

static void say_left_out(const struct corpus *c, const struct tokenize_options *o, const struct left_out *x)
{
    if (c->binary_count + c->empty_count > 0) {
        dt_text_say(stderr, "dtdata: left out %zu binary and %zu empty files", c->binary_count, c->empty_count);
    }
    if (c->output_met) {
        dt_text_say(stderr, "dtdata: left out %s, where the shards go", o->dir);
    }
    if (x->marks.count > 0) {
        dt_text_say(stderr, "dtdata: left out %lld byte order mark%s; the first begins %s", x->marks.count,
                    x->marks.count == 1 ? "" : "s", x->marks.first);
    }
    if (x->records.count > 0) {
        dt_text_say(
            stderr,
            "dtdata: left out %lld record%s with \\u0000 or half of a surrogate pair in the text; the first is %s",
            x->records.count, x->records.count == 1 ? "" : "s", x->records.first);
    }
}

static int tokenize_paths(char **paths, int count, const struct tokenize_options *o)
{
    struct corpus c = {.output = o->dir};
    struct left_out left_out = {0};
    struct dt_error err = {0};
    int code = DT_EXIT_FAILED;
    bool piped = false;
    for (int i = 0; i < count; i++) {
        if (corpus_add(&c, paths[i], &err) != 0) {
            code = fail(&err, err.status == DT_NOT_FOUND ? DT_EXIT_USAGE : DT_EXIT_FAILED);
            goto out;
        }
        if (strcmp(paths[i], "-") == 0 && piped) {
            code = usage("-: standard input can be read only once");
            goto out;
        }
        piped = piped || strcmp(paths[i], "-") == 0;
    }
    if (c.count == 0) {
        (void)dt_fail(&err, DT_INVALID,
                      "%s%s: no text: %zu binary and %zu empty files; give text files or folders of them", paths[0],
                      count > 1 ? " and others" : "", c.binary_count, c.empty_count);
        code = fail(&err, DT_EXIT_FAILED);
        goto out;
    }
    bool hold_out = o->val > 0 || (o->val < 0 && c.count > 1);
    if (hold_out && corpus_hold_out(&c, o->val > 0 ? o->val : 0.05, &err) != 0) {
        code = fail(&err, DT_EXIT_USAGE);
        goto out;
    }
    if (write_all(&c, o, &left_out, &err) != 0) {
        if (stopped != 0) {
            (void)dt_fail(&err, DT_STOPPED, "stopped by signal %d; nothing was written", (int)stopped);
        }
        code = fail(&err, stopped != 0                                                          ? 128 + (int)stopped
                          : err.status == DT_INVALID && strstr(err.text, "--overwrite") != NULL ? DT_EXIT_USAGE
                                                                                                : DT_EXIT_FAILED);
        goto out;
    }
    say_left_out(&c, o, &left_out);
    code = DT_EXIT_DONE;
out:
    corpus_close(&c);
    return code;
}

static int run_tokenize(int argc, char **argv)
{
    static const struct option options[] = {
        {"output_dir", required_argument, NULL, 'o'},   {"tokenizer", required_argument, NULL, 't'},
        {"val", required_argument, NULL, 'v'},          {"holdout", required_argument, NULL, 'v'},
        {"shard_tokens", required_argument, NULL, 's'}, {"text_key", required_argument, NULL, 'k'},
        {"overwrite", no_argument, NULL, 'w'},          {0},
    };
    struct tokenize_options o = {.dir = "shards", .text_key = "text", .val = -1, .shard_tokens = 100000000};
    long long number = 0;
    int c;
    while ((c = getopt_long(argc, argv, "o:", options, NULL)) != -1) {
        switch (c) {
        case 'o':
            if (*optarg == 0) {
                return usage("-o: the name of the folder is empty");
            }
            o.dir = optarg;
            break;
        case 't':
            if (strcmp(optarg, "bytes") != 0) {
                return usage("--tokenizer %s: not there yet; bytes is what there is", optarg);
            }
            break;
        case 'v':
            if (!dt_parse_double(optarg, &o.val) || o.val < 0 || o.val >= 1) {
                return usage("--val %s: give a fraction from 0 to below 1", optarg);
            }
            break;
        case 's':
            if (!dt_parse_int64(optarg, &number) || number < 1 || number > INT32_MAX) {
                return usage("--shard_tokens %s: give a whole number from 1 to 2147483647", optarg);
            }
            o.shard_tokens = number;
            break;
        case 'k':
            o.text_key = optarg;
            break;
        case 'w':
            o.overwrite = true;
            break;
        default:
            return usage("tokenize: wrong option");
        }
    }
    if (optind == argc) {
        return usage("tokenize: no files; give text files or folders, or - for standard input");
    }
    return tokenize_paths(argv + optind, argc - optind, &o);
}

static int inspect(const char *path)
{
    struct shard s;
    struct dt_error err = {0};
    if (shard_open(&s, path, &err) != 0) {
        return fail(&err, DT_EXIT_FAILED);
    }
    int64_t max_id = 0;
    uint64_t hash = 0;
    shard_measure(&s, &max_id, &hash);
    bool same = !s.info.has_hash || s.info.hash == hash, fits = s.info.vocabulary == 0 || max_id < s.info.vocabulary;
    char size[32];
    dt_text_say(stdout, "%s: %" PRId64 " tokens of %d bytes (%s), largest id %" PRId64, path, s.token_count, s.width,
                dt_text_bytes((double)s.map_bytes, size, sizeof size), max_id);
    if (s.has_info) {
        dt_text_say(stdout, "  tokenizer %s, vocabulary %" PRId64 ", from %" PRId64 " files",
                    s.info.tokenizer[0] != 0 ? s.info.tokenizer : "unknown", s.info.vocabulary, s.info.source_count);
    } else {
        dt_text_say(stdout, "  no %s.json: tokenizer and vocabulary unknown", path);
    }
    dt_text_say(stdout, "  xxh3 %016" PRIx64 "%s", hash,
                !s.info.has_hash ? ", nothing to compare with"
                : same           ? ", as written"
                                 : "");
    if (!same) {
        (void)dt_fail(&err, DT_INVALID,
                      "%s: hash %016" PRIx64 ", but its JSON says %016" PRIx64 ": changed or damaged; make it again",
                      path, hash, s.info.hash);
    } else if (!fits) {
        (void)dt_fail(&err, DT_INVALID,
                      "%s: largest id %" PRId64 " does not fit into the vocabulary of %" PRId64 "; make it again", path,
                      max_id, s.info.vocabulary);
    }
    shard_close(&s);
    return same && fits ? DT_EXIT_DONE : fail(&err, DT_EXIT_FAILED);
}

static int run_inspect(int argc, char **argv)
{
    if (argc < 2) {
        return usage("inspect: no files; give token shards");
    }
    int code = DT_EXIT_DONE;
    for (int i = 1; i < argc; i++) {
        int one = inspect(argv[i]);
        code = one != DT_EXIT_DONE ? one : code;
    }
    return code;
}

/* The tokens of a source as bytes; of more than `limit` pieces from everywhere, evenly spaced.
 * The caller frees. */
static uint8_t *bytes_of(const char *glob, int64_t limit, size_t *size, struct dt_error *err)
{
    enum { PIECE = 16384 };
    struct data_source s;
    const struct batch_layout layout = batch_tokens(1, 1, 0, NULL);
    if (data_open(&s, glob, "tokens", &layout, err) != 0) {
        return NULL;
    }
    uint8_t *bytes = NULL;
    int64_t count = s.sample_count < limit ? s.sample_count : limit / PIECE * PIECE,
            stride = s.sample_count < limit ? PIECE : s.sample_count / (limit / PIECE);
    if (s.vocabulary > BYTES_VOCABULARY) {
        (void)dt_fail(err, DT_INVALID, "%s: a vocabulary of %" PRId64 "; the baselines are for bytes", glob,
                      s.vocabulary);
    } else {
        bytes = dt_alloc((size_t)count + 1);
        for (int64_t i = 0; i < count; i++) { /* samples of one token and its label */
            int32_t id, label;
            (void)s.ops->read(&s, i / PIECE * stride + i % PIECE, 0,
                              &(struct batch){.layout = &layout, .at = {&id, &label}}, 0, NULL);
            bytes[i] = (uint8_t)id;
        }
    }
    *size = (size_t)count;
    data_close(&s);
    return bytes;
}

static int run_baseline(int argc, char **argv)
{
    static const struct option options[] = {
        {"train", required_argument, NULL, 't'}, {"val", required_argument, NULL, 'v'}, {0}};
    const char *train_glob = NULL, *val_glob = NULL;
    int c;
    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (c != 't' && c != 'v') {
            return usage("baseline: wrong option");
        }
        *(c == 't' ? &train_glob : &val_glob) = optarg;
    }
    if (train_glob == NULL || val_glob == NULL || optind != argc) {
        return usage("baseline: give --train GLOB and --val GLOB");
    }
    struct dt_error err = {0};
    size_t train_size = 0, val_size = 0;
    double bits = 0;
    uint8_t *train = bytes_of(train_glob, BASELINE_BYTES, &train_size, &err);
    uint8_t *val = train != NULL ? bytes_of(val_glob, BASELINE_BYTES, &val_size, &err) : NULL;
    int code =
        val == NULL || baseline_gzip(val, val_size, &bits, &err) != 0 ? fail(&err, DT_EXIT_FAILED) : DT_EXIT_DONE;
    if (code == DT_EXIT_DONE) {
        (void)printf("gzip -9 %.3f\n", bits);
    }
    for (int order = 1; code == DT_EXIT_DONE && order <= 4; order++) {
        if (baseline_ngram(train, train_size, val, val_size, order, &bits, &err) != 0) {
            code = fail(&err, DT_EXIT_FAILED);
        } else {
            (void)printf("%d-gram %.3f\n", order, bits);
        }
    }
    free(train);
    free(val);
    return code;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(int argc, char **argv);
    } commands[] = {{"tokenize", run_tokenize}, {"inspect", run_inspect}, {"baseline", run_baseline}};
    static const char *const names[] = {"tokenize", "inspect", "baseline"};
    const char *command = argc > 1 ? argv[1] : NULL;
    struct sigaction action = {.sa_handler = on_signal}; /* no restart: a read from a terminal
                                                          * must end too */
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            (void)fputs(help, stdout);
            return DT_EXIT_DONE;
        }
    }
    if (command != NULL && strcmp(command, "--version") == 0) {
        (void)puts("dtdata " DT_VERSION);
        return DT_EXIT_DONE;
    }
    if (command == NULL) {
        return usage("no command; try for example dtdata tokenize -o shards TEXT...");
    }
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGXFSZ, SIG_IGN); /* a limit on file sizes is an error of write */
    if (dt_signal_wanted(SIGINT)) {
        (void)sigaction(SIGINT, &action, NULL);
    }
    (void)sigaction(SIGTERM, &action, NULL);
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        if (strcmp(command, commands[i].name) == 0) {
            argv[1] = argv[0];
            int code = commands[i].run(argc - 1, argv + 1);
            if ((fflush(stdout) != 0 || ferror(stdout)) && code == DT_EXIT_DONE) {
                (void)fprintf(stderr, "dtdata: standard output: cannot be written\n");
                code = DT_EXIT_FAILED;
            }
            return code;
        }
    }
    const char *nearest = dt_text_nearest(command, names, sizeof names / sizeof names[0]);
    return usage("%s: unknown command%s%s%s", command, nearest != NULL ? "; did you mean " : "",
                 nearest != NULL ? nearest : "", nearest != NULL ? "?" : "");
}
