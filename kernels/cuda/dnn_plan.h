/* From an operation graph of cuDNN to a plan that can be executed: the engines that the library
 * proposes, and a plan of one of them. A plan is made for a device, by its handle, or for the
 * description of a device that need not be present. */
#ifndef DT_KERNELS_CUDA_DNN_PLAN_H
#define DT_KERNELS_CUDA_DNN_PLAN_H

#include "kernels/cuda/dnn_graph.h"

#ifdef __cplusplus
extern "C" {
#endif

struct dt_dnn_place {
    void *handle;    /* cudnnHandle_t, or null */
    void *described; /* if handle is null: a finished descriptor DT_DNN_DEVICEPROP */
};

enum { DT_DNN_CANDIDATES = 8, DT_DNN_KNOBS = 16 };

/* An engine configuration as numbers. They mean the same in every process, for this version of the
 * library, this graph and this kind of GPU. */
struct dt_dnn_config {
    int64_t engine, knob_count;
    struct {
        int64_t type, value;
    } knobs[DT_DNN_KNOBS]; /* zero from knob_count on */
};

/* Lists the library's engine configurations for a finished graph, the one expected to be fastest
 * first. The caller drops them. *count: their number; 0 if there is none for the shape, a part of
 * the library is missing, or it broke down. Returns the library's status. */
int dt_dnn_candidates(const struct dt_dnn *api, const struct dt_dnn_graph *g, const struct dt_dnn_place *place,
                      void *out[DT_DNN_CANDIDATES], int *count);
/* The same by one of its heuristics. */
int dt_dnn_candidates_by(const struct dt_dnn *api, const struct dt_dnn_graph *g, const struct dt_dnn_place *place,
                         enum dt_dnn_heuristic how, void *out[DT_DNN_CANDIDATES], int *count);
/* Reads the numbers of a configuration that the library proposed. *notes: what the library says of its
 * numbers, bit 1 << n for note n (enum dt_dnn_note). Returns the library's status; DT_DNN_NOT_SUPPORTED if it
 * has more knobs than fit. */
int dt_dnn_config_read(const struct dt_dnn *api, void *config, struct dt_dnn_config *out, unsigned *notes);
/* Makes a configuration from these numbers, for a finished graph, which owns it until it is
 * cleared. Returns the library's status; *out is null unless it is 0. */
int dt_dnn_config_make(struct dt_dnn_graph *g, const struct dt_dnn_place *place, const struct dt_dnn_config *numbers,
                       void **out);
/* Makes the plan of a configuration, which takes about a second, since its kernel is compiled.
 * *work_bytes: the work memory that it needs. Returns the library's status; *out is null unless it
 * is 0. */
int dt_dnn_plan(const struct dt_dnn *api, void *config, const struct dt_dnn_place *place, void **out,
                size_t *work_bytes);
/* Makes a pack: addresses for the graph's tensors (by-value ones in host memory), and work memory.
 * Returns 0 or the library's status. */
int dt_dnn_pack(const struct dt_dnn *api, int64_t count, const int64_t *uids, void *const *addresses, void *work,
                void **out);

#ifdef __cplusplus
}
#endif
#endif
