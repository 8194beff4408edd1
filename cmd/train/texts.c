/* See the header. A cache entry is a folder whose name is a hash of all that decides its shards: the files' names,
 * sizes and times, the tokenizer, the keys of the job. It gets this name when it is complete, by one rename. Until
 * then it lies beside it under a name with that of the host. So the lock saves work, where hosts share it, and
 * nothing breaks where a file system has none: who comes second takes what is there. */
#include "cmd/train/texts.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/scan.h"
#include "base/text.h"
#include "cmd/dtdata/tokenize_run.h"
#include "cmd/train/classes.h"
#include "worker/data/rows.h"
#include "worker/engine/world.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define ENTRY_FILE "texts.json" /* written last */
#define REPORT_S 10.0
enum { ENTRY_BYTES = 1 << 16, ENTRY_VERSION = 2, SHARD_TOKENS = 100000000 };
/* Labelled rows of version 1 were cut by tokenizer.json before data.sequence_length, those of 3 with its stride and
 * strategy. In version 1 of texts, and 2 of rows, ids could differ at borders of blocks. */
enum { ROWS_VERSION = 4 };

/* One data.train, one of its list, or one of a set of data.val. */
struct source_texts {
    const char *key, *path;
    bool made;               /* shards are made of it; false: it only has a say in the classes */
    struct data_files files; /* what the path matches */
    struct corpus listed;    /* all files below */
};

struct texts {
    struct job *job;
    const char *tokenizer;
    struct coder coder;
    enum source_kind format;
    bool numbers; /* labels are numbers of a regression */
    int count;
    struct source_texts *of;
    struct corpus all;  /* the files of all sources that are text, which decide the classes of rows */
    const char *labels; /* the model's classes, in their order, as JSON; null: classes are those of the data */
    char *root;         /* the cache */
};

/* ---- what is text ---- */

static bool format_kind(const char *format, enum source_kind *out)
{
    static const char *const names[] = {"auto", "text", "jsonl", "csv", "tsv", "json"};
    for (int i = 0; i < 6; i++) {
        if (strcmp(format, names[i]) == 0) {
            *out = (enum source_kind)(SOURCE_AUTO + i);
            return true;
        }
    }
    return false;
}

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* By what stands in the files: a folder of text may hold other .bin files, too. */
static bool has_shards(const char *folder)
{
    static const char *const ends[] = {"bin", "safetensors"};
    bool has = false;
    for (int i = 0; i < 2 && !has; i++) {
        glob_t found = {0};
        char *files = dt_format("%s/*.%s", folder, ends[i]), *pattern = data_pattern(files);
        bool any = glob(pattern, GLOB_NOSORT, NULL, &found) == 0;
        for (size_t f = 0; any && f < found.gl_pathc && !has; f++) {
            has = data_format_of(found.gl_pathv[f]) != NULL;
        }
        globfree(&found);
        free(pattern);
        free(files);
    }
    return has;
}

/* 1: the source is text, with its files; 0: it is not; -1: it is none of what is read here, with the reason. What
 * is not there is left to those that read data. */
static int find_files(const struct texts *x, struct source_texts *s, struct dt_error *err)
{
    struct dt_error ignored;
    bool text = x->format != SOURCE_AUTO;
    if (is_folder(s->path)) {
        if (!text && has_shards(s->path)) {
            return 0;
        }
        s->files = (struct data_files){.paths = dt_alloc(sizeof *s->files.paths), .count = 1};
        s->files.paths[0] = dt_strdup(s->path);
        return 1;
    }
    if (data_files_open(&s->files, s->path, false, &ignored) != 0) {
        return 0;
    }
    const char *first = s->files.paths[0];
    struct stat st;
    int is = text || is_folder(first);
    if (is == 0 && stat(first, &st) == 0 && S_ISREG(st.st_mode) && data_format_of(first) == NULL) {
        is = corpus_is_text(first, err);
    }
    if (is != 1) {
        data_files_close(&s->files);
    }
    return is;
}

/* ---- the model ---- */

/* The value of a whole number of the model, by its key; 0: it has none. */
static int64_t model_number(const struct job_model *m, const char *key)
{
    for (const struct dt_field *f = m->ops->fields; f->key != NULL; f++) {
        if (strcmp(f->key, key) == 0 && f->rule->type == DT_RULE_INTEGER) {
            int64_t value;
            memcpy(&value, m->sizes.bytes + f->offset, sizeof value);
            return value;
        }
    }
    return 0;
}

/* The value of a key of the model, as JSON; empty: it has no such key. */
static void model_value(const struct job_model *m, const char *key, struct dt_text *out)
{
    const struct dt_field *f = m->ops->fields;
    while (f->key != NULL && strcmp(f->key, key) != 0) {
        f++;
    }
    dt_text_init(out);
    if (f->key != NULL) {
        dt_config_format(f, m->sizes.bytes, out);
    }
}

/* True if the model's key has this value, as JSON. */
static bool model_is(const struct job_model *m, const char *key, const char *json)
{
    struct dt_text text;
    model_value(m, key, &text);
    bool is = strcmp(dt_text_str(&text), json) == 0;
    dt_text_clear(&text);
    return is;
}

/* The number of classes of rows; 0: the data have none. */
static int64_t class_count(const struct texts *x)
{
    struct dt_text text;
    long long count = 0;
    model_value(&x->job->model, "num_labels", &text);
    bool has = x->job->data.label_key != NULL && !x->numbers && dt_parse_int64(dt_text_str(&text), &count);
    dt_text_clear(&text);
    return has ? count : 0;
}

static int check_model(struct texts *x, const struct source_texts *s, struct dt_error *err)
{
    const struct job *job = x->job;
    const struct job_model *m = &job->model;
    bool rows = job->data.label_key != NULL, sequences = model_is(m, "task", "\"sequence_classification\""),
         judges = sequences || model_is(m, "task", "\"token_classification\"") || model_is(m, "task", "\"masked_lm\"");
    if (judges && (!sequences || model_is(m, "problem_type", "\"multi_label_classification\""))) {
        return dt_fail(err, DT_INVALID,
                       "%s: %s is text, of which rows with one label each are made; for this task of %s give "
                       "safetensors files",
                       s->key, s->path, job->model.name);
    }
    x->numbers = rows && judges &&
                 (model_is(m, "problem_type", "\"regression\"") ||
                  (model_is(m, "problem_type", "null") && model_is(m, "num_labels", "1")));
    if (job->model.ops->positions == NULL) {
        return dt_fail(err, DT_INVALID, "%s: %s is text, and %s reads none", s->key, s->path, job->model.name);
    }
    if (judges && !rows) {
        return dt_fail(err, DT_INVALID,
                       "%s: %s is text, and %s reads labelled rows: say in data.label_key where the labels are", s->key,
                       s->path, job->model.name);
    }
    if (!judges && rows) {
        return dt_fail(err, DT_INVALID, "data.label_key: %s reads texts without labels; remove it", job->model.name);
    }
    return 0;
}

/* data.tokenizer, or that of the folder of the weights. */
static int open_tokenizer(struct texts *x, const struct source_texts *s, struct dt_error *err)
{
    const struct job *job = x->job;
    x->tokenizer = job->data.tokenizer;
    if (x->tokenizer == NULL && job->model.load != NULL) {
        char *beside = dt_format("%s/tokenizer.json", job->model.load);
        x->tokenizer = dt_file_exists(beside) ? job->model.load : NULL;
        free(beside);
    }
    if (x->tokenizer == NULL) {
        return dt_fail(err, DT_INVALID,
                       "%s: %s is text: name a tokenizer.json or its folder in data.tokenizer, or \"bytes\" for one id "
                       "per byte (dtdata train-tokenizer makes one of your text)",
                       s->key, s->path);
    }
    if (coder_open(&x->coder, x->tokenizer, err) != 0) {
        return dt_wrap(err, "data.tokenizer");
    }
    if (coder_end_with(&x->coder, job->data.end_token, err) != 0) {
        return dt_wrap(err, "data.end_token");
    }
    int64_t vocabulary = model_number(&job->model, "vocab_size");
    if (vocabulary > 0 && x->coder.vocabulary > vocabulary) {
        return dt_fail(err, DT_INVALID,
                       "model.vocab_size: %" PRId64 ": data.tokenizer %s has %" PRId64 " tokens; raise it to %" PRId64
                       " or more",
                       vocabulary, x->tokenizer, x->coder.vocabulary, x->coder.vocabulary);
    }
    return x->coder.end >= 0 || job->data.label_key != NULL
               ? 0
               : dt_fail(err, DT_INVALID,
                         "data.tokenizer: %s: no eos_token in tokenizer_config.json beside it; name the token that "
                         "ends documents in data.end_token",
                         x->tokenizer);
}

/* ---- the cache ---- */

static void fill_options(const struct texts *x, const char *dir, struct tokenize_options *o)
{
    const struct job_data *d = &x->job->data;
    *o = (struct tokenize_options){.tokenizer = x->tokenizer,
                                   .end = d->end_token,
                                   .records = {.text_key = d->text_key,
                                               .pair_key = d->text_pair_key,
                                               .job = true,
                                               .label_key = d->label_key,
                                               .replace = d->encoding_errors == ENCODING_REPLACE,
                                               .skip = d->on_bad_record == BAD_RECORD_SKIP},
                                   .format = x->format,
                                   .labels = x->labels,
                                   .regression = x->numbers,
                                   .max_length = d->label_key != NULL ? d->sequence_length : 0,
                                   .threads = world_cores(),
                                   .output = {.dir = dir, .shard_tokens = SHARD_TOKENS}};
}

static uint64_t hash_files(const struct corpus *c, uint64_t hash)
{
    char *here = getcwd(NULL, 0);
    for (size_t i = 0; i < c->count; i++) {
        const char *path = c->files[i].path;
        struct stat st = {0};
        (void)stat(path, &st);
        /* the time of change is set by the kernel alone; that of modification by whoever copies or unpacks */
        int64_t facts[] = {st.st_size, st.st_mtim.tv_sec, st.st_mtim.tv_nsec, st.st_ctim.tv_sec, st.st_ctim.tv_nsec};
        hash = *path != '/' && here != NULL ? XXH3_64bits_withSeed(here, strlen(here), hash) : hash;
        hash = XXH3_64bits_withSeed(path, strlen(path), hash);
        hash = XXH3_64bits_withSeed(facts, sizeof facts, hash);
    }
    free(here);
    return hash;
}

static uint64_t key_of(const struct texts *x, const struct source_texts *s)
{
    struct tokenize_options o;
    fill_options(x, "", &o);
    uint64_t version = x->job->data.label_key != NULL ? ROWS_VERSION : ENTRY_VERSION;
    uint64_t numbers[] = {version,
                          tokenize_options_hash(&o),
                          x->coder.hash,
                          (uint64_t)x->coder.end,
                          (uint64_t)x->coder.pad,
                          (uint64_t)x->coder.vocabulary,
                          (uint64_t)class_count(x)};
    uint64_t hash = hash_files(&s->listed, XXH3_64bits(numbers, sizeof numbers));
    return x->job->data.label_key != NULL && x->labels == NULL ? hash_files(&x->all, hash) : hash;
}

/* data.cache_dir, $XDG_CACHE_HOME/dtrun/texts or ~/.cache/dtrun/texts. The caller frees. */
static char *cache_folder(const struct job *job, struct dt_error *err)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char *folder = job->data.cache_dir != NULL      ? dt_strdup(job->data.cache_dir)
                   : cache != NULL && *cache == '/' ? dt_format("%s/dtrun/texts", cache)
                   : home != NULL && *home == '/'   ? dt_format("%s/.cache/dtrun/texts", home)
                                                    : NULL;
    if (folder == NULL) {
        (void)dt_fail(err, DT_INVALID,
                      "data.cache_dir: where shards of the texts go is not known without HOME; name a folder");
    }
    return folder;
}

/* An entry that is complete: 1 with its shards as a glob, in *out; 0: there is none; -1: it is damaged. */
static int find_entry(const char *folder, bool rows, char **out, struct dt_error *err)
{
    char *path = dt_format("%s/" ENTRY_FILE, folder);
    struct dt_text text;
    dt_text_init(&text);
    int found = 0;
    /* opened: a file server is asked, and not what is remembered of it */
    char *root = dt_strdup(folder);
    dt_file_strip(root);
    int fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (is_folder(folder)) {
        glob_t shards;
        char *files = dt_format("%s/train-*.%s", folder, rows ? "safetensors" : "bin"), *pattern = data_pattern(files);
        cJSON *tree = dt_file_read(path, ENTRY_BYTES, &text, err) == 0
                          ? dt_scan_parse(dt_text_str(&text), text.size, path, NULL, err)
                          : NULL;
        const cJSON *count = cJSON_GetObjectItemCaseSensitive(tree, "shards");
        size_t there = 0;
        if (glob(pattern, GLOB_NOSORT, NULL, &shards) == 0) {
            there = shards.gl_pathc;
            globfree(&shards);
        }
        found = cJSON_IsNumber(count) && (size_t)count->valuedouble == there && there > 0 ? 1 : -1;
        if (found < 0) {
            (void)dt_fail(err, DT_INVALID, "%s: shards of it are missing; remove the folder, and it is made again",
                          folder);
            free(files);
        } else {
            *out = files;
        }
        free(pattern);
        cJSON_Delete(tree);
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    free(root);
    dt_text_clear(&text);
    free(path);
    return found;
}

/* ---- making shards ---- */

struct reports {
    const char *key;
    double begin_s, said_s;
};

static int64_t bytes_of(const struct corpus *c, size_t files)
{
    int64_t bytes = 0;
    for (size_t i = 0; i < files; i++) {
        bytes += c->files[i].size_bytes;
    }
    return bytes;
}

static void report(const struct output *o, void *context)
{
    struct reports *r = context;
    double now_s = dt_now_s();
    if (now_s - r->said_s < REPORT_S) {
        return;
    }
    r->said_s = now_s;
    const struct corpus *c = o->form->corpus;
    const struct progress_side *at = &o->now[SIDE_TRAIN];
    int64_t all = bytes_of(c, c->count), size = at->file < c->count ? c->files[at->file].size_bytes : 0;
    /* of packed files the place is beyond their size */
    double done = (double)(bytes_of(c, at->file) + (at->at.offset < size ? at->at.offset : size));
    char text[32];
    dt_text_say(stderr, "train: %s: %.0f %% of %s read, %" PRId64 " %s, %.0f s left", r->key,
                all > 0 ? 100 * done / (double)all : 0, dt_text_bytes((double)all, text, sizeof text),
                output_count(o, SIDE_TRAIN), o->form->labels != NULL ? "rows" : "tokens",
                done > 0 ? (now_s - r->begin_s) * ((double)all / done - 1) : 0);
}

static int write_entry(const char *work, const struct source_texts *s, const struct tokenize_run *r,
                       struct dt_error *err)
{
    struct dt_text t;
    dt_text_init(&t);
    dt_text_printf(&t, "{\n  \"shards\": %d,\n  \"count\": %" PRId64 ",\n  \"source\": ",
                   output_shards(&r->output, SIDE_TRAIN), output_count(&r->output, SIDE_TRAIN));
    dt_text_json(&t, s->path, strlen(s->path));
    dt_text_puts(&t, ",\n  \"tokenizer\": ");
    dt_text_json(&t, r->o.tokenizer, strlen(r->o.tokenizer));
    dt_text_puts(&t, "\n}\n");
    char *path = dt_format("%s/" ENTRY_FILE, work);
    int result = dt_file_write(path, t.data, t.size, err);
    free(path);
    dt_text_clear(&t);
    return result;
}

/* Makes the shards in `work`, in which an earlier run may have begun. */
static int make_shards(const struct texts *x, const struct source_texts *s, const char *work, struct dt_error *err)
{
    struct tokenize_run *r = dt_alloc(sizeof *r);
    struct reports reports = {.key = s->key, .begin_s = dt_now_s(), .said_s = dt_now_s()};
    char bytes[32];
    tokenize_run_init(r);
    fill_options(x, work, &r->o);
    r->o.output.overwrite = true; /* what lies there is ours: of a run that ended before the rename */
    r->report = report;
    r->report_context = &reports;
    r->label_corpus = &x->all;
    r->classes = class_count(x);
    r->corpus.output = x->root;
    int result = tokenize_run_open(r, s->files.paths, s->files.count, err);
    if (result == 0) {
        dt_text_say(stderr, "train: %s: %s: tokenizes %zu file%s, %s, with %s", s->key, s->path, r->corpus.count,
                    r->corpus.count == 1 ? "" : "s",
                    dt_text_bytes((double)bytes_of(&r->corpus, r->corpus.count), bytes, sizeof bytes), r->o.tokenizer);
        result = tokenize_run_write(r, err);
        if (result != 0) {
            (void)tokenize_run_give_up(r, err);
        }
    }
    result = result == 0 ? write_entry(work, s, r, err) : result;
    if (result == 0) {
        dt_text_say(stderr, "train: %s: %" PRId64 " %s in %.1f s", s->key, output_count(&r->output, SIDE_TRAIN),
                    r->form.labels != NULL ? "rows" : "tokens", dt_now_s() - reports.begin_s);
        tokenize_run_say_left_out(r);
    }
    tokenize_run_close(r);
    free(r);
    return result;
}

/* Gives the folder its name. What another host has made meanwhile is the same. */
static int publish(const char *work, const char *folder, struct dt_error *err)
{
    char *root = dt_strdup(folder);
    dt_file_strip(root);
    int result = rename(work, folder) == 0 || errno == EEXIST || errno == ENOTEMPTY ? dt_file_sync_dir(root, err)
                                                                                    : dt_fail_errno(err, "%s", folder);
    free(root);
    return result;
}

static int lock_entry(const char *path, const struct source_texts *s, struct dt_error *err)
{
    int fd = dt_file_open_lock(path, err);
    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) == 0) {
        return fd;
    }
    const char *rank = getenv("LOCAL_RANK");
    if (errno == EWOULDBLOCK && (rank == NULL || strcmp(rank, "0") == 0)) {
        dt_text_say(stderr, "train: %s: %s: waits for another process, which tokenizes it", s->key, s->path);
    }
    while (flock(fd, LOCK_EX) != 0) {
        if (errno != EINTR) { /* no locks here: whoever comes second takes what is there */
            break;
        }
    }
    return fd;
}

static int find_or_make(const struct texts *x, const struct source_texts *s, char **out, struct dt_error *err)
{
    char host[256] = "", *folder = dt_format("%s/%016" PRIx64, x->root, key_of(x, s));
    (void)gethostname(host, sizeof host - 1);
    char *work = dt_format("%s.%s", folder, host), *lock_path = dt_format("%s.lock", folder);
    bool rows = x->job->data.label_key != NULL;
    int found = find_entry(folder, rows, out, err), lock = -1;
    if (found == 0) {
        lock = dt_file_mkdirs(x->root, err) == 0 ? lock_entry(lock_path, s, err) : dt_wrap(err, "data.cache_dir");
        found = lock < 0 ? -1 : find_entry(folder, rows, out, err);
    }
    if (found == 0) {
        found = make_shards(x, s, work, err) == 0 && publish(work, folder, err) == 0
                    ? find_entry(folder, rows, out, err)
                    : -1;
    }
    if (lock >= 0) {
        if (found == 1) {
            (void)dt_file_remove_tree(work, NULL);
            (void)unlink(lock_path); /* whoever waits for it, or comes with a new one, finds the entry */
        }
        (void)close(lock);
    }
    free(lock_path);
    free(work);
    free(folder);
    return found == 1 ? 0 : dt_wrap(err, "%s", s->key);
}

/* ---- the classes ---- */

/* The shards of a source. Rows whose classes have other numbers than the model's get those, by their names, unless a
 * training has new ones. */
static int find_shards(struct texts *x, const struct source_texts *s, char **out, struct dt_error *err)
{
    struct job *job = x->job;
    enum data_classes are = DATA_CLASSES_ALIKE;
    x->labels = NULL;
    if (find_or_make(x, s, out, err) != 0) {
        return -1;
    }
    if (job->data.label_key != NULL && !x->numbers && job->model.class_count > 0 &&
        train_compare_classes(job, *out, &are, err) != 0) {
        return dt_wrap(err, "%s", s->key);
    }
    bool renumber = are == DATA_CLASSES_MOVED || (are == DATA_CLASSES_OTHER && job->evaluates);
    if (renumber && (x->labels = train_join_classes(job)) != NULL) {
        free(*out);
        *out = NULL;
        return find_or_make(x, s, out, err);
    }
    return 0;
}

/* ---- the job ---- */

static int list_files(struct texts *x, struct source_texts *s, struct dt_error *err)
{
    s->listed.names_only = true;
    s->listed.output = x->all.output = x->root;
    for (size_t i = 0; i < s->files.count; i++) {
        if (corpus_add(&s->listed, s->files.paths[i], err) != 0 ||
            (x->job->data.label_key != NULL && corpus_add(&x->all, s->files.paths[i], err) != 0)) {
            return dt_wrap(err, "%s", s->key);
        }
    }
    return 0;
}

/* Notes a source, if it is text. */
static int add(struct texts *x, const char *key, const char *path, bool made, struct dt_error *err)
{
    struct source_texts s = {.key = key, .path = path, .made = made};
    int is = find_files(x, &s, err);
    if (is != 1) {
        return is == 0 ? 0 : dt_wrap(err, "%s", key);
    }
    x->of = dt_realloc(x->of, (size_t)(x->count + 1) * sizeof *x->of);
    x->of[x->count++] = s;
    if (x->root == NULL && (x->root = cache_folder(x->job, err)) == NULL) {
        return -1;
    }
    return check_model(x, &s, err) != 0 || (x->count == 1 && open_tokenizer(x, &s, err) != 0) ||
                   list_files(x, &x->of[x->count - 1], err) != 0
               ? -1
               : 0;
}

/* The glob of the shards that stand for a source; null: it is no text. */
static const char *shards_of(const struct texts *x, char *const *shards, const char *path)
{
    for (int i = 0; i < x->count; i++) {
        if (x->of[i].path == path) {
            return shards[i];
        }
    }
    return NULL;
}

/* Shards stand for the paths; messages go on with the words of the job. */
static const struct dt_source *replaced(const struct texts *x, char *const *shards, const struct dt_sources *from)
{
    struct dt_arena *arena = &x->job->arena;
    struct dt_source *of = dt_arena_alloc(arena, (size_t)from->count * sizeof *of + 1);
    for (int i = 0; i < from->count; i++) {
        const char *now = shards_of(x, shards, from->of[i].path);
        of[i] = from->of[i];
        if (now != NULL) {
            of[i].text = of[i].path;
            of[i].path = dt_arena_strdup(arena, now);
        }
    }
    return of;
}

static void replace(struct texts *x, char *const *shards)
{
    struct job_data *d = &x->job->data;
    struct dt_set *sets = dt_arena_alloc(&x->job->arena, (size_t)d->val.count * sizeof *sets + 1);
    d->train.of = replaced(x, shards, &d->train);
    for (int i = 0; i < d->val.count; i++) {
        sets[i] = d->val.of[i];
        sets[i].from.of = replaced(x, shards, &d->val.of[i].from);
    }
    d->val.of = sets;
    d->format = x->format != SOURCE_AUTO ? "auto" : d->format;
}

static int make_all(struct texts *x, struct dt_error *err)
{
    char **shards = dt_alloc((size_t)x->count * sizeof *shards);
    int result = 0;
    for (int i = 0; i < x->count && result == 0; i++) {
        result = x->of[i].made ? find_shards(x, &x->of[i], &shards[i], err) : 0;
    }
    if (result == 0) {
        replace(x, shards);
    }
    for (int i = 0; i < x->count; i++) {
        free(shards[i]);
    }
    free(shards);
    return result;
}

/* Keys of texts where no data are text have no effect, which is said beside the other ones. */
static void note_idle(struct job *job)
{
    const struct job_data *d = &job->data;
    const struct {
        const char *key;
        bool given;
    } keys[] = {{"text_key", strcmp(d->text_key, "text") != 0},
                {"text_pair_key", d->text_pair_key != NULL},
                {"label_key", d->label_key != NULL},
                {"end_token", d->end_token != NULL},
                {"encoding_errors", d->encoding_errors != ENCODING_REFUSE},
                {"on_bad_record", d->on_bad_record != BAD_RECORD_REFUSE}};
    struct dt_text all;
    dt_text_init(&all);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        if (keys[i].given) {
            dt_text_printf(&all, "%sdata.%s", all.size > 0 ? ", " : "", keys[i].key);
        }
    }
    if (all.size > 0) {
        job->idle_keys = dt_arena_printf(&job->arena, "%s%s%s (goes with texts; the data are shards)",
                                         job->idle_keys != NULL ? job->idle_keys : "",
                                         job->idle_keys != NULL ? "; " : "", dt_text_str(&all));
    }
    dt_text_clear(&all);
}

int texts_prepare(struct job *job, struct dt_error *err)
{
    struct texts x = {.job = job};
    int result = 0;
    if (!format_kind(job->data.format, &x.format) || (job->model.ops->positions == NULL && x.format == SOURCE_AUTO)) {
        return 0;
    }
    /* an evaluation numbers the classes as the training did */
    bool train = !job->evaluates || job->data.label_key != NULL;
    for (int i = 0; i < job->data.train.count && result == 0 && train; i++) {
        result = add(&x, JOB_DATA_KEY, job->data.train.of[i].path, !job->evaluates, err);
    }
    for (int i = 0; i < job->data.val.count; i++) {
        const struct dt_set *set = &job->data.val.of[i];
        const char *key = set->name != NULL ? dt_arena_printf(&job->arena, "data.val.%s", set->name) : "data.val";
        for (int k = 0; k < set->from.count && result == 0; k++) {
            result = add(&x, key, set->from.of[k].path, true, err);
        }
    }
    if (x.count == 0 && !job->evaluates) {
        note_idle(job);
    }
    result = result == 0 && x.count > 0 ? make_all(&x, err) : result;
    for (int i = 0; i < x.count; i++) {
        data_files_close(&x.of[i].files);
        corpus_close(&x.of[i].listed);
    }
    free(x.of);
    free(x.root);
    corpus_close(&x.all);
    coder_close(&x.coder);
    return result;
}
