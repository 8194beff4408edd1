/* Configuration by field tables. The cJSON tree and the places found by scan.c are flattened
 * into one list of entries, path by path; --set edits that list; reading marks entries, and what
 * stays unmarked is unknown (config_unknown.c). Single values are the matter of config_value.c and config_format.c. */
#include "base/config.h"

#include "base/config_own.h"
#include "base/config_value.h"
#include "base/file.h"
#include "base/scan.h"
#include "base/yaml.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Where the entries of one tree come from. */
struct source {
    const char *file;           /* its path; null for --set */
    const struct dt_scan *scan; /* its places */
    size_t next;                /* of the places */
    size_t unnamed;             /* bytes at the beginning of a path that its name leaves out */
    const char *where;          /* of all entries of a --set */
    bool loose;                 /* YAML */
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
bool config_within(const char *path, const char *above)
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
    e.given = e.given != NULL ? e.given : e.value;
    c->entries[c->entry_count++] = e;
}

const char *config_join(const struct dt_config *c, const char *section, const char *key)
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

/* Adds an object's members, and theirs. Places are counted in the order of the scan. */
static void flatten(struct dt_config *c, const cJSON *object, const char *path, struct source *from)
{
    for (const cJSON *v = object->child; v != NULL; v = v->next) {
        struct entry e = {.path = config_join(c, path, v->string),
                          .value = v,
                          .section = cJSON_IsObject(v),
                          .where = from->where,
                          .value_where = from->where,
                          .file_path = from->file,
                          .loose = from->loose,
                          .file = UINT32_MAX,
                          .line = UINT32_MAX};
        e.name = e.path + from->unnamed;
        if (from->file != NULL) {
            const struct dt_scan_place *p = &from->scan->places[from->next];
            e.where = dt_arena_printf(c->arena, "%s:%u:%u", from->file, p->key_line, p->key_column);
            e.value_where = dt_arena_printf(c->arena, "%s:%u:%u", from->file, p->line, p->column);
            e.file = c->file_count;
            e.line = p->key_line;
            e.column = p->key_column;
            from->next += e.section ? 1 : count_values(v);
        }
        add_entry(c, e);
        if (e.section) {
            flatten(c, v, e.path, from);
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
    free(c->known);
    free(c);
}

/* Adds the members of a text under `section` ("": at the top). */
static int add_text(struct dt_config *c, const char *file, const char *text, size_t size, const char *section,
                    struct dt_error *err)
{
    struct dt_scan scan = {0};
    cJSON *tree = config_parse(file, text, size, &scan, err);
    int result = tree != NULL ? 0 : -1;
    if (tree != NULL && !cJSON_IsObject(tree)) {
        result = dt_fail(err, DT_INVALID, "%s:%u:%u: expected an object, %s", file, scan.places[0].line,
                         scan.places[0].column, dt_yaml_is_name(file) ? "key: value" : "{ \"key\": value, ... }");
        cJSON_Delete(tree);
    } else if (tree != NULL) {
        keep_tree(c, tree);
        flatten(c, tree, section,
                &(struct source){.file = dt_arena_strdup(c->arena, file),
                                 .scan = &scan,
                                 .next = 1,
                                 .loose = dt_yaml_is_name(file),
                                 .unnamed = *section != 0 ? strlen(section) + 1 : 0});
        c->file_count++;
    }
    dt_scan_clear(&scan);
    return result;
}

int dt_config_open_text(struct dt_config **out, const char *path, const char *text, size_t size, struct dt_arena *arena,
                        struct dt_error *err)
{
    struct dt_config *c = dt_alloc(sizeof *c);
    c->path = dt_arena_strdup(arena, path);
    c->arena = arena;
    if (add_text(c, path, text, size, "", err) != 0) {
        destroy(c);
        return -1;
    }
    *out = c;
    return 0;
}

static int open_file(struct dt_config **out, const char *path, bool relaxed, struct dt_arena *arena,
                     struct dt_error *err)
{
    struct dt_text text;
    dt_text_init(&text);
    int result = config_read_file(path, relaxed, &text, err);
    if (result == 0) {
        result = dt_config_open_text(out, path, dt_text_str(&text), text.size, arena, err);
    }
    dt_text_clear(&text);
    return result;
}

int dt_config_open(struct dt_config **out, const char *path, struct dt_arena *arena, struct dt_error *err)
{
    return open_file(out, path, false, arena, err);
}

int dt_config_open_relaxed(struct dt_config **out, const char *path, struct dt_arena *arena, struct dt_error *err)
{
    return open_file(out, path, true, arena, err);
}

static int include(struct dt_config *c, const char *section, const char *file, struct dt_error *err)
{
    struct dt_text text;
    dt_text_init(&text);
    int result = config_read_file(file, true, &text, err);
    if (result == 0) {
        result = add_text(c, file, dt_text_str(&text), text.size, section, err);
    }
    dt_text_clear(&text);
    return result;
}

int dt_config_include(struct dt_config *c, const char *section, struct dt_error *err)
{
    struct entry *e = find(c, section);
    if (e == NULL || e->section || !cJSON_IsString(e->value)) {
        return 0;
    }
    const char *file = e->value->valuestring, *slash = e->file_path != NULL ? strrchr(e->file_path, '/') : NULL;
    if (slash != NULL && *file != '/' && !dt_file_exists(file)) {
        const char *beside = dt_arena_printf(c->arena, "%.*s/%s", (int)(slash - e->file_path), e->file_path, file);
        file = dt_file_exists(beside) ? beside : file;
    }
    e->section = true; /* whose members come from the file */
    return include(c, section, file, err);
}

static void remove_entries(struct dt_config *c, const char *path)
{
    size_t kept = 0;
    for (size_t i = 0; i < c->entry_count; i++) {
        if (!config_within(c->entries[i].path, path)) {
            c->entries[kept++] = c->entries[i];
        }
    }
    c->entry_count = kept;
}

static void add_set(struct dt_config *c, const char *path, const cJSON *value, const char *where, bool section)
{
    add_entry(c, (struct entry){.path = path,
                                .name = path,
                                .value = value,
                                .where = where,
                                .value_where = where,
                                .file = UINT32_MAX,
                                .line = UINT32_MAX,
                                .section = section});
}

int dt_config_include_file(struct dt_config *c, const char *section, const char *path, struct dt_error *err)
{
    if (find(c, section) == NULL) {
        cJSON *value = cJSON_CreateString(path);
        keep_tree(c, value);
        add_set(c, dt_arena_strdup(c->arena, section), value, dt_arena_strdup(c->arena, path), true);
    }
    return include(c, section, path, err);
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
    dt_scan_numbers(tree, text, strlen(text));
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
            add_set(c, dt_arena_strdup(c->arena, path), tree, where, true);
        }
        *dot = '.';
    }
    bool section = cJSON_IsObject(tree);
    add_set(c, path, tree, where, section);
    if (section) {
        flatten(c, tree, path, &(struct source){.where = where});
    }
    return 0;
}

void dt_config_hints(struct dt_config *c, const struct dt_config_hint *hints)
{
    if (c->hint_count < HINT_TABLES_MAX) {
        c->hints[c->hint_count++] = hints;
    }
}

void config_add_problem(struct dt_config *c, const struct entry *e, char *text)
{
    for (size_t i = 0; i < c->problem_count; i++) {
        if (strcmp(c->problems[i].text, text) == 0) { /* of two keys that one other gave */
            free(text);
            return;
        }
    }
    c->problems = dt_realloc(c->problems, (c->problem_count + 1) * sizeof *c->problems);
    c->problems[c->problem_count] = (struct problem){.file = e != NULL ? e->file : UINT32_MAX,
                                                     .line = e != NULL ? e->line : UINT32_MAX,
                                                     .column = e != NULL ? e->column : UINT32_MAX,
                                                     .order = c->problem_count,
                                                     .text = text};
    c->problem_count++;
}

void dt_config_problem(struct dt_config *c, const char *path, const char *fmt, ...)
{
    struct dt_text t;
    dt_text_init(&t);
    struct entry *e = find(c, path);
    if (e != NULL) {
        e->read = true; /* the key is known, so it is not refused a second time */
    }
    dt_text_printf(&t, "%s: %s: ", e != NULL ? e->where : c->path, e != NULL ? e->name : path);
    va_list args;
    va_start(args, fmt);
    dt_text_vprintf(&t, fmt, args);
    va_end(args);
    config_add_problem(c, e, t.data);
}

const char *dt_config_where(const struct dt_config *c, const char *path)
{
    const struct entry *e = find(c, path);
    return e != NULL && !cJSON_IsNull(e->value) ? e->where : NULL;
}

bool dt_config_taken(const struct dt_config *c, const char *path)
{
    const struct entry *e = find(c, path);
    return e != NULL && !e->section && !e->bad;
}

const char *dt_config_unread(const struct dt_config *c, const char *section, size_t *at, const cJSON **value)
{
    while (*at < c->entry_count) {
        const struct entry *e = &c->entries[(*at)++];
        if (!e->read && config_within(e->path, section) && strcmp(e->path, section) != 0) {
            *value = e->value;
            return e->path;
        }
    }
    return NULL;
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

/* Appends ", which is not supported: WHY" for a choice of which the rule knows why it cannot be. */
static bool explain(const struct dt_rule *rule, const cJSON *value, struct dt_text *out)
{
    struct dt_text why;
    dt_text_init(&why);
    bool known = rule->explain != NULL && cJSON_IsString(value) && rule->explain(value->valuestring, &why);
    if (known) {
        dt_text_printf(out, ", which is not supported: %s", dt_text_str(&why));
    }
    dt_text_clear(&why);
    return known;
}

bool dt_config_number(const cJSON *value, double *out)
{
    char *end = NULL;
    if (cJSON_IsNumber(value)) {
        *out = value->valuedouble;
        return true;
    }
    if (!cJSON_IsString(value) || value->valuestring[strspn(value->valuestring, "+-.0123456789eE")] != 0) {
        return false;
    }
    *out = strtod(value->valuestring, &end);
    return end != value->valuestring && *end == 0 && *out - *out == 0;
}

/* The value of an entry. Of names with values it is the object of those that are there now: --set may have changed
 * one, or taken it out. All of them are read. */
static const cJSON *value_of(struct dt_config *c, const struct dt_rule *rule, const struct entry *e)
{
    if (rule->type != DT_RULE_SETS || !e->section) {
        return e->value;
    }
    cJSON *object = cJSON_CreateObject();
    size_t above = strlen(e->path);
    keep_tree(c, object);
    for (size_t i = 0; i < c->entry_count; i++) {
        struct entry *x = &c->entries[i];
        if (x == e || !config_within(x->path, e->path)) {
            continue;
        }
        x->read = true;
        const char *name = x->path + above + 1;
        bool quoted = *name == '"' && strstr(name, "\".") == NULL; /* what may not be a name; it is said */
        if ((strchr(name, '.') == NULL || quoted) && !cJSON_IsNull(x->value)) {
            (void)cJSON_AddItemReferenceToObject(object, name, (cJSON *)(uintptr_t)x->value);
        }
    }
    return object;
}

static bool fits(struct dt_config *c, const struct dt_rule *rule, const struct entry *e, void *out)
{
    double number = 0;
    if (e->loose && cJSON_IsString(e->value) && (rule->type == DT_RULE_INTEGER || rule->type == DT_RULE_NUMBER) &&
        dt_config_number(e->value, &number)) {
        cJSON value = {.type = cJSON_Number, .valuedouble = number};
        return dt_value_parse(rule, &value, c->arena, out);
    }
    return dt_value_parse(rule, value_of(c, rule, e), c->arena, out);
}

/* One field: from its entry when it is given and good, otherwise from its fallback. True when
 * there was no problem. */
static bool read_field(struct dt_config *c, const char *section, const struct dt_field *field, void *out)
{
    const char *path = config_join(c, section, field->key);
    struct entry *e = find(c, path);
    bool good = true;
    if (e != NULL) {
        e->read = true;
        bool auto_word = field->fallback != NULL && cJSON_IsString(e->value) &&
                         strcmp(e->value->valuestring, "auto") == 0 && field->rule->type != DT_RULE_STRING &&
                         field->rule->type != DT_RULE_CHOICE && field->rule->type != DT_RULE_ENUM &&
                         field->rule->type != DT_RULE_NAMES && field->rule->type != DT_RULE_STRINGS &&
                         field->rule->type != DT_RULE_SOURCES && field->rule->type != DT_RULE_SETS;
        if (auto_word) {
            e = NULL;
        } else if (!fits(c, field->rule, e, (char *)out + field->offset)) {
            e->bad = true;
            struct dt_text t;
            dt_text_init(&t);
            const char *fault = dt_value_fault(field->rule, value_of(c, field->rule, e), c->arena);
            dt_text_printf(&t, "%s: %s: %s", e->value_where, e->name, fault != NULL ? fault : "is ");
            if (fault == NULL) {
                dt_value_show(e->value, &t);
            }
            bool known = dt_value_is_later(field->rule, e->value);
            dt_text_puts(&t, known ? ", which is not there yet" : "");
            known = known || explain(field->rule, e->value, &t);
            if (field->rule->list != NULL) {
                const char *word = known || field->rule->meant == NULL ? NULL : cJSON_GetStringValue(e->value),
                           *nearest = word != NULL ? field->rule->meant(word) : NULL;
                nearest = known || nearest != NULL ? nearest : dt_value_nearest(field->rule, e->value, c->arena);
                dt_text_printf(&t, "; %s%s%ssee %s", nearest != NULL ? "did you mean " : "",
                               nearest != NULL ? nearest : "", nearest != NULL ? "? All of them: " : "",
                               field->rule->list);
            } else {
                dt_text_puts(&t, "; give ");
                dt_value_expected(field->rule, &t);
            }
            config_add_problem(c, e, t.data);
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

/* An object of keys, if it is given: read. Returns how many problems were noted. */
static int read_section(struct dt_config *c, const char *section)
{
    struct entry *e = *section != 0 ? find(c, section) : NULL;
    if (e == NULL) {
        return 0;
    }
    bool again = e->read; /* by another table: what is wrong with it was said */
    e->read = true;
    if (again || e->section || cJSON_IsNull(e->value)) {
        return 0;
    }
    struct dt_text t;
    dt_text_init(&t);
    dt_text_printf(&t, "%s: %s: is ", e->value_where, e->name);
    dt_value_show(e->value, &t);
    dt_text_puts(&t, "; give an object, { \"key\": value, ... }");
    config_add_problem(c, e, t.data);
    return 1;
}

int dt_config_read(struct dt_config *c, const char *section, const struct dt_field *fields, void *out)
{
    if (c->section_count < SECTIONS_MAX) {
        c->sections[c->section_count].name = section;
        c->sections[c->section_count++].fields = fields;
    }
    int bad = read_section(c, section);
    for (const struct dt_field *f = fields; f->key != NULL; f++) {
        bad += read_field(c, section, f, out) ? 0 : 1;
    }
    return bad;
}

/* ---- keys of others ---- */

const cJSON *dt_config_value(const struct dt_config *c, const char *path)
{
    const struct entry *e = find(c, path);
    return e != NULL && !cJSON_IsNull(e->value) ? e->value : NULL;
}

const cJSON *dt_config_given(const struct dt_config *c, const char *path)
{
    const struct entry *e = find(c, path);
    return e != NULL ? e->given : NULL;
}

const char *dt_config_name(const struct dt_config *c, const char *path)
{
    const struct entry *e = find(c, path);
    return e != NULL ? e->name : path;
}

void dt_config_known(struct dt_config *c, const char *path)
{
    c->known = dt_realloc(c->known, (c->known_count + 1) * sizeof *c->known);
    c->known[c->known_count++] = dt_arena_strdup(c->arena, path);
    char *above = dt_arena_strdup(c->arena, path);
    for (char *dot = strchr(above, '.'); dot != NULL; dot = strchr(dot + 1, '.')) {
        *dot = 0;
        (void)read_section(c, above);
        *dot = '.';
    }
}

void dt_config_pass(struct dt_config *c, const char *path)
{
    for (size_t i = 0; i < c->entry_count; i++) {
        c->entries[i].read |= config_within(c->entries[i].path, path);
    }
}

void dt_config_move(struct dt_config *c, const char *from, const char *to, cJSON *value)
{
    find(c, from)->read = true;
    struct entry e = *find(c, from);
    if (value != NULL) {
        keep_tree(c, value);
        e.value = value;
    }
    remove_entries(c, to);
    e.path = dt_arena_strdup(c->arena, to);
    e.read = e.section = false;
    add_entry(c, e);
}

const char *dt_config_lift(struct dt_config *c, const char *from, const char *to)
{
    size_t size = strlen(from), count = c->entry_count;
    for (int moves = 0; moves < 2; moves++) { /* once to look, once to move */
        for (size_t i = 0; i < count; i++) {
            const char *path = c->entries[i].path;
            if (!config_within(path, from) || path[size] == 0) {
                continue;
            }
            char *above = dt_arena_printf(c->arena, "%s%s", to, path + size);
            if (moves > 0) {
                c->entries[i].path = above;
            } else if (find(c, above) != NULL) {
                return path;
            }
        }
    }
    remove_entries(c, from);
    return NULL;
}

void dt_config_unfold(struct dt_config *c, const char *from, const char *path, cJSON *object)
{
    const struct entry e = *find(c, from);
    keep_tree(c, object);
    size_t first = c->entry_count, unnamed = strlen(e.path) - strlen(e.name);
    add_entry(c, e);
    struct entry *section = &c->entries[first];
    section->path = dt_arena_strdup(c->arena, path);
    section->value = section->given = object;
    section->section = true;
    flatten(c, object, section->path, &(struct source){.where = e.where, .loose = e.loose, .unnamed = unnamed});
    for (size_t i = first; i < c->entry_count; i++) {
        struct entry *x = &c->entries[i];
        x->name = x->path + unnamed;
        x->file = e.file;
        x->line = e.line;
        x->column = e.column;
        x->file_path = e.file_path;
        x->read = false;
    }
}

static int by_place(const void *a, const void *b)
{
    const struct problem *x = a, *y = b;
    if (x->file != y->file) {
        return x->file < y->file ? -1 : 1;
    }
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
    config_find_unknown(c);
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
