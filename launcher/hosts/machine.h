/* Which machine this is, so that what happens to an address is not taken for what happens to a
 * process: many hosts may use the same address. */
#ifndef DT_LAUNCHER_HOSTS_MACHINE_H
#define DT_LAUNCHER_HOSTS_MACHINE_H

#include <stdint.h>

/* A number made of what tells one running kernel, and one network inside it, from all others
 * (boot id, network namespace): of two processes with the same number and the same address and
 * port, one at most listens there. 0: the kernel does not say. */
uint64_t machine_id(void);

#endif
