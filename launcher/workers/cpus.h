/* Sets of logical CPUs, and their text as the kernel writes it ("0-3,8"). */
#ifndef DT_LAUNCHER_WORKERS_CPUS_H
#define DT_LAUNCHER_WORKERS_CPUS_H

#include "base/error.h"
#include "base/text.h"

#include <stdbool.h>
#include <stdint.h>

#define CPUS_MAX 8192 /* largest number that a kernel can be built for */

struct cpus { /* bit i of word i / 64: the layout of sched_setaffinity on machines of 64 bits */
    uint64_t words[CPUS_MAX / 64];
};

void cpus_add(struct cpus *c, int cpu);
bool cpus_has(const struct cpus *c, int cpu);
int cpus_count(const struct cpus *c);
/* Returns the lowest member above `after` (-1: the first member), or -1 if there is none:  for (i =
 * cpus_next(c, -1); i >= 0; i = cpus_next(c, i)). */
int cpus_next(const struct cpus *c, int after);
/* out = a and b; out may be one of them. Returns true if out is not empty. */
bool cpus_intersect(struct cpus *out, const struct cpus *a, const struct cpus *b);
/* Adds the members of other to out. */
void cpus_unite(struct cpus *out, const struct cpus *other);
/* Parses "0-3,8\n". An empty text gives an empty set. DT_INVALID for other texts and for numbers
 * from CPUS_MAX on. */
int cpus_parse(struct cpus *out, const char *text, struct dt_error *err);
/* Appends the set as "0-3,8". */
void cpus_print(const struct cpus *c, struct dt_text *out);
/* The CPUs on which this thread may run (sched_getaffinity). */
int cpus_allowed(struct cpus *out, struct dt_error *err);

#endif
