/* The addresses of a plan's executions as cuDNN's descriptors. They are kept, because each training step
 * uses the same ones. */
#ifndef DT_KERNELS_CUDA_DNN_PACKS_H
#define DT_KERNELS_CUDA_DNN_PACKS_H

#include "kernels/cuda/dnn_plan.h"

enum { DT_DNN_PACKS = 512, DT_DNN_UIDS_MOST = 16 };

struct dt_dnn_pack;
struct dt_dnn_packs { /* zeros: none */
    struct dt_dnn_pack *each[DT_DNN_PACKS];
    int count;
};

/* Finds or makes the descriptor of these addresses, which stays owned by `packs`. addresses[uid] is a
 * tensor of the graph, or null if it has none; addresses[0] is the work memory. uids: their number, at most
 * DT_DNN_UIDS_MOST. Returns the library's status. */
int dt_dnn_packs_find(const struct dt_dnn *api, struct dt_dnn_packs *packs, void *const *addresses, int uids,
                      void **out);
void dt_dnn_packs_drop(const struct dt_dnn *api, struct dt_dnn_packs *packs);

#endif
