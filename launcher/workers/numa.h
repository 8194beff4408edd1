/* Which CPUs a worker is bound to by --numa_binding, as torch/numa/binding.py of PyTorch 2.15
 * chooses them: near the device whose number is the worker's local rank. Reads sysfs below a
 * root of the caller's; binds nothing.
 *
 *     worker 5 ── device 5 ── its PCI address ── NUMA node ──▶ node:          the node's CPUs
 *                                                              socket:        those of all nodes of its socket
 *                                                              exclusive:     its even share of the node's physical cores
 *                                                              core-complex:  one of the groups that share the node's last cache
 *
 * Where torch fails, because one of the nodes that are possible is not there, has only memory,
 * or has no CPU that we may use, that node has no part here. */
#ifndef DT_LAUNCHER_WORKERS_NUMA_H
#define DT_LAUNCHER_WORKERS_NUMA_H

#include "launcher/workers/cpus.h"

enum numa_mode { NUMA_BY_NODE, NUMA_BY_SOCKET, NUMA_EXCLUSIVE, NUMA_BY_CORE_COMPLEX };

struct numa {
    const char *sys; /* "/sys" */
    enum numa_mode mode;
    struct cpus allowed; /* no mask goes beyond these */
    const int *nodes;    /* (device_count) NUMA node of each device */
    int device_count;
};

/* 0 and *out for "node", "socket", "exclusive" and "core-complex"; else -1. */
int numa_mode_of(const char *word, enum numa_mode *out);
/* NUMA node of the PCI device at an address as sysfs writes it, "0000:3b:00.0". 0 where the
 * kernel knows none (-1), as on machines with one node. */
int numa_node_of(const char *sys, const char *address, int *out, struct dt_error *err);
/* Nodes for `count` devices that are none: even blocks over the nodes that have allowed CPUs,
 * neighbours together. out: (count). */
int numa_spread(const char *sys, const struct cpus *allowed, int count, int *out, struct dt_error *err);
/* CPUs for a device, never empty. Fails, naming the file or the number that is not enough, when
 * there are none. */
int numa_mask(const struct numa *n, int device, struct cpus *out, struct dt_error *err);

#endif
