/* Convolutions on the GPU by cuDNN, as the optional functions of the device's table (kernels/convolution.h).
 * Where these say no, images are unfolded and multiplied. */
#ifndef DT_KERNELS_CUDA_CONVOLUTION_H
#define DT_KERNELS_CUDA_CONVOLUTION_H

#include "kernels/cuda/cuda.h"

struct dt_text;

#ifdef __cplusplus
extern "C" {
#endif

/* The ways in which a pass may be computed. */
enum dt_convolution_way {
    DT_CONVOLUTION_ORDERED, /* cuDNN or kernels of our own, whichever was measured to be faster */
    DT_CONVOLUTION_CUDNN,   /* cuDNN, if it takes the shape */
    DT_CONVOLUTION_FAST,    /* as ORDERED, and sums may be in no order */
    DT_CONVOLUTION_OWN,     /* not cuDNN */
    DT_CONVOLUTION_WAYS
};

/* convolution.c: device.c calls it when a device is opened. -1: DTRUN_CONVOLUTION has an unknown value. */
int dt_cuda_convolution_open(struct dt_error *err);
enum dt_convolution_way dt_cuda_convolution_way(const struct dt_device *d);
/* How often this process enqueued a pass by cuDNN; a captured pass counts once. */
int64_t dt_cuda_convolution_calls(void);

bool dt_cuda_convolution(struct dt_stream *s, const struct dt_convolution_args *a);
bool dt_cuda_convolution_input(struct dt_stream *s, const struct dt_convolution_input_args *a);
bool dt_cuda_convolution_weights(struct dt_stream *s, const struct dt_convolution_weights_args *a);

/* Functions of dt_device_plans. */
int dt_cuda_convolutions_ready(struct dt_device *d, const struct dt_convolution_list *all, void (*tick)(void *context),
                               void *context, const char **by, struct dt_error *err);
int dt_cuda_convolutions_choose(struct dt_stream *s, const struct dt_convolution_list *all, void (*tick)(void *context),
                                void *context, int *measured, struct dt_error *why, struct dt_error *err);
void dt_cuda_convolutions_tell(struct dt_device *d, const struct dt_convolution_list *all, struct dt_text *out);
bool dt_cuda_convolutions_take(struct dt_device *d, const char *text, bool keep);
void dt_cuda_convolutions_none(struct dt_device *d);

/* convolution_dnn.c: device.c calls it when a device is closed: frees its plans. */
void dt_cuda_convolution_close(struct dt_device *d);

#ifdef __cplusplus
}
#endif
#endif
