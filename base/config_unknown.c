/* Keys of a configuration that nobody read, and what they may have meant. */
#include "base/config_own.h"

#include <string.h>

enum { NAMES_MAX = 512 };

static const struct dt_config_hint *hint_for(const struct dt_config *c, const char *path)
{
    for (size_t t = 0; t < c->hint_count; t++) {
        for (const struct dt_config_hint *h = c->hints[t]; h->path != NULL; h++) {
            if (config_within(path, h->path)) {
                return h;
            }
        }
    }
    return NULL;
}

bool dt_config_off(const cJSON *v)
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

/* Names of keys and sections that could stand where the entry stands. Returns how many. */
static size_t names_beside(const struct dt_config *c, const struct entry *e, const char *names[NAMES_MAX])
{
    size_t count = 0, section_bytes = (size_t)(leaf(e->path) - e->path);
    for (size_t i = 0; i < c->section_count; i++) { /* keys of the same section; at the top also
                                                     * the sections */
        const char *name = c->sections[i].name;
        bool same = section_bytes == 0
                        ? *name == 0
                        : strlen(name) == section_bytes - 1 && strncmp(name, e->path, section_bytes - 1) == 0;
        for (const struct dt_field *f = c->sections[i].fields; same && f->key != NULL && count < NAMES_MAX; f++) {
            names[count++] = f->key;
        }
        if (section_bytes == 0 && *name != 0 && strchr(name, '.') == NULL && count < NAMES_MAX) {
            names[count++] = name;
        }
    }
    for (size_t i = 0; i < c->known_count && count < NAMES_MAX; i++) {
        const char *rest = c->known[i] + section_bytes;
        if (strncmp(c->known[i], e->path, section_bytes) == 0) {
            names[count++] = dt_arena_printf(c->arena, "%.*s", (int)strcspn(rest, "."), rest);
        }
    }
    return count;
}

/* The path stands at the top, or in a section of a table. */
static bool is_own(const struct dt_config *c, const char *path)
{
    bool own = strchr(path, '.') == NULL;
    for (size_t i = 0; i < c->section_count; i++) {
        size_t size = strlen(c->sections[i].name);
        own |= c->sections[i].fields != NULL && strncmp(path, c->sections[i].name, size) == 0 &&
               leaf(path) == path + size + 1;
    }
    return own;
}

/* The path of a key with the entry's name in another section, or null. For an entry of one system's section, keys of
 * other systems are none. */
static const char *elsewhere(const struct dt_config *c, const struct entry *e)
{
    size_t top = is_own(c, e->path) ? 0 : strcspn(e->path, ".") + 1;
    for (size_t i = 0; i < c->section_count; i++) {
        for (const struct dt_field *f = c->sections[i].fields; f->key != NULL; f++) {
            if (strcmp(f->key, leaf(e->path)) == 0) {
                return config_join(c, c->sections[i].name, f->key);
            }
        }
    }
    for (size_t i = 0; i < c->known_count; i++) {
        bool same = strncmp(c->known[i], e->path, top) == 0 || is_own(c, c->known[i]);
        if (same && strcmp(leaf(c->known[i]), leaf(e->path)) == 0) {
            return c->known[i];
        }
    }
    return NULL;
}

static void describe_unknown(const struct dt_config *c, const struct entry *e, struct dt_text *t)
{
    const char *names[NAMES_MAX];
    const char *nearest = dt_text_nearest(leaf(e->path), names, names_beside(c, e, names));
    nearest = nearest != NULL ? nearest : elsewhere(c, e);
    if (nearest != NULL) {
        dt_text_printf(t, "unknown key; did you mean %s?", nearest);
    } else {
        dt_text_puts(t, "unknown key; remove it");
    }
}

void config_find_unknown(struct dt_config *c)
{
    const char *reported = NULL;
    for (size_t i = 0; i < c->entry_count && c->problem_count < PROBLEMS_SHOWN; i++) {
        const struct entry *e = &c->entries[i];
        if (e->read || (reported != NULL && config_within(e->path, reported))) {
            continue;
        }
        const struct dt_config_hint *hint = hint_for(c, e->path);
        bool inner = false; /* a section that only leads to sections that were read */
        for (size_t s = 0; hint == NULL && e->section && s < c->section_count; s++) {
            inner = inner || (config_within(c->sections[s].name, e->path) && *c->sections[s].name != 0);
        }
        if (inner) {
            continue;
        }
        reported = e->path;
        if (hint != NULL && dt_config_off(e->value)) {
            continue;
        }
        struct dt_text t;
        dt_text_init(&t);
        dt_text_printf(&t, "%s: %s: ", e->where, e->name);
        if (hint != NULL) {
            dt_text_puts(&t, hint->text);
        } else {
            describe_unknown(c, e, &t);
        }
        config_add_problem(c, e, t.data);
    }
}
