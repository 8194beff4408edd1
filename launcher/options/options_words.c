/* The words of a command line, and the variables, to the rows that they mean. */
#include "launcher/options/options_table.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* Our name for what mpirun, srun and deepspeed call so, or null. */
static const char *called_elsewhere(const char *word)
{
    static const char *const names[][2] = {
        {"n", "nproc_per_node"}, {"np", "nproc_per_node"}, {"num_gpus", "nproc_per_node"}, {"N", "nnodes"}};
    size_t size = strcspn(word, "=0123456789"); /* -n4 */
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strlen(names[i][0]) == size && strncmp(word, names[i][0], size) == 0) {
            return names[i][1];
        }
    }
    return NULL;
}

static int unknown(const char *name, struct dt_error *err)
{
    const char *names[OPTION_COUNT];
    char word[64];
    size_t n = 0;
    for (; n < sizeof word - 1 && name[n] != '\0'; n++) {
        word[n] = name[n] == '-' ? '_' : name[n];
    }
    word[n] = '\0';
    size_t count = 0;
    for (int i = 0; i < OPTION_COUNT; i++) {
        names[count] = option_rows[i].name;
        count += option_rows[i].help != NULL; /* not what is between dtrun and dtrun */
    }
    const char *near = called_elsewhere(word);
    near = near != NULL ? near : dt_text_nearest(word, names, count);
    char shown[64];
    if (near == NULL) {
        return dt_fail(err, DT_INVALID, "--%s: unknown option; dtrun --help=all shows all", option_show(name, shown));
    }
    return dt_fail(err, DT_INVALID, "--%s: unknown option; did you mean --%s?", option_show(name, shown), near);
}

/* `name` is the beginning of the row's name; - and _ are the same. */
static bool begins(const struct option_row *row, const char *name)
{
    size_t n = strlen(name);
    bool same = n > 0 && strlen(row->name) >= n && row->help != NULL;
    for (size_t k = 0; k < n && same; k++) {
        same = row->name[k] == (name[k] == '-' ? '_' : name[k]);
    }
    return same;
}

static int ambiguous(const char *name, bool ours, int count, struct dt_error *err)
{
    struct dt_text names;
    dt_text_init(&names);
    for (int i = 0, k = 0; i < OPTION_COUNT; i++) {
        if (begins(&option_rows[i], name) && (option_rows[i].family == OPTION_OURS) == ours) {
            k++;
            dt_text_printf(&names, "%s--%s", k == 1 ? "" : k == count ? " or " : ", ", option_rows[i].name);
        }
    }
    (void)dt_fail(err, DT_INVALID, "--%s: could be %s; write it out", name, dt_text_str(&names));
    dt_text_clear(&names);
    return -1;
}

/* accelerate's name of an option: ours means the same. */
static const char *of_accelerate(const char *name)
{
    static const char *const names[][2] = {{"num_machines", "nnodes"},
                                           {"machine_rank", "node_rank"},
                                           {"main_process_ip", "master_addr"},
                                           {"main_process_port", "master_port"}};
    char plain[32];
    size_t n = 0;
    for (; n < sizeof plain - 1 && name[n] != '\0'; n++) {
        plain[n] = name[n] == '-' ? '_' : name[n];
    }
    plain[n] = '\0';
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(plain, names[i][0]) == 0) {
            return names[i][1];
        }
    }
    return NULL;
}

/* The row that `name` means, in full or as an unambiguous beginning; torchrun's options come
 * before ours. */
static int find_row(const char *name, struct dt_error *err)
{
    int exact = option_find(name);
    if (exact >= 0) {
        return exact;
    }
    int found[2] = {-1, -1}, count[2] = {0, 0};
    for (int i = 0; i < OPTION_COUNT; i++) {
        int ours = option_rows[i].family == OPTION_OURS;
        if (begins(&option_rows[i], name)) {
            found[ours] = i;
            count[ours]++;
        }
    }
    int ours = count[0] == 0;
    if (count[ours] == 0) {
        return unknown(name, err);
    }
    return count[ours] == 1 ? found[ours] : ambiguous(name, ours != 0, count[ours], err);
}

static void give(struct options *o, struct given *g, int row, const char *value, const char *spelled,
                 enum options_source source)
{
    g->value[row] = value;
    g->last = row;
    o->sources[row] = source;
    (void)snprintf(g->spelled[row], sizeof g->spelled[row], "%.70s", spelled);
}

/* An option's value may be the next word, unless that is an option itself. */
static bool looks_like_option(const char *word)
{
    return word[0] == '-' && word[1] != '\0' && !isdigit((unsigned char)word[1]) && word[1] != '.';
}

/* One long option; returns the number of words used, or -1. */
static int read_long(struct options *o, struct given *g, char **words, struct dt_error *err)
{
    const char *body = words[0] + 2;
    size_t n = strcspn(body, "=");
    char *name = dt_arena_printf(&o->arena, "%.*s", n > 200 ? 200 : (int)n, body);
    const char *ours = of_accelerate(name);
    int row = find_row(ours != NULL ? ours : name, err);
    if (row < 0) {
        return -1;
    }
    const struct option_row *r = &option_rows[row];
    char *spelled = dt_arena_printf(&o->arena, "--%s", ours != NULL ? name : r->name);
    const char *value = body[n] == '=' ? body + n + 1 : NULL;
    if (r->arity == OPTION_FLAG) {
        if (value != NULL) {
            return dt_fail(err, DT_INVALID, "%s: takes no value; write %s alone", spelled, spelled);
        }
        give(o, g, row, "1", spelled, OPTIONS_FROM_COMMAND_LINE);
        return 1;
    }
    if (value != NULL || r->arity == OPTION_MAYBE) {
        give(o, g, row, value != NULL ? value : "", spelled, OPTIONS_FROM_COMMAND_LINE);
        return 1;
    }
    if (words[1] == NULL || looks_like_option(words[1])) {
        return dt_fail(err, DT_INVALID, "%s: needs a value; write %s=%s", spelled, spelled, r->shown);
    }
    give(o, g, row, words[1], spelled, OPTIONS_FROM_COMMAND_LINE);
    return 2;
}

/* -r3, -r 3, -r=3, -m, -mr3. */
static int read_short(struct options *o, struct given *g, char **words, struct dt_error *err)
{
    for (const char *p = words[0] + 1; *p != '\0'; p++) {
        int row = -1;
        for (int i = 0; i < OPTION_COUNT; i++) {
            row = option_rows[i].letter == *p ? i : row;
        }
        char spelled[4] = {'-', *p, 0, 0};
        if (row < 0) {
            char shown[64];
            const char *ours = p == words[0] + 1 ? called_elsewhere(p) : NULL;
            return ours != NULL ? dt_fail(err, DT_INVALID, "%s: unknown option; did you mean --%s?",
                                          option_show(words[0], shown), ours)
                                : dt_fail(err, DT_INVALID, "%s: unknown option; dtrun --help=all shows all",
                                          option_show(words[0], shown));
        }
        if (option_rows[row].arity != OPTION_VALUE) {
            give(o, g, row, option_rows[row].arity == OPTION_FLAG ? "1" : "", spelled, OPTIONS_FROM_COMMAND_LINE);
            continue;
        }
        if (option_rows[row].parse == option_parse_export && p > words[0] + 1) {
            return dt_fail(err, DT_INVALID, "%s: stands alone; write %s %s", spelled, spelled, option_rows[row].shown);
        }
        if (p[1] != '\0') {
            give(o, g, row, p + 1 + (p[1] == '='), spelled, OPTIONS_FROM_COMMAND_LINE);
            return 1;
        }
        if (words[1] == NULL || looks_like_option(words[1])) {
            return dt_fail(err, DT_INVALID, "%s: needs a value; write %s %s", spelled, spelled, option_rows[row].shown);
        }
        give(o, g, row, words[1], spelled, OPTIONS_FROM_COMMAND_LINE);
        return 2;
    }
    return 1;
}

/* What argv[i..i + used - 1] said is kept where it is read again: by the agents, and where all
 * of one option count. */
static void keep_words(struct options *o, const struct given *g, char **argv, int i, int used)
{
    bool export = option_rows[g->last].parse == option_parse_export;
    if (export) { /* the value is the end of the last word */
        char *word = argv[i + used - 1];
        o->exports.words[o->exports.word_count++] = word + strlen(word) - strlen(g->value[g->last]);
    }
    for (int k = i; k < i + used && !export && g->last != OPTION_dry_run; k++) {
        o->ssh.own_words[o->ssh.own_word_count++] = dt_arena_strdup(&o->arena, argv[k]);
    }
}

int option_read_words(struct options *o, struct given *g, int argc, char **argv, int *first, struct dt_error *err)
{
    int help = OPTION_help;
    int version = OPTION_version;
    int i = 1;
    o->ssh.own_words = dt_arena_alloc(&o->arena, (size_t)(argc + 1) * sizeof *o->ssh.own_words);
    o->exports.words = dt_arena_alloc(&o->arena, (size_t)(argc + 1) * sizeof *o->exports.words);
    while (i < argc && argv[i][0] == '-' && argv[i][1] != '\0') {
        if (strcmp(argv[i], "--") == 0) {
            i++;
            break;
        }
        int used = argv[i][1] == '-' ? read_long(o, g, argv + i, err) : read_short(o, g, argv + i, err);
        if (used < 0) {
            return -1;
        }
        if (g->value[help] != NULL) {
            if (g->value[help][0] != '\0' && strcmp(g->value[help], "all") != 0) {
                char shown[64];
                return dt_fail(err, DT_INVALID, "--help: %s: must be all, or nothing",
                               option_show(g->value[help], shown));
            }
            o->action = g->value[help][0] == '\0' ? OPTIONS_HELP : OPTIONS_HELP_ALL;
            return 0;
        }
        if (g->value[version] != NULL) {
            o->action = OPTIONS_VERSION;
            return 0;
        }
        keep_words(o, g, argv, i, used);
        i += used;
    }
    *first = i;
    return 0;
}

void option_read_variables(struct options *o, struct given *g, char *const *env)
{
    for (int i = 0; i < OPTION_COUNT; i++) {
        char name[64];
        const char *value = NULL;
        if (g->value[i] == NULL && option_variable(&option_rows[i], name, sizeof name)) {
            value = options_getenv(env, name);
        }
        if (g->value[i] == NULL && value == NULL && option_rows[i].other_variable != NULL) {
            (void)snprintf(name, sizeof name, "%s", option_rows[i].other_variable);
            value = options_getenv(env, name);
        }
        if (value != NULL) {
            bool other = option_rows[i].other_variable != NULL && strcmp(name, option_rows[i].other_variable) == 0;
            o->source_variables[i] = other ? option_rows[i].other_variable : NULL;
            give(o, g, i, value, name, OPTIONS_FROM_VARIABLE);
        }
    }
}
