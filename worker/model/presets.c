/* See the header. */
#include "worker/model/presets.h"

#include "worker/model/model.h"

#include <cjson/cJSON.h>
#include <ctype.h>
#include <string.h>
#include <strings.h>

static const struct preset presets[] = {
#define PRESET(name, family, config) {name, family, config},
#include "worker/model/presets.def"
};
enum { PRESETS = sizeof presets / sizeof presets[0] };

const struct preset *preset_at(int i)
{
    return i < PRESETS ? &presets[i] : NULL;
}

const struct preset *preset_find(const char *name)
{
    for (int i = 0; i < PRESETS; i++) {
        if (strcasecmp(presets[i].name, name) == 0) {
            return &presets[i];
        }
    }
    return NULL;
}

static bool in_word(char c)
{
    return isalnum((unsigned char)c) || c == '.';
}

/* True if `part` stands in `name` in whole words. */
static bool has_words(const char *name, const char *part)
{
    size_t size = strlen(part);
    for (const char *at = name; (at = strcasestr(at, part)) != NULL; at++) {
        if ((at == name || !in_word(at[-1])) && !in_word(at[size])) {
            return true;
        }
    }
    return false;
}

const char *preset_meant(const char *name)
{
    /* published names that say less than ours */
    static const char *const others[][2] = {
        {"gpt2-medium", "gpt2-355m"},   {"gpt2-large", "gpt2-774m"},          {"gpt2-xl", "gpt2-1558m"},
        {"gpt2-small", "gpt2-124m"},    {"Mistral-Nemo", "mistral-nemo-12b"}, {"OLMo-2-0425-1B", "olmo-2-1b"},
        {"OLMo-2-1124-7B", "olmo-2-7b"}};
    const char *owner = strrchr(name, '/'), *best = NULL;
    name = owner != NULL ? owner + 1 : name;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        if (has_words(name, others[i][0])) {
            return others[i][1];
        }
    }
    for (int i = 0; i < PRESETS; i++) {
        bool longer = best == NULL || strlen(presets[i].name) > strlen(best);
        best = longer && has_words(name, presets[i].name) ? presets[i].name : best;
    }
    return best;
}

int preset_sizes(const struct preset *p, void *sizes, struct dt_error *err)
{
    const struct model_ops *ops = model_find(p->family);
    cJSON *config = cJSON_Parse(p->config);
    int rc = ops != NULL && config != NULL ? model_read_config(ops, config, sizes, err)
                                           : dt_fail(err, DT_INTERNAL, "preset %s", p->name);
    cJSON_Delete(config);
    return rc;
}

/* Parameters of a model, for one sequence of one position. -1: its sizes are wrong. */
static int64_t parameters(const struct model_ops *ops, const void *sizes)
{
    struct chain c;
    const struct model_spec spec = {
        .name = ops->name, .sizes = sizes, .batch_size = 1, .sequence_length = 1, .type = DT_F32};
    if (chain_open(&c, &spec, 1, NULL) != 0) {
        return -1;
    }
    int64_t count = c.parameter_count;
    chain_close(&c);
    return count;
}

void preset_list(struct dt_text *out)
{
    const struct model_ops *ops;
    for (int i = 0; (ops = model_at(i)) != NULL; i++) {
        dt_text_printf(out, "%s\n", ops->name);
        for (const struct preset *p = presets; p < presets + PRESETS; p++) {
            struct model_sizes sizes;
            if (model_find(p->family) == ops && preset_sizes(p, sizes.bytes, NULL) == 0) {
                dt_text_printf(out, "    %-30s %8.1f million parameters\n", p->name,
                               (double)parameters(ops, sizes.bytes) / 1e6);
            }
        }
    }
}
