/* Watching the peers while the host is elsewhere: see watch.c. For comm.c. */
#ifndef DT_COLLECTIVES_WATCH_H
#define DT_COLLECTIVES_WATCH_H

#include "collectives/comm.h"

/* Watches an open communicator. A group is watched by its parent's thread. Does nothing for
 * backends of host memory, whose `run` looks around itself. */
int comm_watch_begin(struct dt_comm *c, struct dt_error *err);
/* Call it before c is closed. Does nothing if c is not watched. */
void comm_watch_end(struct dt_comm *c);
/* comm.c: keeps `why` as c's first failure, unless there is one already. */
void comm_keep(struct dt_comm *c, const struct dt_error *why);

#endif
