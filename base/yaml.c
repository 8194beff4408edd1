/* libyaml's events become a tree of nodes, in which an alias is a second way to its node; the tree
 * becomes cJSON in one walk, which counts. Plain words are told apart by PyYAML's rules, which are
 * those of YAML 1.1 with small differences. */
#include "base/yaml.h"

#include "base/arena.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

enum { ANCHORS_MAX = 1024 };

struct node {
    enum { NODE_SCALAR, NODE_LIST, NODE_OBJECT, NODE_ALIAS } kind;
    uint32_t line, column, key_line, key_column;
    const char *key;  /* in an object */
    bool merges;      /* the key is a plain << */
    const char *text; /* of a scalar */
    bool plain;
    const struct node *target; /* of an alias */
    struct node *child, *last, *next;
};

struct reader {
    yaml_parser_t parser;
    struct dt_arena arena; /* owns the nodes */
    const char *where;
    struct {
        const char *name;
        const struct node *node;
    } anchors[ANCHORS_MAX];
    size_t anchor_count, nodes, most, count;
    struct dt_scan *out;
    struct dt_error *err;
};

static int fail_at(struct reader *r, uint32_t line, uint32_t column, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static int fail_at(struct reader *r, uint32_t line, uint32_t column, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    (void)dt_fail_v(r->err, DT_INVALID, fmt, args);
    va_end(args);
    return dt_wrap(r->err, "%s:%u:%u", r->where, line, column);
}

static int fail_mark(struct reader *r, yaml_mark_t at, const char *cause)
{
    return fail_at(r, (uint32_t)at.line + 1, (uint32_t)at.column + 1, "%s", cause);
}

/* libyaml names what it was reading, and what it found there. */
static int fail_parser(struct reader *r)
{
    const yaml_parser_t *p = &r->parser;
    if (p->error == YAML_READER_ERROR) {
        return dt_fail(r->err, DT_INVALID, "%s: byte %zu: %s", r->where, p->problem_offset,
                       p->problem != NULL ? p->problem : "not UTF-8");
    }
    return fail_at(r, (uint32_t)p->problem_mark.line + 1, (uint32_t)p->problem_mark.column + 1, "not YAML: %s%s%s",
                   p->context != NULL ? p->context : "", p->context != NULL ? ", " : "",
                   p->problem != NULL ? p->problem : "unreadable");
}

static int next_event(struct reader *r, yaml_event_t *event)
{
    return yaml_parser_parse(&r->parser, event) ? 0 : fail_parser(r);
}

/* ---- events to nodes ---- */

static struct node *add_node(struct reader *r, yaml_mark_t at)
{
    struct node *n = dt_arena_alloc(&r->arena, sizeof *n);
    n->line = n->key_line = (uint32_t)at.line + 1;
    n->column = n->key_column = (uint32_t)at.column + 1;
    r->nodes++;
    return n;
}

/* A copy in the arena, or null with an error: cJSON cannot hold a NUL. */
static const char *copy_text(struct reader *r, const yaml_event_t *e)
{
    const char *text = (const char *)e->data.scalar.value;
    if (memchr(text, 0, e->data.scalar.length) != NULL) {
        (void)fail_mark(r, e->start_mark, "NUL in a string");
        return NULL;
    }
    return dt_arena_strdup(&r->arena, text);
}

static const struct node *find_anchor(const struct reader *r, const char *name)
{
    for (size_t i = r->anchor_count; i-- > 0;) { /* the last one of a name counts */
        if (strcmp(r->anchors[i].name, name) == 0) {
            return r->anchors[i].node;
        }
    }
    return NULL;
}

static int add_anchor(struct reader *r, const yaml_char_t *name, const struct node *n)
{
    if (name == NULL) {
        return 0;
    }
    if (r->anchor_count == ANCHORS_MAX) {
        return fail_at(r, n->line, n->column, "more than %d anchors", ANCHORS_MAX);
    }
    r->anchors[r->anchor_count].name = dt_arena_strdup(&r->arena, (const char *)name);
    r->anchors[r->anchor_count++].node = n;
    return 0;
}

/* Tags ask for types of a program, or say what a plain word is; both are for people to write out. */
static int check_tag(struct reader *r, const yaml_event_t *e, const yaml_char_t *tag)
{
    if (tag == NULL) {
        return 0;
    }
    return fail_at(r, (uint32_t)e->start_mark.line + 1, (uint32_t)e->start_mark.column + 1,
                   "the tag %.60s is not followed; write the value itself", (const char *)tag);
}

static void append(struct node *parent, struct node *child)
{
    if (parent->last != NULL) {
        parent->last->next = child;
    } else {
        parent->child = child;
    }
    parent->last = child;
}

static int check_twice(struct reader *r, const struct node *object, const char *key, uint32_t line, uint32_t column)
{
    for (const struct node *n = object->child; n != NULL; n = n->next) {
        if (!n->merges && strcmp(n->key, key) == 0) {
            return fail_at(r, line, column, "%.100s: the key stands twice, here and in line %u; remove one", key,
                           n->key_line);
        }
    }
    return 0;
}

static struct node *read_node(struct reader *r, yaml_event_t *e, int depth);

/* The next member: its key into *key, null at the end of the object. */
static int read_key(struct reader *r, struct node *object, struct node *key)
{
    yaml_event_t e;
    *key = (struct node){.kind = NODE_SCALAR};
    if (next_event(r, &e) != 0) {
        return -1;
    }
    int rc = 0;
    key->line = (uint32_t)e.start_mark.line + 1;
    key->column = (uint32_t)e.start_mark.column + 1;
    if (e.type == YAML_SCALAR_EVENT) {
        rc = check_tag(r, &e, e.data.scalar.tag);
        rc = rc == 0 && (key->key = copy_text(r, &e)) == NULL ? -1 : rc;
        key->merges = rc == 0 && e.data.scalar.plain_implicit && strcmp(key->key, "<<") == 0;
        rc = rc == 0 && !key->merges ? check_twice(r, object, key->key, key->line, key->column) : rc;
    } else if (e.type != YAML_MAPPING_END_EVENT) {
        rc = fail_mark(r, e.start_mark, "a key must be a word");
    }
    yaml_event_delete(&e);
    return rc;
}

static int read_members(struct reader *r, struct node *parent, int depth)
{
    for (size_t members = 0;; members++) {
        struct node key = {.kind = NODE_SCALAR};
        yaml_event_t e;
        if (parent->kind == NODE_OBJECT) {
            if (members > 4096) { /* looked through for each key */
                return fail_at(r, parent->line, parent->column, "an object of more than 4096 keys");
            }
            if (read_key(r, parent, &key) != 0) {
                return -1;
            }
            if (key.key == NULL) {
                return 0;
            }
        }
        if (next_event(r, &e) != 0) {
            return -1;
        }
        if (e.type == YAML_SEQUENCE_END_EVENT) {
            yaml_event_delete(&e);
            return 0;
        }
        struct node *child = read_node(r, &e, depth + 1);
        if (child == NULL) {
            return -1;
        }
        if (key.key != NULL) {
            child->key = key.key;
            child->merges = key.merges;
            child->key_line = key.line;
            child->key_column = key.column;
        }
        append(parent, child);
    }
}

/* The node that an event begins. Deletes the event. */
static struct node *read_node(struct reader *r, yaml_event_t *e, int depth)
{
    struct node *n = add_node(r, e->start_mark);
    const yaml_char_t *anchor = NULL;
    int rc = r->nodes <= r->most ? 0 : fail_mark(r, e->start_mark, "too many values for a configuration");
    if (rc == 0 && depth > DT_SCAN_DEPTH) {
        rc = fail_at(r, n->line, n->column, "nested deeper than %d levels", DT_SCAN_DEPTH);
    } else if (rc == 0 && e->type == YAML_ALIAS_EVENT) {
        n->kind = NODE_ALIAS;
        n->target = find_anchor(r, (const char *)e->data.alias.anchor);
        if (n->target == NULL) {
            rc = fail_at(r, n->line, n->column, "*%.60s: no anchor of that name ends before it",
                         (const char *)e->data.alias.anchor);
        }
    } else if (rc == 0 && e->type == YAML_SCALAR_EVENT) {
        n->kind = NODE_SCALAR;
        rc = check_tag(r, e, e->data.scalar.tag);
        rc = rc == 0 && (n->text = copy_text(r, e)) == NULL ? -1 : rc;
        n->plain = e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
        anchor = e->data.scalar.anchor;
    } else if (rc == 0 && e->type == YAML_SEQUENCE_START_EVENT) {
        n->kind = NODE_LIST;
        rc = check_tag(r, e, e->data.sequence_start.tag);
        rc = rc == 0 ? read_members(r, n, depth) : rc;
        anchor = e->data.sequence_start.anchor;
    } else if (rc == 0) {
        n->kind = NODE_OBJECT;
        rc = check_tag(r, e, e->data.mapping_start.tag);
        rc = rc == 0 ? read_members(r, n, depth) : rc;
        anchor = e->data.mapping_start.anchor;
    }
    rc = rc == 0 ? add_anchor(r, anchor, n) : rc;
    yaml_event_delete(e);
    return rc == 0 ? n : NULL;
}

/* ---- words ---- */

static bool one_of(const char *text, const char *const *words)
{
    while (*words != NULL && strcmp(*words, text) != 0) {
        words++;
    }
    return *words != NULL;
}

static size_t digits(const char *p)
{
    return strspn(p, "0123456789_");
}

/* A number without its underscores, for strtod; null when it is longer than any number of use. */
static const char *without_underscores(const char *text, char out[128])
{
    size_t n = 0;
    for (; *text != 0; text++) {
        if (*text != '_') {
            if (n + 1 == 128) {
                return NULL;
            }
            out[n++] = *text;
        }
    }
    out[n] = 0;
    return out;
}

/* Minutes and seconds: 1:30 is 90 to YAML 1.1. False for other words. */
static bool sexagesimal(const char *p, double sign, double *out)
{
    double value = 0;
    const char *colon = strchr(p, ':');
    if (colon == NULL || *p < '0' || *p > '9') {
        return false;
    }
    for (bool first = true;; first = false) {
        size_t n = first ? digits(p) : strspn(p, "0123456789");
        char part[128], *end = NULL;
        if (n == 0 || n >= sizeof part || (!first && (n > 2 || (n == 2 && *p > '5')))) {
            return false;
        }
        memcpy(part, p, n);
        part[n] = 0;
        char plain[128];
        value = value * 60 + strtod(without_underscores(part, plain), &end);
        p += n;
        if (*p == '.' && !first) {
            char rest[128];
            if (p[1 + digits(p + 1)] != 0 || without_underscores(p, rest) == NULL) {
                return false;
            }
            value += rest[1] != 0 ? strtod(rest, NULL) : 0;
            p += strlen(p);
        }
        if (*p != ':') {
            *out = sign * value;
            return *p == 0 && !first;
        }
        p++;
    }
}

/* PyYAML's integers and floats. */
static bool number_of(const char *text, double *out)
{
    const char *p = text + (*text == '-' || *text == '+');
    double sign = *text == '-' ? -1 : 1;
    char plain[128];
    if (without_underscores(p, plain) == NULL || *p == '_') {
        return false;
    }
    if (strcasecmp(p, ".inf") == 0 && strcmp(p, ".iNF") != 0) {
        *out = sign * INFINITY;
        return true;
    }
    if (strcasecmp(text, ".nan") == 0) {
        *out = NAN;
        return true;
    }
    if (p[0] == '0' && p[1] == 'b' && p[2] != 0 && p[2 + strspn(p + 2, "01_")] == 0 && plain[2] != 0) {
        *out = sign * (double)strtoull(plain + 2, NULL, 2);
        return true;
    }
    if (p[0] == '0' && p[1] == 'x' && p[2] != 0 && p[2 + strspn(p + 2, "0123456789abcdefABCDEF_")] == 0 &&
        plain[2] != 0) {
        *out = sign * strtod(plain, NULL);
        return true;
    }
    if (p[0] == '0' && p[1] != 0 && p[strspn(p, "01234567_")] == 0) {
        *out = sign * (double)strtoull(plain, NULL, 8);
        return true;
    }
    size_t whole = digits(p);
    if (whole > 0 && p[whole] == 0) {
        *out = sign * strtod(plain, NULL);
        return p[0] != '0' || p[1] == 0; /* 08 is a word */
    }
    if (p[whole] == '.' && (whole > 0 || (p[1] >= '0' && p[1] <= '9'))) {
        const char *rest = p + whole + 1;
        rest += digits(rest);
        if ((*rest == 'e' || *rest == 'E') && (rest[1] == '+' || rest[1] == '-') && rest[2] >= '0' && rest[2] <= '9') {
            rest += 2 + strspn(rest + 2, "0123456789");
        }
        if (*rest == 0) {
            *out = sign * strtod(plain, NULL);
            return true;
        }
    }
    return (p[0] != '0' || strchr(p, '.') != NULL) && sexagesimal(p, sign, out);
}

static cJSON *scalar(struct reader *r, const struct node *n)
{
    static const char *const nulls[] = {"", "~", "null", "Null", "NULL", NULL}, *const yes[] = {"yes",  "Yes",  "YES",
                                                                                                "true", "True", "TRUE",
                                                                                                "on",   "On",   "ON",
                                                                                                NULL},
                             *const no[] = {"no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF", NULL};
    double value = 0;
    if (!n->plain) {
        return cJSON_CreateString(n->text);
    }
    if (one_of(n->text, nulls)) {
        return cJSON_CreateNull();
    }
    if (one_of(n->text, yes) || one_of(n->text, no)) {
        return cJSON_CreateBool(one_of(n->text, yes));
    }
    if (!number_of(n->text, &value)) {
        return cJSON_CreateString(n->text);
    }
    if (!isfinite(value)) {
        (void)fail_at(r, n->line, n->column, "%.40s is not a finite number", n->text);
        return NULL;
    }
    if (value == floor(value) && fabs(value) >= 9007199254740992.0 && strchr(n->text, '.') == NULL &&
        strcmp(n->text, "9007199254740992") != 0) {
        (void)fail_at(r, n->line, n->column, "%.40s is beyond 2^53 and cannot be kept exactly; write it as a string",
                      n->text);
        return NULL;
    }
    cJSON *out = cJSON_CreateNumber(value);
    out->valuestring = dt_format("%s", n->text); /* freed by cJSON */
    return out;
}

/* ---- nodes to cJSON ---- */

static const struct node *behind(const struct node *n)
{
    while (n->kind == NODE_ALIAS) {
        n = n->target;
    }
    return n;
}

/* Values that a merge looks at and leaves count, too: a text that merges itself twice would be walked 2^n times. */
static int count_value(struct reader *r, const struct node *at)
{
    return ++r->count <= r->most
               ? 0
               : fail_at(r, at->line, at->column, "more than %zu values once aliases are followed", r->most);
}

static int note_value(struct reader *r, const struct node *at)
{
    if (count_value(r, at) != 0) {
        return -1;
    }
    struct dt_scan *s = r->out;
    if (s != NULL) {
        if (s->count == s->capacity) {
            s->capacity = s->capacity == 0 ? 64 : s->capacity * 2;
            s->places = dt_realloc(s->places, s->capacity * sizeof *s->places);
        }
        s->places[s->count++] = (struct dt_scan_place){at->line, at->column, at->key_line, at->key_column};
    }
    return 0;
}

static bool has_member(const struct node *object, const char *key)
{
    for (const struct node *n = object->child; n != NULL; n = n->next) {
        if (!n->merges && strcmp(n->key, key) == 0) {
            return true;
        }
    }
    return false;
}

static cJSON *build(struct reader *r, const struct node *n, int depth);
static int merge(struct reader *r, cJSON *object, const struct node *own, const struct node *from, int depth);

/* Merges the value of a <<: an object, or a list of objects, of which the first counts first. */
static int merge_each(struct reader *r, cJSON *object, const struct node *own, const struct node *from, int depth)
{
    if (from->kind != NODE_LIST) {
        return merge(r, object, own, from, depth);
    }
    for (const struct node *one = from->child; one != NULL; one = one->next) {
        if (count_value(r, one) != 0 || merge(r, object, own, behind(one), depth) != 0) {
            return -1;
        }
    }
    return 0;
}

/* Members of `from` that the object has neither by itself nor from what was merged before. */
static int merge(struct reader *r, cJSON *object, const struct node *own, const struct node *from, int depth)
{
    if (from->kind != NODE_OBJECT) {
        return fail_at(r, from->line, from->column, "<< takes an object, or a list of them");
    }
    if (depth > DT_SCAN_DEPTH) {
        return fail_at(r, from->line, from->column, "nested deeper than %d levels", DT_SCAN_DEPTH);
    }
    for (int pass = 0; pass < 2; pass++) { /* its own members come before those that it merges */
        for (const struct node *n = from->child; n != NULL; n = n->next) {
            if (n->merges != (pass == 1)) {
                continue;
            }
            if (count_value(r, n) != 0) {
                return -1;
            }
            if (n->merges) {
                if (merge_each(r, object, own, behind(n), depth + 1) != 0) {
                    return -1;
                }
            } else if (!has_member(own, n->key) && cJSON_GetObjectItemCaseSensitive(object, n->key) == NULL) {
                cJSON *value = build(r, n, depth + 1);
                if (value == NULL) {
                    return -1;
                }
                cJSON_AddItemToObject(object, n->key, value);
            }
        }
    }
    return 0;
}

static int build_members(struct reader *r, cJSON *out, const struct node *n, int depth)
{
    for (const struct node *child = n->child; child != NULL; child = child->next) {
        if (n->kind == NODE_OBJECT && child->merges) {
            continue;
        }
        cJSON *value = build(r, child, depth + 1);
        if (value == NULL) {
            return -1;
        }
        if (n->kind == NODE_OBJECT) {
            cJSON_AddItemToObject(out, child->key, value);
        } else {
            cJSON_AddItemToArray(out, value);
        }
    }
    for (const struct node *child = n->child; n->kind == NODE_OBJECT && child != NULL; child = child->next) {
        if (child->merges && merge_each(r, out, n, behind(child), depth + 1) != 0) {
            return -1;
        }
    }
    return 0;
}

static cJSON *build(struct reader *r, const struct node *n, int depth)
{
    const struct node *real = behind(n);
    if (note_value(r, n) != 0) {
        return NULL;
    }
    if (depth > DT_SCAN_DEPTH) {
        (void)fail_at(r, n->line, n->column, "nested deeper than %d levels", DT_SCAN_DEPTH);
        return NULL;
    }
    if (real->kind == NODE_SCALAR) {
        return scalar(r, real);
    }
    cJSON *out = real->kind == NODE_LIST ? cJSON_CreateArray() : cJSON_CreateObject();
    if (build_members(r, out, real, depth) != 0) {
        cJSON_Delete(out);
        return NULL;
    }
    return out;
}

/* ---- the document ---- */

/* Reads up to the end of the one document. */
static struct node *read_document(struct reader *r)
{
    struct node *root = NULL;
    for (bool ended = false; !ended;) {
        yaml_event_t e;
        if (next_event(r, &e) != 0) {
            return NULL;
        }
        ended = e.type == YAML_STREAM_END_EVENT;
        bool value = e.type == YAML_SCALAR_EVENT || e.type == YAML_ALIAS_EVENT || e.type == YAML_SEQUENCE_START_EVENT ||
                     e.type == YAML_MAPPING_START_EVENT;
        if (value) {
            root = read_node(r, &e, 1);
            if (root == NULL) {
                return NULL;
            }
            continue;
        }
        if (e.type == YAML_DOCUMENT_START_EVENT && root != NULL) {
            (void)fail_mark(r, e.start_mark, "a second document begins; a file has one");
            yaml_event_delete(&e);
            return NULL;
        }
        yaml_event_delete(&e);
    }
    if (root == NULL) {
        (void)dt_fail(r->err, DT_INVALID, "%s: empty; expected keys and values", r->where);
    }
    return root;
}

struct cJSON *dt_yaml_parse(const char *text, size_t size, const char *where, size_t most, struct dt_scan *out,
                            struct dt_error *err)
{
    if (size > DT_SCAN_BYTES) {
        (void)dt_fail(err, DT_INVALID, "%s: larger than the limit of %zu bytes", where, DT_SCAN_BYTES);
        return NULL;
    }
    const char *encoding; /* of another mark, which the parser refuses as no UTF-8 */
    size_t mark = dt_text_mark(text, size, &encoding);
    struct reader *r = dt_alloc(sizeof *r);
    cJSON *tree = NULL;
    *r = (struct reader){.where = where, .most = most, .out = out, .err = err};
    if (out != NULL) {
        out->count = 0;
    }
    dt_arena_init(&r->arena);
    if (!yaml_parser_initialize(&r->parser)) {
        (void)dt_fail(err, DT_NO_MEMORY, "%s: no memory to read it", where);
    } else {
        yaml_parser_set_encoding(&r->parser, YAML_UTF8_ENCODING);
        yaml_parser_set_input_string(&r->parser, (const unsigned char *)text + mark, size - mark);
        const struct node *root = read_document(r);
        tree = root != NULL ? build(r, root, 1) : NULL;
        yaml_parser_delete(&r->parser);
    }
    dt_arena_clear(&r->arena);
    free(r);
    return tree;
}

bool dt_yaml_is_name(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot != NULL && (strcasecmp(dot, ".yaml") == 0 || strcasecmp(dot, ".yml") == 0);
}
