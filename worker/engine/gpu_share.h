/* Which ranks compute on one GPU. Numbers do not tell: each rank may see a list of GPUs of its
 * own (CUDA_VISIBLE_DEVICES, --virtual_local_rank, a scheduler's binding), and several launchers
 * may run on one machine. So all ranks say the machine and what the driver calls their GPU. */
#ifndef DT_WORKER_ENGINE_GPU_SHARE_H
#define DT_WORKER_ENGINE_GPU_SHARE_H

#include "base/error.h"
#include "base/page.h"
#include "collectives/store.h"
#include "kernels/device.h"

struct gpu_share {
    int ranks;          /* on this rank's GPU, it among them */
    double share_bytes; /* memory of a GPU by the ranks on it, the least of all GPUs: the same for all
                         * ranks; infinite: not known */
    int first, second;  /* two ranks of the job on one GPU, the same two for all; -1: none */
    char bus[32];       /* of that GPU */
    int unseen;         /* a rank of this machine whose GPU this rank's list leaves out, so that
                        * it cannot read that memory; -1: none */
};

/* All ranks call it. device: open. Waits for the others; err names for what. A device that is
 * none of the machine's GPUs is shared with nobody. */
int gpu_share_look(struct gpu_share *out, struct dt_store *store, const struct dt_page *page, int rank, int size,
                   struct dt_device *device, struct dt_error *err);

#endif
