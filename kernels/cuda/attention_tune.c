/* Measures attention at the start of a run. cuDNN's proposals for a pass and our own kernels run in
 * turns on random numbers. The fastest is kept in the plan file by its engine and knobs. The
 * plan that is measured is made from these numbers, too, so later starts get the plan that was
 * measured.
 *
 * Backward is measured by several parts of the batch. The largest part that fits the work memory
 * fills the device best, but the work memory of a small one may stay in the device's cache. Each
 * candidate computes the same sequences, so their times compare.
 *
 *   turns 0 and 1   compare the bits of each result. A proposal whose sums have no fixed order is
 *                   left out, unless that is allowed. Code is loaded.
 *   turns 2 to 8    are timed. The median counts. The first proposal stays unless another is 1 %
 *                   faster.
 * Compiling a plan takes a quarter of a second to a second, so few proposals are tried, and none is
 * begun after MOST_S. All of this uses a separate handle, which is destroyed with its memory
 * afterwards. */
#include "kernels/attention.h"
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/turns.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

enum {
    PROPOSALS = 4,   /* for the largest part */
    FURTHER = 2,     /* for each other part; 1 of those that add up in no order */
    CANDIDATES = 24, /* of the library */
    PARTS = 8,       /* of a graph */
    FIRST_PARTS = 3, /* tried at most until one has a candidate */
    COMPARED = 2,
    LEAST_TURNS = COMPARED + 3
};
_Static_assert((int)CANDIDATES < (int)TURNS_CANDIDATES, "each takes part in the turns");
static const double MOST_S = 10; /* for one pass */
/* Sequences are measured until their queries, keys and values are this large, which is more than a
 * cache. */
#define ENOUGH_BYTES ((int64_t)128 << 20)
#define WINDOW_BYTES ((size_t)8 << 20)

struct candidate {
    struct attention_choice choice;
    struct attention_plan *plan; /* of its part; takes the executable for each run. Null: kernels of our own */
    void *executable;
    size_t work_bytes;
    uint64_t bits;
};

/* One pass of attention with its candidates and operands. */
struct trial {
    struct dt_dnn_cache cache; /* the device's cache, but with a handle of its own */
    struct attention_plan plans[2 * PARTS];
    int plan_count;
    struct dt_stream *stream;
    struct dt_cuda_launch launch;
    struct attention_job job; /* the operands, for cuDNN and for our own kernels */
    struct dt_attention_args forward;
    struct dt_attention_backward_args backward;
    struct candidate all[CANDIDATES + 1];
    int count;
    int64_t first;     /* the part of the first candidates, a multiple of all others; 0: none yet */
    int64_t sequences; /* that each candidate computes */
    /* block: operands. window: pinned memory through which results are compared */
    char *block, *window;
    size_t block_bytes;
    const char *results;
    size_t result_bytes;
    struct turns turns;
    double until_s;
};

/* A pass that is to be measured. */
struct wanted {
    struct attention_key key;
    const struct dt_attention_args *forward; /* one of the two is null */
    const struct dt_attention_backward_args *backward;
    bool callers;
};

/* ---- candidates ---- */

/* Makes the plan of a proposal from its numbers. *fits: its sums have an allowed order and its work
 * memory fits. Returns the library's status. */
static int make_candidate(struct trial *t, struct attention_plan *p, void *proposal, struct candidate *x, bool *fits)
{
    const struct dt_dnn *api = t->cache.api;
    struct dt_dnn_place place = {.handle = t->cache.handle};
    const struct attention_key *k = &p->key;
    void *config = NULL;
    unsigned notes;
    memset(x, 0, sizeof *x);
    *fits = false;
    int status = dt_dnn_config_read(api, proposal, &x->choice.config, &notes);
    if (status != DT_DNN_SUCCESS || ((notes >> DT_DNN_NONDETERMINISTIC & 1) != 0 && !k->sums)) {
        return status;
    }
    status = dt_dnn_config_make(&p->graph, &place, &x->choice.config, &config);
    if (status == DT_DNN_SUCCESS) {
        status = dt_dnn_plan(api, config, &place, &x->executable, &x->work_bytes);
    }
    *fits = status == DT_DNN_SUCCESS && x->work_bytes <= (size_t)k->room - attention_own_bytes(k, p->part);
    if (!*fits) {
        dt_dnn_drop(api, x->executable);
        x->executable = NULL;
    }
    x->choice.part = p->part;
    x->choice.sums = k->sums;
    x->plan = p;
    return status;
}

/* Adds at most `most` candidates. False: the library breaks down. The error comes later, when a
 * plan is made. */
static bool try_part(struct trial *t, const struct attention_key *key, int64_t part, int most)
{
    struct attention_plan *p = &t->plans[t->plan_count++];
    struct dt_dnn_place place = {.handle = t->cache.handle};
    void *found[DT_DNN_CANDIDATES] = {NULL};
    struct dt_error err;
    int found_count = 0, status = attention_plan_begin(&t->cache, p, key, part, &err);
    if (status == DT_DNN_SUCCESS) {
        status = dt_dnn_candidates(t->cache.api, &p->graph, &place, found, &found_count);
    }
    bool good = t->count > 0 || !dt_dnn_broke_down(status);
    most = t->count + most < CANDIDATES ? t->count + most : CANDIDATES;
    for (int i = 0; i < found_count && good && t->count < most && (t->count == 0 || dt_now_s() < t->until_s); i++) {
        bool fits;
        status = make_candidate(t, p, found[i], &t->all[t->count], &fits);
        t->count += fits;
        /* a proposal that breaks down after a good one is left out */
        good = t->count > 0 || !dt_dnn_broke_down(status);
    }
    for (int i = 0; i < found_count; i++) {
        dt_dnn_drop(t->cache.api, found[i]);
    }
    return good;
}

static void drop_candidates(struct trial *t)
{
    for (int i = 0; i < t->count; i++) {
        dt_dnn_drop(t->cache.api, t->all[i].executable);
    }
    for (int i = 0; i < t->plan_count; i++) {
        t->plans[i].executable = NULL;
        attention_plan_clear(t->cache.api, &t->plans[i]);
    }
    t->count = t->plan_count = 0;
}

/* The largest part, at most `most`, that divides the first one. */
static int64_t next_part(const struct trial *t, const struct attention_key *k, int64_t most)
{
    int64_t part = attention_part(&t->cache, k, most);
    while (part > 0 && t->first > 0 && t->first % part != 0) {
        part = attention_part(&t->cache, k, part - 1);
    }
    return part;
}

/* A multiple of `part` that divides the batch. */
static int64_t enough_sequences(const struct attention_key *k, int64_t part)
{
    int64_t n = part, bytes = k->positions * (k->heads + 2 * k->kv_heads) * k->head_size * 2;
    while (n < k->batch && n * bytes < ENOUGH_BYTES) {
        n += part;
        while (k->batch % n != 0) {
            n += part;
        }
    }
    return n;
}

/* Adds the candidates of one graph. */
static void try_graph(struct trial *t, const struct attention_key *key)
{
    int before = t->count, further = key->sums ? 1 : FURTHER, parts = 0;
    bool good = true;
    for (int64_t part = next_part(t, key, key->batch); part > 0 && good && parts < PARTS; parts++) {
        bool found = t->count > before;
        if (found ? !key->backward || dt_now_s() >= t->until_s : parts == FIRST_PARTS) {
            break;
        }
        good = try_part(t, key, part, found ? further : PROPOSALS);
        t->first = t->first == 0 && t->count > 0 ? part : t->first;
        part = next_part(t, key, part / 2);
    }
}

/* Where any order is allowed, those without one come first. */
static void find_candidates(struct trial *t, const struct attention_key *key)
{
    struct attention_key other = *key;
    other.sums = 0;
    try_graph(t, key);
    if (key->sums && (t->count == 0 || dt_now_s() < t->until_s)) {
        try_graph(t, &other);
    }
    t->sequences = t->count > 0 ? enough_sequences(key, t->first) : 0;
    for (int i = 0; i < t->plan_count; i++) {
        t->plans[i].key.batch = t->sequences;
    }
    if (t->count > 0 && key->own) {
        t->all[t->count++] = (struct candidate){.plan = NULL};
    }
}

/* ---- operands ---- */

static size_t reserve(size_t *end, int64_t bytes)
{
    size_t at = *end;
    *end += ((size_t)bytes + 255) / 256 * 256;
    return at;
}

/* Allocates inputs and results of the sequences, and work memory if the caller provides it in the
 * real pass. */
static int open_operands(struct trial *t, const struct wanted *w, struct dt_error *err)
{
    const struct attention_key *k = &t->plans[0].key;
    int64_t rows = k->batch * k->positions, qkv_bytes = rows * (k->heads + 2 * k->kv_heads) * k->head_size * 2;
    int64_t out_bytes = rows * k->heads * k->head_size * 2, lse_bytes = rows * k->heads * 4;
    size_t end = 0, work_bytes = 0, qkv = reserve(&end, qkv_bytes),
           dout = reserve(&end, w->backward != NULL ? out_bytes : 0);
    size_t random = end, out = reserve(&end, out_bytes), results = out;
    size_t random_bf16 = w->backward != NULL ? end : random, lse = reserve(&end, lse_bytes), random_f32 = end;
    size_t dqkv = reserve(&end, w->backward != NULL ? qkv_bytes : 0);
    for (int i = 0; i < t->count; i++) {
        const struct candidate *x = &t->all[i];
        size_t bytes = x->plan != NULL ? attention_own_bytes(&x->plan->key, x->plan->part) + x->work_bytes : 0;
        work_bytes = bytes > work_bytes ? bytes : work_bytes;
    }
    t->result_bytes = (w->backward != NULL ? end : random_f32) - (w->backward != NULL ? dqkv : results);
    size_t work = reserve(&end, w->callers ? (int64_t)work_bytes : 0);
    void *block = NULL, *window = NULL;
    if (dt_device_alloc(t->stream->device, DT_MEMORY_DEVICE, end, &block, err) != 0) {
        return -1;
    }
    t->block = block;
    t->block_bytes = end;
    if (dt_device_alloc(t->stream->device, DT_MEMORY_PINNED, WINDOW_BYTES, &window, err) != 0) {
        return -1;
    }
    t->window = window;
    t->results = t->block + (w->backward != NULL ? dqkv : results);
    dt_cuda_random(&t->launch, t->block, (int64_t)(random_bf16 / 2), DT_BF16);
    if (w->backward != NULL) {
        struct dt_attention_backward_args a = *w->backward;
        dt_cuda_random(&t->launch, t->block + lse, (int64_t)((random_f32 - lse) / 4), DT_F32);
        a.q = t->block + qkv;
        a.k = dt_attention_part(&a.shape, a.q, 1);
        a.v = dt_attention_part(&a.shape, a.q, 2);
        a.dout = t->block + dout;
        a.out = t->block + out;
        a.lse = (float *)(void *)(t->block + lse);
        a.dq = t->block + dqkv;
        a.dk = dt_attention_part(&a.shape, a.dq, 1);
        a.dv = dt_attention_part(&a.shape, a.dq, 2);
        (void)attention_backward_job(k, &a, &t->job);
        t->backward = a;
        t->backward.shape.batch = k->batch;
    } else {
        struct dt_attention_args a = *w->forward;
        a.q = t->block + qkv;
        a.k = dt_attention_part(&a.shape, a.q, 1);
        a.v = dt_attention_part(&a.shape, a.q, 2);
        a.out = t->block + out;
        a.lse = (float *)(void *)(t->block + lse);
        (void)attention_forward_job(k, &a, &t->job);
        t->forward = a;
        t->forward.shape.batch = k->batch;
    }
    t->job.work = w->callers ? t->block + work : t->launch.work;
    return 0;
}

/* ---- turns ---- */

static void put_own(struct trial *t)
{
    if (t->plans[0].key.backward) {
        dt_cuda_attention_backward_flash(&t->launch, &t->backward);
    } else {
        dt_cuda_attention_flash(&t->launch, &t->forward);
    }
    dt_cuda_end(t->stream, "attention");
}

static bool put(void *trial, int i)
{
    struct trial *t = trial;
    if (t->all[i].plan == NULL) {
        put_own(t);
        return true;
    }
    struct attention_job j = t->job;
    struct attention_plan *p = t->all[i].plan;
    p->executable = t->all[i].executable;
    return attention_plan_run(&t->launch, &t->cache, p, &j) == DT_DNN_SUCCESS;
}

/* Runs each candidate, and compares its results with those of the previous turn. */
static int compare_results(struct trial *t, int turn)
{
    for (int i = 0; i < t->count; i++) {
        struct candidate *x = &t->all[i];
        uint64_t bits;
        bool *out = &t->turns.each[i].out;
        *out = *out || !put(t, i);
        if (*out) {
            continue;
        }
        if (turns_hash(&t->turns, t->results, t->result_bytes, t->window, WINDOW_BYTES, &bits) != 0) {
            return -1;
        }
        if (turn > 0 && bits != x->bits && x->plan != NULL && !x->plan->key.sums) {
            *out = true;
            dt_log(DT_LOG_WARN, "attention", "cuDNN: engine %lld has other bits each time for the same%s; left out",
                   (long long)x->choice.config.engine, x->plan->key.backward ? ", backward" : "");
        }
        x->bits = bits;
    }
    return 0;
}

/* A candidate in words, which the caller frees. */
static char *words_of(const struct attention_choice *c)
{
    return c->part == 0 ? dt_strdup("our own kernels")
                        : dt_format("cuDNN's engine %lld%s, %lld sequences at a time", (long long)c->config.engine,
                                    c->sums ? " in no order" : "", (long long)c->part);
}

static void say_times(const struct trial *t, int turns)
{
    for (int i = 0; i < t->count; i++) {
        if (!t->turns.each[i].out) {
            char *words = words_of(&t->all[i].choice);
            dt_log(DT_LOG_INFO, "attention", "candidate %d: %s: %.4f ms a sequence", i, words,
                   (double)t->turns.each[i].ms[COMPARED + (turns - COMPARED) / 2] / (double)t->sequences);
            free(words);
        }
    }
}

/* All turns; *best and ms as for turns_fastest. -1: the device failed. */
static int take_turns(struct trial *t, int *best, float ms[2])
{
    int rc = 0, turns = 0;
    for (; turns < TURNS_MOST && rc == 0 && (turns < LEAST_TURNS || dt_now_s() < t->until_s); turns++) {
        rc = turns < COMPARED ? compare_results(t, turns) : turns_take(&t->turns, turns, put, t);
    }
    *best = rc == 0 ? turns_fastest(&t->turns, COMPARED, turns, ms) : -1;
    if (rc == 0) {
        say_times(t, turns);
    }
    return rc;
}

/* ---- one pass ---- */

static void close_trial(struct trial *t)
{
    if (t->block != NULL) {
        (void)cudaStreamSynchronize(t->launch.native);
        dt_device_free(t->stream->device, DT_MEMORY_DEVICE, t->block, t->block_bytes);
    }
    if (t->window != NULL) {
        dt_device_free(t->stream->device, DT_MEMORY_PINNED, t->window, WINDOW_BYTES);
    }
    turns_close(&t->turns);
    drop_candidates(t);
    if (t->cache.handle != NULL) {
        (void)t->cache.api->cudnnDestroy(t->cache.handle);
    }
}

static void keep(const struct trial *t, struct dt_plan_file *file, const struct attention_key *k, int best,
                 const float ms[2])
{
    char *words = words_of(&t->all[best].choice);
    dt_plan_file_put(file, k, &t->all[best].choice);
    dt_log(DT_LOG_INFO, "attention",
           "%lld x %lld positions, %lld heads of size %lld%s: candidate %d of %d, %s: %lld sequences in %.4f ms; the "
           "first one %.4f ms",
           (long long)k->batch, (long long)k->positions, (long long)k->heads, (long long)k->head_size,
           k->backward ? ", backward" : "", best, t->count, words, (long long)t->sequences, (double)ms[0],
           (double)ms[1]);
    free(words);
}

/* Puts the fastest engine for a pass into the file. Puts nothing if the library has none, or breaks
 * down before it is measured. */
static int measure(struct dt_dnn_cache *c, struct dt_stream *s, const struct wanted *w, int *measured,
                   struct dt_error *err)
{
    struct trial *t = dt_alloc(sizeof *t);
    int rc = 0, best = -1;
    float ms[2] = {0, 0};
    t->cache = (struct dt_dnn_cache){.device = c->device, .api = c->api, .file = c->file};
    t->stream = s;
    t->until_s = dt_now_s() + MOST_S;
    if (!dt_cuda_begin(s, &t->launch)) {
        (void)dt_stream_failed(s, err);
        free(t);
        return -1;
    }
    if (c->api->cudnnCreate(&t->cache.handle) != DT_DNN_SUCCESS) {
        t->cache.handle = NULL;
    } else {
        find_candidates(t, &w->key);
    }
    if (t->count > 0) {
        rc = turns_open(&t->turns, s, t->launch.native, "measuring attention", t->count);
    }
    if (rc == 0 && t->count > 0 && open_operands(t, w, err) != 0) {
        dt_log(DT_LOG_WARN, "attention", "%s; not measured", err->text);
    } else if (rc == 0 && t->count > 0) {
        rc = take_turns(t, &best, ms);
    }
    if (best >= 0) {
        keep(t, c->file, &w->key, best, ms);
        *measured += 1;
    }
    if (rc != 0) {
        rc = turns_fail(&t->turns, err);
    }
    close_trial(t);
    free(t);
    return rc;
}

/* ---- all passes ---- */

/* Lists the passes that the library takes. The caller frees the list. */
static struct wanted *list(const struct dt_attention_list *all, enum dt_attention_way way, int *count)
{
    struct wanted *out = dt_alloc((size_t)(all->forward_count + all->backward_count + 1) * sizeof *out);
    *count = 0;
    for (int i = 0; i < all->forward_count + all->backward_count; i++) {
        struct wanted w = {.callers = false};
        if (i < all->forward_count) {
            w.forward = &all->forward[i];
            w.key = attention_forward_key(w.forward, way);
        } else {
            w.backward = &all->backward[i - all->forward_count];
            w.key = attention_backward_key(w.backward, way, &w.callers);
        }
        if (attention_can(w.forward != NULL ? &w.forward->shape : &w.backward->shape)) {
            out[(*count)++] = w;
        }
    }
    return out;
}

/* Whether one of the graphs that are allowed fits. */
static bool fits(const struct dt_dnn_cache *c, const struct attention_key *k)
{
    struct attention_key other = *k;
    other.sums = 0;
    return attention_part(c, k, k->batch) > 0 || attention_part(c, &other, k->batch) > 0;
}

static int next_missing(const struct dt_dnn_cache *c, const struct wanted *each, int from, int count)
{
    while (from < count && (!fits(c, &each[from].key) || dt_plan_file_find(c->file, &each[from].key) != NULL)) {
        from++;
    }
    return from;
}

static int measure_missing(struct dt_dnn_cache *c, struct dt_stream *s, const struct wanted *each, int count,
                           void (*tick)(void *context), void *context, int *measured, struct dt_error *err)
{
    int rc = 0;
    for (int i = next_missing(c, each, 0, count); i < count && rc == 0; i = next_missing(c, each, i + 1, count)) {
        rc = measure(c, s, &each[i], measured, err);
        if (tick != NULL) {
            tick(context);
        }
    }
    return rc;
}

int dt_cuda_attention_dnn_choose(struct dt_stream *s, const struct dt_attention_list *all, enum dt_attention_way way,
                                 void (*tick)(void *context), void *context, int *measured, struct dt_error *why,
                                 struct dt_error *err)
{
    struct dt_dnn_cache *c = dt_dnn_cache_enter(&attention_caches, s->device);
    dt_dnn_cache_leave(&attention_caches); /* no other thread computes attention yet */
    int rc = 0, count;
    struct wanted *each = list(all, way, &count);
    *measured = 0;
    why->status = DT_OK;
    if (c->api != NULL && c->failed == DT_DNN_SUCCESS && next_missing(c, each, 0, count) < count) {
        /* taking the lock also reads the choices that other processes have made meanwhile */
        if (dt_plan_file_lock(c->file, tick, context, why) == 0) {
            rc = measure_missing(c, s, each, count, tick, context, measured, err);
            if (rc == 0 && *measured > 0 && dt_plan_file_save(c->file, why) != 0) {
                *measured = 0;
                dt_plan_file_forget(c->file);
            }
            dt_plan_file_unlock(c->file);
        }
        dt_dnn_cache_forget(&attention_caches, c);
    }
    free(each);
    return rc;
}

void dt_cuda_attention_dnn_tell(struct dt_device *d, const struct dt_attention_list *all, enum dt_attention_way way,
                                struct dt_text *out)
{
    int count;
    struct wanted *each = list(all, way, &count);
    struct attention_key *keys = dt_alloc((size_t)(count + 1) * sizeof *keys);
    for (int i = 0; i < count; i++) {
        keys[i] = each[i].key;
    }
    const struct dt_dnn_cache *c = dt_dnn_cache_enter(&attention_caches, d);
    dt_plan_file_tell(c->file, keys, (size_t)count, out);
    dt_dnn_cache_leave(&attention_caches);
    free(keys);
    free(each);
}

bool dt_cuda_attention_dnn_take(struct dt_device *d, const char *text, bool keep_it)
{
    return dt_dnn_cache_take(&attention_caches, d, text, keep_it);
}

void dt_cuda_attention_dnn_none(struct dt_device *d)
{
    dt_dnn_cache_none(&attention_caches, d);
}
