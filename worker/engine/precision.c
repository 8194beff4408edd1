/* The job's three choices (struct job_precision), made into a type for each kind of memory. */
#include "worker/engine/precision.h"

int precision_of(const struct job *job, enum dt_dtype device, struct precision *out, struct dt_error *err)
{
    const struct job_precision *wanted = &job->precision;
    bool one = job->training.gradient_accumulation_steps == 1;
    if (device != DT_F32 && wanted->states != DT_F32) {
        return dt_fail(err, DT_INVALID,
                       "training.optimizer_state_dtype: bf16 goes with fp32 masters, and this device computes in fp64; "
                       "write fp32");
    }
    struct precision p = {.compute = device == DT_F32 ? wanted->compute : device};
    p.masters = dt_dtype_wide(p.compute);
    p.wire = precision_mixed(&p) ? wanted->reduce : p.compute;
    p.grads = p.sums = one ? p.wire : p.masters;
    p.buffers = p.masters;
    p.states = device == DT_F32 ? wanted->states : p.masters;
    *out = p;
    return 0;
}

bool precision_mixed(const struct precision *p)
{
    return p->compute != p->masters;
}

const char *precision_name(const struct precision *p)
{
    return precision_mixed(p) ? "bf16-mixed" : "32-true";
}
