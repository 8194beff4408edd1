/* See the header. The rows are in refused.def. */
#include "worker/model/refused.h"

#include "worker/model/chain.h"
#include "worker/model/presets.h"

#include <cjson/cJSON.h>
#include <ctype.h>
#include <string.h>

enum { ALIKE_MIN = 4 }; /* letters that two names must share at their beginning */

struct name {
    const char *name, *what, *nearest;
};
struct sign {
    const char *key, *what;
};

static const struct name names[] = {
#define NAME(name, what, nearest) {name, what, nearest},
#define KEY(key, what)
#define LAYER(kind, what)
#include "worker/model/refused.def"
#undef NAME
#undef KEY
#undef LAYER
};
static const struct sign keys[] = {
#define NAME(name, what, nearest)
#define KEY(key, what) {key, what},
#define LAYER(kind, what)
#include "worker/model/refused.def"
#undef NAME
#undef KEY
#undef LAYER
};
static const struct sign layers[] = {
#define NAME(name, what, nearest)
#define KEY(key, what)
#define LAYER(kind, what) {kind, what},
#include "worker/model/refused.def"
};
enum {
    NAMES = sizeof names / sizeof names[0],
    KEYS = sizeof keys / sizeof keys[0],
    LAYERS = sizeof layers / sizeof layers[0]
};

/* Model types are written with "_", names of models with "-", and case varies. */
static int plain(char c)
{
    return c == '-' || c == '.' ? '_' : tolower((unsigned char)c);
}

/* The number of first characters that two names share. */
static size_t shared(const char *a, const char *b)
{
    size_t n = 0;
    while (a[n] != '\0' && plain(a[n]) == plain(b[n])) {
        n++;
    }
    return n;
}

/* The same in whole words: up to the last separator. */
static size_t shared_words(const char *a, const char *b)
{
    size_t n = shared(a, b);
    while (n > 0 && plain(a[n - 1]) != '_') {
        n--;
    }
    return n;
}

static const struct name *find_exact(const char *name)
{
    for (int i = 0; i < NAMES; i++) {
        if (strcmp(names[i].name, name) == 0) {
            return &names[i];
        }
    }
    return NULL;
}

/* The longest name that `name` begins with, up to its end or a separator; null: none. */
static const struct name *find_beginning(const char *name)
{
    const struct name *best = NULL;
    for (int i = 0; i < NAMES; i++) {
        size_t n = strlen(names[i].name);
        bool begins = shared(names[i].name, name) == n && (name[n] == '\0' || plain(name[n]) == '_');
        best = begins && (best == NULL || n > strlen(best->name)) ? &names[i] : best;
    }
    return best;
}

/* The model whose name begins most like `name`; null: none does. */
static const char *find_alike(const char *name)
{
    const struct model_ops *ops;
    const char *best = NULL;
    size_t most = ALIKE_MIN - 1;
    for (int i = 0; (ops = model_at(i)) != NULL; i++) {
        size_t n = shared(ops->name, name);
        best = n > most ? ops->name : best;
        most = n > most ? n : most;
    }
    return best;
}

static const char *text_at(const cJSON *config, const char *key)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(config, key);
    return cJSON_IsString(value) ? value->valuestring : "";
}

/* The nearest model of a config.json: the text model inside it, that of a row, one with a name that
 * begins alike, or the usual one for the class. *inside: it is the text model. */
static const char *nearest_of(const cJSON *config, bool *inside)
{
    const cJSON *text = cJSON_GetObjectItemCaseSensitive(config, "text_config"),
                *class = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(config, "architectures"), 0);
    const struct model_ops *inner = model_find(text_at(text, "model_type"));
    *inside = inner != NULL;
    if (inner != NULL) {
        return inner->name;
    }
    const char *types[] = {text_at(config, "model_type"), text_at(text, "model_type")}, *alike = NULL;
    for (int i = 0; i < 2 && alike == NULL; i++) {
        const struct name *row = find_beginning(types[i]);
        alike = row != NULL ? row->nearest : find_alike(types[i]);
    }
    const char *name = cJSON_IsString(class) ? class->valuestring : "";
    bool encoder = dt_text_ends_with(name, "ForMaskedLM") || dt_text_ends_with(name, "ForSequenceClassification") ||
                   dt_text_ends_with(name, "ForTokenClassification");
    return alike != NULL ? alike : encoder ? "bert" : "llama";
}

static bool counts(const cJSON *value)
{
    return value != NULL && !cJSON_IsNull(value) && !cJSON_IsFalse(value) &&
           !(cJSON_IsNumber(value) && value->valuedouble == 0) &&
           !((cJSON_IsArray(value) || cJSON_IsObject(value)) && value->child == NULL);
}

static bool has_key(const cJSON *config, const char *key)
{
    size_t size = strlen(key) - 1;
    if (key[size] != '*') {
        return counts(cJSON_GetObjectItemCaseSensitive(config, key));
    }
    const cJSON *value;
    cJSON_ArrayForEach(value, config)
    {
        if (strncmp(value->string, key, size) == 0 && counts(value)) {
            return true;
        }
    }
    return false;
}

/* The description of a kind of layers; null: no row has this kind. */
static const char *layer_what(const cJSON *kind)
{
    for (int i = 0; i < LAYERS && cJSON_IsString(kind); i++) {
        if (strcmp(layers[i].key, kind->valuestring) == 0) {
            return layers[i].what;
        }
    }
    return NULL;
}

/* Appends `what` with `before` it, unless it is there. */
static void add_what(struct dt_text *out, const char *what)
{
    if (strstr(dt_text_str(out), what) == NULL) {
        dt_text_printf(out, "%s%s", out->size > 0 ? ", " : "", what);
    }
}

/* Appends what keys and kinds of layers show. */
static void add_signs(const cJSON *config, struct dt_text *out)
{
    const cJSON *kind, *kinds = cJSON_GetObjectItemCaseSensitive(config, "layer_types");
    for (int i = 0; i < KEYS; i++) {
        if (has_key(config, keys[i].key)) {
            add_what(out, keys[i].what);
        }
    }
    cJSON_ArrayForEach(kind, kinds)
    {
        if (layer_what(kind) != NULL) {
            add_what(out, layer_what(kind));
        }
    }
}

int refused_model(const cJSON *config, struct dt_error *err)
{
    const char *type = text_at(config, "model_type");
    const struct name *row = find_exact(type);
    struct dt_text what, known;
    dt_text_init(&what);
    dt_text_init(&known);
    if (row != NULL) {
        dt_text_puts(&what, row->what);
    } else {
        add_signs(config, &what);
        row = what.size == 0 ? find_beginning(type) : NULL;
        dt_text_puts(&what, row != NULL ? row->what : "");
    }
    model_list(&known);
    bool inside;
    const char *nearest = nearest_of(config, &inside), *name = *type != '\0' ? type : "(none)";
    if (what.size > 0) {
        (void)dt_fail(err, DT_INVALID,
                      "model_type: \"%.60s\" is not supported: it has %s; the nearest model that works is %s%s", name,
                      dt_text_str(&what), inside ? "its text model alone, " : "", nearest);
    } else if (*type != '\0' && find_alike(type) != NULL) {
        (void)dt_fail(err, DT_INVALID,
                      "model_type: \"%.60s\" is not supported; the nearest model that works is %s, there are: %s", name,
                      nearest, dt_text_str(&known));
    } else {
        (void)dt_fail(err, DT_INVALID, "model_type: \"%.60s\" is not supported; there are: %s", name,
                      dt_text_str(&known));
    }
    dt_text_clear(&known);
    dt_text_clear(&what);
    return -1;
}

/* The tasks that a model knows, "a|b"; "": it has one. */
static const char *tasks_of(const struct model_ops *ops)
{
    for (const struct dt_field *f = ops->fields; f->key != NULL; f++) {
        if (strcmp(f->key, "task") == 0) {
            return f->rule->choices;
        }
    }
    return "";
}

/* Classes whose head the model here has not, by the end of their name. */
static int refused_class(const cJSON *config, struct dt_error *err)
{
    static const struct {
        const char *end, *what, *task;
    } heads[] = {{"ForQuestionAnswering", "spans of a text as answers", NULL},
                 {"ForMultipleChoice",
                  "a score of each choice (multiple choice is scored by a language model: data.val "
                  "of JSON lines)",
                  NULL},
                 {"ForNextSentencePrediction", "whether two sentences follow each other", NULL},
                 {"DoubleHeadsModel", "a second head", NULL},
                 {"ForSequenceClassification", "classes of sequences", "sequence_classification"},
                 {"ForTokenClassification", "classes of tokens", "token_classification"}};
    const struct model_ops *ops = model_find(text_at(config, "model_type"));
    const cJSON *class = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(config, "architectures"), 0);
    const char *name = cJSON_IsString(class) ? class->valuestring : "";
    for (size_t i = 0; i < sizeof heads / sizeof *heads && ops != NULL && ops->positions != NULL; i++) {
        if (!dt_text_ends_with(name, heads[i].end) || (heads[i].task != NULL && strstr(tasks_of(ops), heads[i].task))) {
            continue;
        }
        return strstr(tasks_of(ops), "sequence_classification") != NULL
                   ? dt_fail(
                         err, DT_INVALID,
                         "architectures: %.80s: gives %s, which no %s here does; to go on with its layers and a new "
                         "head, take architectures out of a copy of its config.json and set model.task (%s)",
                         name, heads[i].what, ops->name, tasks_of(ops))
                   : dt_fail(
                         err, DT_INVALID,
                         "architectures: %.80s: gives %s, and a %s gives next tokens here; the nearest that work are "
                         "llama and encoders, such as bert, with model.task",
                         name, heads[i].what, ops->name);
    }
    return 0;
}

int refused_config(const cJSON *config, struct dt_error *err)
{
    static const char *const ropes[] = {"rope_parameters", "rope_scaling"};
    const cJSON *kind, *kinds = cJSON_GetObjectItemCaseSensitive(config, "layer_types");
    if (refused_class(config, err) != 0) {
        return -1;
    }
    if (counts(cJSON_GetObjectItemCaseSensitive(config, "quantization_config"))) {
        /* an export would have that config beside weights of another type */
        return dt_fail(err, DT_INVALID,
                       "quantization_config: quantized weights are not supported; give the model before it was "
                       "quantized");
    }
    cJSON_ArrayForEach(kind, kinds)
    {
        if (cJSON_IsString(kind) && strcmp(kind->valuestring, "full_attention") != 0 &&
            strcmp(kind->valuestring, "sliding_attention") != 0) {
            const char *what = layer_what(kind);
            return dt_fail(err, DT_INVALID,
                           "layer_types: \"%.60s\"%s%s is not supported, only full_attention and sliding_attention",
                           kind->valuestring, what != NULL ? ": " : "", what != NULL ? what : "");
        }
    }
    if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(config, "use_bidirectional_attention"))) {
        return dt_fail(err, DT_INVALID, "use_bidirectional_attention: only false is supported");
    }
    for (int i = 0; i < 2; i++) {
        if (has_key(cJSON_GetObjectItemCaseSensitive(config, ropes[i]), "mrope_section")) {
            return dt_fail(err, DT_INVALID, "%s: mrope_section: positions of images are not supported", ropes[i]);
        }
    }
    return 0;
}

bool refused_name(const char *name, struct dt_text *out)
{
    const struct name *row = find_beginning(name);
    const struct preset *p;
    for (int i = 0; row != NULL && (p = preset_at(i)) != NULL; i++) { /* "gemma-2-9b-it" is no first Gemma */
        row = shared_words(p->name, name) > strlen(row->name) + 1 ? NULL : row;
    }
    if (row != NULL) {
        dt_text_printf(out, "it has %s; the nearest model that works is %s", row->what, row->nearest);
    }
    return row != NULL;
}
