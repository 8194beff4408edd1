/* The rows `attention` and `attention_backward`, and the choice of an implementation for a shape:
 * cuDNN if it takes the shape and was not measured to be slower than kernels of our own, which are
 * on tensor cores if these take the shape. The choice depends on type, shape, installed libraries
 * and the plan file (a model's tensors are all aligned), so forward, a recomputed forward, and a
 * later start choose the same. dt_device_options.attention is a word of word_of, or another, which
 * means the first. DTRUN_ATTENTION overrides it, for measurements and tests. */
#include "kernels/attention.h"
#include "kernels/cuda/attention.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static pthread_once_t asked = PTHREAD_ONCE_INIT;
static enum { NOTHING, SOMETHING, UNKNOWN } wish; /* what DTRUN_ATTENTION names */
static enum dt_attention_way wished;
static int64_t calls[2][DT_ATTENTION_BYS]; /* atomic; of the forward and of the backward pass */

static const char *word_of(enum dt_attention_way way)
{
    switch (way) {
    case DT_ATTENTION_ORDERED:
        return "ordered";
    case DT_ATTENTION_CUDNN:
        return "cudnn";
    case DT_ATTENTION_FAST:
        return "fast";
    case DT_ATTENTION_OWN:
        return "own";
    case DT_ATTENTION_PLAIN:
        return "plain";
    case DT_ATTENTION_WAYS:
        break;
    }
    return "unknown";
}

/* DT_ATTENTION_WAYS: no such word. */
static enum dt_attention_way way_named(const char *word)
{
    int i = 0;
    while (i < DT_ATTENTION_WAYS && strcmp(word, word_of((enum dt_attention_way)i)) != 0) {
        i++;
    }
    return (enum dt_attention_way)i;
}

static void ask(void)
{
    const char *wanted = getenv("DTRUN_ATTENTION");
    if (wanted != NULL && *wanted != '\0') {
        wished = way_named(wanted);
        wish = wished == DT_ATTENTION_WAYS ? UNKNOWN : SOMETHING;
    }
}

int dt_cuda_attention_open(struct dt_error *err)
{
    (void)pthread_once(&asked, ask);
    return wish == UNKNOWN
               ? dt_fail(err, DT_INVALID, "DTRUN_ATTENTION=%.100s: not known; use ordered, cudnn, fast, own or plain",
                         getenv("DTRUN_ATTENTION"))
               : 0;
}

static enum dt_attention_way way_of(const struct dt_device *d)
{
    const char *word = d->options.attention;
    enum dt_attention_way way = wish == SOMETHING ? wished : word != NULL ? way_named(word) : DT_ATTENTION_ORDERED;
    return way < DT_ATTENTION_WAYS ? way : DT_ATTENTION_ORDERED;
}

static void count(enum dt_attention_by by, bool backward)
{
    (void)__atomic_fetch_add(&calls[backward][by], 1, __ATOMIC_RELAXED);
}

int64_t dt_cuda_attention_calls(enum dt_attention_by by, bool backward)
{
    return __atomic_load_n(&calls[backward][by], __ATOMIC_RELAXED);
}

/* False: the stream has failed, or there is nothing to do. */
static bool check(struct dt_stream *stream, const struct dt_attention_shape *shape)
{
    const struct dt_attention_shape s = dt_attention_filled(shape);
    if (s.type != DT_F32 && !dt_dtype_half(s.type)) {
        dt_stream_fail(stream, DT_INVALID, "attention: %s is not computed on the GPU", dt_dtype_name(s.type));
        return false;
    }
    if (!dt_cuda_attention_plain_can(&s)) {
        dt_stream_fail(stream, DT_INVALID,
                       "attention: %lld positions, %lld heads (%lld of keys) of size %lld: head sizes go to 256; lower "
                       "model.n_embd or raise model.n_head",
                       (long long)s.keys, (long long)s.heads, (long long)s.kv_heads, (long long)s.head_size);
        return false;
    }
    return true;
}

static bool aligned(const void *a, const void *b, const void *c, const void *d)
{
    return (((uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d) & 15) == 0;
}

void dt_cuda_attention(struct dt_stream *s, const struct dt_attention_args *a)
{
    struct dt_cuda_launch l;
    if (a->shape.batch <= 0 || a->shape.queries <= 0 || !dt_cuda_begin(s, &l) || !check(s, &a->shape)) {
        return;
    }
    enum dt_attention_way way = way_of(s->device);
    bool flash = way != DT_ATTENTION_PLAIN && dt_cuda_attention_flash_can(&a->shape);
    enum dt_attention_by by = DT_ATTENTION_BY_CUDNN;
    if (way > DT_ATTENTION_FAST || !dt_cuda_attention_dnn(s, &l, a, way)) {
        by = flash && aligned(a->q, a->k, a->v, a->out) ? DT_ATTENTION_BY_FLASH : DT_ATTENTION_BY_PLAIN;
        (by == DT_ATTENTION_BY_FLASH ? dt_cuda_attention_flash : dt_cuda_attention_plain)(&l, a);
    }
    count(by, false);
    dt_cuda_end(s, "attention");
}

void dt_cuda_attention_backward(struct dt_stream *s, const struct dt_attention_backward_args *a)
{
    struct dt_cuda_launch l;
    if (a->shape.batch <= 0 || a->shape.queries <= 0 || !dt_cuda_begin(s, &l) || !check(s, &a->shape)) {
        return;
    }
    enum dt_attention_way way = way_of(s->device);
    bool flash = way != DT_ATTENTION_PLAIN && dt_cuda_attention_flash_can(&a->shape) &&
                 aligned(a->q, a->k, a->v, a->out) && aligned(a->dq, a->dk, a->dv, a->dout);
    enum dt_attention_by by = DT_ATTENTION_BY_CUDNN;
    if (way > DT_ATTENTION_FAST || !dt_cuda_attention_backward_dnn(s, &l, a, way)) {
        by = flash ? DT_ATTENTION_BY_FLASH : DT_ATTENTION_BY_PLAIN;
        (flash ? dt_cuda_attention_backward_flash : dt_cuda_attention_backward_plain)(&l, a);
    }
    count(by, true);
    dt_cuda_end(s, "attention_backward");
}

/* ---- before the first step ---- */

static const char *name_of(enum dt_attention_way way, bool taken, bool flash)
{
    return taken                                ? "cuDNN"
           : flash && way != DT_ATTENTION_PLAIN ? "kernels of our own on tensor cores"
                                                : "kernels of our own";
}

int dt_cuda_attention_ready(struct dt_device *d, const struct dt_attention_args *a, const char **by,
                            struct dt_error *err)
{
    enum dt_attention_way way = way_of(d);
    bool taken = false;
    dt_device_use(d);
    if (way <= DT_ATTENTION_FAST && dt_cuda_attention_dnn_ready(d, a, way, &taken, err) != 0) {
        return -1;
    }
    *by = name_of(way, taken, dt_cuda_attention_flash_can(&a->shape));
    return 0;
}

int dt_cuda_attention_backward_ready(struct dt_device *d, const struct dt_attention_backward_args *a, const char **by,
                                     struct dt_error *err)
{
    enum dt_attention_way way = way_of(d);
    bool taken = false;
    dt_device_use(d);
    if (way <= DT_ATTENTION_FAST && dt_cuda_attention_backward_dnn_ready(d, a, way, &taken, err) != 0) {
        return -1;
    }
    *by = name_of(way, taken, dt_cuda_attention_flash_can(&a->shape));
    return 0;
}

int dt_cuda_attention_choose(struct dt_stream *s, const struct dt_attention_list *all, void (*tick)(void *context),
                             void *context, int *measured, struct dt_error *why, struct dt_error *err)
{
    enum dt_attention_way way = way_of(s->device);
    *measured = 0;
    why->status = DT_OK;
    dt_device_use(s->device);
    return way <= DT_ATTENTION_FAST ? dt_cuda_attention_dnn_choose(s, all, way, tick, context, measured, why, err) : 0;
}

void dt_cuda_attention_tell(struct dt_device *d, const struct dt_attention_list *all, struct dt_text *out)
{
    enum dt_attention_way way = way_of(d);
    if (way <= DT_ATTENTION_FAST) {
        dt_cuda_attention_dnn_tell(d, all, way, out);
    }
}

bool dt_cuda_attention_take(struct dt_device *d, const char *text, bool keep)
{
    return way_of(d) <= DT_ATTENTION_FAST && dt_cuda_attention_dnn_take(d, text, keep);
}

void dt_cuda_attention_none(struct dt_device *d)
{
    if (way_of(d) <= DT_ATTENTION_FAST) {
        dt_cuda_attention_dnn_none(d);
    }
}
