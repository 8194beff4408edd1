/* What a worker is started with: argv and environment. Names and spellings are torchrun's (docs:
 * the launcher's table of variables); scripts depend on each of them. */
#include "launcher/options/env.h"
#include "launcher/options/rendezvous.h"

#include "base/file.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HOST_OF_RANK_BYTES = 100000 }; /* the kernel takes 128 KiB for one variable */

struct builder {
    struct dt_arena *arena;
    char **list; /* null-terminated, room for all */
    size_t count;
};

static void unset(struct builder *b, const char *name)
{
    size_t n = strlen(name);
    size_t kept = 0;
    for (size_t i = 0; i < b->count; i++) {
        if (strncmp(b->list[i], name, n) != 0 || b->list[i][n] != '=') {
            b->list[kept++] = b->list[i];
        }
    }
    b->count = kept;
    b->list[kept] = NULL;
}

/* value null: only removes what is inherited. */
static void set(struct builder *b, const char *name, const char *value)
{
    unset(b, name);
    if (value != NULL) {
        b->list[b->count++] = dt_arena_printf(b->arena, "%s=%s", name, value);
        b->list[b->count] = NULL;
    }
}

static void set_int(struct builder *b, const char *name, int value)
{
    char text[16];
    (void)snprintf(text, sizeof text, "%d", value);
    set(b, name, text);
}

bool env_sets_omp(const struct options *o, char *const *inherited)
{
    return o->world.nproc > 1 && options_getenv(inherited, "OMP_NUM_THREADS") == NULL;
}

const char *env_omp_warning(void)
{
    return "dtrun: OMP_NUM_THREADS is not set: workers get 1, so that they do not crowd each other; set it to tune "
           "speed";
}

/* --virtual_local_rank: the worker's own entry of the inherited list, or its number. HIP's list
 * comes first when there is one. */
static int set_device(struct builder *b, const struct env_worker *w, char *const *inherited, struct dt_error *err)
{
    const char *hip = options_getenv(inherited, "HIP_VISIBLE_DEVICES");
    bool use_hip = hip != NULL && hip[0] != '\0';
    const char *list = use_hip ? hip : options_getenv(inherited, "CUDA_VISIBLE_DEVICES");
    char *device = dt_arena_printf(b->arena, "%d", w->local_rank);
    if (list != NULL && list[0] != '\0') {
        const char *p = list;
        for (int i = 0; i < w->local_rank && p != NULL; i++) {
            p = strchr(p, ',');
            p = p != NULL ? p + 1 : NULL;
        }
        if (p == NULL || *p == '\0') {
            return dt_fail(
                err, DT_INVALID,
                "--virtual_local_rank: worker %d of %d finds no GPU of its own in %s; lower --nproc_per_node",
                w->local_rank, w->local_world_size, use_hip ? "HIP_VISIBLE_DEVICES" : "CUDA_VISIBLE_DEVICES");
        }
        device = dt_arena_printf(b->arena, "%.*s", (int)strcspn(p, ","), p);
    }
    set(b, "CUDA_VISIBLE_DEVICES", device);
    if (use_hip) {
        set(b, "HIP_VISIBLE_DEVICES", device);
    }
    return 0;
}

bool env_is_ours(const char *name)
{
    static const char *const names[] = {"LOCAL_RANK",
                                        "RANK",
                                        "GROUP_RANK",
                                        "ROLE_RANK",
                                        "ROLE_NAME",
                                        "LOCAL_WORLD_SIZE",
                                        "WORLD_SIZE",
                                        "GROUP_WORLD_SIZE",
                                        "ROLE_WORLD_SIZE",
                                        "MASTER_ADDR",
                                        "MASTER_PORT",
                                        "TORCHELASTIC_RESTART_COUNT",
                                        "TORCHELASTIC_MAX_RESTARTS",
                                        "TORCHELASTIC_RUN_ID",
                                        "TORCHELASTIC_USE_AGENT_STORE",
                                        "TORCHELASTIC_ERROR_FILE",
                                        "TORCHELASTIC_SIGNALS_TO_HANDLE",
                                        "DTRUN_OWN_GPU",
                                        "DTRUN_HOST_OF_RANK",
                                        "DTRUN_ROUND",
                                        "DTRUN_LAUNCH",
                                        "DTRUN_PAGE",
                                        "DTRUN_SNAPSHOTS",
                                        "DTRUN_OUTPUT_DIR",
                                        "DTRUN_CPU_SHARERS",
                                        "DTRUN_CHOICES"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(names[i], name) == 0) {
            return true;
        }
    }
    return false;
}

/* What only the launcher needs: where the key of the hosts is, is no business of the program
 * that it starts; and another dtrun in there would find the port of metrics taken. */
static bool is_private(const char *name)
{
    return strcmp(name, "DTRUN_KEY_FILE") == 0 || strcmp(name, "DTRUN_METRICS_ENDPOINT") == 0;
}

void env_choices(const struct options *o, struct dt_text *out)
{
    dt_text_printf(out, "hosts %d", o->world.nnodes_min);
    if (o->world.nnodes_max != o->world.nnodes_min) {
        dt_text_printf(out, " to %d", o->world.nnodes_max);
    }
    dt_text_printf(out, " (%s)", options_source(o, OPTION_nnodes));
    bool is_word = !isdigit((unsigned char)o->world.nproc_text[0]);
    dt_text_printf(out, ", workers per host %d%s%s (%s)", o->world.nproc, is_word ? ", " : "",
                   is_word ? o->world.nproc_text : "", options_source(o, OPTION_nproc_per_node));
    if (o->world.nnodes_max > 1) {
        bool by_endpoint = strcmp(options_source(o, OPTION_rdzv_endpoint), "default") != 0;
        dt_text_printf(out, ", meeting at %s port %d by %s", o->rdzv.master_addr, o->rdzv.master_port,
                       o->rdzv.row->name);
        dt_text_printf(out, " (%s)", options_source(o, by_endpoint ? OPTION_rdzv_endpoint : OPTION_master_addr));
        if (o->rdzv.row->by_rank) {
            dt_text_printf(out, ", this host %d (%s)", o->world.node_rank, options_source(o, OPTION_node_rank));
        }
    }
    /* else it is made up, or that of everybody */
    if (strcmp(options_source(o, OPTION_rdzv_id), "default") != 0) {
        dt_text_printf(out, ", run id %s (%s)", o->rdzv.run_id, options_source(o, OPTION_rdzv_id));
    }
}

/* For the bundled program that shows it. */
static void set_choices(struct builder *b, const struct options *o)
{
    struct dt_text text;
    dt_text_init(&text);
    if (o->program.bundled != NULL && o->program.bundled->is_told) {
        env_choices(o, &text);
    }
    set(b, "DTRUN_CHOICES", text.size > 0 ? dt_text_str(&text) : NULL);
    dt_text_clear(&text);
}

/* "2(x2),1" as DTRUN_HOST_OF_RANK: "0(x2),1(x2),2", the host of each rank in order. Null when
 * unknown, or too long for a variable. */
static const char *host_of_rank(struct dt_arena *arena, const char *sizes)
{
    struct dt_text out;
    dt_text_init(&out);
    int host = 0;
    for (const char *p = sizes != NULL ? sizes : ""; *p != '\0' && out.size < HOST_OF_RANK_BYTES;) {
        int workers = 0, times = 1, used = 0;
        if (sscanf(p, "%9d%n", &workers, &used) != 1 || workers < 1) {
            break;
        }
        p += used;
        used = 0;
        if (sscanf(p, "(x%9d)%n", &times, &used) == 1 && used > 0) {
            p += used;
        }
        for (int i = 0; i < times && out.size < HOST_OF_RANK_BYTES; i++, host++) {
            dt_text_printf(&out, "%s%d", host > 0 ? "," : "", host);
            if (workers > 1) {
                dt_text_printf(&out, "(x%d)", workers);
            }
        }
        p += *p == ',';
    }
    const char *result =
        out.size > 0 && out.size < HOST_OF_RANK_BYTES ? dt_arena_strdup(arena, dt_text_str(&out)) : NULL;
    dt_text_clear(&out);
    return result;
}

int env_build(const struct options *o, const struct env_worker *w, char *const *inherited, struct dt_arena *arena,
              char ***out, struct dt_error *err)
{
    size_t room = 64;
    for (size_t i = 0; inherited != NULL && inherited[i] != NULL; i++) {
        room++;
    }
    struct builder b = {arena, dt_arena_alloc(arena, room * sizeof(char *)), 0};
    for (size_t i = 0; inherited != NULL && inherited[i] != NULL; i++) {
        const char *equals = strchr(inherited[i], '=');
        if (equals == NULL || equals == inherited[i]) {
            continue;
        }
        char *name = dt_arena_printf(arena, "%.*s", (int)(equals - inherited[i]), inherited[i]);
        /* of several, getenv finds the first */
        if (!is_private(name) && options_getenv(b.list, name) == NULL) {
            b.list[b.count++] = inherited[i];
        }
    }
    set_int(&b, "LOCAL_RANK", o->devices.virtual_local_rank ? 0 : w->local_rank);
    set_int(&b, "RANK", w->rank);
    set_int(&b, "GROUP_RANK", w->group_rank);
    set_int(&b, "ROLE_RANK", w->role_rank);
    set(&b, "ROLE_NAME", o->world.role);
    set_int(&b, "LOCAL_WORLD_SIZE", w->local_world_size);
    set_int(&b, "WORLD_SIZE", w->world_size);
    set_int(&b, "GROUP_WORLD_SIZE", w->group_world_size);
    set_int(&b, "ROLE_WORLD_SIZE", w->role_world_size);
    set(&b, "MASTER_ADDR", w->master_addr);
    set_int(&b, "MASTER_PORT", w->master_port);
    set_int(&b, "TORCHELASTIC_RESTART_COUNT", w->restart_count);
    set_int(&b, "TORCHELASTIC_MAX_RESTARTS", o->restarts.most);
    set(&b, "TORCHELASTIC_RUN_ID", o->rdzv.run_id);
    set(&b, "TORCHELASTIC_USE_AGENT_STORE", w->use_agent_store ? "True" : "False");
    set(&b, "TORCHELASTIC_ERROR_FILE", w->error_file != NULL ? w->error_file : "");
    set(&b, "TORCHELASTIC_SIGNALS_TO_HANDLE", o->stop.signals_text);
    if (options_getenv(b.list, "TORCH_NCCL_ASYNC_ERROR_HANDLING") == NULL) {
        set(&b, "TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
    }
    if (env_sets_omp(o, inherited)) {
        set(&b, "OMP_NUM_THREADS", "1");
    }
    if (w->timer_file != NULL) {
        set(&b, "TORCHELASTIC_TIMER_FILE", w->timer_file);
    }
    if (o->devices.virtual_local_rank && set_device(&b, w, inherited, err) != 0) {
        return -1;
    }
    if (o->devices.virtual_local_rank && o->program.bundled != NULL) {
        set(&b, "DTRUN_OWN_GPU", "1"); /* the list has one entry because it is this worker's own */
    }
    set(&b, "DTRUN_HOST_OF_RANK", host_of_rank(arena, w->sizes));
    set_int(&b, "DTRUN_ROUND", w->round);
    set(&b, "DTRUN_LAUNCH", w->launch);
    set(&b, "DTRUN_PAGE", w->page);
    set(&b, "DTRUN_SNAPSHOTS", w->snapshots);
    set(&b, "DTRUN_LOG_DIR", w->log_dir);
    set(&b, "DTRUN_OUTPUT_DIR", w->output_dir);
    set(&b, "DTRUN_CPU_SHARERS", w->cpu_sharers > 0 ? dt_arena_printf(arena, "%d", w->cpu_sharers) : NULL);
    if (o->rdzv.port_lo > 0) { /* what workers open between hosts stays in the range, too */
        char range[32];
        (void)snprintf(range, sizeof range, "%d-%d", o->rdzv.port_lo, o->rdzv.port_hi);
        set(&b, "DTRUN_PORT_RANGE", range);
    }
    set(&b, "DTRUN_LOCAL_ADDR", w->local_addr != NULL ? w->local_addr : o->rdzv.local_addr);
    set(&b, "DTRUN_DEAD_AFTER", o->world.nnodes_max > 1 ? dt_arena_printf(arena, "%g", o->rdzv.dead_after_s) : NULL);
    set_choices(&b, o);
    *out = b.list;
    return 0;
}

void env_substitute(struct dt_text *out, const char *text, const char *const (*pairs)[2], size_t pair_count)
{
    while (*text != '\0') {
        size_t n = strcspn(text, "$");
        dt_text_add(out, text, n);
        text += n;
        if (*text == '\0') {
            break;
        }
        bool braces = text[1] == '{';
        const char *word = text + 1 + braces;
        const char *value = NULL;
        for (n = 0; isalnum((unsigned char)word[n]) || word[n] == '_'; n++) {
        }
        for (size_t i = 0; i < pair_count && n > 0 && (!braces || word[n] == '}'); i++) {
            if (strlen(pairs[i][0]) == n && memcmp(pairs[i][0], word, n) == 0) {
                value = pairs[i][1];
            }
        }
        if (value != NULL) {
            dt_text_puts(out, value);
            text = word + n + braces;
        } else {
            dt_text_puts(out, "$");
            text += text[1] == '$' ? 2 : 1;
        }
    }
}

static char *substitute(struct dt_arena *arena, const char *text, int local_rank)
{
    char number[16];
    struct dt_text t;
    dt_text_init(&t);
    (void)snprintf(number, sizeof number, "%d", local_rank);
    env_substitute(&t, text, (const char *const[][2]){{"local_rank", number}}, 1);
    char *result = dt_arena_strdup(arena, dt_text_str(&t));
    dt_text_clear(&t);
    return result;
}

/* The first program of that name in PATH, or null. */
static char *search_path(struct dt_arena *arena, char *const *inherited, const char *name)
{
    const char *path = options_getenv(inherited, "PATH");
    path = path != NULL ? path : "/usr/local/bin:/usr/bin:/bin";
    for (;;) {
        size_t n = strcspn(path, ":");
        char *candidate =
            n > 0 ? dt_arena_printf(arena, "%.*s/%s", (int)n, path, name) : dt_arena_printf(arena, "./%s", name);
        if (dt_file_is_program(candidate)) {
            return candidate;
        }
        if (path[n] == '\0') {
            return NULL;
        }
        path += n + 1;
    }
}

static char *find_program(const struct options *o, char *const *inherited, struct dt_arena *arena, struct dt_error *err)
{
    const char *name = o->program.name;
    if (strchr(name, '/') != NULL) {
        if (dt_file_is_program(name)) {
            return dt_arena_strdup(arena, name);
        }
        struct stat st;
        bool there = stat(name, &st) == 0;
        (void)dt_fail(err, DT_NOT_FOUND, "%s: %s", name,
                      !there ? "no such file; check the name"
                      : S_ISDIR(st.st_mode)
                          ? "is a directory; give a program in it"
                          : "is not an executable file; chmod +x it, or give its interpreter as PROGRAM");
        return NULL;
    }
    char *found = o->program.bundled != NULL ? bundled_file(arena, name) : NULL;
    found = found != NULL ? found : search_path(arena, inherited, name);
    if (found == NULL && dt_file_exists(name)) {
        (void)dt_fail(err, DT_NOT_FOUND, "%s: not found in PATH; did you mean ./%s?", name, name);
    } else if (found == NULL) {
        (void)dt_fail(err, DT_NOT_FOUND, "%s: not found %s; check the name, or give a path with /", name,
                      o->program.bundled != NULL ? "beside dtrun and in PATH" : "in PATH");
    }
    return found;
}

/* Of the environment that dtrun is installed in, as torchrun's is: it may be called by its path,
 * with nothing of it active. */
static char *search_beside(struct dt_arena *arena)
{
    static const char *const marks[] = {"../pyvenv.cfg", "../conda-meta"};
    char *dir = dt_file_program_dir(), *found = NULL;
    for (size_t i = 0; dir != NULL && found == NULL && i < sizeof marks / sizeof marks[0]; i++) {
        char *candidate = dt_arena_printf(arena, "%s/python3", dir);
        found = access(dt_arena_printf(arena, "%s/%s", dir, marks[i]), F_OK) == 0 && dt_file_is_program(candidate)
                    ? candidate
                    : NULL;
    }
    free(dir);
    return found;
}

/* PYTHON_EXEC, the active environment's, that beside us, or python3 of PATH. */
static char *find_python(char *const *inherited, struct dt_arena *arena, struct dt_error *err)
{
    const char *given = options_getenv(inherited, "PYTHON_EXEC");
    if (given != NULL && given[0] != '\0') {
        char *found = strchr(given, '/') != NULL ? (dt_file_is_program(given) ? dt_arena_strdup(arena, given) : NULL)
                                                 : search_path(arena, inherited, given);
        if (found == NULL) {
            (void)dt_fail(err, DT_NOT_FOUND, "PYTHON_EXEC: %s: no such program", given);
        }
        return found;
    }
    static const char *const variables[] = {"VIRTUAL_ENV", "CONDA_PREFIX"};
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        const char *prefix = options_getenv(inherited, variables[i]);
        char *candidate = prefix != NULL && prefix[0] != '\0' ? dt_arena_printf(arena, "%s/bin/python3", prefix) : NULL;
        if (candidate != NULL && dt_file_is_program(candidate)) {
            return candidate;
        }
    }
    char *found = search_beside(arena);
    found = found != NULL ? found : search_path(arena, inherited, "python3");
    found = found != NULL ? found : search_path(arena, inherited, "python");
    if (found == NULL) {
        (void)dt_fail(err, DT_NOT_FOUND, "python3: not found in PATH; set PYTHON_EXEC");
    }
    return found;
}

int env_command(const struct options *o, int local_rank, char *const *inherited, struct dt_arena *arena, char **path,
                char ***argv, struct dt_error *err)
{
    bool is_file = o->program.entry == OPTIONS_ENTRY_PYTHON || o->program.entry == OPTIONS_ENTRY_RUN_PATH;
    char **words = dt_arena_alloc(arena, ((size_t)o->program.arg_count + 6) * sizeof *words);
    size_t n = 0;
    char *program;
    if (o->program.entry == OPTIONS_ENTRY_PROGRAM) {
        program = find_program(o, inherited, arena, err);
        words[n++] = o->program.name;
    } else {
        program = find_python(inherited, arena, err);
        if (program != NULL && is_file && !dt_file_exists(o->program.name)) {
            return dt_fail(err, DT_NOT_FOUND, "%s: no such file", o->program.name);
        }
        if (program != NULL && is_file && access(o->program.name, R_OK) != 0) {
            return dt_fail(err, DT_NOT_FOUND, "%s: cannot be read: %s", o->program.name, strerror(errno));
        }
        words[n++] = program;
        words[n++] = dt_arena_strdup(arena, "-u");
        if (o->program.entry == OPTIONS_ENTRY_MODULE) {
            words[n++] = dt_arena_strdup(arena, "-m");
        } else if (o->program.entry == OPTIONS_ENTRY_RUN_PATH) {
            words[n++] = dt_arena_strdup(arena, "-c");
            words[n++] = dt_arena_strdup(arena, ENV_RUN_PATH);
        }
        words[n++] = substitute(arena, o->program.name, local_rank);
    }
    if (program == NULL) {
        return -1;
    }
    for (int i = 0; i < o->program.arg_count; i++) {
        words[n++] = substitute(arena, o->program.args[i], local_rank);
    }
    words[n] = NULL;
    *path = program;
    *argv = words;
    return 0;
}
