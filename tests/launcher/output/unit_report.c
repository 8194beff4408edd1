/* covers: launcher/output/report.c */
/* Failure reports: error files in all forms (also broken ones), who was first, the text, the
 * parent's file, events. */
#include "launcher/output/report.h"

#include "base/clock.h"
#include "base/file.h"
#include "tests/lib/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char path[128];
static struct dt_error err;

static int setup(void **state)
{
    int rc = folder_setup(state);
    (void)snprintf(path, sizeof path, "%s/error.json", folder);
    return rc != 0 ? rc : setenv("TZ", "UTC", 1);
}

static struct report_failure failure(int rank, int code, double wall_s)
{
    struct report_failure f;
    report_failure_init(&f);
    f.rank = f.local_rank = rank;
    f.pid = 4000 + rank;
    f.exit_code = code;
    f.wall_s = wall_s;
    (void)strcpy(f.host, "node0");
    return f;
}

static struct report_failure read_back(const char *content, size_t size)
{
    struct report_failure f = failure(0, 1, 1795173860.5);
    assert_int_equal(dt_file_write(path, content, size, &err), 0);
    report_read_error_file(&f, path);
    return f;
}

/* A file server that keeps whole seconds says nothing about who of two was first within one. */
static void test_written(void **state)
{
    (void)state;
    double now_s = dt_wall_s();
    struct report_failure f = read_back("{}", 2);
    assert_true(f.written_s > now_s - 1 && f.written_s <= dt_wall_s());
    report_failure_clear(&f);
    assert_int_equal(utimensat(AT_FDCWD, path, (struct timespec[]){{.tv_sec = 1}, {.tv_sec = (time_t)now_s}}, 0), 0);
    f = failure(0, 1, now_s);
    report_read_error_file(&f, path);
    assert_true(f.written_s == 0);
    report_failure_clear(&f);
    int others = 0;
    DIR *d = opendir(folder);
    for (const struct dirent *e; (e = readdir(d)) != NULL;) {
        others += e->d_name[0] != '.' && strcmp(e->d_name, "error.json") != 0;
    }
    (void)closedir(d);
    assert_int_equal(others, 0); /* what it looked with */
}

static void test_error_file(void **state)
{
    (void)state;
    static const char nested[] = "{\"message\": {\"message\": \"ValueError: boom\", \"extraInfo\": {\"py_callstack\": "
                                 "\"Traceback:\\n  line\\n\","
                                 "\"timestamp\": \"1795173859\"}}}";
    static const char flat[] = "{\"message\": \"text\", \"timestamp\": 1795173858}";
    struct report_failure f = read_back(nested, sizeof nested - 1);
    assert_string_equal(f.message, "ValueError: boom");
    assert_string_equal(f.callstack, "Traceback:\n  line\n");
    assert_true(f.file_time_s == 1795173859);
    assert_string_equal(f.error_file, path);
    report_failure_clear(&f);
    f = read_back(flat, sizeof flat - 1);
    assert_string_equal(f.message, "text");
    assert_null(f.callstack);
    assert_true(f.file_time_s == 1795173858);
    report_failure_clear(&f);

    static const char python[] = "{\"message\": {\"message\": \"loss: NaN, \\\"-Infinity\", \"extraInfo\": "
                                 "{\"py_callstack\": \"line\", \"loss\": NaN,"
                                 " \"norms\": [Infinity, -Infinity, -1], \"timestamp\": \"1795173857\"}}}";
    f = read_back(python, sizeof python - 1);
    assert_string_equal(f.message, "loss: NaN, \"-Infinity");
    assert_string_equal(f.callstack, "line");
    assert_true(f.file_time_s == 1795173857);
    assert_non_null(strstr(f.raw, "\"loss: NaN, \\\"-Infinity\""));
    assert_non_null(strstr(f.raw, "\"loss\": null, \"norms\": [null, null, -1],"));
    report_failure_clear(&f);

    static const struct {
        const char *text;
        size_t size;
    } garbage[] = {{"not json", 8},
                   {"{\"message\": 5}", 14},
                   {"[1,2", 4},
                   {"\0\1\2", 3},
                   {"{\"message\":{}}", 14},
                   {"{\"message\":\"a\\", 14},
                   {"NaN", 3},
                   {"{\"message\":-Infinit", 19},
                   {"\"x\"", 3},
                   {"{\"message\":{\"extraInfo\":[]}}", 28},
                   {"{\"message\":\"a\",\"timestamp\":1e999}", 33},
                   {"{\"message\":\"a\",\"timestamp\":\"nan\"}", 34}};
    for (size_t i = 0; i < sizeof garbage / sizeof garbage[0]; i++) {
        f = read_back(garbage[i].text, garbage[i].size);
        assert_true(f.file_time_s == 0);
        struct report_context c = {.title = "x"};
        struct dt_text out;
        dt_text_init(&out);
        report_write(&f, 1, 0, &c, &out);
        dt_text_clear(&out);
        report_failure_clear(&f);
    }
    f = read_back("", 0);
    assert_null(f.error_file);
    char *big = dt_alloc(3u << 20);
    memset(big, 'x', 3u << 20);
    f = read_back(big, 3u << 20);
    assert_non_null(strstr(f.message, "larger than the limit"));
    report_failure_clear(&f);
    free(big);
    /* Deeper than any parser should follow, and a FIFO that nobody writes to. */
    char *deep = dt_alloc(200001);
    memset(deep, '[', 200000);
    f = read_back(deep, 200000);
    report_failure_clear(&f);
    free(deep);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    f = failure(0, 1, 1);
    report_read_error_file(&f, path);
    report_read_error_file(&f, NULL);
    report_read_error_file(&f, "");
    assert_null(f.error_file);
    assert_int_equal(unlink(path), 0);
}

static void test_root(void **state)
{
    (void)state;
    struct report_failure f[3] = {failure(0, -15, 100.9), failure(1, -9, 100.5), failure(2, 1, 100.7)};
    f[0].stopped_by_us = true;
    assert_int_equal(report_root(f, 3), 1);
    f[2].file_time_s = 99; /* its own word: a second before */
    assert_int_equal(report_root(f, 3), 2);
    f[0].file_time_s = 98; /* stopped by us while it was going down already */
    assert_int_equal(report_root(f, 3), 0);
    f[0].file_time_s = 99; /* no earlier than the others: written because we stopped it */
    assert_int_equal(report_root(f, 3), 2);
    f[0].file_time_s = 100, f[0].written_s = 100.2; /* by its file in the same second, but before
                                                     * the first end was noticed, at 100.5 */
    f[2].file_time_s = 0;
    assert_int_equal(report_root(f, 3), 0);
    f[0].written_s = 100.48; /* so shortly before that it may have written because of that end */
    assert_int_equal(report_root(f, 3), 1);
    f[2].file_time_s = 100, f[2].written_s = 100.1; /* failed before, and took its time to end */
    assert_int_equal(report_root(f, 3), 2);
    f[0].written_s = 100.05;
    assert_int_equal(report_root(f, 3), 0);
    f[0].written_s = f[2].written_s = 0;
    f[2].file_time_s = 5000; /* cannot be true */
    f[0].file_time_s = 100;
    assert_int_equal(report_root(f, 3), 1);
    assert_int_equal(report_root(f, 1), 0);
    assert_int_equal(report_root(f, 0), -1);
}

static void cause_is(const struct report_failure *f, int count, int root, const char *expected)
{
    struct dt_text out;
    dt_text_init(&out);
    report_cause(f, count, root, &out);
    assert_string_equal(dt_text_str(&out), expected);
    dt_text_clear(&out);
}

static void test_cause(void **state)
{
    (void)state;
    struct report_failure f[3] = {failure(0, -15, 1), failure(1, -9, 1), failure(2, 17, 1)};
    f[0].stopped_by_us = f[2].stopped_by_us = true;
    cause_is(f, 3, 1,
             "dtrun: host node0 rank 1 (local 1, pid 4001): killed by signal 9 (SIGKILL); 2 other ranks stopped "
             "because of it");
    cause_is(f + 2, 1, 0, "dtrun: host node0 rank 2 (local 2, pid 4002): exit code 17");
    f[2].stopped_by_us = false;
    f[2].host[0] = '\0';
    (void)strcpy(f[2].note, "job.json:1:2: lr: must be\n\033[31mabove 0\xc2\x9b");
    cause_is(f, 3, 2,
             "dtrun: rank 2 (local 2, pid 4002): exit code 17: job.json:1:2: lr: must be ?[31mabove 0?; 1 other rank "
             "failed, too; "
             "1 other rank stopped because of it");
    (void)strcpy(f[1].note, "killed by the kernel, out of memory (limit 64.0 GiB of the control group)");
    cause_is(f + 1, 1, 0,
             "dtrun: host node0 rank 1 (local 1, pid 4001): killed by the kernel, out of memory (limit 64.0 GiB of the "
             "control group)");
    char name[32];
    assert_string_equal(report_signal_name(11, name, sizeof name), "SIGSEGV");
    assert_string_equal(report_signal_name(32, name, sizeof name), "signal 32");
    assert_string_equal(report_signal_name(36, name, sizeof name), "SIGRTMIN+2");
}

static void test_block(void **state)
{
    (void)state;
    struct report_failure f = failure(1, -9, 1795173860.5);
    struct report_context c = {
        .title = "train.py", .log_dir = "/tmp/t", .tail = "one\ntwo\n", .restarts_used = 2, .restarts_max = 2};
    struct dt_text out;
    dt_text_init(&out);
    report_write(&f, 1, 0, &c, &out);
    assert_string_equal(
        dt_text_str(&out),
        "dtrun: host node0 rank 1 (local 1, pid 4001): killed by signal 9 (SIGKILL); no restart left (2 of 2 used)\n"
        "last lines of rank 1:\none\ntwo\n"
        "=====================================================\n"
        "train.py FAILED\n"
        "-----------------------------------------------------\n"
        "Failures:\n"
        "  <NO_OTHER_FAILURES>\n"
        "-----------------------------------------------------\n"
        "Root Cause (first observed failure):\n"
        "[0]:\n"
        "  time      : 2026-11-20_11:24:20\n"
        "  host      : node0\n"
        "  rank      : 1 (local_rank: 1)\n"
        "  exitcode  : -9 (pid: 4001)  (SIGKILL)\n"
        "  error_file: <N/A>\n"
        "  traceback : Signal 9 (SIGKILL) received by PID 4001\n"
        "=====================================================\n"
        "dtrun: logs are in /tmp/t\n");
    dt_text_clear(&out);
    struct report_failure two[2] = {failure(0, 1, 1795173859), failure(1, -15, 1795173860)};
    two[1].stopped_by_us = true;
    two[0].callstack = dt_strdup("Traceback:\n  File\nKeyError\n");
    two[0].error_file = dt_strdup("/e");
    struct report_context plain = {.title = "a\nb"};
    report_write(two, 2, 0, &plain, &out);
    assert_non_null(strstr(dt_text_str(&out), "\na b FAILED\n"));
    assert_non_null(strstr(dt_text_str(&out), "Failures:\n[1]:\n"));
    assert_non_null(strstr(dt_text_str(&out), "  error_file: /e\n  traceback : Traceback:\n    File\n  KeyError\n==="));
    dt_text_clear(&out);
    report_failure_clear(&two[0]);
}

static void test_note_once(void **state)
{
    (void)state;
    struct dt_text out;
    dt_text_init(&out);
    /* all ranks end with the same words */
    struct report_failure f[2] = {failure(0, 100, 1795173860), failure(1, 100, 1795173860)};
    (void)strcpy(f[0].note, "checkpoint of step 4: No space left on device");
    (void)strcpy(f[1].note, f[0].note);
    struct report_context c = {.title = "train"};
    report_write(f, 2, 1, &c, &out);
    const char *first = strstr(dt_text_str(&out), "No space left");
    assert_non_null(first);
    assert_null(strstr(first + 1, "No space left"));
    dt_text_clear(&out);
}

static void parent_is(const struct report_failure *f, const char *expected)
{
    struct dt_text text;
    dt_text_init(&text);
    assert_int_equal(report_write_parent(path, f, &err), 0);
    assert_int_equal(dt_file_read(path, 65536, &text, &err), 0);
    assert_string_equal(dt_text_str(&text), expected);
    dt_text_clear(&text);
}

static void test_parent(void **state)
{
    (void)state;
    struct report_failure f = failure(1, -9, 1795173860.5);
    assert_int_equal(report_write_parent("", &f, &err), 0);
    assert_int_equal(report_write_parent(NULL, &f, &err), 0);
    parent_is(&f, "{\"message\":{\"message\":\"dtrun: host node0 rank 1 (local 1, pid 4001): killed by signal 9 "
                  "(SIGKILL)\",\"extraInfo\":{\"py_callstack\":"
                  "\"dtrun: host node0 rank 1 (local 1, pid 4001): killed by signal 9 "
                  "(SIGKILL)\",\"timestamp\":\"1795173860\"},\"errorCode\":-9}}");
    f.raw = dt_strdup("{\"message\":{\"message\":\"m\",\"extraInfo\":{\"timestamp\":\"5\"},\"errorCode\":3}}");
    f.exit_code = 1;
    parent_is(&f, "{\"message\":{\"message\":\"m\",\"extraInfo\":{\"timestamp\":\"5\"},\"errorCode\":1}}");
    free(f.raw);
    f.raw = dt_strdup("{\"message\":\"flat\",\"timestamp\":5}");
    parent_is(&f, "{\"message\":\"flat\",\"timestamp\":5}");
    assert_int_equal(report_write_parent("/nowhere/x", &f, &err), -1);
    report_failure_clear(&f);
}

static void test_events(void **state)
{
    (void)state;
    struct dt_text text;
    dt_text_init(&text);
    struct report_failure f = failure(1, -9, 5);
    (void)strcpy(f.host, "a\"b");
    (void)unlink(path);
    assert_int_equal(report_event(NULL, "round", "\"round\":1", &err), 0);
    assert_int_equal(report_event(path, "round", "\"round\":1", &err), 0);
    assert_int_equal(report_event(path, "done", NULL, &err), 0);
    report_event_failure(&f, &text);
    assert_int_equal(report_event(path, "failure", dt_text_str(&text), &err), 0);
    assert_int_equal(dt_file_read(path, 65536, &text, &err), 0);
    const char *p = dt_text_str(&text);
    assert_int_equal(strncmp(p, "{\"time\":\"20", 11), 0);
    assert_non_null(strstr(p, "Z\",\"event\":\"round\",\"round\":1}\n"));
    assert_non_null(strstr(p, "Z\",\"event\":\"done\"}\n"));
    assert_non_null(strstr(p, "\"event\":\"failure\",\"rank\":1,\"local_rank\":1,\"pid\":4001,\"exit_code\":-9,"
                              "\"stopped_by_us\":false,\"host\":\"a\\\"b\","
                              "\"cause\":\"killed by signal 9 (SIGKILL)\"}\n"));
    assert_int_equal(report_event("/nowhere/x", "done", NULL, &err), -1);
    dt_text_clear(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_error_file), cmocka_unit_test(test_root),
                                       cmocka_unit_test(test_cause),      cmocka_unit_test(test_block),
                                       cmocka_unit_test(test_parent),     cmocka_unit_test(test_note_once),
                                       cmocka_unit_test(test_events),     cmocka_unit_test(test_written)};
    return cmocka_run_group_tests(tests, setup, folder_teardown);
}
