/* Files of sysfs that are read, below the root:
 *     bus/pci/devices/ADDRESS/numa_node                      -1 or a number
 *     devices/system/node/possible, nodeN/cpulist            lists; empty for a node without CPUs
 *     devices/system/cpu/cpuN/topology/physical_package_id   the socket
 *     devices/system/cpu/cpuN/topology/thread_siblings_list  logical CPUs of one physical core
 *     devices/system/cpu/cpuN/cache/indexN/{type,level,shared_cpu_list} */
#include "launcher/workers/numa.h"

#include "base/file.h"

#include <assert.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_BYTES ((size_t)64 << 10)

static const char *name_of(enum numa_mode mode)
{
    switch (mode) {
    case NUMA_BY_NODE:
        return "node";
    case NUMA_BY_SOCKET:
        return "socket";
    case NUMA_EXCLUSIVE:
        return "exclusive";
    case NUMA_BY_CORE_COMPLEX:
        return "core-complex";
    }
    return "unknown";
}

int numa_mode_of(const char *word, enum numa_mode *out)
{
    for (enum numa_mode mode = NUMA_BY_NODE; mode <= NUMA_BY_CORE_COMPLEX; mode++) {
        if (strcmp(word, name_of(mode)) == 0) {
            *out = mode;
            return 0;
        }
    }
    return -1;
}

/* ---- small files ---- */

static int read_list(const char *path, struct cpus *out, struct dt_error *err)
{
    struct dt_text text;
    dt_text_init(&text);
    int result = dt_file_read(path, FILE_BYTES, &text, err);
    if (result == 0 && cpus_parse(out, dt_text_str(&text), err) != 0) {
        result = dt_wrap(err, "%s", path);
    }
    dt_text_clear(&text);
    return result;
}

static int read_number(const char *path, long long *out, struct dt_error *err)
{
    struct dt_text text;
    char word[32];
    dt_text_init(&text);
    int result = dt_file_read(path, FILE_BYTES, &text, err);
    (void)snprintf(word, sizeof word, "%.*s", (int)strcspn(dt_text_str(&text), "\n"), dt_text_str(&text));
    if (result == 0 && !dt_parse_int64(word, out)) {
        result = dt_fail(err, DT_INVALID, "%s: %s: not a number", path, word);
    }
    dt_text_clear(&text);
    return result;
}

int numa_node_of(const char *sys, const char *address, int *out, struct dt_error *err)
{
    char path[512];
    long long node;
    (void)snprintf(path, sizeof path, "%s/bus/pci/devices/%s/numa_node", sys, address);
    if (read_number(path, &node, err) != 0) {
        return -1;
    }
    if (node >= CPUS_MAX) {
        return dt_fail(err, DT_INVALID, "%s: %lld: more than the %d nodes that there may be", path, node, CPUS_MAX);
    }
    *out = node > 0 ? (int)node : 0;
    return 0;
}

/* ---- nodes and sockets ---- */

/* The CPUs of the node that we may use. */
static int node_cpus(const char *sys, const struct cpus *allowed, int node, struct cpus *out, struct dt_error *err)
{
    char path[512];
    struct cpus all;
    (void)snprintf(path, sizeof path, "%s/devices/system/node/node%d/cpulist", sys, node);
    if (read_list(path, &all, err) != 0) {
        return -1;
    }
    if (!cpus_intersect(out, &all, allowed)) {
        struct dt_text mine, theirs;
        dt_text_init(&mine);
        dt_text_init(&theirs);
        cpus_print(allowed, &mine);
        cpus_print(&all, &theirs);
        (void)dt_fail(err, DT_NOT_FOUND, "node %d has %s%.100s, and this process may use %.100s", node,
                      theirs.size > 0 ? "CPUs " : "no CPU", dt_text_str(&theirs), dt_text_str(&mine));
        dt_text_clear(&mine);
        dt_text_clear(&theirs);
        return -1;
    }
    return 0;
}

/* The numbers of all possible nodes. */
static int possible_nodes(const char *sys, struct cpus *out, struct dt_error *err)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/devices/system/node/possible", sys);
    return read_list(path, out, err);
}

int numa_spread(const char *sys, const struct cpus *allowed, int count, int *out, struct dt_error *err)
{
    struct cpus nodes, usable = {{0}}, cpus;
    struct dt_error ignored;
    if (possible_nodes(sys, &nodes, err) != 0) {
        return -1;
    }
    for (int i = cpus_next(&nodes, -1); i >= 0; i = cpus_next(&nodes, i)) {
        if (node_cpus(sys, allowed, i, &cpus, &ignored) == 0) {
            cpus_add(&usable, i);
        }
    }
    int node_count = cpus_count(&usable);
    if (node_count == 0) {
        return dt_fail(err, DT_NOT_FOUND, "%s/devices/system/node: no node has a CPU that this process may use", sys);
    }
    int node = cpus_next(&usable, -1), place = 0;
    for (int i = 0; i < count; i++) {
        int wanted = (int)((long long)i * node_count / count);
        for (; place < wanted; place++) {
            node = cpus_next(&usable, node);
        }
        out[i] = node;
    }
    return 0;
}

/* The lowest CPU tells the node's socket, because no node spans two sockets. */
static int socket_of(const struct numa *n, const struct cpus *node, long long *out, struct dt_error *err)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/devices/system/cpu/cpu%d/topology/physical_package_id", n->sys,
                   cpus_next(node, -1));
    return read_number(path, out, err);
}

static int by_socket(const struct numa *n, const struct cpus *own, struct cpus *out, struct dt_error *err)
{
    struct cpus nodes, cpus;
    struct dt_error ignored;
    long long socket, other;
    if (possible_nodes(n->sys, &nodes, err) != 0 || socket_of(n, own, &socket, err) != 0) {
        return -1;
    }
    *out = *own;
    for (int i = cpus_next(&nodes, -1); i >= 0; i = cpus_next(&nodes, i)) {
        if (node_cpus(n->sys, &n->allowed, i, &cpus, &ignored) != 0) {
            continue;
        }
        if (socket_of(n, &cpus, &other, err) != 0) {
            return -1;
        }
        if (other == socket) {
            cpus_unite(out, &cpus);
        }
    }
    return 0;
}

/* ---- shares of a node ---- */

/* The logical CPUs that share a core, or a cache, with a CPU. */
typedef int sharers_of(const struct numa *n, int cpu, struct cpus *out, struct dt_error *err);

static int core_of(const struct numa *n, int cpu, struct cpus *out, struct dt_error *err)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/devices/system/cpu/cpu%d/topology/thread_siblings_list", n->sys, cpu);
    return read_list(path, out, err);
}

static bool is_for_data(const char *folder, int index)
{
    char path[512];
    struct dt_text text;
    (void)snprintf(path, sizeof path, "%s/index%d/type", folder, index);
    dt_text_init(&text);
    bool is = dt_file_read(path, FILE_BYTES, &text, NULL) == 0 &&
              (strncmp(dt_text_str(&text), "Unified", 7) == 0 || strncmp(dt_text_str(&text), "Data", 4) == 0);
    dt_text_clear(&text);
    return is;
}

/* Keeps one of a CPU's caches as the last one if its level is higher than the levels before. */
static int look_at_cache(const char *folder, int index, long long *highest, struct cpus *out, struct dt_error *err)
{
    char path[512];
    long long level;
    if (!is_for_data(folder, index)) {
        return 0;
    }
    (void)snprintf(path, sizeof path, "%s/index%d/level", folder, index);
    if (read_number(path, &level, err) != 0) {
        return -1;
    }
    (void)snprintf(path, sizeof path, "%s/index%d/shared_cpu_list", folder, index);
    if (level > *highest && read_list(path, out, err) != 0) {
        return -1;
    }
    *highest = level > *highest ? level : *highest;
    return 0;
}

/* Finds the highest cache level that holds data. */
static int last_cache_of(const struct numa *n, int cpu, struct cpus *out, struct dt_error *err)
{
    char folder[400];
    long long highest = -1;
    int index, result = 0;
    (void)snprintf(folder, sizeof folder, "%s/devices/system/cpu/cpu%d/cache", n->sys, cpu);
    DIR *d = opendir(folder);
    for (const struct dirent *e; d != NULL && result == 0 && (e = readdir(d)) != NULL;) {
        if (sscanf(e->d_name, "index%d", &index) == 1) {
            result = look_at_cache(folder, index, &highest, out, err);
        }
    }
    if (d != NULL) {
        (void)closedir(d);
    }
    return result != 0 || highest >= 0
               ? result
               : dt_fail(err, DT_NOT_FOUND, "%s: the kernel knows no cache of CPU %d", folder, cpu);
}

/* A core, or the CPUs that share a cache. */
struct group {
    int name; /* the lowest CPU of the group, even if we may not use it */
    struct cpus cpus;
};

static int by_name(const void *a, const void *b)
{
    const struct group *x = a, *y = b;
    return (x->name > y->name) - (x->name < y->name);
}

/* Larger groups come first. */
static int by_size(const void *a, const void *b)
{
    int x = cpus_count(&((const struct group *)a)->cpus), y = cpus_count(&((const struct group *)b)->cpus);
    return x != y ? (x < y) - (x > y) : by_name(a, b);
}

/* Splits `own` into groups, in no order. Returns their number, or -1. The caller frees *out. */
static int group_by(const struct numa *n, const struct cpus *own, sharers_of *sharers, struct group **out,
                    struct dt_error *err)
{
    struct group *groups = dt_alloc((size_t)cpus_count(own) * sizeof *groups);
    struct cpus shared;
    int count = 0;
    for (int cpu = cpus_next(own, -1); cpu >= 0; cpu = cpus_next(own, cpu)) {
        int i = 0;
        if (sharers(n, cpu, &shared, err) != 0) {
            free(groups);
            return -1;
        }
        int name = cpus_next(&shared, -1);
        name = name >= 0 ? name : cpu; /* an empty list */
        for (; i < count && groups[i].name != name; i++) {
        }
        count += i == count;
        groups[i].name = name;
        cpus_add(&groups[i].cpus, cpu);
    }
    *out = groups;
    return count;
}

/* The position of the device among its node's devices, and their number. */
static int place_of(const struct numa *n, int device, int *count)
{
    int place = 0;
    *count = 0;
    for (int i = 0; i < n->device_count; i++) {
        bool same = n->nodes[i] == n->nodes[device];
        place += same && i < device;
        *count += same;
    }
    return place;
}

/* With 7 cores for 3 devices the first gets 3, the others get 2. */
static int exclusive(const struct numa *n, int device, const struct cpus *own, struct cpus *out, struct dt_error *err)
{
    int sharing, place = place_of(n, device, &sharing);
    struct group *cores;
    int core_count = group_by(n, own, core_of, &cores, err);
    if (core_count < 0) {
        return -1;
    }
    int each = core_count / sharing, more = core_count % sharing;
    int first = place * each + (place < more ? place : more), end = first + each + (place < more);
    qsort(cores, (size_t)core_count, sizeof *cores, by_name);
    memset(out, 0, sizeof *out);
    for (int i = first; i < end; i++) {
        cpus_unite(out, &cores[i].cpus);
    }
    free(cores);
    return each > 0
               ? 0
               : dt_fail(err, DT_INVALID,
                         "exclusive: node %d has %d physical cores to share out among %d; use node, or core-complex",
                         n->nodes[device], core_count, sharing);
}

static int by_core_complex(const struct numa *n, int device, const struct cpus *own, struct cpus *out,
                           struct dt_error *err)
{
    int sharing, place = place_of(n, device, &sharing);
    struct group *caches;
    int count = group_by(n, own, last_cache_of, &caches, err);
    if (count < 0) {
        return -1;
    }
    assert(count > 0); /* own is not empty */
    qsort(caches, (size_t)count, sizeof *caches, by_size);
    *out = caches[place % count].cpus;
    free(caches);
    return 0;
}

int numa_mask(const struct numa *n, int device, struct cpus *out, struct dt_error *err)
{
    struct cpus own;
    if (node_cpus(n->sys, &n->allowed, n->nodes[device], &own, err) != 0) {
        return -1;
    }
    switch (n->mode) {
    case NUMA_BY_SOCKET:
        return by_socket(n, &own, out, err);
    case NUMA_EXCLUSIVE:
        return exclusive(n, device, &own, out, err);
    case NUMA_BY_CORE_COMPLEX:
        return by_core_complex(n, device, &own, out, err);
    case NUMA_BY_NODE:
        break;
    }
    *out = own;
    return 0;
}
