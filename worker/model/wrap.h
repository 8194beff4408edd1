/* How the tensors of a chain are put together to units, where that is not as its model says. A unit is what
 * sharded strategies gather, reduce and free at a time; no bit of a result depends on it. */
#ifndef DT_WORKER_MODEL_WRAP_H
#define DT_WORKER_MODEL_WRAP_H

#include "base/config.h"
#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct chain;

struct wrap_policy {          /* zeroed: units are those of the model */
    bool whole;               /* all tensors are in one unit */
    int64_t layers_per_unit;  /* a unit takes layers side by side until it has so many of them, */
    int64_t min_params;       /* and so many parameters; 0: one layer */
    struct dt_strings layers; /* globs: other layers join the root; none: all layers */
    /* Units stay whole on each rank (struct unit's `persistent`) if none of their tensors has more elements
     * than this; of others the vectors do, in a unit of their own, if none of them has more. WRAP_AUTO: ten times
     * the width of the widest layer. */
    int64_t small;
    int64_t small_total;      /* all of them together have at most so many elements */
    struct dt_strings frozen; /* globs of tensors that keep their values: in units of their own, not trained */
};
enum { WRAP_AUTO = -1 };

/* Puts tensors into units anew, by c->spec.wrap. Called once, when all blocks are declared, before units
 * are padded. 0, or DT_INVALID: a glob of its `layers` (fsdp.wrap_layers) names no layer. */
int chain_wrap(struct chain *c, struct dt_error *err);

#endif
