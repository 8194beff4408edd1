/* The plan: every byte of a rank's training memory by purpose, added up before anything is
 * allocated, then allocated once. Whoever needs memory adds pieces while planning and asks for
 * their addresses when the plan is open. Three blocks: what peers reach (collectives use it
 * where it is), what only this rank's device uses, and pinned host memory for what goes to the
 * device and comes back. Pieces are aligned to 4096 bytes when large, otherwise to 128, with 256
 * unused bytes after each, marked by dt_guard. */
#ifndef DT_WORKER_ENGINE_PLAN_H
#define DT_WORKER_ENGINE_PLAN_H

#include "base/error.h"
#include "base/text.h"
#include "worker/engine/world.h"

#include <stddef.h>
#include <stdint.h>

enum plan_purpose {
    PLAN_WEIGHTS,
    PLAN_GRADIENTS,
    PLAN_OPTIMIZER,
    PLAN_ACTIVATIONS,
    PLAN_GATHER_SLOTS,
    PLAN_GRADIENT_SLOTS,
    PLAN_COMMUNICATION,
    PLAN_BATCH,
    PLAN_SCRATCH,
    PLAN_STAGING, /* host memory that the device copies from and to; all other purposes are the
                   * device's, but */
    PLAN_HOST,    /* arrays that rest in the host's memory beside a device with its own */
    PLAN_PURPOSE_COUNT
};
enum plan_memory { PLAN_LOCAL, PLAN_PEERS, PLAN_PINNED, PLAN_MEMORY_COUNT };

struct plan_piece {
    enum plan_memory memory;
    size_t size_bytes, offset;
};

struct plan {
    struct plan_piece *pieces;
    int piece_count, piece_capacity;
    size_t bytes[PLAN_PURPOSE_COUNT]; /* of one rank */
    size_t size_bytes[PLAN_MEMORY_COUNT];
    size_t file_bytes;             /* of arrays that rest in files */
    double moved_bytes;            /* from and to files in a step */
    void *base[PLAN_MEMORY_COUNT]; /* null until open */
    struct dt_device *device;
};

void plan_init(struct plan *p);
/* Adds a piece; returns its number. Zero bytes are allowed (the address is then null). */
int plan_add(struct plan *p, enum plan_purpose purpose, enum plan_memory memory, size_t size_bytes);
/* Allocates the blocks (zeroed). All ranks call it alike. DT_NO_MEMORY names bytes wanted. */
int plan_open(struct plan *p, struct world *w, struct dt_error *err);
/* Address of a piece of an open plan. */
void *plan_at(const struct plan *p, int piece);
/* Frees what is the device's; the peers' block goes with the communicator. */
void plan_clear(struct plan *p);
size_t plan_total(const struct plan *p);
const char *plan_purpose_name(enum plan_purpose purpose); /* "weights", "gather_slots" */

/* Bytes this process could still get: the least of MemAvailable, what the control groups leave,
 * and RLIMIT_AS (which counts one process, so it is multiplied by `local_ranks` to compare
 * alike). `what` names the limit, for messages; out_bytes >= 32. */
double plan_available(int local_ranks, char *what, size_t what_bytes);

#endif
