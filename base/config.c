/* Configuration by field tables. The cJSON tree and the places found by scan.c are flattened
 * into one list of entries, path by path; --set edits that list; reading marks entries, and what
 * stays unmarked is unknown. Single values are the matter of config_value.c. */
#include "base/config.h"

#include "base/config_value.h"
#include "base/file.h"
#include "base/scan.h"

#include <cjson/cJSON.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SECTIONS_MAX = 32, HINT_TABLES_MAX = 4, PROBLEMS_SHOWN = 100, FILE_BYTES = 4 << 20, VALUES_MAX = 20000 };

struct entry {
    const char *path; /* "training.seed" */
    const cJSON *value;
    const char *where; /* "job.json:4:9" (of the key), or "--set training.seed=7" */
    const char *value_where;
    uint32_t line, column; /* for sorting; --set comes last */
    bool section, read;
};

struct problem {
    uint32_t line, column;
    size_t order;
    char *text;
};

struct derived {
    const char *path, *source;
};

struct dt_config {
    const char *path;
    struct dt_arena *arena;
    cJSON **trees; /* the file, then one per --set */
    size_t tree_count;
    struct entry *entries;
    size_t entry_count, entry_capacity;
    struct problem *problems;
    size_t problem_count;
    struct derived *derived;
    size_t derived_count;
    struct {
        const char *name;
        const struct dt_field *fields;
    } sections[SECTIONS_MAX];
    size_t section_count;
    const struct dt_config_hint *hints[HINT_TABLES_MAX];
    size_t hint_count;
    struct dt_scan scan;
};

static struct entry *find(const struct dt_config *c, const char *path)
{
    for (size_t i = 0; i < c->entry_count; i++) {
        if (strcmp(c->entries[i].path, path) == 0) {
            return &c->entries[i];
        }
    }
    return NULL;
}

/* True when path is `above` or lies below it. */
static bool within(const char *path, const char *above)
{
    size_t n = strlen(above);
    return strncmp(path, above, n) == 0 && (path[n] == 0 || path[n] == '.');
}

static void add_entry(struct dt_config *c, struct entry e)
{
    if (c->entry_count == c->entry_capacity) {
        c->entry_capacity = c->entry_capacity == 0 ? 64 : c->entry_capacity * 2;
        c->entries = dt_realloc(c->entries, c->entry_capacity * sizeof *c->entries);
    }
    c->entries[c->entry_count++] = e;
}

static const char *join(struct dt_config *c, const char *section, const char *key)
{
    if (*key == 0 || strchr(key, '.') != NULL) { /* a dot in a key is no path: such a key is
                                                  * never found, hence unknown */
        return dt_arena_printf(c->arena, "%s%s\"%s\"", section, *section != 0 ? "." : "", key);
    }
    return *section == 0 ? dt_arena_strdup(c->arena, key) : dt_arena_printf(c->arena, "%s.%s", section, key);
}

/* Values inside arrays have places too, but no entries of their own. */
static size_t count_values(const cJSON *v)
{
    size_t count = 1;
    for (const cJSON *child = cJSON_IsArray(v) || cJSON_IsObject(v) ? v->child : NULL; child != NULL;
         child = child->next) {
        count += count_values(child);
    }
    return count;
}

/* Adds an object's members, and theirs. `next` counts the places of the scan, in the same order;
 * null for --set, and `where` then. */
static void flatten(struct dt_config *c, const cJSON *object, const char *path, size_t *next, const char *where)
{
    for (const cJSON *v = object->child; v != NULL; v = v->next) {
        struct entry e = {.path = join(c, path, v->string),
                          .value = v,
                          .section = cJSON_IsObject(v),
                          .where = where,
                          .value_where = where,
                          .line = UINT32_MAX};
        if (next != NULL) {
            const struct dt_scan_place *p = &c->scan.places[*next];
            e.where = dt_arena_printf(c->arena, "%s:%u:%u", c->path, p->key_line, p->key_column);
            e.value_where = dt_arena_printf(c->arena, "%s:%u:%u", c->path, p->line, p->column);
            e.line = p->key_line;
            e.column = p->key_column;
            *next += e.section ? 1 : count_values(v);
        }
        add_entry(c, e);
        if (e.section) {
            flatten(c, v, e.path, next, where);
        }
    }
}

static void keep_tree(struct dt_config *c, cJSON *tree)
{
    c->trees = dt_realloc(c->trees, (c->tree_count + 1) * sizeof *c->trees);
    c->trees[c->tree_count++] = tree;
}

static void destroy(struct dt_config *c)
{
    for (size_t i = 0; i < c->tree_count; i++) {
        cJSON_Delete(c->trees[i]);
    }
    for (size_t i = 0; i < c->problem_count; i++) {
        free(c->problems[i].text);
    }
    free(c->trees);
    free(c->problems);
    free(c->entries);
    free(c->derived);
    dt_scan_clear(&c->scan);
    free(c);
}

int dt_config_open_text(struct dt_config **out, const char *path, const char *text, size_t size, struct dt_arena *arena,
                        struct dt_error *err)
{
    struct dt_config *c = dt_alloc(sizeof *c);
    c->path = dt_arena_strdup(arena, path);
    c->arena = arena;
    cJSON *tree = NULL;
    if (dt_scan(text, size, path, &c->scan, err) != 0) {
        goto fail;
    }
    if (c->scan.count > VALUES_MAX) { /* before memory is spent on them */
        (void)dt_fail(err, DT_INVALID, "%s: %zu values; a configuration has at most %d", path, c->scan.count,
                      VALUES_MAX);
        goto fail;
    }
    tree = cJSON_ParseWithLength(text, size);
    if (!cJSON_IsObject(tree)) {
        (void)dt_fail(err, DT_INVALID, "%s:%u:%u: expected an object, { \"key\": value, ... }", path,
                      c->scan.places[0].line, c->scan.places[0].column);
        goto fail;
    }
    keep_tree(c, tree);
    size_t next = 1;
    flatten(c, tree, "", &next, NULL);
    *out = c;
    return 0;
fail:
    cJSON_Delete(tree);
    destroy(c);
    return -1;
}

int dt_config_open(struct dt_config **out, const char *path, struct dt_arena *arena, struct dt_error *err)
{
    struct dt_text text;
    dt_text_init(&text);
    int result = dt_file_read(path, FILE_BYTES, &text, err);
    if (result == 0) {
        result = dt_config_open_text(out, path, dt_text_str(&text), text.size, arena, err);
    }
    dt_text_clear(&text);
    return result;
}

static void remove_entries(struct dt_config *c, const char *path)
{
    size_t kept = 0;
    for (size_t i = 0; i < c->entry_count; i++) {
        if (!within(c->entries[i].path, path)) {
            c->entries[kept++] = c->entries[i];
        }
    }
    c->entry_count = kept;
}

int dt_config_set(struct dt_config *c, const char *assignment, const char *option, struct dt_error *err)
{
    const char *equals = strchr(assignment, '=');
    bool good = equals != NULL && equals != assignment && equals[-1] != '.' && assignment[0] != '.';
    for (const char *p = assignment; good && p < equals; p++) {
        good = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') || *p == '_' ||
               *p == '-' || (*p == '.' && p[1] != '.');
    }
    if (!good) {
        return dt_fail(err, DT_INVALID,
                       "--set %.200s: not of the form key=value; write for example --set training.seed=7", assignment);
    }
    char *path = dt_arena_printf(c->arena, "%.*s", (int)(equals - assignment), assignment);
    const char *text = equals + 1;
    const char *where = option != NULL ? dt_arena_printf(c->arena, "%s %s", option, text)
                                       : dt_arena_printf(c->arena, "--set %s", assignment);
    char first = *text;
    cJSON *tree = NULL;
    if (first == '{' || first == '[' || first == '"') { /* meant as JSON, so faults in it are faults */
        tree = dt_scan_parse(text, strlen(text), where, NULL, err);
        if (tree == NULL) {
            return -1;
        }
    } else {
        tree = dt_scan_parse(text, strlen(text), where, NULL, NULL);
        if (tree == NULL) {
            tree = cJSON_CreateString(text);
        }
    }
    keep_tree(c, tree);
    remove_entries(c, path);
    /* the sections above must be there */
    for (char *dot = strchr(path, '.'); dot != NULL; dot = strchr(dot + 1, '.')) {
        *dot = 0;
        const struct entry *above = find(c, path);
        if (above != NULL && !above->section) {
            (void)dt_fail(err, DT_INVALID, "%s: %s is not a section (%s)", where, path, above->where);
            *dot = '.';
            return -1;
        }
        if (above == NULL) {
            add_entry(c, (struct entry){.path = dt_arena_strdup(c->arena, path),
                                        .value = tree,
                                        .where = where,
                                        .value_where = where,
                                        .line = UINT32_MAX,
                                        .section = true});
        }
        *dot = '.';
    }
    bool section = cJSON_IsObject(tree);
    add_entry(
        c,
        (struct entry){
            .path = path, .value = tree, .where = where, .value_where = where, .line = UINT32_MAX, .section = section});
    if (section) {
        flatten(c, tree, path, NULL, where);
    }
    return 0;
}

void dt_config_hints(struct dt_config *c, const struct dt_config_hint *hints)
{
    if (c->hint_count < HINT_TABLES_MAX) {
        c->hints[c->hint_count++] = hints;
    }
}

static void add_problem(struct dt_config *c, const struct entry *e, char *text)
{
    c->problems = dt_realloc(c->problems, (c->problem_count + 1) * sizeof *c->problems);
    c->problems[c->problem_count] = (struct problem){.line = e != NULL ? e->line : UINT32_MAX,
                                                     .column = e != NULL ? e->column : UINT32_MAX,
                                                     .order = c->problem_count,
                                                     .text = text};
    c->problem_count++;
}

void dt_config_problem(struct dt_config *c, const char *path, const char *fmt, ...)
{
    struct dt_text t;
    dt_text_init(&t);
    const struct entry *e = find(c, path);
    dt_text_printf(&t, "%s: %s: ", e != NULL ? e->where : c->path, path);
    va_list args;
    va_start(args, fmt);
    dt_text_vprintf(&t, fmt, args);
    va_end(args);
    add_problem(c, e, t.data);
}

const char *dt_config_where(const struct dt_config *c, const char *path)
{
    const struct entry *e = find(c, path);
    return e != NULL && !cJSON_IsNull(e->value) ? e->where : NULL;
}

void dt_config_derived(struct dt_config *c, const char *path, const char *source)
{
    c->derived = dt_realloc(c->derived, (c->derived_count + 1) * sizeof *c->derived);
    c->derived[c->derived_count++] =
        (struct derived){dt_arena_strdup(c->arena, path), dt_arena_strdup(c->arena, source)};
}

const char *dt_config_source(const struct dt_config *c, const char *path)
{
    const char *where = dt_config_where(c, path);
    for (size_t i = 0; where == NULL && i < c->derived_count; i++) {
        where = strcmp(c->derived[i].path, path) == 0 ? c->derived[i].source : NULL;
    }
    return where != NULL ? where : "default";
}

/* One field: from its entry when it is given and good, otherwise from its fallback. True when
 * there was no problem. */
static bool read_field(struct dt_config *c, const char *section, const struct dt_field *field, void *out)
{
    const char *path = join(c, section, field->key);
    struct entry *e = find(c, path);
    bool good = true;
    if (e != NULL) {
        e->read = true;
        bool auto_word = field->fallback != NULL && cJSON_IsString(e->value) &&
                         strcmp(e->value->valuestring, "auto") == 0 && field->rule->type != DT_RULE_STRING &&
                         field->rule->type != DT_RULE_CHOICE && field->rule->type != DT_RULE_ENUM &&
                         field->rule->type != DT_RULE_NAMES;
        if (auto_word) {
            e = NULL;
        } else if (!dt_value_parse(field->rule, e->value, c->arena, (char *)out + field->offset)) {
            struct dt_text t;
            dt_text_init(&t);
            dt_text_printf(&t, "%s: %s: is ", e->value_where, path);
            dt_value_show(e->value, &t);
            bool later = dt_value_is_later(field->rule, e->value);
            dt_text_puts(&t, later ? ", which is not there yet" : "");
            if (field->rule->list != NULL) {
                const char *nearest = later ? NULL : dt_value_nearest(field->rule, e->value, c->arena);
                dt_text_printf(&t, "; %s%s%ssee %s", nearest != NULL ? "did you mean " : "",
                               nearest != NULL ? nearest : "", nearest != NULL ? "? All of them: " : "",
                               field->rule->list);
            } else {
                dt_text_puts(&t, "; give ");
                dt_value_expected(field->rule, &t);
            }
            add_problem(c, e, t.data);
            good = false;
        } else {
            return true;
        }
    } else if (field->fallback == NULL) {
        dt_config_problem(c, path, "missing; add it (%s)", field->help);
        good = false;
    }
    if (field->fallback != NULL) {
        cJSON *value = cJSON_Parse(field->fallback);
        bool parsed = value != NULL && dt_value_parse(field->rule, value, c->arena, (char *)out + field->offset);
        cJSON_Delete(value);
        if (!parsed) { /* a mistake in the table */
            dt_config_problem(c, path, "the default %s does not fit its own rule", field->fallback);
            good = false;
        }
    }
    return good;
}

int dt_config_read(struct dt_config *c, const char *section, const struct dt_field *fields, void *out)
{
    int bad = 0;
    if (c->section_count < SECTIONS_MAX) {
        c->sections[c->section_count].name = section;
        c->sections[c->section_count++].fields = fields;
    }
    struct entry *e = *section != 0 ? find(c, section) : NULL;
    if (e != NULL) {
        bool again = e->read; /* by another table: what is wrong with it was said */
        e->read = true;
        if (!again && !e->section && !cJSON_IsNull(e->value)) {
            struct dt_text t;
            dt_text_init(&t);
            dt_text_printf(&t, "%s: %s: is ", e->value_where, section);
            dt_value_show(e->value, &t);
            dt_text_puts(&t, "; give an object, { \"key\": value, ... }");
            add_problem(c, e, t.data);
            bad++;
        }
    }
    for (const struct dt_field *f = fields; f->key != NULL; f++) {
        bad += read_field(c, section, f, out) ? 0 : 1;
    }
    return bad;
}

static const struct dt_config_hint *hint_for(const struct dt_config *c, const char *path)
{
    for (size_t t = 0; t < c->hint_count; t++) {
        for (const struct dt_config_hint *h = c->hints[t]; h->path != NULL; h++) {
            if (within(path, h->path)) {
                return h;
            }
        }
    }
    return NULL;
}

static bool switched_off(const cJSON *v)
{
    return cJSON_IsNull(v) || cJSON_IsFalse(v) ||
           (cJSON_IsObject(v) && cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(v, "enabled")));
}

/* The last part of a path. */
static const char *leaf(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot != NULL ? dot + 1 : path;
}

static void describe_unknown(struct dt_config *c, const struct entry *e, struct dt_text *t)
{
    const char *names[256];
    size_t count = 0, section_bytes = (size_t)(leaf(e->path) - e->path);
    for (size_t i = 0; i < c->section_count; i++) { /* keys of the same section; at the top also
                                                     * the sections */
        const char *name = c->sections[i].name;
        bool same = section_bytes == 0
                        ? *name == 0
                        : strlen(name) == section_bytes - 1 && strncmp(name, e->path, section_bytes - 1) == 0;
        for (const struct dt_field *f = c->sections[i].fields; same && f->key != NULL && count < 256; f++) {
            names[count++] = f->key;
        }
        if (section_bytes == 0 && *name != 0 && strchr(name, '.') == NULL && count < 256) {
            names[count++] = name;
        }
    }
    dt_text_puts(t, "unknown key");
    const char *nearest = dt_text_nearest(leaf(e->path), names, count);
    if (nearest != NULL) {
        dt_text_printf(t, "; did you mean %s?", nearest);
        return;
    }
    for (size_t i = 0; i < c->section_count; i++) { /* right name, wrong place */
        for (const struct dt_field *f = c->sections[i].fields; f->key != NULL; f++) {
            if (strcmp(f->key, leaf(e->path)) == 0) {
                dt_text_printf(t, "; did you mean %s%s%s?", c->sections[i].name, *c->sections[i].name != 0 ? "." : "",
                               f->key);
                return;
            }
        }
    }
    dt_text_puts(t, "; remove it");
}

/* Entries that nobody read: hinted, unknown, or below something already reported. */
static void find_unknown(struct dt_config *c)
{
    const char *reported = NULL;
    for (size_t i = 0; i < c->entry_count && c->problem_count < PROBLEMS_SHOWN; i++) {
        const struct entry *e = &c->entries[i];
        if (e->read || (reported != NULL && within(e->path, reported))) {
            continue;
        }
        const struct dt_config_hint *hint = hint_for(c, e->path);
        bool inner = false; /* a section that only leads to sections that were read */
        for (size_t s = 0; hint == NULL && e->section && s < c->section_count; s++) {
            inner = inner || (within(c->sections[s].name, e->path) && *c->sections[s].name != 0);
        }
        if (inner) {
            continue;
        }
        reported = e->path;
        if (hint != NULL && switched_off(e->value)) {
            continue;
        }
        struct dt_text t;
        dt_text_init(&t);
        dt_text_printf(&t, "%s: %s: ", e->where, e->path);
        if (hint != NULL) {
            dt_text_puts(&t, hint->text);
        } else {
            describe_unknown(c, e, &t);
        }
        add_problem(c, e, t.data);
    }
}

static int by_place(const void *a, const void *b)
{
    const struct problem *x = a, *y = b;
    if (x->line != y->line) {
        return x->line < y->line ? -1 : 1;
    }
    if (x->column != y->column) {
        return x->column < y->column ? -1 : 1;
    }
    return x->order < y->order ? -1 : x->order > y->order;
}

int dt_config_close(struct dt_config *c, struct dt_text *problems, struct dt_error *err)
{
    find_unknown(c);
    size_t count = c->problem_count;
    if (count > 0) {
        qsort(c->problems, count, sizeof *c->problems, by_place);
    }
    for (size_t i = 0; i < count && problems != NULL; i++) {
        /* keys of the file are in it */
        dt_text_add_visible(problems, c->problems[i].text, strlen(c->problems[i].text), false);
        dt_text_puts(problems, "\n");
    }
    if (count == 1) {
        (void)dt_fail(err, DT_INVALID, "%s", c->problems[0].text);
    } else if (count > 1) {
        (void)dt_fail(err, DT_INVALID, "%s: %zu problems", c->path, count);
    }
    destroy(c);
    return count > 0 ? -1 : 0;
}
