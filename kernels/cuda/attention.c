/* The rows `attention` and `attention_backward`: which implementation a shape takes: cuDNN, otherwise kernels of our own, on tensor cores where these
 * take the shape. It depends on type, shape and what is installed (tensors of a model are all aligned), so forward, a forward made again, and another
 * start choose alike.
 * DTRUN_ATTENTION, to measure and to test: cudnn (as without it), fast (cuDNN, and backward may add in no order), own (not cuDNN), plain (the reference). */
#include "kernels/cuda/attention.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum way { CUDNN, FAST, OWN, PLAIN, WAYS };
static const char *const way_names[WAYS] = {"cudnn", "fast", "own", "plain"};
static pthread_once_t chosen = PTHREAD_ONCE_INIT;
static enum way way = CUDNN;
static bool unknown;

static void choose(void)
{
    const char *wanted = getenv("DTRUN_ATTENTION");
    if (wanted == NULL || *wanted == '\0') {
        return;
    }
    unknown = true;
    for (int i = 0; i < WAYS; i++) {
        if (strcmp(wanted, way_names[i]) == 0) {
            way = (enum way)i;
            unknown = false;
        }
    }
}

int dt_cuda_attention_open(struct dt_error *err)
{
    (void)pthread_once(&chosen, choose);
    return unknown ? dt_fail(err, DT_INVALID, "DTRUN_ATTENTION=%.100s: not known; use cudnn, fast, own or plain", getenv("DTRUN_ATTENTION")) : 0;
}

static bool check(struct dt_stream *s, int64_t positions, int64_t heads, int64_t kv_heads, int64_t head_size, enum dt_dtype type)
{
    if (type != DT_F32 && type != DT_BF16) {
        dt_stream_fail(s, DT_INVALID, "attention: %s is not computed on the GPU", dt_dtype_name(type));
        return false;
    }
    if (!dt_cuda_attention_plain_can(positions, heads, head_size) || (kv_heads != 0 && heads % kv_heads != 0)) {
        dt_stream_fail(
            s, DT_INVALID,
            "attention: %lld positions, %lld heads (%lld of keys) of size %lld: head sizes go to 256; lower model.n_embd or raise model.n_head",
            (long long)positions, (long long)heads, (long long)(kv_heads != 0 ? kv_heads : heads), (long long)head_size);
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
    if (a->batch <= 0 || a->positions <= 0 || !dt_cuda_begin(s, &l) || !check(s, a->positions, a->heads, a->kv_heads, a->head_size, a->type)) {
        return;
    }
    bool flash = way != PLAIN && dt_cuda_attention_flash_can(a->positions, a->heads, a->head_size, a->scale, a->type);
    if (way <= FAST && dt_cuda_attention_dnn(s, &l, a)) {
        /* cuDNN has done it */
    } else if (flash && aligned(a->qkv, a->out, NULL, NULL)) {
        dt_cuda_attention_flash(&l, a);
    } else {
        dt_cuda_attention_plain(&l, a);
    }
    dt_cuda_end(s, "attention");
}

void dt_cuda_attention_backward(struct dt_stream *s, const struct dt_attention_backward_args *a)
{
    struct dt_cuda_launch l;
    if (a->batch <= 0 || a->positions <= 0 || !dt_cuda_begin(s, &l) || !check(s, a->positions, a->heads, a->kv_heads, a->head_size, a->type)) {
        return;
    }
    bool flash = way != PLAIN && dt_cuda_attention_flash_can(a->positions, a->heads, a->head_size, a->scale, a->type);
    if (way <= FAST && dt_cuda_attention_backward_dnn(s, &l, a, way == FAST)) {
        /* cuDNN has done it */
    } else if (flash && aligned(a->qkv, a->out, a->dout, a->dqkv)) {
        dt_cuda_attention_backward_flash(&l, a);
    } else {
        dt_cuda_attention_backward_plain(&l, a);
    }
    dt_cuda_end(s, "attention_backward");
}
