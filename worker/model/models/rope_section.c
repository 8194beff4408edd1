/* See the header. Where a file has two spellings, that of Hugging Face's library counts: rope_scaling wins
 * over rope_parameters (where each kind of layers has a section, its members win over full_attention's), and
 * config.json's original_max_position_embeddings over the section's. */
#include "worker/model/models/rope_section.h"

#include "base/config_value.h"
#include "worker/model/models/family_keys.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

static const cJSON *member(const cJSON *object, const char *key)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsNull(value) ? NULL : value;
}

int rope_open_section(const cJSON *object, const char *key, const cJSON **section, struct dt_error *err)
{
    const cJSON *value = member(object, key);
    *section = value != NULL && value->child != NULL ? value : NULL;
    if (value == NULL || cJSON_IsObject(value)) {
        return 0;
    }
    struct dt_text text;
    dt_text_init(&text);
    dt_value_show(value, &text);
    (void)dt_fail(err, DT_INVALID, "%s: is %s; must be an object with rope_type and what it needs, or null", key,
                  dt_text_str(&text));
    dt_text_clear(&text);
    return -1;
}

/* Copies a member of an object, if it has it, to the flat key. */
static void lift(cJSON *config, const cJSON *object, const char *key, const char *flat)
{
    const cJSON *value = member(object, key);
    if (value != NULL) {
        family_set(config, flat, cJSON_Duplicate(value, true));
    }
}

static void lift_all(cJSON *config, const cJSON *section)
{
    static const char *const members[][2] = {
        {"type", "rope_type"},
        {"rope_type", "rope_type"},
        {"rope_theta", "rope_theta"},
        {"factor", "rope_factor"},
        {"low_freq_factor", "rope_low_freq_factor"},
        {"high_freq_factor", "rope_high_freq_factor"},
        {"original_max_position_embeddings", "rope_original_max_position_embeddings"},
        {"beta_fast", "rope_beta_fast"},
        {"beta_slow", "rope_beta_slow"},
        {"attention_factor", "rope_attention_factor"},
        {"mscale", "rope_mscale"},
        {"mscale_all_dim", "rope_mscale_all_dim"},
        {"truncate", "rope_truncate"},
        {"partial_rotary_factor", "partial_rotary_factor"}};
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        lift(config, section, members[i][0], members[i][1]);
    }
    lift(config, config, "original_max_position_embeddings", "rope_original_max_position_embeddings");
}

/* YaRN's factor null stands for the ratio of the lengths. */
static int factor_by_lengths(cJSON *config, struct dt_error *err)
{
    const cJSON *now = member(config, "max_position_embeddings"),
                *before = member(config, "rope_original_max_position_embeddings");
    if (!cJSON_IsNumber(now) || (before != NULL && !(cJSON_IsNumber(before) && before->valuedouble >= 1))) {
        return dt_fail(
            err, DT_INVALID,
            "factor: null stands for max_position_embeddings / original_max_position_embeddings, and they are "
            "not both there; give a number");
    }
    family_set(config, "rope_factor", cJSON_CreateNumber(before != NULL ? now->valuedouble / before->valuedouble : 1));
    return 0;
}

/* The type that a section names; null: none. */
static const char *type_of(const cJSON *section)
{
    const cJSON *type = member(section, "rope_type");
    return cJSON_GetStringValue(type != NULL ? type : member(section, "type"));
}

/* Refuses a section without a key that its type needs. */
static int check_section(cJSON *config, const cJSON *section, struct dt_error *err)
{
    static const struct {
        const char *type, *key;
    } needs[] = {{"linear", "factor"}, {"dynamic", "factor"},         {"yarn", "factor"},
                 {"llama3", "factor"}, {"llama3", "low_freq_factor"}, {"llama3", "high_freq_factor"}};
    const char *name = type_of(section);
    for (size_t i = 0; name != NULL && i < sizeof needs / sizeof needs[0]; i++) {
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(section, needs[i].key);
        if (strcmp(name, needs[i].type) != 0 || (value != NULL && !cJSON_IsNull(value))) {
            continue;
        }
        if (value != NULL && strcmp(name, "yarn") == 0) {
            return factor_by_lengths(config, err);
        }
        return dt_fail(err, DT_INVALID, "%s: %s, and rope_type \"%s\" needs it", needs[i].key,
                       value != NULL ? "is null" : "missing", name);
    }
    return 0;
}

/* The published models of this family that are trained for more positions have a list of factors. */
static int check_default(const cJSON *section, struct dt_error *err)
{
    const char *name = type_of(section);
    return name == NULL || strcmp(name, "default") == 0
               ? 0
               : dt_fail(err, DT_INVALID,
                         "rope_type \"%.60s\" is not supported, only \"default\"; the nearest models that work are the "
                         "ones without it, such as Phi-3-mini-4k and Phi-4",
                         name);
}

/* One section for all layers. */
static int flatten_one(const struct decoder_family *f, cJSON *config, const cJSON *now, const cJSON *old,
                       struct dt_error *err)
{
    const cJSON *section = old != NULL ? old : now;
    if (cJSON_IsObject(member(section, "full_attention")) || cJSON_IsObject(member(section, "sliding_attention"))) {
        return dt_fail(err, DT_INVALID,
                       "rope_parameters: a section for each kind of layers, and this model has one for "
                       "all; put its members into rope_parameters itself");
    }
    lift_all(config, section);
    int rc = f->only_default_rope ? check_default(section, err) : check_section(config, section, err);
    return rc != 0 ? dt_wrap(err, "%s", old != NULL ? "rope_scaling" : "rope_parameters") : 0;
}

/* A section for layers without a window, which members of rope_scaling join, and one for those with it. */
static int flatten_two(cJSON *config, const cJSON *now, const cJSON *old, struct dt_error *err)
{
    const cJSON *full, *local, *each;
    if (rope_open_section(now, "full_attention", &full, err) != 0 ||
        rope_open_section(now, "sliding_attention", &local, err) != 0) {
        return dt_wrap(err, "rope_parameters");
    }
    if (now != NULL && full == NULL && local == NULL) {
        return dt_fail(err, DT_INVALID,
                       "rope_parameters: this model has a section for each kind of layers, "
                       "full_attention and sliding_attention; put the members there");
    }
    cJSON *section = full != NULL ? cJSON_Duplicate(full, true) : cJSON_CreateObject();
    cJSON_ArrayForEach(each, old)
    {
        family_set(section, each->string, cJSON_Duplicate(each, true));
    }
    lift_all(config, section);
    lift(config, local, "rope_theta", "rope_local_base_freq");
    int rc = check_section(config, section, err);
    cJSON_Delete(section);
    if (rc != 0) {
        return dt_wrap(err, "%s", old != NULL ? "rope_scaling" : "rope_parameters: full_attention");
    }
    return type_of(local) != NULL && strcmp(type_of(local), "default") != 0
               ? dt_fail(err, DT_INVALID, "rope_parameters: sliding_attention: only rope_type \"default\" is supported")
               : 0;
}

int rope_flatten(const struct decoder_family *f, cJSON *config, struct dt_error *err)
{
    const cJSON *now, *old;
    if (rope_open_section(config, "rope_parameters", &now, err) != 0 ||
        rope_open_section(config, "rope_scaling", &old, err) != 0) {
        return -1;
    }
    return f->local_rope ? flatten_two(config, now, old, err) : flatten_one(f, config, now, old, err);
}

void rope_put_number(struct dt_text *out, const char *key, double value)
{
    dt_text_printf(out, ",\n    \"%s\": %.17g%s", key, value, value == floor(value) && fabs(value) < 1e15 ? ".0" : "");
}

char *rope_section(const struct decoder *m)
{
    static const char *const names[] = {"default", "linear", "llama3", "yarn", "dynamic"};
    struct dt_text out;
    dt_text_init(&out);
    dt_text_printf(&out, "{\n    \"rope_type\": \"%s\"", names[m->rope_type]);
    rope_put_number(&out, "rope_theta", m->rope_theta);
    if (m->rope_type != ROPE_DEFAULT) {
        rope_put_number(&out, "factor", m->rope_factor);
    }
    if (m->rope_type == ROPE_LLAMA3) {
        rope_put_number(&out, "low_freq_factor", m->rope_low_freq_factor);
        rope_put_number(&out, "high_freq_factor", m->rope_high_freq_factor);
    }
    if (m->rope_original_max_position_embeddings > 0) {
        dt_text_printf(&out, ",\n    \"original_max_position_embeddings\": %" PRId64,
                       m->rope_original_max_position_embeddings);
    }
    if (m->rope_type == ROPE_YARN) {
        rope_put_number(&out, "beta_fast", m->rope_beta_fast);
        rope_put_number(&out, "beta_slow", m->rope_beta_slow);
        dt_text_printf(&out, ",\n    \"truncate\": %s", m->rope_truncate ? "true" : "false");
        const char *const keys[] = {"attention_factor", "mscale", "mscale_all_dim"};
        const double values[] = {m->rope_attention_factor, m->rope_mscale, m->rope_mscale_all_dim};
        for (int i = 0; i < 3; i++) {
            if (values[i] != 0) {
                rope_put_number(&out, keys[i], values[i]);
            }
        }
    }
    dt_text_puts(&out, "\n  }");
    char *section = dt_strdup(dt_text_str(&out));
    dt_text_clear(&out);
    return section;
}
