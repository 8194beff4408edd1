/* See the header. */
#include "cmd/dtdata/tokenize_run.h"

#include "base/file.h"
#include "base/text.h"
#include "cmd/dtdata/pipeline.h"
#include "cmd/dtdata/stop.h"
#include "cmd/dtdata/unpack.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

enum { BLOCKS_VERSION = 1 }; /* of how files are cut into blocks, at which a run goes on */

/* ---- what there is to read ---- */

static int collect(struct tokenize_run *r, char *const *paths, size_t count, struct dt_error *err)
{
    r->corpus.output = r->corpus.output != NULL ? r->corpus.output : r->o.output.dir;
    for (size_t i = 0; i < count; i++) {
        if (corpus_add(&r->corpus, paths[i], err) != 0) {
            r->usage = err->status == DT_NOT_FOUND;
            return -1;
        }
        if (strcmp(paths[i], "-") == 0 && r->piped) {
            r->usage = true;
            return dt_fail(err, DT_INVALID, "-: standard input can be read only once");
        }
        r->piped = r->piped || strcmp(paths[i], "-") == 0;
    }
    if (corpus_check(&r->corpus, paths, count, err) != 0) {
        return -1;
    }
    corpus_say_no_records(&r->corpus, r->o.format, r->o.record_option, "; say --format if it is not");
    for (size_t i = 0; i < r->corpus.count; i++) {
        struct stat st;
        r->piped = r->piped || stat(r->corpus.files[i].path, &st) != 0 || !S_ISREG(st.st_mode);
    }
    return 0;
}

static int hold_out(struct tokenize_run *r, struct dt_error *err)
{
    if (r->o.records.label_key != NULL) { /* by rows */
        r->val = r->o.val > 0;
        r->form.val = r->o.val > 0 ? r->o.val : 0;
        return 0;
    }
    r->val = r->o.val > 0 || (r->o.val < 0 && r->corpus.count > 1);
    if (r->val && corpus_hold_out(&r->corpus, r->o.val > 0 ? r->o.val : 0.05, err) != 0) {
        r->usage = true;
        return -1;
    }
    for (size_t i = 0; i < r->corpus.count; i++) {
        r->held_out += r->corpus.files[i].held_out;
    }
    return 0;
}

/* ---- labels ---- */

static int add_label(void *context, const struct record *r, struct dt_error *err)
{
    return labels_add(context, r->label, r->label_size, err) == 0 ? 0 : dt_wrap(err, "%s", r->where);
}

/* Reads the labels of one file. */
static int find_labels(struct tokenize_run *r, const struct corpus_file *f, struct tally *ignored, struct dt_error *err)
{
    const char *path = f->path;
    enum source_kind kind = r->o.format != SOURCE_AUTO ? r->o.format : f->kind;
    struct source *in;
    struct text_block b = {0};
    struct record_columns columns = {0};
    if (source_open(&in, path, kind, NULL, NULL, err) != 0) {
        return -1;
    }
    int more;
    while ((more = source_next(in, &b, err)) > 0) {
        if (source_header(in)->size > 0 &&
            record_columns_find(&columns, &r->form.records, kind, path, source_header(in), err) != 0) {
            more = -1;
            break;
        }
        if (stop_check(err) != 0 ||
            records_of(&r->form.records, kind, path, &columns, &b, ignored, add_label, &r->labels, err) != 0) {
            more = -1;
            break;
        }
    }
    source_close(in);
    block_clear(&b);
    return more;
}

static int check_records(const struct tokenize_run *r, struct dt_error *err)
{
    for (size_t i = 0; i < r->corpus.count; i++) {
        if (work_kind(&r->form, i) == SOURCE_TEXT) {
            return dt_fail(err, DT_INVALID,
                           "%s: is text, which has no labels; give .jsonl, .csv or .tsv files, or say %s",
                           r->corpus.files[i].path, record_option(&r->o.records, RECORD_FORMAT));
        }
    }
    return 0;
}

/* The classes: of --labels, or all of the data. */
static int know_labels(struct tokenize_run *r, struct dt_error *err)
{
    if (r->o.records.label_key == NULL) {
        return 0;
    }
    r->form.labels = &r->labels;
    r->labels.numbers = r->form.records.regression = r->o.regression;
    if (check_records(r, err) != 0) {
        return -1;
    }
    if (r->o.labels != NULL) {
        r->usage = labels_parse(&r->labels, r->o.labels, err) != 0;
        return r->usage ? -1 : 0;
    }
    if (r->o.regression) {
        return 0;
    }
    if (r->piped) {
        r->usage = true;
        return dt_fail(err, DT_INVALID, "-: cannot be read twice to find the labels; name them with --labels A,B,...");
    }
    struct tally *ignored = dt_alloc(sizeof *ignored);
    int result = 0;
    const struct corpus *from = r->label_corpus != NULL ? r->label_corpus : &r->corpus;
    for (size_t i = 0; i < from->count && result == 0; i++) {
        result = find_labels(r, &from->files[i], ignored, err);
    }
    free(ignored);
    labels_end(&r->labels, r->classes);
    return result;
}

/* ---- the run ---- */

/* A hash of the command, the tokenizer, and the files as they are now. */
static uint64_t key_of(const struct tokenize_run *r)
{
    uint64_t numbers[] = {BLOCKS_VERSION,         tokenize_options_hash(&r->o),  r->coder.hash,
                          (uint64_t)r->coder.end, (uint64_t)r->coder.vocabulary, (uint64_t)r->coder.pad};
    uint64_t hash = XXH3_64bits(numbers, sizeof numbers);
    for (size_t i = 0; i < r->corpus.count; i++) {
        const struct corpus_file *f = &r->corpus.files[i];
        struct stat st = {0};
        (void)stat(f->path, &st);
        int64_t facts[] = {st.st_size, st.st_mtim.tv_sec, st.st_mtim.tv_nsec, f->held_out};
        hash = XXH3_64bits_withSeed(f->path, strlen(f->path), hash);
        hash = XXH3_64bits_withSeed(facts, sizeof facts, hash);
    }
    return hash;
}

/* A disk that cannot hold the bytes of plain files is said before anything is written; how much a tokenizer
 * or packing saves is not known. Shards that an earlier run has completed are on the disk already. */
static int check_space(const struct tokenize_run *r, struct dt_error *err)
{
    double needed = 0, left = dt_file_free_bytes(r->o.output.dir);
    for (int s = 0; s < SIDES && r->o.records.label_key == NULL; s++) {
        needed -= 2.0 * (double)output_count(&r->output, (enum side)s);
    }
    for (size_t i = 0; i < r->corpus.count && r->coder.tokenizer == NULL; i++) {
        const char *path = r->corpus.files[i].path;
        bool whole = unpack_end(path) == 0 && work_kind(&r->form, i) == SOURCE_TEXT;
        needed += whole ? 2.0 * (double)r->corpus.files[i].size_bytes : 0;
    }
    char need[32], have[32];
    return left < 0 || needed <= left
               ? 0
               : dt_fail(err, DT_FULL, "%s: the shards need %s, but %s are free; give -o on another disk",
                         r->o.output.dir, dt_text_bytes(needed, need, sizeof need),
                         dt_text_bytes(left, have, sizeof have));
}

/* With `overwrite` shards of an earlier run that are damaged are made again. */
static int open_output(struct tokenize_run *r, struct dt_error *err)
{
    struct progress_side *side = r->progress.side;
    int result = output_open(&r->output, &r->form, &r->o.output, &r->progress, err);
    if (result != 0 && r->o.output.overwrite && side[SIDE_TRAIN].complete + side[SIDE_VAL].complete > 0) {
        dt_text_say(stderr, "%s: %s; begins anew", record_option(&r->o.records, RECORD_PROGRAM), err->text);
        output_close(&r->output, false);
        memset(side, 0, sizeof r->progress.side);
        result = output_open(&r->output, &r->form, &r->o.output, &r->progress, err);
    }
    return result;
}

static int write_all(struct tokenize_run *r, struct dt_error *err)
{
    if (open_output(r, err) != 0) {
        return -1;
    }
    r->opened = true;
    r->output.report = r->report;
    r->output.report_context = r->report_context;
    if (check_space(r, err) != 0) {
        return -1;
    }
    const char *who = record_option(&r->o.records, RECORD_PROGRAM);
    if (output_has_complete(&r->output)) {
        dt_text_say(stderr, "%s: goes on behind %d complete shards of an earlier run", who,
                    output_shards(&r->output, SIDE_TRAIN) + output_shards(&r->output, SIDE_VAL));
    }
    return pipeline_run(&r->form, &r->output, r->o.threads, err) != 0 || stop_check(err) != 0 ||
                   output_commit(&r->output, r->val, err) != 0
               ? -1
               : 0;
}

static int prepare(struct tokenize_run *r, struct dt_error *err)
{
    if (coder_open(&r->coder, r->o.tokenizer, err) != 0) {
        r->usage = err->status == DT_NOT_FOUND;
        return -1;
    }
    if (coder_end_with(&r->coder, r->o.end, err) != 0) {
        return dt_wrap(err, "--end");
    }
    r->form = (struct work_form){.corpus = &r->corpus,
                                 .coder = &r->coder,
                                 .format = r->o.format,
                                 .records = r->o.records,
                                 .any_bytes = r->coder.tokenizer == NULL && !r->o.records.replace,
                                 .max_length = r->o.max_length};
    if (r->o.records.label_key == NULL && r->coder.end < 0) {
        return dt_fail(err, DT_INVALID,
                       "%s: no eos_token in tokenizer_config.json beside it; name the token that ends documents with "
                       "--end",
                       r->coder.path);
    }
    return 0;
}

void tokenize_run_init(struct tokenize_run *r)
{
    *r = (struct tokenize_run){.progress = {.lock = -1}};
}

int tokenize_run_open(struct tokenize_run *r, char *const *paths, size_t count, struct dt_error *err)
{
    return prepare(r, err) != 0 || collect(r, paths, count, err) != 0 || hold_out(r, err) != 0 ? -1 : 0;
}

int tokenize_run_write(struct tokenize_run *r, struct dt_error *err)
{
    return know_labels(r, err) != 0 ||
                   progress_open(&r->progress, r->o.output.dir, key_of(r), !r->piped, r->o.output.overwrite, err) !=
                       0 ||
                   write_all(r, err) != 0
               ? -1
               : 0;
}

bool tokenize_run_give_up(struct tokenize_run *r, const struct dt_error *err)
{
    bool keep = r->progress.resumes && output_has_complete(&r->output) &&
                (stop_signal() != 0 || err->status == DT_FULL || err->status == DT_IO);
    bool earlier = !r->opened && r->progress.side[SIDE_TRAIN].complete + r->progress.side[SIDE_VAL].complete > 0;
    output_close(&r->output, keep || earlier);
    progress_close(&r->progress, keep || earlier);
    return keep;
}

void tokenize_run_say_left_out(const struct tokenize_run *r)
{
    const struct corpus *c = &r->corpus;
    const char *who = record_option(&r->o.records, RECORD_PROGRAM);
    corpus_say_left_out(c, who);
    if (c->output_met) {
        dt_text_say(stderr, "%s: left out %s, where the shards go", who, c->output);
    }
    struct tally *all = dt_alloc(sizeof *all);
    tally_join(all, &r->output.now[SIDE_TRAIN].tally);
    tally_join(all, &r->output.now[SIDE_VAL].tally);
    tally_say(all, &r->o.records);
    free(all);
}

void tokenize_run_close(struct tokenize_run *r)
{
    output_close(&r->output, false);
    progress_close(&r->progress, false);
    corpus_close(&r->corpus);
    labels_clear(&r->labels);
    coder_close(&r->coder);
}
