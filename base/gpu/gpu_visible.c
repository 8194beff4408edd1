/* The rules are those of CUDA's documentation, and where it is silent those that PyTorch found
 * (torch.cuda._parse_visible_devices): a number may be followed by anything, all entries are of the
 * first entry's kind, and blanks may only precede numbers. */
#include "base/gpu/gpu_visible.h"

#include <ctype.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ENTRY_BYTES = 128 };

/* The GPU whose identifier begins with `entry`; -1: none; -2: several. */
static int find(const char *entry, const char *const *uuids, int count)
{
    int found = -1;
    for (int i = 0; i < count; i++) {
        if (strncmp(uuids[i], entry, strlen(entry)) == 0) {
            if (found >= 0) {
                return -2;
            }
            found = i;
        }
    }
    return found;
}

/* A number as strtoul parses it; -1: no number, or a negative one. */
static long number(const char *entry)
{
    char *end = NULL;
    entry += strspn(entry, " \t");
    long value = strtol(entry, &end, 10);
    return end == entry || value < 0 ? -1 : value;
}

/* False: the list ends before this entry. */
static bool take(struct dt_gpu_visible *v, const char *entry, const char *prefix, const char *const *uuids, int count)
{
    int gpu = -1;
    if (prefix == NULL) {
        long value = number(entry);
        if (value < 0 || (count >= 0 && value >= count) || value > INT_MAX) {
            bool asked = value >= 0 && count > 0;
            (void)snprintf(v->problem, sizeof v->problem, "%.100s is no GPU%s",
                           entry[0] != '\0' ? entry : "an empty entry", asked ? " of this host" : "");
            if (asked) {
                (void)snprintf(v->problem + strlen(v->problem), sizeof v->problem - strlen(v->problem),
                               ", which has 0%s", count > 1 ? " to " : "");
                (void)snprintf(v->problem + strlen(v->problem), sizeof v->problem - strlen(v->problem),
                               count > 1 ? "%d" : "", count - 1);
            }
            return false;
        }
        gpu = (int)value;
    } else if (strncmp(entry, prefix, 4) != 0) {
        (void)snprintf(v->problem, sizeof v->problem, "%.100s does not begin with %s as those before it", entry,
                       prefix);
        return false;
    } else if (prefix[0] == 'G' && count >= 0) {
        gpu = find(entry, uuids, count);
        if (gpu < 0) {
            (void)snprintf(v->problem, sizeof v->problem, "%.100s is %s of this host", entry,
                           gpu == -1 ? "no GPU" : "the beginning of several GPUs");
            return false;
        }
    }
    v->gpu[v->count++] = gpu;
    return true;
}

void dt_gpu_visible(const char *text, const char *const *uuids, int count, struct dt_gpu_visible *out)
{
    memset(out, 0, sizeof *out);
    if (text == NULL) {
        for (int i = 0; i < count && i < DT_GPU_VISIBLE_MAX; i++) {
            out->gpu[out->count++] = i;
        }
        return;
    }
    char entries[DT_GPU_VISIBLE_MAX][ENTRY_BYTES];
    const char *prefix = strncmp(text, "GPU-", 4) == 0 ? "GPU-" : strncmp(text, "MIG-", 4) == 0 ? "MIG-" : NULL;
    for (const char *p = text; *text != '\0' && out->count < DT_GPU_VISIBLE_MAX;) {
        size_t size = strcspn(p, ",");
        char *entry = entries[out->count];
        (void)snprintf(entry, ENTRY_BYTES, "%.*s", (int)size, p);
        if (!take(out, entry, prefix, uuids, count)) {
            break;
        }
        for (int i = 0; i < out->count - 1; i++) {
            bool same = prefix == NULL || out->gpu[i] >= 0 ? out->gpu[i] == out->gpu[out->count - 1]
                                                           : strcmp(entries[i], entry) == 0;
            if (same) {
                (void)snprintf(out->problem, sizeof out->problem, "%.100s is named twice, then none is seen", entry);
                out->count = 0;
                return;
            }
        }
        p += size;
        if (*p++ == '\0') {
            break;
        }
    }
}
