/* The table of optimizers. A row says what an optimizer keeps of each weight, which keys of the job
 * it has, and which kernel updates slices. Everything else, from the plan to checkpoints, asks the
 * row. To add one: a row in table.c, its name in OPTIMIZER_NAMES, and a kernel (kernels/README.md). */
#ifndef DT_WORKER_ENGINE_OPTIMIZERS_OPTIMIZERS_H
#define DT_WORKER_ENGINE_OPTIMIZERS_OPTIMIZERS_H

#include "base/config.h"
#include "kernels/kernels.h"

/* Their names, for the table of the job's keys. */
#define OPTIMIZER_NAMES "adamw|adam|sgd|lion|adagrad|lamb|muon"

/* The reach of an element's update: the element alone, norms of its whole tensor
 * (optimizer_ratios.c), or all elements of its matrix (optimizer_matrices.c). */
enum reach { REACH_ELEMENT, REACH_TENSOR, REACH_MATRIX };

/* The factor of a step of Muon, for a matrix of A rows and B columns: the root of max(1, A / B), 0.2
 * times the root of max(A, B), the root of A / B. As torch.optim.Muon's adjust_lr_fn. */
enum muon_adjust { MUON_ORIGINAL, MUON_MATCH_RMS_ADAMW, MUON_SPECTRAL_UNCLAMPED };

struct optimizer_row {
    const char *name;
    const char *state[DT_STATES_MAX]; /* names in checkpoints; null ends them */
    /* The key of `fields` that decides how many states there are, and the function that does; null: all. */
    const char *needed_by;
    int (*states)(const struct dt_update_numbers *numbers);
    const char *section;           /* of the job file, where its keys stand */
    const struct dt_field *fields; /* into struct dt_update_numbers */
    /* What spans keys; null: nothing does. DT_INVALID with the key that has to change. */
    int (*check)(const struct dt_update_numbers *numbers, const char **key, struct dt_error *err);
    void (*update)(const struct dt_kernels *k, struct dt_stream *s, const struct dt_update_args *a);
    enum reach reach;
    /* REACH_MATRIX: the row of all tensors that are no matrices of layers. It has a section of its own. */
    const char *rest;
};

/* Row number i; null behind the last one. */
const struct optimizer_row *optimizer_at(int i);
const struct optimizer_row *optimizer_find(const char *name);
/* The row of what this one leaves to another; null: it takes all tensors. */
const struct optimizer_row *optimizer_rest(const struct optimizer_row *row);
/* Has the optimizer, or its rest, the key in this section? */
bool optimizer_has_key(const struct optimizer_row *row, const char *section, const char *key);
/* How many states an optimizer with these numbers keeps of each element. */
int optimizer_row_states(const struct optimizer_row *row, const struct dt_update_numbers *numbers);
/* The string of the table that equals `name`, if a row has a state of that name; otherwise null. */
const char *optimizer_state_named(const char *name);

#endif
