/* Measuring products at the start of a run: the library's proposals for a shape run in turns on random numbers, the fastest is kept in the plan file.
 *   turn 0          all of them, not counted: code is loaded, clocks rise
 *   turn 1          all of them; who takes a third longer than the fastest goes, and of the others all but KEPT
 *   turns 2 to 8    those that are left; the median counts, and the first proposal stays unless another is 1 % faster
 * Within a turn the host waits once, at its end.
 * Of a product with an epilogue the first candidate is the two apart, the product as it was chosen before; the library's proposals for both in one follow. */
#include "kernels/cuda/attention.h"
#include "kernels/cuda/matmul_plan.h"

#include "base/log.h"
#include "base/text.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

enum { PROPOSALS = 32, KEPT = 6, TURNS = 9, COPIES = 4 };
#define COPIES_BYTES ((size_t)256 << 20) /* operands are used in turns up to so much: beyond what a cache holds */

struct candidate {
    bool apart; /* not as found, but product and epilogue one after the other */
    cublasLtMatmulHeuristicResult_t found;
    float ms[TURNS];
    bool out;
};

/* One product's operands, in several copies. */
struct operands {
    char *block;
    size_t size_bytes, step_bytes;            /* step: from copy to copy */
    size_t a, b, bias, aux, c, bias_gradient; /* where they begin in a copy */
    int copies;
};

/* One product's candidates, and what they run with. */
struct trial {
    struct matmul_cache *cache;
    struct dt_stream *stream;
    struct dt_cuda_launch launch;
    const struct dt_matmul_args *product;
    struct matmul_plan *plan; /* gets the algorithm of each candidate in turn; null: the library takes no such product */
    struct operands operands;
    struct candidate all[PROPOSALS];
    int count;
    cudaEvent_t *events; /* PROPOSALS + 1 */
};

static size_t round_up(size_t n)
{
    return (n + 255) / 256 * 256;
}

/* Bytes of a matrix of `rows` stored rows, and where its data begin so that it is aligned as the key says. */
static size_t matrix(size_t *at, size_t *end, int64_t rows, int64_t ld, size_t size, uint8_t alignment)
{
    *at = *end + (alignment < 16 ? alignment : 0);
    *end = round_up(*at + (size_t)rows * (size_t)ld * size);
    return *end;
}

static int open_operands(struct dt_device *d, const struct dt_cuda_launch *l, const struct dt_matmul_key *k, struct operands *o, struct dt_error *err)
{
    size_t size = dt_dtype_size((enum dt_dtype)k->type), c_size = dt_dtype_size((enum dt_dtype)k->c_type), end = 0;
    memset(o, 0, sizeof *o);
    (void)matrix(&o->a, &end, k->a_transposed ? k->k : k->m, k->lda, size, k->a_alignment);
    (void)matrix(&o->b, &end, k->b_transposed ? k->n : k->k, k->ldb, size, k->b_alignment);
    (void)matrix(&o->bias, &end, 1, k->n, size, 16);
    (void)matrix(&o->aux, &end, k->epilogue == DT_MATMUL_GELU || k->epilogue == DT_MATMUL_GELU_BACKWARD ? k->m : 0, k->n, size, 16);
    size_t flows = end;
    (void)matrix(&o->c, &end, k->m, k->ldc, c_size, k->c_alignment);
    (void)matrix(&o->bias_gradient, &end, k->epilogue >= DT_MATMUL_GELU_BACKWARD ? 1 : 0, k->n, c_size, 16);
    o->step_bytes = end;
    o->copies = (int)(COPIES_BYTES / end);
    o->copies = o->copies < 1 ? 1 : o->copies > COPIES ? COPIES : o->copies;
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

/* The product with its operands in copy number i. */
static struct dt_matmul_args in_copy(const struct trial *t, int i)
{
    const struct operands *o = &t->operands;
    struct dt_matmul_args a = *t->product;
    char *at = o->block + (size_t)(i % o->copies) * o->step_bytes;
    a.a = at + o->a;
    a.b = at + o->b;
    a.c = at + o->c;
    a.bias = a.bias != NULL ? at + o->bias : NULL;
    a.aux = a.aux != NULL ? at + o->aux : NULL;
    a.bias_gradient = a.bias_gradient != NULL ? at + o->bias_gradient : NULL;
    return a;
}

/* False: it was proposed, and refused after all. */
static bool run(struct trial *t, const struct candidate *x, const struct dt_matmul_args *a)
{
    if (x->apart) {
        dt_matmul_parts(&dt_kernels_cuda, t->stream, a);
        return true;
    }
    t->plan->algo = x->found.algo;
    t->plan->workspace_bytes = x->found.workspaceSize;
    return matmul_run(t->cache, t->plan, &t->launch, a) == CUBLAS_STATUS_SUCCESS;
}

/* One turn of all that are not out; their times go to ms[turn]. -1: the device failed. */
static int take_turn(struct trial *t, int turn)
{
    cudaStream_t stream = t->launch.native;
    int ran[PROPOSALS], runs = 0;
    bool begun = false, good = true;
    for (int i = 0; i < t->count && good; i++) {
        if (t->all[i].out) {
            continue;
        }
        struct dt_matmul_args a = in_copy(t, turn + i + (begun ? 0 : t->operands.copies - 1));
        if (!run(t, &t->all[i], &a)) {
            t->all[i].out = true;
            continue;
        }
        if (!begun) { /* that one only fills the stream: on an idle one the first would be charged for the host's work, too */
            begun = true;
            good = cudaEventRecord(t->events[0], stream) == cudaSuccess;
            i--;
            continue;
        }
        ran[runs++] = i;
        good = cudaEventRecord(t->events[runs], stream) == cudaSuccess;
    }
    good = good && (runs == 0 || cudaEventSynchronize(t->events[runs]) == cudaSuccess);
    for (int r = 0; r < runs && good; r++) {
        good = cudaEventElapsedTime(&t->all[ran[r]].ms[turn], t->events[r], t->events[r + 1]) == cudaSuccess;
    }
    return good && !dt_stream_failed(t->stream, NULL) ? 0 : -1;
}

static int compare_floats(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

/* After turn 1. */
static void thin_out(struct candidate *all, int count)
{
    float times[PROPOSALS];
    int n = 0;
    for (int i = 0; i < count; i++) {
        if (!all[i].out) {
            times[n++] = all[i].ms[1];
        }
    }
    if (n == 0) {
        return;
    }
    qsort(times, (size_t)n, sizeof *times, compare_floats);
    for (int i = 1; i < count; i++) { /* the first stays in: it is what the others are compared with */
        all[i].out = all[i].out || all[i].ms[1] > times[0] * 4 / 3 || (n > KEPT && all[i].ms[1] > times[KEPT - 1]);
    }
}

static float median(struct candidate *x)
{
    qsort(x->ms + 2, TURNS - 2, sizeof x->ms[0], compare_floats);
    return x->ms[2 + (TURNS - 2) / 2];
}

/* The place of the fastest, or -1: none of them ran. */
static int fastest(struct candidate *all, int count)
{
    int best = -1;
    float best_ms = 0, first_ms = 0;
    for (int i = 0; i < count; i++) {
        if (all[i].out) {
            continue;
        }
        float ms = median(&all[i]);
        first_ms = i == 0 ? ms : first_ms;
        if (best < 0 || ms < best_ms) {
            best = i;
            best_ms = ms;
        }
    }
    return best > 0 && !all[0].out && best_ms > 0.99F * first_ms ? 0 : best;
}

static void close_events(cudaEvent_t *events)
{
    for (int i = 0; i <= PROPOSALS; i++) {
        if (events[i] != NULL) {
            (void)cudaEventDestroy(events[i]);
        }
    }
}

static void find_candidates(struct trial *t, const struct dt_matmul_key *key)
{
    cublasLtMatmulHeuristicResult_t found[PROPOSALS];
    t->plan = matmul_fits(t->cache, key) ? matmul_plan_describe(t->cache, key) : NULL;
    if (key->epilogue > DT_MATMUL_BIAS) {
        t->all[t->count++].apart = true;
    }
    int count = t->plan != NULL ? matmul_plan_propose(t->cache, t->plan, found, PROPOSALS - t->count) : 0;
    for (int i = 0; i < count; i++) {
        struct candidate *x = &t->all[t->count++];
        x->found = found[i];
        x->out = found[i].state != CUBLAS_STATUS_SUCCESS;
    }
}

static void keep(struct trial *t, const struct dt_matmul_key *key, int best)
{
    struct dt_matmul_algo algo = {0};
    if (!t->all[best].apart) {
        algo.workspace_bytes = (int64_t)t->all[best].found.workspaceSize;
        memcpy(algo.words, &t->all[best].found.algo, sizeof algo.words);
    }
    dt_plan_file_put(t->cache->file, key, &algo);
    dt_log(DT_LOG_INFO, "matmul",
           "(%lld, %lld, %lld), epilogue %d, multiprocessors for others %d: candidate %d of %d, %.4f ms; the first one %.4f ms", (long long)key->m,
           (long long)key->n, (long long)key->k, key->epilogue, (int)key->busy_sms, best, t->count, (double)t->all[best].ms[2 + (TURNS - 2) / 2],
           (double)t->all[0].ms[2 + (TURNS - 2) / 2]);
}

/* Puts the fastest way to compute a product into the file; nothing where the library has none. */
static int measure(struct matmul_cache *c, struct dt_stream *s, const struct dt_matmul_args *product, const struct dt_matmul_key *key,
                   cudaEvent_t *events, int *measured, struct dt_error *err)
{
    struct trial t = {.cache = c, .stream = s, .product = product, .events = events};
    int rc = 0;
    if (!dt_cuda_begin(s, &t.launch)) {
        (void)dt_stream_failed(s, err);
        return -1;
    }
    find_candidates(&t, key);
    if (t.count > 0 && open_operands(s->device, &t.launch, key, &t.operands, err) != 0) {
        dt_log(DT_LOG_WARN, "matmul", "%s; not measured", err->text);
        t.count = 0;
    }
    for (int turn = 0; turn < TURNS && t.count > 0 && rc == 0; turn++) {
        rc = take_turn(&t, turn);
        if (turn == 1 && rc == 0) {
            thin_out(t.all, t.count);
        }
    }
    int best = rc == 0 && t.count > 0 ? fastest(t.all, t.count) : -1;
    if (best >= 0) {
        keep(&t, key, best);
        *measured += 1;
    }
    if (t.operands.block != NULL) {
        (void)cudaStreamSynchronize(t.launch.native);
        dt_device_free(s->device, DT_MEMORY_DEVICE, t.operands.block, t.operands.size_bytes);
    }
    if (t.plan != NULL) {
        matmul_plan_free(c, t.plan);
    }
    if (rc != 0) {
        cudaError_t last = cudaGetLastError();
        struct dt_error why;
        if (!dt_cuda_broken(s, "measuring products", &why)) {
            (void)dt_fail(&why, DT_IO, "measuring products: %s", cudaGetErrorString(last));
        }
        dt_stream_fail(s, why.status, "%s", why.text);
        (void)dt_stream_failed(s, err);
    }
    return rc;
}

/* The first of `each` from `from` on that nothing was chosen for; count: there is none. */
static int next_missing(const struct matmul_cache *c, const struct dt_matmul_args *each, int from, int count)
{
    for (int i = from; i < count; i++) {
        struct dt_matmul_key key = dt_matmul_key_of(&each[i]);
        if ((each[i].epilogue == DT_EPILOGUE_NONE || matmul_epilogue_fits(&each[i])) && matmul_fits(c, &key) &&
            dt_plan_file_find(c->file, &key) == NULL) {
            return i;
        }
    }
    return count;
}

/* With the file locked. */
static int measure_missing(struct matmul_cache *c, struct dt_stream *s, const struct dt_matmul_args *each, int count, void (*tick)(void *context),
                           void *context, int *measured, struct dt_error *err)
{
    cudaEvent_t events[PROPOSALS + 1] = {NULL};
    int rc = 0;
    matmul_cache_forget(c); /* what was made without a choice, and might be timed as a part */
    for (int i = 0; i <= PROPOSALS && rc == 0; i++) {
        rc = cudaEventCreateWithFlags(&events[i], cudaEventDefault) == cudaSuccess ? 0 : dt_fail(err, DT_IO, "measuring products: no events");
    }
    for (int i = next_missing(c, each, 0, count); i < count && rc == 0; i = next_missing(c, each, i + 1, count)) {
        struct dt_matmul_key key = dt_matmul_key_of(&each[i]);
        rc = measure(c, s, &each[i], &key, events, measured, err);
        if (tick != NULL) {
            tick(context);
        }
    }
    close_events(events);
    return rc;
}

static int choose(struct dt_stream *s, const struct dt_matmul_args *each, int count, void (*tick)(void *context), void *context, int *measured,
                  struct dt_error *why, struct dt_error *err)
{
    struct matmul_cache *c = matmul_cache_enter(s->device);
    matmul_cache_leave(); /* products that are measured take the lock themselves; nobody else computes any */
    int rc = 0;
    *measured = 0;
    why->status = DT_OK;
    if (next_missing(c, each, 0, count) < count) {
        if (dt_plan_file_lock(c->file, tick, context, why) == 0) { /* what another process chose meanwhile has been read now */
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

static void tell(struct dt_device *d, const struct dt_matmul_args *each, int count, struct dt_text *out)
{
    struct dt_matmul_key *keys = dt_alloc((size_t)(count + 1) * sizeof *keys);
    for (int i = 0; i < count; i++) {
        keys[i] = dt_matmul_key_of(&each[i]);
    }
    const struct matmul_cache *c = matmul_cache_enter(d);
    dt_plan_file_tell(c->file, keys, (size_t)count, out);
    matmul_cache_leave();
    free(keys);
}

static bool take(struct dt_device *d, const char *text, bool keep)
{
    struct matmul_cache *c = matmul_cache_enter(d);
    struct dt_error err;
    bool taken = dt_plan_file_take(c->file, text);
    if (taken) {
        matmul_cache_forget(c);
        if (keep && dt_plan_file_path(c->file) != NULL && dt_plan_file_add(c->file, &err) != 0) {
            dt_log(DT_LOG_WARN, "matmul", "%s; plans are not kept on this host", err.text);
        }
    }
    matmul_cache_leave();
    return taken;
}

static void none(struct dt_device *d)
{
    dt_cuda_attention_none(d);
    struct matmul_cache *c = matmul_cache_enter(d);
    dt_plan_file_forget(c->file);
    matmul_cache_forget(c);
    matmul_cache_leave();
}

const struct dt_device_plans dt_cuda_plans = {.choose = choose,
                                              .tell = tell,
                                              .take = take,
                                              .none = none,
                                              .attention = dt_cuda_attention_ready,
                                              .attention_backward = dt_cuda_attention_backward_ready,
                                              .choose_attention = dt_cuda_attention_choose,
                                              .tell_attention = dt_cuda_attention_tell,
                                              .take_attention = dt_cuda_attention_take};
