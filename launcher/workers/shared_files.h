/* One table of descriptors for guard and agent: what the agent has open lives on for a moment
 * when the agent is killed. Its kernel would reset each connection that had words unread, and a
 * reset from another machine proves nothing (member.h); the guard ends them in order. */
#ifndef DT_LAUNCHER_WORKERS_SHARED_FILES_H
#define DT_LAUNCHER_WORKERS_SHARED_FILES_H

#include <sys/types.h>

/* fork(), of a process with one thread; with one table of descriptors for both, where the kernel
 * can (what either closes is closed for both). */
pid_t shared_files_fork(void);
/* In the parent: has a table of its own from now on, with 0, 1 and 2 only. Needs no free
 * descriptor, and leaves room for some. */
void shared_files_part(void);
/* In the parent, when the child is gone: closes all but 0, 1, 2 and connections. */
void shared_files_trim(void);
/* The same, later: ends all connections in order, reads away what came for them, and waits until
 * the other sides know (timeout_s at most). */
void shared_files_end(double timeout_s);

#endif
