/* FSDP: PyTorch's words in sections of ours, and the block that Hugging Face's files have. */
#include "worker/job/dialects/lightning.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#define STRATEGIES                                                                                                     \
    "FULL_SHARD=full_shard|SHARD_GRAD_OP=shard_grad_op|NO_SHARD=no_shard|HYBRID_SHARD=hybrid_shard|"                   \
    "HYBRID_SHARD_ZERO2=hybrid_shard_zero2|_HYBRID_SHARD_ZERO2=hybrid_shard_zero2"
#define ONE_READS "each rank reads the slices that it keeps"
#define OFFLOADS "true: `offload.parameters` and `offload.optimizer` are cpu"

/* ---- PyTorch's ---- */

/* Slices of weights and gradients rest in the host's memory, and so does what the optimizer has. */
static void cpu_offload(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    const cJSON *inside = cJSON_IsObject(value) ? lightning_argument(value, "offload_params") : value;
    if (cJSON_IsTrue(inside) || dialect_is_word(inside, "true")) {
        dialect_give(u, path, r->to, cJSON_CreateString("cpu"));
        dialect_give(u, path, "offload.optimizer", cJSON_CreateString("cpu"));
    } else if (!cJSON_IsFalse(inside) && !dialect_is_word(inside, "false")) {
        dialect_wrong(u, path, "true or false, or {\"offload_params\": true}");
    }
}

static const struct dialect_rule rules[] = {
    WORDS("fsdp.sharding_strategy", "training.strategy", STRATEGIES),
    SILENT("fsdp.use_orig_params", "names are always those of the model"),
    SILENT("fsdp.sync_module_states", ONE_READS),
    FUNCTION("fsdp.cpu_offload", "offload.parameters", cpu_offload, OFFLOADS),
    WORDS("mixed_precision.param_dtype", "training.precision",
          "fp32=32-true|float32=32-true|bf16=bf16-mixed|bfloat16=bf16-mixed|fp16=16-mixed|float16=16-mixed"),
    {0},
};
static const char *const places[] = {"", NULL};

const struct dialect dialect_fsdp = {.name = "FSDP", .family = "fsdp", .places = places, .rules = rules};

/* ---- Hugging Face's block ---- */

/* The value of a key of the block, with or without "fsdp_"; null when it is not given. */
static const cJSON *value_of(const struct dialect_use *u, const char *key)
{
    const cJSON *plain = dt_config_value(u->c, dialect_path(u, key));
    return plain != NULL ? plain : dt_config_value(u->c, dt_arena_printf(u->arena, "%sfsdp_%s", u->prefix, key));
}

/* accelerate's files mean version 1 unless they say another one, Transformers' mean 2. */
static int version_of(const struct dialect_use *u)
{
    const cJSON *value = value_of(u, "version");
    double number = strncmp(u->place, "accelerate", 10) == 0 ? 1 : 2;
    (void)dt_config_number(value, &number);
    return number == 1 ? 1 : 2;
}

/* Of version 2 a boolean or a number of ranks; of version 1 the name of a strategy. */
static void reshard(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    bool yes = cJSON_IsTrue(value) || dialect_is_word(value, "true"),
         no = cJSON_IsFalse(value) || dialect_is_word(value, "false");
    double replicas = 1;
    (void)(strcmp(u->place, "accelerate.fsdp_config") == 0 &&
           dt_config_number(dt_config_value(u->c, "accelerate.parallelism_config.parallelism_config_dp_replicate_size"),
                            &replicas));
    double ranks = 0;
    if (version_of(u) == 2 && cJSON_IsNumber(value) && dt_config_number(value, &ranks)) {
        dialect_give(u, path, "fsdp.reshard_after_forward", cJSON_CreateNumber(ranks));
        if (replicas <= 1) {
            dialect_give(u, path, r->to, cJSON_CreateString("full_shard"));
        }
        return;
    }
    if (version_of(u) == 2 && (yes || no) && replicas > 1) {
        return; /* the sizes of the mesh have chosen with it */
    }
    if (version_of(u) == 2 && (yes || no)) {
        dialect_give(u, path, r->to, cJSON_CreateString(yes ? "full_shard" : "shard_grad_op"));
    } else if (version_of(u) == 2) {
        dt_config_problem(
            u->c, path,
            "of fsdp_version 2 it is true, false, or a number of ranks; with names of strategies write 1 there");
    } else if (yes || no) {
        dt_config_problem(u->c, path,
                          "of fsdp_version 1 it is the name of a strategy, FULL_SHARD; with true or false write "
                          "fsdp_version 2");
    } else {
        const struct dialect_rule names = WORDS(r->from, r->to, STRATEGIES);
        dialect_words(u, &names, path, value);
    }
}

/* Hugging Face takes a number above 0 for the policy, too. */
static void least_params(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    double number = 0;
    if (!dt_config_number(value, &number) || number > 0) { /* what is no number is ours to refuse */
        dialect_give(u, path, r->to, cJSON_Duplicate(value, true));
    }
    if (number > 0 && value_of(u, "auto_wrap_policy") == NULL && value_of(u, "transformer_layer_cls_to_wrap") == NULL) {
        dialect_give(u, path, "fsdp.auto_wrap_policy", cJSON_CreateString("size_based"));
    }
}

/* Lightning names layers by their classes: a list of them, or a policy of PyTorch's with one. Null: there is none. */
static const cJSON *classes_of(const cJSON *value)
{
    const cJSON *inside = lightning_argument(value, "module_classes");
    inside = inside == NULL ? lightning_argument(value, "transformer_layer_cls") : inside;
    return cJSON_IsArray(value) ? value : inside;
}

static bool is_lightning(const struct dialect_use *u)
{
    return strncmp(u->place, "lightning.", 10) == 0;
}

static void wrap_policy(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    const struct dialect_rule words =
        WORDS(r->from, r->to, "TRANSFORMER_BASED_WRAP=transformer_based|SIZE_BASED_WRAP=size_based|NO_WRAP=none");
    if (is_lightning(u) && classes_of(value) != NULL) {
        dialect_give(u, path, r->to, cJSON_CreateString("transformer_based"));
    } else if (is_lightning(u)) {
        dialect_wrong(u, path, "a list of the classes of layers");
    } else {
        dialect_words(u, &words, path, value);
    }
}

void lightning_recompute(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    const struct dialect_rule words = WORDS(r->from, r->to, "true=true|false=false");
    if (is_lightning(u) && (cJSON_IsString(value) || classes_of(value) != NULL)) {
        dialect_give(u, path, r->to, cJSON_CreateBool(true));
    } else {
        dialect_words(u, &words, path, value);
    }
}

static const struct dialect_rule block_rules[] = {
    SILENT("version", "decides what reshard_after_forward means"),
    WORDS("sharding_strategy", "training.strategy",
          STRATEGIES "|1=full_shard|2=shard_grad_op|3=no_shard|4=hybrid_shard|5=hybrid_shard_zero2"),
    FUNCTION("reshard_after_forward", "training.strategy", reshard,
             "`training.strategy`: true = `full_shard`, false = `shard_grad_op`, a number also "
             "`fsdp.reshard_after_forward`; of version 1 the name of a strategy"),
    FUNCTION("auto_wrap_policy", "fsdp.auto_wrap_policy", wrap_policy,
             "`fsdp.auto_wrap_policy`: TRANSFORMER_BASED_WRAP = `transformer_based`, SIZE_BASED_WRAP = `size_based`, "
             "NO_WRAP = `none`; Lightning's list of classes = `transformer_based`, and must name the model's layer"),
    SILENT("transformer_layer_cls_to_wrap", "must be the layer of the model alone, which is a unit"),
    FUNCTION("min_num_params", "fsdp.min_num_params", least_params,
             "`fsdp.min_num_params`; above 0, without a policy, `fsdp.auto_wrap_policy` is size_based"),
    WORDS("backward_prefetch", "fsdp.backward_prefetch",
          "BACKWARD_PRE=BACKWARD_PRE|BACKWARD_POST=BACKWARD_POST|NO_PREFETCH=none|1=BACKWARD_PRE|2=BACKWARD_POST"),
    WORDS("backward_prefetch_policy", "fsdp.backward_prefetch",
          "BACKWARD_PRE=BACKWARD_PRE|BACKWARD_POST=BACKWARD_POST|NO_PREFETCH=none"),
    WORDS("forward_prefetch", "fsdp.forward_prefetch", "true=true|false=false"),
    WORDS("limit_all_gathers", "fsdp.limit_all_gathers", "true=true|false=false"),
    FUNCTION("offload_params", "offload.parameters", cpu_offload, OFFLOADS),
    FUNCTION("cpu_offload", "offload.parameters", cpu_offload, OFFLOADS),
    WORDS("state_dict_type", NULL,
          "FULL_STATE_DICT=|SHARDED_STATE_DICT=|LOCAL_STATE_DICT=!its slices load on one number of ranks only; write "
          "SHARDED_STATE_DICT|full=|sharded=|1=|2=!its slices load on one number of ranks only; write 3|3="),
    REFUSE("ignored_modules", "every layer is a unit; remove it"),
    REFUSE("ignored_states", "every layer is a unit; remove it"),
    SILENT("sync_module_states", ONE_READS),
    SILENT("cpu_ram_efficient_loading", ONE_READS),
    SILENT("use_orig_params", "names are always those of the model"),
    FUNCTION("activation_checkpointing", "activation_checkpointing.enabled", lightning_recompute,
             "`activation_checkpointing.enabled`; Lightning's list of classes is true"),
    WORDS("activation_checkpointing_offload", "offload.activations", "true=cpu|false="),
    WORDS("activation_cpu_offload", "offload.activations", "true=cpu|false="),
    WORDS("xla", NULL, "false=|true=!XLA is not supported; remove it, and ranks compute on CPUs or CUDA GPUs"),
    SILENT("xla_fsdp_settings", "counts with xla alone"),
    SILENT("xla_fsdp_grad_ckpt", "counts with xla alone"),
    SILENT("xla_fsdp_v2", "counts with xla alone"),
    {0},
};

static const char *const block_places[] = {"fsdp_config",
                                           "transformers.fsdp_config",
                                           "transformers.accelerate_launch_args",
                                           "accelerate.fsdp_config",
                                           "lightning.trainer.strategy.init_args",
                                           "lightning.trainer.strategy.dict_kwargs",
                                           NULL};

/* accelerate reads the block only for its own kind, and Lightning has classes for others. */
static bool block_counts(const struct dialect_use *u)
{
    const cJSON *kind = dt_config_value(u->c, "accelerate.distributed_type");
    if (strncmp(u->place, "lightning.", 10) == 0) {
        return strcmp(lightning_class(dt_config_value(u->c, "lightning.trainer.strategy")), "FSDPStrategy") == 0;
    }
    return strncmp(u->place, "accelerate.", 11) != 0 || dialect_is_word(kind, "FSDP");
}

/* A block alone means that weights are sharded. */
static void block_defaults(struct dialect_use *u)
{
    const cJSON *ours = dt_config_value(u->c, "training.strategy"), *xla = value_of(u, "xla");
    if (ours == NULL && !cJSON_IsTrue(xla) && strcmp(u->place, "fsdp_config") == 0) {
        dt_config_move(u->c, u->place, "training.strategy", cJSON_CreateString("full_shard"));
    }
}

const struct dialect dialect_fsdp_block = {
    .name = "FSDP's block",
    .section = "fsdp_config",
    .family = "fsdp",
    .places = block_places,
    .spelling = "fsdp_",
    .marks = "fsdp_version|fsdp_sharding_strategy|fsdp_auto_wrap_policy|fsdp_transformer_layer_cls_to_wrap|"
             "fsdp_offload_params|fsdp_state_dict_type|fsdp_reshard_after_forward|fsdp_backward_prefetch|"
             "fsdp_backward_prefetch_policy|xla_fsdp_settings|transformer_layer_cls_to_wrap|auto_wrap_policy|"
             "sharding_strategy",
    .rules = block_rules,
    .defaults = block_defaults,
    .counts = block_counts};

/* ---- layers by the names of classes ---- */

static const struct {
    const char *model, *layer;
} layers[] = {
    {"gpt2", "GPT2Block"},
    {"llama", "LlamaDecoderLayer"},
    {"qwen2", "Qwen2DecoderLayer"},
    {"qwen3", "Qwen3DecoderLayer"},
    {"mistral", "MistralDecoderLayer"},
    {"gemma2", "Gemma2DecoderLayer"},
    {"gemma3_text", "Gemma3DecoderLayer"},
    {"smollm3", "SmolLM3DecoderLayer"},
    {"phi3", "Phi3DecoderLayer"},
    {"olmo2", "Olmo2DecoderLayer"},
    {"granite", "GraniteDecoderLayer"},
    {"bert", "BertLayer"},
    {"roberta", "RobertaLayer"},
    {"distilbert", "TransformerBlock"},
    {"modernbert", "ModernBertEncoderLayer"},
};

/* Is a name of `size` bytes the layer's, with or without its package? */
static bool is_layer(const char *name, size_t size, const char *layer)
{
    size_t least = strlen(layer);
    return size >= least && strncmp(name + size - least, layer, least) == 0 &&
           (size == least || name[size - least - 1] == '.');
}

/* How many names stand in "A,B", or in a list of such, and how many of them are the layer's. */
static void count_names(const cJSON *value, const char *layer, int *all, int *own)
{
    for (const char *p = cJSON_IsString(value) ? value->valuestring : ""; *p != 0; p += *p == ',') {
        p += strspn(p, " ");
        size_t size = strcspn(p, ", ");
        *all += size > 0;
        *own += is_layer(p, size, layer);
        p += size;
        p += strspn(p, " ");
    }
    for (const cJSON *v = cJSON_IsArray(value) ? value->child : NULL; v != NULL; v = v->next) {
        count_names(v, layer, all, own);
    }
}

void dialects_check_layers(struct dt_config *c, const char *model)
{
    const char *layer = NULL;
    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++) {
        layer = strcmp(layers[i].model, model) == 0 ? layers[i].layer : layer;
    }
    /* of Lightning the last three may be classes, too */
    static const char *const names[] = {"transformer_layer_cls_to_wrap", "fsdp_transformer_layer_cls_to_wrap",
                                        "auto_wrap_policy", "activation_checkpointing",
                                        "activation_checkpointing_policy"};
    enum { OF_ANY = 2 };
    for (const char *const *place = block_places; layer != NULL && *place != NULL; place++) {
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
            char path[128];
            (void)snprintf(path, sizeof path, "%s.%s", *place, names[i]);
            const cJSON *value = dt_config_value(c, path);
            value = i < OF_ANY ? value : classes_of(value);
            int of_all = 0, of_layers = 0;
            count_names(value, layer, &of_all, &of_layers);
            if (value != NULL && of_layers == 0) {
                dt_config_problem(c, path, "the layers of %s are %s; write that, or remove it", model, layer);
            } else if (i < OF_ANY && of_layers < of_all) {
                dt_config_problem(c, path, "the units of %s are its layers, %s; write that alone", model, layer);
            }
        }
    }
}
