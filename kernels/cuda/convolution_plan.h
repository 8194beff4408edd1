/* Shared by the files of convolutions by cuDNN: a call whichever its pass, the plan of a shape, all plans of
 * a device, and their representation in the plan file. */
#ifndef DT_KERNELS_CUDA_CONVOLUTION_PLAN_H
#define DT_KERNELS_CUDA_CONVOLUTION_PLAN_H

#include "kernels/cuda/convolution.h"
#include "kernels/cuda/convolution_graph.h"
#include "kernels/cuda/dnn_cache.h"
#include "kernels/cuda/dnn_packs.h"

enum { CONVOLUTION_ALIGNMENT = 256 /* of work memory */ };

/* A call of a row. */
struct convolution_call {
    enum dt_dnn_pass pass;
    union {
        struct dt_convolution_args forward;
        struct dt_convolution_input_args data;
        struct dt_convolution_weights_args filter;
    } of;
};

/* Everything that a plan depends on, besides its device. Compared as bytes. Whether a gradient of weights is
 * added to what was there is no part of it: a strategy may clear it and add, or overwrite it, with the same
 * bits. */
struct convolution_key {
    int64_t pass, batch, height, width, channels, out_height, out_width, size, stride, padding, out;
    int64_t room;         /* bytes of work memory */
    int64_t type, x_type; /* enum dt_dtype; x_type: other than `type` if x is cast first */
    int64_t planar, tf32; /* 0 or 1 */
    int64_t adds;         /* 0 or 1: the gradient of images is added to what was there */
    int64_t sums, own;    /* 0 or 1: sums may be in no order; kernels of our own may compute it, too */
};

/* The fastest way that was measured: this engine, or kernels of our own. */
struct convolution_choice {
    int64_t own;
    struct dt_dnn_config config;
};

/* convolution_file.c: the plan file of convolutions: struct convolution_key and convolution_choice */
extern const struct dt_plan_kind convolution_plans;

struct convolution_plan {
    struct convolution_plan *next;
    struct convolution_key key;
    bool usable;
    int failed; /* the library's status if it broke down; then nothing is computed */
    struct dt_dnn_graph graph;
    void *config, *executable;
    struct dt_dnn_packs packs;
};

/* convolution_dnn.c */
extern struct dt_dnn_caches convolution_caches;

/* Number i of a list: forward passes first, gradients of images next. */
struct convolution_call convolution_at(const struct dt_convolution_list *all, int i);
int convolution_count(const struct dt_convolution_list *all);
const struct dt_windows *convolution_windows(const struct convolution_call *c);
/* Elements of images and of weights. */
int64_t convolution_pixels(const struct convolution_key *k);
int64_t convolution_weights(const struct convolution_key *k);
struct convolution_key convolution_key_of(const struct dt_device *d, const struct convolution_call *c);
/* False: it is no work for the library: an empty batch, a product of the images as they lie, or gradients in F32 of
 * 16-bit weights, for which no engine is to be had. */
bool convolution_can(const struct convolution_call *c);
/* Whether an engine with these notes (dt_dnn_config_read) may compute it. */
bool convolution_allows(const struct convolution_key *k, unsigned notes);
/* Bytes of work memory that precede the engine's own. */
size_t convolution_own_bytes(const struct convolution_key *k);
/* Makes a plan without an engine: only its graph is finished. Returns the library's status; err says what was
 * refused. */
int convolution_plan_begin(const struct dt_dnn_cache *c, struct convolution_plan *p, const struct convolution_key *k,
                           struct dt_error *err);
/* Enqueues a call by p->executable. work: p->key.room bytes, aligned. Returns the library's status. */
int convolution_plan_run(struct dt_stream *s, const struct dt_cuda_launch *l, const struct dt_dnn_cache *c,
                         struct convolution_plan *p, const struct convolution_call *call, char *work);
void convolution_plan_clear(const struct dt_dnn *api, struct convolution_plan *p);
/* By cuDNN, if it is installed and takes the shape. False: nothing was done. */
bool convolution_dnn(struct dt_stream *s, const struct dt_cuda_launch *l, const struct convolution_call *call);
/* Makes the plan for it, on the calling thread's device. *taken: it will compute the pass. */
int convolution_dnn_ready(struct dt_device *d, const struct convolution_call *call, bool *taken, struct dt_error *err);
/* The pass's name for messages. */
const char *convolution_name(const struct convolution_key *k);

#endif
