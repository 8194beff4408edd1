/* covers: launcher/options/env.c */
/* A worker's environment and argv, compared with torchrun's table. */
#include "launcher/options/env.h"

#include "base/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static struct options o;
static struct dt_arena arena;
static struct dt_error err;

static void open_options(int argc, char **argv)
{
    if (options_read(&o, argc, argv, NULL, &err) != 0) {
        fail_msg("%s", err.text);
    }
    dt_arena_init(&arena);
}
#define OPEN(...)                                                                                                      \
    do {                                                                                                               \
        char *words[] = {"dtrun", __VA_ARGS__, NULL};                                                                  \
        open_options((int)(sizeof words / sizeof words[0]) - 1, words);                                                \
    } while (0)

static void close_options(void)
{
    options_clear(&o);
    dt_arena_clear(&arena);
}

static struct env_worker worker(void)
{
    return (struct env_worker){.round = 3,
                               .launch = "00c0ffee",
                               .restart_count = 2,
                               .local_rank = 1,
                               .local_world_size = 2,
                               .rank = 5,
                               .world_size = 6,
                               .group_rank = 2,
                               .group_world_size = 3,
                               .role_rank = 5,
                               .role_world_size = 6,
                               .master_addr = "127.0.0.1",
                               .master_port = 29411,
                               .use_agent_store = true,
                               .sizes = "2,1(x2),4",
                               .page = "/proc/1/fd/7",
                               .error_file = "/t/attempt_2/1/error.json",
                               .log_dir = "/t/attempt_2/1"};
}

static int count(char **env, const char *name)
{
    int n = 0;
    for (; *env != NULL; env++) {
        n += strncmp(*env, name, strlen(name)) == 0 && (*env)[strlen(name)] == '=';
    }
    return n;
}

/* What a worker is given cannot be asked for by --export. */
static void test_own_variables_are_known(void **state)
{
    (void)state;
    OPEN("--nproc_per_node=2", "--standalone", "--virtual_local_rank", "doctor");
    struct env_worker w = worker();
    char *inherited[] = {"CUDA_VISIBLE_DEVICES=0,1", "OMP_NUM_THREADS=1", "TORCH_NCCL_ASYNC_ERROR_HANDLING=1",
                         "OTHER=1", NULL},
         **list;
    w.output_dir = "out";
    w.cpu_sharers = 2;
    assert_int_equal(env_build(&o, &w, inherited, &arena, &list, &err), 0);
    assert_true(count(list, "DTRUN_CHOICES") == 1 && count(list, "DTRUN_OUTPUT_DIR") == 1);
    for (char **e = list; *e != NULL; e++) {
        char *name = dt_arena_printf(&arena, "%.*s", (int)strcspn(*e, "="), *e);
        /* this one is an option's */
        bool known = env_is_ours(name) || options_getenv(inherited, name) != NULL || strcmp(name, "DTRUN_LOG_DIR") == 0;
        if (!known) {
            fail_msg("env_is_ours does not know %s", name);
        }
    }
    assert_false(env_is_ours("OTHER"));
    close_options();
}

static void test_table(void **state)
{
    (void)state;
    OPEN("--nproc_per_node=2", "--role=trainer", "--max_restarts=4", "--standalone", "x.py");
    char *inherited[] = {"HOME=/h",
                         "RANK=99",
                         "MINE=kept",
                         "RANK=98",
                         "DTRUN_PAGE=stale",
                         "DTRUN_SNAPSHOTS=stale",
                         "DTRUN_OUTPUT_DIR=stale",
                         "MASTER_PORT=1",
                         "odd",
                         "=x",
                         "EMPTY=",
                         "DTRUN_KEY_FILE=/k",
                         "DTRUN_CPU_SHARERS=9",
                         NULL};
    struct env_worker w = worker();
    char **env;
    assert_int_equal(env_build(&o, &w, inherited, &arena, &env, &err), 0);
    static const char *const table[][2] = {
        {"LOCAL_RANK", "1"},
        {"RANK", "5"},
        {"GROUP_RANK", "2"},
        {"ROLE_RANK", "5"},
        {"ROLE_NAME", "trainer"},
        {"LOCAL_WORLD_SIZE", "2"},
        {"WORLD_SIZE", "6"},
        {"GROUP_WORLD_SIZE", "3"},
        {"ROLE_WORLD_SIZE", "6"},
        {"MASTER_ADDR", "127.0.0.1"},
        {"MASTER_PORT", "29411"},
        {"TORCHELASTIC_RESTART_COUNT", "2"},
        {"TORCHELASTIC_MAX_RESTARTS", "4"},
        {"TORCHELASTIC_USE_AGENT_STORE", "True"},
        {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
        {"TORCHELASTIC_ERROR_FILE", "/t/attempt_2/1/error.json"},
        {"OMP_NUM_THREADS", "1"},
        {"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"},
        {"DTRUN_PAGE", "/proc/1/fd/7"},
        {"DTRUN_ROUND", "3"},
        {"DTRUN_LAUNCH", "00c0ffee"},
        {"DTRUN_HOST_OF_RANK", "0(x2),1,2,3(x4)"},
        {"DTRUN_LOG_DIR", "/t/attempt_2/1"},
        {"HOME", "/h"},
        {"MINE", "kept"},
        {"EMPTY", ""},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        assert_int_equal(count(env, table[i][0]), 1);
        assert_string_equal(options_getenv(env, table[i][0]), table[i][1]);
    }
    assert_string_equal(options_getenv(env, "TORCHELASTIC_RUN_ID"), o.rdzv.run_id);
    static const char *const absent[] = {"DTRUN_KEY_FILE",       "DTRUN_OUTPUT_DIR",          "TORCHELASTIC_TIMER_FILE",
                                         "CUDA_VISIBLE_DEVICES", "NCCL_ASYNC_ERROR_HANDLING", "DTRUN_CPU_SHARERS",
                                         "DTRUN_SNAPSHOTS"};
    for (size_t i = 0; i < sizeof absent / sizeof absent[0]; i++) {
        assert_int_equal(count(env, absent[i]), 0);
    }
    w.cpu_sharers = 3;
    assert_int_equal(env_build(&o, &w, inherited, &arena, &env, &err), 0);
    assert_int_equal(count(env, "DTRUN_CPU_SHARERS"), 1);
    assert_string_equal(options_getenv(env, "DTRUN_CPU_SHARERS"), "3");
    close_options();
}

static void test_omp(void **state)
{
    (void)state;
    struct env_worker w = worker();
    char **env;
    char *set[] = {"OMP_NUM_THREADS=7", "TORCH_NCCL_ASYNC_ERROR_HANDLING=0", NULL};
    char *none[] = {NULL};
    OPEN("--nproc_per_node=2", "x.py");
    assert_true(env_sets_omp(&o, none) && !env_sets_omp(&o, set));
    w.error_file = NULL;
    w.use_agent_store = false;
    assert_int_equal(env_build(&o, &w, set, &arena, &env, &err), 0);
    assert_string_equal(options_getenv(env, "OMP_NUM_THREADS"), "7");
    assert_string_equal(options_getenv(env, "TORCH_NCCL_ASYNC_ERROR_HANDLING"), "0");
    assert_string_equal(options_getenv(env, "TORCHELASTIC_ERROR_FILE"), "");
    assert_string_equal(options_getenv(env, "TORCHELASTIC_USE_AGENT_STORE"), "False");
    close_options();
    OPEN("x.py");
    assert_false(env_sets_omp(&o, none));
    assert_int_equal(env_build(&o, &w, NULL, &arena, &env, &err), 0);
    assert_null(options_getenv(env, "OMP_NUM_THREADS"));
    close_options();
}

static void test_virtual_local_rank(void **state)
{
    (void)state;
    struct env_worker w = worker();
    char **env;
    char *four[] = {"CUDA_VISIBLE_DEVICES=3,GPU-7,1", NULL};
    char *one[] = {"CUDA_VISIBLE_DEVICES=3", NULL};
    char *hip[] = {"CUDA_VISIBLE_DEVICES=3,4", "HIP_VISIBLE_DEVICES=8,9", NULL};
    OPEN("--virtual_local_rank", "--nproc_per_node=2", "x.py");
    assert_int_equal(env_build(&o, &w, NULL, &arena, &env, &err), 0);
    assert_string_equal(options_getenv(env, "LOCAL_RANK"), "0");
    assert_string_equal(options_getenv(env, "CUDA_VISIBLE_DEVICES"), "1");
    assert_int_equal(env_build(&o, &w, four, &arena, &env, &err), 0);
    assert_string_equal(options_getenv(env, "CUDA_VISIBLE_DEVICES"), "GPU-7");
    assert_int_equal(env_build(&o, &w, hip, &arena, &env, &err), 0);
    assert_string_equal(options_getenv(env, "CUDA_VISIBLE_DEVICES"), "9");
    assert_string_equal(options_getenv(env, "HIP_VISIBLE_DEVICES"), "9");
    assert_int_equal(env_build(&o, &w, one, &arena, &env, &err), -1);
    assert_string_equal(
        err.text,
        "--virtual_local_rank: worker 1 of 2 finds no GPU of its own in CUDA_VISIBLE_DEVICES; lower --nproc_per_node");
    close_options();
}

static char *folder;

static void make_program(const char *name, mode_t mode)
{
    char *path = dt_format("%s/%s", folder, name);
    assert_int_equal(dt_file_write(path, "x", 1, &err), 0);
    assert_int_equal(chmod(path, mode), 0);
    free(path);
}

static void test_command(void **state)
{
    (void)state;
    char template[] = "/tmp/dtrun-env-XXXXXX";
    folder = mkdtemp(template);
    assert_non_null(folder);
    make_program("prog", 0755);
    make_program("plain", 0644);
    make_program("python3", 0755);
    make_program("a.py", 0644);
    char *path_variable = dt_format("PATH=/nowhere:%s", folder);
    char *inherited[] = {path_variable, NULL};
    char *wanted = dt_format("%s/prog", folder);
    char *python = dt_format("%s/python3", folder);
    char *script = dt_format("%s/a.py", folder);
    char *plain = dt_format("%s/plain", folder);
    char *path;
    char **argv;

    OPEN("prog", "--r=${local_rank}", "$local_rank", "$$x", "$local_ranks", "${other}", "$", "a${local_rank", "");
    assert_int_equal(env_command(&o, 3, inherited, &arena, &path, &argv, &err), 0);
    assert_string_equal(path, wanted);
    static const char *const expected[] = {"prog", "--r=3",         "3", "$x", "$local_ranks", "${other}",
                                           "$",    "a${local_rank", ""};
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        assert_string_equal(argv[i], expected[i]);
    }
    assert_null(argv[9]);
    close_options();

    OPEN(script, "z");
    assert_int_equal(env_command(&o, 0, inherited, &arena, &path, &argv, &err), 0);
    assert_string_equal(path, python);
    assert_string_equal(argv[0], python);
    assert_string_equal(argv[1], "-u");
    assert_string_equal(argv[2], script);
    assert_string_equal(argv[3], "z");
    char *chosen = dt_format("PYTHON_EXEC=%s", wanted);
    char *with_exec[] = {chosen, NULL};
    assert_int_equal(env_command(&o, 0, with_exec, &arena, &path, &argv, &err), 0);
    assert_string_equal(path, wanted);
    char *bad_exec[] = {"PYTHON_EXEC=/nowhere/python", NULL};
    assert_int_equal(env_command(&o, 0, bad_exec, &arena, &path, &argv, &err), -1);
    assert_string_equal(err.text, "PYTHON_EXEC: /nowhere/python: no such program");
    close_options();

    OPEN("-m", "pkg.mod", "z");
    assert_int_equal(env_command(&o, 0, inherited, &arena, &path, &argv, &err), 0);
    assert_string_equal(argv[2], "-m");
    assert_string_equal(argv[3], "pkg.mod");
    close_options();

    OPEN("--run-path", "plain", "-z"); /* any name; a path as any file's, not looked up in PATH */
    assert_int_equal(env_command(&o, 0, inherited, &arena, &path, &argv, &err), -1);
    assert_string_equal(err.text, "plain: no such file");
    close_options();
    OPEN("--run-path", plain, "-z");
    assert_int_equal(env_command(&o, 0, inherited, &arena, &path, &argv, &err), 0);
    assert_string_equal(path, python);
    assert_string_equal(argv[2], "-c");
    assert_string_equal(argv[4], plain);
    assert_string_equal(argv[5], "-z");
    assert_null(argv[6]);
    close_options();

    OPEN("missing-program");
    assert_int_equal(env_command(&o, 0, inherited, &arena, &path, &argv, &err), -1);
    assert_string_equal(err.text, "missing-program: not found in PATH; check the name, or give a path with /");
    assert_int_equal(err.status, DT_NOT_FOUND);
    close_options();
    OPEN(plain);
    assert_int_equal(env_command(&o, 0, inherited, &arena, &path, &argv, &err), -1);
    assert_non_null(strstr(err.text, "is not an executable file"));
    close_options();
    OPEN("/tmp");
    assert_int_equal(env_command(&o, 0, inherited, &arena, &path, &argv, &err), -1);
    assert_string_equal(err.text, "/tmp: is a directory; give a program in it");
    close_options();
    OPEN("/nowhere/x.py");
    assert_int_equal(env_command(&o, 0, inherited, &arena, &path, &argv, &err), -1);
    assert_string_equal(err.text, "/nowhere/x.py: no such file");
    close_options();

    free(plain);
    free(script);
    free(python);
    free(wanted);
    free(chosen);
    free(path_variable);
    assert_int_equal(dt_file_remove_tree(folder, &err), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_table), cmocka_unit_test(test_omp),
                                       cmocka_unit_test(test_virtual_local_rank),
                                       cmocka_unit_test(test_own_variables_are_known), cmocka_unit_test(test_command)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
