/* covers: base/arena.c base/bench.c base/clock.c base/crash.c base/error.c base/file.c base/library.c */
/* covers: base/page.c base/log.c base/text.c base/proc.c base/cgroup.c */
/* base/: errors, text, numbers, files. */
#include "base/arena.h"
#include "base/bench.h"
#include "base/clock.h"
#include "base/crash.h"
#include "base/error.h"
#include "base/file.h"
#include "base/library.h"
#include "base/page.h"
#include "base/log.h"
#include "base/proc.h"
#include "base/text.h"

#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void errors_hold_the_first_cause(void **state)
{
    (void)state;
    struct dt_error err;
    assert_int_equal(dt_fail(&err, DT_INVALID, "rank %d: %s", 3, "late"), -1);
    assert_int_equal(dt_wrap(&err, "round %d", 7), -1);
    assert_string_equal(err.text, "round 7: rank 3: late");
    assert_int_equal(err.status, DT_INVALID);
    errno = ENOENT;
    (void)dt_fail_errno(&err, "%s", "x");
    assert_int_equal(err.status, DT_NOT_FOUND);
    assert_string_equal(err.text, "x: No such file or directory");
    assert_int_equal(dt_fail(NULL, DT_IO, "nobody listens"), -1);
    char large[2000];
    memset(large, 'a', sizeof large);
    large[sizeof large - 1] = 0;
    (void)dt_fail(&err, DT_IO, "%s", large);
    (void)dt_wrap(&err, "%s", large);
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
}

/* A peer's number is a status of ours or a failure: never DT_OK, with which nobody would end. */
static void a_status_from_elsewhere_is_one(void **state)
{
    (void)state;
    for (long i = DT_INVALID; i <= DT_USAGE; i++) {
        assert_int_equal(dt_status_of(i), i);
    }
    const long none[] = {DT_OK, -1, DT_USAGE + 1, 1L << 32, (1L << 32) + DT_INVALID, LONG_MIN, LONG_MAX};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        assert_int_equal(dt_status_of(none[i]), DT_INTERNAL);
    }
}

static void text_grows_and_quotes(void **state)
{
    (void)state;
    struct dt_text t;
    dt_text_init(&t);
    assert_string_equal(dt_text_str(&t), "");
    for (int i = 0; i < 1000; i++) {
        dt_text_printf(&t, "%d,", i);
    }
    assert_int_equal(t.size, strlen(t.data));
    assert_int_equal(t.size, 10 * 2 + 90 * 3 + 900 * 4);
    dt_text_reset(&t);
    dt_text_json(&t, "a\"\\\n\x01\xff\xed\xa0\x80\xe2\x82\xac\0z", 14);
    assert_string_equal(t.data,
                        "\"a\\\"\\\\\\n\\u0001\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xe2\x82\xac\\u0000z\"");
    dt_text_clear(&t);
}

static void byte_order_marks(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t size, mark;
        const char *other;
    } rows[] = {
        {"", 0, 0, NULL},
        {"\xef\xbb", 2, 0, NULL},
        {"\xef\xbb\xbf", 3, 3, NULL},
        {"\xef\xbb\xbf\xef\xbb\xbf", 6, 3, NULL},
        {"x\xef\xbb\xbf", 4, 0, NULL},
        {"\xff\xfe", 2, 0, "UTF-16"},
        {"\xfe\xff\0a", 4, 0, "UTF-16"},
        {"\xff\xfe\0\0", 4, 0, "UTF-32"},
        {"\0\0\xfe\xff", 4, 0, "UTF-32"},
        {"\0\0\xfe", 3, 0, NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *other = "unset";
        assert_int_equal(dt_text_mark(rows[i].bytes, rows[i].size, &other), rows[i].mark);
        assert_true(rows[i].other == NULL ? other == NULL : other != NULL && strcmp(other, rows[i].other) == 0);
    }
}

/* What a terminal shows as characters: neither controls of any kind nor what turns the direction
 * of writing. */
static void text_is_harmless(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool harmless, with_lines;
    } cases[] = {
        {"", true, true},
        {"h\xc3\xb6st 7 \xe2\x82\xac \xf0\x9f\x98\x80 \xd7\x90", true, true},
        {"a\nb", false, true},
        {"a\tb", false, false},
        {"\x1b[2J", false, false},
        {"\x7f", false, false},
        {"\xc2\x80", false, false},
        {"\xc2\x9f", false, false},
        {"\xc2\xa0", true, true},
        {"\x9b", false, false},
        {"\xc0\x9b", false, false},
        {"a\xc3", false, false},
        {"\xed\xa0\x80", false, false},
        {"\xd8\x9c", false, false}, /* U+061C */
        {"\xd8\x9d", true, true},
        {"\xe2\x80\x8d", true, true}, /* U+200D joins characters */
        {"\xe2\x80\x8e", false, false},
        {"\xe2\x80\x8f", false, false},
        {"\xe2\x80\xa7", true, true},
        {"\xe2\x80\xa8", false, false},
        {"\xe2\x80\xae", false, false},
        {"\xe2\x80\xaf", true, true},
        {"\xe2\x81\xa5", true, true},
        {"\xe2\x81\xa6", false, false},
        {"\xe2\x81\xa9", false, false},
        {"\xf0\x82\x80\xae", false, false}, /* an overlong form */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t size = strlen(cases[i].text);
        assert_int_equal(dt_text_is_harmless(cases[i].text, size, false), cases[i].harmless);
        assert_int_equal(dt_text_is_harmless(cases[i].text, size, true), cases[i].with_lines);
    }
    assert_false(dt_text_is_harmless("a\0b", 3, true));
    assert_int_equal(dt_text_visible("\xc3\xb6", 1), 0);
    assert_int_equal(dt_text_visible("\xc3\xb6", 2), 2);
    struct dt_text t;
    dt_text_init(&t);
    dt_text_json(&t, "\xc2\x9b\xe2\x80\xae\x7f\xc3\xb6", 8);
    assert_string_equal(t.data, "\"\\u009b\\u202e\\u007f\xc3\xb6\"");
    dt_text_clear(&t);
}

static const char hostile[] = "a\x1b[2J\x07 \xc2\x9bX \xe2\x80\xaez \x7f\xff\r\n\tb";
static const char shown[] = "a\\x1b[2J\\x07 \\xc2\\x9bX \\xe2\\x80\\xaez \\x7f\\xff\\x0d\\n\\tb";

static char logged[2048];
static void keep_line(const char *line, size_t size)
{
    (void)snprintf(logged, sizeof logged, "%.*s", (int)size, line);
}

/* Names of files, tensors and peers are in errors and logs: what a terminal would obey is an
 * escape, and other writing stays as it is. */
static void what_people_read_is_visible(void **state)
{
    (void)state;
    struct dt_error err;
    struct dt_text t;
    char small[8] = "x\x1b\x1b";
    (void)dt_fail(&err, DT_INVALID, "tensor %s", hostile);
    assert_string_equal(err.text + strlen("tensor "), shown);
    (void)dt_wrap(&err, "%s", hostile);
    assert_int_equal(strncmp(err.text, shown, strlen(shown)), 0);
    assert_non_null(strstr(err.text, ": tensor a\\x1b[2J"));
    errno = ENOENT;
    (void)dt_fail_errno(&err, "%s", hostile);
    assert_int_equal(strncmp(err.text, shown, strlen(shown)), 0);
    assert_true(dt_text_is_harmless(err.text, strlen(err.text), false));
    (void)dt_fail(&err, DT_INVALID, "Zürich %s", "文件 é"); /* UTF-8 names stay */
    assert_string_equal(err.text, "Zürich 文件 é");
    for (size_t room = 500; room < 512; room++) { /* cut within a character: it goes, and is no
                                                   * escape */
        (void)dt_fail(&err, DT_INVALID, "%*s%s", (int)room, "", "文件😀😀");
        assert_true(dt_text_is_harmless(err.text, strlen(err.text), false) && strchr(err.text, '\\') == NULL &&
                    strlen(err.text) >= 507);
        (void)dt_fail(&err, DT_INVALID, "\x1b%*s%s", (int)room - 5, "", "文件😀😀");
        assert_true(dt_text_is_harmless(err.text, strlen(err.text), false) && strlen(err.text) >= 506);
    }
    dt_text_make_visible(small, sizeof small);
    assert_string_equal(small, "x\\x1b\\x");
    dt_log_open(DT_LOG_INFO, -1, 2);
    dt_log_to(keep_line);
    dt_log(DT_LOG_INFO, "files", "%s", hostile);
    dt_log_to(NULL);
    assert_non_null(strstr(logged, shown));
    assert_string_equal(strchr(logged, '\n'), "\n"); /* one line */
    dt_text_init(&t);
    dt_text_add_visible(&t, "one\ntwo\x1b\n", 9, true); /* our own lines stay */
    assert_string_equal(dt_text_str(&t), "one\ntwo\\x1b\n");
    dt_text_clear(&t);
}

static void numbers_are_whole(void **state)
{
    (void)state;
    long long n = 5;
    double d = 5;
    assert_true(dt_parse_int64("-12", &n) && n == -12);
    static const char *const bad[] = {"", " 1", "1 ", "1x", "0x10", "1.5", "99999999999999999999", "+1", "--1"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_false(dt_parse_int64(bad[i], &n));
        assert_int_equal(n, -12);
    }
    assert_true(dt_parse_double("1e-3", &d) && d == 1e-3);
    assert_false(dt_parse_double("1e999", &d));
    assert_false(dt_parse_double("nan", &d));
    assert_false(dt_parse_double("0x1p3", &d));
    assert_false(dt_parse_double("1,5", &d));
}

static void nearest_word(void **state)
{
    (void)state;
    static const char *const words[] = {"warmup_steps", "warmup_ratio", "max_steps", "seed"};
    assert_string_equal(dt_text_nearest("warmup_step", words, 4), "warmup_steps");
    assert_string_equal(dt_text_nearest("maxsteps", words, 4), "max_steps");
    assert_null(dt_text_nearest("learning_rate", words, 4));
    assert_null(dt_text_nearest("x", words, 4));
    static const char *const letters[] = {"eps", "box", "gpus"};
    assert_string_equal(dt_text_nearest("bxo", letters, 3), "box"); /* neighbours swapped are one edit */
    assert_string_equal(dt_text_nearest("gpsu", letters, 3), "gpus");
    assert_null(dt_text_nearest("gas", letters, 3)); /* a short name is not guessed from one letter */
    assert_int_equal(dt_text_distance("abcd", "badc", 3), 2);
    assert_int_equal(dt_text_distance("", "abc", 3), 3);
    assert_int_equal(dt_text_distance("abc", "", 2), 3);
}

static void words_are_wrapped_at_80_columns(void **state)
{
    (void)state;
    struct dt_text t;
    dt_text_init(&t);
    dt_text_wrap(&t, "one two", 70);
    assert_string_equal(dt_text_str(&t), "one two\n");
    dt_text_reset(&t);
    dt_text_wrap(&t, "one  two three", 70);
    char expected[100];
    (void)snprintf(expected, sizeof expected, "one two\n%70sthree\n", "");
    assert_string_equal(dt_text_str(&t), expected);
    dt_text_clear(&t);
}

static const char *bench_says(const char *word, const char *next)
{
    static struct dt_error err;
    char *argv[] = {(char *)"store", (char *)word, (char *)next, NULL};
    return dt_bench_check(next != NULL ? 3 : 2, argv, "--ops=1..100 --name=TEXT --peer", &err) == 0 ? "" : err.text;
}

static void options_of_benchmarks_are_checked(void **state)
{
    (void)state;
    assert_string_equal(bench_says("--ops=7", "--peer"), "");
    assert_string_equal(bench_says("--ops", "100"), "");
    assert_string_equal(bench_says("--name=a=b", NULL), "");
    assert_string_equal(bench_says("--bogus", NULL), "store: --bogus: unknown option; see bench --help");
    assert_string_equal(bench_says("--opps=3", NULL), "store: --opps: unknown option; did you mean --ops?");
    assert_string_equal(bench_says("7", NULL), "store: 7: unknown option; see bench --help");
    assert_string_equal(bench_says("--ops=0", NULL), "store: --ops: 0: must be a whole number from 1 to 100");
    assert_string_equal(bench_says("--ops", "many"), "store: --ops: many: must be a whole number from 1 to 100");
    assert_string_equal(bench_says("--ops", "--peer"), "store: --ops: needs a value; write --ops=1..100");
    assert_string_equal(bench_says("--name", NULL), "store: --name: needs a value; write --name=TEXT");
    assert_string_equal(bench_says("--peer=1", NULL), "store: --peer: takes no value; write --peer alone");
}

static void bytes_as_people_read_them(void **state)
{
    (void)state;
    char out[32];
    assert_string_equal(dt_text_bytes(0, out, sizeof out), "0 B");
    assert_string_equal(dt_text_bytes(1536, out, sizeof out), "1.5 KiB");
    assert_string_equal(dt_text_bytes(12345678, out, sizeof out), "11.8 MiB");
}

/* What the kernel says to a wait of that long; what is waited for is there already. */
static int waits(struct timespec t)
{
    sigset_t set;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGUSR1);
    assert_int_equal(sigprocmask(SIG_BLOCK, &set, NULL), 0);
    assert_int_equal(raise(SIGUSR1), 0);
    return sigtimedwait(&set, NULL, &t);
}

static void seconds_become_what_calls_wait_for(void **state)
{
    (void)state;
    static const double nothing[] = {0, -0.0, -0.25, -3, -1e300, -INFINITY, NAN, 1e-10, 5e-324},
                        long_ones[] = {9e9, 1e10, 0x1p63, 1e300, INFINITY};
    static const struct {
        double seconds;
        time_t whole;
        long nanoseconds;
    } exact[] = {{0.25, 0, 250000000},        {1, 1, 0},
                 {3600.5, 3600, 500000000},   {0x1p32 + 0.75, (time_t)1 << 32, 750000000},
                 {1 - 0x1p-53, 0, 999999999}, {2 - 0x1p-52, 1, 999999999}};
    for (size_t i = 0; i < sizeof nothing / sizeof nothing[0]; i++) {
        struct timespec t = dt_timespec(nothing[i]);
        assert_true(t.tv_sec == 0 && t.tv_nsec == 0);
        assert_int_equal(dt_milliseconds(nothing[i]), 1);
    }
    for (size_t i = 0; i < sizeof exact / sizeof exact[0]; i++) {
        struct timespec t = dt_timespec(exact[i].seconds);
        assert_true(t.tv_sec == exact[i].whole && t.tv_nsec == exact[i].nanoseconds);
    }
    for (size_t i = 0; i < sizeof long_ones / sizeof long_ones[0]; i++) {
        struct timespec t = dt_timespec(long_ones[i]);
        assert_true(t.tv_sec == 9000000000 && t.tv_nsec == 0);
        assert_int_equal(dt_milliseconds(long_ones[i]), 9000000000001);
        assert_int_equal(waits(t), SIGUSR1);
    }
    for (int i = 1; i < 10000; i++) {
        double s = i * (i / 997.0);
        struct timespec t = dt_timespec(s);
        assert_true(t.tv_nsec >= 0 && t.tv_nsec <= 999999999);
        assert_true(fabs((double)t.tv_sec - s + 1e-9 * (double)t.tv_nsec) < 1.1e-9);
    }
}

static void seconds_are_over_after_their_milliseconds(void **state)
{
    (void)state;
    assert_int_equal(dt_milliseconds(0.0001), 1);
    assert_int_equal(dt_milliseconds(0.25), 251);
    assert_int_equal(dt_milliseconds(0.2509), 251);
}

static void excerpts_end_with_dots(void **state)
{
    (void)state;
    static const struct {
        const char *text, *shown;
    } cases[] = {{"", "(empty)"},
                 {"host", "host"},
                 {"0123456789abcde", "0123456789abcde"},
                 {"0123456789abcdef", "0123456789ab..."},
                 {"a\x1b[2J\n", "a?[2J?"},
                 {"0123456789a\xc3\xb6xyz", "0123456789a?..."}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char out[16];
        assert_string_equal(dt_text_excerpt(cases[i].text, strlen(cases[i].text), out, sizeof out), cases[i].shown);
    }
}

static void lists_end_with_dots(void **state)
{
    (void)state;
    static const char *const lists[] = {"x: ", "x: a0", "x: a0, a1", "x: a0, a1, ...", "x: a0, a1, ..."};
    for (int count = 0; count < 5; count++) {
        struct dt_text text;
        dt_text_init(&text);
        struct dt_list list = {.text = &text, .most = 2}, all = {.text = &text};
        dt_text_puts(&text, "x: ");
        for (int i = 0; i < count; i++) {
            dt_list_add(&list, "a%d", i);
        }
        assert_string_equal(dt_text_str(&text), lists[count]);
        dt_text_reset(&text);
        for (int i = 0; i < count; i++) {
            dt_list_add(&all, "%d", i);
        }
        assert_int_equal(text.size, count > 0 ? 3 * count - 2 : 0);
        dt_text_clear(&text);
    }
}

static void numbers_of_small_files(void **state)
{
    (void)state;
    char path[] = "/tmp/dt_proc_XXXXXX", text[] = "12 x\nMemTotal:       16 kB\nMemFree: 3 kB\noom_group_kill 5\n"
                                                  "oom_kill 4\nHugePages_Total:  7\nBad: x\n";
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, text, sizeof text - 1) == (ssize_t)sizeof text - 1 && close(fd) == 0);
    assert_true(dt_proc_number(path, "MemTotal:") == 16384);
    assert_true(dt_proc_number(path, "MemFree:") == 3072);
    assert_true(dt_proc_number(path, "HugePages_Total:") == 7);
    assert_true(dt_proc_number(path, "oom_kill ") == 4);
    assert_true(dt_proc_number(path, "") == 12);
    assert_true(dt_proc_number(path, "Mem") == -1);
    assert_true(dt_proc_number(path, "Total:") == -1);
    assert_true(dt_proc_number(path, "Bad:") == -1);
    assert_int_equal(truncate(path, 0), 0);
    assert_true(dt_proc_number(path, "") == -1);
    assert_int_equal(unlink(path), 0);
    assert_true(dt_proc_number(path, "") == -1);
}

static void what_the_kernel_tells_of_a_process(void **state)
{
    (void)state;
    char name[DT_PROC_NAME_BYTES], boot[DT_BOOT_ID_BYTES];
    struct dt_proc_look look;
    pid_t child = fork();
    if (child == 0) {
        (void)prctl(PR_SET_NAME, "a) R\n1 (x");
        (void)raise(SIGSTOP);
        _exit(0);
    }
    assert_int_equal(waitpid(child, NULL, WUNTRACED), child);
    assert_true(dt_proc_look(child, &look));
    assert_int_equal(look.state, 'T');
    assert_int_equal(look.parent, getpid());
#ifdef __SANITIZE_THREAD__
    assert_int_equal(look.thread_count, 2); /* this sanitizer has a thread of its own */
#else
    assert_int_equal(look.thread_count, 1);
#endif
    assert_string_equal(dt_proc_name(child, name), "a) R");
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_false(dt_proc_look(child, &look));
    assert_string_equal(dt_proc_name(child, name), "");
    assert_int_equal(strlen(dt_proc_boot_id(boot)), 36);
}

static void arena_is_aligned_and_zeroed(void **state)
{
    (void)state;
    struct dt_arena a;
    dt_arena_init(&a);
    for (size_t i = 1; i < 40000; i = i * 3 + 1) {
        char *p = dt_arena_alloc(&a, i);
        assert_int_equal((uintptr_t)p % 16, 0);
        for (size_t j = 0; j < i; j++) {
            assert_int_equal(p[j], 0);
        }
        memset(p, 1, i);
    }
    assert_string_equal(dt_arena_printf(&a, "%s-%d", "x", 3), "x-3");
    dt_arena_clear(&a);
}

static void files_are_written_whole_or_not(void **state)
{
    (void)state;
    char dir[] = "/tmp/dtrun-test-XXXXXX";
    assert_non_null(mkdtemp(dir));
    struct dt_error err;
    char *deep = dt_format("%s/a b/c", dir), *path = dt_format("%s/file", deep);
    assert_int_equal(dt_file_mkdirs(deep, &err), 0);
    assert_int_equal(dt_file_mkdirs(deep, &err), 0);
    assert_int_equal(dt_file_write(path, "one", 3, &err), 0);
    assert_int_equal(dt_file_write(path, "second", 6, &err), 0);
    struct dt_text t;
    dt_text_init(&t);
    assert_int_equal(dt_file_read(path, 6, &t, &err), 0);
    assert_string_equal(t.data, "second");
    assert_int_equal(dt_file_read(path, 5, &t, &err), -1);
    assert_non_null(strstr(err.text, "limit"));
    assert_int_equal(dt_file_append_line(path, "x", 1, &err), 0);
    assert_int_equal(dt_file_read(path, 100, &t, &err), 0);
    assert_string_equal(t.data, "secondx\n");
    char *below = dt_format("%s/file/no", deep);
    assert_int_equal(dt_file_mkdirs(below, &err), -1);
    assert_int_equal(dt_file_remove_tree(dir, &err), 0);
    assert_false(dt_file_exists(dir));
    assert_int_equal(dt_file_remove_tree(dir, &err), 0);
    assert_int_equal(dt_file_read(path, 5, &t, &err), -1);
    assert_int_equal(err.status, DT_NOT_FOUND);
    dt_text_clear(&t);
    free(below);
    free(path);
    free(deep);
}

/* A folder may hold anything of its owner, and what another process writes just now. */
static void only_our_own_leftovers_are_removed(void **state)
{
    (void)state;
    static const char *const names[] = {"config.json", "model", NULL};
    char dir[] = "/tmp/dtrun-test-XXXXXX";
    struct dt_error err;
    assert_non_null(mkdtemp(dir));
    pid_t gone = fork();
    assert_true(gone >= 0);
    if (gone == 0) {
        _exit(0);
    }
    assert_int_equal(waitpid(gone, NULL, 0), gone);
    struct {
        const char *name, *tail;
        long pid;
        bool stays;
    } files[] = {
        {"config.json", "", gone, false},     {"model", "", gone, false},          {"model", "", (long)getpid(), false},
        {"model", "", (long)getppid(), true}, {"notes", "", gone, true},           {"my-config.json", "", gone, true},
        {"config.json", "x", gone, true},     {"config.json.bak", "", gone, true}, {"model", "999999999999", 9, false},
    };
    char *paths[sizeof files / sizeof *files];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        paths[i] = dt_format("%s/%s.tmp-%ld%s", dir, files[i].name, files[i].pid, files[i].tail);
        assert_int_equal(dt_file_write(paths[i], "x", 1, &err), 0);
    }
    dt_file_remove_cut(dir, names);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        if (dt_file_exists(paths[i]) != files[i].stays) {
            fail_msg("%s: %s", paths[i], files[i].stays ? "is gone" : "stayed");
        }
        free(paths[i]);
    }
    assert_int_equal(dt_file_remove_tree(dir, &err), 0);
    assert_int_equal(dt_file_mkdirs("", &err), -1);
    assert_string_equal(err.text, "the name of the folder is empty");
}

/* Whatever a worker writes there, what is read are numbers that can be, and texts for a
 * terminal. */
static void a_page_is_read_with_care(void **state)
{
    (void)state;
    static struct dt_page page;
    struct dt_page_look look;
    dt_page_read(NULL, 5, &look);
    assert_true(!look.known && look.step == -1 && look.saved_step == -1 && look.learned_step == -1 &&
                look.cause.text[0] == '\0');
    atomic_store(&page.pulse_count, 3);
    atomic_store(&page.pulse_s, 4);
    atomic_store(&page.step, 7);
    atomic_store(&page.phase, DT_PHASE_SAVE);
    atomic_store(&page.ready_s, 4.5);
    atomic_store(&page.loss, NAN);
    atomic_store(&page.gpu.busy, 0.5);
    (void)strcpy(page.note, "step 7: \xc3\xb6");
    dt_page_read(&page, 5, &look);
    assert_true(look.known && look.pulse_count == 3 && look.step == 7 && look.phase == DT_PHASE_SAVE &&
                !look.in_collective);
    assert_true(fabs(look.pulse_age_s - 1) < 1e-9 && fabs(look.ready_s - 4.5) < 1e-9 &&
                fabs(look.gpu.busy - 0.5) < 1e-9);
    assert_true(isnan(look.loss)); /* as one may be */
    assert_string_equal(look.cause.text, "step 7: \xc3\xb6");
    static const uint64_t words[] = {UINT64_MAX,         1,
                                     (uint64_t)1 << 62,  (uint64_t)1 << 63,
                                     0x7ff0000000000000, 0xfff0000000000000,
                                     0x7fefffffffffffff, 0x9b1b5b324ac29be2};
    for (size_t k = 0; k < sizeof words / sizeof words[0]; k++) {
        for (size_t i = 24; i + 8 <= sizeof page; i += 8) {
            memcpy((char *)&page + i, &words[k], 8);
        }
        dt_page_read(&page, 5, &look);
        const int64_t numbers[] = {look.pulse_count, look.step,         look.micro_step,
                                   look.saved_step,  look.learned_step, look.collective_count};
        const double times[] = {look.pulse_age_s,     look.collective_age_s, look.save_age_s,
                                look.save_s,          look.data_s,           look.compute_s,
                                look.communication_s, look.ready_s,          look.pulse_limit_s};
        const double gpu[] = {look.gpu.busy, look.gpu.memory_bytes, look.gpu.memory_total_bytes, look.gpu.clock_mhz,
                              look.gpu.power_w};
        for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
            assert_true(numbers[i] >= -1 && numbers[i] <= (int64_t)1 << 53);
        }
        for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
            assert_true(times[i] >= 0 && times[i] < 1e10);
        }
        for (size_t i = 0; i < sizeof gpu / sizeof gpu[0]; i++) {
            assert_true(gpu[i] >= -1 && gpu[i] <= 1e18);
        }
        assert_true(look.ready_s <= 5 && look.phase < DT_PHASE_COUNT && look.gpu.xid >= 0);
        assert_true(dt_text_is_harmless(look.cause.text, strlen(look.cause.text), false) &&
                    strlen(look.cause.text) < sizeof look.cause.text);
        assert_true(dt_text_is_harmless(look.collective_name, strlen(look.collective_name), false));
        assert_true(dt_text_is_harmless(look.gpu.bus, strlen(look.gpu.bus), false));
    }
}

static void page_is_shared_by_name(void **state)
{
    (void)state;
    struct dt_page *agent, *worker;
    int fd;
    struct dt_error err;
    assert_int_equal(dt_page_create(&agent, &fd, 4, &err), 0);
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%ld/fd/%d", (long)getpid(), fd);
    (void)setenv("DTRUN_PAGE", path, 1);
    assert_int_equal(dt_page_attach(&worker, &err), 0);
    assert_int_equal(worker->round, 4);
    dt_page_phase(worker, DT_PHASE_SAVE);
    assert_int_equal(atomic_load(&agent->phase), DT_PHASE_SAVE);
    assert_int_equal(atomic_load(&agent->pulse_count), 1);
    atomic_store(&agent->order, DT_ORDER_ABORT);
    assert_int_equal(atomic_load(&worker->order), DT_ORDER_ABORT);
    assert_int_equal(truncate(path, 0), -1);
    assert_int_equal(errno, EPERM);
    assert_int_equal(truncate(path, 2L * DT_PAGE_BYTES), -1);
    dt_page_close(worker, -1);
    dt_page_close(agent, fd);
    (void)setenv("DTRUN_PAGE", "/dev/null", 1);
    assert_int_equal(dt_page_attach(&worker, &err), -1);
    (void)unsetenv("DTRUN_PAGE");
    assert_int_equal(dt_page_attach(&worker, &err), 0);
    dt_page_close(worker, -1);
}

/* A loop that was generated at run time, without tables for an unwinder; `without_stack`: it has
 * lost the stack's register to other uses, too. */
static void spin_in_generated_code(bool without_stack)
{
#if defined(__x86_64__)
    static const uint8_t plain[] = {0xeb, 0xfe}, without[] = {0x31, 0xe4, 0xeb, 0xfe}; /* xor esp, esp */
#else
    static const uint8_t plain[] = {0, 0, 0, 0x14},
                         /* mov x0, #0; mov sp, x0 */
        without[] = {0, 0, 0x80, 0xd2, 0x1f, 0, 0, 0x91, 0, 0, 0, 0x14};
#endif
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(page, without_stack ? without : plain, without_stack ? sizeof without : sizeof plain);
    (void)mprotect(page, 4096, PROT_READ | PROT_EXEC);
    void (*spin)(void);
    memcpy(&spin, &page, sizeof spin);
    (void)alarm(1);
    spin();
    abort(); /* no tail call */
}

/* What a child says that SIGABRT ends there. */
static void crash_in_generated_code(bool without_stack, char *text, size_t text_bytes)
{
    size_t size = 0;
    int ends[2], status;
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        (void)dup2(ends[1], STDERR_FILENO);
        (void)close(ends[0]);
        (void)close(ends[1]);
        dt_crash_open("test");
        (void)signal(SIGALRM, SIG_DFL);
        spin_in_generated_code(without_stack);
    }
    (void)close(ends[1]);
    dt_sleep_s(0.2);
    (void)kill(pid, SIGABRT); /* the alarm is for a child that it does not end */
    for (ssize_t got; (got = read(ends[0], text + size, text_bytes - 1 - size)) > 0;) {
        size += (size_t)got;
    }
    text[size] = '\0';
    (void)close(ends[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

static void a_crash_in_generated_code_shows_who_called_it(void **state)
{
    (void)state;
#ifdef DT_SANITIZED
    print_message("sanitizers have a handler of their own\n");
    skip();
#endif
    char text[8192];
    for (int without_stack = 0; without_stack < 2; without_stack++) {
        crash_in_generated_code(without_stack, text, sizeof text);
        assert_non_null(strstr(text, "test: crashed: SIGABRT, sent by a process"));
        const char *perhaps = strstr(text, "cannot be followed back; on its stack, perhaps these:\n");
        assert_non_null(perhaps);
        assert_non_null(strstr(perhaps, "unit_base")); /* an address of this program */
    }
}

static void libraries_give_their_functions(void **state)
{
    (void)state;
    static const char *const nowhere[] = {"libnothing.so.1", "/nowhere/libnothing.so.1"}, *const second[] = {
                                                                                              "libnothing.so.1",
                                                                                              "libm.so.6"};
    double (*size)(double) = NULL;
    void (*first)(void) = (void (*)(void))abort, (*last)(void) = (void (*)(void))abort;
    const struct dt_symbol symbols[] = {{"dt_no_such", &first}, {"fabs", &size}, {"dt_nor_such", &last}};
    assert_null(dt_library_open(nowhere, 2));
    void *library = dt_library_open(second, 2);
    assert_non_null(library);
    assert_string_equal(dt_library_find(library, symbols, 3), "dt_no_such");
    assert_true(first == NULL && last == NULL);
    assert_true(size(-2.5) == 2.5);
    assert_null(dt_library_find(library, &symbols[1], 1));
    assert_int_equal(dlclose(library), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_hold_the_first_cause),
        cmocka_unit_test(a_status_from_elsewhere_is_one),
        cmocka_unit_test(what_people_read_is_visible),
        cmocka_unit_test(text_grows_and_quotes),
        cmocka_unit_test(byte_order_marks),
        cmocka_unit_test(text_is_harmless),
        cmocka_unit_test(numbers_are_whole),
        cmocka_unit_test(nearest_word),
        cmocka_unit_test(words_are_wrapped_at_80_columns),
        cmocka_unit_test(options_of_benchmarks_are_checked),
        cmocka_unit_test(bytes_as_people_read_them),
        cmocka_unit_test(seconds_become_what_calls_wait_for),
        cmocka_unit_test(seconds_are_over_after_their_milliseconds),
        cmocka_unit_test(excerpts_end_with_dots),
        cmocka_unit_test(lists_end_with_dots),
        cmocka_unit_test(numbers_of_small_files),
        cmocka_unit_test(what_the_kernel_tells_of_a_process),
        cmocka_unit_test(arena_is_aligned_and_zeroed),
        cmocka_unit_test(files_are_written_whole_or_not),
        cmocka_unit_test(only_our_own_leftovers_are_removed),
        cmocka_unit_test(page_is_shared_by_name),
        cmocka_unit_test(a_page_is_read_with_care),
        cmocka_unit_test(libraries_give_their_functions),
        cmocka_unit_test(a_crash_in_generated_code_shows_who_called_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
