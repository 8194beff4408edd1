/* Keys that count only beside another one: power_sgd.* with that hook, checkpointing.skip_when_saving with
 * asynchronous. A row of the table says for which keys, and beside what. A given key without it, whose value is not
 * its default, is named in a line at the start, as a job keeps the numbers of what it has switched off; where
 * leaving the other one out can only be a slip, it is refused. */
#include "worker/job/job.h"

#include "base/config_value.h"
#include "worker/job/job_fields.h"
#include "worker/job/job_needs.h"

#include <cjson/cJSON.h>
#include <string.h>
#include <strings.h>

static bool is_hook(const struct job *job, const char *name)
{
    return job->ddp.comm_hook != NULL && strcmp(job->ddp.comm_hook, name) == 0;
}

static bool any_power_sgd(const struct job *job)
{
    return is_hook(job, "power_sgd") || is_hook(job, "batched_power_sgd");
}

static bool matrix_power_sgd(const struct job *job)
{
    return is_hook(job, "power_sgd");
}

static bool post_local_sgd(const struct job *job)
{
    return is_hook(job, "post_local_sgd");
}

static bool any_local_sgd(const struct job *job)
{
    return strcasecmp(job->training.strategy, "local_sgd") == 0 || post_local_sgd(job);
}

/* Between micro-steps, as strategy_open decides it. */
static bool whole_gradients(const struct job *job)
{
    const struct job_training *t = &job->training;
    bool whole = job_strategy(t->strategy).whole_gradients;
    switch (t->accumulate_sync) {
    case SYNC_AUTO:
        return whole;
    case SYNC_BOUNDARY:
        return true;
    case SYNC_EVERY_MICRO_STEP:
        return whole && t->gradient_accumulation_steps == 1;
    }
    return whole;
}

static bool sliced_gradients(const struct job *job)
{
    return !whole_gradients(job);
}

static bool sliced_weights(const struct job *job)
{
    return job_strategy(job->training.strategy).slices == SLICES_WEIGHTS;
}

static bool slices_after_forward(const struct job *job)
{
    return sliced_weights(job) && !job_strategy(job->training.strategy).keeps_weights;
}

static bool persistent(const struct job *job)
{
    return job->fsdp.param_persistence_threshold != 0;
}

static bool next_layers(const struct job *job)
{
    return job->fsdp.prefetch_bucket_size < 0 && job->fsdp.max_live_parameters < 0;
}

static bool units_of_layers(const struct job *job)
{
    return job->fsdp.auto_wrap_policy == WRAP_BY_LAYER;
}

static bool units_by_size(const struct job *job)
{
    return job->fsdp.auto_wrap_policy == WRAP_BY_SIZE;
}

static bool units_not_by_size(const struct job *job)
{
    return !units_by_size(job);
}

static bool units_of_some(const struct job *job)
{
    return job->fsdp.auto_wrap_policy != WRAP_WHOLE;
}

static bool in_f16(const struct job *job)
{
    return job->precision.compute == DT_F16;
}

static bool scale_moves(const struct job *job)
{
    return job->loss_scaling.loss_scale == 0;
}

static bool scale_of_torch(const struct job *job)
{
    return strcmp(job->loss_scaling.algorithm, "torch") == 0;
}

static bool scale_of_deepspeed(const struct job *job)
{
    return !scale_of_torch(job);
}

static bool recomputes(const struct job *job)
{
    return job->recompute.enabled || job->recompute.level == JOB_RECOMPUTE_AUTO;
}

static bool offloads_optimizer(const struct job *job)
{
    return job->offload.optimizer != OFFLOAD_NONE;
}

static bool offloads_state(const struct job *job)
{
    return offloads_optimizer(job) || job->offload.parameters != OFFLOAD_NONE;
}

static bool offloads_to_files(const struct job *job)
{
    const struct job_offload *o = &job->offload;
    return o->optimizer == OFFLOAD_NVME || o->parameters == OFFLOAD_NVME || o->activations == OFFLOAD_NVME;
}

static bool has_ring(const struct job *job)
{
    return job->offload.engine != OFFLOAD_ENGINE_THREADS;
}

static bool saves_beside(const struct job *job)
{
    return job->checkpointing.beside;
}

static bool keeps_best(const struct job *job)
{
    return job->checkpointing.save_top_k > 0;
}

static bool stops_early(const struct job *job)
{
    return job->stopping.monitor != NULL;
}

static bool may_stop(const struct job *job)
{
    return stops_early(job) || job->training.max_time != NULL;
}

static bool writes_csv(const struct job *job)
{
    return job->logging.csv;
}

static bool masks_documents(const struct job *job)
{
    return job->data.document_mask;
}

static bool shuffles(const struct job *job)
{
    return job->data.shuffle;
}

static bool may_be_texts(const struct job *job)
{
    static const char *const formats[] = {"auto", "text", "jsonl", "json", "csv", "tsv"};
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        if (strcmp(job->data.format, formats[i]) == 0) {
            return true;
        }
    }
    return false;
}

static bool crops(const struct job *job)
{
    return job->transforms.random_crop.count > 0;
}

static bool crops_and_resizes(const struct job *job)
{
    return job->transforms.random_resized_crop.count > 0;
}

static bool limits_by_itself(const struct job *job)
{
    return job->training.overfit_batches == 0;
}

static bool evaluates(const struct job *job)
{
    return job->data.val.count > 0;
}

static bool evaluates_within(const struct job *job)
{
    const struct job_training *t = &job->training;
    return evaluates(job) && (t->eval_every_n_steps > 0 || t->eval_every_n_epochs > 0);
}

static bool guards(const struct job *job)
{
    return job->training.guard_factor > 0;
}

static bool looks_back(const struct job *job)
{
    return guards(job) || job->training.skip_loss_z > 0 || job->training.skip_grad_z > 0;
}

static bool rolls_back(const struct job *job)
{
    return guards(job) && job->training.guard_action == GUARD_ROLLBACK;
}

static bool accumulates(const struct job *job)
{
    return job->training.gradient_accumulation_steps > 1;
}

static bool joins(const struct job *job)
{
    return job->training.uneven_inputs == UNEVEN_JOIN && job->training.loss_normalization == LOSS_LOCAL_MEAN;
}

static bool goes_by_epochs(const struct job *job)
{
    return job->training.max_steps < 0 && job->training.max_tokens == 0;
}

static bool goes_by_steps(const struct job *job)
{
    return !goes_by_epochs(job);
}

static bool on_gpus(const struct job *job)
{
    return strcmp(job->training.device, "cpu") != 0;
}

static bool may_use_nccl(const struct job *job)
{
    return strcmp(job->training.collectives, "peer") != 0;
}

static bool draws(const struct job *job)
{
    return job->generation.do_sample != 0;
}

static bool may_be_records(const struct job *job)
{
    return may_be_texts(job) && strcmp(job->data.format, "text") != 0;
}

/* Where a key is in several rows, the first one that is not met is said. */
static const struct job_need needs[] = {
    {"data", "sampler", shuffles, "data.shuffle true", "", "data.shuffle=false", false},
    {"data", "document_end", masks_documents, "nothing reads it while data.document_mask is false; set that to true",
     "data.document_mask=true", "", true},
    {"data", "text_key|text_pair_key|label_key|end_token|encoding_errors|on_bad_record|cache_dir", may_be_texts,
     "data.format of texts (text, jsonl, json, csv, tsv)", "", "data.format=tokens", false},
    {"data", "text_key|text_pair_key|label_key|on_bad_record", may_be_records,
     "data.format of records (jsonl, json, csv, tsv)", "", "data.format=text", false},
    {"transforms", "padding", crops, "belongs to transforms.random_crop, which is not given",
     "transforms.random_crop=28", "", true},
    {"transforms", "scale|ratio", crops_and_resizes, "belongs to transforms.random_resized_crop, which is not given",
     "transforms.random_resized_crop=28", "", true},
    {"training", "num_epochs", goes_by_epochs, "a length by epochs, and training.max_steps or max_tokens says it", "",
     "training.max_steps=5", false},
    {"training", "epoch_limit", goes_by_steps, "training.max_steps or max_tokens", "training.max_steps=5", "", false},
    {"training", "loss_guard_action", guards, "training.loss_guard_factor", "training.loss_guard_factor=3", "", false},
    {"training", "loss_guard_window", looks_back, "training.loss_guard_factor, skip_update_lossz or skip_update_gradz",
     "training.skip_update_gradz=3", "", false},
    {"training", "loss_guard_rollbacks", rolls_back, "training.loss_guard_factor with loss_guard_action rollback",
     "training.loss_guard_factor=3 training.loss_guard_action=rollback", "", false},
    {"training", "limit_train_batches|eval_batches", limits_by_itself,
     "training.overfit_batches 0, which says how many batches there are otherwise", "", "training.overfit_batches=2",
     false},
    {"training", "eval_batches", evaluates, "data.val", "data.val=x", "", false},
    {"training", "eval_delay", evaluates_within, "training.eval_every_n_steps or eval_every_n_epochs",
     "data.val=x training.eval_every_n_steps=5", "", false},
    {"training", "min_steps|min_epochs", may_stop, "early_stopping.monitor or training.max_time",
     "training.max_time=1:00", "", false},
    {"training", "accumulate_sync|partial_accumulation", accumulates, "training.gradient_accumulation_steps above 1",
     "training.gradient_accumulation_steps=2", "", false},
    {"training", "divide_by_initial_world_size", joins, "training.uneven_inputs join and loss_normalization local_mean",
     "training.uneven_inputs=join", "", false},
    {"training", "attention|share_gpu|collectives|collective_sms|cuda_graphs", on_gpus, "GPUs; training.device is cpu",
     "", "training.device=cpu", false},
    {"training", "collective_sms", may_use_nccl, "training.collectives auto or nccl", "", "training.collectives=peer",
     false},
    {"ddp", "bucket_cap_mb|first_bucket_mb", whole_gradients,
     "gradients that are whole until they are reduced: ddp, zero0, zero1, no_shard, or training.accumulate_sync "
     "boundary",
     "", "training.strategy=zero2", false},
    {"power_sgd", "min_compression_rate", matrix_power_sgd, "ddp.comm_hook power_sgd", "ddp.comm_hook=power_sgd", "",
     false},
    {"power_sgd", NULL, any_power_sgd, "ddp.comm_hook power_sgd or batched_power_sgd", "ddp.comm_hook=power_sgd", "",
     false},
    {"local_sgd", "group_size", post_local_sgd, "ddp.comm_hook post_local_sgd", "ddp.comm_hook=post_local_sgd", "",
     false},
    {"local_sgd", NULL, any_local_sgd, "training.strategy local_sgd, or ddp.comm_hook post_local_sgd",
     "ddp.comm_hook=post_local_sgd", "", false},
    {"fsdp", "layers_per_unit", units_of_layers, "fsdp.auto_wrap_policy transformer_based", "",
     "fsdp.auto_wrap_policy=none", false},
    {"fsdp", "min_num_params", units_by_size, "fsdp.auto_wrap_policy size_based", "fsdp.auto_wrap_policy=size_based",
     "", false},
    {"fsdp", "wrap_layers", units_of_some, "fsdp.auto_wrap_policy transformer_based", "", "fsdp.auto_wrap_policy=none",
     false},
    {"fsdp", "wrap_layers", units_not_by_size,
     "names the units, and fsdp.auto_wrap_policy size_based makes them by their size; remove one", "",
     "fsdp.auto_wrap_policy=size_based", true},
    {"fsdp", "overlap_comm", sliced_gradients,
     "sliced gradients: zero2, zero3, full_shard without training.accumulate_sync boundary", "training.strategy=zero2",
     "", false},
    {"fsdp",
     "backward_prefetch|forward_prefetch|prefetch_bucket_size|max_live_parameters|max_reuse_distance|"
     "param_persistence_threshold|model_persistence_threshold",
     sliced_weights, "strategies that slice weights: zero3, full_shard, shard_grad_op, hybrid_shard",
     "training.strategy=zero3", "", false},
    {"fsdp", "reshard_after_forward", slices_after_forward,
     "strategies that slice weights after forward: zero3, full_shard, hybrid_shard", "training.strategy=zero3", "",
     false},
    {"fsdp", "backward_prefetch|forward_prefetch", next_layers,
     "fsdp.prefetch_bucket_size and max_live_parameters null, which choose what is gathered ahead otherwise", "",
     "fsdp.prefetch_bucket_size=7", false},
    {"fsdp", "model_persistence_threshold", persistent, "fsdp.param_persistence_threshold",
     "fsdp.param_persistence_threshold=100", "", false},
    {"loss_scaling", NULL, in_f16, "training.precision 16-mixed or 16-true", "training.precision=16-mixed", "", false},
    {"loss_scaling",
     "initial_scale_power|growth_interval|growth_factor|backoff_factor|loss_scale_window|hysteresis|"
     "consecutive_hysteresis|min_loss_scale",
     scale_moves, "loss_scaling.loss_scale 0, a scale that moves", "", "loss_scaling.loss_scale=8", false},
    {"loss_scaling", "growth_interval|growth_factor|backoff_factor", scale_of_torch, "loss_scaling.algorithm torch", "",
     "loss_scaling.algorithm=deepspeed", false},
    {"loss_scaling", "loss_scale_window|hysteresis|consecutive_hysteresis", scale_of_deepspeed,
     "loss_scaling.algorithm deepspeed", "loss_scaling.algorithm=deepspeed", "", false},
    {"activation_checkpointing", "checkpoint_every_n_layers|level", recomputes, "activation_checkpointing.enabled true",
     "activation_checkpointing.enabled=true", "", false},
    {"offload", "ratio", offloads_optimizer, "offload.optimizer", "offload.optimizer=cpu training.strategy=zero3", "",
     false},
    {"offload", "portion|buffer_count|pipeline_read|pipeline_write", offloads_state,
     "offload.optimizer or offload.parameters", "offload.optimizer=cpu training.strategy=zero3", "", false},
    {"offload", "nvme_path|engine|block_size|queue_depth|intra_op_parallelism|single_submit|overlap_events",
     offloads_to_files, "offload to nvme", "offload.optimizer=nvme offload.nvme_path=here training.strategy=zero3", "",
     false},
    {"offload", "single_submit|overlap_events", has_ring, "offload.engine io_uring", "", "offload.engine=threads",
     false},
    {"checkpointing", "skip_when_saving", saves_beside, "checkpointing.asynchronous true",
     "checkpointing.asynchronous=true", "", false},
    {"checkpointing", "monitor", keeps_best, "nothing looks at it; give checkpointing.save_top_k",
     "checkpointing.save_top_k=1 data.val=x training.eval_every_n_steps=5", "", true},
    {"checkpointing", "mode", keeps_best, "counts beside checkpointing.save_top_k; give that",
     "checkpointing.save_top_k=1 data.val=x training.eval_every_n_steps=5", "", true},
    {"checkpointing", "load_best_model_at_end", keeps_best, "no best checkpoint is kept; give checkpointing.save_top_k",
     "checkpointing.save_top_k=1 data.val=x training.eval_every_n_steps=5", "", true},
    {"early_stopping", "mode|patience|min_delta|compare_with_best|stopping_threshold|divergence_threshold|check_finite",
     stops_early, "nothing is watched; give early_stopping.monitor, such as val_loss",
     "early_stopping.monitor=val_loss data.val=x training.eval_every_n_steps=5", "", true},
    {"logging", "csv_path", writes_csv, "nothing is written there while logging.csv is false; set it to true",
     "logging.csv=true", "", true},
    {"generation", "temperature|top_k|top_p|min_p", draws, "generation.do_sample true or null", "",
     "generation.do_sample=false", false},
    {0},
};

const struct job_need *job_need_at(int i)
{
    return i < (int)(sizeof needs / sizeof needs[0]) - 1 ? &needs[i] : NULL;
}

bool job_need_has(const struct job_need *n, const char *section, const char *key)
{
    size_t size = strlen(key);
    if (strcmp(n->section, section) != 0) {
        return false;
    }
    for (const char *p = n->keys; p != NULL && *p != 0; p += strcspn(p, "|"), p += *p == '|') {
        if (strcspn(p, "|") == size && strncmp(p, key, size) == 0) {
            return true;
        }
    }
    return n->keys == NULL;
}

/* The first row for a key that is not met; null: it counts. */
static const struct job_need *unmet(const struct job *job, const char *section, const char *key)
{
    for (const struct job_need *n = needs; n->section != NULL; n++) {
        if (job_need_has(n, section, key) && !n->met(job)) {
            return n;
        }
    }
    return NULL;
}

/* As it was given: the job may hold what it stands for. */
static bool is_default(struct job *job, const struct dt_field *f, const cJSON *given)
{
    struct dt_field alone = *f;
    void *value = dt_arena_alloc(&job->arena, dt_config_size(f->rule));
    struct dt_text text;
    alone.offset = 0;
    dt_text_init(&text);
    bool same = !dt_value_parse(f->rule, given, &job->arena, value); /* "auto" */
    if (!same) {
        dt_config_format(&alone, value, &text);
        same = strcmp(dt_text_str(&text), f->fallback) == 0;
    }
    dt_text_clear(&text);
    return same;
}

void job_check_needs(struct job *job, struct dt_config *c)
{
    struct dt_text idle[sizeof needs / sizeof needs[0]]; /* by row: the keys that are said */
    enum { ROWS = sizeof needs / sizeof needs[0] - 1 };
    struct dt_text all;
    dt_text_init(&all);
    for (int i = 0; i < ROWS; i++) {
        dt_text_init(&idle[i]);
    }
    for (const struct job_section *s = job_sections; s->name != NULL && job->training.fast_dev_run == 0; s++) {
        for (const struct dt_field *f = s->fields; f->key != NULL; f++) {
            const struct job_need *n = unmet(job, s->name, f->key);
            const char *key = n != NULL ? dt_arena_printf(&job->arena, "%s.%s", s->name, f->key) : NULL;
            if (n == NULL || dt_config_where(c, key) == NULL || is_default(job, f, dt_config_value(c, key))) {
                continue;
            }
            if (n->refused) {
                dt_config_problem(c, key, "%s", n->text);
            } else {
                struct dt_text *keys = &idle[n - needs];
                dt_text_printf(keys, "%s%s", keys->size > 0 ? ", " : "", dt_config_name(c, key));
            }
        }
    }
    for (int i = 0; i < ROWS; i++) {
        if (idle[i].size > 0) {
            dt_text_printf(&all, "%s%s (goes with %s)", all.size > 0 ? "; " : "", idle[i].data, needs[i].text);
        }
        dt_text_clear(&idle[i]);
    }
    job->idle_keys = all.size > 0 ? dt_arena_strdup(&job->arena, all.data) : NULL;
    dt_text_clear(&all);
}
