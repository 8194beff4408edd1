/* DeepSpeed's block `elasticity`: the batch is chosen so that many numbers of ranks can share it, and
 * stays when their number changes. */
#include "worker/job/dialects/deepspeed.h"
#include "worker/job/elasticity.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* What a resource manager was told, which must be what the job says. */
#define HANDSHAKE "DEEPSPEED_ELASTICITY_CONFIG"

struct block {
    bool enabled, ignores_batch, prefer_larger;
    double version;
    struct dt_integers micro;
    int64_t max_batch, min_gpus, max_gpus, min_time, gpus_per_node, model_size;
};

static const struct dt_rule boolean = {.type = DT_RULE_BOOL};
static const struct dt_rule count = {.type = DT_RULE_INTEGER, .min = 1, .max = 1e9};
static const struct dt_rule counts = {.type = DT_RULE_INTEGERS, .min = 1, .max = 1e9, .null = true};
static const struct dt_rule time_rule = {.type = DT_RULE_INTEGER, .min = 0, .max = 1e9};
static const struct dt_rule version = {.type = DT_RULE_NUMBER, .min = 0.1, .max = 0.2};
#define AT(member) offsetof(struct block, member)
static const struct dt_field fields[] = {
    {"enabled", "false", "", AT(enabled), &boolean},
    {"max_train_batch_size", "2000", "", AT(max_batch), &count},
    {"micro_batch_sizes", "null", "", AT(micro), &counts},
    {"min_gpus", "1", "", AT(min_gpus), &count},
    {"max_gpus", "10000", "", AT(max_gpus), &count},
    {"min_time", "0", "", AT(min_time), &time_rule},
    {"prefer_larger_batch", "true", "", AT(prefer_larger), &boolean},
    {"ignore_non_elastic_batch_info", "false", "", AT(ignores_batch), &boolean},
    {"version", "0.2", "", AT(version), &version},
    {"num_gpus_per_node", "1", "", AT(gpus_per_node), &count},
    {"model_parallel_size", "1", "", AT(model_size), &count},
    {0},
};
#undef AT

/* The block alone, which an environment variable may carry, too. */
static int read_block(const cJSON *value, const char *where, struct dt_arena *arena, struct block *out,
                      struct dt_error *err)
{
    struct dt_config *c = NULL;
    cJSON *root = cJSON_CreateObject();
    cJSON_AddItemToObject(root, "elasticity", cJSON_Duplicate(value, true));
    char *text = cJSON_PrintUnformatted(root);
    int rc = dt_config_open_text(&c, where, text, strlen(text), arena, err);
    if (rc == 0) {
        (void)dt_config_read(c, "elasticity", fields, out);
        rc = dt_config_close(c, NULL, err);
    }
    cJSON_free(text);
    cJSON_Delete(root);
    return rc;
}

/* The list of micro-steps, as it stands in the block; DeepSpeed has a default for a block that is off. */
static bool same_list(const struct block *a, const struct block *b)
{
    return a->micro.count == b->micro.count &&
           memcmp(a->micro.of, b->micro.of, (size_t)a->micro.count * sizeof *a->micro.of) == 0;
}

/* As DeepSpeed checks it: most samples, micro-steps and version. */
static bool shake_hands(struct dialect_use *u, const char *path, const struct block *b)
{
    const char *text = getenv(HANDSHAKE);
    struct block other = {0};
    struct dt_error err;
    if (text == NULL || *text == 0) {
        return true;
    }
    cJSON *value = cJSON_Parse(text);
    bool read = cJSON_IsObject(value) && read_block(value, HANDSHAKE, u->arena, &other, &err) == 0;
    cJSON_Delete(value);
    const char *what = !read                             ? "is no such block"
                       : other.max_batch != b->max_batch ? "has another max_train_batch_size"
                       : !same_list(&other, b)           ? "has other micro_batch_sizes"
                       : other.version != b->version     ? "has another version"
                                                         : NULL;
    if (what != NULL) {
        dt_config_problem(u->c, path,
                          "the scheduler's " HANDSHAKE " %s; start the job with the block it was queued with", what);
    }
    return what == NULL;
}

static bool check(struct dialect_use *u, const char *path, const cJSON *value, const struct block *b)
{
    const char *why = NULL;
    if (!cJSON_HasObjectItem(value, "max_train_batch_size") || b->micro.count == 0) {
        why = "max_train_batch_size or micro_batch_sizes is missing; give both";
    } else if (b->version != 0.1 && b->version != 0.2) {
        why = "version: there are 0.1 and 0.2";
    } else if (b->max_gpus < b->min_gpus) {
        why = "max_gpus is less than min_gpus";
    } else if (b->model_size > 1) {
        why = "model_parallel_size: a layer is not split over ranks; write 1";
    }
    if (why != NULL) {
        dt_config_problem(u->c, path, "%s", why);
    }
    return why == NULL && shake_hands(u, path, b);
}

/* The keys of a batch that is not elastic: refused, or without effect. */
static bool no_other_batch(struct dialect_use *u, const char *path, bool ignored)
{
    static const char *const keys[] = {"train_batch_size", "train_micro_batch_size_per_gpu",
                                       "gradient_accumulation_steps"};
    for (int i = 0; i < 3; i++) {
        if (dialect_says(u, keys[i]) && !ignored) {
            dt_config_problem(u->c, dialect_path(u, keys[i]),
                              "elasticity (%s) chooses the batch; remove it, or set "
                              "elasticity.ignore_non_elastic_batch_info",
                              dt_config_source(u->c, path));
            return false;
        }
        if (dialect_says(u, keys[i])) {
            dt_config_move(u->c, path, dialect_path(u, keys[i]), cJSON_CreateString("auto"));
        }
    }
    return true;
}

/* "1, 2, 4": all of them, as few as a line shows. */
static void list_ranks(const struct elastic_batch *b, struct dt_text *out)
{
    enum { SHOWN = 64 };
    for (int64_t i = 0; i < b->count && i < SHOWN; i++) {
        dt_text_printf(out, "%s%lld", i > 0 ? ", " : "", (long long)b->ranks[i]);
    }
    if (b->count > SHOWN) {
        dt_text_printf(out, ", ... up to %lld", (long long)b->ranks[b->count - 1]);
    }
}

void deepspeed_elasticity(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    (void)r;
    struct block b = {0};
    struct dt_error err;
    if (!cJSON_IsObject(value) || read_block(value, "elasticity", u->arena, &b, &err) != 0) {
        dt_config_problem(u->c, path, "%s", cJSON_IsObject(value) ? err.text : "give an object");
        return;
    }
    if (!b.enabled || !check(u, path, value, &b) || !no_other_batch(u, path, b.ignores_batch)) {
        return;
    }
    if (u->converts) {
        deepspeed_keep(u, path, "elasticity", value);
        return;
    }
    struct elastic_config config = {.max_batch = b.max_batch,
                                    .micro_count = (int)b.micro.count,
                                    .min_gpus = b.min_gpus,
                                    .max_gpus = b.max_gpus,
                                    .prefer_larger = b.prefer_larger,
                                    .version = b.version,
                                    .gpus_per_node = b.gpus_per_node,
                                    .model_size = b.model_size};
    memcpy(config.micro, b.micro.of, sizeof config.micro);
    struct elastic_batch batch;
    if (elastic_solve(&config, u->world, &batch, &err) != 0) {
        dt_config_problem(u->c, path, "%s", err.text);
        return;
    }
    struct dt_text list;
    dt_text_init(&list);
    list_ranks(&batch, &list);
    if (batch.micro == 0) {
        dt_config_problem(u->c, path, "a batch of %lld samples does not run on %d rank%s; valid numbers of ranks: %s",
                          (long long)batch.batch, u->world, u->world == 1 ? "" : "s", dt_text_str(&list));
    } else {
        dialect_give(u, path, "training.batch_size_per_gpu", cJSON_CreateNumber((double)batch.micro));
        dialect_give(u, path, "training.gradient_accumulation_steps",
                     cJSON_CreateNumber((double)(batch.batch / (batch.micro * u->world))));
    }
    dt_text_clear(&list);
    free(batch.ranks);
}
