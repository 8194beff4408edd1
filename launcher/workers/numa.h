/* The CPUs to which --numa_binding binds a worker, chosen as in torch/numa/binding.py of PyTorch
 * 2.15: near the device whose number is the worker's local rank. Reads sysfs below a root that the
 * caller gives; binds nothing.
 *
 *     worker 5 ── device 5 ── its PCI address ── NUMA node ──▶
 *         node:          the node's CPUs
 *         socket:        the CPUs of all nodes of its socket
 *         exclusive:     its even share of the node's physical cores
 *         core-complex:  one of the groups that share the node's last cache
 *
 * torch fails if one of the possible nodes is not there, has only memory, or has no CPU that we may
 * use. Here such nodes are skipped. */
#ifndef DT_LAUNCHER_WORKERS_NUMA_H
#define DT_LAUNCHER_WORKERS_NUMA_H

#include "launcher/workers/cpus.h"

enum numa_mode { NUMA_BY_NODE, NUMA_BY_SOCKET, NUMA_EXCLUSIVE, NUMA_BY_CORE_COMPLEX };

struct numa {
    const char *sys; /* "/sys" */
    enum numa_mode mode;
    struct cpus allowed; /* masks contain only these */
    const int *nodes;    /* (device_count) NUMA node of each device */
    int device_count;
};

/* Sets *out and returns 0 for "node", "socket", "exclusive" and "core-complex"; otherwise -1. */
int numa_mode_of(const char *word, enum numa_mode *out);
/* NUMA node of the PCI device at an address in the form of sysfs, "0000:3b:00.0". It is 0 if the
 * kernel knows none (-1), as on machines with one node. */
int numa_node_of(const char *sys, const char *address, int *out, struct dt_error *err);
/* Nodes for `count` workers without devices: even blocks over the nodes with allowed CPUs,
 * neighbours together. out: (count). */
int numa_spread(const char *sys, const struct cpus *allowed, int count, int *out, struct dt_error *err);
/* CPUs for a device, never empty. If there are none, the error names the file, or the number that
 * is too small. */
int numa_mask(const struct numa *n, int device, struct cpus *out, struct dt_error *err);

#endif
