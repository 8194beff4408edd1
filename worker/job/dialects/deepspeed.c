/* DeepSpeed's configuration, one row per key. docs/dialects.md has this table for users
 * (tests/worker/job/unit_dialects.c keeps it the same). */
#include "worker/job/dialects/deepspeed.h"

#include <cjson/cJSON.h>
#include <string.h>
#include <strings.h>

/* DeepSpeed's names of optimizers. Adam is AdamW unless adam_w_mode is false (below). */
static const char *optimizer_name(const cJSON *type)
{
    static const char *const names[][2] = {{"Adam", "adamw"}, {"AdamW", "adamw"},     {"SGD", "sgd"},  {"Lion", "lion"},
                                           {"Lamb", "lamb"},  {"Adagrad", "adagrad"}, {"Muon", "muon"}};
    for (size_t i = 0; cJSON_IsString(type) && i < sizeof names / sizeof names[0]; i++) {
        if (strcasecmp(type->valuestring, names[i][0]) == 0) {
            return names[i][1];
        }
    }
    return NULL;
}

static bool is_type(const struct dialect_use *u, const char *ours)
{
    const char *name = optimizer_name(dt_config_value(u->c, dialect_path(u, "optimizer.type")));
    return name != NULL && strcmp(name, ours) == 0;
}

/* DeepSpeed's defaults of Muon and its rest, where neither file says anything else. */
static void muon_defaults(struct dialect_use *u, const char *path)
{
    static const struct {
        const char *theirs, *also, *ours;
        double number;
    } all[] = {{"muon_lr", "lr", "training.learning_rate", 0.02},
               {"adam_lr", "lr", "optimizer.adamw_learning_rate", 3e-4},
               {"betas", "betas", "training.adam_beta2", 0.95},
               {"eps", "eps", "training.adam_epsilon", 1e-10}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        const char *theirs = dt_arena_printf(u->arena, "optimizer.params.%s", all[i].theirs),
                   *also = dt_arena_printf(u->arena, "optimizer.params.%s", all[i].also);
        if (!dialect_says(u, theirs) && !dialect_says(u, also) && dt_config_where(u->c, all[i].ours) == NULL) {
            dialect_give(u, path, all[i].ours, cJSON_CreateNumber(all[i].number));
        }
    }
}

/* DeepSpeed's default of Lion's second beta is not that of the paper, which is ours. */
static void optimizer(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    const char *name = optimizer_name(value), *word = cJSON_IsString(value) ? value->valuestring : "";
    if (name == NULL) {
        dt_config_problem(u->c, path,
                          strstr(word, "OneBit") != NULL || strstr(word, "ZeroOne") != NULL
                              ? "is \"%.40s\": 1-bit optimizers are beyond scope; write Adam or Lamb, and "
                                "communication_data_type bf16"
                              : "is \"%.40s\": there are Adam, AdamW, SGD, Lion, Lamb, Adagrad and Muon; write one of "
                                "them",
                          word);
        dt_config_pass(u->c, dialect_path(u, "optimizer.params")); /* its numbers go with it */
        return;
    }
    if (strcasecmp(value->valuestring, "Adam") == 0 &&
        cJSON_IsFalse(dt_config_value(u->c, dialect_path(u, "optimizer.params.adam_w_mode")))) {
        name = "adam";
    }
    dialect_give(u, path, r->to, cJSON_CreateString(name));
    if (is_type(u, "lion") && !dialect_says(u, "optimizer.params.betas") &&
        dt_config_where(u->c, "optimizer.beta2") == NULL) {
        dialect_give(u, path, "optimizer.beta2", cJSON_CreateNumber(0.999));
    }
    if (is_type(u, "muon")) {
        muon_defaults(u, path);
    }
}

/* `lr` is for what has no rate of its own: Muon's matrices may have muon_lr, and the rest adam_lr. */
static void rate(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    if (!is_type(u, "muon") || !dialect_says(u, "optimizer.params.muon_lr")) {
        deepspeed_rate(u, r, path, value);
    } else if (!dialect_says(u, "optimizer.params.adam_lr")) {
        dialect_give(u, path, "optimizer.adamw_learning_rate", cJSON_Duplicate(value, true));
    }
}

static void bias_correction(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    if (cJSON_IsTrue(value)) { /* it is so anyway */
        dt_config_pass(u->c, path);
        return;
    }
    dialect_give(u, path, is_type(u, "lamb") ? "optimizer.bias_correction" : r->to, cJSON_Duplicate(value, true));
}

/* torch's AdamW decays where nothing says how much; DeepSpeed's own does not. */
static void torch_adam(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    static const char decay[] = "training.weight_decay";
    (void)r;
    bool adamw = is_type(u, "adamw") && dialect_is_word(dt_config_value(u->c, "optimizer.name"), "adamw"),
         said = dt_config_value(u->c, dialect_path(u, "optimizer.params.weight_decay")) != NULL ||
                dt_config_value(u->c, decay) != NULL;
    if (cJSON_IsTrue(value) && adamw && !said) {
        dialect_give(u, path, decay, cJSON_CreateNumber(0.01));
    } else {
        dialect_inert(u, path, u->converts ? "the formula is the same" : NULL);
    }
}

/* [0.9, 0.999]: one key of ours each. */
static void betas(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    (void)r;
    const cJSON *first = cJSON_IsArray(value) ? value->child : NULL, *second = first != NULL ? first->next : NULL;
    if (!cJSON_IsNumber(first) || !cJSON_IsNumber(second) || second->next != NULL) {
        dialect_wrong(u, path, "two numbers, such as [0.9, 0.999]");
        return;
    }
    bool own = is_type(u, "lion") || is_type(u, "lamb");
    dialect_give(u, path, own ? "optimizer.beta1" : "training.adam_beta1", cJSON_CreateNumber(first->valuedouble));
    dialect_give(u, path, own ? "optimizer.beta2" : "training.adam_beta2", cJSON_CreateNumber(second->valuedouble));
}

static void eps(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    bool own = is_type(u, "lamb") || is_type(u, "adagrad");
    dialect_give(u, path, own ? "optimizer.eps" : r->to, cJSON_Duplicate(value, true));
}

/* The stage that the file asks for; 0 without one. */
static double stage_of(const struct dialect_use *u)
{
    double stage = 0;
    (void)dt_config_number(dt_config_value(u->c, dialect_path(u, "zero_optimization.stage")), &stage);
    return stage;
}

static void stage(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    const struct dialect_rule words = WORDS(r->from, r->to, "0=zero0|1=zero1|2=zero2|3=zero3");
    if (cJSON_IsArray(value)) {
        dt_config_problem(u->c, path,
                          "is a list, of which DeepSpeed's autotuning would choose; write one of 0, 1, 2, 3");
        return;
    }
    dialect_words(u, &words, path, value);
}

/* Files of 2020 have true instead of the block. */
static void zero_block(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    if (cJSON_IsBool(value)) {
        dialect_give(u, path, r->to, cJSON_CreateString(cJSON_IsTrue(value) ? "zero1" : "zero0"));
        dt_config_pass(u->c, path);
    }
}

/* How much of stage 3 is in memory at a time, by numbers of our section fsdp. Files carry these keys at other stages, too, where they
 * say nothing. DeepSpeed takes the names without "stage3_" as well. */
static void stage3(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    static const char start[] = "zero_optimization.stage3_";
    bool prefixed = strncmp(r->from, start, sizeof start - 1) == 0;
    const char *other = dialect_path(
        u, prefixed ? dt_arena_printf(u->arena, "zero_optimization.%s", r->from + sizeof start - 1) : r->from);
    const cJSON *said = prefixed ? dt_config_value(u->c, other) : NULL;
    if (said != NULL && !cJSON_Compare(said, value, true)) {
        dt_config_problem(u->c, path, "%s says another value (%s); say it in one place", dt_config_name(u->c, other),
                          dt_config_source(u->c, other));
    } else if (dialect_is_auto(value)) {
        if (strstr(r->from, "prefetch_bucket_size") == NULL && strstr(r->from, "param_persistence_threshold") == NULL) {
            dt_config_problem(u->c, path, "\"auto\" means nothing here; give a number, or remove it");
        } else if (stage_of(u) == 3 && strstr(r->from, "param_persistence_threshold") != NULL) {
            dialect_give(u, path, r->to, cJSON_CreateNull());
        }
    } else if (stage_of(u) == 3 && r->to != NULL) {
        dialect_give(u, path, r->to, cJSON_Duplicate(value, true));
    } else if (stage_of(u) == 3) {
        dialect_inert(u, path, NULL);
    }
}

/* Of autotp_size up to 1 nothing is split. */
static void tensor_parallel(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    (void)r;
    double size = 0;
    const cJSON *inner = cJSON_GetObjectItemCaseSensitive(value, "tensor_parallel");
    (void)(dt_config_number(cJSON_GetObjectItemCaseSensitive(value, "autotp_size"), &size) ||
           dt_config_number(cJSON_GetObjectItemCaseSensitive(value, "tp_size"), &size) ||
           dt_config_number(cJSON_GetObjectItemCaseSensitive(inner, "tp_size"), &size));
    if (size > 1) {
        dt_config_problem(
            u->c, path,
            "beyond scope: a layer is not split over ranks; write autotp_size 1, stage 3 shards its weights");
    } else {
        dialect_inert(u, path, NULL);
    }
}

static bool has_enabled(const cJSON *value)
{
    for (const cJSON *v = cJSON_IsObject(value) ? value->child : NULL; v != NULL; v = v->next) {
        if ((cJSON_IsTrue(v) && strcmp(v->string, "enabled") == 0) || has_enabled(v)) {
            return true;
        }
    }
    return false;
}

/* A block of several parts, each of which is switched on by itself. */
static void parts(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    (void)r;
    if (has_enabled(value)) {
        dt_config_problem(u->c, path, "beyond scope: models are not compressed while they train; remove it");
    } else {
        dialect_inert(u, path, NULL);
    }
}

/* The precision, and whose loss scale goes with it. */
static void give_fp16(struct dialect_use *u, const struct dialect_rule *r, const char *path, const char *scaler)
{
    dialect_give(u, path, r->to, cJSON_CreateString("16-mixed"));
    if (dt_config_where(u->c, "loss_scaling.algorithm") == NULL) {
        dialect_give(u, path, "loss_scaling.algorithm", cJSON_CreateString(scaler));
    }
}

static void fp16_enabled(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    if (!cJSON_IsBool(value)) {
        dialect_wrong(u, path, "true or false");
    } else if (cJSON_IsTrue(value)) {
        give_fp16(u, r, path, "deepspeed");
    }
}

/* 1 is DeepSpeed's default, and says nothing where the run is not in fp16. */
static void least_scale(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    const cJSON *precision = dt_config_value(u->c, "training.precision");
    enum dt_dtype compute = DT_F32, masters;
    double number = 0;
    if (cJSON_IsString(precision)) {
        (void)dialect_precision(precision->valuestring, &compute, &masters);
    }
    bool half = compute == DT_F16 || (dt_config_number(precision, &number) && number == 16);
    if (half || !cJSON_IsNumber(value) || value->valuedouble != 1) {
        dialect_give(u, path, r->to, cJSON_Duplicate(value, true));
    }
}

/* Apex: its levels are precisions, and it scales as torch does. */
static void amp(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    const cJSON *level = cJSON_GetObjectItemCaseSensitive(value, "opt_level");
    const char *word = cJSON_IsString(level) ? level->valuestring : "O1";
    if (dt_config_off(value) || strcmp(word, "O0") == 0) {
        return;
    }
    if (strcmp(word, "O1") == 0 || strcmp(word, "O2") == 0) {
        give_fp16(u, r, path, "torch");
    } else {
        dt_config_problem(u->c, path, "opt_level %.20s has no fp32 masters; write O1 or O2", word);
    }
}

static void autocast(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(value, "dtype"),
                *modules = cJSON_GetObjectItemCaseSensitive(value, "lower_precision_safe_modules");
    const char *word = type == NULL ? "bfloat16" : cJSON_IsString(type) ? type->valuestring : "";
    if (!cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(value, "enabled"))) {
        return;
    }
    if (modules != NULL) {
        dialect_inert(u, path, "lower_precision_safe_modules");
    }
    if (strcmp(word, "bfloat16") == 0 || strcmp(word, "float16") == 0) {
        dialect_give(u, path, r->to, cJSON_CreateString(*word == 'b' ? "bf16-mixed" : "16-mixed"));
    } else {
        dialect_wrong(u, dialect_path(u, "torch_autocast.dtype"), "bfloat16 or float16");
    }
}

/* Sums are taken first, so the divisions before them are the same to the last bit but one. */
static void prescale(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    (void)r;
    bool scatters = !cJSON_IsFalse(dt_config_value(u->c, dialect_path(u, "zero_optimization.reduce_scatter")));
    if (!cJSON_IsTrue(value)) {
        return;
    }
    if (stage_of(u) == 2 && scatters) {
        dt_config_problem(u->c, path, "DeepSpeed does not take it with reduce_scatter at stage 2; remove one of them");
        return;
    }
    dialect_inert(u, path, "gradients are summed, then divided once");
}

/* The same number as gradient_clipping says nothing new. */
static void optimizer_norm(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    (void)r;
    if (cJSON_Compare(value, dt_config_value(u->c, dialect_path(u, "gradient_clipping")), true)) {
        dialect_inert(u, path, "gradient_clipping says it");
    } else {
        dt_config_problem(u->c, path, "write gradient_clipping");
    }
}

/* DeepSpeed's block says how layers are computed again, not that they are. */
void deepspeed_kept_on_host(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    bool on = cJSON_IsTrue(dt_config_value(u->c, "activation_checkpointing.enabled"));
    if (!on || dt_config_off(value)) {
        if (!cJSON_IsFalse(value)) {
            dialect_inert(u, path, "layers are computed again where activation_checkpointing.enabled says so");
        }
        return;
    }
    if (!cJSON_IsTrue(value)) {
        dialect_wrong(u, path, "true or false");
        return;
    }
    dialect_give(u, path, r->to, cJSON_CreateString("cpu"));
}

#define BEYOND "beyond scope; remove it"
#define STAGE3_KEY(key, why)                                                                                           \
    {                                                                                                                  \
        .from = (key), .how = DIALECT_FUNCTION, .fn = stage3, .text = "no effect: " why, .outcome = OUTCOME_NO_EFFECT, \
        .sees_auto = true                                                                                              \
    }
#define STAGE3_OURS(key, ours, said)                                                                                   \
    {                                                                                                                  \
        .from = (key), .to = (ours), .how = DIALECT_FUNCTION, .fn = stage3, .text = (said), .sees_auto = true          \
    }
#define STAGE3_NUMBER(name, more)                                                                                      \
    STAGE3_OURS("zero_optimization.stage3_" name, "fsdp." name, "`fsdp." name "`" more),                               \
        STAGE3_OURS("zero_optimization." name, "fsdp." name, "`fsdp." name "`" more)
#define STAGE3(name, why) STAGE3_KEY("zero_optimization.stage3_" name, why), STAGE3_KEY("zero_optimization." name, why)
#define STEP_TIMES "`metrics.jsonl` has the time of logged steps, `logging.timeline_steps` more"
#define NUMBERS "the numbers are in `metrics.jsonl`, and with `logging.csv` in a table"
#define LATER "not there yet; remove it"
#define ALWAYS "done anyway"
#define PINNED "host memory that is copied from and to is pinned anyway"
#define OWN_SIZES "messages have sizes of their own"
#define OWN_ORDER "a layer is fetched as one piece"

#define NUMBER(name) MOVE("scheduler.params." name, "scheduler." name)

static const struct dialect_rule rules[] = {
    FUNCTION("elasticity", "training.batch_size_per_gpu", deepspeed_elasticity,
             "the global batch, and the numbers of ranks that it runs on; gives `training.batch_size_per_gpu` and "
             "`gradient_accumulation_steps`"),
    MOVE("train_micro_batch_size_per_gpu", "training.batch_size_per_gpu"),
    MOVE("gradient_accumulation_steps", "training.gradient_accumulation_steps"),
    FUNCTION("train_batch_size", "training.batch_size_per_gpu", deepspeed_batch,
             "samples per micro-step * micro-steps * ranks; gives the one of them that is missing, and is checked"),
    MOVE_OR("gradient_clipping", "training.max_grad_norm", "0"),
    MOVE("steps_per_print", "logging.log_every_n_steps"),

    FUNCTION(
        "optimizer.type", "optimizer.name", optimizer,
        "`optimizer.name`: AdamW and Adam = `adamw`, Adam without adam_w_mode = `adam`, SGD = `sgd`, Lion = `lion`, "
        "Lamb = `lamb`, Adagrad = `adagrad`, Muon = `muon`; others are refused"),
    {.from = "optimizer.params.lr",
     .to = "training.learning_rate",
     .how = DIALECT_FUNCTION,
     .fn = rate,
     .text = "`training.learning_rate`; of Muon `optimizer.adamw_learning_rate` where muon_lr is given, too; no effect "
             "where the scheduler sets its warmup_max_lr; 0.001, of Adagrad 0.01, where `optimizer` does not say it"},
    MOVE("optimizer.params.muon_lr", "training.learning_rate"),
    MOVE("optimizer.params.adam_lr", "optimizer.adamw_learning_rate"),
    FUNCTION("optimizer.params.betas", "training.adam_beta1", betas,
             "`training.adam_beta1` and `adam_beta2`; of Lion and Lamb `optimizer.beta1` and `beta2`"),
    FUNCTION("optimizer.params.eps", "training.adam_epsilon", eps,
             "`training.adam_epsilon`; of Lamb and Adagrad `optimizer.eps`"),
    MOVE("optimizer.params.max_coeff", "optimizer.max_coeff"),
    MOVE("optimizer.params.min_coeff", "optimizer.min_coeff"),
    MOVE("optimizer.params.weight_decay", "training.weight_decay"),
    MOVE("optimizer.params.momentum", "optimizer.momentum"),
    MOVE("optimizer.params.dampening", "optimizer.dampening"),
    MOVE("optimizer.params.nesterov", "optimizer.nesterov"),
    WORDS("optimizer.params.adam_w_mode", NULL, "true=|false="),
    FUNCTION("optimizer.params.bias_correction", "training.adam_bias_correction", bias_correction,
             "`training.adam_bias_correction`; of Lamb `optimizer.bias_correction`"),
    WORDS("optimizer.params.amsgrad", "training.adam_amsgrad", "false=|true=true"),
    FUNCTION(
        "optimizer.params.torch_adam", NULL, torch_adam,
        "`training.weight_decay` 0.01 of AdamW where nothing says it; no effect otherwise: the formula is the same"),
    INERT("optimizer.params.fused", "the update is one kernel"),
    FUNCTION_OF(OUTCOME_REFUSED, "optimizer.params.max_grad_norm", NULL, optimizer_norm,
                "refused: write gradient_clipping; the number that stands there, too, is taken"),
    INERT("optimizer.legacy_fusion", "the update is one kernel"),

    FUNCTION("scheduler.type", "training.lr_scheduler_type", deepspeed_scheduler,
             "`training.lr_scheduler_type`: WarmupLR = `warmuplr`, WarmupDecayLR = `warmupdecaylr`, "
             "WarmupCosineLR = `warmupcosinelr`, with `_linear` by warmup_type; LRRangeTest = `lrrangetest`, OneCycle "
             "= `onecycle`"),
    MOVE("scheduler.params.warmup_num_steps", "training.warmup_steps"),
    FUNCTION("scheduler.params.warmup_max_lr", "training.learning_rate", deepspeed_most,
             "`training.learning_rate`, whatever optimizer.params.lr is; 0.001 where WarmupDecayLR does not say it"),
    MOVE("scheduler.params.warmup_min_lr", "scheduler.warmup_min_lr"),
    MOVE("scheduler.params.warmup_min_ratio", "scheduler.warmup_min_ratio"),
    FUNCTION("scheduler.params.cos_min_ratio", "training.min_lr_ratio", deepspeed_least,
             "`training.min_lr_ratio`; 0.0001 where WarmupCosineLR does not say it"),
    WORDS("scheduler.params.warmup_type", NULL, "log=|linear="),
    FUNCTION("scheduler.params.total_num_steps", "training.max_steps", deepspeed_total_steps,
             "`training.max_steps`: the schedule ends with the run"),
    NUMBER("lr_range_test_min_lr"),
    NUMBER("lr_range_test_step_size"),
    NUMBER("lr_range_test_step_rate"),
    NUMBER("lr_range_test_staircase"),
    NUMBER("cycle_min_lr"),
    NUMBER("cycle_max_lr"),
    NUMBER("cycle_first_step_size"),
    NUMBER("cycle_second_step_size"),
    NUMBER("cycle_first_stair_count"),
    NUMBER("cycle_second_stair_count"),
    NUMBER("decay_step_size"),
    NUMBER("decay_lr_rate"),
    NUMBER("cycle_momentum"),
    NUMBER("cycle_min_mom"),
    NUMBER("cycle_max_mom"),
    NUMBER("decay_mom_rate"),
    WORDS("scheduler.params.last_batch_iteration", NULL, "-1=|*=!a run goes on where its checkpoint is; write -1"),

    WORDS("bf16.enabled", "training.precision", "true=bf16-mixed|false="),
    INERT("bf16.immediate_grad_update",
          "each gradient is added to fp32 sums at once, unless `training.grad_accum_dtype` "
          "says otherwise"),
    WORDS("bf16.check_grad_overflow", NULL,
          "true=|false=!a gradient that is not finite ends the run here, which is safer; remove it"),
    REFUSE("bf16.bf16_master_weights_and_grads",
           "here training.precision \"bf16-true\" has no masters; write that, or remove it"),
    REFUSE("bf16.bf16_optimizer_states",
           "DeepSpeed's name; here it is training.optimizer_state_dtype \"bf16\", beside fp32 masters"),
    WORDS("bfloat16.enabled", "training.precision", "true=bf16-mixed|false="),
    FUNCTION("fp16.enabled", "training.precision", fp16_enabled,
             "`training.precision` \"16-mixed\", `loss_scaling.algorithm` \"deepspeed\""),
    INERT("fp16.auto_cast", "inputs are ids and images, which the model casts"),
    MOVE("fp16.loss_scale", "loss_scaling.loss_scale"),
    MOVE("fp16.initial_scale_power", "loss_scaling.initial_scale_power"),
    MOVE("fp16.loss_scale_window", "loss_scaling.loss_scale_window"),
    MOVE("fp16.hysteresis", "loss_scaling.hysteresis"),
    MOVE("fp16.consecutive_hysteresis", "loss_scaling.consecutive_hysteresis"),
    FUNCTION("fp16.min_loss_scale", "loss_scaling.min_loss_scale", least_scale, "`loss_scaling.min_loss_scale`"),
    WORDS("fp16.fp16_master_weights_and_grads", NULL,
          "false=|true=!masters are fp32; training.precision \"16-true\" has none; write that"),
    FUNCTION("amp", "training.precision", amp,
             "`training.precision`: O1 and O2 = `16-mixed`, O0 is off; O3 is refused"),
    FUNCTION("torch_autocast", "training.precision", autocast,
             "`training.precision`: bfloat16 = `bf16-mixed`, float16 = `16-mixed`"),
    REFUSE("data_types.keep_in_fp32_modules", LATER),
    WORDS("data_types.param_dtype", "training.precision", "fp32=32-true|bf16=bf16-mixed|fp16=16-mixed"),
    MOVE("data_types.buffer_dtype", "mixed_precision.buffer_dtype"),
    WORDS("communication_data_type", "mixed_precision.reduce_dtype", "fp32=fp32|bf16=bf16|bfp16=bf16|fp16=fp16"),
    MOVE("data_types.grad_accum_dtype", "training.grad_accum_dtype"),

    {.from = "zero_optimization",
     .to = "training.strategy",
     .how = DIALECT_FUNCTION,
     .fn = zero_block,
     .text = "a block; true instead of it is `zero1`, false `zero0`",
     .shallow = true,
     .sees_auto = true},
    FUNCTION("zero_optimization.stage", "training.strategy", stage,
             "`training.strategy`: 0 = `zero0`, 1 = `zero1`, 2 = `zero2`, 3 = `zero3`"),
    WORDS("zero_optimization.overlap_comm", "fsdp.overlap_comm", "true=true|false=false"),
    WORDS("zero_optimization.contiguous_gradients", NULL, "true=|false=~" ALWAYS),
    WORDS("zero_optimization.reduce_scatter", NULL, "true=|false=~" ALWAYS),
    WORDS("zero_optimization.allgather_partitions", NULL, "true=|false=~" ALWAYS),
    INERT("zero_optimization.reduce_bucket_size", OWN_SIZES),
    INERT("zero_optimization.allgather_bucket_size", OWN_SIZES),
    INERT("zero_optimization.use_multi_rank_bucket_allreduce", OWN_SIZES),
    INERT("zero_optimization.sub_group_size", "the update needs no tiles; with offload `offload.portion` is one"),
    WORDS("zero_optimization.round_robin_gradients", NULL,
          "false=|true=~each layer's gradients go to all ranks anyway"),
    INERT("zero_optimization.ignore_unused_parameters", "these models use all their parameters"),
    INERT("zero_optimization.find_unused_parameters", "these models use all their parameters"),
    INERT("zero_optimization.ignore_missing_optim_state", "a checkpoint that lacks state is named"),
    INERT("zero_optimization.load_from_fp32_weights", "checkpoints hold fp32 weights"),
    INERT("zero_optimization.elastic_checkpoint", "checkpoints load on any number of ranks"),
    INERT("zero_optimization.legacy_stage1", "there is one stage 1"),
    INERT("zero_optimization.leaf_module", "a layer is a unit"),
    INERT("zero_optimization.memory_efficient_linear", ALWAYS),
    INERT("zero_optimization.override_module_apply", "there are no modules of Python"),
    INERT("zero_optimization.pipeline_loading_checkpoint", "each rank reads its own slices"),
    INERT("zero_optimization.log_trace_cache_warnings", "the order of layers is fixed"),
    INERT("zero_optimization.enable_sanity_checks", "collectives that do not match are found anyway"),
    INERT("zero_optimization.compute_grad_norm", ALWAYS),
    INERT("zero_optimization.parameter_alignment", OWN_SIZES),
    INERT("zero_optimization.save_muon_momentum_buffer_in_memory", "checkpoints hold all state"),
    STAGE3_NUMBER("prefetch_bucket_size", "; auto: the next layer"),
    STAGE3_NUMBER("param_persistence_threshold", "; auto: ten times the width, as Hugging Face has it"),
    STAGE3_NUMBER("model_persistence_threshold", ""),
    STAGE3_NUMBER("max_live_parameters", ""),
    STAGE3_NUMBER("max_reuse_distance", ""),
    STAGE3("module_granularity_threshold", OWN_ORDER),
    STAGE3("use_all_reduce_for_fetch_params", OWN_ORDER),
    STAGE3("allgather_sequential", OWN_ORDER),
    SILENT("zero_optimization.stage3_gather_16bit_weights_on_model_save", "`model/` is whole"),
    SILENT("zero_optimization.gather_16bit_weights_on_model_save", "`model/` is whole"),
    SILENT("zero_optimization.stage3_gather_fp16_weights_on_model_save", "`model/` is whole"),
    WORDS("zero_optimization.offload_optimizer.device", "offload.optimizer", "none=none|cpu=cpu|nvme=nvme"),
    MOVE("zero_optimization.offload_optimizer.nvme_path", "offload.nvme_path"),
    MOVE("zero_optimization.offload_optimizer.buffer_count", "offload.buffer_count"),
    INERT("zero_optimization.offload_optimizer.pin_memory", PINNED),
    MOVE("zero_optimization.offload_optimizer.pipeline_read", "offload.pipeline_read"),
    MOVE("zero_optimization.offload_optimizer.pipeline_write", "offload.pipeline_write"),
    INERT("zero_optimization.offload_optimizer.fast_init", "files begin as zeros anyway"),
    MOVE("zero_optimization.offload_optimizer.ratio", "offload.ratio"),
    WORDS("zero_optimization.offload_optimizer.super_offload", NULL, "false=|true=!" BEYOND),
    INERT("zero_optimization.offload_optimizer.cpuadam_cores_perc", "`training.threads` says how many there are"),
    WORDS("zero_optimization.offload_param.device", "offload.parameters", "none=none|cpu=cpu|nvme=nvme"),
    MOVE("zero_optimization.offload_param.nvme_path", "offload.nvme_path"),
    INERT("zero_optimization.offload_param.buffer_count", "`offload.buffer_count` is for all arrays"),
    INERT("zero_optimization.offload_param.buffer_size", "the plan has room for the largest slice"),
    INERT("zero_optimization.offload_param.max_in_cpu", "with nvme the files have all of it"),
    INERT("zero_optimization.offload_param.pin_memory", PINNED),
    WORDS("zero_optimization.cpu_offload", "offload.optimizer", "true=cpu|false="),
    WORDS("zero_optimization.cpu_offload_param", "offload.parameters", "true=cpu|false="),
    INERT("zero_optimization.cpu_offload_use_pin_memory", PINNED),
    REFUSE_BLOCK("zero_optimization.zero_quantized_weights", BEYOND),
    REFUSE_BLOCK("zero_optimization.zero_quantized_nontrainable_weights", BEYOND),
    REFUSE_BLOCK("zero_optimization.zero_quantized_gradients", BEYOND),
    REFUSE_BLOCK("zero_optimization.zeropp_loco_param", BEYOND),
    REFUSE_BLOCK("zero_optimization.zenflow", BEYOND),
    REFUSE_BLOCK("zero_optimization.super_offload", BEYOND),
    WORDS("zero_optimization.mics_shard_size", NULL,
          "-1=|*=!beyond scope; training.strategy \"hybrid_shard\" shards within a host; write that"),
    REFUSE_BLOCK("zero_optimization.mics_hierarchical_params_gather", BEYOND),
    WORDS("zero_optimization.zero_hpz_partition_size", NULL,
          "1=|*=!training.strategy \"hybrid_shard\" shards within a host; write that"),

    INERT("activation_checkpointing.partition_activations", "a layer is not split over ranks"),
    INERT("activation_checkpointing.contiguous_memory_optimization", "memory is planned as a whole"),
    INERT("activation_checkpointing.synchronize_checkpoint_boundary", "nothing needs it"),
    FUNCTION("activation_checkpointing.cpu_checkpointing", "offload.activations", deepspeed_kept_on_host,
             "true is `cpu`, where `activation_checkpointing.enabled` is true"),
    INERT("activation_checkpointing.number_checkpoints",
          "it sizes the buffer of contiguous_memory_optimization, and memory is planned as a whole; "
          "activation_checkpointing.checkpoint_every_n_layers says which layers are computed again"),
    INERT("activation_checkpointing.profile", "`logging.timeline_steps` shows forward, recompute and backward of each "
                                              "layer"),

    WORDS("wall_clock_breakdown", NULL, "false=|true=~" STEP_TIMES),
    INERT("zero_allow_untested_optimizer", "every optimizer goes with every stage"),
    INERT("zero_force_ds_cpu_optimizer", "there is nothing else"),
    INERT("disable_allgather", OWN_SIZES),
    INERT("checkpoint", "checkpoints load on any number of ranks"),
    WORDS("gradient_predivide_factor", NULL, "1=|*=~gradients are summed, then divided once"),
    WORDS("gradient_allreduce_op", NULL,
          "mean=|avg=|sum=!gradients are divided by the number of ranks; write mean, and multiply the learning rate"),
    FUNCTION_OF(OUTCOME_NO_EFFECT, "prescale_gradients", NULL, prescale,
                "no effect: gradients are summed, then divided once; refused with reduce_scatter at stage 2"),
    WORDS("sparse_gradients", NULL, "false=|true=~gradients of embeddings are dense"),
    WORDS("dataloader_drop_last", NULL, "true=|false=~an epoch has whole micro-batches alone"),
    INERT("seq_parallel_communication_data_type", "a sequence is not split over ranks"),
    INERT("vocabulary_size", "tables are padded as they are read"),
    INERT("nebula", "checkpoints are those of `checkpointing`"),
    INERT("timers", STEP_TIMES),
    INERT("log_level", "DTRUN_LOG says what is logged"),
    INERT("graph_harvesting", "`training.cuda_graphs` says it"),
    INERT("compile", "nothing is compiled while it trains"),
    INERT("disable_python_gc", "there is none"),
    INERT("use_data_before_expert_parallelism", "there are no experts"),
    INERT("datastates", "checkpoints are those of `checkpointing`"),
    INERT("memory_breakdown", "train --plan prints memory by purpose"),
    INERT("dump_state", "train --print-config prints the job"),
    MOVE("aio.block_size", "offload.block_size"),
    MOVE("aio.queue_depth", "offload.queue_depth"),
    MOVE("aio.intra_op_parallelism", "offload.intra_op_parallelism"),
    MOVE("aio.thread_count", "offload.intra_op_parallelism"),
    MOVE("aio.single_submit", "offload.single_submit"),
    MOVE("aio.overlap_events", "offload.overlap_events"),
    WORDS("aio.use_gds", NULL, "false=|true=!files are read through the host's memory; write false"),
    MOVE("csv_monitor.enabled", "logging.csv"),
    INERT("csv_monitor.output_path", "`metrics.csv` is in the run's folder, or where `logging.csv_path` says"),
    INERT("csv_monitor.job_name", "`metrics.csv` is in the run's folder, or where `logging.csv_path` says"),
    INERT("tensorboard", NUMBERS),
    INERT("wandb", NUMBERS),
    INERT("comet", NUMBERS),
    INERT("comms_logger", "`logging.timeline_steps` has the collectives"),
    INERT("flops_profiler", "train --plan has operations, `metrics.jsonl` the rate"),
    REFUSE_BLOCK("autotuning", "beyond scope; train --plan says what fits, write that"),
    FUNCTION_OF(OUTCOME_REFUSED, "compression_training", NULL, parts, "refused where a part is enabled: beyond scope"),
    REFUSE_BLOCK("quantize_training", "beyond scope: models are not compressed while they train; remove it"),
    REFUSE_BLOCK("weight_quantization", "beyond scope: models are not compressed while they train; remove it"),
    FUNCTION_OF(OUTCOME_REFUSED, "tensor_parallel", NULL, tensor_parallel,
                "refused: beyond scope; autotp_size 0 or 1 has no effect"),
    REFUSE_BLOCK("curriculum_learning", BEYOND),
    REFUSE_BLOCK("data_efficiency", BEYOND),
    REFUSE_BLOCK("progressive_layer_drop", BEYOND),
    REFUSE_BLOCK("sparse_attention", BEYOND),
    REFUSE_BLOCK("eigenvalue", BEYOND),
    REFUSE_BLOCK("expert_parallel", BEYOND),
    REFUSE_BLOCK("hybrid_engine", BEYOND),
    REFUSE_BLOCK("pipeline", BEYOND),
    {0},
};

/* False for a file that could not be read, which was said. */
static bool says_something(const struct dialect_use *u)
{
    const struct dialect_rule *r = rules;
    while (r->from != NULL && dt_config_where(u->c, dialect_path(u, r->from)) == NULL) {
        r++;
    }
    return r->from != NULL;
}

/* The default of the class that the block names. A block without DeepSpeed's keys is the job's own. */
static void rate_default(struct dialect_use *u)
{
    const char *block = dialect_path(u, "optimizer");
    bool theirs = dt_config_value(u->c, dialect_path(u, "optimizer.type")) != NULL ||
                  dt_config_value(u->c, dialect_path(u, "optimizer.params")) != NULL;
    const struct cJSON *ours = dt_config_value(u->c, "training.learning_rate");
    if (theirs && dt_config_value(u->c, dialect_path(u, "optimizer.params.lr")) == NULL &&
        (ours == NULL || dialect_is_auto(ours))) {
        dt_config_move(u->c, block, "training.learning_rate", cJSON_CreateNumber(is_type(u, "adagrad") ? 0.01 : 0.001));
    }
}

/* DeepSpeed has no default for the batch: it, or the job, must say it. TrainingArguments has one, and Lightning
 * takes that of the data. */
static void defaults(struct dialect_use *u)
{
    const char *path = dialect_path(u, "train_micro_batch_size_per_gpu");
    rate_default(u);
    bool has_default = *u->place == 0 || strcmp(u->place, "transformers.deepspeed") == 0 ||
                       strncmp(u->place, "lightning.", 10) == 0 || strcmp(u->place, "neox") == 0;
    if (!dt_config_off(dt_config_value(u->c, dialect_path(u, "elasticity"))) &&
        dt_config_value(u->c, dialect_path(u, "elasticity")) != NULL) {
        return; /* it chooses the batch, or has said why not */
    }
    if (dt_config_value(u->c, "training.batch_size_per_gpu") != NULL ||
        dt_config_value(u->c, "training.train_batch_tokens") != NULL || u->converts) {
        return;
    }
    const struct cJSON *all = dt_config_value(u->c, dialect_path(u, "train_batch_size"));
    if (dialect_is_auto(dt_config_value(u->c, path))) {
        if (all == NULL || dialect_is_auto(all)) {
            dt_config_problem(u->c, path,
                              "is \"auto\", and nothing says the batch; add training.batch_size_per_gpu to the job");
        }
    } else if (!has_default && says_something(u) && all == NULL) {
        dt_config_problem(u->c, u->place,
                          "says no batch, and DeepSpeed has no default; add train_batch_size or "
                          "train_micro_batch_size_per_gpu, or training.batch_size_per_gpu to the job");
    }
}

static const char *const places[] = {"",
                                     "deepspeed",
                                     "transformers.deepspeed",
                                     "accelerate.deepspeed_config.deepspeed_config_file",
                                     "lightning.trainer.strategy.init_args.config",
                                     "neox",
                                     NULL};

const struct dialect dialect_deepspeed = {
    .name = "DeepSpeed",
    .section = "deepspeed",
    .family = "deepspeed",
    .places = places,
    .marks = "zero_optimization|train_batch_size|train_micro_batch_size_per_gpu|steps_per_print|gradient_clipping|"
             "wall_clock_breakdown|zero_allow_untested_optimizer|fp16.enabled|bf16.enabled|optimizer.params|"
             "scheduler.params|flops_profiler|compression_training|autotuning|elasticity",
    .autos = "|train_micro_batch_size_per_gpu|gradient_accumulation_steps|train_batch_size|gradient_clipping|"
             "optimizer.params.lr|optimizer.params.betas|optimizer.params.eps|optimizer.params.weight_decay|"
             "scheduler.params.warmup_min_lr|scheduler.params.warmup_max_lr|scheduler.params.warmup_num_steps|"
             "scheduler.params.total_num_steps|fp16.enabled|bf16.enabled|bfloat16.enabled|"
             "zero_optimization.reduce_bucket_size|zero_optimization.prefetch_bucket_size|"
             "zero_optimization.param_persistence_threshold|"
             /* accelerate fills these in */
             "zero_optimization.stage|zero_optimization.offload_optimizer.device|"
             "zero_optimization.offload_optimizer.nvme_path|zero_optimization.offload_param.device|"
             "zero_optimization.offload_param.nvme_path|zero_optimization.gather_16bit_weights_on_model_save|"
             "zero_optimization.stage3_gather_16bit_weights_on_model_save|",
    .lenient = true,
    .defaults = defaults,
    .rules = rules};
