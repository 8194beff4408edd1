/* The plan's stdout is taken through a pipe; its stderr is ours, so its messages are seen as they are. */
#include "launcher/plan.h"

#include "launcher/capture.h"
#include "launcher/env.h"
#include "launcher/guard.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
    static const char *const words[] = {
        "--help",   "--help=all", "-h", "--version", "--plan", "--print-config", "--print_config", "--list-strategies", "--list_strategies",
        "--schema", NULL};
    for (int i = 0; i < o->arg_count; i++) {
        if (is_one_of(o->args[i], words)) {
            return true;
        }
    }
    return o->arg_count == 0; /* its own usage line is better than ours */
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

/* argv of the worker with `--plan --json` before its arguments; as it is when its output is all that is wanted. */
static char **plan_argv(struct dt_arena *arena, char **argv, bool all)
{
    int count = 0;
    while (argv[count] != NULL) {
        count++;
    }
    char **out = dt_arena_alloc(arena, ((size_t)count + 3) * sizeof *out);
    int k = 0;
    out[k++] = argv[0];
    if (!all) {
        out[k++] = dt_arena_strdup(arena, "--plan");
        out[k++] = dt_arena_strdup(arena, "--json");
    }
    for (int i = 1; i < count; i++) {
        out[k++] = argv[i];
    }
    return out;
}

int plan_run(const struct options *o, const struct workers *w, char *const *env, int signal_fd, char **output_dir, bool *on_gpus)
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
    int world_size = o->nproc * o->nnodes_max;
    struct env_worker one = {.round = 1,
                             .local_world_size = o->nproc,
                             .world_size = world_size,
                             .group_world_size = o->nnodes_max,
                             .role_world_size = world_size,
                             .master_addr = o->master_addr,
                             .master_port = o->master_port};
    if (env_command(o, 0, env, &arena, &path, &argv, &err) != 0 || env_build(o, &one, env, &arena, &envp, &err) != 0) {
        (void)fprintf(stderr, "dtrun: %s\n", err.text);
        goto out;
    }
    if (!all && pipe2(ends, O_CLOEXEC) != 0) {
        (void)fprintf(stderr, "dtrun: plan: no pipe: %s\n", strerror(errno));
        code = DT_EXIT_TEMPORARY;
        goto out;
    }
    s.path = path;
    s.argv = plan_argv(&arena, argv, all);
    s.envp = envp;
    s.stdout_fd = ends[1];
    if (workers_spawn_plain(w, &s, &pid, &err) != 0) {
        (void)fprintf(stderr, "dtrun: %s\n", err.text);
        code = err.status == DT_INVALID ? DT_EXIT_USAGE : DT_EXIT_TEMPORARY;
        goto out;
    }
    if (ends[1] >= 0) {
        (void)close(ends[1]);
        ends[1] = -1;
    }
    code = capture(ends[0], signal_fd, pid, 0, &text, &status);
    (void)guard_end_descendants(1);
    if (code >= 0) {
        goto out;
    }
    code = workers_code(status);
    if (code < 0) {
        (void)fprintf(stderr, "dtrun: %s --plan (pid %d): killed by signal %d (%s); run it alone to see more\n", o->program, (int)pid, -code,
                      sigabbrev_np(-code));
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
