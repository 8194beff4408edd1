/* covers: launcher/options/options_accelerate.c launcher/options/options_words.c */
/* accelerate's words for the launcher: its file, num_processes of all hosts, names of its options, and
 * who counts where two of them say a value. */
#include "base/file.h"
#include "launcher/options/options.h"
#include "tests/lib/folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct options o;
static struct dt_error err;
static char *env[4]; /* of the next read; emptied by it */

/* `line` holds FILE where the path of the file is meant. */
static int read_line(const char *line)
{
    static char path[sizeof folder + 16];
    char *copy = strdup(line), *argv[32] = {"dtrun"};
    int argc = 1;
    (void)snprintf(path, sizeof path, "%s/a.yaml", folder);
    for (char *p = copy, *word; (word = strsep(&p, " ")) != NULL && argc < 31;) {
        argv[argc++] = strcmp(word, "FILE") == 0 ? path : word;
    }
    memset(&err, 0, sizeof err);
    int result = options_read(&o, argc, argv, env, &err);
    free(copy);
    memset(env, 0, sizeof env);
    return result;
}

static void write_yaml(const char *text)
{
    char path[sizeof folder + 16];
    (void)snprintf(path, sizeof path, "%s/a.yaml", folder);
    assert_int_equal(dt_file_write(path, text, strlen(text), &err), 0);
}

/* Reads a line that must do; warnings are `said`, without "dtrun: ". */
static void good(const char *line, const char *said)
{
    if (read_line(line) != 0) {
        fail_msg("%s: %s", line, err.text);
    }
    const char *warnings = dt_text_str(&o.warnings);
    assert_string_equal(*warnings != 0 ? warnings + strlen("dtrun: ") : "", said);
}

static void bad(const char *line, const char *text)
{
    if (read_line(line) == 0) {
        fail_msg("%s: was accepted", line);
    }
    const char *at = strstr(err.text, folder); /* the folder's name is not compared */
    assert_string_equal(at == err.text ? err.text + strlen(folder) + 1 : err.text, text);
    assert_int_equal(err.status, DT_INVALID);
}

#define TWO                                                                                                            \
    "distributed_type: MULTI_CPU\nnum_processes: 8\nnum_machines: 2\nmachine_rank: 1\nmain_process_ip: host0\n"        \
    "main_process_port: 2000\nrdzv_backend: static\nsame_network: true\nmixed_precision: BF16\nuse_cpu: true\n"

static void test_file(void **state)
{
    (void)state;
    write_yaml(TWO);
    good("--config_file FILE x", "");
    assert_true(o.world.nnodes_max == 2 && o.world.nproc == 4 && o.world.node_rank == 1);
    assert_string_equal(o.rdzv.master_addr, "host0");
    assert_int_equal(o.rdzv.master_port, 2000);
    assert_string_equal(options_source(&o, OPTION_nnodes), "a.yaml:3:1: num_machines");
    assert_int_equal(o.exports.count, 2); /* of another program than train */
    assert_string_equal(o.exports.list[0], "ACCELERATE_MIXED_PRECISION=bf16");
    assert_string_equal(o.exports.list[1], "ACCELERATE_USE_CPU=true");
    options_clear(&o);
    good("--config-file FILE train job.json", "");
    assert_int_equal(o.exports.count, 0);
    assert_int_equal(o.program.arg_count, 7);
    assert_string_equal(o.program.args[1], "--config");
    assert_string_equal(o.program.args[4], "accelerate.num_processes=null");
    assert_null(o.program.args[7]);
    options_clear(&o);
    good("--config_file FILE train job.json --config=own.yaml", ""); /* which is left alone */
    assert_int_equal(o.program.arg_count, 2);
    options_clear(&o);
    write_yaml(
        "distributed_type: MULTI_CPU\nnum_processes: 6\nnum_machines: 3\nmain_process_ip: host0\nrdzv_backend: c10d\n"
        "machine_rank: 2\n");
    good("--config_file FILE x", "a.yaml:6:1: machine_rank: 2: no effect with c10d, which numbers the hosts\n");
    assert_string_equal(o.rdzv.endpoint, "host0"); /* c10d's port */
    assert_true(o.rdzv.master_port == 29400 && o.world.nproc == 2);
    options_clear(&o);
    write_yaml("distributed_type: NO\n");
    good("--config_file FILE x", "");
    assert_true(o.world.nproc == 1 && o.world.nnodes_max == 1);
    options_clear(&o);
    write_yaml("distributed_type: MULTI_GPU\nnum_processes: -1\nmain_process_port: 3000\nmain_process_ip: null\n");
    good("--config_file FILE x", "");
    assert_string_equal(o.world.nproc_text, "auto");
    assert_int_equal(o.rdzv.master_port, 3000);
    options_clear(&o);
}

static void test_two_owners(void **state)
{
    (void)state;
    write_yaml(TWO);
    good("--config_file FILE --nproc_per_node 3 --machine_rank 0 x",
         "a.yaml:2:1: num_processes: 4, but --nproc_per_node: 3: the command line counts\n"
         "dtrun: a.yaml:4:1: machine_rank: 1, but --machine_rank: 0: that counts\n");
    assert_true(o.world.nproc == 3 && o.world.node_rank == 0);
    options_clear(&o);
    good("--config_file FILE --num_processes 12 --num_machines 4 x",
         "a.yaml:3:1: num_machines: 2, but --num_machines: 4: the command line counts\n"
         "dtrun: a.yaml:2:1: num_processes: 8, but --num_processes: 12: that counts\n");
    assert_true(o.world.nproc == 3 && o.world.nnodes_max == 4);
    options_clear(&o);
    env[0] = "PET_NNODES=5";
    env[1] = "PET_NODE_RANK=0";
    good("--config_file FILE x", "a.yaml:4:1: machine_rank: 1, but PET_NODE_RANK: 0: that counts\n"
                                 "dtrun: number of hosts: a.yaml:3:1: num_machines says 2, PET_NNODES says 5; "
                                 "a.yaml:3:1: num_machines counts\n");
    assert_true(o.world.nnodes_max == 2 && o.world.node_rank == 0);
    options_clear(&o);
}

static void test_words(void **state)
{
    (void)state;
    good("--num_processes 8 --num-machines 2 --machine_rank 1 --main_process_ip h --main_process_port 2000 "
         "--rdzv_backend "
         "c10d x",
         "");
    assert_true(o.world.nproc == 4 && o.world.nnodes_max == 2 && o.world.node_rank == 1);
    assert_string_equal(o.rdzv.endpoint, "h:2000");
    options_clear(&o);
    good("--num_processes 2 --num_machines 1 --main_process_ip ::1 --main_process_port 2000 --rdzv_backend c10d x", "");
    assert_true(o.world.nproc == 2 && o.rdzv.master_port == 0);
    options_clear(&o);
    bad("--num_processes 7 --num_machines 2 x", "--num_processes: 7: not a multiple of the 2 hosts (--num_machines)");
    bad("--num_processes 4 --nnodes 1:2 x",
        "--num_processes: counts the workers of all hosts, whose number --nnodes leaves open; give --nproc_per_node "
        "instead");
    bad("--num_processes 4 --nproc_per_node 4 x",
        "--num_processes: counts the workers of all hosts, and --nproc_per_node 4 those of each; leave one out");
    bad("--num_processes 0 x", "--num_processes: 0: must be a number of workers, 1 or more");
    bad("--machine_rank one --num_machines 2 x",
        "--machine_rank: one: must be a whole number from 0 to 65535; example: --node_rank=1");
}

static void test_bad_files(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"num_processes: 2\n",
         "a.yaml: distributed_type: missing; add one of NO, MULTI_GPU, MULTI_CPU, FSDP, DEEPSPEED"},
        {"distributed_type: NO\nnum_procesess: 2\n",
         "a.yaml:2:1: num_procesess: unknown key; did you mean num_processes?"},
        {"distributed_type: MULTI_CPU\nnum_processes: 3\nnum_machines: 2\n",
         "a.yaml:2:1: num_processes: 3: not a multiple of the 2 hosts (a.yaml:3:1: num_machines)"},
        {"distributed_type: MULTI_CPU\nnum_machines: 0\n",
         "a.yaml:2:15: num_machines: is 0; give a whole number from 1 to 10240"},
        {"distributed_type: MULTI_GPU\ngpu_ids: 0,2\n", "a.yaml:2:1: gpu_ids: not read; set CUDA_VISIBLE_DEVICES=0,2"},
        {"distributed_type: [\n", NULL},
        {"distributed_type: FSDP\nfsdp_config: {}\nnum_processes: 2\n",
         "--config_file: distributed_type FSDP: only train reads its block; start x by accelerate launch"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_yaml(cases[i][0]);
        if (cases[i][1] != NULL) {
            bad("--config_file FILE x", cases[i][1]);
        } else {
            assert_int_equal(read_line("--config_file FILE x"), -1);
            assert_null(strchr(err.text, '\n'));
        }
    }
    assert_int_equal(read_line("--config_file /no/file x"), -1);
    assert_string_equal(err.text, "--config_file: /no/file: No such file or directory");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_file), cmocka_unit_test(test_two_owners),
                                       cmocka_unit_test(test_words), cmocka_unit_test(test_bad_files)};
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
