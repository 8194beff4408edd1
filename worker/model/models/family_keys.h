/* Keys of config.json that the families of decoders and encoders share: rules of values, names of
 * activations. */
#ifndef DT_WORKER_MODEL_MODELS_FAMILY_KEYS_H
#define DT_WORKER_MODEL_MODELS_FAMILY_KEYS_H

#include "base/config.h"
#include "kernels/kernels.h"

static const struct dt_rule layers = {.type = DT_RULE_INTEGER, .min = 1, .max = 10000};
static const struct dt_rule width = {.type = DT_RULE_INTEGER, .min = 1, .max = 4194304};
static const struct dt_rule vocabulary = {.type = DT_RULE_INTEGER, .min = 1, .max = 16777216};
static const struct dt_rule length = {.type = DT_RULE_INTEGER, .min = 1, .max = 16777216};
static const struct dt_rule id_or_null = {
    .type = DT_RULE_INTEGER, .min = 0, .max = 16777216, .null = true, .null_value = -1};
static const struct dt_rule above_0 = {.type = DT_RULE_NUMBER, .open_min = true, .max = 1e30};
static const struct dt_rule from_0 = {.type = DT_RULE_NUMBER, .max = 1e30};
static const struct dt_rule dropout = {.type = DT_RULE_NUMBER, .max = 1, .open_max = true};
static const struct dt_rule flag = {.type = DT_RULE_BOOL};
static const struct dt_rule activation = {.type = DT_RULE_ENUM, .choices = "silu|gelu|gelu_new|gelu_pytorch_tanh|relu"};
static const struct dt_rule kinds = {
    .type = DT_RULE_KINDS, .choices = "full_attention|sliding_attention", .null = true};

struct cJSON;
/* The activation of a choice of the rule `activation`. */
enum dt_activation family_activation(int choice);
/* Gives an object a member, in place of what it had. The object owns the value. */
void family_set(struct cJSON *config, const char *key, struct cJSON *value);
/* Gives config.json the member num_labels, the number of names in id2label, where it has these. */
void family_count_labels(struct cJSON *config);
/* Writes id2label and label2id with the names LABEL_0, LABEL_1, ... */
void family_put_labels(int64_t count, void (*put)(void *to, const char *key, const char *json), void *to);
/* Writes an id; below 0: null. */
void family_put_id(const char *key, int64_t id, void (*put)(void *to, const char *key, const char *json), void *to);

#endif
