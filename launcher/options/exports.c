#include "launcher/options/exports.h"

#include "launcher/options/env.h"
#include "launcher/options/options_table.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static size_t name_size(const char *text)
{
    size_t n = strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_");
    return text[0] >= '0' && text[0] <= '9' ? 0 : n;
}

static bool same_name(const char *variable, const char *other)
{
    size_t n = strcspn(variable, "=");
    return strcspn(other, "=") == n && strncmp(variable, other, n) == 0;
}

bool exports_is_variable(const char *text)
{
    size_t n = name_size(text);
    return n > 0 && text[n] == '=';
}

/* ---- --export ---- */

/* What dtrun gives each worker itself, and what stands for an option, have one place to be said. */
static int check_name(const char *name, struct dt_error *err)
{
    if (env_is_ours(name)) {
        return dt_fail(err, DT_INVALID, "%.100s: dtrun gives each worker its own; leave it out", name);
    }
    for (int i = 0; i < OPTION_COUNT; i++) {
        char variable[64];
        const char *other = option_rows[i].other_variable;
        if ((option_variable(&option_rows[i], variable, sizeof variable) && strcmp(variable, name) == 0) ||
            (other != NULL && strcmp(other, name) == 0)) {
            return dt_fail(err, DT_INVALID, "%.100s: stands for an option; give --%s", name, option_rows[i].name);
        }
    }
    return 0;
}

/* The item at *at, up to a comma that no backslash precedes; in the arena, *at behind it. */
static char *next_item(struct options *o, const char **at)
{
    char *item = dt_arena_strdup(&o->arena, *at), *end = item;
    const char *p = *at;
    while (*p != '\0' && *p != ',') {
        p += p[0] == '\\' && p[1] == ',';
        *end++ = *p++;
    }
    *end = '\0';
    *at = p + (*p == ',');
    return item;
}

static void append(struct options *o, char *item, int number)
{
    char **list = dt_arena_alloc(&o->arena, ((size_t)o->exports.count + 1) * sizeof *list);
    int *items = dt_arena_alloc(&o->arena, ((size_t)o->exports.count + 1) * sizeof *items);
    for (int k = 0; k < o->exports.count; k++) {
        list[k] = o->exports.list[k];
        items[k] = o->exports.items[k];
    }
    items[o->exports.count] = number;
    list[o->exports.count++] = item;
    o->exports.list = list;
    o->exports.items = items;
}

/* Nothing of a value may stand in a message. */
static int read_word(struct options *o, const char *word, struct dt_error *err)
{
    const char *at = word;
    for (int i = 1; *at != '\0'; i++) {
        char *item = next_item(o, &at);
        size_t n = name_size(item);
        if (n == 0 || (item[n] != '=' && item[n] != '\0')) {
            return dt_fail(err, DT_INVALID,
                           "item %d: must be NAME or NAME=VALUE, a name of letters, digits and _; write \\, for a "
                           "comma of a value",
                           i);
        }
        if (check_name(dt_arena_printf(&o->arena, "%.*s", (int)n, item), err) != 0) {
            return -1;
        }
        append(o, item, i);
    }
    return 0;
}

int option_parse_export(struct options *o, const struct option_row *row, const char *text, struct dt_error *err)
{
    (void)row;
    if (o->leash.on) { /* the launching host has read it, its environment may be ours */
        return 0;
    }
    int result = o->exports.word_count == 0 ? read_word(o, text, err) : 0; /* of the variable */
    for (int i = 0; i < o->exports.word_count && result == 0; i++) {
        result = read_word(o, o->exports.words[i], err);
    }
    return result;
}

bool exports_names(const struct options *o, const char *name)
{
    bool found = false;
    for (int i = 0; i < o->exports.count && !found; i++) {
        found = same_name(name, o->exports.list[i]);
    }
    return found;
}

void exports_add(struct options *o, const char *variable)
{
    if (!exports_names(o, variable)) {
        append(o, dt_arena_strdup(&o->arena, variable), 1);
    }
}

static bool has_value(const char *item)
{
    return strchr(item, '=') != NULL;
}

/* An item before this one in its list is such a one. With a value it may have had a comma that
 * no backslash precedes, and this one be the value's end. */
static bool follows(const struct options *o, int i, bool (*is)(const char *item))
{
    bool any = false;
    for (int k = i - o->exports.items[i] + 1; k < i; k++) {
        any = any || is(o->exports.list[k]);
    }
    return any;
}

int exports_check(const struct options *o, char *const *env, struct dt_error *err)
{
    for (int i = 0; i < o->exports.count; i++) {
        const char *name = o->exports.list[i];
        bool given = has_value(name) || options_getenv(env, name) != NULL;
        for (int k = 0; k < o->exports.count && !given; k++) {
            given = has_value(o->exports.list[k]) && same_name(o->exports.list[k], name);
        }
        if (!given && follows(o, i, has_value)) { /* it may be a part of that value */
            return dt_fail(err, DT_INVALID,
                           "--export: item %d: is not set here; set it, or write \\, for a comma of a value",
                           o->exports.items[i]);
        }
        if (!given) {
            return dt_fail(err, DT_INVALID, "--export: %.100s: is not set here; set it, or write %.100s=VALUE", name,
                           name);
        }
    }
    return 0;
}

int exports_apply(const struct options *o, struct dt_error *err)
{
    for (int i = 0; i < o->exports.count; i++) {
        if (!has_value(o->exports.list[i])) {
            continue;
        }
        size_t n = strcspn(o->exports.list[i], "=");
        char *name = dt_strdup(o->exports.list[i]);
        name[n] = '\0';
        int result = setenv(name, name + n + 1, 1);
        free(name);
        if (result != 0) {
            return dt_fail_errno(err, "--export");
        }
    }
    return 0;
}

/* ---- what looks secret ---- */

/* A part of the name between two _ ends in such a word, or the value is a URL with a password or
 * a token, which stand before an @. */
static bool looks_secret(const char *variable)
{
    static const char *const words[] = {"TOKEN",      "KEY",  "SECRET", "PASSWORD",   "PASSWD",
                                        "PASSPHRASE", "PASS", "PWD",    "CREDENTIAL", "AUTH"};
    const char *value = variable + strcspn(variable, "=");
    for (const char *p = variable; p < value; p += p[0] == '_') {
        size_t n = strcspn(p, "_=");
        /* TOKENS */
        n -= n > 1 && (p[n - 1] == 'S' || p[n - 1] == 's') && strncasecmp(p + n - 2, "ss", 2) != 0;
        for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
            size_t size = strlen(words[i]);
            if (n >= size && strncasecmp(p + n - size, words[i], size) == 0) {
                return true;
            }
        }
        p += strcspn(p, "_=");
    }
    const char *host = strstr(value, "://");
    return host != NULL && strchr(host, '@') != NULL;
}

static bool is_secret(const char *item)
{
    return has_value(item) && looks_secret(item);
}

void exports_show(const struct options *o, const char *variable, struct dt_text *out)
{
    size_t n = strcspn(variable, "=");
    bool secret = looks_secret(variable);
    for (int i = 0; i < o->exports.count && !secret; i++) {
        secret = has_value(o->exports.list[i]) && same_name(variable, o->exports.list[i]) && follows(o, i, is_secret);
    }
    dt_text_add(out, variable, n);
    dt_text_puts(out, "=");
    if (secret) {
        dt_text_puts(out, "(hidden)");
    } else if (variable[n] != '\0') {
        dt_text_shell(out, variable + n + 1);
    }
}

void exports_hide(const struct options *o)
{
    for (int i = 0; i < o->exports.word_count; i++) {
        char *value = strchr(o->exports.words[i], '=');
        if (value != NULL) {
            memset(value + 1, '*', strlen(value + 1));
        }
    }
}

/* ---- to the agents ---- */

static bool in_list(const char *const *list, const char *variable)
{
    for (; *list != NULL; list++) {
        if (same_name(variable, *list)) {
            return true;
        }
    }
    return false;
}

bool exports_passes(const struct options *o, const char *variable)
{
    static const char *const names[] = {"PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "LOGLEVEL", NULL};
    static const char *const beginnings[] = {
        "NCCL_",  "RCCL_",         "GLOO_",       "TP_",         "UCX_",         "UCC_",
        "FI_",    "MV2_",          "NVSHMEM_",    "CUDA_",       "CUBLAS_",      "CUDNN_",
        "NVTE_",  "TRITON_",       "TORCH_",      "PYTORCH_",    "TORCHDYNAMO_", "TORCHINDUCTOR_",
        "OMP_",   "KMP_",          "GOMP_",       "MKL_",        "OPENBLAS_",    "PYTHON",
        "HF_",    "TRANSFORMERS_", "TOKENIZERS_", "ACCELERATE_", "WANDB_",       "MLFLOW_",
        "DTRUN_", "PET_",          NULL};
    /* each host has its own: --include, and the options that only the launching host reads */
    static const char *const never[] = {
        "CUDA_VISIBLE_DEVICES", "DTRUN_HOSTFILE",  "DTRUN_INCLUDE",  "DTRUN_EXCLUDE", "DTRUN_SSH",
        "DTRUN_PAGE",           "DTRUN_SNAPSHOTS", "DTRUN_KEY_FILE", "DTRUN_EXPORT",  NULL};
    bool passes = in_list(names, variable);
    for (const char *const *p = beginnings; *p != NULL && !passes; p++) {
        passes = strncmp(variable, *p, strlen(*p)) == 0;
    }
    passes = passes && exports_is_variable(variable) && !in_list(never, variable);
    return passes || exports_names(o, variable);
}
