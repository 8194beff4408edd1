/* Strategies: where weights, gradients and optimizer state live, and what travels when. A
 * strategy is a row; weights and gradients are placed independently by one of two files each
 * (placements/), and a row joins them. The trainer walks the chain and calls the placements'
 * fetch/get/drop/reduce; it never asks which strategy it is.
 *
 *   fetch: start bringing weights in      get: the compute stream waits for this unit only     drop: compute is done with them
 *   gathering     | gather 0 | gather 1 |                  | gather 0 ...
 *   communication |                               | reduce 1 |            on one stream with the gathers where two are not safe (world_separate_gathers)
 *   compute       |          | block 0  | block 1 ...
 *
 * Sizes: a unit of n elements is cut into `shards` equal slices; rank r of a shard group holds
 * elements [r n/S, (r+1) n/S). "Owned" is what this rank's optimizer updates (whole or the
 * slice); "share" is always the slice: what this rank adds to the norm and writes into
 * checkpoints, so that every element counts once.
 *
 * In BF16 the placements hold weights as BF16, and the optimizer has the F32 masters of what it
 * owns. Backward writes gradients in the type in which they are reduced, wherever nothing is
 * added to them before that; sums over micro-steps are F32. */
#ifndef DT_WORKER_ENGINE_STRATEGY_H
#define DT_WORKER_ENGINE_STRATEGY_H

#include "base/arena.h"
#include "worker/model/chain.h"
#include "worker/job/job.h"
#include "worker/engine/homes/home.h"
#include "worker/engine/hooks/hooks.h"
#include "worker/engine/precision.h"
#include "worker/engine/timeline.h"
#include "worker/engine/world.h"

#include <stdbool.h>
#include <stdint.h>

struct strategy;

struct unit_range {
    int first, count; /* units side by side */
};

struct weights_ops {
    const char *name;
    void (*plan)(struct strategy *s, struct plan *p);
    int (*open)(struct strategy *s, const struct plan *p, struct dt_error *err);
    void (*fetch)(struct strategy *s, int unit); /* start bringing them in; harmless twice */
    const void *(*get)(struct strategy *s, int unit);
    void (*drop)(struct strategy *s, int unit); /* the slot may be used again; harmless when it
                                                   * is not there */
    /* The part of a unit that this rank's optimizer updates, in s->weights_home. */
    struct home_part (*slice)(struct strategy *s, int unit);
    void (*publish)(struct strategy *s); /* the update is enqueued on the compute
                                                   * stream: let the others have it */
    void (*close)(struct strategy *s);
};

struct grads_ops {
    const char *name;
    void (*plan)(struct strategy *s, struct plan *p);
    int (*open)(struct strategy *s, const struct plan *p, struct dt_error *err);
    /* Where backward writes, and whether it adds. The first micro-step overwrites; blocks that
     * share a unit know who adds (block.h). */
    void *(*get)(struct strategy *s, int unit, int64_t micro_step, bool *accumulate);
    /* Backward has completed the unit. Returns the units whose sums over ranks and micro-steps
     * are done with this, in the order of strategy_sums' stream. */
    struct unit_range (*reduce)(struct strategy *s, int unit, bool last_micro_step);
    /* Reduced sums of the owned elements, valid after strategy_land: of s->grads_home. */
    struct home_part (*slice)(struct strategy *s, int unit);
    void (*close)(struct strategy *s);
};

enum part { PART_WHOLE, PART_SLICE };
enum group { GROUP_WORLD, GROUP_NODE };
enum reduce_at { REDUCE_BOUNDARY, REDUCE_EVERY_MICRO_STEP };

struct strategy_row {
    const char *name;
    const struct weights_ops *weights;
    const struct grads_ops *grads; /* how gradients rest between micro-steps; accumulate_sync may
                                    * choose the other one */
    enum part optimizer;
    enum group group; /* GROUP_NODE: slices within a shard group, replicas across (hybrid) */
    enum reduce_at reduce;
    bool keep_after_forward;
    struct residence rests;
    const char *help;
    const char *hook; /* of hooks.c, where the row has one of its own; otherwise null */
};

struct strategy_alias {
    const char *name, *row; /* what the name says of offloading is job_strategy.c's */
};

/* What a strategy was asked to do, in the order in which it was asked: G gather, F and B
 * compute, R reduce, P publish, D drop, S slice again, g gather from that. */
struct strategy_trace {
    int count;
    struct {
        char what;
        int unit;
    } entries[1024];
};

struct slot {
    void *data;
    int unit;   /* whose data is inside (or on its way); -1: nobody's */
    int first;  /* number of the first unit assigned to it; -1 none */
    bool mixed; /* units of different layouts share it: gaps of one are data of another, so
                 * gradients are cleared before each use */
    struct dt_event *filled, *freed;
};

/* live.c: which weights are whole at a time. */
struct live {
    bool *kept;      /* units: from forward to backward */
    int (*ahead)[2]; /* blocks: how many further ones are gathered ahead, in forward and backward */
    int sets, grad_sets;
    bool turns; /* the last layer stays for its backward, which comes next */
};

struct slots { /* units that stay have one of their own; all others take sets of them in turn */
    struct slot *slot;
    int count;
    int *of;        /* slot of each unit */
    int piece;      /* in the plan: all slots, one after the other */
    int64_t *first; /* elements before each slot */
    int64_t total;
    size_t type_size; /* of an element */
};

struct strategy {
    const struct strategy_row *row;
    const struct weights_ops *weights;
    const struct grads_ops *grads;
    struct residence rests; /* the row's, as the job wishes it */
    struct home_settings optimizer_settings, weights_settings;
    enum part optimizer;
    bool reduce_every, keep_after_forward;
    int reshard; /* ranks over which weights are sliced from forward to backward; 0: as before it */
    struct live live;
    bool forward_prefetch;
    enum prefetch prefetch;
    struct chain *chain;
    struct world *world; /* null while only planning */
    int size, shards, replicas, shard_rank, replica_rank;
    bool alone;  /* one rank: no collective is ever issued */
    bool trains; /* false: the job only evaluates, as if all units were frozen */
    struct precision precision;
    size_t type_size;    /* of an element of precision.compute, as weights are gathered */
    int64_t total;       /* elements of all units */
    int64_t *unit_first; /* elements before each unit */
    int64_t grad_total;  /* the same of gradients: frozen units have none */
    int64_t *grad_first;
    int64_t portion; /* elements that an update brings at a time at most: home_ops.portion */
    struct dt_arena arena;
    struct strategy_trace *trace; /* tests; may be null */
    struct timeline *timeline;    /* the trainer's; may be null */

    /* placements' own */
    struct reshards { /* of fsdp.reshard_after_forward: each unit's share, and whether it is there */
        int piece;
        int64_t *first; /* elements before each unit; below 0: it has none */
        bool *filled;
        char *data;
        struct dt_event *done; /* what was kept last */
    } kept_shares;
    struct home weights_home, grads_home;
    int discard_piece;
    void *discard; /* gradients of units that are frozen by the job; null: there are none */
    int wire_piece;
    char *wire_base; /* grads_whole: where gradients of another type are while they travel */
    struct slots gather, gradient;
    struct hook hook;      /* grads_whole, all_reduce: how a bucket's gradients are summed */
    double gradient_share; /* of this step: what reduced gradients times this is their sum over all ranks, or
                                   * stands for it */
    double first_bucket_bytes, bucket_cap_bytes; /* grads_whole, all_reduce: units that lie side by side travel
                              * together */
    int *bucket_of;                              /* per unit */
    struct bucket {
        int first, count;  /* units, frozen ones among them */
        int wanted, ready; /* trained ones; how many of these are complete in this step */
    } * buckets;
    struct dt_event **unit_ready; /* weights_whole: published and arrived */
    struct dt_event **unit_done;  /* gradients of a unit are complete on the compute stream */
    struct dt_event *updated, *demand, *landed, *gathered;
    int64_t micro_step;
};

/* Finds a row by name or alias for a world of `size` ranks ("auto": ddp, or single_device when
 * alone). DT_INVALID with the nearest name, or saying that it is not there yet. */
const struct strategy_row *strategy_find(const char *name, int size, struct dt_error *err);
/* Row number i; null behind the last one. */
const struct strategy_row *strategy_at(int i);
/* Do two rows differ in their names alone? */
bool strategy_same(const struct strategy_row *a, const struct strategy_row *b);
/* Table of all rows and aliases, as people read it. */
void strategy_list(struct dt_text *out);
/* Ranks in a shard group for this job: size, or the columns of fsdp.device_mesh (default: ranks
 * per host) for hybrid rows. */
int strategy_shards(const struct strategy_row *row, const struct job *job, int size, int local_size, int *out,
                    struct dt_error *err);

/* How the job's chain is to be put into units for this row. */
struct wrap_policy strategy_wrap(const struct strategy_row *row, const struct job *job, int shards);
/* Prepares sizes; s->chain must be built for `shards`. rank: of this process. Needs no world. */
int strategy_init(struct strategy *s, const struct strategy_row *row, const struct job *job, struct chain *chain,
                  const struct precision *precision, int rank, int size, int shards, struct dt_error *err);
/* Part of strategy_init: sets s->live, and how weights are prefetched. */
void strategy_plan_live(struct strategy *s, const struct job_fsdp *f);
void strategy_plan(struct strategy *s, struct plan *p);
/* All ranks, before strategy_open: where the strategy gathers weights between its reductions,
 * gathers get a communicator and a stream of their own if they may (world_separate_gathers); and
 * the communicators of w make what they need for the collectives that this strategy will ask for
 * (dt_comm_connect). */
int strategy_connect(const struct strategy *s, struct world *w, struct dt_error *err);
/* Takes its part of an open plan; opens events. */
int strategy_open(struct strategy *s, struct world *w, const struct plan *p, struct dt_error *err);
void strategy_close(struct strategy *s);

/* Elements [first, first + count) of the unit that the optimizer updates here / that count here. */
void strategy_owned(const struct strategy *s, int unit, int64_t *first, int64_t *count);
void strategy_share(const struct strategy *s, int unit, int64_t *first, int64_t *count);
/* Elements of the unit's weights that stay here between uses (whole or slice), and where they
 * are. */
struct home_part strategy_resident(struct strategy *s, int unit, int64_t *first, int64_t *count);
/* Before a unit's weights are dropped in the forward pass of training: the share of them that this rank has until
 * backward, of fsdp.reshard_after_forward. */
void strategy_reshard(struct strategy *s, int unit);
/* The unit stays when the block, its last one in forward, has used it. */
bool strategy_stays(const struct strategy *s, const struct block *b, int unit);
/* The unit is trained: it has gradients, and the optimizer updates it. */
bool strategy_trains(const struct strategy *s, int unit);
/* Where backward writes gradients of a unit that is not trained; null: its blocks compute none. */
void *strategy_discard(const struct strategy *s, int unit);
/* Rank 0's buffers (running statistics, `count` elements of precision.buffers) become
 * everybody's, in the order of the compute stream. */
void strategy_send_buffers(struct strategy *s, void *buffers, int64_t count);
/* Elements `at` of rank `root` of a communicator become those of all its ranks, in the same order. */
void strategy_send(struct strategy *s, struct dt_comm *comm, int root, const char *name, void *at, int64_t count,
                   enum dt_dtype type);
/* No rank's compute stream goes on before all ranks' have come here. name: as in struct dt_collective. */
void strategy_barrier(struct strategy *s, const char *name);
/* The collectives by which batch norms take statistics over all ranks (training.sync_batch_norm): those
 * of the world, in the order of the compute stream. Valid as long as s. */
struct pass_peers strategy_peers(struct strategy *s);
/* True on the ranks whose shares count (all but the further replicas of hybrid rows). */
bool strategy_counts(const struct strategy *s);
/* The stream in whose order the sums of gradients come about: compute's when alone. */
struct dt_stream *strategy_sums(const struct strategy *s);
/* The compute stream waits for all reductions and gathers. */
void strategy_land(struct strategy *s);

/* Multiprocessors that collectives of this strategy may take at most while this call of a block
 * computes; 0: none, or nothing bounds them. Those count that run beside such passes as a rule,
 * not the last of a micro-step, which reach into the next one's forward. A function of the job
 * and of w's communicators alone, so the same in each step; s need not be open. PASS_RECOMPUTE:
 * what its PASS_FORWARD had. */
int strategy_busy_sms(const struct strategy *s, const struct world *w, enum pass_phase phase, bool last_block,
                      bool first_micro_step, bool last_micro_step);

/* For placements and the optimizer. */
/* Plans an array of `count` elements, of which at most a unit's, a portion or PINNED_WINDOW_BYTES
 * are brought at a time. */
void strategy_plan_home(const struct strategy *s, struct home *h, const struct home_ops *ops, struct plan *p,
                        enum plan_purpose purpose, enum plan_memory memory, int64_t count, enum dt_dtype type);
void strategy_note(struct strategy *s, char what, int unit);
/* Brings the `count` elements that each rank of c (the world's gather or reshard) has of a unit together, on the
 * gathering stream. */
void strategy_gather(struct strategy *s, int unit, struct dt_comm *c, const void *in, void *out, int64_t count,
                     enum dt_dtype type, const char *name);
/* Any other collective, of this unit and, perhaps, some behind it, on the communication stream. */
void strategy_start(struct strategy *s, int unit, struct dt_comm *c, enum dt_coll kind, enum dt_dtype type,
                    const void *in, void *out, int64_t count, const char *name);
/* `sets`: how many sets of slots units take in turn, one block after the other. */
void slots_plan(struct strategy *s, struct slots *x, struct plan *p, enum plan_purpose purpose, int sets,
                enum dt_dtype type);
int slots_open(struct strategy *s, struct slots *x, const struct plan *p, struct dt_error *err);
void slots_close(struct slots *x);

extern const struct weights_ops weights_whole, weights_sliced;
extern const struct grads_ops grads_whole, grads_sliced;

#endif
