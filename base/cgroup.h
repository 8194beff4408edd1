/* The control groups of this process: version 2, version 1, or both at once. */
#ifndef DT_BASE_CGROUP_H
#define DT_BASE_CGROUP_H

#include <stdbool.h>

#define DT_CGROUP_MAX 32

struct dt_cgroup {
    char path[1024]; /* a folder below /sys/fs/cgroup, which may not be there: a container sees
                      * its own group as the root */
    bool version_2;
};

/* Folders for a controller ("memory"), of each version from our own group up to the root;
 * returns how many, at most DT_CGROUP_MAX. */
int dt_cgroup_folders(const char *controller, struct dt_cgroup out[DT_CGROUP_MAX]);
/* CPU time that our group and those above it may use, in cores; 0: no limit. */
double dt_cgroup_cpus(void);

#endif
