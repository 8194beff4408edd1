/* Sets of logical CPUs, and their text as the kernel writes it ("0-3,8"). */
#ifndef DT_LAUNCHER_WORKERS_CPUS_H
#define DT_LAUNCHER_WORKERS_CPUS_H

#include "base/error.h"
#include "base/text.h"

#include <stdbool.h>
#include <stdint.h>

#define CPUS_MAX 8192 /* what the kernel can be built for */

struct cpus { /* bit i of word i / 64: the layout of sched_setaffinity on machines of 64 bits */
    uint64_t words[CPUS_MAX / 64];
};

void cpus_add(struct cpus *c, int cpu);
bool cpus_has(const struct cpus *c, int cpu);
int cpus_count(const struct cpus *c);
/* The lowest member above `after`, -1 for the first one; -1 when there is none:  for (i =
 * cpus_next(c, -1); i >= 0; i = cpus_next(c, i)). */
int cpus_next(const struct cpus *c, int after);
/* out = a and b; out may be one of them. True when something is left. */
bool cpus_intersect(struct cpus *out, const struct cpus *a, const struct cpus *b);
/* out also gets the members of other. */
void cpus_unite(struct cpus *out, const struct cpus *other);
/* Of "0-3,8\n"; empty for an empty text. DT_INVALID for anything else, or a number from CPUS_MAX
 * on. */
int cpus_parse(struct cpus *out, const char *text, struct dt_error *err);
/* Appends it as "0-3,8". */
void cpus_print(const struct cpus *c, struct dt_text *out);
/* Those that this thread may run on (sched_getaffinity). */
int cpus_allowed(struct cpus *out, struct dt_error *err);

#endif
