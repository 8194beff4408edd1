/* The table of models, and what is the same for all of them: values by field tables. */
#include "worker/model/model.h"

#include "base/config_value.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#define MODEL_ROW(model, name) &model_##model,
static const struct model_ops *const models[] = {MODELS(MODEL_ROW)};
enum { MODEL_COUNT = sizeof models / sizeof models[0], LINES_MAX = 64 };

const struct model_ops *model_at(int i)
{
    return i < MODEL_COUNT ? models[i] : NULL;
}

static bool listed(const char *const *keys, const char *key)
{
    while (keys != NULL && *keys != NULL && strcmp(*keys, key) != 0) {
        keys++;
    }
    return keys != NULL && *keys != NULL;
}

static const struct model_alias *find_alias(const struct model_ops *ops, const char *name)
{
    const struct model_alias *a = ops->aliases;
    while (a != NULL && a->name != NULL && strcmp(a->name, name) != 0) {
        a++;
    }
    return a != NULL && a->name != NULL ? a : NULL;
}

const struct model_ops *model_find(const char *name)
{
    for (int i = 0; i < MODEL_COUNT; i++) {
        if (strcmp(models[i]->name, name) == 0 || find_alias(models[i], name) != NULL) {
            return models[i];
        }
    }
    return NULL;
}

void model_list(struct dt_text *out)
{
    for (int i = 0; i < MODEL_COUNT; i++) {
        dt_text_printf(out, "%s%s", i > 0 ? ", " : "", models[i]->name);
    }
}

void model_defaults(const struct model_ops *ops, void *sizes)
{
    memset(sizes, 0, ops->sizes_bytes); /* also members that have no key in this model */
    for (const struct dt_field *f = ops->fields; f->key != NULL; f++) {
        cJSON *value = cJSON_Parse(f->fallback);
        bool good = value != NULL && dt_value_parse(f->rule, value, NULL, (char *)sizes + f->offset);
        assert(good);
        (void)good;
        cJSON_Delete(value);
    }
}

static const struct dt_field *find_field(const struct model_ops *ops, const char *key)
{
    const struct dt_field *f = ops->fields;
    while (f->key != NULL && strcmp(f->key, key) != 0) {
        f++;
    }
    return f->key != NULL ? f : NULL;
}

int64_t model_integer(const struct model_ops *ops, const void *sizes, const char *key)
{
    const struct dt_field *f = find_field(ops, key);
    int64_t value;
    assert(f != NULL && f->rule->type == DT_RULE_INTEGER);
    memcpy(&value, (const char *)sizes + f->offset, sizeof value);
    return value;
}

bool model_flag(const struct model_ops *ops, const void *sizes, const char *key)
{
    const struct dt_field *f = find_field(ops, key);
    bool value;
    assert(f != NULL && f->rule->type == DT_RULE_BOOL);
    memcpy(&value, (const char *)sizes + f->offset, sizeof value);
    return value;
}

void model_set_flag(const struct model_ops *ops, void *sizes, const char *key, bool value)
{
    const struct dt_field *f = find_field(ops, key);
    assert(f != NULL && f->rule->type == DT_RULE_BOOL);
    memcpy((char *)sizes + f->offset, &value, sizeof value);
}

/* True if the key's member is the same in both structs. */
static bool same_member(const struct dt_field *f, const struct model_sizes *x, const struct model_sizes *y)
{
    struct dt_text a, b;
    dt_text_init(&a);
    dt_text_init(&b);
    dt_config_format(f, x->bytes, &a);
    dt_config_format(f, y->bytes, &b);
    bool same = strcmp(dt_text_str(&a), dt_text_str(&b)) == 0;
    dt_text_clear(&a);
    dt_text_clear(&b);
    return same;
}

bool model_same(const struct model_ops *ops, const char *key, const void *a, const void *b)
{
    const struct dt_field *f = find_field(ops, key);
    struct model_sizes x, y;
    assert(f != NULL);
    memcpy(x.bytes, a, ops->sizes_bytes);
    memcpy(y.bytes, b, ops->sizes_bytes);
    bool as_written = same_member(f, &x, &y);
    if (ops->settle != NULL) {
        ops->settle(x.bytes);
        ops->settle(y.bytes);
    }
    return as_written || same_member(f, &x, &y);
}

bool model_chooses(const struct model_ops *ops, const char *key)
{
    return listed(ops->head_keys, key);
}

bool model_drops(const struct model_ops *ops, const char *key)
{
    const struct model_dropout *d = ops->dropouts;
    while (d != NULL && d->key != NULL && strcmp(d->key, key) != 0) {
        d++;
    }
    return d != NULL && d->key != NULL;
}

char *model_class(const struct model_ops *ops, const void *sizes, const char *model_type)
{
    const char *class = ops->class_of != NULL ? ops->class_of(sizes) : ops->architecture, *head = strstr(class, "For");
    const struct model_alias *alias = model_type != NULL ? find_alias(ops, model_type) : NULL;
    return alias != NULL && head != NULL ? dt_format("%s%s", alias->prefix, head) : dt_strdup(class);
}

/* ---- config.json ---- */

/* Finds a key of config.json under any of its spellings. Null: it is missing, or it is null and the
 * rule knows no null. */
static const cJSON *find_value(const struct model_ops *ops, const cJSON *config, const struct dt_field *f)
{
    const char *key = f->key;
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(config, key);
    for (const struct model_key *k = ops->keys; k != NULL && k->key != NULL; k++) {
        if ((value == NULL || cJSON_IsNull(value)) && strcmp(k->key, key) == 0) {
            value = cJSON_GetObjectItemCaseSensitive(config, k->other);
        }
    }
    return value != NULL && (f->rule->null || !cJSON_IsNull(value)) ? value : NULL;
}

static int read_fields(const struct model_ops *ops, const cJSON *config, void *sizes, struct dt_error *err)
{
    for (const struct dt_field *f = ops->fields; f->key != NULL; f++) {
        const cJSON *value = find_value(ops, config, f);
        if (value == NULL || dt_value_parse(f->rule, value, NULL, (char *)sizes + f->offset)) {
            continue;
        }
        struct dt_text text;
        dt_text_init(&text);
        dt_value_show(value, &text);
        dt_text_puts(&text, "; must be ");
        dt_value_expected(f->rule, &text);
        (void)dt_fail(err, DT_INVALID, "%s: is %s", f->key, dt_text_str(&text));
        dt_text_clear(&text);
        return -1;
    }
    return 0;
}

int model_read_config(const struct model_ops *ops, const cJSON *config, void *sizes, struct dt_error *err)
{
    model_defaults(ops, sizes);
    if (ops->check_config != NULL && ops->check_config(config, err) != 0) {
        return -1;
    }
    if (ops->flatten_config == NULL) {
        return read_fields(ops, config, sizes, err);
    }
    cJSON *flat = cJSON_Duplicate(config, true);
    int rc = ops->flatten_config(flat, err) == 0 ? read_fields(ops, flat, sizes, err) : -1;
    cJSON_Delete(flat);
    return rc;
}

int model_read_folder(const struct model_ops *ops, const cJSON *config, void *sizes, struct dt_error *err)
{
    int rc = model_read_config(ops, config, sizes, err);
    for (const struct model_dropout *d = ops->dropouts; rc == 0 && d != NULL && d->key != NULL; d++) {
        const struct dt_field *f = find_field(ops, d->key);
        if (f != NULL && find_value(ops, config, f) == NULL) {
            memcpy((char *)sizes + f->offset, &d->missing, sizeof d->missing);
        }
    }
    return rc;
}

struct lines {
    struct {
        const char *key;
        char *json;
    } line[LINES_MAX];
    int count;
};

static void put_line(void *to, const char *key, const char *json)
{
    struct lines *l = to;
    assert(l->count < LINES_MAX);
    l->line[l->count].key = key;
    l->line[l->count++].json = dt_strdup(json);
}

static int by_key(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Written like Hugging Face's library does: sorted by key, and numbers that are not integers have a
 * point. */
void model_write_config(const struct model_ops *ops, const void *sizes, struct dt_text *out)
{
    struct lines l = {.count = 0};
    for (const struct dt_field *f = ops->fields; f->key != NULL; f++) {
        if (listed(ops->spelled, f->key)) {
            continue;
        }
        struct dt_text value;
        dt_text_init(&value);
        dt_config_format(f, sizes, &value);
        if (f->rule->type == DT_RULE_NUMBER && strpbrk(dt_text_str(&value), ".en") == NULL) { /* n: of null */
            dt_text_puts(&value, ".0");
        }
        put_line(&l, f->key, dt_text_str(&value));
        dt_text_clear(&value);
    }
    char *class = model_class(ops, sizes, NULL), *architectures = dt_format("[\n    \"%s\"\n  ]", class),
         *type = dt_format("\"%s\"", ops->name);
    put_line(&l, "architectures", architectures);
    put_line(&l, "model_type", type);
    put_line(&l, "dtype", "\"float32\"");
    put_line(&l, "torch_dtype", "\"float32\"");
    if (ops->put_config != NULL) {
        ops->put_config(sizes, put_line, &l);
    }
    qsort(l.line, (size_t)l.count, sizeof l.line[0], by_key);
    dt_text_puts(out, "{\n");
    for (int i = 0; i < l.count; i++) {
        dt_text_printf(out, "  \"%s\": %s%s\n", l.line[i].key, l.line[i].json, i + 1 < l.count ? "," : "");
        free(l.line[i].json);
    }
    dt_text_puts(out, "}\n");
    free(class);
    free(architectures);
    free(type);
}
