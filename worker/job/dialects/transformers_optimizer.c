/* Hugging Face's optim: which optimizer of ours it is, and whose numbers adam_beta1, adam_beta2 and
 * adam_epsilon are. */
#include "worker/job/dialects/transformers.h"

#include <cjson/cJSON.h>
#include <string.h>
#include <strings.h>

static const struct optim {
    const char *theirs, *ours;
} optims[] = {{"adamw_torch", "adamw"},
              {"adamw_torch_fused", "adamw"},
              {"adamw_hf", "adamw"},
              {"adamw_apex_fused", "adamw"},
              {"paged_adamw", "adamw"},
              {"paged_adamw_32bit", "adamw"},
              {"adamw_bnb_32bit", "adamw"},
              {"adamw", "adamw"},
              {"sgd", "sgd"},
              {"adagrad", "adagrad"},
              {"lion_32bit", "lion"},
              {"lion", "lion"},
              {"paged_lion_32bit", "lion"},
              {"muon", "muon"}};

static const char *ours_of(const cJSON *value)
{
    for (size_t i = 0; cJSON_IsString(value) && i < sizeof optims / sizeof optims[0]; i++) {
        if (strcasecmp(optims[i].theirs, value->valuestring) == 0) {
            return optims[i].ours;
        }
    }
    return NULL;
}

static bool is_optimizer(const struct dialect_use *u, const char *ours)
{
    const char *optim = ours_of(dt_config_value(u->c, dialect_path(u, "optim"))),
               *other = ours_of(dt_config_value(u->c, dialect_path(u, "optimizer")));
    return (optim != NULL && strcmp(optim, ours) == 0) || (other != NULL && strcmp(other, ours) == 0);
}

/* Transformers gives Lion the betas of Adam. */
static void default_beta(struct dialect_use *u, const char *path, const char *theirs, const char *ours, double value)
{
    if (!dialect_says(u, theirs) && dt_config_value(u->c, ours) == NULL) {
        dialect_give(u, path, ours, cJSON_CreateNumber(value));
    }
}

void transformers_optimizer(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    const char *word = cJSON_IsString(value) ? value->valuestring : "", *ours = ours_of(value);
    if (ours == NULL) {
        bool small = strstr(word, "8bit") != NULL || strstr(word, "4bit") != NULL;
        dt_config_problem(
            u->c, path,
            small ? "is \"%.40s\": state of so few bits is not there yet; write adamw_torch, and "
                    "training.optimizer_state_dtype bf16 in the job"
                  : "is \"%.40s\": there are adamw_torch, adamw_torch_fused, sgd, adagrad, lion_32bit and muon; write "
                    "one of them",
            *word != 0 ? word : "no word");
        return;
    }
    if (strncasecmp(word, "paged_", 6) == 0) {
        dialect_inert(u, path, "nothing is paged; offload.optimizer cpu keeps the state in host memory");
    }
    dialect_give(u, path, r->to, cJSON_CreateString(ours));
    if (strcmp(ours, "lion") == 0) {
        default_beta(u, path, "adam_beta1", "optimizer.beta1", 0.9);
        default_beta(u, path, "adam_beta2", "optimizer.beta2", 0.999);
    }
}

/* lion: where Lion has this number; null: nowhere. */
static void adams(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value,
                  const char *lion)
{
    bool is_lion = is_optimizer(u, "lion");
    if (is_optimizer(u, "sgd") || is_optimizer(u, "adagrad") || (is_lion && lion == NULL)) {
        dialect_inert(u, path, "this optim has no such number");
    } else {
        dialect_give(u, path, is_lion ? lion : r->to, cJSON_Duplicate(value, true));
    }
}

void transformers_beta1(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    adams(u, r, path, value, "optimizer.beta1");
}

void transformers_beta2(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    adams(u, r, path, value, "optimizer.beta2");
}

void transformers_epsilon(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    adams(u, r, path, value, NULL);
}
