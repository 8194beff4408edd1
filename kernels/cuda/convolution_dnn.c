/* Convolutions by cuDNN: one plan per shape and pass, made before a run's first step or when the shape first
 * occurs. A plan uses the engine that the plan file names (convolution_tune.c measures it), otherwise the
 * first of the library's proposals that is allowed and whose work memory fits. Where the file names kernels
 * of our own, or no proposal is left, there is no plan.
 *
 * Allowed are engines that sum in F32, of F32 not rounded to less than TF32 and to that only with `tf32`, and
 * in an order, unless DT_CONVOLUTION_FAST says otherwise. Pixels of F32 for a computation in 16 bits are cast
 * first. Gradients of weights that are added to what was there are made in work memory, by the plan that also
 * overwrites them: so their bits are the same. Where they are F32 and weights are not, no engine makes them. */
#include "kernels/convolution.h"
#include "kernels/cuda/convolution_plan.h"

#include "base/log.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = CONVOLUTION_ALIGNMENT };
_Static_assert(sizeof(struct convolution_key) == 19 * sizeof(int64_t), "compared as bytes");

/* ---- a call ---- */

int convolution_count(const struct dt_convolution_list *all)
{
    return all->forward_count + all->input_count + all->weights_count;
}

struct convolution_call convolution_at(const struct dt_convolution_list *all, int i)
{
    struct convolution_call c = {.pass = DT_DNN_FORWARD};
    if (i < all->forward_count) {
        c.of.forward = all->forward[i];
    } else if (i < all->forward_count + all->input_count) {
        c.pass = DT_DNN_DATA;
        c.of.data = all->input[i - all->forward_count];
    } else {
        c.pass = DT_DNN_FILTER;
        c.of.filter = all->weights[i - all->forward_count - all->input_count];
    }
    return c;
}

const struct dt_windows *convolution_windows(const struct convolution_call *c)
{
    return c->pass == DT_DNN_FORWARD ? &c->of.forward.windows
           : c->pass == DT_DNN_DATA  ? &c->of.data.windows
                                     : &c->of.filter.windows;
}

const char *convolution_name(const struct convolution_key *k)
{
    static const char *const names[] = {"convolution", "convolution_input", "convolution_weights"};
    return names[k->pass];
}

int64_t convolution_pixels(const struct convolution_key *k)
{
    return k->batch * k->height * k->width * k->channels;
}

int64_t convolution_weights(const struct convolution_key *k)
{
    return k->out * k->channels * k->size * k->size;
}

struct convolution_key convolution_key_of(const struct dt_device *d, const struct convolution_call *c)
{
    const struct dt_windows *w = convolution_windows(c);
    enum dt_convolution_way way = dt_cuda_convolution_way(d);
    struct convolution_key k = {.pass = c->pass,
                                .batch = w->batch,
                                .height = w->height,
                                .width = w->width,
                                .channels = w->channels,
                                .out_height = w->out_height,
                                .out_width = w->out_width,
                                .size = w->size,
                                .stride = w->stride,
                                .padding = w->padding,
                                .room = DT_CUDA_WORK_BYTES,
                                .sums = way == DT_CONVOLUTION_FAST,
                                .own = way != DT_CONVOLUTION_CUDNN};
    if (c->pass == DT_DNN_FORWARD) {
        const struct dt_convolution_args *a = &c->of.forward;
        k.out = a->out;
        k.type = a->type;
        k.x_type = a->x_type;
        k.planar = a->planar;
    } else if (c->pass == DT_DNN_DATA) {
        const struct dt_convolution_input_args *a = &c->of.data;
        k.out = a->out;
        k.type = k.x_type = a->type;
        k.adds = a->accumulate;
    } else {
        const struct dt_convolution_weights_args *a = &c->of.filter;
        k.out = a->out;
        k.type = a->type;
        k.x_type = a->x_type;
        k.planar = a->planar;
    }
    k.tf32 = k.type == DT_F32 && d->options.tf32;
    /* the caller's work memory is used if it is larger than a stream's; aligning it may cost ALIGNMENT - 1
     * bytes */
    int64_t bytes = dt_convolution_work(w, k.out, k.planar != 0, (enum dt_dtype)k.type, true);
    if (bytes > (int64_t)DT_CUDA_WORK_BYTES + ALIGNMENT - 1) {
        k.room = (bytes - (ALIGNMENT - 1)) / ALIGNMENT * ALIGNMENT;
    }
    return k;
}

bool convolution_can(const struct convolution_call *c)
{
    const struct dt_windows *w = convolution_windows(c);
    bool planar =
        (c->pass == DT_DNN_FORWARD && c->of.forward.planar) || (c->pass == DT_DNN_FILTER && c->of.filter.planar);
    bool wide = c->pass == DT_DNN_FILTER && c->of.filter.grad_type != c->of.filter.type;
    return !wide && w->batch > 0 && w->out_height > 0 && w->out_width > 0 && !dt_convolution_is_plain(w, planar);
}

bool convolution_allows(const struct convolution_key *k, unsigned notes)
{
    unsigned refused = 1u << DT_DNN_REDUCED_PRECISION_REDUCTION;
    refused |= k->sums ? 0 : 1u << DT_DNN_NONDETERMINISTIC;
    if (k->type == DT_F32) {
        refused |= 1u << DT_DNN_DOWN_CONVERT_INPUTS | (k->tf32 ? 0 : 1u << DT_DNN_TENSOR_CORE);
    }
    return (notes & refused) == 0;
}

/* ---- work memory ---- */

static size_t rounded(int64_t bytes)
{
    return ((size_t)bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Bytes of the images in the type of the computation, if they have another. */
static size_t cast_bytes(const struct convolution_key *k)
{
    return k->x_type != k->type ? rounded(convolution_pixels(k) * (int64_t)dt_dtype_size((enum dt_dtype)k->type)) : 0;
}

/* Bytes of a gradient that may be made apart. */
static size_t apart_bytes(const struct convolution_key *k)
{
    return k->pass == DT_DNN_FILTER ? rounded(convolution_weights(k) * (int64_t)dt_dtype_size((enum dt_dtype)k->type))
                                    : 0;
}

size_t convolution_own_bytes(const struct convolution_key *k)
{
    return cast_bytes(k) + apart_bytes(k);
}

/* ---- making a plan ---- */

static enum dt_dnn_type dnn_type(int64_t type)
{
    return type == DT_BF16 ? DT_DNN_BFLOAT16 : type == DT_F16 ? DT_DNN_HALF : DT_DNN_FLOAT;
}

static struct dt_convolution_graph graph_of(const struct convolution_key *k)
{
    return (struct dt_convolution_graph){.windows = {k->batch, k->height, k->width, k->channels, k->out_height,
                                                     k->out_width, k->size, k->stride, k->padding},
                                         .out = k->out,
                                         .pass = (enum dt_dnn_pass)k->pass,
                                         .planar = k->planar != 0,
                                         .adds = k->adds != 0,
                                         .type = dnn_type(k->type)};
}

void convolution_plan_clear(const struct dt_dnn *api, struct convolution_plan *p)
{
    if (api != NULL) {
        dt_dnn_packs_drop(api, &p->packs);
        dt_dnn_drop(api, p->executable);
        dt_dnn_drop(api, p->config);
        dt_dnn_graph_clear(&p->graph);
    }
    p->executable = p->config = NULL;
}

int convolution_plan_begin(const struct dt_dnn_cache *c, struct convolution_plan *p, const struct convolution_key *k,
                           struct dt_error *err)
{
    const struct dt_convolution_graph graph = graph_of(k);
    p->key = *k;
    dt_dnn_graph_init(&p->graph, c->api);
    dt_convolution_graph(&p->graph, &graph);
    return dt_dnn_graph_finish(&p->graph, c->handle, err);
}

/* Makes the plan of a configuration. p->executable stays null if it needs more work memory than there is.
 * Returns the library's status. */
static int make_executable(const struct dt_dnn_cache *c, struct convolution_plan *p, void *config)
{
    const struct dt_dnn_place place = {.handle = c->handle};
    size_t work = 0;
    int status = dt_dnn_plan(c->api, config, &place, &p->executable, &work);
    if (status == DT_DNN_SUCCESS && work + convolution_own_bytes(&p->key) > (size_t)p->key.room) {
        dt_dnn_drop(c->api, p->executable);
        p->executable = NULL;
    }
    return status;
}

/* The shape in words, which the caller frees. */
static char *words_of(const struct convolution_key *k)
{
    return dt_format("%lld images of %lld x %lld x %lld, %lld windows of %lld x %lld", (long long)k->batch,
                     (long long)k->height, (long long)k->width, (long long)k->channels, (long long)k->out,
                     (long long)k->size, (long long)k->size);
}

/* Makes the plan that the file names, if the library still accepts it. */
static void try_known(const struct dt_dnn_cache *c, struct convolution_plan *p, const struct convolution_choice *known)
{
    const struct dt_dnn_place place = {.handle = c->handle};
    struct dt_error err;
    void *config = NULL; /* owned by the graph */
    struct convolution_key k = p->key;
    int status = convolution_plan_begin(c, p, &k, &err);
    if (status == DT_DNN_SUCCESS) {
        status = dt_dnn_config_make(&p->graph, &place, &known->config, &config);
    }
    if (status == DT_DNN_SUCCESS) {
        status = make_executable(c, p, config);
    }
    p->usable = p->executable != NULL;
    if (!p->usable) {
        char *words = words_of(&k);
        p->failed = dt_dnn_broke_down(status) ? status : DT_DNN_SUCCESS;
        convolution_plan_clear(c->api, p);
        dt_log(DT_LOG_WARN, "convolution",
               "cuDNN refuses the engine that was measured for %s, %s; its first proposal is taken",
               convolution_name(&k), words);
        free(words);
    }
}

/* Takes the first proposal of a heuristic that is allowed, that the library accepts and whose work memory fits.
 * If the library breaks down, stop: with other proposals the ranks would use different engines. Returns the
 * library's last status. */
static int try_proposals(const struct dt_dnn_cache *c, struct convolution_plan *p, enum dt_dnn_heuristic how)
{
    const struct dt_dnn_place place = {.handle = c->handle};
    void *found[DT_DNN_CANDIDATES] = {NULL};
    int count = 0, status = dt_dnn_candidates_by(c->api, &p->graph, &place, how, found, &count);
    for (int i = 0; i < count && p->executable == NULL && !dt_dnn_broke_down(status); i++) {
        struct dt_dnn_config numbers;
        unsigned notes;
        status = dt_dnn_config_read(c->api, found[i], &numbers, &notes);
        if (status == DT_DNN_SUCCESS && convolution_allows(&p->key, notes)) {
            status = make_executable(c, p, found[i]);
        }
        if (p->executable != NULL) {
            p->config = found[i];
            found[i] = NULL;
        }
    }
    for (int i = 0; i < count; i++) {
        dt_dnn_drop(c->api, found[i]);
    }
    return status;
}

/* Makes a plan from the library's proposals. */
static void propose(const struct dt_dnn_cache *c, struct convolution_plan *p, struct dt_error *err)
{
    struct convolution_key k = p->key;
    int status = convolution_plan_begin(c, p, &k, err);
    bool described = status == DT_DNN_SUCCESS;
    if (described) {
        status = try_proposals(c, p, DT_DNN_HEUR_A);
    }
    if (described && p->executable == NULL && !dt_dnn_broke_down(status)) {
        status = try_proposals(c, p, DT_DNN_HEUR_FALLBACK);
    }
    p->usable = p->executable != NULL;
    if (!p->usable) {
        p->failed = dt_dnn_broke_down(status) ? status : DT_DNN_SUCCESS;
        if (described) {
            (void)dt_fail(err, DT_INVALID, "cuDNN: has no engine for it that is allowed");
        }
        convolution_plan_clear(c->api, p);
    }
}

static struct convolution_plan *make_plan(struct dt_dnn_cache *c, const struct convolution_key *key)
{
    struct convolution_plan *p = dt_alloc(sizeof *p);
    const struct convolution_choice *known = dt_plan_file_find(c->file, key);
    struct dt_error err = {0};
    p->key = *key;
    if (known != NULL && known->own != 0) {
        return p;
    }
    if (known != NULL) {
        try_known(c, p, known);
    }
    if (!p->usable && p->failed == DT_DNN_SUCCESS) {
        propose(c, p, &err);
    }
    if (!p->usable && p->failed == DT_DNN_SUCCESS && !c->said) {
        char *words = words_of(key);
        c->said = true;
        dt_log(DT_LOG_WARN, "convolution", "%s; %s, %s, runs on kernels of our own", err.text, convolution_name(key),
               words);
        free(words);
    }
    return p;
}

/* ---- finding a plan ---- */

static void *drop_plan(const struct dt_dnn *api, void *plan)
{
    struct convolution_plan *p = plan, *next = p->next;
    convolution_plan_clear(api, p);
    free(p);
    return next;
}

struct dt_dnn_caches convolution_caches = {.name = "convolution",
                                           .runs = "convolutions run",
                                           .kind = &convolution_plans,
                                           .drop = drop_plan,
                                           .lock = PTHREAD_MUTEX_INITIALIZER};

void dt_cuda_convolution_close(struct dt_device *d)
{
    dt_dnn_cache_close(&convolution_caches, d);
}

/* Finds the plan of a shape, or makes it. Call it with the lock held. *out: null if the library does not compute
 * this pass. Returns the library's status, if it broke down. */
static int find(struct dt_dnn_cache *c, const struct convolution_key *k, struct convolution_plan **out)
{
    *out = NULL;
    if (c->failed != DT_DNN_SUCCESS || c->api == NULL) {
        return c->failed;
    }
    struct convolution_plan *p = c->plans;
    while (p != NULL && memcmp(&p->key, k, sizeof *k) != 0) {
        p = p->next;
    }
    if (p == NULL) {
        p = make_plan(c, k);
        p->next = c->plans;
        c->plans = p;
    }
    *out = p->usable ? p : NULL;
    return p->failed;
}

/* ---- running a plan ---- */

/* The tensors of a call by their numbers. */
static void addresses_of(const struct convolution_call *c, void *out[DT_CONVOLUTION_UIDS])
{
    const void *x = c->of.forward.x, *w = c->of.forward.weights, *y = c->of.forward.y;
    if (c->pass == DT_DNN_DATA) {
        x = c->of.data.dx;
        w = c->of.data.weights;
        y = c->of.data.dy;
    } else if (c->pass == DT_DNN_FILTER) {
        x = c->of.filter.x;
        w = c->of.filter.dweights;
        y = c->of.filter.dy;
    }
    out[DT_CONVOLUTION_X] = (void *)(uintptr_t)x;
    out[DT_CONVOLUTION_W] = (void *)(uintptr_t)w;
    out[DT_CONVOLUTION_Y] = (void *)(uintptr_t)y;
}

int convolution_plan_run(struct dt_stream *s, const struct dt_cuda_launch *l, const struct dt_dnn_cache *c,
                         struct convolution_plan *p, const struct convolution_call *call, char *work)
{
    const struct convolution_key *k = &p->key;
    void *addresses[DT_CONVOLUTION_UIDS], *pack = NULL, *gradient;
    addresses_of(call, addresses);
    bool adds = call->pass == DT_DNN_FILTER && call->of.filter.accumulate;
    gradient = addresses[DT_CONVOLUTION_W];
    addresses[0] = work + convolution_own_bytes(k);
    if (cast_bytes(k) > 0) {
        dt_cuda_cast(s, &(struct dt_cast_args){.out = work,
                                               .in = addresses[DT_CONVOLUTION_X],
                                               .count = convolution_pixels(k),
                                               .out_type = (enum dt_dtype)k->type,
                                               .in_type = (enum dt_dtype)k->x_type});
        addresses[DT_CONVOLUTION_X] = work;
    }
    if (adds) {
        addresses[DT_CONVOLUTION_W] = work + cast_bytes(k);
    }
    int status = c->api->cudnnSetStream(c->handle, l->native);
    if (status == DT_DNN_SUCCESS) {
        status = dt_dnn_packs_find(c->api, &p->packs, addresses, DT_CONVOLUTION_UIDS, &pack);
    }
    if (status == DT_DNN_SUCCESS) {
        status = c->api->cudnnBackendExecute(c->handle, p->executable, pack);
    }
    if (status == DT_DNN_SUCCESS && adds) {
        enum dt_dtype type = (enum dt_dtype)k->type;
        dt_cuda_add(s, &(struct dt_add_args){.out = gradient,
                                             .a = gradient,
                                             .b = addresses[DT_CONVOLUTION_W],
                                             .count = convolution_weights(k),
                                             .type = type,
                                             .b_type = type});
    }
    return status;
}

static int fail(const struct dt_dnn *api, const struct convolution_key *k, int status, struct dt_error *err)
{
    return dt_fail(err, DT_IO, "%s: cuDNN: %s (status %d); DTRUN_CONVOLUTION=own leaves it out", convolution_name(k),
                   api->cudnnGetErrorString(status), status);
}

static bool aligned(const struct convolution_call *call)
{
    void *addresses[DT_CONVOLUTION_UIDS];
    addresses_of(call, addresses);
    return (((uintptr_t)addresses[DT_CONVOLUTION_X] | (uintptr_t)addresses[DT_CONVOLUTION_W] |
             (uintptr_t)addresses[DT_CONVOLUTION_Y]) &
            15) == 0;
}

/* The work memory of a call: the caller's or the stream's. */
static char *work_of(const struct dt_cuda_launch *l, const struct convolution_key *k, const struct convolution_call *c)
{
    char *work = c->pass == DT_DNN_FORWARD ? c->of.forward.work
                 : c->pass == DT_DNN_DATA  ? c->of.data.work
                                           : c->of.filter.work;
    return k->room > (int64_t)DT_CUDA_WORK_BYTES ? work + (-(uintptr_t)work % ALIGNMENT) : l->work;
}

bool convolution_dnn(struct dt_stream *s, const struct dt_cuda_launch *l, const struct convolution_call *call)
{
    const struct convolution_key k = convolution_key_of(s->device, call);
    struct convolution_plan *p;
    struct dt_error err;
    if (!convolution_can(call) || !aligned(call)) {
        return false;
    }
    struct dt_dnn_cache *c = dt_dnn_cache_enter(&convolution_caches, s->device);
    int status = find(c, &k, &p);
    if (p != NULL) {
        status = convolution_plan_run(s, l, c, p, call, work_of(l, &k, call));
    }
    if (status != DT_DNN_SUCCESS) {
        if (!dt_cuda_broken(s, convolution_name(&k), &err)) {
            (void)fail(c->api, &k, status, &err);
        }
        dt_stream_fail(s, err.status, "%s", err.text);
    }
    dt_dnn_cache_leave(&convolution_caches);
    return p != NULL || status != DT_DNN_SUCCESS;
}

int convolution_dnn_ready(struct dt_device *d, const struct convolution_call *call, bool *taken, struct dt_error *err)
{
    const struct convolution_key k = convolution_key_of(d, call);
    struct convolution_plan *p = NULL;
    *taken = false;
    if (!convolution_can(call)) {
        return 0;
    }
    struct dt_dnn_cache *c = dt_dnn_cache_enter(&convolution_caches, d);
    int status = find(c, &k, &p);
    dt_dnn_cache_leave(&convolution_caches);
    *taken = p != NULL;
    return status == DT_DNN_SUCCESS ? 0 : fail(c->api, &k, status, err);
}
