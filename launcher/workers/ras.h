/* Asks NCCL's ranks for their state when a worker hangs. Since NCCL 2.24 each process has a thread
 * (RAS) that listens on the loopback interface, all at the same port, 28028 or the one in
 * NCCL_RAS_ADDR. The thread that takes a connection asks all ranks, and reports which communicators
 * stand still and which ranks are behind. The protocol is lines of text (NCCL user guide, "RAS"):
 * CLIENT PROTOCOL n, TIMEOUT seconds, VERBOSE STATUS. All jobs use the same port, so nothing is
 * asked if a process of another job listens there. The thread that takes a connection may be in the
 * process that hangs, so several connections are tried at once. */
#ifndef DT_LAUNCHER_WORKERS_RAS_H
#define DT_LAUNCHER_WORKERS_RAS_H

#include "base/text.h"

#include <stdbool.h>
#include <sys/types.h>
#include <uv.h>

struct ras;

struct ras_options {
    const char *address; /* NCCL_RAS_ADDR; null or "": NCCL's default */
    double limit_s;      /* limit of the whole answer */
    void *user;
    bool (*is_ours)(void *user, pid_t pid);
    /* called once, from the loop: the answer is there, or none will come; it may close r */
    void (*done)(void *user);
};

/* Begins to ask. Returns null, without a call of `done`, if no process of ours listens there, or
 * others listen, too. */
struct ras *ras_open(uv_loop_t *loop, const struct ras_options *options);
/* Appends the answer's lines that have arrived; nothing if none has, or they are not from RAS.
 * indent: precedes each line. Then lines are cut at 200 characters, blank lines are left out, and
 * of many lines only the first few and the last ones are kept, because errors and warnings come
 * last. indent null: appends everything. */
void ras_text(const struct ras *r, const char *indent, struct dt_text *out);
/* r may be null. Run the loop until the handles are closed; then r is freed. */
void ras_close(struct ras *r);

#endif
