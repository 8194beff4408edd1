/* covers: launcher/options */
/* The command line: torchrun's options and their value rules, variables, errors, help, and what
 * follows from several options together. */
#include "launcher/options/exports.h"
#include "launcher/options/options_table.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct options o;
static struct dt_error err;
static char *env[16]; /* of the next read; emptied by it */

/* Reads words separated by single blanks ("_" stands for an empty word's absence: none). */
static int read_line(const char *line)
{
    char *copy = strdup(line);
    char *argv[64] = {"dtrun"};
    int argc = 1;
    for (char *p = copy, *word; (word = strsep(&p, " ")) != NULL && argc < 63;) {
        if (*word != '\0') {
            argv[argc++] = word;
        }
    }
    memset(&err, 0, sizeof err);
    int result = options_read(&o, argc, argv, env, &err);
    free(copy);
    memset(env, 0, sizeof env);
    return result;
}

static void good(const char *line)
{
    if (read_line(line) != 0) {
        fail_msg("%s: %s", line, err.text);
    }
}

static void bad(const char *line, const char *text)
{
    if (read_line(line) == 0) {
        fail_msg("%s: was accepted", line);
    }
    if (strcmp(err.text, text) != 0) {
        fail_msg("%s:\n  says  %s\n  not   %s", line, err.text, text);
    }
    assert_int_equal(err.status, DT_INVALID);
}

static void test_defaults(void **state)
{
    (void)state;
    good("a.out x --nproc_per_node=3 -h");
    assert_int_equal(o.action, OPTIONS_RUN);
    assert_int_equal(o.nproc, 1);
    assert_int_equal(o.arg_count, 3);
    assert_string_equal(o.args[1], "--nproc_per_node=3");
    assert_null(o.args[3]);
    assert_int_equal(o.entry, OPTIONS_ENTRY_PROGRAM);
    assert_int_equal(o.max_restarts, 0);
    assert_true(o.standalone);
    assert_string_equal(o.rdzv_backend, "c10d");
    assert_int_equal(strlen(o.run_id), 36);
    assert_string_equal(o.master_addr, "127.0.0.1");
    assert_int_equal(o.master_port, 0);
    assert_true(o.shutdown_timeout_s == 30 && o.monitor_interval_s == 0.1);
    assert_true(o.signals[SIGTERM] && o.signals[SIGINT] && o.signals[SIGHUP] && o.signals[SIGQUIT] &&
                !o.signals[SIGUSR1]);
    assert_true(o.shown[0] && o.shown[OPTIONS_MAX_LOCAL - 1] && !o.filtered);
    assert_true(o.redirects[0] == 0 && o.tee[0] == 0 && o.log_dir == NULL && o.prefix_template == NULL);
    assert_string_equal(o.role, "default");
    assert_int_equal(o.requeue_exit_code, 75);
    assert_string_equal(dt_text_str(&o.warnings), "");
    options_clear(&o);
}

static void test_spellings(void **state)
{
    (void)state;
    static const char *const lines[] = {"--nproc_per_node=4 p", "--nproc-per-node=4 p",
                                        "--nproc-per-node 4 p", "--nproc_per-node 4 -- p",
                                        "--nproc=4 p",          "--nproc_per_node=2 --nproc-per-node=4 p"};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        good(lines[i]);
        assert_int_equal(o.nproc, 4);
        assert_string_equal(o.program, "p");
        assert_string_equal(options_source(&o, OPTION_nproc_per_node), "--nproc_per_node");
        options_clear(&o);
    }
    static const char *const masks[] = {"-r3 p",          "-r 3 p", "-r=3 p",         "--redirects=3 p",
                                        "--redirect 3 p", "-mr3 p", "--redirects 3 p"};
    for (size_t i = 0; i < sizeof masks / sizeof masks[0]; i++) {
        good(masks[i]);
        assert_int_equal(o.redirects[7], 3);
        assert_int_equal(o.tee[7], 0);
        options_clear(&o);
    }
    /* ambiguous for torchrun, too */
    bad("--log=/tmp/x p", "--log: could be --log_dir, --log_line_prefix_template or --logs_specs; write it out");
}

static void test_program(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        enum options_entry entry;
        bool bundled;
        int max_restarts;
    } cases[] = {
        {"train job.json", OPTIONS_ENTRY_PROGRAM, true, 3},
        {"--max_restarts=0 train job.json", OPTIONS_ENTRY_PROGRAM, true, 0},
        {"./train job.json", OPTIONS_ENTRY_PROGRAM, false, 0},
        {"my.py --lr 1", OPTIONS_ENTRY_PYTHON, false, 0},
        {"--no_python my.py", OPTIONS_ENTRY_PROGRAM, false, 0},
        {"-m pkg.mod", OPTIONS_ENTRY_MODULE, false, 0},
        {"-m train", OPTIONS_ENTRY_MODULE, false, 0},
        {"--no-python train", OPTIONS_ENTRY_PROGRAM, true, 3},
        {"--run-path my.py", OPTIONS_ENTRY_RUN_PATH, false, 0},
        {"--run_path train", OPTIONS_ENTRY_RUN_PATH, false, 0},
        {"--run_path -m --no_python my.py", OPTIONS_ENTRY_RUN_PATH, false, 0}, /* as torchrun has it */
        {".py", OPTIONS_ENTRY_PROGRAM, false, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        good(cases[i].line);
        assert_int_equal(o.entry, cases[i].entry);
        assert_int_equal(o.bundled, cases[i].bundled);
        assert_int_equal(o.max_restarts, cases[i].max_restarts);
        options_clear(&o);
    }
    bad("-m --no_python x", "--module: cannot go with --no_python; leave one out");
    bad("", "no PROGRAM given; usage: dtrun [options] PROGRAM [args], see dtrun --help");
    bad("--nproc_per_node 2", "no PROGRAM given; usage: dtrun [options] PROGRAM [args], see dtrun --help");
}

static void test_exports(void **state)
{
    (void)state;
    env[0] = "HERE=1";
    env[1] = "DTRUN_EXPORT=OF_THE_VARIABLE=1"; /* the command line wins */
    good("-m --export=A=a\\,b\\c,HERE,_2= -x A,HERE -r3 -xB=x=y p -x C=1");
    static const char *const wanted[] = {"A=a,b\\c", "HERE", "_2=", "A", "HERE", "B=x=y"};
    assert_int_equal(o.export_count, 6);
    for (int i = 0; i < 6; i++) {
        assert_string_equal(o.exports[i], wanted[i]);
    }
    assert_int_equal(o.own_word_count, 2); /* what the agents of --hostfile are told in their
                                            * command lines */
    assert_string_equal(o.own_words[0], "-m");
    assert_string_equal(o.own_words[1], "-r3");
    assert_int_equal(o.arg_count, 2);
    options_clear(&o);
    env[0] = "DTRUN_EXPORT=A=1,B=2";
    good("p");
    assert_int_equal(o.export_count, 2);
    assert_string_equal(o.exports[1], "B=2");
    options_clear(&o);
    good("--export= p");
    assert_int_equal(o.export_count, 0);
    options_clear(&o);
}

static bool passes(const char *line, const char *variable)
{
    good(line);
    bool result = exports_passes(&o, variable);
    options_clear(&o);
    return result;
}

static void test_what_goes_to_other_hosts(void **state)
{
    (void)state;
    static const char *const anyway[] = {"NCCL_DEBUG=INFO",
                                         "GLOO_SOCKET_IFNAME=lo",
                                         "TP_SOCKET_IFNAME=lo",
                                         "UCX_TLS=tcp",
                                         "FI_PROVIDER=tcp",
                                         "CUDA_LAUNCH_BLOCKING=1",
                                         "TORCH_LOGS=all",
                                         "PYTORCH_CUDA_ALLOC_CONF=x",
                                         "OMP_NUM_THREADS=1",
                                         "WANDB_MODE=offline",
                                         "HF_HOME=/x",
                                         "PYTHONPATH=x",
                                         "CUBLAS_WORKSPACE_CONFIG=:4096:8",
                                         "PATH=/bin",
                                         "DTRUN_DEVICE=cpu"};
    static const char *const never[] = {"HOME=/root",       "USER=x",
                                        "TMPDIR=/x",        "SSH_AUTH_SOCK=x",
                                        "MY_VAR=1",         "NCCL",
                                        "RANK=1",           "TORCHELASTIC_RUN_ID=x",
                                        "PATHS=x",          "CUDA_VISIBLE_DEVICES=0",
                                        "DTRUN_KEY_FILE=x", "DTRUN_EXPORT=A=1",
                                        "DTRUN_HOSTFILE=x", "DTRUN_PAGE=x",
                                        "HF_%x=1"};
    for (size_t i = 0; i < sizeof anyway / sizeof *anyway; i++) {
        if (!passes("p", anyway[i])) {
            fail_msg("%s stays here", anyway[i]);
        }
    }
    for (size_t i = 0; i < sizeof never / sizeof *never; i++) {
        if (passes("-x OTHER=1 p", never[i])) {
            fail_msg("%s goes to other hosts", never[i]);
        }
    }
    assert_true(passes("-x CUDA_VISIBLE_DEVICES=0 p", "CUDA_VISIBLE_DEVICES=0"));
    assert_true(passes("-x A=1,MY_VAR=2 p", "MY_VAR=2"));
    assert_false(passes("-x A=1,MY_VAR=2 p", "MY_VARS=2"));
    assert_false(passes("-x A=1,MY_VAR=2 p", "MY=2"));
}

static void test_values_that_look_secret_are_hidden(void **state)
{
    (void)state;
    static const struct {
        const char *variable, *shown;
    } cases[] = {{"HF_TOKEN=x", "HF_TOKEN=(hidden)"},
                 {"WANDB_API_KEY=x", "WANDB_API_KEY=(hidden)"},
                 {"MY_KEYS=x", "MY_KEYS=(hidden)"},
                 {"aws_secret_access_key=x", "aws_secret_access_key=(hidden)"},
                 {"PGPASSWORD=x", "PGPASSWORD=(hidden)"},
                 {"DB_PASS=x", "DB_PASS=(hidden)"},
                 {"PROXY=http://me:word@host", "PROXY=(hidden)"},
                 {"MYSQL_PWD=x", "MYSQL_PWD=(hidden)"},
                 {"INDEX=https://ghp_abc@host/x", "INDEX=(hidden)"},
                 {"INDEX=http://host/ https://me:pass/word@host/x", "INDEX=(hidden)"},
                 {"MAIL=me@host", "MAIL=me@host"},
                 {"PROXY=http://host:80/", "PROXY=http://host:80/"},
                 {"TOKENIZERS_PARALLELISM=false", "TOKENIZERS_PARALLELISM=false"},
                 {"KEYBOARD=x", "KEYBOARD=x"},
                 {"NCCL_DEBUG=IN FO", "NCCL_DEBUG='IN FO'"},
                 {"NAME", "NAME="},
                 {"_=", "_=''"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dt_text out;
        dt_text_init(&out);
        exports_show(&o, cases[i].variable, &out);
        assert_string_equal(dt_text_str(&out), cases[i].shown);
        dt_text_clear(&out);
    }
    good("-x DB_PASSWORD=hunter2,tail=S3cret,B=x -x A=1,C=2 p");
    static const char *const listed[] = {"DB_PASSWORD=(hidden)", "tail=(hidden)", "B=(hidden)", "A=1", "C=2"};
    for (size_t i = 0; i < sizeof listed / sizeof *listed; i++) {
        struct dt_text out;
        dt_text_init(&out);
        exports_show(&o, o.exports[i], &out);
        assert_string_equal(dt_text_str(&out), listed[i]);
        dt_text_clear(&out);
    }
    options_clear(&o);
}

static void values_are_overwritten_in_the_command_line(void **state)
{
    (void)state;
    char *argv[] = {"dtrun", "--export=A=1,HF_TOKEN=se,cret", "-x", strdup("B=2"), "-xWANDB_API_KEY=x", "p", NULL};
    char *word = strdup("--export=A=1,HF_TOKEN=secret"), *short_word = strdup("-xWANDB_API_KEY=x");
    argv[1] = word;
    argv[4] = short_word;
    assert_int_equal(options_read(&o, 6, argv, env, &err), 0);
    exports_hide(&o); /* in what ps shows of us */
    assert_string_equal(word, "--export=A=*****************");
    assert_string_equal(short_word, "-xWANDB_API_KEY=*");
    assert_string_equal(argv[3], "B=*"); /* whatever it looks like */
    assert_string_equal(o.exports[1], "HF_TOKEN=secret");
    options_clear(&o);
    free(argv[3]);
    free(word);
    free(short_word);
}

static void test_variables(void **state)
{
    (void)state;
    env[0] = "PET_NPROC_PER_NODE=3";
    env[1] = "PET_REDIRECTS=1";
    env[2] = "PET_STANDALONE=1";
    env[3] = "PET_RDZV_ID=mine";
    env[4] = "DTRUN_HANG_TIMEOUT=2m";
    env[5] = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=7";
    env[6] = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=";
    env[7] = "PET_RUN_PATH=0";
    good("-r 2 p");
    assert_int_equal(o.nproc, 3);
    assert_int_equal(o.redirects[0], 2);
    assert_true(o.standalone && strcmp(o.run_id, "mine") != 0);
    assert_true(o.hang_timeout_s == 120 && o.shutdown_timeout_s == 7);
    assert_string_equal(o.prefix_template, "");
    assert_string_equal(options_source(&o, OPTION_nproc_per_node), "PET_NPROC_PER_NODE");
    options_clear(&o);
    env[0] = "PET_SHUTDOWN_TIMEOUT=5";
    env[1] = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=7";
    env[2] = "PET_RDZV_ID=mine";
    good("p");
    assert_true(o.shutdown_timeout_s == 5);
    assert_string_equal(o.run_id, "mine");
    options_clear(&o);
    env[0] = "PET_MASTER_ADDR=h2";
    good("--nnodes=2 --rdzv_endpoint=h1:29501 p");
    assert_string_equal(dt_text_str(&o.warnings), "dtrun: PET_MASTER_ADDR: h2: not used; --rdzv_endpoint says h1\n");
    options_clear(&o);
    env[0] = "PET_STANDALONE=yes";
    bad("p", "PET_STANDALONE: yes: must be a number, 0 or 1");
    env[0] = "PET_NPROC_PER_NODE=";
    bad("p",
        "PET_NPROC_PER_NODE: (empty): must be a number from 1 to 4096, or gpu, cpu, auto; example: --nproc_per_node=4");
}

static void test_gpu_nodes(void **state)
{
    (void)state;
    static const char *const names[] = {"nvidia3", "nvidia12", "nvidiactl", "nvidia-uvm", "nvidia", "nvidia1p", "null"};
    char folder[] = "/tmp/test_options-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        (void)fclose(f);
    }
    int count = option_count_gpu_nodes(folder);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        (void)remove(path);
    }
    (void)rmdir(folder);
    assert_int_equal(count, 2); /* as a container has them: not from 0, and with gaps */
    assert_int_equal(option_count_gpu_nodes(folder), 0);
}

static void test_counts(void **state)
{
    (void)state;
    env[0] = "CUDA_VISIBLE_DEVICES=0,2,7,-1,3";
    good("--nproc_per_node=gpu p");
    assert_int_equal(o.nproc, 3);
    options_clear(&o);
    env[0] = "CUDA_VISIBLE_DEVICES=0,2,7,-1,3";
    good("--nproc_per_node=3 p");
    assert_string_equal(dt_text_str(&o.warnings), "");
    options_clear(&o);
    env[0] = "CUDA_VISIBLE_DEVICES=0,1,2,3";
    good("--nproc_per_node=8 p"); /* they may be for CPUs, or share GPUs: said, not refused */
    assert_string_equal(dt_text_str(&o.warnings),
                        "dtrun: --nproc_per_node: 8 workers asked, 4 GPUs visible (CUDA_VISIBLE_DEVICES=0,1,2,3); "
                        "lower it if each worker needs its own\n");
    options_clear(&o);
    env[0] = "CUDA_VISIBLE_DEVICES=0,1,2,3";
    bad("--nproc_per_node=8 --virtual_local_rank p",
        "--virtual_local_rank: 8 workers asked, 4 GPUs visible (CUDA_VISIBLE_DEVICES=0,1,2,3); lower --nproc_per_node");
    env[0] = "CUDA_VISIBLE_DEVICES=5,-1";
    good("--nproc_per_node=2 --virtual_local_rank p");
    options_clear(&o);
    env[0] = "CUDA_VISIBLE_DEVICES=";
    bad("--nproc_per_node=gpu p",
        "--nproc_per_node: gpu: no GPU here (CUDA_VISIBLE_DEVICES, NVML, /dev/nvidia*); use a number, cpu or auto");
    env[0] = "CUDA_VISIBLE_DEVICES=";
    good("--nproc_per_node=auto p");
    assert_int_equal(o.nproc, options_cpu_count());
    options_clear(&o);
    env[0] = "CUDA_VISIBLE_DEVICES=1";
    good("--nproc_per_node=auto p");
    assert_int_equal(o.nproc, 1);
    options_clear(&o);
    good("--nproc_per_node=4096 p");
    assert_int_equal(o.nproc, 4096);
    options_clear(&o);
    assert_in_range(options_cpu_count(), 1, 4096);
}

static void test_masks(void **state)
{
    (void)state;
    good("-r 0:1,1:2,12:3 -t 0 --local_ranks_filter=0,12 p");
    assert_true(o.redirects[0] == 1 && o.redirects[1] == 2 && o.redirects[2] == 0 && o.redirects[12] == 3);
    assert_true(o.filtered && o.shown[0] && o.shown[12] && !o.shown[1]);
    options_clear(&o);
    static const char *const wrong[] = {
        "4",    "0:4", "0:1,", "a:1", "0:1,,1:2", "-1:2", "4096:1", "99999999999999999999:1",
        "0:12", " 3",  "3 ",   ":1",  "0:"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char *argv[] = {"dtrun", (char *)(uintptr_t) "-t", NULL, (char *)(uintptr_t) "p", NULL};
        char joined[64];
        (void)snprintf(joined, sizeof joined, "--tee=%s", wrong[i]);
        argv[1] = joined;
        argv[2] = "p";
        assert_int_equal(options_read(&o, 3, argv, env, &err), -1);
        assert_non_null(strstr(err.text, "--tee: "));
    }
    good("--duplicate_stdout_filters=a,,b,c p");
    assert_string_equal(o.stdout_filters[0], "a,b");
    assert_string_equal(o.stdout_filters[1], "c");
    assert_null(o.stdout_filters[2]);
    assert_null(o.stderr_filters);
    options_clear(&o);
}

static void test_store(void **state)
{
    (void)state;
    static const struct {
        const char *line, *addr;
        int port;
        bool standalone;
        const char *warning;
    } cases[] = {
        {"--master_port=29501 p", "127.0.0.1", 29501, false, ""},
        {"--master_addr=::1 --master_port=29501 p", "::1", 29501, false, ""},
        {"--rdzv_endpoint=[::1]:29500 p", "::1", 29500, false, ""},
        {"--rdzv_endpoint=localhost:29500 p", "localhost", 29500, false, ""},
        {"--rdzv_endpoint=localhost:29500 --master_addr=other p", "localhost", 29500, false,
         "dtrun: --master_addr: other: not used; --rdzv_endpoint says localhost\n"},
        {"--nnodes=2 --rdzv_endpoint=h1:29501 --master_addr=h2 --node_rank=0 p", "h1", 29501, false,
         "dtrun: --master_addr: h2: not used; --rdzv_endpoint says h1\n"},
        {"--nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=10.0.0.1 --master_addr=10.0.0.2 p", "10.0.0.1", 29400, false,
         "dtrun: --master_addr: 10.0.0.2: not used; --rdzv_endpoint says 10.0.0.1\n"},
        {"--nnodes=2 --rdzv_endpoint=[::1]:29500 --master_addr=::1 p", "::1", 29500, false, ""},
        {"--nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=Host1 --master_addr=host1 p", "Host1", 29400, false, ""},
        {"--rdzv_backend=c10d --rdzv_endpoint=h1 --master_addr=h2 --rdzv_id=7 p", "127.0.0.1", 0, false,
         "dtrun: --master_addr: h2: not used; the workers of one host meet at 127.0.0.1\n"},
        {"--rdzv_backend=c10d --rdzv_endpoint=localhost --rdzv_id=7 p", "127.0.0.1", 0, false, ""},
        {"--standalone --rdzv_endpoint=://// --master_port=29501 p", "127.0.0.1", 0, true, ""},
        {"--master_addr=host p", "127.0.0.1", 0, true, ""},
        {"--local_addr=127.0.0.2 p", "127.0.0.2", 0, true, ""},
        {"--rdzv_backend=c10d --rdzv_conf=timeout=\"900\",is_host=1,x='y',join_timeout=5 p", "127.0.0.1", 0, false, ""},
        {"--nnodes=2 --rdzv_backend=etcd-v3 --rdzv_endpoint=127.0.0.1,[::1] --rdzv_conf=user_file=u p", "127.0.0.1",
         2379, false,
         "dtrun: --rdzv_conf: user_file: name and password go to 127.0.0.1 in plain text, without https\n"},
        {"--nnodes=2 --rdzv_backend=etcd-v3 --rdzv_endpoint=h1:1 --rdzv_conf=user_file=u,protocol=http p", "h1", 1,
         false, "dtrun: --rdzv_conf: user_file: name and password go to h1 in plain text, without https\n"},
        {"--nnodes=2 --rdzv_backend=etcd-v3 --rdzv_endpoint=h1 --rdzv_conf=protocol=https,user_file=u p", "h1", 2379,
         false, ""},
        {"--rdzv_backend=c10d --rdzv_conf=read_timeout=9,last_call_timout=5 p", "127.0.0.1", 0, false,
         "dtrun: --rdzv_conf: last_call_timout: unknown, without effect; did you mean last_call_timeout?\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        good(cases[i].line);
        assert_string_equal(o.master_addr, cases[i].addr);
        assert_int_equal(o.master_port, cases[i].port);
        assert_int_equal(o.standalone, cases[i].standalone);
        assert_string_equal(dt_text_str(&o.warnings), cases[i].warning);
        options_clear(&o);
    }
    good("--rdzv_conf=keep_alive_interval=2,keep_alive_max_attempt=4,timeout=77 p");
    assert_true(o.dead_after_s == 8 && o.join_timeout_s == 77);
    options_clear(&o);
    good("--rdzv_backend=c10d --rdzv_conf=keep_alive_interval=2,timeout=77 --dead_after=9 p");
    assert_true(o.dead_after_s == 9 && o.join_timeout_s == 600);
    options_clear(&o);
    good("--standalone --rdzv_conf=timeout=x,is_host=No p"); /* as c10d does */
    assert_true(o.join_timeout_s == 600 && o.is_host == 0);
    options_clear(&o);
    good("--rdzv_backend=c10d --rdzv_conf=is_host=TRUE p");
    assert_int_equal(o.is_host, 1);
    options_clear(&o);
    good("p");
    assert_true(o.dead_after_s == 15);
    options_clear(&o);
    good("--rdzv_conf=join_timeout=5,last_call_timeout=6 --last_call=7 --time_scale=10 p");
    assert_true(o.join_timeout_s == 0.5 && o.last_call_s == 0.7 && o.shutdown_timeout_s == 3);
    options_clear(&o);
}

static void test_errors(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"--nproc_per_node=0 p",
         "--nproc_per_node: 0: must be a number from 1 to 4096, or gpu, cpu, auto; example: --nproc_per_node=4"},
        {"--nproc_per_node=4097 p",
         "--nproc_per_node: 4097: must be a number from 1 to 4096, or gpu, cpu, auto; example: --nproc_per_node=4"},
        {"--nproc_per_node=xpu p", "--nproc_per_node: xpu: not supported; use a number, gpu, cpu or auto"},
        {"--nproc_per_nod3=1 p", "--nproc_per_nod3: unknown option; did you mean --nproc_per_node?"},
        {"--max-restart-s=1 p", "--max-restart-s: unknown option; did you mean --max_restarts?"},
        {"--zzz p", "--zzz: unknown option; dtrun --help=all shows all"},
        {"-z p", "-z: unknown option; dtrun --help=all shows all"},
        {"-np 4 p", "-np: unknown option; did you mean --nproc_per_node?"},
        {"-n4 p", "-n4: unknown option; did you mean --nproc_per_node?"},
        {"-N 2 p", "-N: unknown option; did you mean --nnodes?"},
        {"--num-gpus=2 p", "--num-gpus: unknown option; did you mean --nproc_per_node?"},
        {"-nq p", "-nq: unknown option; dtrun --help=all shows all"},
        {"--n 2 p",
         "--n: could be --nproc_per_node, --nnodes, --node_rank, --no_python or --numa_binding; write it out"},
        {"--nnodes=2 --rdzv_endpoint=http://localhost:29603 p",
         "--rdzv_endpoint: http://localhost:29603: must be HOST:PORT; leave out http://"},
        {"--rdzv=c10d p", "--rdzv: could be --rdzv_backend, --rdzv_endpoint, --rdzv_id or --rdzv_conf; write it out"},
        {"--standalone=1 p", "--standalone: takes no value; write --standalone alone"},
        {"--role --standalone p", "--role: needs a value; write --role=NAME"},
        {"-r", "-r: needs a value; write -r MASK"},
        {"--max_restarts=-1 p",
         "--max_restarts: -1: must be a whole number from 0 to 1000000; example: --max_restarts=1"},
        {"--max_restarts=1.5 p",
         "--max_restarts: 1.5: must be a whole number from 0 to 1000000; example: --max_restarts=1"},
        {"--nnodes=0 p", "--nnodes: 0: must be N or MIN:MAX with 1 <= MIN <= MAX <= 10240; example: --nnodes=2:4"},
        {"--nnodes=3:2 p", "--nnodes: 3:2: must be N or MIN:MAX with 1 <= MIN <= MAX <= 10240; example: --nnodes=2:4"},
        {"--nnodes=10241 p",
         "--nnodes: 10241: must be N or MIN:MAX with 1 <= MIN <= MAX <= 10240; example: --nnodes=2:4"},
        {"--master_port=65536 p",
         "--master_port: 65536: must be a whole number from 0 to 65535; example: --master_port=29500"},
        {"--time_scale=0 p", "--time_scale: 0: must be a number from 0.001 to 1000000; example: --time_scale=10"},
        {"--tee=4096:1 p", "--tee: 4096:1: must be 0, 1, 2 or 3 (1: stdout, 2: stderr), or local ranks (0 to 4095) "
                           "with masks; examples: --tee=3, --tee=0:1,1:3"},
        {"--nnodes=1:2 --standalone p", "--standalone: is for one host; leave it out, or use --nnodes=1"},
        {"--node_rank=1 --master_port=1 p", "--node_rank: 1: must be below --nnodes (1)"},
        {"--export=NOT_SET p", "--export: NOT_SET: is not set here; set it, or write NOT_SET=VALUE"},
        {"--export=NOT_SET,A=1 p", "--export: NOT_SET: is not set here; set it, or write NOT_SET=VALUE"},
        {"-x DB_PASSWORD=hunter2,S3cret p",
         "--export: item 2: is not set here; set it, or write \\, for a comma of a value"},
        {"-x A=1 -x B=2,C=3,NOT_SET p",
         "--export: item 3: is not set here; set it, or write \\, for a comma of a value"},
        {"--export=A=1,2,B=3 p", "--export: item 2: must be NAME or NAME=VALUE, a name of letters, digits and _; write "
                                 "\\, for a comma of a value"},
        {"-x 1A=secret p",
         "-x: item 1: must be NAME or NAME=VALUE, a name of letters, digits and _; write \\, for a comma of a value"},
        {"--export==x p", "--export: item 1: must be NAME or NAME=VALUE, a name of letters, digits and _; write \\, "
                          "for a comma of a value"},
        {"-x A=1,RANK=3 p", "-x: RANK: dtrun gives each worker its own; leave it out"},
        {"-x MASTER_ADDR p", "-x: MASTER_ADDR: dtrun gives each worker its own; leave it out"},
        {"-x PET_NNODES=2 p", "-x: PET_NNODES: stands for an option; give --nnodes"},
        {"-x TORCH_ELASTIC_SHUTDOWN_TIMEOUT=2 p",
         "-x: TORCH_ELASTIC_SHUTDOWN_TIMEOUT: stands for an option; give --shutdown_timeout"},
        {"-mxA=1 p", "-x: stands alone; write -x NAME[=VALUE],..."},
        {"-x", "-x: needs a value; write -x NAME[=VALUE],..."},
        {"--hostfile=/no/file p",
         "--hostfile: /no/file: No such file or directory; make it, one line per host: NAME slots=N"},
        {"--rdzv_backend=etcd-v2 p", "--rdzv_backend: etcd-v2: not supported: needs etcd's version 2, which newer ones "
                                     "do not have; use c10d or etcd-v3"},
        {"--rdzv_backend=zeus p", "--rdzv_backend: zeus: unknown backend; must be static, c10d or etcd-v3"},
        {"--nnodes=2 --rdzv_backend=etcd-v3 --rdzv_endpoint=a,b:x p",
         "--rdzv_endpoint: b:x: the port must be a number from 0 to 65535; example: localhost:29500"},
        {"--nnodes=2 --rdzv_backend=etcd-v3 --rdzv_conf=protocol=ftp p",
         "--rdzv_conf: protocol: ftp: must be http or https"},
        {"--nnodes=2 --rdzv_backend=etcd-v3 --rdzv_conf=cacert=f p",
         "--rdzv_conf: cacert, cert and key: need protocol=https"},
        {"--nnodes=2 --rdzv_backend=etcd-v3 --rdzv_endpoint=127.0.0.1,h1 --rdzv_conf=user_file=u p",
         "--rdzv_conf: user_file: without https name and password go to h1 in plain text; add protocol=https, or "
         "protocol=http where the network is "
         "to be trusted"},
        {"--nnodes=2 --rdzv_backend=etcd-v3 --rdzv_conf=protocol=https,cert=f p",
         "--rdzv_conf: cert and key: need each other"},
        {"--rdzv_endpoint=host p",
         "--rdzv_endpoint: host: needs a port with the static backend; example: --rdzv_endpoint=host:29500"},
        {"--rdzv_endpoint=fd00::1 p", "--rdzv_endpoint: fd00::1: an IPv6 address needs brackets; example: [::1]:29500"},
        {"--rdzv_endpoint=h:99999 p",
         "--rdzv_endpoint: h:99999: the port must be a number from 0 to 65535; example: localhost:29500"},
        {"--rdzv_endpoint=a/b:1 p", "--rdzv_endpoint: a/b:1: a host name has letters, digits and _ . : - only"},
        {"--rdzv_conf=a p", "--rdzv_conf: a: must be KEY=VALUE,KEY=VALUE; example: --rdzv_conf=join_timeout=300"},
        {"--rdzv_conf=a=,b=1 p",
         "--rdzv_conf: a=,b=1: must be KEY=VALUE,KEY=VALUE; example: --rdzv_conf=join_timeout=300"},
        {"--rdzv_conf=keep_alive_interval=x p",
         "--rdzv_conf: keep_alive_interval: x: must be a number above 0, at most 864000"},
        {"--rdzv_backend=c10d --rdzv_conf=store_type=file --rdzv_endpoint=/shared/f p",
         "--rdzv_conf: store_type: file: hosts meet over TCP only; leave it out and give --rdzv_endpoint=HOST:PORT"},
        {"--rdzv_conf=timeout=abc p", "--rdzv_conf: timeout: abc: must be seconds above 0, at most 864000"},
        {"--rdzv_conf=timeout=-1 p", "--rdzv_conf: timeout: -1: must be seconds above 0, at most 864000"},
        {"--rdzv_conf=is_host=maybe p", "--rdzv_conf: is_host: maybe: must be true or false"},
        {"--rdzv_conf=join_timeout=0 p", "--rdzv_conf: join_timeout: 0: must be seconds above 0, at most 864000"},
        {"--shutdown_timeout=-1 p",
         "--shutdown_timeout: -1: must be seconds from 0, at most 86400; examples: --shutdown_timeout=30, 500ms, 5m"},
        {"--monitor_interval=0 p",
         "--monitor_interval: 0: must be seconds above 0, at most 86400; examples: --monitor_interval=30, 500ms, 5m"},
        {"--start_method=run p", "--start_method: run: must be one of spawn|fork|forkserver"},
        {"--local_ranks_filter=0,x p", "--local_ranks_filter: 0,x: must be local ranks from 0 to 4095, separated by "
                                       "commas; example: --local_ranks_filter=0,2"},
        {"--local_ranks_filter=0, p", "--local_ranks_filter: 0,: must be local ranks from 0 to 4095, separated by "
                                      "commas; example: --local_ranks_filter=0,2"},
        {"--ranks_filter=0,-1 p",
         "--ranks_filter: 0,-1: must be global ranks, separated by commas; example: --ranks_filter=0,8"},
        {"--ranks_filter=0,,1 p",
         "--ranks_filter: 0,,1: must be global ranks, separated by commas; example: --ranks_filter=0,8"},
        {"--rdzv_id=a/b p", "--rdzv_id: a/b: must be at most 128 letters, digits, '.', '_' and '-', no '.' first; "
                            "example: --rdzv_id=run-7"},
        {"--rdzv_id=%s p", "--rdzv_id: %s: must be at most 128 letters, digits, '.', '_' and '-', no '.' first; "
                           "example: --rdzv_id=run-7"},
        {"--rdzv_id= p", "--rdzv_id: (empty): must be at most 128 letters, digits, '.', '_' and '-', no '.' first; "
                         "example: --rdzv_id=run-7"},
        {"--role=a\nb p",
         "--role: a?b: must be at most 63 bytes of UTF-8, without control characters; example: --role=trainer"},
        {"--nnodes=2 --rdzv_backend=c10d p",
         "--rdzv_endpoint: not given; the hosts of a c10d job meet at one; example: --rdzv_endpoint=host0:29400"},
        {"--signals_to_handle=SIGKILL p",
         "--signals_to_handle: SIGKILL: this signal cannot be handled; example: --signals_to_handle=SIGTERM,SIGUSR1"},
        {"--signals_to_handle=SIGX p",
         "--signals_to_handle: SIGX: no such signal; example: --signals_to_handle=SIGTERM,SIGUSR1"},
        {"--nproc_per_node=2 --stdin=2 p", "--stdin: 2: must be a rank of the job, 0 to 1"},
        {"--stdin=-1 p", "--stdin: -1: must be a rank of the whole job, all or none; example: --stdin=3"},
        {"--stdin=some p", "--stdin: some: must be a rank of the whole job, all or none; example: --stdin=3"},
        {"--exit_code=maybe p", "--exit_code: maybe: must be one of launcher|worker"},
        {"--logs_specs=mine p", "--logs_specs: mine: must be default: Python plug-ins cannot run in dtrun"},
        {"--port_range=5 p",
         "--port_range: 5: must be LO-HI with 1 <= LO <= HI <= 65535, or any; example: --port_range=20000-20100"},
        {"--cluster=zeus p",
         "--cluster: zeus: must be one of slurm lsf pbs flux mpi kubeflow kubernetes pytorchjob none"},
        {"--cluster=slurm p", "--cluster: slurm: none of its variables is set here; leave the option out, or use none"},
        {"--help=x", "--help: x: must be all, or nothing"},
        {"--print_completion=fish", "--print_completion: fish: must be one of bash|zsh|tcsh"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bad(cases[i][0], cases[i][1]);
    }
    /* A long or odd value neither breaks the line nor floods it. */
    char *argv[] = {"dtrun", NULL, "p", NULL};
    char value[600] = "--nproc_per_node=a\nb\033[31m";
    memset(value + strlen(value), 'x', 500);
    argv[1] = value;
    assert_int_equal(options_read(&o, 3, argv, env, &err), -1);
    assert_null(strchr(err.text, '\n'));
    assert_null(strchr(err.text, '\033'));
    assert_true(strlen(err.text) < 250);
}

static void test_others(void **state)
{
    (void)state;
    good("--signals_to_handle=SIGUSR1,TERM --exit_code=worker --permanent_exit_codes=93,99 --port_range=20000-20010 "
         "--virtual_local_rank "
         "--event_log_handler=console --shutdown_timeout=500ms p");
    assert_true(o.signals[SIGUSR1] && o.signals[SIGTERM] && !o.signals[SIGINT]);
    assert_true(o.exit_code_worker && o.permanent_code_count == 2 && o.permanent_codes[1] == 99);
    assert_true(o.port_lo == 20000 && o.port_hi == 20010 && o.virtual_local_rank && o.shutdown_timeout_s == 0.5);
    assert_true(o.torch_events && o.warnings.size == 0);
    options_clear(&o);
    good("--store_users=root,1001,4294967294 p");
    assert_true(o.store_user_count == 3 && o.store_users[0] == 0 && o.store_users[1] == 1001 &&
                o.store_users[2] == 4294967294u);
    options_clear(&o);
    static const char *const wrong[] = {"no.such.user", "4294967295", "-1"};
    for (int i = 0; i < 3; i++) {
        char line[64], text[160];
        (void)snprintf(line, sizeof line, "--store_users=root,%s p", wrong[i]);
        (void)snprintf(
            text, sizeof text,
            "--store_users: %s: must be a user of this host, by name or number; example: --store_users=nobody,1001",
            wrong[i]);
        bad(line, text);
    }
    bad("--store_users=root,,1 p",
        "--store_users: root,,1: must be at most 64 users, separated by commas; example: --store_users=nobody,1001");
    good("--dry_run --nproc_per_node=2 p.py a'b $x --c=1");
    assert_int_equal(o.action, OPTIONS_DRY_RUN);
    struct dt_text text;
    dt_text_init(&text);
    options_describe(&o, (char *[]){"HOME=/", NULL}, &text);
    assert_non_null(strstr(dt_text_str(&text), "workers   2 (--nproc_per_node), role default\n"));
    assert_non_null(strstr(dt_text_str(&text), "command   python3 -u p.py 'a'\\''b' '$x' --c=1\n"));
    assert_non_null(strstr(dt_text_str(&text), "output    inherited\n"));
    dt_text_clear(&text);
    options_clear(&o);
    good("--stdin=all p");
    assert_int_equal(o.stdin_rank, OPTIONS_STDIN_ALL);
    options_clear(&o);
    good("--nproc_per_node=8 --stdin 7 p");
    assert_int_equal(o.stdin_rank, 7);
    options_clear(&o);
    good("--version --nonsense");
    assert_int_equal(o.action, OPTIONS_VERSION);
    options_clear(&o);
}

/* At most 80 columns; the first screen at most 24 lines; nothing common missing from the long
 * one. */
static void test_help(void **state)
{
    (void)state;
    good("--nproc_per_node=2 -h --nonsense");
    assert_int_equal(o.action, OPTIONS_HELP);
    options_clear(&o);
    good("--help=all");
    assert_int_equal(o.action, OPTIONS_HELP_ALL);
    options_clear(&o);
    for (int all = 0; all < 2; all++) {
        struct dt_text text;
        dt_text_init(&text);
        options_help(&text, all);
        int lines = 0;
        for (const char *p = dt_text_str(&text); *p != '\0'; p += strcspn(p, "\n") + 1) {
            if (strcspn(p, "\n") > 80) {
                fail_msg("too wide: %.*s", (int)strcspn(p, "\n"), p);
            }
            lines++;
        }
        assert_true(all || lines <= 24);
        assert_non_null(strstr(dt_text_str(&text), "--nproc_per_node=N|gpu|cpu|auto"));
        assert_true(!all || strstr(dt_text_str(&text), "PET_MAX_RESTARTS") != NULL);
        dt_text_clear(&text);
    }
    static const char *const shells[] = {"bash", "zsh", "tcsh"};
    for (int i = 0; i < 3; i++) {
        struct dt_text text;
        dt_text_init(&text);
        options_completion(&text, shells[i]);
        assert_non_null(strstr(dt_text_str(&text), "--nproc_per_node="));
        dt_text_clear(&text);
    }
    good("--print-completion bash");
    assert_int_equal(o.action, OPTIONS_COMPLETION);
    options_clear(&o);
}

/* Each option has its row, and is found by its name in either spelling. */
static void test_rows(void **state)
{
    (void)state;
    for (int i = 0; i < OPTION_COUNT; i++) {
        char name[64];
        assert_non_null(option_rows[i].name);
        assert_int_equal(option_find(option_rows[i].name), i);
        (void)snprintf(name, sizeof name, "%s", option_rows[i].name);
        for (char *c = name; *c != '\0'; c++) {
            *c = *c == '_' ? '-' : *c;
        }
        assert_int_equal(option_find(name), i);
    }
    assert_int_equal(option_find("nproc_per_nod"), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_spellings),
        cmocka_unit_test(test_program),
        cmocka_unit_test(test_exports),
        cmocka_unit_test(test_what_goes_to_other_hosts),
        cmocka_unit_test(test_values_that_look_secret_are_hidden),
        cmocka_unit_test(values_are_overwritten_in_the_command_line),
        cmocka_unit_test(test_variables),
        cmocka_unit_test(test_gpu_nodes),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_masks),
        cmocka_unit_test(test_store),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_others),
        cmocka_unit_test(test_help),
        cmocka_unit_test(test_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
