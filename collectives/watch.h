/* Looking after peers while the host is elsewhere: see watch.c. For comm.c. */
#ifndef DT_COLLECTIVES_WATCH_H
#define DT_COLLECTIVES_WATCH_H

#include "collectives/comm.h"

/* Begins to look after an open communicator; a group is taken along by its parent's thread.
 * Nothing for backends of host memory, whose `run` looks itself. */
int comm_watch_begin(struct dt_comm *c, struct dt_error *err);
/* Before it is closed. Harmless without a begin. */
void comm_watch_end(struct dt_comm *c);
/* comm.c: the first failure stays. */
void comm_keep(struct dt_comm *c, const struct dt_error *why);

#endif
