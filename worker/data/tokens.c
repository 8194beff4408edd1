/* Data from token shards. The shards of a glob, in the order of their names, are one stream of
 * tokens, as the writer made them. Sample i is tokens [i*T, i*T + T] of the stream; the last of
 * them is only a label. A sample may reach over the end of a shard into the next one, so samples do
 * not depend on how the stream is cut into files. There are (count - 1) / T samples; the rest is
 * unused. */
#include "base/log.h"
#include "base/text.h"
#include "worker/data/rows.h"
#include "worker/data/shards.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

/* Up to this size every id is read when the source is opened, whatever the JSON says. */
#define MEASURE_BYTES ((size_t)1 << 30)
/* From this size on a file takes longer to read than the steps of a file system's clock are apart. */
#define REMEMBERED_BYTES ((size_t)64 << 20)

enum { VOCABULARY_MAX = 1 << 24 /* the limit of model.vocab_size */, AT_ONCE = 1024 };

struct tokens {
    struct shard *shards;
    /* position of each shard's first token in the stream, then the end of the stream */
    int64_t *firsts;
    size_t count;
};

static bool recognise(const char *path)
{
    return shard_recognise(path);
}

/* Ids without a header can be anything. */
static bool recognise_none(const char *path)
{
    (void)path;
    return false;
}

static void close_tokens(struct data_source *s)
{
    struct tokens *t = s->state;
    for (size_t i = 0; t != NULL && i < t->count; i++) {
        shard_close(&t->shards[i]);
    }
    if (t != NULL) {
        free(t->shards);
        free(t->firsts);
    }
    free(t);
    s->state = NULL;
}

/* Large files that were read whole, with what was found. A plan and its run open the same data, and a search for a
 * batch size opens it for each size. */
static struct {
    pthread_mutex_t lock;
    struct measured {
        dev_t device;
        ino_t inode;
        off_t bytes;
        struct timespec changed;
        int64_t max_id;
        uint64_t hash;
    } * of;
    size_t count;
} measures = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool is_same(const struct measured *m, const struct stat *st)
{
    return m->device == st->st_dev && m->inode == st->st_ino && m->bytes == st->st_size &&
           m->changed.tv_sec == st->st_mtim.tv_sec && m->changed.tv_nsec == st->st_mtim.tv_nsec;
}

/* shard_measure, once in this process for each large file as it is. */
static void measure_once(const struct shard *sh, int64_t *max_id, uint64_t *hash)
{
    struct stat st;
    bool large = sh->map_bytes >= REMEMBERED_BYTES && stat(sh->path, &st) == 0, known = false;
    (void)pthread_mutex_lock(&measures.lock);
    for (size_t i = 0; large && !known && i < measures.count; i++) {
        const struct measured *m = &measures.of[i];
        known = is_same(m, &st);
        *max_id = known ? m->max_id : 0;
        *hash = known ? m->hash : 0;
    }
    (void)pthread_mutex_unlock(&measures.lock);
    if (known) {
        return;
    }
    shard_measure(sh, max_id, hash);
    if (large) {
        (void)pthread_mutex_lock(&measures.lock);
        measures.of = dt_realloc(measures.of, (measures.count + 1) * sizeof *measures.of);
        measures.of[measures.count++] = (struct measured){st.st_dev, st.st_ino, st.st_size, st.st_mtim, *max_id, *hash};
        (void)pthread_mutex_unlock(&measures.lock);
    }
}

/* Gets the largest id and the hash: by reading all ids, or from the JSON if there is too much data
 * to read at every start. */
static int know_content(struct shard *sh, bool measure, struct dt_error *err)
{
    if (!measure && sh->has_info && sh->info.max_id >= 0 && sh->info.max_id < VOCABULARY_MAX && sh->info.has_hash) {
        return 0;
    }
    int64_t max_id = 0;
    uint64_t hash = 0;
    measure_once(sh, &max_id, &hash);
    if (sh->info.has_hash && sh->info.hash != hash) {
        return dt_fail(err, DT_INVALID,
                       "%s: hash %016" PRIx64 ", but its JSON says %016" PRIx64 ": changed or damaged; make it again",
                       sh->path, hash, sh->info.hash);
    }
    sh->info.max_id = max_id;
    sh->info.hash = hash;
    sh->info.has_hash = true;
    if (max_id >= VOCABULARY_MAX) {
        return dt_fail(err, DT_INVALID,
                       "%s: largest id %" PRId64 " is beyond any vocabulary (%d): damaged; make it again", sh->path,
                       max_id, VOCABULARY_MAX);
    }
    if (sh->info.vocabulary > 0 && max_id >= sh->info.vocabulary) {
        return dt_fail(err, DT_INVALID,
                       "%s: largest id %" PRId64 " does not fit into the vocabulary of %" PRId64 "; make it again",
                       sh->path, max_id, sh->info.vocabulary);
    }
    return 0;
}

/* Adds one shard's facts to those of the source. */
static int add_shard(struct data_source *s, struct tokens *t, size_t i, struct dt_error *err)
{
    const struct shard *sh = &t->shards[i];
    if (strcmp(sh->info.tokenizer, s->tokenizer) != 0 && i > 0) {
        return dt_fail(err, DT_INVALID, "%s: tokenizer %s, but %s has %s; make all shards with one", sh->path,
                       sh->info.tokenizer[0] != 0 ? sh->info.tokenizer : "unknown", t->shards[0].path,
                       s->tokenizer[0] != 0 ? s->tokenizer : "unknown");
    }
    if (i > 0 && sh->info.tokenizer_hash != s->tokenizer_hash) {
        return dt_fail(err, DT_INVALID, "%s: another tokenizer %s than that of %s; make all shards with one", sh->path,
                       s->tokenizer, t->shards[0].path);
    }
    memcpy(s->tokenizer, sh->info.tokenizer, sizeof s->tokenizer);
    s->tokenizer_hash = sh->info.tokenizer_hash;
    s->tokenizer_path = t->shards[0].info.tokenizer_path;
    int64_t end = sh->info.document_end;
    if (i > 0 && end != s->document_end) {
        return dt_fail(err, DT_INVALID,
                       "%s: document_end %" PRId64 ", but %s has %" PRId64 " (-1: unknown); make all shards with one",
                       sh->path, end, t->shards[0].path, s->document_end);
    }
    s->document_end = end;
    int64_t vocabulary =
        sh->info.vocabulary > 0 && sh->info.vocabulary <= VOCABULARY_MAX ? sh->info.vocabulary : sh->info.max_id + 1;
    s->vocabulary = vocabulary > s->vocabulary ? vocabulary : s->vocabulary;
    t->firsts[i] = s->token_count;
    s->token_count += sh->token_count;
    t->firsts[i + 1] = s->token_count;
    data_list_file(s, sh->path, sh->token_count, sh->info.hash);
    return 0;
}

static uint64_t hash_all(const struct tokens *t)
{
    XXH3_state_t *h = XXH3_createState();
    (void)XXH3_64bits_reset(h);
    for (size_t i = 0; i < t->count; i++) {
        const struct shard *sh = &t->shards[i];
        const char *name = data_base_name(sh->path);
        (void)XXH3_64bits_update(h, name, strlen(name) + 1);
        (void)XXH3_64bits_update(h, &sh->token_count, sizeof sh->token_count);
        (void)XXH3_64bits_update(h, &sh->info.hash, sizeof sh->info.hash);
    }
    uint64_t hash = XXH3_64bits_digest(h);
    (void)XXH3_freeState(h);
    return hash;
}

/* True for ids and for fields that follow them. */
static bool of_stream(const struct batch_field *f)
{
    return !f->optional && batch_in_data(f);
}

/* Shards hold only a stream of ids: no fields that the data must have, other than ids and those that follow
 * them. */
const char *data_tokens_lack(const struct batch_layout *layout)
{
    const char *name = NULL;
    for (int k = 0; k < layout->count && name == NULL; k++) {
        const struct batch_field *f = &layout->field[k];
        name = strcmp(f->name, "input_ids") != 0 && !f->from_ids && of_stream(f) ? f->name : NULL;
    }
    return name;
}

static int open_stream(struct data_source *s, const char *glob,
                       int (*open)(struct shard *, const char *, struct dt_error *), struct dt_error *err)
{
    struct data_files files;
    int64_t sequence_length = s->sequence_length;
    const char *lacks = data_tokens_lack(&s->layout);
    if (lacks != NULL) {
        return dt_fail(err, DT_INVALID, "%s: token shards hold no %s, which the model reads; give safetensors files",
                       glob, lacks);
    }
    if (data_files_open(&files, glob, false, err) != 0) {
        return -1;
    }
    struct tokens *t = dt_alloc(sizeof *t);
    s->state = t;
    t->shards = dt_alloc(files.count * sizeof *t->shards);
    t->firsts = dt_alloc((files.count + 1) * sizeof *t->firsts);
    size_t bytes = 0;
    int result = 0;
    for (; result == 0 && t->count < files.count; t->count += result == 0) {
        result = open(&t->shards[t->count], files.paths[t->count], err);
        bytes += result == 0 ? t->shards[t->count].map_bytes : 0;
    }
    for (size_t i = 0; result == 0 && i < t->count; i++) {
        result = know_content(&t->shards[i], bytes <= MEASURE_BYTES, err) == 0 ? add_shard(s, t, i, err) : -1;
    }
    if (result == 0) {
        s->sample_count = (s->token_count - 1) / sequence_length;
        s->hash = hash_all(t);
        for (int k = 0; k < s->layout.count; k++) {
            s->largest[k].value = of_stream(&s->layout.field[k]) ? s->vocabulary - 1 : 0;
        }
        if (s->sample_count == 0) {
            result = dt_fail(err, DT_INVALID,
                             "%s: %" PRId64 " tokens, too few for one sample of data.sequence_length %" PRId64
                             " (and the label after it)",
                             glob, s->token_count, sequence_length);
        }
    }
    data_files_close(&files);
    if (result != 0) {
        close_tokens(s);
    }
    return result;
}

static int open_tokens(struct data_source *s, const char *glob, struct dt_error *err)
{
    return open_stream(s, glob, shard_open, err);
}

static int open_nanogpt(struct data_source *s, const char *glob, struct dt_error *err)
{
    return open_stream(s, glob, shard_open_raw, err);
}

/* The shard that holds position p of the stream. */
static size_t shard_at(const struct tokens *t, int64_t p)
{
    size_t low = 0, high = t->count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        *(p >= t->firsts[middle] ? &low : &high) = middle;
    }
    return low;
}

/* Ids from position p of the stream on; p must be in shard i. */
static void copy_ids(const struct tokens *t, size_t i, int64_t p, int64_t count, uint32_t *out)
{
    for (int64_t n; count > 0; p += n, out += n, count -= n, i++) {
        n = t->firsts[i + 1] - p < count ? t->firsts[i + 1] - p : count;
        shard_ids(&t->shards[i], p - t->firsts[i], n, out);
    }
}

/* Ids k to k + count of a sample, into the row of a field that begins with one of them (`shifted`) or the first. */
static void fill_field(const struct batch_field *field, int32_t *row, int64_t length, int64_t k, const uint32_t *ids,
                       int64_t count, int64_t vocabulary, bool bad)
{
    int64_t from = k < field->shifted ? field->shifted - k : 0, at = k + from - field->shifted;
    int64_t n = count - from < length - at ? count - from : length - at;
    if (n <= 0) {
        return;
    }
    memcpy(row + at, ids + from, (size_t)n * sizeof *row);
    for (int64_t i = 0; bad && i < n; i++) {
        row[at + i] = ids[from + i] < (uint64_t)vocabulary ? row[at + i] : field->targets ? -100 : 0;
    }
}

static int read_tokens(const struct data_source *s, int64_t sample, int64_t epoch, const struct batch *b, int64_t row,
                       struct dt_error *err)
{
    (void)epoch;
    (void)err;
    const struct tokens *t = s->state;
    int64_t length = s->sequence_length, p = sample * length, first_bad = -1;
    uint32_t ids[AT_ONCE];
    for (int f = 0; f < s->layout.count; f++) {
        if (s->layout.field[f].optional) {
            batch_fill_missing(b, f, row);
        }
    }
    for (int64_t k = 0, n; k <= length; k += n) {
        n = length + 1 - k < AT_ONCE ? length + 1 - k : AT_ONCE;
        copy_ids(t, shard_at(t, p + k), p + k, n, ids);
        uint32_t largest = 0;
        for (int64_t i = 0; i < n; i++) {
            largest = ids[i] > largest ? ids[i] : largest;
        }
        /* the JSON may be wrong, and such an id must not reach the model */
        bool bad = largest >= (uint64_t)s->vocabulary;
        first_bad = bad && first_bad < 0 ? p + k : first_bad;
        for (int f = 0; f < s->layout.count; f++) {
            const struct batch_field *field = &s->layout.field[f];
            if (of_stream(field)) {
                fill_field(field, (int32_t *)b->at[f] + row * length, length, k, ids, n, s->vocabulary, bad);
            }
        }
    }
    if (first_bad >= 0) {
        dt_log(DT_LOG_ERROR, "data", "%s: an id beyond the vocabulary of %" PRId64 " in sample %" PRId64 "; ignored",
               t->shards[shard_at(t, first_bad)].path, s->vocabulary, sample);
    }
    return 0;
}

static void expect_tokens(const struct data_source *s, int64_t sample)
{
    const struct tokens *t = s->state;
    int64_t p = sample * s->sequence_length, end = p + s->sequence_length + 1;
    for (size_t i = shard_at(t, p); i < t->count && t->firsts[i] < end; i++) {
        const struct shard *x = &t->shards[i];
        int64_t from = p > t->firsts[i] ? p : t->firsts[i], to = end < t->firsts[i + 1] ? end : t->firsts[i + 1];
        data_expect_bytes((const char *)x->tokens + (from - t->firsts[i]) * x->width, (size_t)((to - from) * x->width));
    }
}

const struct data_ops data_tokens = {.name = "tokens",
                                     .recognise = recognise,
                                     .open = open_tokens,
                                     .read = read_tokens,
                                     .expect = expect_tokens,
                                     .close = close_tokens};

const struct data_ops data_nanogpt = {.name = "nanogpt",
                                      .recognise = recognise_none,
                                      .open = open_nanogpt,
                                      .read = read_tokens,
                                      .expect = expect_tokens,
                                      .close = close_tokens};
