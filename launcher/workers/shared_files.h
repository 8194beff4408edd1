/* One table of descriptors for guard and agent. So the agent's descriptors survive for a moment
 * when the agent is killed. Without this the kernel would reset each connection with unread data,
 * and a reset from another machine proves nothing (member.h). The guard ends the connections in
 * order. */
#ifndef DT_LAUNCHER_WORKERS_SHARED_FILES_H
#define DT_LAUNCHER_WORKERS_SHARED_FILES_H

#include <sys/types.h>

/* fork() for a process with one thread. If the kernel allows, both processes share one table of
 * descriptors: a close in either counts for both. */
pid_t shared_files_fork(void);
/* In the parent: takes a table of its own, with only 0, 1 and 2. It needs no free descriptor, and
 * leaves room for some. */
void shared_files_part(void);
/* In the parent, when the child is gone: closes all descriptors but 0, 1, 2 and connections. */
void shared_files_trim(void);
/* In the parent, after the trim: ends all connections in order, reads their remaining input, and
 * waits until the other sides have confirmed (at most timeout_s). */
void shared_files_end(double timeout_s);

#endif
