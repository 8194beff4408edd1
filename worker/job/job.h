/* A training job: what job.json says, every value filled in and checked. Nothing after job.c
 * looks at the file again. */
#ifndef DT_WORKER_JOB_JOB_H
#define DT_WORKER_JOB_JOB_H

#include "base/config.h"
#include "base/dtype.h"
#include "base/error.h"
#include "base/text.h"
#include "worker/engine/optimizers/optimizers.h"
#include "worker/engine/schedules/schedule.h"
#include "worker/model/chain.h"

#include <stdbool.h>
#include <stdint.h>

enum loss_normalization { LOSS_LOCAL_MEAN, LOSS_GLOBAL_TOKENS };
/* auto: the strategy row's own */
enum accumulate_sync { SYNC_AUTO, SYNC_EVERY_MICRO_STEP, SYNC_BOUNDARY };
/* fsdp.backward_prefetch */
enum prefetch { PREFETCH_PRE, PREFETCH_POST, PREFETCH_NONE };
/* fsdp.auto_wrap_policy */
enum wrap_by { WRAP_BY_LAYER, WRAP_BY_SIZE, WRAP_WHOLE };
/* auto: as is measured to be faster */
enum graphs_wish { GRAPHS_AUTO, GRAPHS_ON, GRAPHS_OFF, GRAPHS_LAYERS };
enum matmul_precision { MATMUL_HIGHEST, MATMUL_HIGH };
enum encoding_errors { ENCODING_REFUSE, ENCODING_REPLACE };
enum on_bad_record { BAD_RECORD_REFUSE, BAD_RECORD_SKIP };
enum on_bad_image { BAD_IMAGE_REFUSE, BAD_IMAGE_SKIP };
/* offload.optimizer, offload.parameters, offload.activations; offload.engine */
enum offload_to { OFFLOAD_NONE, OFFLOAD_CPU, OFFLOAD_NVME };
enum offload_engine { OFFLOAD_ENGINE_AUTO, OFFLOAD_ENGINE_RING, OFFLOAD_ENGINE_THREADS };
/* what becomes of the samples at the end of an epoch that fill no micro-batch of all ranks */
enum uneven_inputs { UNEVEN_DROP, UNEVEN_JOIN, UNEVEN_STRICT };
enum partial_accumulation { PARTIAL_STEP, PARTIAL_CARRY, PARTIAL_DROP };

/* Names of enum recompute, in its order. */
#define JOB_RECOMPUTE_LEVELS "none|cheap|mlp|block"
/* activation_checkpointing.level: the words after them; the last two are Megatron's for block and cheap. */
#define JOB_RECOMPUTE_WORDS JOB_RECOMPUTE_LEVELS "|auto|full|selective"
enum { JOB_RECOMPUTE_AUTO = RECOMPUTE_BLOCK + 1, JOB_RECOMPUTE_FULL, JOB_RECOMPUTE_SELECTIVE };

/* the section loss_scaling (worker/engine/scaler.h) */
struct scaler_settings {
    const char *algorithm; /* "torch", "deepspeed" */
    double loss_scale;     /* above 0: it never changes */
    int64_t initial_scale_power;
    int64_t loss_scale_window, hysteresis; /* of deepspeed */
    bool consecutive_hysteresis;
    double min_loss_scale;                /* below 0: the rule's own */
    double growth_factor, backoff_factor; /* of torch */
    int64_t growth_interval;
};
enum { JOB_GROUPS_MAX = 32 };
enum clip_algorithm { CLIP_NORM, CLIP_VALUE };
enum guard_action { GUARD_SKIP, GUARD_STOP, GUARD_ROLLBACK };
/* of a monitored value: which is better. auto: less of a loss, more of everything else */
enum monitor_mode { MODE_AUTO, MODE_MIN, MODE_MAX };
#define JOB_NO_THRESHOLD (-2147483648.0)

struct job {
    const char *path;       /* the job file, as given */
    const char *name;       /* file name without folder and .json */
    const char *output_dir; /* runs/NAME by default */
    bool fresh;             /* --fresh: begin anew in a new folder */
    bool evaluates;         /* --evaluate: nothing is trained, so data.train is not read */
    bool elsewhere;         /* only planned, for hosts whose data are not these: few samples are no error */
    struct job_model {
        /* "gpt2"; from the folder's config.json when `load` is given */
        const char *name;
        /* Hugging Face folder, or null */
        const char *load;
        const struct model_ops *ops;
        struct model_sizes sizes; /* the values of ops->fields */
        /* names of the first classes of what is evaluated, or trained further (cmd/train/classes.h); count 0: none */
        const char *const *classes;
        int class_count;
    } model;
    struct job_data {
        struct dt_sources train; /* paths or globs of shards or texts */
        struct dt_sets val;      /* the same for evaluation, by name; count 0: none */
        const char *format;      /* "auto", "tokens" (llm.c shards), "tensors" */
        const char *tokenizer;   /* null: as the shards say */
        int64_t sequence_length;
        bool shuffle;
        int sampler;         /* enum sampler_order */
        int group_by_length; /* 0 or 1; -1: where the data have lengths */
        int64_t pad_to_multiple_of;
        bool document_mask;   /* positions and attention begin anew in each document of a sample */
        int64_t document_end; /* the id that ends a document; -1: as the data say */
        int on_bad_image;     /* enum on_bad_image */
        /* of texts, as the options of dtdata tokenize; pair, label, end and cache_dir may be null */
        const char *text_key, *text_pair_key, *label_key, *end_token, *cache_dir;
        int encoding_errors, on_bad_record; /* enum encoding_errors; enum on_bad_record */
    } data;
    struct job_transforms { /* of images; a size is one number for both sides, or height and width */
        struct dt_numbers resize, center_crop, random_crop, random_resized_crop; /* count 0: none */
        int64_t padding;                                                         /* of random_crop */
        struct dt_numbers scale, ratio;                                          /* of random_resized_crop */
        double random_horizontal_flip;                                           /* its probability */
        struct dt_numbers mean, std;
    } transforms;
    struct job_training {
        const char *strategy; /* "auto" resolved by strategy.c when the world is known */
        int64_t batch_size_per_gpu, gradient_accumulation_steps;
        int64_t train_batch_tokens;               /* 0: not given */
        struct dt_integers accumulation_schedule; /* epoch, micro-steps of a step from there on, ...; count 0: the
                                                   * same in all, otherwise gradient_accumulation_steps is the most */
        int64_t max_tokens, max_samples;          /* 0: by max_steps or num_epochs; these tokens as samples */
        int64_t max_steps;                        /* -1: by num_epochs */
        double num_epochs;                        /* 0: by max_steps */
        int64_t epoch_limit;                      /* of a run by max_steps or max_tokens; 0: none */
        double learning_rate, warmup_ratio, min_lr_ratio;
        double lr_power, decay_ratio;      /* of polynomial; of warmup_stable_decay */
        int64_t warmup_steps;              /* -1: by warmup_ratio */
        const char *lr_scheduler_type;     /* a row of schedule.c: "constant", "linear", "cosine", ... */
        struct schedule_numbers scheduler; /* the section `scheduler` */
        double weight_decay;
        double max_grad_norm;                          /* 0: no clipping */
        int clip_algorithm;                            /* enum clip_algorithm */
        double clip_value;                             /* of CLIP_VALUE; otherwise 0 */
        double skip_loss_z, skip_grad_z, guard_factor; /* 0: any */
        int64_t guard_window;                          /* steps that the three look back */
        int guard_action;                              /* enum guard_action */
        int64_t guard_rollbacks;                       /* most of them in a round */
        int64_t seed;
        double limit_train_batches,
            overfit_batches; /* batches of an epoch, below 1 a share of them; below 0: all; 0: no */
        int64_t eval_every_n_steps;
        double eval_batches;          /* below 1: a share of them; 0: all */
        double eval_every_n_epochs;   /* 0: never */
        double eval_delay;            /* in the unit of these two */
        int64_t num_sanity_val_steps; /* -1: all */
        int64_t fast_dev_run;
        int64_t min_steps;
        double min_epochs;
        const char *max_time;                 /* "DD:HH:MM:SS"; null: any */
        double max_time_s;                    /* the same in seconds; 0: any */
        int64_t check_replicas_every_n_steps; /* 0: never */
        enum loss_normalization loss_normalization;
        bool deterministic;
        const char *attention;   /* "auto", "fast", "ordered", "own": on a GPU */
        const char *device;      /* "auto", "cpu", "cuda", "gpu" */
        bool share_gpu;          /* several ranks may compute on one GPU */
        const char *collectives; /* "auto", "nccl", "peer": between GPUs */
        int64_t collective_sms;  /* nccl: multiprocessors that a collective
                                                      * may take; 0: as NCCL chooses */
        bool broadcast_buffers, sync_batch_norm;
        enum graphs_wish cuda_graphs;                /* layers or micro-steps as CUDA graphs, on a GPU */
        const char *precision;                       /* "32-true", "bf16-mixed", ... (dialect_precision) */
        enum matmul_precision matmul_precision;      /* of products of F32 on a GPU: F32, TF32 */
        const char *optimizer_state_dtype;           /* "fp32", "bf16" */
        const char *grad_accum_dtype;                /* "fp32", "bf16", "fp16" */
        double step_timeout_s, collective_timeout_s; /* 0: none */
        struct dt_strings freeze;                    /* globs of tensors */
        enum accumulate_sync accumulate_sync;
        enum partial_accumulation partial_accumulation;
        enum uneven_inputs uneven_inputs;
        bool divide_by_initial_world_size; /* UNEVEN_JOIN: ranks that have no samples count in means over ranks */
        int64_t threads;                   /* 0: cores this process may use / local ranks */
    } training;
    struct job_optimizer {
        const char *name; /* of OPTIMIZER_NAMES */
        const struct optimizer_row *row;
        struct dt_update_numbers numbers; /* the values of row->fields */
        struct dt_update_numbers rest;    /* those of its rest (optimizer_rest) */
        const char *groups_text;          /* optimizer.groups as JSON; or null */
        int group_count;
        struct job_group {
            struct dt_strings params;           /* globs over names of tensors */
            double lr_scale;                    /* of training.learning_rate */
            double weight_decay;                /* of all tensors; NaN: as without the group */
            bool own_rate, own_betas;           /* own_rate: whatever optimizer.adamw_learning_rate says */
            double beta1, beta2, eps, momentum; /* of own_betas; 0: as without the group */
            const struct optimizer_row *row;    /* of the job's optimizer and its rest; null: by the tensor */
        } groups[JOB_GROUPS_MAX];
    } optimizer;
    struct job_ddp {
        double bucket_cap_mb, first_bucket_mb;
        const char *comm_hook, *comm_wrapper; /* rows of engine/hooks/hooks.c, in its spelling; null: none */
        bool find_unused_parameters, static_graph, gradient_as_bucket_view;
    } ddp;
    struct job_power_sgd {
        int64_t matrix_approximation_rank, start_iter; /* start_iter: steps before it are plain */
        double min_compression_rate, epsilon;          /* epsilon: added to norms of columns */
        bool use_error_feedback, warm_start;
        int64_t random_seed;
    } power_sgd;
    struct job_local_sgd {
        int64_t warmup_steps, period; /* steps that reduce all gradients; steps between averages */
        int64_t group_size;           /* post_local_sgd: ranks of a group; 0: those of a host */
    } local_sgd;
    struct job_fsdp {
        int64_t device_mesh[2];        /* replicas, shards; 0 0: one shard group per host */
        int64_t reshard_after_forward; /* ranks; 0: as the strategy says */
        enum prefetch backward_prefetch;
        bool forward_prefetch, limit_all_gathers, overlap_comm;
        enum wrap_by auto_wrap_policy;
        int64_t layers_per_unit, min_num_params; /* of WRAP_BY_LAYER, of WRAP_BY_SIZE */
        struct dt_strings wrap_layers;
        int64_t prefetch_bucket_size; /* elements, as those below; -1: one layer */
        int64_t max_live_parameters;  /* -1: any */
        int64_t max_reuse_distance;
        int64_t param_persistence_threshold; /* WRAP_AUTO: by the model's width */
        int64_t model_persistence_threshold; /* -1: any */
    } fsdp;
    struct job_mixed {                           /* FSDP's */
        const char *reduce_dtype, *buffer_dtype; /* null: as training.precision; any */
    } mixed;
    struct scaler_settings loss_scaling; /* read if the precision is one of fp16 */
    struct job_recompute {               /* activation_checkpointing */
        bool enabled;
        int64_t every_n_layers;
        int level; /* enum recompute, or JOB_RECOMPUTE_AUTO */
    } recompute;
    struct job_offload {
        enum offload_to optimizer, parameters, activations;
        double ratio; /* of the optimizer's state */
        struct dt_strings nvme_path;
        int64_t portion; /* elements; 0: HOME_PORTION */
        int64_t buffer_count;
        bool pipeline_read, pipeline_write;
        enum offload_engine engine;
        int64_t block_size, queue_depth, intra_op_parallelism;
        bool single_submit, overlap_events;
    } offload;
    struct job_checkpointing {
        int64_t save_every_n_steps; /* 0: only at the end */
        double save_every_n_epochs; /* 0: by steps alone */
        double save_every_n_seconds;
        int64_t keep_last_n;        /* 0: all */
        const char *resume;         /* "auto", "never", or a folder of a checkpoint */
        const char *accept;         /* "training.learning_rate,data.train": full keys of
                                     * job_compare.c; or null */
        const char *override;       /* joins accept when the job is read */
        const char *checkpoint_dir; /* output_dir/checkpoints by default */
        double save_timeout_s;
        bool beside;                    /* training goes on while a checkpoint is written */
        bool skips;                     /* a save that falls due meanwhile is left out; or waits */
        int64_t snapshot_every_n_steps; /* 0: never */
        int64_t save_top_k;             /* best checkpoints that are kept beside the newest; 0: none */
        const char *monitor;            /* by which value; null: val_loss */
        int mode;                       /* enum monitor_mode, resolved */
        bool load_best;                 /* model/ is the best checkpoint's */
    } checkpointing;
    struct job_stopping {    /* early_stopping */
        const char *monitor; /* null: nothing ends the run early */
        int mode;            /* enum monitor_mode, resolved */
        int64_t patience;
        double min_delta;
        bool compare_with_best;                          /* min_delta counts from the best value, as in Transformers */
        double stopping_threshold, divergence_threshold; /* JOB_NO_THRESHOLD: none */
        bool check_finite;
    } stopping;
    struct job_logging {
        int64_t log_every_n_steps;
        int64_t timeline_steps[2];    /* the first, how many; 0 0: none */
        bool csv;                     /* metrics.csv */
        const char *csv_path;         /* null: in output_dir */
        int64_t sample_every_n_steps; /* 0: never */
    } logging;
    struct job_generation { /* of train --generate and samples; below 0: as the model's folder says */
        int64_t max_new_tokens, top_k;
        double temperature, top_p, min_p, repetition_penalty;
        int do_sample; /* 0 or 1 */
        int64_t seed;
        struct dt_strings prompt, prompt_ids; /* as the options --prompt and --prompt_ids take them */
    } generation;

    struct job_export {             /* of the folder model/ */
        const char *dtype;          /* "float32", "bf16", ... */
        const char *max_shard_size; /* "5GB" */
    } export;

    struct job_precision {             /* what training.precision, mixed_precision and
                                        * training.optimizer_state_dtype say together */
        enum dt_dtype compute, reduce; /* F32, BF16, F16 or F64: weights, activations, their gradients;
                                        * gradients on the wire: as compute, or F32 */
        enum dt_dtype sums;            /* gradients that add up over micro-steps: as compute, or F32 */
        enum dt_dtype masters;         /* weights as they are updated: as compute, or F32 */
        enum dt_dtype states;          /* F32 or BF16: of the optimizer */
    } precision;

    const char *const *registered; /* names of the section "strategies"; null behind the last one */
    const char *inert_keys;        /* given keys of other systems that have no effect: "a, b"; or null */
    const char
        *idle_keys; /* keys that count beside others, which the job has not: "a, b (goes with c); ..."; or null */
    struct dt_arena arena; /* owns all strings */
    char *text;            /* the whole job as JSON, every value filled in; what goes to
                             * output_dir/job.json */
};

/* the command line of `train` */
struct job_arguments {
    const char *path;          /* job.json, or a file of another system */
    const char *const *config; /* files of other systems beside it */
    int config_count;
    const char *const *set;        /* "training.seed=7", in order */
    const char *const *set_option; /* null, or as many: "--seed" when that option said it, else
                                    * null */
    int set_count;
    bool fresh;
    bool evaluates; /* data.train may be missing */
    bool converts;  /* the job is only converted: numbers of ranks are not compared */
    int world;      /* ranks, for DeepSpeed's train_batch_size; 0: one */
    /* changes the sizes of config.json where the weights of model.load say so (hf_untie), true: it did; may be null */
    bool (*look)(const char *folder, const struct model_ops *ops, void *sizes);
};

/* Reads, fills in and checks a job. All problems are reported at once, one per line in
 * `problems` (initialised text), each `file:line:column: key: cause; do this`; err then says how
 * many. 0 or -1. */
int job_open(struct job *job, const struct job_arguments *args, struct dt_text *problems, struct dt_error *err);
void job_close(struct job *job);
/* The section `generation`, out->generation: of the job file if there is one (args->path), which must be
 * right as a whole, otherwise of args->set, whose keys must all be of that section. job_close follows in any
 * case. */
int job_read_generation(struct job *out, const struct job_arguments *args, struct dt_text *problems,
                        struct dt_error *err);
/* Reads a job and shows it, good or not, to `see`, which appends to `seen`. inert: keys without
 * effect; may be null. Problems as of job_open. 0 or -1. */
typedef void job_see(struct job *job, const struct dt_config *c, struct dt_text *seen);
int job_look(const struct job_arguments *args, job_see *see, struct dt_text *seen, struct dt_text *inert,
             struct dt_text *problems, struct dt_error *err);
/* --list-strategies: those that the job registers. */
int job_list_strategies(const char *path, struct dt_text *out, struct dt_error *err);
/* --print-config: key, value and where it came from, in 79 columns (a word that is longer stands
 * alone in its line). */
int job_print_config(const struct job_arguments *args, struct dt_text *out, struct dt_text *problems,
                     struct dt_error *err);
/* The JSON Schema of the job file, generated from the field tables. */
void job_schema(struct dt_text *out);
/* job_check.c: fills in what depends on other keys, and checks what spans keys, of the sections that are good
 * (JOB_MODEL and so on). world: ranks. */
void job_check_sections(struct job *job, struct dt_config *c, const bool *good, int world);
/* job_offload.c: a strategy whose name says that it offloads fills in what the keys of `offload` leave
 * open; then what the job asks of its strategy and what spans keys is checked. */
void job_check_offload(struct job *job, struct dt_config *c);
/* job_strategy.c: what a name of a strategy means for keys of the job. */
enum strategy_slices { SLICES_NOTHING, SLICES_STATE, SLICES_WEIGHTS }; /* over ranks; the latter also what is before */
struct job_strategy {
    enum strategy_slices slices;
    bool whole_gradients;                  /* until they are reduced, once a step */
    bool keeps_weights;                    /* sliced weights stay gathered from forward to backward */
    enum offload_to optimizer, parameters; /* that the name asks for */
};
struct job_strategy job_strategy(const char *name);
/* Gives a job that has been read another strategy, and what that name says of offloading; the job borrows `name`.
 * DT_INVALID if the two do not go together. */
int job_take_strategy(struct job *job, const char *name, struct dt_error *err);
/* Opens a job anew with a strategy that it registers, and with the data and the model of `job`, which has been read and
 * must outlive *out. 0 or -1; err has the first problem. */
int job_open_registered(struct job *out, const struct job *job, const struct job_arguments *args, const char *name,
                        struct dt_error *err);
/* job_needs.c: names or refuses keys without those beside which they count. */
void job_check_needs(struct job *job, struct dt_config *c);
/* job_hooks.c: what spans the sections ddp, power_sgd and local_sgd and the strategy. */
void job_check_hooks(struct job *job, struct dt_config *c);
/* job_stopping.c: when a run is evaluated, and ends. */
extern const struct dt_field job_stopping_fields[];
/* Before the tables are read: training.fast_dev_run true is 1, and a number as training.max_time is a string. */
void job_read_stopping(struct dt_config *c);
/* training.fast_dev_run: what it means for other keys. Before they are checked. */
void job_make_trial(struct job *job);
void job_check_stopping(struct job *job, struct dt_config *c);
/* Splits a monitor: "val_loss" is `loss` of the first set of data.val, "val_code_loss" of the set `code`. The set's
 * index, -1: there is no such value. *value: one of JOB_MONITORS. */
int job_monitor(const struct job *job, const char *monitor, const char **value);
/* Do values that a saved job (JSON text) monitored mean the same to this one? */
void job_same_monitors(const struct job *job, const char *saved, bool *stopping, bool *best);
#define JOB_MONITORS "loss|accuracy|f1_macro|pearson"
/* job_compare.c */
/* What a key of the job is to a run that goes on from a checkpoint. */
enum job_key_kind {
    JOB_KEY_TENSORS, /* another value, other tensors: never */
    JOB_KEY_TOKENS,  /* the tensors fit and mean something else: never */
    JOB_KEY_STATE,   /* the weights fit, the optimizer's state does not: never */
    JOB_KEY_DATA,    /* other samples, or another order: when checkpointing.accept names it, from
                      * sample 0 of epoch 0 on */
    JOB_KEY_NUMBER,  /* of schedule, optimizer or loss: when checkpointing.accept names it, from
                      * the next step on */
    JOB_KEY_LENGTH   /* of the run: always */
};
enum { JOB_KEYS_MAX = 192, JOB_VALUE_BYTES = 96 };
#define JOB_DATA_KEY "data.train" /* compared by content */
#define JOB_WEIGHTS_ALONE " (with its weights alone: dtckpt export CHECKPOINT DIR, then model.load DIR)"
struct job_change {
    char key[64];
    enum job_key_kind kind;
    char was[JOB_VALUE_BYTES], is[JOB_VALUE_BYTES]; /* JSON; "" of JOB_DATA_KEY */
    bool cut;                                       /* they are parts of it, where they differ */
};
struct job_changes {
    struct job_change list[JOB_KEYS_MAX];
    int count;
    char data[320]; /* of JOB_DATA_KEY: how they differ, cut short */
};
/* Compares two saved jobs (JSON as in `text`). other_data: how the data differ from those of the
 * checkpoint; null: they are the same. 0 with all that differs and may; DT_INVALID with what
 * differs and may not, both values of the first, and the ways on. */
int job_compare(const char *saved, const char *now, const char *accept, const char *other_data, struct job_changes *out,
                struct dt_error *err);
/* DT_INVALID if a key on which the tensors depend has another value in the saved job: weights alone are
 * taken from its checkpoint. */
int job_compare_model(const char *saved, const char *now, struct dt_error *err);
/* True if the jobs of two ranks (JSON as in `text`) differ in more than what each host has of its own: appends the
 * first key with both values, and the names of all others. */
bool job_apart(const char *ours, const char *theirs, struct dt_text *out);
/* Full key of a name in checkpointing.accept ("learning_rate"), or null; the name of one that
 * may be meant, or null. In the arena. */
const char *job_accept_key(const char *name, struct dt_arena *arena);
const char *job_accept_nearest(const char *name, struct dt_arena *arena);
/* Micro-steps of a step that begins in an epoch, and the first later epoch that has another number
 * (INT64_MAX: none). */
int64_t job_accumulation(const struct job_training *t, int64_t epoch);
int64_t job_accumulation_end(const struct job_training *t, int64_t epoch);
/* Puts what a saved job says of training into *out. Strings are in the arena. */
void job_read_training(const char *saved, struct dt_arena *arena, struct job_training *out);

#endif
