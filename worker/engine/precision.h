/* Which element type each kind of memory has. Made once from the job and the device; nothing else in
 * the worker asks which precision the job names. */
#ifndef DT_WORKER_ENGINE_PRECISION_H
#define DT_WORKER_ENGINE_PRECISION_H

#include "base/dtype.h"
#include "base/error.h"
#include "worker/job/job.h"

struct precision {
    enum dt_dtype compute;           /* weights as blocks use them, activations, and gradients between blocks */
    enum dt_dtype grads;             /* gradients of weights, as backward writes them */
    enum dt_dtype wire;              /* gradients of weights, while they are summed over ranks */
    enum dt_dtype sums;              /* gradients of weights, summed over ranks and micro-steps, for the optimizer */
    enum dt_dtype masters;           /* weights as the optimizer updates them and checkpoints hold them */
    enum dt_dtype states;            /* the optimizer's state */
    enum dt_dtype buffers;           /* buffers of blocks, which every rank has whole */
    const struct scaler_row *scaler; /* of the loss scale: for F16; otherwise null */
};

/* device: the type in which the device computes, DT_F32 or DT_F64 (twin64). grads is for gradients
 * that rest whole between micro-steps; sliced ones are written as `wire` (strategy_init).
 * DT_INVALID: the device cannot have the job's precision. */
int precision_of(const struct job *job, enum dt_dtype device, struct precision *out, struct dt_error *err);
/* The device that the job asks for, as struct world_options takes it: that of training.device, and for
 * 64-true the one that computes in fp64. DT_INVALID: the device that would be opened does not compute in the
 * job's precision. */
int precision_device(const struct job *job, const char **device, struct dt_error *err);
/* Do weights have masters of another type? */
bool precision_mixed(const struct precision *p);
/* "bf16-mixed", "16-true", ...: as training.precision says it. */
const char *precision_name(const struct precision *p);

#endif
