/* Measures convolutions at the start of a run. cuDNN's proposals for a pass and our own kernels run in turns on
 * random numbers, with the batch that training has. The fastest is kept in the plan file by its engine and knobs.
 * The plan that is measured is made from these numbers, too, so later starts get the plan that was measured.
 *
 *   turns 0 and 1   compare the bits of each result. A proposal whose sums have no fixed order is left out, unless
 *                   that is allowed. Code is loaded.
 *   turns 2 to 8    are timed. The median counts. The first proposal stays unless another is 1 % faster.
 * No proposal is begun after MOST_S. All of this uses a separate handle, which is destroyed with its memory
 * afterwards. */
#include "kernels/convolution.h"
#include "kernels/cuda/convolution_plan.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/turns.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

enum {
    PROPOSALS = 5, /* of the library */
    COMPARED = 2,
    LEAST_TURNS = COMPARED + 3
};
_Static_assert((int)PROPOSALS < (int)TURNS_CANDIDATES, "each takes part in the turns");
static const double MOST_S = 5; /* for one pass */
#define WINDOW_BYTES ((size_t)8 << 20)

struct candidate {
    struct convolution_choice choice;
    void *executable; /* null: kernels of our own */
    uint64_t bits;
};

/* One pass with its candidates and operands. */
struct trial {
    struct dt_dnn_cache cache;    /* the device's cache, but with a handle of its own */
    struct convolution_plan plan; /* takes the executable for each run */
    struct dt_stream *stream;
    struct dt_cuda_launch launch;
    struct convolution_call call;
    struct candidate all[PROPOSALS + 1];
    int count;
    /* block: operands and work memory. window: pinned memory through which results are compared */
    char *block, *work, *window;
    size_t block_bytes;
    char *result;
    size_t result_bytes;
    struct turns turns;
    double until_s;
};

/* ---- candidates ---- */

/* Makes the plan of a proposal from its numbers. *fits: its sums have an allowed order and its work memory fits.
 * Returns the library's status. */
static int make_candidate(struct trial *t, void *proposal, struct candidate *x, bool *fits)
{
    const struct dt_dnn *api = t->cache.api;
    const struct dt_dnn_place place = {.handle = t->cache.handle};
    void *config = NULL;
    unsigned notes;
    size_t work_bytes = 0;
    memset(x, 0, sizeof *x);
    *fits = false;
    int status = dt_dnn_config_read(api, proposal, &x->choice.config, &notes);
    if (status != DT_DNN_SUCCESS || !convolution_allows(&t->plan.key, notes)) {
        return status;
    }
    status = dt_dnn_config_make(&t->plan.graph, &place, &x->choice.config, &config);
    if (status == DT_DNN_SUCCESS) {
        status = dt_dnn_plan(api, config, &place, &x->executable, &work_bytes);
    }
    *fits = status == DT_DNN_SUCCESS && work_bytes + convolution_own_bytes(&t->plan.key) <= (size_t)t->plan.key.room;
    if (!*fits) {
        dt_dnn_drop(api, x->executable);
        x->executable = NULL;
    }
    return status;
}

/* Adds the candidates of a heuristic. A proposal that breaks down after a good one is left out; before one, it
 * is an error that comes later, when a plan is made. */
static void try_heuristic(struct trial *t, enum dt_dnn_heuristic how)
{
    const struct dt_dnn_place place = {.handle = t->cache.handle};
    void *found[DT_DNN_CANDIDATES] = {NULL};
    int found_count = 0, status = dt_dnn_candidates_by(t->cache.api, &t->plan.graph, &place, how, found, &found_count);
    bool good = !dt_dnn_broke_down(status);
    for (int i = 0; i < found_count && good && t->count < PROPOSALS && (t->count == 0 || dt_now_s() < t->until_s);
         i++) {
        bool fits;
        status = make_candidate(t, found[i], &t->all[t->count], &fits);
        t->count += fits;
        good = t->count > 0 || !dt_dnn_broke_down(status);
    }
    for (int i = 0; i < found_count; i++) {
        dt_dnn_drop(t->cache.api, found[i]);
    }
}

static void find_candidates(struct trial *t, const struct convolution_key *key)
{
    struct dt_error err;
    if (convolution_plan_begin(&t->cache, &t->plan, key, &err) != DT_DNN_SUCCESS) {
        return;
    }
    try_heuristic(t, DT_DNN_HEUR_A);
    if (t->count == 0) {
        try_heuristic(t, DT_DNN_HEUR_FALLBACK);
    }
    if (t->count > 0 && key->own) {
        t->all[t->count++] = (struct candidate){.choice = {.own = 1}};
    }
}

/* ---- operands ---- */

static size_t reserve(size_t *end, int64_t count, int64_t type)
{
    size_t at = *end;
    *end += ((size_t)count * dt_dtype_size((enum dt_dtype)type) + CONVOLUTION_ALIGNMENT - 1) / CONVOLUTION_ALIGNMENT *
            CONVOLUTION_ALIGNMENT;
    return at;
}

/* Allocates the operands, random but the result, and work memory for all candidates. */
static int open_operands(struct trial *t, struct dt_error *err)
{
    const struct convolution_key *k = &t->plan.key;
    struct convolution_call *c = &t->call;
    const struct dt_windows *w = convolution_windows(c);
    int64_t pixels = convolution_pixels(k), weights = convolution_weights(k),
            values = k->batch * k->out_height * k->out_width * k->out,
            own = dt_convolution_work(w, k->out, k->planar != 0, (enum dt_dtype)k->type, true);
    size_t end = 0, x = reserve(&end, pixels, k->x_type), dw = reserve(&end, weights, k->type),
           y = reserve(&end, values, k->type), work = reserve(&end, own > k->room ? own : k->room, DT_U8);
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
    t->work = t->block + work;
    dt_cuda_random(&t->launch, t->block + x, pixels, (enum dt_dtype)k->x_type);
    dt_cuda_random(&t->launch, t->block + dw, weights, (enum dt_dtype)k->type);
    dt_cuda_random(&t->launch, t->block + y, values, (enum dt_dtype)k->type);
    if (k->pass == DT_DNN_FORWARD) {
        c->of.forward.x = t->block + x;
        c->of.forward.weights = t->block + dw;
        c->of.forward.y = t->result = t->block + y;
        c->of.forward.work = t->work;
        t->result_bytes = (size_t)values * dt_dtype_size((enum dt_dtype)k->type);
    } else if (k->pass == DT_DNN_DATA) {
        c->of.data.dx = t->result = t->block + x;
        c->of.data.weights = t->block + dw;
        c->of.data.dy = t->block + y;
        c->of.data.work = t->work;
        t->result_bytes = (size_t)pixels * dt_dtype_size((enum dt_dtype)k->type);
    } else {
        c->of.filter.x = t->block + x;
        c->of.filter.dweights = t->result = t->block + dw;
        c->of.filter.dy = t->block + y;
        c->of.filter.work = t->work;
        t->result_bytes = (size_t)weights * dt_dtype_size((enum dt_dtype)k->type);
    }
    return 0;
}

/* ---- turns ---- */

static void put_own(struct trial *t)
{
    const struct dt_kernels *kernels = t->stream->device->kernels;
    if (t->call.pass == DT_DNN_FORWARD) {
        dt_convolution_parts(kernels, t->stream, &t->call.of.forward);
    } else if (t->call.pass == DT_DNN_DATA) {
        dt_convolution_input_parts(kernels, t->stream, &t->call.of.data);
    } else {
        dt_convolution_weights_parts(kernels, t->stream, &t->call.of.filter);
    }
}

static bool put(void *trial, int i)
{
    struct trial *t = trial;
    if (t->all[i].executable == NULL) {
        put_own(t);
        return true;
    }
    t->plan.executable = t->all[i].executable;
    return convolution_plan_run(t->stream, &t->launch, &t->cache, &t->plan, &t->call, t->work) == DT_DNN_SUCCESS;
}

/* Runs each candidate on a cleared result, since some add to it, and compares with the previous turn. */
static int compare_results(struct trial *t, int turn)
{
    for (int i = 0; i < t->count; i++) {
        struct candidate *x = &t->all[i];
        uint64_t bits;
        bool *out = &t->turns.each[i].out;
        if (cudaMemsetAsync(t->result, 0, t->result_bytes, t->launch.native) != cudaSuccess) {
            return -1;
        }
        *out = *out || !put(t, i);
        if (*out) {
            continue;
        }
        if (turns_hash(&t->turns, t->result, t->result_bytes, t->window, WINDOW_BYTES, &bits) != 0) {
            return -1;
        }
        if (turn > 0 && bits != x->bits && x->executable != NULL && !t->plan.key.sums) {
            *out = true;
            dt_log(DT_LOG_WARN, "convolution", "cuDNN: engine %lld has other bits each time for the same %s; left out",
                   (long long)x->choice.config.engine, convolution_name(&t->plan.key));
        }
        x->bits = bits;
    }
    return 0;
}

/* All turns; *best and ms as for turns_fastest. -1: the device failed. */
static int take_turns(struct trial *t, int *best, float ms[2])
{
    int rc = 0, turns = 0;
    for (; turns < TURNS_MOST && rc == 0 && (turns < LEAST_TURNS || dt_now_s() < t->until_s); turns++) {
        rc = turns < COMPARED ? compare_results(t, turns) : turns_take(&t->turns, turns, put, t);
    }
    *best = rc == 0 ? turns_fastest(&t->turns, COMPARED, turns, ms) : -1;
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
    t->plan.executable = NULL;
    for (int i = 0; i < t->count; i++) {
        dt_dnn_drop(t->cache.api, t->all[i].executable);
    }
    convolution_plan_clear(t->cache.api, &t->plan);
    if (t->cache.handle != NULL) {
        (void)t->cache.api->cudnnDestroy(t->cache.handle);
    }
}

static void keep(const struct trial *t, struct dt_plan_file *file, int best, const float ms[2])
{
    const struct convolution_key *k = &t->plan.key;
    const struct convolution_choice *c = &t->all[best].choice;
    char *words = c->own ? dt_strdup("our own kernels") : dt_format("cuDNN's engine %lld", (long long)c->config.engine);
    dt_plan_file_put(file, k, c);
    dt_log(DT_LOG_INFO, "convolution",
           "%s of %lld images of %lld x %lld x %lld, %lld windows of %lld x %lld: candidate %d of %d, %s: %.4f ms; the "
           "first one %.4f ms",
           convolution_name(k), (long long)k->batch, (long long)k->height, (long long)k->width, (long long)k->channels,
           (long long)k->out, (long long)k->size, (long long)k->size, best, t->count, words, (double)ms[0],
           (double)ms[1]);
    free(words);
}

/* Puts the fastest engine for a pass into the file. Puts nothing if the library has none, or breaks down before it
 * is measured. */
static int measure(struct dt_dnn_cache *c, struct dt_stream *s, const struct convolution_call *call,
                   const struct convolution_key *key, int *measured, struct dt_error *err)
{
    struct trial *t = dt_alloc(sizeof *t);
    int rc = 0, best = -1;
    float ms[2] = {0, 0};
    t->cache = (struct dt_dnn_cache){.device = c->device, .api = c->api, .file = c->file};
    t->stream = s;
    t->call = *call;
    if (call->pass == DT_DNN_FILTER) {
        t->call.of.filter.accumulate = false;
    }
    t->until_s = dt_now_s() + MOST_S;
    if (!dt_cuda_begin(s, &t->launch)) {
        (void)dt_stream_failed(s, err);
        free(t);
        return -1;
    }
    if (c->api->cudnnCreate(&t->cache.handle) != DT_DNN_SUCCESS) {
        t->cache.handle = NULL;
    } else {
        find_candidates(t, key);
    }
    if (t->count > 0) {
        rc = turns_open(&t->turns, s, t->launch.native, "measuring convolutions", t->count);
    }
    if (rc == 0 && t->count > 0 && open_operands(t, err) != 0) {
        dt_log(DT_LOG_WARN, "convolution", "%s; not measured", err->text);
    } else if (rc == 0 && t->count > 0) {
        rc = take_turns(t, &best, ms);
    }
    if (best >= 0) {
        keep(t, c->file, best, ms);
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

/* The next convolution that the library may take and the file does not have; *key is its key. */
static int next_missing(const struct dt_dnn_cache *c, const struct dt_convolution_list *all, int from,
                        struct convolution_key *key)
{
    for (int count = convolution_count(all); from < count; from++) {
        const struct convolution_call call = convolution_at(all, from);
        *key = convolution_key_of(c->device, &call);
        if (convolution_can(&call) && dt_plan_file_find(c->file, key) == NULL) {
            break;
        }
    }
    return from;
}

static int measure_missing(struct dt_dnn_cache *c, struct dt_stream *s, const struct dt_convolution_list *all,
                           void (*tick)(void *context), void *context, int *measured, struct dt_error *err)
{
    struct convolution_key key;
    int rc = 0, count = convolution_count(all);
    for (int i = next_missing(c, all, 0, &key); i < count && rc == 0; i = next_missing(c, all, i + 1, &key)) {
        const struct convolution_call call = convolution_at(all, i);
        rc = measure(c, s, &call, &key, measured, err);
        if (tick != NULL) {
            tick(context);
        }
    }
    return rc;
}

int dt_cuda_convolutions_choose(struct dt_stream *s, const struct dt_convolution_list *all, void (*tick)(void *context),
                                void *context, int *measured, struct dt_error *why, struct dt_error *err)
{
    *measured = 0;
    why->status = DT_OK;
    if (dt_cuda_convolution_way(s->device) == DT_CONVOLUTION_OWN) {
        return 0;
    }
    dt_device_use(s->device);
    struct dt_dnn_cache *c = dt_dnn_cache_enter(&convolution_caches, s->device);
    dt_dnn_cache_leave(&convolution_caches); /* no other thread computes convolutions yet */
    struct convolution_key key;
    int rc = 0;
    if (c->api != NULL && c->failed == DT_DNN_SUCCESS && next_missing(c, all, 0, &key) < convolution_count(all)) {
        /* taking the lock also reads the choices that other processes have made meanwhile */
        if (dt_plan_file_lock(c->file, tick, context, why) == 0) {
            rc = measure_missing(c, s, all, tick, context, measured, err);
            if (rc == 0 && *measured > 0 && dt_plan_file_save(c->file, why) != 0) {
                *measured = 0;
                dt_plan_file_forget(c->file);
            }
            dt_plan_file_unlock(c->file);
        }
        dt_dnn_cache_forget(&convolution_caches, c);
    }
    return rc;
}

void dt_cuda_convolutions_tell(struct dt_device *d, const struct dt_convolution_list *all, struct dt_text *out)
{
    if (dt_cuda_convolution_way(d) == DT_CONVOLUTION_OWN) {
        return;
    }
    int count = convolution_count(all);
    struct convolution_key *keys = dt_alloc((size_t)(count + 1) * sizeof *keys);
    for (int i = 0; i < count; i++) {
        const struct convolution_call call = convolution_at(all, i);
        keys[i] = convolution_key_of(d, &call);
    }
    const struct dt_dnn_cache *c = dt_dnn_cache_enter(&convolution_caches, d);
    dt_plan_file_tell(c->file, keys, (size_t)count, out);
    dt_dnn_cache_leave(&convolution_caches);
    free(keys);
}

bool dt_cuda_convolutions_take(struct dt_device *d, const char *text, bool keep_it)
{
    return dt_cuda_convolution_way(d) != DT_CONVOLUTION_OWN && dt_dnn_cache_take(&convolution_caches, d, text, keep_it);
}

void dt_cuda_convolutions_none(struct dt_device *d)
{
    if (dt_cuda_convolution_way(d) != DT_CONVOLUTION_OWN) {
        dt_dnn_cache_none(&convolution_caches, d);
    }
}
