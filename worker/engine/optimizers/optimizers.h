/* The table of optimizers. A row says what an optimizer keeps of each weight, which keys of the job
 * it has, and which kernel updates slices. Everything else, from the plan to checkpoints, asks the
 * row. To add one: a row in table.c, its name in OPTIMIZER_NAMES, and a kernel (kernels/README.md). */
#ifndef DT_WORKER_ENGINE_OPTIMIZERS_OPTIMIZERS_H
#define DT_WORKER_ENGINE_OPTIMIZERS_OPTIMIZERS_H

#include "base/config.h"
#include "kernels/kernels.h"

/* Their names, for the table of the job's keys. */
#define OPTIMIZER_NAMES "adamw|adam|sgd|lion|adagrad|lamb"

/* What an update of an element depends on: the element alone, or norms of its whole tensor
 * (optimizer_ratios.c). */
enum reach { REACH_ELEMENT, REACH_TENSOR };

struct optimizer_row {
    const char *name;
    const char *state[DT_STATES_MAX]; /* names in checkpoints; null ends them */
    const char *needed_by;            /* key of `fields`: while it is 0 there is no state; or null */
    size_t needed_at;                 /* of that number in struct dt_update_numbers */
    const char *section;              /* of the job file, where its keys stand */
    const struct dt_field *fields;    /* into struct dt_update_numbers; NUMBER and BOOL */
    /* What spans keys; null: nothing does. DT_INVALID with the key that has to change. */
    int (*check)(const struct dt_update_numbers *numbers, const char **key, struct dt_error *err);
    void (*update)(const struct dt_kernels *k, struct dt_stream *s, const struct dt_update_args *a);
    enum reach reach;
};

/* Row number i; null behind the last one. */
const struct optimizer_row *optimizer_at(int i);
const struct optimizer_row *optimizer_find(const char *name);
/* How many states an optimizer with these numbers keeps of each element. */
int optimizer_row_states(const struct optimizer_row *row, const struct dt_update_numbers *numbers);
/* The string of the table that equals `name`, if a row has a state of that name; otherwise null. */
const char *optimizer_state_named(const char *name);

#endif
