/* The facts that one process finds on its host; checks.c judges them. Each thing to look at is a
 * row of a table. */
#ifndef DT_CMD_DOCTOR_LOOK_H
#define DT_CMD_DOCTOR_LOOK_H

#include "cmd/doctor/facts.h"

/* Looks at everything and adds to f. Ends after seconds at the latest: "late" then names what
 * had not come back (a dead file system, say); what was found until then is there. env:
 * NAME=VALUE, null-terminated, borrowed for as long as the process lives. */
void doctor_look(struct facts *f, char *const *env, double seconds);

/* ---- rows that live in doctor_look_net.c ---- */

void look_names(struct facts *f, char *const *env);
void look_interfaces(struct facts *f, char *const *env);
void look_ports(struct facts *f, char *const *env);

/* ---- rows that live in doctor_look_gpu.c ---- */

void look_gpus(struct facts *f, char *const *env);
void look_cuda(struct facts *f, char *const *env); /* how CUDA's own driver and libraries answer:
                                                    * some seconds, where there is a driver */

#endif
