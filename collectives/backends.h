/* The table of backends, for comm.c and the backends themselves. */
#ifndef DT_COLLECTIVES_BACKENDS_H
#define DT_COLLECTIVES_BACKENDS_H

#include "collectives/comm.h"

extern const struct dt_comm_ops dt_comm_solo; /* solo.c: one rank */
extern const struct dt_comm_ops dt_comm_shm;  /* shm.c: ranks of one host */

#endif
