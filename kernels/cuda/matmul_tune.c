/* Measures products at the start of a run. The library's proposals for a shape run in turns on
 * random numbers, and the fastest is kept in the plan file.
 *   turn 0          runs all of them, not counted: code is loaded, clocks rise
 *   turn 1          runs all of them. Candidates that take a third longer than the fastest are
 *                   dropped, and of the others all but KEPT
 *   turns 2 to 8    run the remaining ones; their medians count
 * For a product with an epilogue, the first candidate is product and epilogue one after the
 * other, with the plan chosen before for the product alone, or what else was chosen before to be
 * taken instead (DT_MATMUL_GELU_ALONE_BACKWARD). The library's proposals for both in one follow. */
#include "kernels/cuda/attention.h"
#include "kernels/cuda/convolution.h"
#include "kernels/cuda/matmul_plan.h"
#include "kernels/cuda/turns.h"

#include "base/log.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

enum { PROPOSALS = TURNS_CANDIDATES, KEPT = 6, COUNTED = 2, COPIES = 4 };
#define READY_S 60.0
/* copies of the operands are used in turns, up to this size, which exceeds the caches */
#define COPIES_BYTES ((size_t)256 << 20)

struct candidate {
    bool separate; /* not `found`, but product and epilogue one after the other */
    cublasLtMatmulHeuristicResult_t found;
};

/* One product's operands, in several copies. */
struct operands {
    char *block;
    size_t size_bytes, step_bytes;            /* step: bytes from one copy to the next */
    size_t a, b, bias, aux, c, bias_gradient; /* offsets within a copy */
    int copies;
};

/* One product's candidates and operands. */
struct trial {
    struct matmul_cache *cache;
    struct dt_stream *stream;
    struct dt_cuda_launch launch;
    const struct dt_matmul_args *product;
    enum dt_matmul_ending ending;
    /* takes the algorithm of each candidate in turn; null: the library takes no such product */
    struct matmul_plan *plan;
    struct operands operands;
    struct candidate all[PROPOSALS];
    int count, runs; /* runs: number of runs so far, which selects the next copy of the operands */
    struct turns turns;
};

static size_t round_up(size_t n)
{
    return (n + 255) / 256 * 256;
}

/* Reserves a matrix of `rows` stored rows. *at: its offset, aligned as the key says: no better, but for
 * the key's largest alignment, which stands for all better ones. */
static size_t matrix(size_t *at, size_t *end, int64_t rows, int64_t ld, size_t size, uint16_t alignment)
{
    *at = *end + (alignment < matmul_alignment_most() ? alignment : 0);
    *end = round_up(*at + (size_t)rows * (size_t)ld * size);
    return *end;
}

static int open_operands(struct dt_device *d, const struct dt_cuda_launch *l, const struct dt_matmul_key *k,
                         int most_copies, struct operands *o, struct dt_error *err)
{
    size_t size = dt_dtype_size((enum dt_dtype)k->type), c_size = dt_dtype_size((enum dt_dtype)k->c_type), end = 0;
    memset(o, 0, sizeof *o);
    (void)matrix(&o->a, &end, k->a_transposed ? k->k : k->m, k->lda, size, k->a_alignment);
    (void)matrix(&o->b, &end, k->b_transposed ? k->n : k->k, k->ldb, size, k->b_alignment);
    (void)matrix(&o->bias, &end, 1, k->n, size, k->vector_alignment);
    (void)matrix(&o->aux, &end, matmul_has_aux(k) ? k->m : 0, k->n, size, k->vector_alignment);
    size_t flows = end;
    (void)matrix(&o->c, &end, k->m, k->ldc, c_size, k->c_alignment);
    /* room for either type */
    (void)matrix(&o->bias_gradient, &end, k->epilogue >= DT_MATMUL_GELU_BACKWARD ? 1 : 0,
                 k->epilogue == DT_MATMUL_BIAS_BACKWARD_A ? k->m : k->n, sizeof(float), k->vector_alignment);
    o->step_bytes = end;
    o->copies = (int)(COPIES_BYTES / end);
    o->copies = o->copies < 1 ? 1 : o->copies > most_copies ? most_copies : o->copies;
    o->size_bytes = (size_t)o->copies * end;
    void *block;
    if (dt_device_alloc(d, DT_MEMORY_DEVICE, o->size_bytes, &block, err) != 0) {
        return -1;
    }
    o->block = block;
    for (int i = 0; i < o->copies; i++) {
        char *at = o->block + (size_t)i * o->step_bytes;
        dt_cuda_random(l, at, (int64_t)(flows / size), (enum dt_dtype)k->type);
        dt_cuda_random(l, at + flows, (int64_t)((end - flows) / c_size), (enum dt_dtype)k->c_type);
    }
    return 0;
}

/* The product with the operands of one copy. */
static struct dt_matmul_args with_copy(const struct dt_matmul_args *product, const struct operands *o, int copy)
{
    struct dt_matmul_args a = *product;
    char *at = o->block + (size_t)copy * o->step_bytes;
    a.a = at + o->a;
    a.b = at + o->b;
    a.c = at + o->c;
    a.bias = a.bias != NULL ? at + o->bias : NULL;
    a.aux = a.aux != NULL ? at + o->aux : NULL;
    a.bias_gradient = a.bias_gradient != NULL ? at + o->bias_gradient : NULL;
    return a;
}

static bool run(void *trial, int i)
{
    struct trial *t = trial;
    const struct candidate *x = &t->all[i];
    struct dt_matmul_args a = with_copy(t->product, &t->operands, t->runs++ % t->operands.copies);
    if (x->separate && t->ending == DT_MATMUL_GELU_BACKWARD) {
        dt_matmul_epilogue(&dt_kernels_cuda, t->stream, &a); /* has no plan yet, so that is the next best way */
        return true;
    }
    if (x->separate) {
        dt_matmul_parts(&dt_kernels_cuda, t->stream, &a);
        return true;
    }
    t->plan->algo = x->found.algo;
    t->plan->workspace_bytes = x->found.workspaceSize;
    if (matmul_run(t->cache, t->plan, &t->launch, &a) != CUBLAS_STATUS_SUCCESS) {
        return false;
    }
    if (t->ending == DT_MATMUL_GELU_ALONE_BACKWARD) {
        matmul_sum_columns(t->stream, &a);
    }
    return true;
}

/* Drops slow candidates, after turn 1. */
static void drop_slow(struct turns *t)
{
    float times[PROPOSALS];
    int n = 0;
    for (int i = 0; i < t->count; i++) {
        if (!t->each[i].out) {
            times[n++] = t->each[i].ms[1];
        }
    }
    if (n == 0) {
        return;
    }
    qsort(times, (size_t)n, sizeof *times, turns_compare);
    /* the first candidate stays: the others are compared with it */
    for (int i = 1; i < t->count; i++) {
        float ms = t->each[i].ms[1];
        t->each[i].out = t->each[i].out || ms > times[0] * 4 / 3 || (n > KEPT && ms > times[KEPT - 1]);
    }
}

/* All turns; *best and ms as for turns_fastest. -1: the device failed. */
static int take_turns(struct trial *t, int *best, float ms[2])
{
    int rc = 0;
    for (int turn = 0; turn < TURNS_MOST && rc == 0; turn++) {
        rc = turns_take(&t->turns, turn, run, t);
        if (turn == 1 && rc == 0) {
            drop_slow(&t->turns);
        }
    }
    *best = rc == 0 ? turns_fastest(&t->turns, COUNTED, TURNS_MOST, ms) : -1;
    return rc;
}

static void find_candidates(struct trial *t, const struct dt_matmul_key *key)
{
    cublasLtMatmulHeuristicResult_t found[PROPOSALS];
    t->plan = matmul_fits(t->cache, key) ? matmul_plan_describe(t->cache, key) : NULL;
    if (key->epilogue > DT_MATMUL_BIAS) {
        t->all[t->count++].separate = true;
    }
    int count = t->plan != NULL ? matmul_plan_propose(t->cache, t->plan, found, PROPOSALS - t->count) : 0;
    for (int i = 0; i < count; i++) {
        if (found[i].state == CUBLAS_STATUS_SUCCESS) {
            t->all[t->count++].found = found[i];
        }
    }
}

static void keep(struct trial *t, const struct dt_matmul_key *key, int best, const float ms[2])
{
    struct dt_matmul_algo algo = {0};
    if (!t->all[best].separate) {
        algo.workspace_bytes = (int64_t)t->all[best].found.workspaceSize;
        memcpy(algo.words, &t->all[best].found.algo, sizeof algo.words);
    }
    dt_plan_file_put(t->cache->file, key, &algo);
    dt_log(DT_LOG_INFO, "matmul",
           "(%lld, %lld, %lld), epilogue %d, multiprocessors for others %d: candidate %d of %d, %.4f ms; the first one "
           "%.4f ms",
           (long long)key->m, (long long)key->n, (long long)key->k, key->epilogue, (int)key->busy_sms, best, t->count,
           (double)ms[0], (double)ms[1]);
}

/* Puts the fastest way to compute a product into the file. Puts nothing if there is no
 * candidate. */
static int measure(struct matmul_cache *c, struct dt_stream *s, const struct dt_matmul_args *product,
                   const struct dt_matmul_key *key, int *measured, struct dt_error *err)
{
    struct trial t = {.cache = c, .stream = s, .product = product, .ending = (enum dt_matmul_ending)key->epilogue};
    int rc = 0, best = -1;
    float ms[2];
    if (!dt_cuda_begin(s, &t.launch)) {
        (void)dt_stream_failed(s, err);
        return -1;
    }
    find_candidates(&t, key);
    if (t.count > 0) {
        rc = turns_open(&t.turns, s, t.launch.native, "measuring products", t.count);
    }
    if (rc == 0 && t.count > 0 && open_operands(s->device, &t.launch, key, COPIES, &t.operands, err) != 0) {
        dt_log(DT_LOG_WARN, "matmul", "%s; not measured", err->text);
    } else if (rc == 0 && t.count > 0) {
        rc = take_turns(&t, &best, ms);
    }
    if (best >= 0) {
        keep(&t, key, best, ms);
        *measured += 1;
    }
    if (rc != 0) {
        rc = turns_fail(&t.turns, err);
    }
    if (t.operands.block != NULL) {
        (void)cudaStreamSynchronize(t.launch.native);
        dt_device_free(s->device, DT_MEMORY_DEVICE, t.operands.block, t.operands.size_bytes);
    }
    turns_close(&t.turns);
    if (t.plan != NULL) {
        matmul_plan_free(c, t.plan);
    }
    return rc;
}

/* Index of the first product of `each`, from `from` on, that has no choice yet; count if there is
 * none. */
static int next_missing(const struct matmul_cache *c, const struct dt_matmul_args *each, int from, int count)
{
    for (int i = from; i < count; i++) {
        struct dt_matmul_key key = dt_matmul_key_of(&each[i], c->device->options.tf32);
        if ((each[i].epilogue == DT_EPILOGUE_NONE || matmul_epilogue_fits(&each[i])) && matmul_fits(c, &key) &&
            dt_plan_file_find(c->file, &key) == NULL) {
            return i;
        }
    }
    return count;
}

/* Call it with the file locked. */
static int measure_missing(struct matmul_cache *c, struct dt_stream *s, const struct dt_matmul_args *each, int count,
                           void (*tick)(void *context), void *context, int *measured, struct dt_error *err)
{
    int rc = 0;
    /* these were made without a choice, and might be timed as part of a product with an epilogue */
    matmul_cache_forget(c);
    for (int i = next_missing(c, each, 0, count); i < count && rc == 0; i = next_missing(c, each, i + 1, count)) {
        struct dt_matmul_key key = dt_matmul_key_of(&each[i], c->device->options.tf32);
        rc = measure(c, s, &each[i], &key, measured, err);
        if (tick != NULL) {
            tick(context);
        }
    }
    return rc;
}

static int choose(struct dt_stream *s, const struct dt_matmul_args *each, int count, void (*tick)(void *context),
                  void *context, int *measured, struct dt_error *why, struct dt_error *err)
{
    struct matmul_cache *c = matmul_cache_enter(s->device);
    /* measured products take the lock themselves, and no other thread computes any */
    matmul_cache_leave();
    int rc = 0;
    *measured = 0;
    why->status = DT_OK;
    if (next_missing(c, each, 0, count) < count) {
        /* taking the lock also reads the choices that other processes have made meanwhile */
        if (dt_plan_file_lock(c->file, tick, context, why) == 0) {
            rc = measure_missing(c, s, each, count, tick, context, measured, err);
            if (rc == 0 && *measured > 0 && dt_plan_file_save(c->file, why) != 0) {
                *measured = 0;
                dt_plan_file_forget(c->file);
            }
            dt_plan_file_unlock(c->file);
        }
        matmul_cache_forget(c);
    }
    return rc;
}

/* Runs one product on random numbers, which makes its plan. Without memory for that, the first step
 * makes it. */
static int touch(struct dt_stream *s, const struct dt_matmul_args *product, struct dt_error *err)
{
    struct dt_matmul_key key = dt_matmul_key_of(product, s->device->options.tf32);
    struct dt_cuda_launch launch;
    struct operands operands;
    if (!dt_cuda_begin(s, &launch)) {
        return dt_stream_failed(s, err) ? -1 : 0;
    }
    if (open_operands(s->device, &launch, &key, 1, &operands, err) != 0) {
        dt_log(DT_LOG_INFO, "matmul", "%s; not run ahead", err->text);
        return 0;
    }
    struct dt_matmul_args a = with_copy(product, &operands, 0);
    dt_matmul_epilogue(&dt_kernels_cuda, s, &a);
    int rc = dt_stream_finish(s, READY_S, err);
    dt_device_free(s->device, DT_MEMORY_DEVICE, operands.block, operands.size_bytes);
    return rc;
}

static int ready(struct dt_stream *s, const struct dt_matmul_args *each, int count, void (*tick)(void *context),
                 void *context, struct dt_error *err)
{
    for (int i = 0; i < count; i++) {
        if (each[i].m > 0 && each[i].n > 0 && touch(s, &each[i], err) != 0) {
            return dt_wrap(err, "products");
        }
        if (tick != NULL) {
            tick(context);
        }
    }
    return 0;
}

static void tell(struct dt_device *d, const struct dt_matmul_args *each, int count, struct dt_text *out)
{
    struct dt_matmul_key *keys = dt_alloc((size_t)(count + 1) * sizeof *keys);
    const struct matmul_cache *c = matmul_cache_enter(d);
    for (int i = 0; i < count; i++) {
        keys[i] = dt_matmul_key_of(&each[i], c->device->options.tf32);
    }
    dt_plan_file_tell(c->file, keys, (size_t)count, out);
    matmul_cache_leave();
    free(keys);
}

static bool take(struct dt_device *d, const char *text, bool keep)
{
    struct matmul_cache *c = matmul_cache_enter(d);
    bool taken = dt_plan_file_take(c->file, text, keep);
    if (taken) {
        matmul_cache_forget(c);
    }
    matmul_cache_leave();
    return taken;
}

static void none(struct dt_device *d)
{
    dt_cuda_attention_none(d);
    dt_cuda_convolutions_none(d);
    struct matmul_cache *c = matmul_cache_enter(d);
    dt_plan_file_forget(c->file);
    matmul_cache_forget(c);
    matmul_cache_leave();
}

const struct dt_device_plans dt_cuda_plans = {.choose = choose,
                                              .tell = tell,
                                              .take = take,
                                              .none = none,
                                              .ready = ready,
                                              .attention = dt_cuda_attention_ready,
                                              .attention_backward = dt_cuda_attention_backward_ready,
                                              .choose_attention = dt_cuda_attention_choose,
                                              .tell_attention = dt_cuda_attention_tell,
                                              .take_attention = dt_cuda_attention_take,
                                              .convolutions = dt_cuda_convolutions_ready,
                                              .choose_convolutions = dt_cuda_convolutions_choose,
                                              .tell_convolutions = dt_cuda_convolutions_tell,
                                              .take_convolutions = dt_cuda_convolutions_take};
