/* Attention on the GPU: implementations that the rows `attention` and `attention_backward` choose from by type and shape. */
#ifndef DT_KERNELS_CUDA_ATTENTION_H
#define DT_KERNELS_CUDA_ATTENTION_H

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* attention_plain.cu: fp32 and bf16, head sizes up to 256. */
bool dt_cuda_attention_plain_can(int64_t positions, int64_t heads, int64_t head_size);
void dt_cuda_attention_plain(const struct dt_cuda_launch *l, const struct dt_attention_args *a);
void dt_cuda_attention_backward_plain(const struct dt_cuda_launch *l, const struct dt_attention_backward_args *a);

#ifdef __cplusplus
}
#endif
#endif
