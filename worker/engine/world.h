/* Where this worker is: rank and sizes from the environment, store, device, streams,
 * communicators, the page. */
#ifndef DT_WORKER_ENGINE_WORLD_H
#define DT_WORKER_ENGINE_WORLD_H

#include "base/error.h"
#include "base/page.h"
#include "collectives/comm.h"
#include "collectives/store.h"
#include "kernels/device.h"
#include "worker/engine/gpu_share.h"
#include "worker/engine/gpu_watch.h"

#include <stdatomic.h>
#include <stdbool.h>

struct world {
    int rank, size, local_rank, local_size, node_rank, node_count;
    int round; /* 0 for a lone worker */
    const char *run_id;
    char launch[33];        /* which launch of that name: the same for all its ranks and rounds,
                             * and no other has it; "": not known */
    struct dt_page *page;   /* never null */
    struct dt_store *store; /* null for a lone rank */
    struct dt_device *device;
    struct dt_stream *compute, *communication; /* the same inline stream when no core is to spare */
    struct dt_stream *gathering;               /* of collectives of `gather`; communication
                                                * unless world_separate_gathers made one */
    struct dt_stream *homes_in, *homes_out;    /* of homes outside of the device's memory; null until
                                                * one of them is open (world_open_homes) */
    struct gpu_share gpus;                     /* who computes where, of several ranks on GPUs */
    struct gpu_watch *gpu;                     /* null: none, or nobody looks */
    struct dt_comm *comm;                      /* all ranks */
    struct dt_comm *shard, *replica;           /* hybrid rows: this rank's groups; otherwise
                                                * shard = comm, replica = null */
    struct dt_comm *gather;                    /* for gathers of weights: the ranks of shard;
                                                * shard itself unless world_separate_gathers made
                                                * another */
    struct dt_comm *reshard;                   /* for gathers in backward, of fewer ranks
                                                * (world_split_again); null: as in forward */
    char uneven[256];                          /* how many ranks each host has, "3,1", when they
                                                * have different numbers; "": alike, or not known */
    int threads;                               /* of the pool in this process */
    int page_fd;                               /* of a page made here, or -1 */
    bool agent;                                /* the page is an agent's */
    bool told;                                 /* why this rank fails was said already, by rank 0
                                                * for all */
    bool failed;                               /* set before world_close when a collective may
                                                * still be running: it is aborted first */
    atomic_int exit_code;                      /* what the process ends with already, whoever
                                                * tells it to end; 0: nothing has failed */
};

struct world_options {
    const char *device;          /* as training.device; in tests any name that dt_device_open
                                  * knows; null: "auto" */
    bool share_gpu;              /* several ranks may compute on one GPU */
    const char *collectives;     /* as training.collectives; null: "auto" */
    int collective_sms;          /* nccl: multiprocessors that a collective may take; 0: as NCCL
                                  * chooses */
    bool deterministic;          /* sums over ranks in one order, attention by kernels of our own */
    const char *attention;       /* as training.attention; null: "auto" */
    bool tf32;                   /* as struct dt_device_options */
    double collective_timeout_s; /* 0: none */
    int threads;                 /* 0: cores this process may use / local ranks */
    const char *host;            /* where this rank is, for world_open_thread; null: all on one
                                  * host */
    int shards;                  /* size of a shard group; 0 or world size: no split */
};

/* Before anything is started, without asking a driver: the device that ranks will compute on,
 * and whether there are enough for those of this host as far as files and variables tell. *name:
 * "cpu", "cuda". */
int world_check_device(const struct world_options *o, int local_size, const char **name, struct dt_error *err);
/* Reads RANK, WORLD_SIZE, ... (a lone worker without them is rank 0 of 1), attaches the page,
 * connects to the store, opens device and communicators. Every wait has a deadline; err names
 * for whom. */
int world_open(struct world *w, const struct world_options *o, struct dt_error *err);
/* Tests: rank `rank` of `size` threads of one process over a local store (see
 * dt_store_open_local). Closed by world_close as well. */
int world_open_thread(struct world *w, const struct world_options *o, struct dt_store *store, int rank, int size,
                      struct dt_error *err);
/* The device that training.device means here: "auto" (or null) is DTRUN_DEVICE where that is
 * set, otherwise "cuda" where there is a driver. Opens nothing. */
const char *world_device_name(const char *wanted);
/* The least that a rank has of its GPU's memory, the same for all ranks; infinite: not known; 0: the
 * device computes in the host's memory. */
double world_device_bytes(const struct world *w);
/* Cores that this process may use. */
int world_cores(void);
/* Splits shard and replica groups (consecutive ranks form a shard group). */
int world_split(struct world *w, int shards, struct dt_error *err);
/* Gives gathers of weights a communicator and a stream of their own, so that they overlap with
 * reductions of gradients, where backend and device allow two collectives at once (dt_comm_beside);
 * otherwise changes nothing. All ranks call it, after the last world_split. */
int world_separate_gathers(struct world *w, struct dt_error *err);
/* Do gathers have a stream of their own? Then each stream is waited for on its own. */
bool world_gathers_separate(const struct world *w);
/* Could they have one, whether or not they have it yet? */
bool world_may_separate_gathers(const struct world *w);
/* Opens homes_in and homes_out, streams for copies alone, unless they are open. */
int world_open_homes(struct world *w, struct dt_error *err);
/* Splits shard groups into groups of so many consecutive ranks, a divisor of theirs, for gathers in backward. All
 * ranks call it, once. */
int world_split_again(struct world *w, int ranks, struct dt_error *err);
enum { WORLD_COMMS_MAX = 5 };
/* The communicators that are there, each once; how many. */
int world_comms(const struct world *w, struct dt_comm *out[WORLD_COMMS_MAX]);
/* Aborts them all; nobody waits in a stream afterwards. */
void world_abort(struct world *w);
void world_close(struct world *w);
/* Adds to the error what is known of it besides: of a GPU that failed, its serial number and
 * what the driver tells; patient: also what it tells a moment later. */
void world_explain(struct world *w, struct dt_error *err, bool patient);
/* Leaves on the page why this rank fails. True: the agent says so, in its cause line, and nobody
 * else needs to. It does not after a wish to stop. */
bool world_tell_cause(struct world *w, const struct dt_error *why);

#endif
