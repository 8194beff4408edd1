/* From an operation graph of cuDNN to something that can be executed: the engines that the
 * library proposes, and a plan of one of them. A plan is made for a device, by its handle, or
 * for a description of one that need not be here. */
#ifndef DT_KERNELS_CUDA_DNN_PLAN_H
#define DT_KERNELS_CUDA_DNN_PLAN_H

#include "kernels/cuda/dnn_graph.h"

#ifdef __cplusplus
extern "C" {
#endif

struct dt_dnn_place {
    void *handle;    /* cudnnHandle_t, or null */
    void *described; /* where handle is null: a finished descriptor DT_DNN_DEVICEPROP */
};

enum { DT_DNN_CANDIDATES = 8, DT_DNN_KNOBS = 16 };

/* An engine configuration by its numbers, which mean the same to each process with this version
 * of the library, for this graph and kind of GPU. */
struct dt_dnn_config {
    int64_t engine, knob_count;
    struct {
        int64_t type, value;
    } knobs[DT_DNN_KNOBS]; /* those beyond knob_count are zero */
};

/* Engine configurations that the library has for a finished graph, the one it thinks fastest
 * first; the caller drops them. *count: how many; 0 when there is none for the shape, a part of
 * the library is missing, or it broke down. The library's status. */
int dt_dnn_candidates(const struct dt_dnn *api, const struct dt_dnn_graph *g, const struct dt_dnn_place *place,
                      void *out[DT_DNN_CANDIDATES], int *count);
/* The numbers of a configuration that the library proposed; *ordered: it does not say that the
 * same inputs may have other results. The library's status; DT_DNN_NOT_SUPPORTED where it has
 * more knobs than there is room for. */
int dt_dnn_config_read(const struct dt_dnn *api, void *config, struct dt_dnn_config *out, bool *ordered);
/* The other way: the configuration of these numbers for a finished graph, which holds it until
 * it is cleared. The library's status; *out null unless 0. */
int dt_dnn_config_make(struct dt_dnn_graph *g, const struct dt_dnn_place *place, const struct dt_dnn_config *numbers,
                       void **out);
/* Makes the plan of a configuration (its kernel is compiled: a second), and says how much work
 * memory it wants. The library's status; *out null unless 0. */
int dt_dnn_plan(const struct dt_dnn *api, void *config, const struct dt_dnn_place *place, void **out,
                size_t *work_bytes);
/* A pack: addresses for the graph's tensors, by-value ones in host memory, and work memory. 0 or
 * the library's status. */
int dt_dnn_pack(const struct dt_dnn *api, int64_t count, const int64_t *uids, void *const *addresses, void *work,
                void **out);

#ifdef __cplusplus
}
#endif
#endif
