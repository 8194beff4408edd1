/* Lines of /proc/self/cgroup: "0::/a/b" is version 2, "9:cpu,cpuacct:/a/b" version 1. */
#include "base/cgroup.h"

#include "base/file.h"
#include "base/proc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NO_LIMIT 1e18 /* what version 1 writes where there is none is more */

static bool has_word(char *list, const char *word)
{
    char *rest = list;
    for (char *one; (one = strsep(&rest, ",")) != NULL;) {
        if (strcmp(one, word) == 0) {
            return true;
        }
    }
    return false;
}

int dt_cgroup_folders(const char *controller, struct dt_cgroup out[DT_CGROUP_MAX])
{
    struct dt_text text;
    int count = 0;
    dt_text_init(&text);
    char *rest = dt_file_read("/proc/self/cgroup", 1 << 16, &text, NULL) == 0 ? text.data : NULL;
    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        char *controllers = (strsep(&line, ":"), strsep(&line, ":")), *group = line;
        if (group == NULL || (*controllers != '\0' && !has_word(controllers, controller))) {
            continue;
        }
        bool version_2 = *controllers == '\0';
        for (char *end = group + strlen(group); end != NULL && count < DT_CGROUP_MAX; end = strrchr(group, '/')) {
            *end = '\0'; /* "/a/b", "/a", "" */
            if (end == group || end[-1] != '/') {
                (void)snprintf(out[count].path, sizeof out[count].path, "/sys/fs/cgroup%s%s%s", version_2 ? "" : "/",
                               version_2 ? "" : controller, group);
                out[count++].version_2 = version_2;
            }
        }
    }
    dt_text_clear(&text);
    return count;
}

double dt_cgroup_number(const struct dt_cgroup *g, const char *name_2, const char *name_1, const char *key)
{
    char path[sizeof g->path + 64];
    (void)snprintf(path, sizeof path, "%s/%s", g->path, g->version_2 ? name_2 : name_1);
    return dt_proc_number(path, key);
}

double dt_cgroup_least(const char *controller, const char *name_2, const char *name_1)
{
    struct dt_cgroup folders[DT_CGROUP_MAX];
    double least = -1;
    int count = dt_cgroup_folders(controller, folders);
    for (int i = 0; i < count; i++) {
        double value = dt_cgroup_number(&folders[i], name_2, name_1, "");
        least = value >= 0 && value < NO_LIMIT && (least < 0 || value < least) ? value : least;
    }
    return least;
}

/* Version 2 has both numbers in one file, version 1 in two. */
static bool read_quota(const struct dt_cgroup *g, long long *quota, long long *period)
{
    struct dt_text text;
    dt_text_init(&text);
    char *path = dt_format(g->version_2 ? "%s/cpu.max" : "%s/cpu.cfs_quota_us", g->path);
    char *more = dt_format("%s/cpu.cfs_period_us", g->path);
    *quota = *period = 0;
    if (dt_file_read(path, 256, &text, NULL) == 0) {
        (void)sscanf(dt_text_str(&text), "%lld %lld", quota, period); /* "max" and -1: none */
    }
    if (!g->version_2 && dt_file_read(more, 256, &text, NULL) == 0) {
        (void)sscanf(dt_text_str(&text), "%lld", period);
    }
    free(more);
    free(path);
    dt_text_clear(&text);
    return *quota > 0 && *period > 0;
}

double dt_cgroup_cpus(void)
{
    struct dt_cgroup folders[DT_CGROUP_MAX];
    long long quota, period;
    double least = 0;
    int count = dt_cgroup_folders("cpu", folders);
    for (int i = 0; i < count; i++) {
        if (read_quota(&folders[i], &quota, &period)) {
            double cpus = (double)quota / (double)period;
            least = least > 0 && least < cpus ? least : cpus;
        }
    }
    return least;
}
