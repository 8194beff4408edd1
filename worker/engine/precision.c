/* The job's three choices (struct job_precision), made into a type for each kind of memory. */
#include "worker/engine/precision.h"

#include "worker/engine/hooks/hooks.h"
#include "worker/engine/scaler.h"
#include "worker/engine/world.h"

#include <string.h>

int precision_device(const struct job *job, const char **device, struct dt_error *err)
{
    const struct job_precision *p = &job->precision;
    *device = job->training.device;
    if (p->compute == DT_F64) {
        if (strcmp(job->training.device, "cuda") == 0 || strcmp(job->training.device, "gpu") == 0) {
            return dt_fail(err, DT_INVALID,
                           "training.precision: 64-true is computed on a CPU alone; write 32-true, or training.device "
                           "\"cpu\"");
        }
        *device = "twin64";
    }
    return strcmp(world_device_name(job->training.device), "cuda") == 0 ? hook_check_gpu(job, err) : 0;
}

int precision_of(const struct job *job, enum dt_dtype device, struct precision *out, struct dt_error *err)
{
    const struct job_precision *wanted = &job->precision;
    bool one = job->training.gradient_accumulation_steps == 1;
    if (device != DT_F32 && wanted->states != DT_F32) {
        return dt_fail(err, DT_INVALID,
                       "training.optimizer_state_dtype: bf16 goes with fp32 masters, and this device computes in fp64; "
                       "write fp32");
    }
    if (device == DT_F32 && wanted->compute == DT_F64) {
        return dt_fail(err, DT_INVALID, "training.precision: 64-true is computed by the device twin64; write 32-true");
    }
    struct precision p = {.compute = device == DT_F32 ? wanted->compute : device};
    p.masters = device == DT_F32 ? wanted->masters : device;
    bool half = dt_dtype_half(p.compute);
    p.wire = half || p.compute == DT_F32 ? wanted->reduce : p.compute;
    p.grads = p.sums = !half ? p.compute : one ? p.wire : wanted->sums;
    p.buffers = dt_dtype_wide(p.compute);
    p.scaler = p.compute == DT_F16 ? scaler_find(job->loss_scaling.algorithm) : NULL;
    p.states = device == DT_F32 ? wanted->states : device;
    *out = p;
    return 0;
}

bool precision_mixed(const struct precision *p)
{
    return p->compute != p->masters;
}

const char *precision_name(const struct precision *p)
{
    bool mixed = precision_mixed(p);
    switch (p->compute) {
    case DT_F16:
        return mixed ? "16-mixed" : "16-true";
    case DT_BF16:
        return mixed ? "bf16-mixed" : "bf16-true";
    case DT_F64:
        return "64-true";
    default:
        return "32-true";
    }
}
