/* dtdata train-tokenizer: options, the text, and the files of the tokenizer. */
#include "cmd/dtdata/commands.h"

#include "base/file.h"
#include "base/size.h"
#include "base/text.h"
#include "cmd/dtdata/corpus.h"
#include "cmd/dtdata/stop.h"
#include "cmd/dtdata/train_bpe.h"
#include "cmd/dtdata/train_counting.h"
#include "cmd/dtdata/train_format.h"
#include "cmd/dtdata/train_store.h"
#include "cmd/dtdata/train_unigram.h"
#include "cmd/dtdata/utf8.h"

#include <getopt.h>
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { SPECIAL_MOST = 1000, VOCABULARY_MOST = 10000000, THREADS_MOST = 1024 };

struct train_options {
    const char *dir, *text_key, *pattern;
    const char *record_option; /* an option that only records have; null: none was given */
    enum train_type type;
    long long vocabulary, min_frequency, limit_alphabet, threads;
    int64_t memory, save;
    const char *special[SPECIAL_MOST + 1];
    size_t special_count;
    bool special_given, keep_case, overwrite;
};

struct job {
    struct train_options o;
    struct train_shape own;
    const struct train_shape *shape;
    char *folder; /* for the counts */
    struct corpus corpus;
    struct counting_result counted;
    struct train_vocabulary vocabulary;
    struct trained trained;
    struct bpe_result bpe;
    double *scores;
};

/* ---- options ---- */

static int usage(struct dt_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static int usage(struct dt_error *err, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    (void)dt_fail_v(err, DT_USAGE, fmt, args);
    va_end(args);
    return -1;
}

static int take_number(const char *option, const char *text, long long least, long long most, long long *out,
                       struct dt_error *err)
{
    long long number;
    if (!dt_parse_int64(text, &number) || number < least || number > most) {
        return usage(err, "%s %s: give a whole number from %lld to %lld", option, text, least, most);
    }
    *out = number;
    return 0;
}

/* "2G", "512M", "100KB", or plain bytes. */
static int take_bytes(const char *option, const char *text, int64_t *out, struct dt_error *err)
{
    size_t n = strlen(text);
    char *whole = dt_format("%s%s", text, n > 0 && strchr("KMGTkmgt", text[n - 1]) != NULL ? "B" : "");
    bool good = dt_parse_bytes(whole, out);
    free(whole);
    return good ? 0 : usage(err, "%s %s: give a size, for example 2G or 512M", option, text);
}

static int take_type(struct train_options *o, const char *name, struct dt_error *err)
{
    static const char *const names[] = {
        [TRAIN_BPE] = "bpe", [TRAIN_WORDPIECE] = "wordpiece", [TRAIN_UNIGRAM] = "unigram"};
    for (int i = TRAIN_BPE; i <= TRAIN_UNIGRAM; i++) {
        if (strcmp(names[i], name) == 0) {
            o->type = (enum train_type)i;
            return 0;
        }
    }
    return usage(err, "--type %s: there are bpe, wordpiece, unigram", name);
}

static int take_special(struct train_options *o, const char *token, struct dt_error *err)
{
    o->special_given = true;
    if (*token == 0) {
        return 0; /* no special token at all */
    }
    if (utf8_valid(token, strlen(token)) != strlen(token)) {
        return usage(err, "--special: is not UTF-8");
    }
    for (size_t i = 0; i < o->special_count; i++) {
        if (strcmp(o->special[i], token) == 0) {
            return 0;
        }
    }
    if (o->special_count == SPECIAL_MOST) {
        return usage(err, "--special: more than %d tokens", SPECIAL_MOST);
    }
    o->special[o->special_count++] = token;
    return 0;
}

static int take_option(struct train_options *o, int c, struct dt_error *err)
{
    switch (c) {
    case 'o':
        o->dir = optarg;
        return *optarg != 0 ? 0 : usage(err, "-o: the name of the folder is empty");
    case 'v':
        return take_number("-v", optarg, 1, VOCABULARY_MOST, &o->vocabulary, err);
    case 't':
        return take_type(o, optarg, err);
    case 'p':
        o->pattern = optarg;
        return 0;
    case 's':
        return take_special(o, optarg, err);
    case 'f':
        return take_number("--min_frequency", optarg, 0, INT64_MAX, &o->min_frequency, err);
    case 'a':
        return take_number("--limit_alphabet", optarg, 1, VOCABULARY_MOST, &o->limit_alphabet, err);
    case 'm':
        return take_bytes("--memory", optarg, &o->memory, err);
    case 'e':
        return take_bytes("--save_every", optarg, &o->save, err);
    case 'j':
        return take_number("--threads", optarg, 1, THREADS_MOST, &o->threads, err);
    case 'k':
        o->record_option = "--text_key";
        o->text_key = optarg;
        return 0;
    case 'c':
        o->keep_case = true;
        return 0;
    case 'w':
        o->overwrite = true;
        return 0;
    default:
        return usage(err, "train-tokenizer: wrong option");
    }
}

static int parse(struct train_options *o, int argc, char **argv, struct dt_error *err)
{
    static const struct option options[] = {
        {"output_dir", required_argument, NULL, 'o'},
        {"vocab_size", required_argument, NULL, 'v'},
        {"type", required_argument, NULL, 't'},
        {"pattern", required_argument, NULL, 'p'},
        {"special", required_argument, NULL, 's'},
        {"min_frequency", required_argument, NULL, 'f'},
        {"limit_alphabet", required_argument, NULL, 'a'},
        {"memory", required_argument, NULL, 'm'},
        {"save_every", required_argument, NULL, 'e'},
        {"threads", required_argument, NULL, 'j'},
        {"text_key", required_argument, NULL, 'k'},
        {"text_column", required_argument, NULL, 'k'},
        {"keep_case", no_argument, NULL, 'c'},
        {"overwrite", no_argument, NULL, 'w'},
        {0},
    };
    cpu_set_t cpus;
    *o = (struct train_options){.dir = "tokenizer", .text_key = "text", .vocabulary = 32768, .threads = 1};
    o->memory = INT64_C(2000000000);
    o->save = INT64_C(500000000);
    o->threads = sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : 1;
    for (int c; (c = getopt_long(argc, argv, "o:v:", options, NULL)) != -1;) {
        if (take_option(o, c, err) != 0) {
            return -1;
        }
    }
    if (optind == argc) {
        return usage(err, "train-tokenizer: no files; give text files or folders, or - for standard input");
    }
    return 0;
}

/* Finds the shape, and the special tokens that it needs. */
static int choose(struct job *j, struct dt_error *err)
{
    struct train_options *o = &j->o;
    struct dt_text names;
    dt_text_init(&names);
    if (o->pattern != NULL && o->type != TRAIN_BPE) {
        return usage(err, "--pattern: only for --type bpe");
    }
    j->shape = train_shape_find(o->type, o->pattern, &j->own, &names);
    int result = j->shape != NULL ? 0
                                  : usage(err, "--pattern %s: there are %s, and regular expressions", o->pattern,
                                          dt_text_str(&names));
    dt_text_clear(&names);
    if (result != 0) {
        return -1;
    }
    if (o->keep_case && o->type != TRAIN_WORDPIECE) {
        return usage(err, "--keep_case: only for --type wordpiece; the others keep it anyway");
    }
    if (o->limit_alphabet > 0 && (o->type == TRAIN_UNIGRAM || j->shape->bytes)) {
        return usage(err, "--limit_alphabet: only for --type wordpiece and --pattern sentencepiece");
    }
    for (size_t i = 0; !o->special_given && j->shape->special[i] != NULL; i++) {
        o->special[o->special_count++] = j->shape->special[i];
    }
    for (size_t i = 0; j->shape->unknown != NULL && i <= o->special_count; i++) {
        if (i == o->special_count) { /* missing: it comes first */
            memmove(o->special + 1, o->special, o->special_count * sizeof *o->special);
            o->special[0] = j->shape->unknown;
            o->special_count++;
            break;
        }
        if (strcmp(o->special[i], j->shape->unknown) == 0) {
            break;
        }
    }
    long long least = (long long)o->special_count + (j->shape->bytes || j->shape->byte_fallback ? 256 : 0);
    if (o->vocabulary < least + 1) {
        return usage(err, "-v %lld: %lld tokens are needed for special ones and bytes alone; give more", o->vocabulary,
                     least);
    }
    return 0;
}

/* ---- the text ---- */

static int collect(struct job *j, char **paths, int count, struct dt_error *err)
{
    bool piped = false;
    j->corpus.output = j->o.dir;
    j->corpus.counts = j->folder;
    for (int i = 0; i < count; i++) {
        if (strcmp(paths[i], "-") == 0 && piped) {
            return usage(err, "-: standard input can be read only once");
        }
        piped = piped || strcmp(paths[i], "-") == 0;
        if (corpus_add(&j->corpus, paths[i], err) != 0) {
            return -1;
        }
    }
    corpus_say_no_records(&j->corpus, SOURCE_AUTO, j->o.record_option, "");
    return corpus_check(&j->corpus, paths, (size_t)count, err);
}

/* A hash of all that the counts depend on. What is read from a pipe is never the same text. */
static uint64_t settings_of(const struct job *j, const struct dt_text *splitter)
{
    struct dt_text t;
    dt_text_init(&t);
    dt_text_printf(&t, "1\n%s\n%d\n%s\n", dt_text_str(splitter), j->shape->lines, j->o.text_key);
    for (size_t i = 0; i < j->corpus.count; i++) {
        struct stat st;
        const char *path = j->corpus.files[i].path;
        if (strcmp(path, "-") == 0 || stat(path, &st) != 0 || !S_ISREG(st.st_mode)) {
            char random[33];
            dt_text_random(random);
            dt_text_puts(&t, random);
        } else {
            dt_text_printf(&t, "%zu %s %lld %lld.%09ld\n", strlen(path), path, (long long)st.st_size,
                           (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
        }
    }
    uint64_t hash = XXH3_64bits(t.data, t.size);
    dt_text_clear(&t);
    return hash;
}

static void say_counted(const struct job *j)
{
    const struct counting_result *c = &j->counted;
    char size[32];
    if (c->started_anew) {
        dt_text_say(stderr, "dtdata: %s: counts of another text or other options were there; counted anew", j->folder);
    }
    if (c->resumed_bytes > 0) {
        dt_text_say(stderr, "dtdata: went on behind the %s that an earlier run had counted",
                    dt_text_bytes((double)c->resumed_bytes, size, sizeof size));
    }
    corpus_say_left_out(&j->corpus, "dtdata");
    if (c->marks.count > 0) {
        dt_text_say(stderr, "dtdata: left out %lld byte order mark%s; the first begins %s", c->marks.count,
                    c->marks.count == 1 ? "" : "s", c->marks.first);
    }
    if (c->records.count > 0) {
        dt_text_say(stderr, "dtdata: left out %lld record%s without a text; the first is %s", c->records.count,
                    c->records.count == 1 ? "" : "s", c->records.first);
    }
}

/* ---- training ---- */

static int train_bpe(struct job *j, const struct words *words, struct store *store, struct dt_error *err)
{
    uint32_t bytes[256];
    struct bpe_options o = {.vocabulary = (uint32_t)j->o.vocabulary,
                            .min_frequency = (uint64_t)j->o.min_frequency,
                            .prefix = j->shape->type == TRAIN_WORDPIECE ? "##" : NULL,
                            .limit_alphabet = (size_t)j->o.limit_alphabet};
    if (j->shape->bytes) {
        train_byte_characters(bytes);
        o.alphabet = bytes;
        o.alphabet_count = 256;
    }
    for (int b = 0; j->shape->byte_fallback && b < 256; b++) {
        char token[8];
        (void)snprintf(token, sizeof token, "<0x%02X>", b);
        (void)train_vocabulary_add(&j->vocabulary, token, strlen(token));
    }
    return bpe_train(&j->vocabulary, &j->bpe, &o, words, store, err);
}

static int train(struct job *j, const struct words *words, struct dt_error *err)
{
    struct store *store = store_open(j->folder, j->o.memory);
    for (size_t i = 0; i < j->o.special_count; i++) {
        (void)train_vocabulary_add(&j->vocabulary, j->o.special[i], strlen(j->o.special[i]));
    }
    int result;
    if (j->shape->type == TRAIN_UNIGRAM) {
        struct unigram_options o = {.vocabulary = (uint32_t)j->o.vocabulary};
        result = unigram_train(&j->vocabulary, &j->scores, &o, words, store, err);
    } else {
        result = train_bpe(j, words, store, err);
    }
    store_close(store);
    j->trained = (struct trained){.shape = j->shape,
                                  .keep_case = j->o.keep_case,
                                  .special = j->o.special,
                                  .special_count = j->o.special_count,
                                  .vocabulary = &j->vocabulary,
                                  .merges = j->bpe.merges,
                                  .merge_count = j->bpe.merge_count,
                                  .scores = j->scores};
    return result;
}

/* tokenizer.json comes last, so where it is, all is. */
static int write_files(const struct job *j, struct dt_error *err)
{
    struct dt_text t;
    char *config = dt_format("%s/tokenizer_config.json", j->o.dir), *main = dt_format("%s/tokenizer.json", j->o.dir);
    dt_text_init(&t);
    train_config_json(&j->trained, &t);
    int result = dt_file_mkdirs(j->o.dir, err) == 0 ? dt_file_write(config, t.data, t.size, err) : -1;
    dt_text_reset(&t);
    if (result == 0) {
        train_tokenizer_json(&j->trained, &t);
        result = dt_file_write(main, t.data, t.size, err);
    }
    if (result == 0) {
        char size[32];
        dt_text_say(stdout, "%s: %u tokens from %s of text in %zu file%s", main, j->vocabulary.count,
                    dt_text_bytes((double)j->counted.text_bytes, size, sizeof size), j->corpus.count,
                    j->corpus.count == 1 ? "" : "s");
        if ((long long)j->vocabulary.count < j->o.vocabulary) {
            dt_text_say(stderr, "dtdata: the text gives no more than %u of %lld tokens", j->vocabulary.count,
                        j->o.vocabulary);
        }
        if ((long long)j->vocabulary.count > j->o.vocabulary) {
            dt_text_say(stderr,
                        "dtdata: these are more than -v %lld: each character has a token, and --limit_alphabet "
                        "takes fewer characters",
                        j->o.vocabulary);
        }
    }
    dt_text_clear(&t);
    free(config);
    free(main);
    return result;
}

static int count_and_train(struct job *j, const struct dt_text *splitter_json, struct dt_error *err)
{
    struct tokenizer *splitter;
    struct counting *counting = NULL;
    const char *name = j->shape->pattern == NULL && j->shape->expression != NULL ? "--pattern" : "dtdata";
    if (tokenizer_parse(&splitter, name, splitter_json->data, splitter_json->size, err) != 0) {
        return -1;
    }
    struct counting_options o = {.splitter = splitter,
                                 .lines = j->shape->lines,
                                 .text_key = j->o.text_key,
                                 .folder = j->folder,
                                 .settings = settings_of(j, splitter_json),
                                 .memory_bytes = j->o.memory,
                                 .save_bytes = j->o.save,
                                 .threads = (int)j->o.threads,
                                 .go_on = stop_check};
    int result = counting_run(&counting, &j->corpus, &o, &j->counted, err);
    if (result == 0) {
        struct words words = counting_words(counting);
        say_counted(j);
        if (j->counted.text_bytes == 0) {
            result = dt_fail(err, DT_INVALID, "%s: no text: what was read is empty; give other files",
                             j->corpus.files[0].path);
        } else {
            result = train(j, &words, err) == 0 ? write_files(j, err) : -1;
        }
    }
    counting_close(counting, result == 0);
    tokenizer_close(splitter);
    return result;
}

static int run(struct job *j, char **paths, int count, struct dt_error *err)
{
    struct dt_text splitter;
    char *main = dt_format("%s/tokenizer.json", j->o.dir);
    bool there = dt_file_exists(main);
    int result = !there || j->o.overwrite
                     ? 0
                     : usage(err, "%s: is there already; choose another folder with -o, or give --overwrite", main);
    free(main);
    if (result != 0 || collect(j, paths, count, err) != 0) {
        return -1;
    }
    dt_text_init(&splitter);
    train_splitter_json(j->shape, j->o.keep_case, &splitter);
    result = count_and_train(j, &splitter, err);
    dt_text_clear(&splitter);
    return result;
}

/* The folder for the counts lies beside the one for the result. */
static char *counts_folder(const char *dir)
{
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/') {
        n--;
    }
    return dt_format("%.*s.counts", (int)n, dir);
}

int run_train_tokenizer(int argc, char **argv)
{
    struct dt_error err = {0};
    struct job *j = dt_alloc(sizeof *j);
    int result = -1, code = DT_EXIT_DONE;
    if (parse(&j->o, argc, argv, &err) == 0 && choose(j, &err) == 0) {
        j->folder = counts_folder(j->o.dir);
        result = run(j, argv + optind, argc - optind, &err);
    }
    if (result != 0 && stop_signal() != 0) {
        (void)dt_fail(&err, DT_STOPPED, "stopped; the same command goes on with the counts in %s", j->folder);
        code = command_fail(&err, 128 + stop_signal());
    } else if (result != 0) {
        code = err.status == DT_USAGE ? command_usage("%s", err.text)
                                      : command_fail(&err, err.status == DT_NOT_FOUND ? DT_EXIT_USAGE : DT_EXIT_FAILED);
    }
    free(j->folder);
    free(j->bpe.merges);
    free(j->scores);
    train_vocabulary_clear(&j->vocabulary);
    corpus_close(&j->corpus);
    free(j);
    return code;
}
