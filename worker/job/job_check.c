/* The checks that span keys of a job, and what depends on other keys. */
#include "worker/job/job.h"

#include "base/config.h"
#include "base/size.h"
#include "worker/job/dialects/registered.h"
#include "worker/job/job_fields.h"
#include "worker/job/job_model.h"

#include <inttypes.h>
#include <string.h>

static void check_model(struct job *job, struct dt_config *c)
{
    const struct model_ops *ops = job->model.ops;
    const char *key = NULL;
    struct dt_error err;
    dialects_check_layers(c, ops->name);
    if (ops->class_of != NULL && dialects_own_mean(c, ops->class_of(job->model.sizes.bytes))) {
        job->training.loss_normalization = LOSS_LOCAL_MEAN;
    }
    if (ops->check != NULL && ops->check(job->model.sizes.bytes, &key, &err) != 0) {
        const char *path = dt_arena_printf(&job->arena, "model.%s", key);
        if (job->model.load != NULL && dt_config_where(c, path) == NULL) { /* the folder's file gives it */
            dt_config_problem(c, "model.load", "%s: %s: %s", dt_config_source(c, path), key, err.text);
        } else {
            dt_config_problem(c, path, "%s", err.text);
        }
    }
}

static void check_data(struct job *job, struct dt_config *c)
{
    const struct model_ops *ops = job->model.ops;
    int64_t *length = &job->data.sequence_length;
    if (job->data.document_mask && !ops->documents) {
        dt_config_problem(c, "data.document_mask", "%s knows no documents within a sample; remove it", ops->name);
    }
    if (ops->positions == NULL) {
        if (*length > 1) {
            dt_config_problem(c, "data.sequence_length", "samples of %s are no sequences; remove it", ops->name);
        }
        *length = 1;
        dt_config_derived(c, "data.sequence_length", "model.name");
        return;
    }
    int64_t positions = model_integer(ops, job->model.sizes.bytes, ops->positions);
    const char *key = dt_arena_printf(&job->arena, "model.%s", ops->positions);
    if (*length == 0) {
        *length = positions;
        dt_config_derived(c, "data.sequence_length", key);
    } else if (*length > positions) {
        dt_config_problem(c, "data.sequence_length", "%" PRId64 " is longer than %s %" PRId64 " (%s); lower it",
                          *length, key, positions, dt_config_source(c, key));
    }
}

static void check_length(struct job *job, struct dt_config *c)
{
    struct job_training *t = &job->training;
    if (t->max_steps == 0) {
        dt_config_problem(c, "training.max_steps", "is 0; give a number of steps, or -1 and training.num_epochs");
    }
    if (t->max_steps < 0 && t->num_epochs == 0 && t->max_tokens == 0) {
        if (dt_config_where(c, "training.num_epochs") != NULL) {
            dt_config_problem(c, "training.num_epochs",
                              "is 0, and training.max_steps gives no number of steps; give one of them");
        }
        t->num_epochs = 3;
        dt_config_derived(c, "training.num_epochs", "default when there is no max_steps");
    }
    if (t->warmup_steps > 0 && t->warmup_ratio > 0) {
        dt_config_problem(c, "training.warmup_ratio", "training.warmup_steps says the same (%s); remove one",
                          dt_config_source(c, "training.warmup_steps"));
    }
    if (t->max_steps > 0 && t->min_steps > t->max_steps) {
        dt_config_problem(c, "training.min_steps",
                          "%" PRId64 " is more than training.max_steps %" PRId64 " (%s); lower it", t->min_steps,
                          t->max_steps, dt_config_source(c, "training.max_steps"));
    }
    if (t->max_steps < 0 && t->max_tokens == 0 && t->min_epochs > t->num_epochs) {
        dt_config_problem(c, "training.min_epochs", "%g is more than training.num_epochs %g (%s); lower it",
                          t->min_epochs, t->num_epochs, dt_config_source(c, "training.num_epochs"));
    }
    const struct job_checkpointing *saves = &job->checkpointing;
    if (t->guard_action == GUARD_ROLLBACK && saves->save_every_n_steps == 0 && saves->save_every_n_epochs == 0 &&
        saves->save_every_n_seconds == 0) {
        dt_config_problem(c, "training.loss_guard_action",
                          "rollback needs a checkpoint to go back to; give checkpointing.save_every_n_steps");
    }
    if (t->eval_every_n_steps > 0 && job->data.val.count == 0) {
        dt_config_problem(c, "training.eval_every_n_steps", "there is nothing to evaluate on; give data.val");
    }
}

static void check_optimizer(struct job *job, struct dt_config *c)
{
    const struct optimizer_row *row = job->optimizer.row;
    const char *key = NULL;
    struct dt_error err;
    if (row->check != NULL && row->check(&job->optimizer.numbers, &key, &err) != 0) {
        dt_config_problem(c, dt_arena_printf(&job->arena, "%s.%s", row->section, key), "%s", err.text);
    }
}

/* Afterwards max_grad_norm or clip_value is 0. */
static void check_clip(struct job *job, struct dt_config *c)
{
    struct job_training *t = &job->training;
    if (t->clip_algorithm == CLIP_NORM && t->clip_value != 0) {
        dt_config_problem(c, "training.gradient_clip_value",
                          "counts with training.gradient_clip_algorithm value, and that is norm (%s); remove it, or "
                          "write value",
                          dt_config_source(c, "training.gradient_clip_algorithm"));
    } else if (t->clip_algorithm == CLIP_VALUE && t->clip_value == 0) {
        dt_config_problem(c, "training.gradient_clip_algorithm",
                          "value needs training.gradient_clip_value; give that, or write norm");
    } else if (t->clip_algorithm == CLIP_VALUE) {
        if (dt_config_where(c, "training.max_grad_norm") != NULL && t->max_grad_norm != 0) {
            dt_config_problem(c, "training.max_grad_norm",
                              "counts with training.gradient_clip_algorithm norm, and that is value (%s); remove one",
                              dt_config_source(c, "training.gradient_clip_algorithm"));
        }
        t->max_grad_norm = 0;
        dt_config_derived(c, "training.max_grad_norm", "gradient_clip_algorithm");
    }
}

static bool is_key(struct job *job, const char *path)
{
    struct job_part parts[2];
    for (const struct job_section *s = job_sections; s->name != NULL; s++) {
        size_t size = strlen(s->name);
        int count = job_parts(job, s, parts);
        for (int i = 0; strncmp(path, s->name, size) == 0 && path[size] == '.' && i < count; i++) {
            if (job_has_key(parts[i].fields, path + size + 1)) {
                return true;
            }
        }
    }
    return false;
}

/* Afterwards checkpointing.accept holds full keys, those of checkpointing.override among them. */
static void check_accept(struct job *job, struct dt_config *c)
{
    struct dt_text all;
    struct job_checkpointing *k = &job->checkpointing;
    dt_text_init(&all);
    size_t own = k->accept != NULL ? strlen(k->accept) : 0; /* bytes of accept's own */
    if (k->override != NULL) {
        k->accept = k->accept != NULL ? dt_arena_printf(&job->arena, "%s,%s", k->accept, k->override) : k->override;
        k->override = NULL;
        dt_config_derived(c, "checkpointing.accept", "checkpointing.override");
    }
    for (const char *p = job->checkpointing.accept; p != NULL && *p != 0; p += *p == ',') {
        size_t size = strcspn(p, ",");
        const char *from = p < k->accept + own ? "checkpointing.accept" : "checkpointing.override";
        const char *name = dt_arena_printf(&job->arena, "%.*s", (int)size, p), *key = job_accept_key(name, &job->arena),
                   *nearest = job_accept_nearest(name, &job->arena);
        if (key != NULL) {
            dt_text_printf(&all, "%s%s", all.size > 0 ? "," : "", key);
        } else if (is_key(job, name)) {
            dt_config_problem(c, from, "%s may always differ from a checkpoint's; remove it", name);
        } else {
            dt_config_problem(c, from, "%s: is no key that a checkpoint is compared by%s%s%s", name,
                              nearest != NULL ? "; did you mean " : "; see dtrun-train(1)",
                              nearest != NULL ? nearest : "", nearest != NULL ? "?" : "");
        }
        p += size;
    }
    if (all.size > 0) {
        job->checkpointing.accept = dt_arena_strdup(&job->arena, all.data);
    }
    dt_text_clear(&all);
}

static void check_strategy(struct job *job, struct dt_config *c)
{
    const char *strategy = dialect_strategy(job->training.strategy, &job->arena);
    if (job->fsdp.device_mesh[0] != 0 && strncmp(strategy, "hybrid_shard", 12) != 0) {
        dt_config_problem(c, "fsdp.device_mesh",
                          "only hybrid_shard and hybrid_shard_zero2 have a mesh, the strategy is %s (%s); remove it",
                          strategy, dt_config_source(c, "training.strategy"));
    }
}

static void check_attention(struct job *job, struct dt_config *c)
{
    if (job->training.deterministic && strcmp(job->training.attention, "fast") == 0) {
        dt_config_problem(c, "training.attention",
                          "fast adds up in no order, and training.deterministic (%s) asks for the same bits each time; "
                          "use auto, or set it to false",
                          dt_config_source(c, "training.deterministic"));
    }
}

/* Afterwards training.precision and optimizer_state_dtype hold one word each of those that mean the
 * same. The type of the optimizer's state is a choice of its own. */
static void check_precision(struct job *job, struct dt_config *c)
{
    static const char *const names[] = {[DT_F32] = "fp32", [DT_BF16] = "bf16", [DT_F16] = "fp16", [DT_F64] = "fp64"};
    struct job_precision *p = &job->precision;
    job->training.precision = dialect_precision(job->training.precision, &p->compute, &p->masters);
    bool low = dt_dtype_half(p->masters), given = dt_config_given(c, "training.optimizer_state_dtype") != NULL;
    p->states = dialect_element(job->training.optimizer_state_dtype);
    p->states = low && !given ? DT_BF16 : p->states;
    p->reduce = job->mixed.reduce_dtype == NULL ? p->compute : dialect_element(job->mixed.reduce_dtype);
    p->sums = dialect_element(job->training.grad_accum_dtype);
    job->training.optimizer_state_dtype = names[p->states];
    job->training.grad_accum_dtype = names[p->sums];
    if (p->reduce != p->compute && p->reduce != DT_F32 && p->compute != DT_F32) {
        dt_config_problem(c, "mixed_precision.reduce_dtype",
                          "%s on the wire of a run in %s is not there yet; write %s, or remove it", names[p->reduce],
                          names[p->compute], dt_dtype_half(p->compute) ? "fp32" : "the param_dtype of that name");
    }
    if (p->sums != DT_F32 && (p->sums != p->compute || p->sums != p->reduce)) {
        dt_config_problem(c, "training.grad_accum_dtype",
                          "%s goes with a run that computes and reduces in %s; write fp32, or remove it",
                          names[p->sums], names[p->sums]);
    }
}

/* By the system that users know the strategy from. */
static void choose_scaler(struct job *job)
{
    const char *strategy = dialect_strategy(job->training.strategy, &job->arena);
    bool zero = strncmp(strategy, "zero", 4) == 0 || strcmp(strategy, "deepspeed") == 0;
    if (strcmp(job->loss_scaling.algorithm, "auto") == 0) {
        job->loss_scaling.algorithm = zero ? "deepspeed" : "torch";
    }
}

/* A check across keys would blame the wrong one where a default stands in for a bad value, so it
 * asks for good sections. */
void job_check_sections(struct job *job, struct dt_config *c, const bool *good, int world)
{
    if (good[JOB_MODEL]) {
        check_model(job, c);
    }
    if (good[JOB_MODEL] && good[JOB_DATA]) {
        check_data(job, c);
    }
    if (good[JOB_TRANSFORMS]) {
        job_check_transforms(&job->transforms, c);
    }
    if (good[JOB_TRAINING] && good[JOB_DATA]) {
        job_make_trial(job);
        check_length(job, c);
    }
    if (good[JOB_TRAINING] && good[JOB_DATA] && good[JOB_MODEL]) {
        job_check_batch(job, c, world);
        struct job_training *t = &job->training;
        if (t->loss_normalization == LOSS_LOCAL_MEAN && dialects_rank_mean(c, t->gradient_accumulation_steps, world)) {
            t->loss_normalization = LOSS_GLOBAL_TOKENS;
        }
    }
    if (good[JOB_TRAINING]) {
        check_attention(job, c);
        check_clip(job, c);
    }
    if (good[JOB_TRAINING] && good[JOB_SCHEDULER] && good[JOB_OPTIMIZER]) {
        job_check_schedule(job, c);
        job_check_stopping(job, c);
    }
    if (good[JOB_OPTIMIZER]) {
        check_optimizer(job, c);
        job_read_groups(job, c);
    }
    if (good[JOB_RECOMPUTE]) { /* attention's probabilities are never kept, so what is selected is the rest */
        int *level = &job->recompute.level;
        *level = *level == JOB_RECOMPUTE_FULL        ? RECOMPUTE_BLOCK
                 : *level == JOB_RECOMPUTE_SELECTIVE ? RECOMPUTE_CHEAP
                                                     : *level;
    }
    if (good[JOB_OFFLOAD] && good[JOB_TRAINING]) {
        job_check_offload(job, c);
    }
    if (good[JOB_CHECKPOINTING]) {
        check_accept(job, c);
    }
    int64_t bytes;
    if (good[JOB_EXPORT] && !dt_parse_bytes(job->export.max_shard_size, &bytes)) {
        dt_config_problem(c, "export.max_shard_size", "is \"%.60s\"; give a size as 5GB or 200MB, or a number of bytes",
                          job->export.max_shard_size);
    }
    if (good[JOB_TRAINING] && good[JOB_FSDP]) {
        check_strategy(job, c);
    }
    if (good[JOB_TRAINING] && good[JOB_MIXED]) {
        check_precision(job, c);
    }
    if (good[JOB_TRAINING] && good[JOB_SCALING]) {
        choose_scaler(job);
    }
    if (good[JOB_DDP] && good[JOB_POWER_SGD] && good[JOB_TRAINING] && good[JOB_MIXED]) {
        job_check_hooks(job, c);
    }
    bool all = true;
    for (int i = 0; i < JOB_SECTION_COUNT; i++) {
        all = all && good[i];
    }
    if (all) {
        job_check_needs(job, c);
    }
}
