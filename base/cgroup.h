/* The control groups of this process: version 2, version 1, or both at once. */
#ifndef DT_BASE_CGROUP_H
#define DT_BASE_CGROUP_H

#include <stdbool.h>

#define DT_CGROUP_MAX 32

struct dt_cgroup {
    /* a folder below /sys/fs/cgroup; it may not exist, since a container sees its own group as the
     * root */
    char path[1024];
    bool version_2;
};

/* Lists folders for a controller ("memory"), for each version from our own group up to the root.
 * Returns their number, at most DT_CGROUP_MAX. */
int dt_cgroup_folders(const char *controller, struct dt_cgroup out[DT_CGROUP_MAX]);
/* CPU time that our group and those above it may use, in cores; 0: no limit. */
double dt_cgroup_cpus(void);

#endif
