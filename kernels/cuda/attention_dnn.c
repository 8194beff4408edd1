/* Attention by cuDNN: a plan per shape and pass, made when the shape is first seen (a run's first step) and never again. A plan is the engine that the library
 * proposes first among those whose work memory fits; batches that do not fit go by parts.
 *
 * Backward is the graph whose sums have an order: the same job has the same bits each time. It keeps the gradient of the scores, 2 B H T T bytes, so a
 * sequence whose scores do not fit into work memory is left to the other implementations. Log-sum-exp means the same to all of them, so they may take one
 * pass each. DTRUN_ATTENTION=fast asks for the other graph, which adds up dq in no order. */
#include "kernels/cuda/attention.h"

#include "base/log.h"
#include "base/text.h"
#include "kernels/cuda/attention_graph.h"
#include "kernels/cuda/dnn_plan.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { PACKS = 512, ALIGNMENT = 256 /* of work memory */ };

/* What a plan depends on, besides its device. */
struct key {
    int64_t batch, positions, heads, kv_heads, head_size;
    double scale;
    size_t room; /* bytes of work memory */
    bool causal, backward, sums, callers /* its work memory is */;
};

/* The addresses of one execution, by tensor; the first is the work memory. Descriptors of them are kept, because each training step has the same ones. */
struct pack {
    struct pack *next;
    void *addresses[DT_ATTENTION_UIDS];
    void *descriptor;
};

struct plan {
    struct plan *next;
    struct key key;
    bool usable;
    int failed;   /* the library's status where it broke down: nothing is computed then */
    int64_t part; /* sequences at a time; key.batch is a multiple of it */
    struct dt_dnn_graph graph;
    void *config, *executable;
    float scale, hidden, one; /* read by the library when it executes */
    struct pack *packs[PACKS];
    int pack_count;
};

struct cache {
    struct cache *next;
    struct dt_device *device;
    const struct dt_dnn *api; /* null: not here, or it does not work here; that was said */
    void *handle;
    int failed;
    bool said; /* that a shape is refused */
    struct plan *plans;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all caches, and of their handles: a handle has one stream at a time */
static struct cache *caches;

/* ---- packs ---- */

static size_t bucket_of(void *const *addresses)
{
    uint64_t sum = 0;
    for (int i = 0; i < DT_ATTENTION_UIDS; i++) {
        sum = (sum ^ (uint64_t)(uintptr_t)addresses[i] >> 4) * 0x9e3779b97f4a7c15u;
    }
    return (size_t)(sum >> 32) % PACKS;
}

static void drop_packs(const struct dt_dnn *api, struct plan *p)
{
    for (int i = 0; i < PACKS; i++) {
        for (struct pack *k = p->packs[i], *next; k != NULL; k = next) {
            next = k->next;
            dt_dnn_drop(api, k->descriptor);
            free(k);
        }
        p->packs[i] = NULL;
    }
    p->pack_count = 0;
}

/* addresses[uid] of the graph's tensors, null where it has none; addresses[0] of the work memory. The library's status. */
static int find_pack(const struct dt_dnn *api, struct plan *p, void *const *addresses, void **out)
{
    size_t bucket = bucket_of(addresses);
    struct pack *k = p->packs[bucket];
    while (k != NULL && memcmp((const void *)k->addresses, (const void *)addresses, sizeof k->addresses) != 0) {
        k = k->next;
    }
    if (k == NULL) {
        int64_t uids[DT_ATTENTION_UIDS];
        void *named[DT_ATTENTION_UIDS], *descriptor = NULL;
        int64_t count = 0;
        for (int i = 1; i < DT_ATTENTION_UIDS; i++) {
            if (addresses[i] != NULL) {
                uids[count] = i;
                named[count++] = addresses[i];
            }
        }
        int status = dt_dnn_pack(api, count, uids, named, addresses[0], &descriptor);
        if (status != DT_DNN_SUCCESS) {
            return status;
        }
        if (p->pack_count == 4 * PACKS) { /* a caller whose addresses never come back; what was executed needs its pack no more */
            drop_packs(api, p);
        }
        k = dt_alloc(sizeof *k);
        memcpy((void *)k->addresses, (const void *)addresses, sizeof k->addresses);
        k->descriptor = descriptor;
        k->next = p->packs[bucket];
        p->packs[bucket] = k;
        p->pack_count++;
    }
    *out = k->descriptor;
    return DT_DNN_SUCCESS;
}

/* ---- making a plan ---- */

static struct dt_attention_shape shape_of(const struct key *k, int64_t batch)
{
    return (struct dt_attention_shape){batch, k->positions, k->heads, k->kv_heads, k->head_size, k->causal};
}

/* Backward's tensors that are the caller's memory, one after the other at the beginning of the work memory. */
static size_t delta_bytes(const struct key *k, int64_t batch)
{
    return k->backward ? (size_t)(batch * k->heads * k->positions * 4 + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT : 0;
}

static size_t sums_bytes(const struct key *k, int64_t batch)
{
    return k->sums ? (size_t)(batch * k->heads * k->positions * k->head_size * 4 + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT : 0;
}

static size_t own_bytes(const struct key *k, int64_t batch)
{
    return delta_bytes(k, batch) + sums_bytes(k, batch);
}

static size_t expected_bytes(const struct key *k, int64_t batch)
{
    struct dt_attention_shape s = shape_of(k, batch);
    return own_bytes(k, batch) + (k->backward && !k->sums ? dt_attention_backward_bytes(&s) : 0);
}

/* The largest part of the batch, a divisor of it and no more than `most`, whose work should fit; 0: not even one sequence. Each part's log-sum-exp begins
 * at a multiple of 16 bytes. */
static int64_t part_of(const struct key *k, int64_t most)
{
    for (int64_t n = most; n > 0; n--) {
        if (k->batch % n == 0 && expected_bytes(k, n) <= k->room && (n == k->batch || n * k->heads * k->positions % 4 == 0)) {
            return n;
        }
    }
    return 0;
}

static void clear_plan(const struct dt_dnn *api, struct plan *p)
{
    if (api != NULL) {
        drop_packs(api, p);
        dt_dnn_drop(api, p->executable);
        dt_dnn_drop(api, p->config);
        dt_dnn_graph_clear(&p->graph);
    }
    p->executable = p->config = NULL;
}

/* One part size: the first proposal that the library takes and whose work fits. Where it breaks down nothing else is tried: ranks would go on with different
 * engines. */
static bool try_part(const struct cache *c, struct plan *p, int64_t part, struct dt_error *err)
{
    struct dt_attention_shape s = shape_of(&p->key, part);
    struct dt_dnn_place place = {.handle = c->handle};
    void *found[DT_DNN_CANDIDATES] = {NULL};
    int count = 0;
    size_t work = 0, room = p->key.room - own_bytes(&p->key, part);
    dt_dnn_graph_init(&p->graph, c->api);
    if (p->key.backward) {
        dt_attention_backward_graph(&p->graph, &s, p->key.sums);
    } else {
        dt_attention_forward_graph(&p->graph, &s);
    }
    int status = dt_dnn_graph_finish(&p->graph, c->handle, err);
    if (status != DT_DNN_SUCCESS) {
        p->failed = dt_dnn_broke_down(status) ? status : DT_DNN_SUCCESS;
        return false;
    }
    status = dt_dnn_candidates(c->api, &p->graph, &place, found, &count);
    for (int i = 0; i < count && p->executable == NULL && !dt_dnn_broke_down(status); i++) {
        status = dt_dnn_plan(c->api, found[i], &place, &p->executable, &work);
        if (status == DT_DNN_SUCCESS && work > room) {
            dt_dnn_drop(c->api, p->executable);
            p->executable = NULL;
        }
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
    p->part = part;
    return true;
}

/* Has the graph that does not add up an order on this device? On 10.x that depends on the engine's configuration, and not on the graph. */
static bool ordered(int capability)
{
    return capability / 10 != 10;
}

static struct plan *make_plan(struct cache *c, const struct key *key)
{
    struct plan *p = dt_alloc(sizeof *p);
    struct dt_error err = {0};
    p->key = *key;
    p->scale = (float)key->scale;
    p->hidden = -INFINITY;
    p->one = 1.0f;
    int capability = dt_cuda_capability(c->device);
    int64_t part = part_of(key, key->batch);
    if (key->backward && !key->sums && !ordered(capability)) {
        part = 0;
        (void)dt_fail(&err, DT_INVALID, "cuDNN: sums in no order on compute capability %d.%d", capability / 10, capability % 10);
    } else if (part == 0) {
        (void)dt_fail(&err, DT_INVALID, "cuDNN: the scores of a sequence do not fit into %zu MiB of work memory", key->room >> 20);
    }
    for (int tries = 0; part > 0 && !p->usable && p->failed == DT_DNN_SUCCESS && tries < 3; tries++) {
        p->usable = try_part(c, p, part, &err);
        if (!p->usable) {
            clear_plan(c->api, p);
            part = part_of(key, part / 2);
        }
    }
    if (!p->usable && p->failed == DT_DNN_SUCCESS && !c->said) {
        c->said = true;
        dt_log(DT_LOG_WARN, "attention", "%s; %lld positions, %lld heads of size %lld%s run on kernels of our own", err.text,
               (long long)key->positions, (long long)key->heads, (long long)key->head_size, key->backward ? ", backward," : "");
    }
    return p;
}

/* ---- finding it ---- */

static struct cache *open_cache(struct dt_device *d)
{
    struct cache *c = dt_alloc(sizeof *c);
    struct dt_error err = {0};
    c->device = d;
    c->api = dt_dnn_load(&err);
    if (c->api != NULL) {
        int status = c->api->cudnnCreate(&c->handle);
        if (status != DT_DNN_SUCCESS) {
            c->handle = NULL;
        }
        if (dt_dnn_broke_down(status)) {
            c->failed = status;
        } else if (status != DT_DNN_SUCCESS) {
            (void)dt_fail(&err, DT_NOT_FOUND, "cuDNN: cannot be started: %s", c->api->cudnnGetErrorString(status));
            c->api = NULL;
        }
    }
    if (c->api == NULL) {
        dt_log(DT_LOG_WARN, "attention", "%s; attention runs on kernels of our own", err.text);
    }
    c->next = caches;
    caches = c;
    return c;
}

static bool same(const struct key *a, const struct key *b)
{
    return a->batch == b->batch && a->positions == b->positions && a->heads == b->heads && a->kv_heads == b->kv_heads &&
           a->head_size == b->head_size && a->scale == b->scale && a->room == b->room && a->causal == b->causal && a->backward == b->backward &&
           a->sums == b->sums;
}

/* With the lock held; made if it is new. */
static struct plan *plan_of(struct cache *c, const struct key *key)
{
    struct plan *p = c->plans;
    while (p != NULL && !same(&p->key, key)) {
        p = p->next;
    }
    if (p == NULL) {
        p = make_plan(c, key);
        p->next = c->plans;
        c->plans = p;
    }
    return p;
}

static struct cache *cache_of(struct dt_device *d)
{
    struct cache *c = caches;
    while (c != NULL && c->device != d) {
        c = c->next;
    }
    return c != NULL ? c : open_cache(d);
}

void dt_cuda_attention_dnn_close(struct dt_device *d)
{
    (void)pthread_mutex_lock(&lock);
    for (struct cache **at = &caches; *at != NULL;) {
        struct cache *c = *at;
        if (c->device != d) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        for (struct plan *p = c->plans, *next; p != NULL; p = next) {
            next = p->next;
            clear_plan(c->api, p);
            free(p);
        }
        if (c->handle != NULL) {
            (void)c->api->cudnnDestroy(c->handle);
        }
        free(c);
    }
    (void)pthread_mutex_unlock(&lock);
}

/* ---- running it ---- */

static struct key key_of(int64_t batch, int64_t positions, int64_t heads, int64_t kv_heads, int64_t head_size, double scale, bool causal)
{
    struct key k = {.batch = batch, .positions = positions, .heads = heads, .head_size = head_size, .causal = causal};
    k.kv_heads = kv_heads != 0 ? kv_heads : heads;
    k.scale = scale != 0.0 ? scale : 1.0 / sqrt((double)head_size);
    k.room = DT_CUDA_WORK_BYTES;
    return k;
}

static struct key forward_key(const struct dt_attention_args *a)
{
    return key_of(a->batch, a->positions, a->heads, a->kv_heads, a->head_size, a->scale, a->causal);
}

/* The caller's work memory counts where it is larger than a stream's, less what may be lost to alignment wherever it begins: ALIGNMENT - 1 bytes. */
static struct key backward_key(const struct dt_attention_backward_args *a, bool sums)
{
    struct key k = key_of(a->batch, a->positions, a->heads, a->kv_heads, a->head_size, a->scale, a->causal);
    k.backward = true;
    k.sums = sums;
    if (a->work != NULL && a->work_bytes > DT_CUDA_WORK_BYTES + ALIGNMENT - 1) {
        k.room = (a->work_bytes - (ALIGNMENT - 1)) / ALIGNMENT * ALIGNMENT;
        k.callers = true;
    }
    return k;
}

/* What the library has never taken need not be asked. */
static bool can(const struct key *k, enum dt_dtype type)
{
    return type == DT_BF16 && k->positions > 1 && k->head_size % 8 == 0 && k->head_size <= 128 && k->heads % k->kv_heads == 0;
}

static bool aligned(const void *p)
{
    return (uintptr_t)p % 16 == 0;
}

static void *at(const void *base, int64_t bytes)
{
    return (char *)(uintptr_t)base + bytes;
}

static int64_t packed_row(const struct key *k)
{
    return (k->heads + 2 * k->kv_heads) * k->head_size;
}

/* Addresses of q, k, v, or of their gradients, in rows of bf16. */
static void unpack(void **out, const struct key *k, const void *rows, int q, int key, int value)
{
    out[q] = at(rows, 0);
    out[key] = at(rows, k->heads * k->head_size * 2);
    out[value] = at(rows, (k->heads + k->kv_heads) * k->head_size * 2);
}

static int execute(const struct cache *c, struct plan *p, void *const *addresses)
{
    void *pack = NULL;
    int status = find_pack(c->api, p, addresses, &pack);
    return status == DT_DNN_SUCCESS ? c->api->cudnnBackendExecute(c->handle, p->executable, pack) : status;
}

/* Both passes: addresses of the first part, and how many bytes each tensor goes on by per sequence. */
struct job {
    void *addresses[DT_ATTENTION_UIDS];
    int64_t steps[DT_ATTENTION_UIDS];
    void *work;
};

static int run_parts(const struct dt_cuda_launch *l, const struct cache *c, struct plan *p, struct job *j)
{
    int status = c->api->cudnnSetStream(c->handle, l->native);
    j->addresses[0] = at(j->work, (int64_t)own_bytes(&p->key, p->part));
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

static int fail(const struct dt_dnn *api, const struct key *k, int status, struct dt_error *err)
{
    return dt_fail(err, DT_IO, "%s: cuDNN: %s (status %d); DTRUN_ATTENTION=own leaves it out", k->backward ? "attention_backward" : "attention",
                   api->cudnnGetErrorString(status), status);
}

/* With the lock held: the plan for it, null where the library does not compute it. Its status where it broke down. */
static int find(struct cache *c, const struct key *k, struct plan **out)
{
    *out = NULL;
    if (c->failed != DT_DNN_SUCCESS || c->api == NULL) {
        return c->failed;
    }
    struct plan *p = plan_of(c, k);
    *out = p->usable ? p : NULL;
    return p->failed;
}

static bool run(struct dt_stream *s, const struct dt_cuda_launch *l, const struct key *k, struct job *j)
{
    struct plan *p;
    struct dt_error err;
    (void)pthread_mutex_lock(&lock);
    struct cache *c = cache_of(s->device);
    int status = find(c, k, &p);
    if (p != NULL) {
        status = run_parts(l, c, p, j);
    }
    if (status != DT_DNN_SUCCESS) {
        if (!dt_cuda_broken(s, k->backward ? "attention_backward" : "attention", &err)) {
            (void)fail(c->api, k, status, &err);
        }
        dt_stream_fail(s, err.status, "%s", err.text);
    }
    (void)pthread_mutex_unlock(&lock);
    return p != NULL || status != DT_DNN_SUCCESS;
}

static int make_ready(struct dt_device *d, const struct key *k, bool *taken, struct dt_error *err)
{
    struct plan *p;
    (void)pthread_mutex_lock(&lock);
    struct cache *c = cache_of(d);
    int status = find(c, k, &p);
    (void)pthread_mutex_unlock(&lock);
    *taken = p != NULL;
    return status == DT_DNN_SUCCESS ? 0 : fail(c->api, k, status, err);
}

bool dt_cuda_attention_dnn(struct dt_stream *s, const struct dt_cuda_launch *l, const struct dt_attention_args *a)
{
    struct key k = forward_key(a);
    struct job j = {.work = l->work};
    if (!can(&k, a->type) || !aligned(a->qkv) || !aligned(a->out) || !aligned(a->lse)) {
        return false;
    }
    int64_t t = k.positions, row = packed_row(&k) * 2, out_row = k.heads * k.head_size * 2;
    unpack(j.addresses, &k, a->qkv, DT_ATTENTION_Q, DT_ATTENTION_K, DT_ATTENTION_V);
    j.addresses[DT_ATTENTION_OUT] = a->out;
    j.addresses[DT_ATTENTION_LSE] = a->lse;
    j.steps[DT_ATTENTION_Q] = j.steps[DT_ATTENTION_K] = j.steps[DT_ATTENTION_V] = t * row;
    j.steps[DT_ATTENTION_OUT] = t * out_row;
    j.steps[DT_ATTENTION_LSE] = k.heads * t * 4;
    return run(s, l, &k, &j);
}

bool dt_cuda_attention_backward_dnn(struct dt_stream *s, const struct dt_cuda_launch *l, const struct dt_attention_backward_args *a, bool sums)
{
    struct key k = backward_key(a, sums);
    struct job j = {.work = k.callers ? at(a->work, (int64_t)(-(uintptr_t)a->work % ALIGNMENT)) : l->work};
    if (!can(&k, a->type) || !aligned(a->qkv) || !aligned(a->dqkv) || !aligned(a->out) || !aligned(a->dout) || !aligned(a->lse)) {
        return false;
    }
    int64_t t = k.positions, row = packed_row(&k) * 2, out_row = k.heads * k.head_size * 2;
    unpack(j.addresses, &k, a->qkv, DT_ATTENTION_Q, DT_ATTENTION_K, DT_ATTENTION_V);
    unpack(j.addresses, &k, a->dqkv, DT_ATTENTION_DQ, DT_ATTENTION_DK, DT_ATTENTION_DV);
    j.addresses[DT_ATTENTION_OUT] = at(a->out, 0);
    j.addresses[DT_ATTENTION_DOUT] = at(a->dout, 0);
    j.addresses[DT_ATTENTION_LSE] = at(a->lse, 0);
    for (int i = DT_ATTENTION_DQ; i <= DT_ATTENTION_DV; i++) {
        j.steps[i] = t * row;
    }
    j.steps[DT_ATTENTION_Q] = j.steps[DT_ATTENTION_K] = j.steps[DT_ATTENTION_V] = t * row;
    j.steps[DT_ATTENTION_OUT] = j.steps[DT_ATTENTION_DOUT] = t * out_row;
    j.steps[DT_ATTENTION_LSE] = k.heads * t * 4;
    return run(s, l, &k, &j);
}

int dt_cuda_attention_dnn_ready(struct dt_device *d, const struct dt_attention_args *a, bool *taken, struct dt_error *err)
{
    struct key k = forward_key(a);
    *taken = false;
    return can(&k, a->type) ? make_ready(d, &k, taken, err) : 0;
}

int dt_cuda_attention_backward_dnn_ready(struct dt_device *d, const struct dt_attention_backward_args *a, bool sums, bool *taken,
                                         struct dt_error *err)
{
    struct key k = backward_key(a, sums);
    *taken = false;
    return can(&k, a->type) ? make_ready(d, &k, taken, err) : 0;
}
