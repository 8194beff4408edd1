/* Entries of the configuration and the problems found so far, shared by its files. */
#ifndef DT_BASE_CONFIG_OWN_H
#define DT_BASE_CONFIG_OWN_H

#include "base/config.h"

#include <cjson/cJSON.h>
#include <stdint.h>

enum { SECTIONS_MAX = 32, HINT_TABLES_MAX = 4, PROBLEMS_SHOWN = 100 };

struct entry {
    const char *path; /* "training.seed" */
    const char *name; /* what messages call it: the path, unless it came from another file or key */
    const cJSON *value;
    const cJSON *given; /* what its name has in the file: the value, unless it was translated */
    const char *where;  /* "job.json:4:9" (of the key), or "--set training.seed=7" */
    const char *value_where;
    uint32_t file, line, column; /* for sorting; --set comes last */
    const char *file_path;       /* that it stands in; null for --set */
    bool section, read;
    bool loose; /* from YAML, where 2e-5 is a string: it is a number where one is wanted */
    bool bad;   /* it did not fit its rule */
};

struct problem {
    uint32_t file, line, column;
    size_t order;
    char *text;
};

struct derived {
    const char *path, *source;
};

struct dt_config {
    const char *path;
    struct dt_arena *arena;
    cJSON **trees; /* the files, and one per --set */
    size_t tree_count;
    uint32_t file_count;
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
    const char **known; /* keys that others read, for dt_config_known */
    size_t known_count;
};

/* True when `path` is `above` or lies below it. */
bool config_within(const char *path, const char *above);
/* "section.key", in the arena. */
const char *config_join(const struct dt_config *c, const char *section, const char *key);
/* Notes a problem of an entry (null: of the file alone). c owns the text. */
void config_add_problem(struct dt_config *c, const struct entry *e, char *text);
/* Notes entries that nobody read, unless they are below one that was noted: hinted, or unknown. */
void config_find_unknown(struct dt_config *c);
/* Appends a number as people write it. */
void config_add_double(double v, struct dt_text *out);
/* A value as dt_value_show writes it. The text is in the arena. */
const char *config_shown(const cJSON *value, struct dt_arena *arena);
struct dt_scan;
/* config_parse.c: a file of at most 4 MiB. relaxed: comments and commas before closing brackets are blanks in
 * `text`. YAML stays as it is. */
int config_read_file(const char *path, bool relaxed, struct dt_text *text, struct dt_error *err);
/* The tree of a text, at most 20000 values, whose places go to `scan`. The caller deletes it. Null: an error. */
cJSON *config_parse(const char *file, const char *text, size_t size, struct dt_scan *scan, struct dt_error *err);
/* config_sets.c: a value of DT_RULE_SETS. parse: as dt_value_parse; fault: as dt_value_fault. */
bool config_parse_sets(const cJSON *value, struct dt_arena *arena, struct dt_sets *out);
const char *config_sets_fault(const cJSON *value, struct dt_arena *arena);
void config_format_sets(const struct dt_sets *sets, struct dt_text *out);
void config_schema_sets(const struct dt_rule *rule, struct dt_text *out);
/* Appends the choice at p, which ends at the next "|" or with the string. */
void config_add_choice(const char *p, struct dt_text *out);

#endif
