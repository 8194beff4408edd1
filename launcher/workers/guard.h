/* The guard is the process that the user started. It forks the agent, passes signals on to it, ends
 * what the agent leaves behind, and exits with the agent's code. It keeps no state but a time that
 * the agent sets, so nothing is lost with it. If one of the two is killed, the other ends every
 * descendant. If both are killed, a third process does (guard.c). After a killed agent the guard
 * also ends the agent's connections in order (shared_files.h). */
#ifndef DT_LAUNCHER_WORKERS_GUARD_H
#define DT_LAUNCHER_WORKERS_GUARD_H

#include "base/error.h"
#include "launcher/workers/process.h"

#include <stdbool.h>
#include <sys/types.h>

/* Splits the process and returns 0 in the agent. The agent has a process group of its own, is a
 * child subreaper, gets TERM when the guard dies, and begins with the signals blocked that the
 * guard passes on: handled[n], and the usual ones. The parent stays inside. It exits with the
 * agent's code, with 128 + n if INT or TERM killed the agent, and with 111 if another signal did.
 * Last of all it calls `ending` with that code. Returns -1 if it cannot fork. */
int guard_open(const bool handled[65], void (*ending)(int code), struct dt_error *err);
/* In the agent: whether the guard still runs. */
bool guard_alive(void);
/* In the agent: the guard's process group, which the user's shell knows. */
pid_t guard_group(void);
/* In the agent: workers of this host may live until then (monotonic, in seconds; 0: without limit).
 * The agent renews the limit while other hosts count on these workers. After the limit the guard
 * kills all processes that the agent has started, even if the agent itself is stopped, because
 * another round may begin without this host. */
void guard_workers_until(double until_s);
/* In the agent: whether that limit has passed, so that the guard may have killed workers. */
bool guard_workers_overdue(void);
/* Writes at most `max` descendants of the calling process to out, whatever their session, that run
 * and that it may signal. Returns their number. *dying: some descendants are zombies, so the newest
 * children of those may be missing. */
int guard_descendants(pid_t *out, int max, bool *dying);
/* Sends KILL to every descendant of the calling process, whatever its session. Returns how many
 * could be signalled; a process that became another user's (sudo) cannot. The caller still has to
 * reap them. */
int guard_kill_descendants(void);
/* Kills and reaps descendants until none is left, for at most timeout_s (a process in the kernel
 * cannot be ended). Returns true if none is left. Blocks. The calling process must not need the
 * exit status of any child. */
bool guard_end_descendants(double timeout_s);
/* What a process, its living descendants, and the children that they waited for have used so
 * far. */
struct process_use guard_use(pid_t pid);

#endif
