/* Plans of cuDNN that a device keeps for one kind of work (attention, convolutions), with its handle and its plan
 * file. */
#ifndef DT_KERNELS_CUDA_DNN_CACHE_H
#define DT_KERNELS_CUDA_DNN_CACHE_H

#include "kernels/cuda/dnn.h"
#include "kernels/cuda/plan_file.h"

#include <pthread.h>

struct dt_device;

struct dt_dnn_cache {
    struct dt_dnn_cache *next;
    struct dt_device *device;
    const struct dt_dnn *api; /* null: not installed, or not usable here; a warning was written */
    void *handle;
    int failed; /* the library's status if it broke down */
    bool said;  /* the warning that a shape is refused was written */
    struct dt_plan_file *file;
    void *plans; /* the first of the kind's plans; null: none */
};

/* A kind of work and the caches of all devices. */
struct dt_dnn_caches {
    const char *name, *runs; /* of messages: "convolution", "convolutions run" */
    const struct dt_plan_kind *kind;
    /* Frees a plan of the kind, and returns the next one. */
    void *(*drop)(const struct dt_dnn *api, void *plan);
    pthread_mutex_t lock; /* guards the caches and their handles: a handle has one stream at a time */
    struct dt_dnn_cache *first;
};

/* Locks all caches until dt_dnn_cache_leave, and returns the cache of a device. The first call makes it. */
struct dt_dnn_cache *dt_dnn_cache_enter(struct dt_dnn_caches *all, struct dt_device *d);
void dt_dnn_cache_leave(struct dt_dnn_caches *all);
/* Frees the plans, but keeps the file. No work may use a plan meanwhile. */
void dt_dnn_cache_forget(const struct dt_dnn_caches *all, struct dt_dnn_cache *c);
/* Frees what a device has, if it has any. */
void dt_dnn_cache_close(struct dt_dnn_caches *all, struct dt_device *d);
/* dt_plan_file_take, for a device: its plans are made again by what was taken. */
bool dt_dnn_cache_take(struct dt_dnn_caches *all, struct dt_device *d, const char *told, bool keep);
/* dt_plan_file_forget, for a device: from now on the library's first proposals are taken. */
void dt_dnn_cache_none(struct dt_dnn_caches *all, struct dt_device *d);

#endif
