/* The facts that one process finds on its host; checks.c judges them. Each thing to look at is a
 * row of a table. */
#ifndef DT_CMD_DOCTOR_LOOK_H
#define DT_CMD_DOCTOR_LOOK_H

#include "cmd/doctor/facts.h"

#include <stdint.h>

/* Looks at everything and adds to f. Ends after seconds at the latest: "late" then names what
 * had not come back (a dead file system, say); what was found until then is there. env:
 * NAME=VALUE, null-terminated, borrowed for as long as the process lives. */
void doctor_look(struct facts *f, char *const *env, double seconds);

/* ---- pure parts ---- */

/* Number after "key:" in text as /proc/meminfo has it, times 1024 where "kB" follows; -1 when it
 * is not there. */
double look_size_after(const char *text, const char *key);
/* CPUs as the kernel lists them ("0-3,8"); bits of set (bytes * 8 CPUs) are set. Returns how
 * many, or -1 for what is no such list. */
int look_cpu_list(const char *text, uint8_t *set, int bytes);

/* ---- rows that live in doctor_look_net.c ---- */

void look_names(struct facts *f, char *const *env);
void look_interfaces(struct facts *f, char *const *env);
void look_ports(struct facts *f, char *const *env);

/* ---- rows that live in doctor_look_gpu.c ---- */

void look_gpus(struct facts *f, char *const *env);
void look_cuda(struct facts *f, char *const *env); /* how CUDA's own driver and libraries answer:
                                                    * some seconds, where there is a driver */

#endif
