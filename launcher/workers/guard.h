/* The guard: the process that the user started. It forks the agent, passes signals on to it,
 * ends whatever the agent leaves behind, and exits with the agent's code. It holds no state but
 * a time that the agent sets, so nothing is lost with it; whoever of the two is killed, the
 * other one ends every descendant; of both, a third process does (guard.c); when it was the
 * agent, its connections end in order after that (shared_files.h). */
#ifndef DT_LAUNCHER_WORKERS_GUARD_H
#define DT_LAUNCHER_WORKERS_GUARD_H

#include "base/error.h"
#include "launcher/workers/process.h"

#include <stdbool.h>
#include <sys/types.h>

/* Splits the process. Returns 0 in the agent: a process group of its own, child subreaper, TERM
 * when the guard dies, signals blocked that the guard passes on: handled[n], and the usual ones.
 * The parent stays inside and exits with the agent's code; with 128 + n when INT or TERM killed
 * it, and 111 when another signal did; it calls `ending` with that code, last of all. -1: cannot
 * fork. */
int guard_open(const bool handled[65], void (*ending)(int code), struct dt_error *err);
/* In the agent: the guard still runs. */
bool guard_alive(void);
/* In the agent: the process group that the user's shell knows, the guard's. */
pid_t guard_group(void);
/* In the agent: workers of this host may live until then (monotonic, in seconds; 0: without
 * limit). Renewed as long as other hosts count on them; afterwards the guard kills all that the
 * agent has started, even while the agent itself is stopped: a round may begin elsewhere without
 * this host. */
void guard_workers_until(double until_s);
/* In the agent: that time is over, so the guard may have ended workers. */
bool guard_workers_overdue(void);
/* Descendants of the calling process, whatever their session, that run and that it may signal:
 * at most `max` of them in out. Returns how many. *dying: some have ended and nobody has taken
 * their status yet, so what they started last may not be among these. */
int guard_descendants(pid_t *out, int max, bool *dying);
/* Sends KILL to every descendant of the calling process, whatever its session; returns how many
 * took it: what has become another user's (sudo) is not ours to end. They still have to be
 * reaped. */
int guard_kill_descendants(void);
/* Kills and reaps descendants until there are none, for at most timeout_s (a process in the
 * kernel cannot be ended). Returns true when none is left. Blocks; the calling process must not
 * need the exit status of any child. */
bool guard_end_descendants(double timeout_s);
/* What a process and its living descendants have used so far, with the children that they have
 * waited for. */
struct process_use guard_use(pid_t pid);

#endif
