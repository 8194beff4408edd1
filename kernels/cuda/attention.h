/* Attention on the GPU: the implementations among which the rows `attention` and
 * `attention_backward` choose by type and shape. */
#ifndef DT_KERNELS_CUDA_ATTENTION_H
#define DT_KERNELS_CUDA_ATTENTION_H

#include "kernels/cuda/cuda.h"

struct dt_text;

#ifdef __cplusplus
extern "C" {
#endif

/* attention.c: device.c calls it when a device is opened. -1: DTRUN_ATTENTION has an unknown
 * value. */
int dt_cuda_attention_open(struct dt_error *err);
/* Implementations. Counters tell how often this process enqueued each pass with each of them; a
 * captured pass counts once. */
enum dt_attention_by { DT_ATTENTION_BY_CUDNN, DT_ATTENTION_BY_FLASH, DT_ATTENTION_BY_PLAIN, DT_ATTENTION_BYS };
int64_t dt_cuda_attention_calls(enum dt_attention_by by, bool backward);

/* The implementations that may compute a pass. */
enum dt_attention_way {
    DT_ATTENTION_ORDERED, /* cuDNN or kernels of our own, whichever was measured to be faster */
    DT_ATTENTION_CUDNN,   /* cuDNN, if it takes the shape */
    DT_ATTENTION_FAST,    /* as ORDERED, and backward may add up in no order */
    DT_ATTENTION_OWN,     /* not cuDNN */
    DT_ATTENTION_PLAIN,   /* the reference */
    DT_ATTENTION_WAYS
};

/* Functions of dt_device_plans. */
int dt_cuda_attention_ready(struct dt_device *d, const struct dt_attention_args *a, const char **by,
                            struct dt_error *err);
int dt_cuda_attention_backward_ready(struct dt_device *d, const struct dt_attention_backward_args *a, const char **by,
                                     struct dt_error *err);

int dt_cuda_attention_choose(struct dt_stream *s, const struct dt_attention_list *all, void (*tick)(void *context),
                             void *context, int *measured, struct dt_error *why, struct dt_error *err);
void dt_cuda_attention_tell(struct dt_device *d, const struct dt_attention_list *all, struct dt_text *out);
bool dt_cuda_attention_take(struct dt_device *d, const char *text, bool keep);
void dt_cuda_attention_none(struct dt_device *d);

/* attention_dnn.c: by cuDNN, if it is installed and takes the shape: bf16, head sizes up to 128
 * that are multiples of 8. way: up to DT_ATTENTION_FAST. False: nothing was done; kernels of our own
 * compute the pass. */
bool dt_cuda_attention_dnn(struct dt_stream *s, const struct dt_cuda_launch *l, const struct dt_attention_args *a,
                           enum dt_attention_way way);
bool dt_cuda_attention_backward_dnn(struct dt_stream *s, const struct dt_cuda_launch *l,
                                    const struct dt_attention_backward_args *a, enum dt_attention_way way);
/* Make the plans for it, on the calling thread's device. *taken: it will compute the pass. */
int dt_cuda_attention_dnn_ready(struct dt_device *d, const struct dt_attention_args *a, enum dt_attention_way way,
                                bool *taken, struct dt_error *err);
int dt_cuda_attention_backward_dnn_ready(struct dt_device *d, const struct dt_attention_backward_args *a,
                                         enum dt_attention_way way, bool *taken, struct dt_error *err);
/* attention_tune.c: chooses among cuDNN's engines and kernels of our own, for the functions of
 * dt_device_plans. */
int dt_cuda_attention_dnn_choose(struct dt_stream *s, const struct dt_attention_list *all, enum dt_attention_way way,
                                 void (*tick)(void *context), void *context, int *measured, struct dt_error *why,
                                 struct dt_error *err);
void dt_cuda_attention_dnn_tell(struct dt_device *d, const struct dt_attention_list *all, enum dt_attention_way way,
                                struct dt_text *out);
bool dt_cuda_attention_dnn_take(struct dt_device *d, const char *text, bool keep);
void dt_cuda_attention_dnn_none(struct dt_device *d);
/* device.c calls it when a device is closed: frees its plans. */
void dt_cuda_attention_dnn_close(struct dt_device *d);

/* attention_plain.cu: fp32 and bf16, head sizes up to 256, all that a shape can ask for. */
bool dt_cuda_attention_plain_can(const struct dt_attention_shape *s);
void dt_cuda_attention_plain(const struct dt_cuda_launch *l, const struct dt_attention_args *a);
void dt_cuda_attention_backward_plain(const struct dt_cuda_launch *l, const struct dt_attention_backward_args *a);

/* attention_flash.cu, attention_flash_backward.cu: bf16 on tensor cores, shapes for which
 * dt_attention_is_simple is true, head sizes up to 128 that
 * are multiples of 8, fewer than 2^31 elements per sequence.  Bits do not
 * depend on the batch. Tensors are aligned to 16 bytes. */
bool dt_cuda_attention_flash_can(const struct dt_attention_shape *s);
void dt_cuda_attention_flash(const struct dt_cuda_launch *l, const struct dt_attention_args *a);
void dt_cuda_attention_backward_flash(const struct dt_cuda_launch *l, const struct dt_attention_backward_args *a);

#ifdef __cplusplus
}
#endif
#endif
