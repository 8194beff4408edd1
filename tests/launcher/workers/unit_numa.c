/* covers: launcher/workers/numa.c */
/* Sets of CPUs and their text; masks on small trees of files (tests/launcher/workers/story_numa.py
 * compares many with torch's). */
#include "launcher/workers/numa.h"

#include "base/file.h"
#include "tests/lib/folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void put(const char *value, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void put(const char *value, const char *fmt, ...)
{
    char name[256], path[512];
    struct dt_error err;
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(name, sizeof name, fmt, args);
    va_end(args);
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    dt_file_strip(path);
    assert_int_equal(dt_file_mkdirs(path, &err), 0);
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    assert_true(fputs(value, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void sets_and_their_text(void **state)
{
    (void)state;
    static const struct {
        const char *text, *printed; /* printed null: refused */
        int count;
    } rows[] = {{"0-3,8\n", "0-3,8", 5},
                {"", "", 0},
                {"\n", "", 0},
                {"5", "5", 1},
                {"7,0-1,3-3", "0-1,3,7", 4},
                {"62-65", "62-65", 4},
                {"8191", "8191", 1},
                {"0-8191", "0-8191", 8192},
                {"8192", NULL, 0},
                {"0-9999999999", NULL, 0},
                {"3-1", NULL, 0},
                {"1-", NULL, 0},
                {"-1", NULL, 0},
                {"a", NULL, 0},
                {"1,,2", NULL, 0},
                {"1 2", NULL, 0},
                {"1-2-3", NULL, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct cpus c;
        struct dt_error err;
        struct dt_text text;
        int result = cpus_parse(&c, rows[i].text, &err);
        assert_int_equal(result, rows[i].printed != NULL ? 0 : -1);
        if (result != 0) {
            assert_int_equal(err.status, DT_INVALID);
            continue;
        }
        dt_text_init(&text);
        cpus_print(&c, &text);
        assert_string_equal(dt_text_str(&text), rows[i].printed);
        assert_int_equal(cpus_count(&c), rows[i].count);
        dt_text_clear(&text);
    }
    struct cpus a = {{0}}, b = {{0}}, both;
    cpus_add(&a, 3);
    cpus_add(&a, 700);
    cpus_add(&b, 700);
    assert_true(cpus_intersect(&both, &a, &b));
    assert_int_equal(cpus_next(&both, -1), 700);
    assert_int_equal(cpus_next(&both, 700), -1);
    assert_false(cpus_has(&a, CPUS_MAX));
    assert_false(cpus_has(&a, -1));
    cpus_add(&both, 5);
    assert_false(cpus_intersect(&both, &both, &(struct cpus){{8}}));
    assert_int_equal(cpus_allowed(&a, NULL), 0);
    assert_true(cpus_count(&a) >= 1);
}

/* Two sockets with two nodes each, but node 3 has only memory; two threads per core, i and i +
 * 12; node 0 has cores 0-3, of which 0-2 share a cache, node 1 has 4-7 with a cache each, node 2
 * has 8-11. */
static void make_machine(void)
{
    static const char *const nodes[] = {"0-3,12-15\n", "4-7,16-19\n", "8-11,20-23\n", "\n"};
    char text[64];
    put("0-4\n", "devices/system/node/possible");
    for (int i = 0; i < 4; i++) {
        put(nodes[i], "devices/system/node/node%d/cpulist", i);
    }
    for (int cpu = 0; cpu < 24; cpu++) {
        int core = cpu % 12;
        put(core < 8 ? "0\n" : "1\n", "devices/system/cpu/cpu%d/topology/physical_package_id", cpu);
        (void)snprintf(text, sizeof text, "%d,%d\n", core, core + 12);
        put(text, "devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
        put("Data\n", "devices/system/cpu/cpu%d/cache/index3/type", cpu); /* index2 is not there */
        put("1\n", "devices/system/cpu/cpu%d/cache/index3/level", cpu);
        put(text, "devices/system/cpu/cpu%d/cache/index3/shared_cpu_list", cpu);
        put("Instruction\n", "devices/system/cpu/cpu%d/cache/index1/type", cpu);
        put("9\n", "devices/system/cpu/cpu%d/cache/index1/level", cpu);
        put("0-23\n", "devices/system/cpu/cpu%d/cache/index1/shared_cpu_list", cpu);
        put("Unified\n", "devices/system/cpu/cpu%d/cache/index0/type", cpu);
        put("3\n", "devices/system/cpu/cpu%d/cache/index0/level", cpu);
        put(core < 3 ? "0-2,12-14\n" : text, "devices/system/cpu/cpu%d/cache/index0/shared_cpu_list", cpu);
    }
}

static void masks(void **state)
{
    (void)state;
    static const struct {
        enum numa_mode mode;
        const char *allowed;
        int nodes[4], device; /* devices' nodes, ended by -1 unless four */
        const char *mask;     /* or what the error says, after "!" */
    } rows[] = {
        {NUMA_BY_NODE, "0-23", {1, -1}, 0, "4-7,16-19"},
        {NUMA_BY_NODE, "0-4,6", {1, -1}, 0, "4,6"},
        {NUMA_BY_NODE, "0-3", {0, 1, -1}, 1, "!node 1 has CPUs 4-7,16-19, and this process may use 0-3"},
        {NUMA_BY_NODE, "0-3", {3, -1}, 0, "!node 3 has no CPU, and this process may use 0-3"},
        {NUMA_BY_NODE, "0-3", {4, -1}, 0, "!/devices/system/node/node4/cpulist: No such file"},
        {NUMA_BY_SOCKET, "0-23", {1, -1}, 0, "0-7,12-19"},
        {NUMA_BY_SOCKET, "0-23", {2, -1}, 0, "8-11,20-23"},
        {NUMA_BY_SOCKET, "4-11", {1, -1}, 0, "4-7"},            /* nothing of node 0 */
        {NUMA_EXCLUSIVE, "0-23", {0, 1, 0, 0}, 0, "0-1,12-13"}, /* four cores for three devices */
        {NUMA_EXCLUSIVE, "0-23", {0, 1, 0, 0}, 2, "2,14"},
        {NUMA_EXCLUSIVE, "0-23", {0, 1, 0, 0}, 3, "3,15"},
        {NUMA_EXCLUSIVE, "0-23", {0, 1, 0, 0}, 1, "4-7,16-19"},
        {NUMA_EXCLUSIVE, "1-3,12", {0, 0, -1}, 1, "2-3"}, /* core 0 has one thread left, which
                                                           * still names it */
        {NUMA_EXCLUSIVE, "1-3,12", {0, 0, -1}, 0, "1,12"},
        {NUMA_EXCLUSIVE,
         "0,12,1",
         {0, 0, 0, -1},
         1,
         "!exclusive: node 0 has 2 physical cores to share out among 3; use node"},
        {NUMA_BY_CORE_COMPLEX, "0-23", {0, 0, 0, -1}, 0, "0-2,12-14"},
        {NUMA_BY_CORE_COMPLEX, "0-23", {0, 0, 0, -1}, 1, "3,15"},
        {NUMA_BY_CORE_COMPLEX, "0-23", {0, 0, 0, -1}, 2, "0-2,12-14"}, /* round again */
        {NUMA_BY_CORE_COMPLEX, "2-23", {0, 0, -1}, 0, "2,12-14"},
        {NUMA_BY_CORE_COMPLEX, "14-15,3", {0, 0, -1}, 0, "3,15"}, /* more of it may be used */
        {NUMA_BY_CORE_COMPLEX, "4,5,17,18", {1, 1, 1, -1}, 0, "5,17"},
        {NUMA_BY_CORE_COMPLEX, "4,5,17,18", {1, 1, 1, -1}, 2, "18"},
    };
    make_machine();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct numa n = {.sys = folder, .mode = rows[i].mode, .nodes = rows[i].nodes};
        struct dt_error err;
        struct cpus mask;
        struct dt_text text;
        while (n.device_count < 4 && rows[i].nodes[n.device_count] >= 0) {
            n.device_count++;
        }
        assert_int_equal(cpus_parse(&n.allowed, rows[i].allowed, &err), 0);
        dt_text_init(&text);
        if (numa_mask(&n, rows[i].device, &mask, &err) != 0) {
            dt_text_printf(&text, "!%s", err.text);
        } else {
            cpus_print(&mask, &text);
        }
        bool right = rows[i].mask[0] == '!'
                         ? text.size > 0 && text.data[0] == '!' && strstr(text.data, rows[i].mask + 1) != NULL
                         : strcmp(dt_text_str(&text), rows[i].mask) == 0;
        if (!right) {
            fail_msg("row %zu: %s, not %s", i, dt_text_str(&text), rows[i].mask);
        }
        dt_text_clear(&text);
    }
}

static void devices_that_are_none(void **state)
{
    (void)state;
    static const struct {
        const char *allowed;
        int count;
        const char *nodes; /* or null: refused */
    } rows[] = {{"0-23", 1, "0"},    {"0-23", 2, "01"},     {"0-23", 3, "012"},
                {"0-23", 4, "0012"}, {"0-23", 6, "001122"}, {"0-23", 8, "00011122"},
                {"4-11", 2, "12"},   {"20", 3, "222"},      {"30", 1, NULL}};
    make_machine();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct cpus allowed;
        struct dt_error err;
        int nodes[8] = {0};
        assert_int_equal(cpus_parse(&allowed, rows[i].allowed, &err), 0);
        int result = numa_spread(folder, &allowed, rows[i].count, nodes, &err);
        assert_int_equal(result, rows[i].nodes != NULL ? 0 : -1);
        for (int k = 0; result == 0 && k < rows[i].count; k++) {
            assert_int_equal(nodes[k], rows[i].nodes[k] - '0');
        }
    }
}

static void nodes_of_addresses(void **state)
{
    (void)state;
    static const struct {
        const char *address, *text;
        int node; /* -1: refused */
    } rows[] = {{"0000:3b:00.0", "1\n", 1},
                {"0000:3c:00.0", "-1\n", 0},
                {"0000:3d:00.0", "0\n", 0},
                {"0000:3e:00.0", "x\n", -1},
                {"0000:3f:00.0", "99999\n", -1}};
    int node;
    struct dt_error err;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        put(rows[i].text, "bus/pci/devices/%s/numa_node", rows[i].address);
        node = -7;
        assert_int_equal(numa_node_of(folder, rows[i].address, &node, &err), rows[i].node < 0 ? -1 : 0);
        assert_int_equal(node, rows[i].node < 0 ? -7 : rows[i].node);
    }
    assert_int_equal(numa_node_of(folder, "0000:99:00.0", &node, &err), -1);
    assert_non_null(strstr(err.text, "bus/pci/devices/0000:99:00.0/numa_node: No such file"));
    enum numa_mode mode;
    assert_int_equal(numa_mode_of("core-complex", &mode), 0);
    assert_int_equal(mode, NUMA_BY_CORE_COMPLEX);
    assert_int_equal(numa_mode_of("core", &mode), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sets_and_their_text), cmocka_unit_test_setup_teardown(masks, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(devices_that_are_none, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(nodes_of_addresses, folder_setup, folder_teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
