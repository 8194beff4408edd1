/* Identifies the machine. Many hosts may use the same address, so an event at an address says
 * something about a process only if the machine is the same, too. */
#ifndef DT_LAUNCHER_HOSTS_MACHINE_H
#define DT_LAUNCHER_HOSTS_MACHINE_H

#include <stdint.h>

/* A number that identifies a running kernel and a network inside it (boot id, network namespace).
 * Of two processes with the same number, address and port, at most one listens there. 0: the kernel
 * does not tell. */
uint64_t machine_id(void);

#endif
