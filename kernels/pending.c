/* Weak stand-ins for rows that are being written: the twin's loops on the CPU, a failure on CUDA. This
 * file goes when the rows are there. */
#include "kernels/cpu/cpu.h"
#include "kernels/kernels.h"

#define ON_CPU(row, isa)                                                                                               \
    void dt_##row##_##isa(struct dt_stream *s, const struct dt_##row##_args *a);                                       \
    __attribute__((weak)) void dt_##row##_##isa(struct dt_stream *s, const struct dt_##row##_args *a)                  \
    {                                                                                                                  \
        dt_kernels_twin(a->type)->row(s, a);                                                                           \
    }
static int no_row(struct dt_stream *s, void *args, struct dt_error *err)
{
    (void)s;
    (void)args;
    return dt_fail(err, DT_INTERNAL, "a kernel for CUDA is not there yet");
}
#define ROW(row)                                                                                                       \
    void dt_cuda_##row(struct dt_stream *s, const struct dt_##row##_args *a);                                          \
    __attribute__((weak)) void dt_cuda_##row(struct dt_stream *s, const struct dt_##row##_args *a)                     \
    {                                                                                                                  \
        dt_stream_call(s, no_row, a, sizeof *a);                                                                       \
    }
ON_CPU(dropout, plain)
ON_CPU(dropout, avx2)
ON_CPU(dropout, avx512)
ROW(dropout)
