/* Convolutions by the optional functions of a device's table (kernels.h), or, where a device has none
 * for a shape, by rows that every device has: images are unfolded, for a few samples at a time, and a
 * product does the rest. */
#ifndef DT_KERNELS_CONVOLUTION_H
#define DT_KERNELS_CONVOLUTION_H

#include "kernels/kernels.h"

/* Winograd's form on the CPU (kernels/cpu/isa/winograd.c). Values of a tile stand in side * side matrices, with
 * DT_WINOGRAD_APART floats between them. dt_winograd_side: 4 for F32, 6 for 16-bit types, whose rounding is some
 * hundred times the error of the larger tile's sums. dt_winograd_chunk: the tiles that are worked on together; few,
 * for the caches, but enough to read the weights seldom. */
enum { DT_WINOGRAD_APART = 80 };
int dt_winograd_side(enum dt_dtype type);
int64_t dt_winograd_chunk(int64_t in, int64_t out, int side);

/* True if the CPU computes this convolution by Winograd's minimal filtering: it saves operations where
 * a window is 3 x 3 with stride 1 and there are enough channels. */
bool dt_convolution_is_winograd(const struct dt_windows *w, int64_t out, bool planar);
/* True if images as they lie are their own unfolded form. */
bool dt_convolution_is_plain(const struct dt_windows *w, bool planar);
/* Samples of w->batch that are unfolded at a time: as many as a cache holds, or, with own_memory (of
 * the device), as a GPU needs rows. All, if an image is its own unfolded form. */
int64_t dt_convolution_at_once(const struct dt_windows *w, bool planar, enum dt_dtype type, bool own_memory);
/* Bytes of `work` that calls with up to w->batch images take, whichever device computes them: device
 * `separate` has memory of its own and the CPU's kernels. */
int64_t dt_convolution_work(const struct dt_windows *w, int64_t out, bool planar, enum dt_dtype type, bool own_memory);

/* By k's function of that name, or in parts. The _parts: always by unfold, matmul and fold. */
void dt_convolution(const struct dt_kernels *k, struct dt_stream *s, const struct dt_convolution_args *a);
void dt_convolution_parts(const struct dt_kernels *k, struct dt_stream *s, const struct dt_convolution_args *a);
void dt_convolution_input(const struct dt_kernels *k, struct dt_stream *s, const struct dt_convolution_input_args *a);
void dt_convolution_input_parts(const struct dt_kernels *k, struct dt_stream *s,
                                const struct dt_convolution_input_args *a);
void dt_convolution_weights(const struct dt_kernels *k, struct dt_stream *s,
                            const struct dt_convolution_weights_args *a);
void dt_convolution_weights_parts(const struct dt_kernels *k, struct dt_stream *s,
                                  const struct dt_convolution_weights_args *a);

#endif
