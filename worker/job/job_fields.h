/* The tables of the job file: which keys there are, their defaults and limits. */
#ifndef DT_WORKER_JOB_JOB_FIELDS_H
#define DT_WORKER_JOB_JOB_FIELDS_H

#include "base/config.h"
#include "worker/job/job.h"

struct job_section {
    const char *name, *help;
    const struct dt_field *fields;
    size_t offset; /* of the section's struct in struct job */
};

enum {
    JOB_TOP,
    JOB_MODEL,
    JOB_DATA,
    JOB_TRANSFORMS,
    JOB_TRAINING,
    JOB_OPTIMIZER,
    JOB_SCHEDULER,
    JOB_DDP,
    JOB_POWER_SGD,
    JOB_LOCAL_SGD,
    JOB_FSDP,
    JOB_MIXED,
    JOB_SCALING,
    JOB_RECOMPUTE,
    JOB_OFFLOAD,
    JOB_CHECKPOINTING,
    JOB_STOPPING,
    JOB_LOGGING,
    JOB_EXPORT,
    JOB_GENERATION,
    JOB_SECTION_COUNT
};
/* by the enum; ends with a null name. The section `model` has the fields of its model besides,
 * and the optimizer's row says which section has its fields (job_parts). */
extern const struct job_section job_sections[JOB_SECTION_COUNT + 1];
/* The tables of a section, and where their values are: one, or two. Returns how many. */
struct job_part {
    const struct dt_field *fields;
    void *in;
};
int job_parts(struct job *job, const struct job_section *s, struct job_part parts[2]);
/* The fields that a section has with some model or optimizer: table number i; null behind the last one. */
const struct dt_field *job_other_fields(const struct job_section *s, int i);
/* Has the table a field of this name? */
bool job_has_key(const struct dt_field *fields, const char *key);
/* job_scheduler.c: the section `scheduler`, and checks of what the schedule reads. */
extern const struct dt_field job_scheduler_fields[];
void job_check_schedule(struct job *job, struct dt_config *c);
/* job_hooks.c: the sections ddp, power_sgd and local_sgd. */
extern const struct dt_field job_ddp_fields[], job_power_sgd_fields[], job_local_sgd_fields[];
/* job_batch.c. Before the tables are read: an accumulation that is an object becomes
 * training.accumulation_schedule. */
void job_read_accumulation(struct dt_config *c);
/* Checks keys of the batch and the run's length, and derives what they leave out for so many ranks. */
void job_check_batch(struct job *job, struct dt_config *c, int ranks);
/* training.max_tokens as samples. */
void job_set_samples(struct job_training *t, int64_t sequence_length);
/* Adds what is wrong with the section `transforms` to c. */
void job_check_transforms(const struct job_transforms *t, struct dt_config *c);
/* job_hints.c: keys of other systems, and those that come later */
extern const struct dt_config_hint job_hints[];

/* job_groups.c: reads optimizer.groups into job->optimizer.groups; problems go to c. */
void job_read_groups(struct job *job, struct dt_config *c);

#endif
