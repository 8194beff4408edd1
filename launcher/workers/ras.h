/* What NCCL's ranks say of themselves when a worker hangs. Since 2.24 a thread in each process
 * of NCCL (RAS) listens on the loopback, all of them at one port, 28028 or as NCCL_RAS_ADDR has
 * it; the one that takes the connection asks all ranks, and tells in words which communicators
 * stand still and whose ranks are behind. Lines of text (NCCL user guide, "RAS"): CLIENT
 * PROTOCOL n, TIMEOUT seconds, VERBOSE STATUS. The port is the same for all jobs, so nobody is
 * asked where a process listens that is not of this one; and as one of those that listen may be
 * the one that hangs, several connections are tried at once. */
#ifndef DT_LAUNCHER_WORKERS_RAS_H
#define DT_LAUNCHER_WORKERS_RAS_H

#include "base/text.h"

#include <stdbool.h>
#include <sys/types.h>
#include <uv.h>

struct ras;

struct ras_options {
    const char *address; /* NCCL_RAS_ADDR; null or "": as NCCL has it */
    double limit_s;      /* for the whole answer */
    void *user;
    bool (*is_ours)(void *user, pid_t pid);
    void (*done)(void *user); /* once, from the loop: there is an answer, or there will be none;
                               * it may close r */
};

/* Begins; null when no process of ours listens there, or also others do: then `done` is not
 * called. */
struct ras *ras_open(uv_loop_t *loop, const struct ras_options *options);
/* Appends the answer's lines, as far as they came; nothing where none did, or it is none of RAS.
 * indent: before each line, which then is at most 200 characters long, without blank ones; of
 * many, as errors and warnings come last, the first few and the last ones. Null: all of it. */
void ras_text(const struct ras *r, const char *indent, struct dt_text *out);
/* Null is harmless. Run the loop until its handles are closed, which frees it. */
void ras_close(struct ras *r);

#endif
