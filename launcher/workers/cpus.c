/* Calls the affinity system calls directly, because those of glibc need a set of 1024 CPUs or an
 * allocated one. */
#include "launcher/workers/cpus.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

void cpus_add(struct cpus *c, int cpu)
{
    c->words[cpu / 64] |= (uint64_t)1 << (cpu % 64);
}

bool cpus_has(const struct cpus *c, int cpu)
{
    return cpu >= 0 && cpu < CPUS_MAX && (c->words[cpu / 64] >> (cpu % 64) & 1) != 0;
}

int cpus_count(const struct cpus *c)
{
    int count = 0;
    for (int i = 0; i < CPUS_MAX / 64; i++) {
        count += __builtin_popcountll(c->words[i]);
    }
    return count;
}

int cpus_next(const struct cpus *c, int after)
{
    for (int i = after + 1; i < CPUS_MAX; i++) {
        if (i % 64 == 0 && c->words[i / 64] == 0) {
            i += 63;
        } else if (cpus_has(c, i)) {
            return i;
        }
    }
    return -1;
}

bool cpus_intersect(struct cpus *out, const struct cpus *a, const struct cpus *b)
{
    uint64_t any = 0;
    for (int i = 0; i < CPUS_MAX / 64; i++) {
        out->words[i] = a->words[i] & b->words[i];
        any |= out->words[i];
    }
    return any != 0;
}

void cpus_unite(struct cpus *out, const struct cpus *other)
{
    for (int i = 0; i < CPUS_MAX / 64; i++) {
        out->words[i] |= other->words[i];
    }
}

/* Reads a number below CPUS_MAX at *p, which moves behind it. Returns -1 for anything else. */
static int number(const char **p)
{
    int value = 0;
    const char *begin = *p;
    for (; **p >= '0' && **p <= '9' && value < CPUS_MAX; (*p)++) {
        value = 10 * value + (**p - '0');
    }
    return *p > begin && value < CPUS_MAX ? value : -1;
}

int cpus_parse(struct cpus *out, const char *text, struct dt_error *err)
{
    struct cpus found = {{0}};
    const char *p = text;
    while (*p != '\0' && *p != '\n') {
        int first = number(&p), last = first;
        if (first >= 0 && *p == '-') {
            p++;
            last = number(&p);
        }
        bool ends = *p == ',' || *p == '\n' || *p == '\0';
        if (first < 0 || last < first || !ends) {
            return dt_fail(err, DT_INVALID, "%.60s: not a list such as 0-3,8 of numbers below %d", text, CPUS_MAX);
        }
        for (int i = first; i <= last; i++) {
            cpus_add(&found, i);
        }
        p += *p == ',';
    }
    *out = found;
    return 0;
}

void cpus_print(const struct cpus *c, struct dt_text *out)
{
    const char *comma = "";
    for (int first = cpus_next(c, -1), last; first >= 0; first = cpus_next(c, last)) {
        for (last = first; cpus_has(c, last + 1); last++) {
        }
        dt_text_printf(out, last > first ? "%s%d-%d" : "%s%d", comma, first, last);
        comma = ",";
    }
}

int cpus_allowed(struct cpus *out, struct dt_error *err)
{
    struct cpus found = {{0}};
    if (syscall(SYS_sched_getaffinity, 0, sizeof found.words, found.words) < 0) {
        return dt_fail_errno(err, "CPUs that this process may use");
    }
    *out = found;
    return 0;
}
