/* The plan's stdout is taken through a pipe; its stderr is ours, so its messages are seen as
 * they are. */
#include "launcher/job/plan.h"

#include "base/helper.h"
#include "launcher/output/console.h"
#include "launcher/options/env.h"
#include "launcher/workers/guard.h"
#include "launcher/workers/process.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE_S 10.0 /* between two lines about a check that does not end */

static bool is_one_of(const char *s, const char *const *words)
{
    for (; *words != NULL; words++) {
        if (strcmp(s, *words) == 0) {
            return true;
        }
    }
    return false;
}

/* True when the arguments ask for something that needs no ranks: --help, --version, --plan. */
static bool is_all(const struct options *o)
{
    static const char *const words[] = {"--help",
                                        "--help=all",
                                        "-h",
                                        "--version",
                                        "--plan",
                                        "--print-config",
                                        "--print_config",
                                        "--list-strategies",
                                        "--list_strategies",
                                        "--schema",
                                        NULL};
    for (int i = 0; i < o->program.arg_count; i++) {
        if (is_one_of(o->program.args[i], words)) {
            return true;
        }
    }
    return o->program.arg_count == 0; /* its own usage line is better than ours */
}

static char *read_output_dir(const struct dt_text *text, bool *is_json, bool *on_gpus)
{
    cJSON *root = cJSON_ParseWithLength(dt_text_str(text), text->size);
    const cJSON *dir = cJSON_GetObjectItemCaseSensitive(root, "output_dir");
    char *out = cJSON_IsString(dir) && dir->valuestring[0] != 0 ? dt_strdup(dir->valuestring) : NULL;
    const cJSON *device = cJSON_GetObjectItemCaseSensitive(root, "device");
    *is_json = cJSON_IsObject(root);
    *on_gpus = cJSON_IsString(device) && strcmp(device->valuestring, "cuda") == 0;
    cJSON_Delete(root);
    return out;
}

/* argv with up to two words before its arguments. */
static char **with_words(struct dt_arena *arena, char **argv, const char *first, const char *second)
{
    int count = 0;
    while (argv[count] != NULL) {
        count++;
    }
    char **out = dt_arena_alloc(arena, ((size_t)count + 3) * sizeof *out);
    int k = 0;
    out[k++] = argv[0];
    const char *const more[] = {first, second};
    for (int i = 0; i < 2 && more[i] != NULL; i++) {
        out[k++] = dt_arena_strdup(arena, more[i]);
    }
    for (int i = 1; i < count; i++) {
        out[k++] = argv[i];
    }
    return out;
}

/* env with the number of ranks, of which a job's batch may be a function. */
static char **with_world_size(struct dt_arena *arena, char *const *env, int ranks)
{
    static const char name[] = "WORLD_SIZE=";
    size_t count = 0, k = 0;
    while (env[count] != NULL) {
        count++;
    }
    char **out = dt_arena_alloc(arena, (count + 2) * sizeof *out);
    for (size_t i = 0; i < count; i++) {
        if (strncmp(env[i], name, sizeof name - 1) != 0) {
            out[k++] = env[i];
        }
    }
    out[k++] = dt_arena_printf(arena, "%s%d", name, ranks);
    out[k] = NULL;
    return out;
}

int plan_check_job(const struct options *o, char *const *env)
{
    struct dt_error err;
    struct dt_arena arena;
    char *path, **argv;
    int code = DT_EXIT_USAGE, status;
    if (!bundled_trains(o->program.bundled) || is_all(o)) {
        return 0;
    }
    dt_arena_init(&arena);
    if (env_command(o, 0, env, &arena, &path, &argv, &err) != 0) {
        (void)fprintf(stderr, "dtrun: %s\n", err.text);
        dt_arena_clear(&arena);
        return DT_EXIT_USAGE;
    }
    if (dt_helper_run(
            &(struct dt_helper_task){.path = path,
                                     .argv = with_words(&arena, argv, "--print-config", NULL),
                                     .envp = with_world_size(&arena, env, o->world.nproc * o->world.nnodes_max),
                                     .output = DT_HELPER_SILENT},
            0, NULL, &status, &err) != 0) {
        (void)fprintf(stderr, "dtrun: %s\n", err.text);
        code = DT_EXIT_TEMPORARY;
    } else {
        code = workers_code(status);
        code = code < 0 ? DT_EXIT_FAILED : code;
    }
    dt_arena_clear(&arena);
    return code;
}

/* A file server that hangs, or a file that is none, keeps a helper for good. */
static void say_where(pid_t pid, double since_s, void *unused)
{
    struct dt_text where;
    struct dt_proc_look look;
    (void)unused;
    dt_text_init(&where);
    (void)process_where(pid, &where);
    (void)dt_proc_look(pid, &look);
    console_say("dtrun: train --plan (pid %d): not done after %.0f s: %s%s%s\n", (int)pid, since_s,
                where.size > 0      ? "it waits in the kernel, in "
                : look.state == 'R' ? "it computes"
                                    : "it sleeps",
                where.size > 0 ? dt_text_str(&where) : "",
                look.state == 'D' ? " (state D: a disk or a file server)" : "");
    dt_text_clear(&where);
}

int plan_run(const struct options *o, const struct workers *w, char *const *env, int signal_fd, char **output_dir,
             bool *on_gpus)
{
    struct dt_error err;
    struct dt_arena arena;
    struct dt_text text;
    struct spawn s = {.stdin_fd = -1, .stdout_fd = -1, .stderr_fd = -1};
    char *path, **argv, **envp;
    int ends[2] = {-1, -1}, code = DT_EXIT_USAGE, status = 0;
    pid_t pid = 0;
    bool all = is_all(o), is_json = false;
    *output_dir = NULL;
    *on_gpus = false;
    dt_arena_init(&arena);
    dt_text_init(&text);
    int world_size = o->world.nproc * o->world.nnodes_max;
    struct env_worker one = {.round = 1,
                             .local_world_size = o->world.nproc,
                             .world_size = world_size,
                             .group_world_size = o->world.nnodes_max,
                             .role_world_size = world_size,
                             .master_addr = o->rdzv.master_addr,
                             .master_port = o->rdzv.master_port};
    if (env_command(o, 0, env, &arena, &path, &argv, &err) != 0 || env_build(o, &one, env, &arena, &envp, &err) != 0) {
        console_say("dtrun: %s\n", err.text);
        goto out;
    }
    if (!all && pipe2(ends, O_CLOEXEC) != 0) {
        console_say("dtrun: plan: no pipe: %s\n", strerror(errno));
        code = DT_EXIT_TEMPORARY;
        goto out;
    }
    s.path = path;
    /* as it is when its output is all that is wanted */
    s.argv = all ? argv : with_words(&arena, argv, "--plan", "--json");
    s.envp = envp;
    s.stdout_fd = ends[1];
    if (workers_spawn_plain(w, &s, &pid, &err) != 0) {
        console_say("dtrun: %s\n", err.text);
        code = err.status == DT_INVALID ? DT_EXIT_USAGE : DT_EXIT_TEMPORARY;
        goto out;
    }
    if (ends[1] >= 0) {
        (void)close(ends[1]);
        ends[1] = -1;
    }
    struct dt_helper helper = {.pid = pid, .fd = ends[0]};
    ends[0] = -1;
    code =
        dt_helper_wait(&helper,
                       &(struct dt_helper_wait){
                           .signal_fd = signal_fd, .on_line = all ? NULL : say_where, .line_s = LINE_S / o->time_scale},
                       &text, &status);
    (void)guard_end_descendants(1);
    if (code >= 0) {
        goto out;
    }
    code = workers_code(status);
    if (code < 0) {
        console_say("dtrun: %s --plan (pid %d): killed by signal %d (%s); run it alone to see more\n", o->program.name,
                    (int)pid, -code, sigabbrev_np(-code));
        code = DT_EXIT_FAILED;
    }
    if (code != 0 || all) {
        goto out;
    }
    *output_dir = read_output_dir(&text, &is_json, on_gpus);
    if (is_json) {
        code = -1;
    } else { /* it had something else to say */
        (void)fwrite(dt_text_str(&text), 1, text.size, stdout);
        (void)fflush(stdout);
    }
out:
    for (int i = 0; i < 2; i++) {
        if (ends[i] >= 0) {
            (void)close(ends[i]);
        }
    }
    dt_text_clear(&text);
    dt_arena_clear(&arena);
    return code;
}
