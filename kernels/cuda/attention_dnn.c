/* Attention by cuDNN: one plan per shape and pass, made when the shape first occurs, before a run's
 * first step. A plan uses the engine that the plan file names (attention_tune.c measures it),
 * otherwise the library's first proposal whose work memory fits. Where the file names kernels of our
 * own there is no plan. A batch that does not fit is computed by parts.
 *
 * Backward uses the graph whose sums have a fixed order, so a job has the same bits each time. That
 * graph keeps the gradient of the scores, 2 B H T T bytes. If the scores of one sequence do not fit
 * the work memory, another implementation computes it. All implementations use the same
 * log-sum-exp, so forward and backward may differ in theirs. DT_ATTENTION_FAST also allows the other
 * graph, which adds up dq in no order. */
#include "kernels/attention.h"
#include "kernels/cuda/attention_plan.h"

#include "base/log.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = ATTENTION_ALIGNMENT };
_Static_assert((int)DT_ATTENTION_UIDS <= (int)DT_DNN_UIDS_MOST, "a pack has room for all");

/* ---- making a plan ---- */

static struct dt_attention_graph graph_of(const struct attention_key *k, int64_t batch)
{
    return (struct dt_attention_graph){batch, k->positions, k->heads, k->kv_heads, k->head_size, k->causal, k->f16};
}

/* Sizes of backward's tensors whose memory we provide. They lie one after the other at the
 * beginning of the work memory. */
static size_t delta_bytes(const struct attention_key *k, int64_t batch)
{
    return k->backward ? (size_t)(batch * k->heads * k->positions * 4 + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT : 0;
}

static size_t sums_bytes(const struct attention_key *k, int64_t batch)
{
    return k->sums
               ? (size_t)(batch * k->heads * k->positions * k->head_size * 4 + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT
               : 0;
}

size_t attention_own_bytes(const struct attention_key *k, int64_t batch)
{
    return delta_bytes(k, batch) + sums_bytes(k, batch);
}

static size_t expected_bytes(const struct attention_key *k, int64_t batch)
{
    struct dt_attention_graph s = graph_of(k, batch);
    return attention_own_bytes(k, batch) + (k->backward && !k->sums ? dt_attention_backward_bytes(&s) : 0);
}

/* True if a part of n sequences divides the batch and its work memory should fit. Each part's
 * log-sum-exp begins at a multiple of 16 bytes. */
static bool part_fits(const struct attention_key *k, int64_t n)
{
    return n > 0 && k->batch % n == 0 && expected_bytes(k, n) <= (size_t)k->room &&
           (n == k->batch || n * k->heads * k->positions % 4 == 0);
}

/* True if, on this device, the graph that does not add up has a fixed order. On 10.x that depends
 * on the engine's configuration, not on the graph. */
static bool ordered(int capability)
{
    return capability / 10 != 10;
}

int64_t attention_part(const struct dt_dnn_cache *c, const struct attention_key *k, int64_t most)
{
    int64_t n = k->backward && !k->sums && !ordered(dt_cuda_capability(c->device)) ? 0 : most;
    while (n > 0 && !part_fits(k, n)) {
        n--;
    }
    return n;
}

void attention_plan_clear(const struct dt_dnn *api, struct attention_plan *p)
{
    if (api != NULL) {
        dt_dnn_packs_drop(api, &p->packs);
        dt_dnn_drop(api, p->executable);
        dt_dnn_drop(api, p->config);
        dt_dnn_graph_clear(&p->graph);
    }
    p->executable = p->config = NULL;
}

int attention_plan_begin(const struct dt_dnn_cache *c, struct attention_plan *p, const struct attention_key *k,
                         int64_t part, struct dt_error *err)
{
    struct dt_attention_graph s = graph_of(k, part);
    p->key = *k;
    p->scale = (float)k->scale;
    p->hidden = -INFINITY;
    p->one = 1.0f;
    p->part = part;
    dt_dnn_graph_init(&p->graph, c->api);
    if (k->backward) {
        dt_attention_backward_graph(&p->graph, &s, k->sums);
    } else {
        dt_attention_forward_graph(&p->graph, &s);
    }
    return dt_dnn_graph_finish(&p->graph, c->handle, err);
}

/* Makes the plan of a configuration. p->executable stays null if it needs more work memory than
 * there is. Returns the library's status. */
static int make_executable(const struct dt_dnn_cache *c, struct attention_plan *p, void *config)
{
    struct dt_dnn_place place = {.handle = c->handle};
    size_t work = 0;
    int status = dt_dnn_plan(c->api, config, &place, &p->executable, &work);
    if (status == DT_DNN_SUCCESS && work > (size_t)p->key.room - attention_own_bytes(&p->key, p->part)) {
        dt_dnn_drop(c->api, p->executable);
        p->executable = NULL;
    }
    return status;
}

/* Makes the plan that the file names, if the library still accepts it. */
static bool try_known(const struct dt_dnn_cache *c, struct attention_plan *p, const struct attention_choice *known)
{
    struct dt_dnn_place place = {.handle = c->handle};
    struct dt_error err;
    void *config = NULL; /* owned by the graph */
    struct attention_key k = p->wanted;
    k.sums = known->sums;
    int status = known->sums <= p->wanted.sums && part_fits(&k, known->part)
                     ? attention_plan_begin(c, p, &k, known->part, &err)
                     : DT_DNN_NOT_SUPPORTED;
    if (status == DT_DNN_SUCCESS) {
        status = dt_dnn_config_make(&p->graph, &place, &known->config, &config);
    }
    if (status == DT_DNN_SUCCESS) {
        status = make_executable(c, p, config);
    }
    if (p->executable == NULL) {
        p->failed = dt_dnn_broke_down(status) ? status : DT_DNN_SUCCESS;
        dt_log(DT_LOG_WARN, "attention",
               "cuDNN refuses the engine that was measured for %lld x %lld positions, %lld heads of size %lld%s; its "
               "first proposal is taken",
               (long long)p->wanted.batch, (long long)p->wanted.positions, (long long)p->wanted.heads,
               (long long)p->wanted.head_size, p->wanted.backward ? ", backward" : "");
    }
    return p->executable != NULL;
}

/* Tries one part size: takes the first proposal that the library accepts and whose work memory
 * fits. If the library breaks down, stop: with other proposals the ranks would use different
 * engines. */
static bool try_part(const struct dt_dnn_cache *c, struct attention_plan *p, int64_t part, struct dt_error *err)
{
    struct dt_dnn_place place = {.handle = c->handle};
    void *found[DT_DNN_CANDIDATES] = {NULL};
    int count = 0, status = attention_plan_begin(c, p, &p->key, part, err);
    if (status != DT_DNN_SUCCESS) {
        p->failed = dt_dnn_broke_down(status) ? status : DT_DNN_SUCCESS;
        return false;
    }
    status = dt_dnn_candidates(c->api, &p->graph, &place, found, &count);
    for (int i = 0; i < count && p->executable == NULL && !dt_dnn_broke_down(status); i++) {
        status = make_executable(c, p, found[i]);
        if (p->executable != NULL) {
            p->config = found[i];
            found[i] = NULL;
        }
    }
    for (int i = 0; i < count; i++) {
        dt_dnn_drop(c->api, found[i]);
    }
    if (p->executable == NULL) {
        p->failed = dt_dnn_broke_down(status) ? status : DT_DNN_SUCCESS;
        const char *missing = count == 0 ? dt_dnn_compiler_missing() : NULL;
        (void)dt_fail(err, DT_INVALID, "cuDNN: %s%s%s",
                      missing != NULL            ? "has no engine without NVRTC, and "
                      : count == 0               ? "has no engine for it"
                      : status != DT_DNN_SUCCESS ? c->api->cudnnGetErrorString(status)
                                                 : "wants more work memory than there is",
                      missing != NULL ? missing : "", missing != NULL ? " is not here" : "");
        return false;
    }
    return true;
}

/* Makes a plan from the library's proposals. */
static void propose(const struct dt_dnn_cache *c, struct attention_plan *p, struct dt_error *err)
{
    int capability = dt_cuda_capability(c->device);
    int64_t part = attention_part(c, &p->key, p->key.batch);
    if (part == 0 && !ordered(capability) && p->key.backward && !p->key.sums) {
        (void)dt_fail(err, DT_INVALID, "cuDNN: sums in no order on compute capability %d.%d", capability / 10,
                      capability % 10);
    } else if (part == 0) {
        (void)dt_fail(err, DT_INVALID, "cuDNN: the scores of a sequence do not fit into %lld MiB of work memory",
                      (long long)p->key.room >> 20);
    }
    for (int tries = 0; part > 0 && !p->usable && p->failed == DT_DNN_SUCCESS && tries < 3; tries++) {
        p->usable = try_part(c, p, part, err);
        if (!p->usable) {
            attention_plan_clear(c->api, p);
            part = attention_part(c, &p->key, part / 2);
        }
    }
}

static struct attention_plan *make_plan(struct dt_dnn_cache *c, const struct attention_key *key)
{
    struct attention_plan *p = dt_alloc(sizeof *p);
    const struct attention_choice *known = dt_plan_file_find(c->file, key);
    struct dt_error err = {0};
    p->wanted = *key;
    if (known != NULL && known->part == 0 && key->own) {
        return p;
    }
    if (known != NULL) {
        p->usable = try_known(c, p, known);
        if (!p->usable) {
            attention_plan_clear(c->api, p);
        }
    }
    if (!p->usable && p->failed == DT_DNN_SUCCESS) {
        p->key = *key;
        propose(c, p, &err);
    }
    if (!p->usable && p->failed == DT_DNN_SUCCESS && !c->said) {
        c->said = true;
        dt_log(DT_LOG_WARN, "attention", "%s; %lld positions, %lld heads of size %lld%s run on kernels of our own",
               err.text, (long long)key->positions, (long long)key->heads, (long long)key->head_size,
               key->backward ? ", backward," : "");
    }
    return p;
}

/* ---- finding a plan ---- */

/* Finds the plan of a shape, or makes it. Call it with the lock held. */
static struct attention_plan *plan_of(struct dt_dnn_cache *c, const struct attention_key *key)
{
    struct attention_plan *p = c->plans;
    while (p != NULL && memcmp(&p->wanted, key, sizeof *key) != 0) {
        p = p->next;
    }
    if (p == NULL) {
        p = make_plan(c, key);
        p->next = c->plans;
        c->plans = p;
    }
    return p;
}

static void *drop_plan(const struct dt_dnn *api, void *plan)
{
    struct attention_plan *p = plan, *next = p->next;
    attention_plan_clear(api, p);
    free(p);
    return next;
}

struct dt_dnn_caches attention_caches = {.name = "attention",
                                         .runs = "attention runs",
                                         .kind = &attention_plans,
                                         .drop = drop_plan,
                                         .lock = PTHREAD_MUTEX_INITIALIZER};

void dt_cuda_attention_dnn_close(struct dt_device *d)
{
    dt_dnn_cache_close(&attention_caches, d);
}

/* ---- running a plan ---- */

static struct attention_key key_of(const struct dt_attention_shape *shape, enum dt_attention_way way)
{
    const struct dt_attention_shape s = dt_attention_filled(shape);
    return (struct attention_key){.batch = s.batch,
                                  .positions = s.keys,
                                  .heads = s.heads,
                                  .kv_heads = s.kv_heads,
                                  .head_size = s.head_size,
                                  .room = DT_CUDA_WORK_BYTES,
                                  .causal = s.causal,
                                  .own = way != DT_ATTENTION_CUDNN && dt_cuda_attention_flash_can(shape),
                                  .f16 = s.type == DT_F16,
                                  .scale = s.scale};
}

struct attention_key attention_forward_key(const struct dt_attention_args *a, enum dt_attention_way way)
{
    return key_of(&a->shape, way);
}

/* The caller's work memory is used if it is larger than a stream's. Alignment may cost ALIGNMENT -
 * 1 bytes of it. */
struct attention_key attention_backward_key(const struct dt_attention_backward_args *a, enum dt_attention_way way,
                                            bool *callers)
{
    struct attention_key k = key_of(&a->shape, way);
    k.backward = true;
    k.sums = way == DT_ATTENTION_FAST;
    *callers = a->work != NULL && a->work_bytes > DT_CUDA_WORK_BYTES + ALIGNMENT - 1;
    if (*callers) {
        k.room = (int64_t)((a->work_bytes - (ALIGNMENT - 1)) / ALIGNMENT * ALIGNMENT);
    }
    return k;
}

bool attention_can(const struct dt_attention_shape *shape)
{
    const struct dt_attention_shape s = dt_attention_filled(shape);
    int64_t row = (s.heads + 2 * s.kv_heads) * s.head_size;
    return dt_dtype_half(s.type) && s.keys > 1 && s.head_size % 8 == 0 && s.head_size <= 128 &&
           s.heads % s.kv_heads == 0 && dt_attention_is_simple(&s) && s.key_capacity == s.keys && s.q_stride == row &&
           s.kv_stride == row && s.out_stride == s.heads * s.head_size;
}

static bool aligned(void *const *addresses)
{
    uintptr_t bits = 0;
    for (int i = 0; i < DT_ATTENTION_UIDS; i++) {
        bits |= (uintptr_t)addresses[i];
    }
    return bits % 16 == 0;
}

static void *at(const void *base, int64_t bytes)
{
    return (char *)(uintptr_t)base + bytes;
}

static int64_t packed_row(const struct attention_key *k)
{
    return (k->heads + 2 * k->kv_heads) * k->head_size;
}

static int execute(const struct dt_dnn_cache *c, struct attention_plan *p, void *const *addresses)
{
    void *pack = NULL;
    int status = dt_dnn_packs_find(c->api, &p->packs, addresses, DT_ATTENTION_UIDS, &pack);
    return status == DT_DNN_SUCCESS ? c->api->cudnnBackendExecute(c->handle, p->executable, pack) : status;
}

int attention_plan_run(const struct dt_cuda_launch *l, const struct dt_dnn_cache *c, struct attention_plan *p,
                       struct attention_job *j)
{
    int status = c->api->cudnnSetStream(c->handle, l->native);
    j->addresses[0] = at(j->work, (int64_t)attention_own_bytes(&p->key, p->part));
    if (p->key.backward) {
        j->addresses[DT_ATTENTION_ONE] = &p->one;
        j->addresses[DT_ATTENTION_DELTA] = j->work;
        j->addresses[DT_ATTENTION_SUMS] = p->key.sums ? at(j->work, (int64_t)delta_bytes(&p->key, p->part)) : NULL;
    }
    j->addresses[DT_ATTENTION_SCALE] = &p->scale;
    j->addresses[DT_ATTENTION_HIDDEN] = p->key.causal ? &p->hidden : NULL;
    for (int64_t b = 0; b < p->key.batch && status == DT_DNN_SUCCESS; b += p->part) {
        status = execute(c, p, j->addresses);
        for (int i = 0; i < DT_ATTENTION_UIDS; i++) {
            j->addresses[i] = j->steps[i] != 0 ? at(j->addresses[i], p->part * j->steps[i]) : j->addresses[i];
        }
    }
    return status;
}

static int fail(const struct dt_dnn *api, const struct attention_key *k, int status, struct dt_error *err)
{
    return dt_fail(err, DT_IO, "%s: cuDNN: %s (status %d); DTRUN_ATTENTION=own leaves it out",
                   k->backward ? "attention_backward" : "attention", api->cudnnGetErrorString(status), status);
}

/* Call it with the lock held. *out: the plan, or null if the library does not compute this pass.
 * Returns the library's status, if it broke down. */
static int find(struct dt_dnn_cache *c, const struct attention_key *k, struct attention_plan **out)
{
    *out = NULL;
    if (c->failed != DT_DNN_SUCCESS || c->api == NULL) {
        return c->failed;
    }
    struct attention_plan *p = plan_of(c, k);
    *out = p->usable ? p : NULL;
    return p->failed;
}

static bool run(struct dt_stream *s, const struct dt_cuda_launch *l, const struct attention_key *k,
                struct attention_job *j)
{
    struct attention_plan *p;
    struct dt_error err;
    struct dt_dnn_cache *c = dt_dnn_cache_enter(&attention_caches, s->device);
    int status = find(c, k, &p);
    if (p != NULL) {
        status = attention_plan_run(l, c, p, j);
    }
    if (status != DT_DNN_SUCCESS) {
        if (!dt_cuda_broken(s, k->backward ? "attention_backward" : "attention", &err)) {
            (void)fail(c->api, k, status, &err);
        }
        dt_stream_fail(s, err.status, "%s", err.text);
    }
    dt_dnn_cache_leave(&attention_caches);
    return p != NULL || status != DT_DNN_SUCCESS;
}

static int make_ready(struct dt_device *d, const struct attention_key *k, bool *taken, struct dt_error *err)
{
    struct attention_plan *p;
    struct dt_dnn_cache *c = dt_dnn_cache_enter(&attention_caches, d);
    int status = find(c, k, &p);
    dt_dnn_cache_leave(&attention_caches);
    *taken = p != NULL;
    return status == DT_DNN_SUCCESS ? 0 : fail(c->api, k, status, err);
}

bool attention_forward_job(const struct attention_key *k, const struct dt_attention_args *a, struct attention_job *out)
{
    int64_t t = k->positions, row = packed_row(k) * 2, out_row = k->heads * k->head_size * 2;
    *out = (struct attention_job){.work = NULL};
    out->addresses[DT_ATTENTION_Q] = at(a->q, 0);
    out->addresses[DT_ATTENTION_K] = at(a->k, 0);
    out->addresses[DT_ATTENTION_V] = at(a->v, 0);
    out->addresses[DT_ATTENTION_OUT] = a->out;
    out->addresses[DT_ATTENTION_LSE] = a->lse;
    out->steps[DT_ATTENTION_Q] = out->steps[DT_ATTENTION_K] = out->steps[DT_ATTENTION_V] = t * row;
    out->steps[DT_ATTENTION_OUT] = t * out_row;
    out->steps[DT_ATTENTION_LSE] = k->heads * t * 4;
    return a->lse != NULL && aligned(out->addresses);
}

bool attention_backward_job(const struct attention_key *k, const struct dt_attention_backward_args *a,
                            struct attention_job *out)
{
    int64_t t = k->positions, row = packed_row(k) * 2, out_row = k->heads * k->head_size * 2;
    *out = (struct attention_job){.work = NULL};
    out->addresses[DT_ATTENTION_Q] = at(a->q, 0);
    out->addresses[DT_ATTENTION_K] = at(a->k, 0);
    out->addresses[DT_ATTENTION_V] = at(a->v, 0);
    out->addresses[DT_ATTENTION_DQ] = a->dq;
    out->addresses[DT_ATTENTION_DK] = a->dk;
    out->addresses[DT_ATTENTION_DV] = a->dv;
    out->addresses[DT_ATTENTION_OUT] = at(a->out, 0);
    out->addresses[DT_ATTENTION_DOUT] = at(a->dout, 0);
    out->addresses[DT_ATTENTION_LSE] = at(a->lse, 0);
    for (int i = DT_ATTENTION_DQ; i <= DT_ATTENTION_DV; i++) {
        out->steps[i] = t * row;
    }
    out->steps[DT_ATTENTION_Q] = out->steps[DT_ATTENTION_K] = out->steps[DT_ATTENTION_V] = t * row;
    out->steps[DT_ATTENTION_OUT] = out->steps[DT_ATTENTION_DOUT] = t * out_row;
    out->steps[DT_ATTENTION_LSE] = k->heads * t * 4;
    return aligned(out->addresses);
}

bool dt_cuda_attention_dnn(struct dt_stream *s, const struct dt_cuda_launch *l, const struct dt_attention_args *a,
                           enum dt_attention_way way)
{
    struct attention_key k = attention_forward_key(a, way);
    struct attention_job j;
    if (!attention_can(&a->shape) || !attention_forward_job(&k, a, &j)) {
        return false;
    }
    j.work = l->work;
    return run(s, l, &k, &j);
}

bool dt_cuda_attention_backward_dnn(struct dt_stream *s, const struct dt_cuda_launch *l,
                                    const struct dt_attention_backward_args *a, enum dt_attention_way way)
{
    bool callers;
    struct attention_key k = attention_backward_key(a, way, &callers);
    struct attention_job j;
    if (!attention_can(&a->shape) || !attention_backward_job(&k, a, &j)) {
        return false;
    }
    j.work = callers ? at(a->work, (int64_t)(-(uintptr_t)a->work % ALIGNMENT)) : l->work;
    return run(s, l, &k, &j);
}

int dt_cuda_attention_dnn_ready(struct dt_device *d, const struct dt_attention_args *a, enum dt_attention_way way,
                                bool *taken, struct dt_error *err)
{
    struct attention_key k = attention_forward_key(a, way);
    *taken = false;
    return attention_can(&a->shape) ? make_ready(d, &k, taken, err) : 0;
}

int dt_cuda_attention_backward_dnn_ready(struct dt_device *d, const struct dt_attention_backward_args *a,
                                         enum dt_attention_way way, bool *taken, struct dt_error *err)
{
    bool callers;
    struct attention_key k = attention_backward_key(a, way, &callers);
    *taken = false;
    return attention_can(&a->shape) ? make_ready(d, &k, taken, err) : 0;
}
