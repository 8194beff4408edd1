/* Settings of a generation: from the job's section, otherwise from the folder of the model. */
#include "worker/run/generate.h"

#include "base/config_value.h"
#include "worker/data/tokenizers/special_tokens.h"
#include "worker/data/tokenizers/tokenizer.h"
#include "worker/job/job_fields.h"

#include <cjson/cJSON.h>
#include <string.h>

/* Reads the keys of the job's section that generation_config.json has, too: all but the prompts. */
static int read_config(const cJSON *config, struct job_generation *out, struct dt_error *err)
{
    for (const struct dt_field *f = job_sections[JOB_GENERATION].fields; f->key != NULL; f++) {
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(config, f->key);
        if (value == NULL || cJSON_IsNull(value) || f->rule->type == DT_RULE_STRINGS ||
            dt_value_parse(f->rule, value, NULL, (char *)out + f->offset)) {
            continue;
        }
        struct dt_text expected;
        dt_text_init(&expected);
        dt_value_expected(f->rule, &expected);
        (void)dt_fail(err, DT_INVALID, "generation_config.json: %s: must be %s", f->key, dt_text_str(&expected));
        dt_text_clear(&expected);
        return -1;
    }
    return 0;
}

/* Keys of generation_config.json that are not computed, and the number that each has where it changes
 * nothing, as do null, false and an empty list. */
static const struct {
    const char *key;
    double neutral;
    bool of_draws; /* the key matters to draws alone */
} not_computed[] = {
    {"num_beams", 1, false},
    {"penalty_alpha", 0, false},
    {"dola_layers", 0, false},
    {"guidance_scale", 1, false},
    {"min_length", 0, false},
    {"min_new_tokens", 0, false},
    {"no_repeat_ngram_size", 0, false},
    {"bad_words_ids", 0, false},
    {"force_words_ids", 0, false},
    {"constraints", 0, false},
    {"sequence_bias", 0, false},
    {"suppress_tokens", 0, false},
    {"begin_suppress_tokens", 0, false},
    {"forced_bos_token_id", -1, false},
    {"forced_eos_token_id", -1, false},
    {"exponential_decay_length_penalty", 0, false},
    {"stop_strings", 0, false},
    {"watermarking_config", 0, false},
    {"typical_p", 1, true},
    {"top_h", 1, true},
    {"epsilon_cutoff", 0, true},
    {"eta_cutoff", 0, true},
};

static bool is_neutral(const cJSON *value, double neutral)
{
    return value == NULL || cJSON_IsNull(value) || cJSON_IsFalse(value) ||
           (cJSON_IsNumber(value) && value->valuedouble == neutral) ||
           ((cJSON_IsArray(value) || cJSON_IsObject(value)) && value->child == NULL);
}

static void add_ignored(const cJSON *config, bool draws, struct dt_text *out)
{
    for (size_t i = 0; i < sizeof not_computed / sizeof *not_computed; i++) {
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(config, not_computed[i].key);
        if (!is_neutral(value, not_computed[i].neutral) && (draws || !not_computed[i].of_draws)) {
            dt_text_printf(out, "%s%s", out->size > 0 ? ", " : "", not_computed[i].key);
        }
    }
}

/* The first of these that is given; below 0: it is not. */
static double first_of(double job, double config, double fallback)
{
    return job >= 0 ? job : config >= 0 ? config : fallback;
}

/* The ids that end a row: one, or a list. */
static int read_stops(const cJSON *eos, struct generate_options *out, struct dt_error *err)
{
    int count = cJSON_IsArray(eos) ? cJSON_GetArraySize(eos) : 1;
    for (int i = 0; i < count; i++) {
        const cJSON *id = cJSON_IsArray(eos) ? cJSON_GetArrayItem(eos, i) : eos;
        if (!cJSON_IsNumber(id) || id->valuedouble != id->valueint || out->stop_count == GENERATE_STOPS_MAX) {
            return dt_fail(err, DT_INVALID, "eos_token_id: must be an id, or a list of at most %d", GENERATE_STOPS_MAX);
        }
        out->stops[out->stop_count++] = id->valueint;
    }
    return 0;
}

/* Of models whose files name no id: the tokenizer's eos_token. */
static int read_tokenizer_stop(const struct model_source *source, struct generate_options *out, struct dt_error *err)
{
    struct tokenizer *t = NULL;
    cJSON *tokens = special_tokens_read(source->tokenizer, err);
    const char *eos = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(tokens, "eos_token"));
    int rc = tokens == NULL ? -1 : eos != NULL ? tokenizer_open(&t, source->tokenizer, err) : 0;
    int32_t id = t != NULL && rc == 0 ? tokenizer_id(t, eos, strlen(eos)) : -1;
    if (id >= 0) {
        out->stops[out->stop_count++] = id;
    }
    tokenizer_close(t);
    cJSON_Delete(tokens);
    return rc;
}

/* max_length of generation_config.json: ids of a row with its prompt. Whoever says max_new_tokens means that. */
static int read_length(const struct model_source *source, struct generate_options *out, struct dt_error *err)
{
    const cJSON *length = cJSON_GetObjectItemCaseSensitive(source->generation, "max_length");
    if (length == NULL || cJSON_IsNull(length)) {
        return 0;
    }
    if (!cJSON_IsNumber(length) || length->valuedouble < 1 || length->valuedouble != length->valueint) {
        return dt_fail(err, DT_INVALID, "%s: generation_config.json: max_length: must be an integer above 0",
                       source->path);
    }
    out->max_length = out->max_new_tokens = length->valueint;
    return 0;
}

int generate_settings(const struct model_source *source, const struct job_generation *job, struct generate_options *out,
                      struct dt_text *ignored, struct dt_error *err)
{
    struct job_generation config = {-1, -1, -1, -1, -1, -1, -1, -1, {0}, {0}};
    const cJSON *own = cJSON_GetObjectItemCaseSensitive(source->generation, "eos_token_id"),
                *models = cJSON_GetObjectItemCaseSensitive(source->config, "eos_token_id");
    /* details of a draw ask for one */
    bool draws = job->temperature > 0 || job->top_k >= 0 || job->top_p >= 0 || job->min_p >= 0;
    *out = (struct generate_options){.seed = (uint64_t)job->seed, .batch_size = 8};
    if (read_config(source->generation, &config, err) != 0) {
        return dt_wrap(err, "%s", source->path);
    }
    out->sampling =
        (struct sampling){.do_sample = first_of(job->do_sample, draws ? 1 : config.do_sample, 0) == 1,
                          .repetition_penalty = first_of(job->repetition_penalty, config.repetition_penalty, 1),
                          .temperature = first_of(job->temperature, config.temperature, 1),
                          .top_k = (int64_t)first_of((double)job->top_k, (double)config.top_k, 0),
                          .top_p = first_of(job->top_p, config.top_p, 1),
                          .min_p = first_of(job->min_p, config.min_p, 0)};
    if (ignored != NULL) {
        add_ignored(source->generation, out->sampling.do_sample, ignored);
    }
    out->max_new_tokens = (int64_t)first_of((double)job->max_new_tokens, (double)config.max_new_tokens, 256);
    if (job->max_new_tokens < 0 && config.max_new_tokens < 0 && read_length(source, out, err) != 0) {
        return -1;
    }
    const cJSON *eos = own != NULL && !cJSON_IsNull(own) ? own : models;
    if (eos == NULL || cJSON_IsNull(eos)) {
        return source->tokenizer != NULL ? read_tokenizer_stop(source, out, err) : 0;
    }
    return read_stops(eos, out, err) == 0
               ? 0
               : dt_wrap(err, "%s: %s", source->path, eos == own ? "generation_config.json" : "config.json");
}
