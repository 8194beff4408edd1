/* The table of backends, for comm.c and the backends themselves. */
#ifndef DT_COLLECTIVES_BACKENDS_H
#define DT_COLLECTIVES_BACKENDS_H

#include "collectives/comm.h"

extern const struct dt_comm_ops dt_comm_solo;       /* solo.c: one rank */
extern const struct dt_comm_ops dt_comm_shm;        /* shm.c: ranks of one host */
extern const struct dt_comm_ops dt_comm_tcp;        /* tcp.c: ranks of several hosts */
extern const struct dt_comm_ops dt_comm_peer;       /* peer.c: ranks whose devices reach each
                                                     * other's memory */
extern const struct dt_comm_ops dt_comm_nccl;       /* nccl.c: ranks with a GPU each, on one host */
extern const struct dt_comm_ops dt_comm_nccl_hosts; /* nccl.c: the same over several hosts */

/* Returns a communicator without backend state, for a backend that runs another one inside.
 * dt_comm_close frees it. */
struct dt_comm *dt_comm_make(const char *name, int rank, int size, const struct dt_comm_ops *ops);

#endif
