/* The optional functions for convolutions, and the choice of what computes them: cuDNN if it takes the shape and
 * was not measured to be slower than kernels of our own. The choice depends on type, shape, installed libraries
 * and the plan file (tensors of a model are aligned), so forward, a recomputed forward, and a later start choose
 * the same. dt_device_options.convolution is a word of word_of, or another, which means the first.
 * DTRUN_CONVOLUTION overrides it, for measurements and tests. */
#include "kernels/cuda/convolution.h"

#include "kernels/cuda/convolution_plan.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static pthread_once_t asked = PTHREAD_ONCE_INIT;
static enum { NOTHING, SOMETHING, UNKNOWN } wish; /* what DTRUN_CONVOLUTION names */
static enum dt_convolution_way wished;
static int64_t calls; /* atomic */

static const char *word_of(enum dt_convolution_way way)
{
    switch (way) {
    case DT_CONVOLUTION_ORDERED:
        return "ordered";
    case DT_CONVOLUTION_CUDNN:
        return "cudnn";
    case DT_CONVOLUTION_FAST:
        return "fast";
    case DT_CONVOLUTION_OWN:
        return "own";
    case DT_CONVOLUTION_WAYS:
        break;
    }
    return "unknown";
}

/* DT_CONVOLUTION_WAYS: no such word. */
static enum dt_convolution_way way_named(const char *word)
{
    int i = 0;
    while (i < DT_CONVOLUTION_WAYS && strcmp(word, word_of((enum dt_convolution_way)i)) != 0) {
        i++;
    }
    return (enum dt_convolution_way)i;
}

static void ask(void)
{
    const char *wanted = getenv("DTRUN_CONVOLUTION");
    if (wanted != NULL && *wanted != '\0') {
        wished = way_named(wanted);
        wish = wished == DT_CONVOLUTION_WAYS ? UNKNOWN : SOMETHING;
    }
}

int dt_cuda_convolution_open(struct dt_error *err)
{
    (void)pthread_once(&asked, ask);
    return wish == UNKNOWN
               ? dt_fail(err, DT_INVALID, "DTRUN_CONVOLUTION=%.100s: not known; use ordered, cudnn, fast or own",
                         getenv("DTRUN_CONVOLUTION"))
               : 0;
}

enum dt_convolution_way dt_cuda_convolution_way(const struct dt_device *d)
{
    const char *word = d->options.convolution;
    enum dt_convolution_way way = wish == SOMETHING ? wished : word != NULL ? way_named(word) : DT_CONVOLUTION_ORDERED;
    return way < DT_CONVOLUTION_WAYS ? way : DT_CONVOLUTION_ORDERED;
}

int64_t dt_cuda_convolution_calls(void)
{
    return __atomic_load_n(&calls, __ATOMIC_RELAXED);
}

static bool compute(struct dt_stream *s, const struct convolution_call *c, const char *name)
{
    struct dt_cuda_launch l;
    if (dt_cuda_convolution_way(s->device) == DT_CONVOLUTION_OWN || !dt_cuda_begin(s, &l) ||
        !convolution_dnn(s, &l, c)) {
        return false;
    }
    (void)__atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED);
    dt_cuda_end(s, name);
    return true;
}

bool dt_cuda_convolution(struct dt_stream *s, const struct dt_convolution_args *a)
{
    return compute(s, &(struct convolution_call){.pass = DT_DNN_FORWARD, .of.forward = *a}, "convolution");
}

bool dt_cuda_convolution_input(struct dt_stream *s, const struct dt_convolution_input_args *a)
{
    return compute(s, &(struct convolution_call){.pass = DT_DNN_DATA, .of.data = *a}, "convolution_input");
}

bool dt_cuda_convolution_weights(struct dt_stream *s, const struct dt_convolution_weights_args *a)
{
    return compute(s, &(struct convolution_call){.pass = DT_DNN_FILTER, .of.filter = *a}, "convolution_weights");
}

int dt_cuda_convolutions_ready(struct dt_device *d, const struct dt_convolution_list *all, void (*tick)(void *context),
                               void *context, const char **by, struct dt_error *err)
{
    int count = convolution_count(all), by_library = 0;
    dt_device_use(d);
    for (int i = 0; i < count && dt_cuda_convolution_way(d) != DT_CONVOLUTION_OWN; i++) {
        const struct convolution_call c = convolution_at(all, i);
        bool taken = false;
        if (convolution_dnn_ready(d, &c, &taken, err) != 0) {
            return -1;
        }
        by_library += taken;
        if (tick != NULL) {
            tick(context);
        }
    }
    *by = by_library == 0 ? "kernels of our own" : by_library == count ? "cuDNN" : "cuDNN and kernels of our own";
    return 0;
}
