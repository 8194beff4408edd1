/* covers: launcher/output/logs.c launcher/output/console.c launcher/output/log_lines.c */
/* covers: launcher/output/log_rate.c launcher/output/log_writer.c */
/* Output of workers on a real loop with real pipes: the tree, prefixes, filters, tails, and
 * consoles and disks that do not take what comes. */
#include "launcher/output/logs.h"

#include "base/clock.h"
#include "base/file.h"
#include "launcher/output/console.h"
#include "launcher/output/log_lines.h"
#include "launcher/output/log_rate.h"
#include "launcher/output/log_writer.h"
#include "tests/lib/folder.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char log_option[96];
static struct options o;
static struct dt_error err;
static uv_loop_t loop;
static struct logs *logs;
static int console[2] = {-1, -1};
static bool stuck; /* a thread still writes to console[0], which must stay open */

static int setup(void **state)
{
    int rc = folder_setup(state);
    (void)snprintf(log_option, sizeof log_option, "--log_dir=%s/deep/logs", folder);
    return rc;
}

static char *in_folder(const char *name)
{
    static char path[128];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* Options from words; the console is two files, or what `console` holds already. */
static void begin(int argc, char **argv)
{
    char *env[] = {NULL};
    if (options_read(&o, argc, argv, env, &err) != 0) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(uv_loop_init(&loop), 0);
    for (int i = 0; i < 2; i++) {
        if (console[i] < 0) {
            console[i] = open(in_folder(i == 0 ? "out" : "err"), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        }
    }
    if (console_open(console[0], console[1], &err) != 0 || logs_open(&logs, &loop, &o, &err) != 0) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(logs_attempt(logs, 0, o.nproc, 0, 0, o.nproc, &err), 0);
}
#define BEGIN(...)                                                                                                     \
    do {                                                                                                               \
        char *words[] = {"dtrun", log_option, __VA_ARGS__, NULL};                                                      \
        begin((int)(sizeof words / sizeof words[0]) - 1, words);                                                       \
    } while (0)

static void finish(struct dt_text *lost)
{
    logs_close(logs, 0.2, lost);
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&loop), 0);
    console_close(0.2);
    for (int i = 0; i < 2; i++) {
        if (!stuck || i == 1) {
            (void)close(console[i]);
        }
        console[i] = -1;
    }
    stuck = false;
    options_clear(&o);
}

/* Runs the loop until the file has at least `size` bytes. */
static void wait_size(const char *path, off_t size)
{
    struct stat st;
    for (double until_s = dt_now_s() + 60; stat(path, &st) != 0 || st.st_size < size;) {
        if (dt_now_s() > until_s) {
            fail_msg("%s: %lld bytes, not %lld", path, (long long)st.st_size, (long long)size);
        }
        (void)uv_run(&loop, UV_RUN_NOWAIT);
        dt_sleep_s(0.001);
    }
}

static void wait_output(int local_rank, double after_s)
{
    for (double until_s = dt_now_s() + 60; logs_last_output_s(logs, local_rank) <= after_s;) {
        assert_true(dt_now_s() < until_s);
        (void)uv_run(&loop, UV_RUN_NOWAIT);
        dt_sleep_s(0.001);
    }
}

static void file_is(const char *path, const char *text, size_t size)
{
    struct dt_text content;
    dt_text_init(&content);
    assert_int_equal(dt_file_read(path, 1 << 20, &content, &err), 0);
    if (content.size != size || memcmp(dt_text_str(&content), text, size) != 0) {
        fail_msg("%s:\n%s\n-- not --\n%s", path, dt_text_str(&content), text);
    }
    dt_text_clear(&content);
}
static void wait_console(void)
{
    for (double until_s = dt_now_s() + 60; console_size() > 0; dt_sleep_s(0.001)) {
        assert_true(dt_now_s() < until_s);
    }
}
static void console_is(const char *name, const char *text)
{
    logs_flush(logs, 60);
    wait_console();
    file_is(in_folder(name), text, strlen(text));
}

/* The worker says it; returns when the loop has taken it. */
static void say(int local_rank, int fd, const char *text)
{
    double before_s = logs_last_output_s(logs, local_rank);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    wait_output(local_rank, before_s);
}

static void test_tree(void **state)
{
    (void)state;
    BEGIN("--nproc_per_node=2", "--rdzv_backend=c10d", "--rdzv_id=a..-b", "-r", "0:1,1:3", "x");
    int fds[2];
    struct stat st;
    assert_true(logs_has_files(logs));
    assert_int_equal(stat(logs_dir(logs), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    char *start = dt_format("%s/deep/logs/a..-b_", folder);
    assert_int_equal(strncmp(logs_dir(logs), start, strlen(start)), 0);
    assert_int_equal(strlen(logs_dir(logs)), strlen(start) + 8);
    free(start);
    char *expected = dt_format("%s/attempt_0/1/error.json", logs_dir(logs));
    assert_string_equal(logs_error_file(logs, 1), expected);
    free(expected);

    assert_int_equal(logs_streams(logs, 0, fds, &err), 0);
    assert_true(fds[0] >= 0 && fds[1] == -1);
    assert_int_equal(write(fds[0], "a\0b\xff\r\nend", 9), 9);
    char *path = dt_format("%s/stdout.log", logs_worker_dir(logs, 0));
    wait_size(path, 9);
    file_is(path, "a\0b\xff\r\nend", 9);
    logs_finish(logs, 0);
    logs_finish(logs, 0);
    console_is("out", "");

    /* A grandchild that holds the pipe delays nothing, and what was in the pipe is not lost. */
    assert_int_equal(logs_streams(logs, 1, fds, &err), 0);
    assert_true(fds[0] >= 0 && fds[1] >= 0);
    int held = dup(fds[1]);
    assert_int_equal(write(held, "late", 4), 4);
    logs_finish(logs, 1);
    logs_flush(logs, 60);
    free(path);
    path = dt_format("%s/stderr.log", logs_worker_dir(logs, 1));
    file_is(path, "late", 4);
    free(path);
    (void)close(held);

    /* The same restart count again (a host joined): nothing is overwritten. */
    char *first = dt_strdup(logs_worker_dir(logs, 1));
    assert_int_equal(logs_attempt(logs, 0, 2, 2, 1, 4, &err), 0);
    expected = dt_format("%s/attempt_0.2/1", logs_dir(logs));
    assert_string_equal(logs_worker_dir(logs, 1), expected);
    assert_true(dt_file_exists(first));
    assert_int_equal(logs_attempt(logs, 1, 2, 2, 1, 4, &err), 0);
    assert_non_null(strstr(logs_worker_dir(logs, 1), "/attempt_1/1"));
    free(expected);
    free(first);
    struct dt_text lost;
    dt_text_init(&lost);
    finish(&lost);
    assert_string_equal(dt_text_str(&lost), "");
}

static void test_tee(void **state)
{
    (void)state;
    BEGIN("--nproc_per_node=2", "-t3", "--role=w", "--duplicate_stdout_filters=two,zzz", "x");
    int a[2];
    int b[2];
    assert_int_equal(logs_streams(logs, 0, a, &err), 0);
    assert_int_equal(logs_streams(logs, 1, b, &err), 0);
    say(0, a[0], "one\n\ntwo\r\nten\r\r20%\r");
    say(1, b[0], "x\ny");
    say(1, b[1], "error\n");
    char *filtered = dt_format("%s/attempt_0/filtered_stdout.log", logs_dir(logs));
    wait_size(filtered, (off_t)strlen("[w0]:two\n"));
    file_is(filtered, "[w0]:two\n", strlen("[w0]:two\n"));
    free(filtered);
    /* The unfinished line appears after a while; another rank's line does not tear it. */
    const char *so_far = "[w0]:one\n[w0]:\n[w0]:two\n[w0]:ten\n[w0]:20%\n[w1]:x\n[w1]:y";
    wait_size(in_folder("out"), (off_t)strlen(so_far));
    console_is("out", so_far);
    say(0, a[0], "three\n");
    say(1, b[0], "z\nlast");
    logs_finish(logs, 1);
    char *all = dt_format("%s\n[w0]:three\n[w1]:z\n[w1]:last\n", so_far);
    console_is("out", all);
    console_is("err", "[w1]:error\n");
    free(all);
    finish(NULL);
}

static void test_template(void **state)
{
    (void)state;
    BEGIN("--nproc_per_node=2", "-t1", "--log_line_prefix_template=<${rank}/$local_rank ${x} $$>", "x");
    int a[2];
    assert_int_equal(logs_attempt(logs, 3, 2, 4, 2, 6, &err), 0);
    assert_int_equal(logs_streams(logs, 1, a, &err), 0);
    assert_int_equal(a[1], -1);
    say(1, a[0], "hello\nand then ");
    const char *so_far = "<5/1 ${x} $>hello\n<5/1 ${x} $>and then ";
    wait_size(in_folder("out"), (off_t)strlen(so_far));
    say(1, a[0], "more\n");
    console_is("out", "<5/1 ${x} $>hello\n<5/1 ${x} $>and then more\n");
    finish(NULL);
}

static void tail_is(int local_rank, int lines, const char *text)
{
    struct dt_text out;
    dt_text_init(&out);
    (void)logs_tail(logs, local_rank, lines, &out);
    assert_string_equal(dt_text_str(&out), text);
    dt_text_clear(&out);
}

static void test_filter_and_tail(void **state)
{
    (void)state;
    BEGIN("--nproc_per_node=2", "--local_ranks_filter=0", "--log_dir=/dev/null", "x");
    int a[2];
    int b[2];
    assert_null(logs_dir(logs));
    assert_null(logs_worker_dir(logs, 0));
    assert_string_equal(logs_error_file(logs, 0), "");
    assert_false(logs_has_files(logs));
    assert_int_equal(logs_streams(logs, 0, a, &err), 0);
    assert_true(a[0] == -1 && a[1] == -1);
    assert_int_equal(logs_streams(logs, 1, b, &err), 0);
    tail_is(1, 20, "");
    say(1, b[0], "out 1\nout 2\n\n");
    tail_is(1, 20, "out 1\nout 2\n");
    say(1, b[1], "e1\ne2\r\ne3 \033[31mred\033[0m \a\ne4");
    tail_is(1, 20, "e1\ne2\ne3 red ^G\ne4\n");
    tail_is(1, 2, "e3 red ^G\ne4\n");
    tail_is(0, 20, "");
    tail_is(7, 20, "");
    logs_finish(logs, 1);
    tail_is(1, 1, "e4\n");
    console_is("out", "");
    finish(NULL);
}

struct flood {
    int fd;
    size_t size, line;
};
static void *flood(void *argument)
{
    struct flood *f = argument;
    char *piece = dt_alloc(f->line);
    memset(piece, 'f', f->line);
    piece[f->line - 1] = '\n';
    for (size_t done = 0; done < f->size; done += f->line) {
        if (dt_file_write_all(f->fd, piece, f->line, "flood", NULL) != 0) {
            break;
        }
    }
    (void)close(f->fd);
    free(piece);
    return NULL;
}

/* One rank writes `size` bytes with tee; all must be in its file, whatever the console does.
 * Returns what was lost as text. */
static void flood_through(size_t size, struct dt_text *lost)
{
    int fds[2];
    pthread_t thread;
    assert_int_equal(logs_streams(logs, 0, fds, &err), 0);
    struct flood f = {dup(fds[0]), size, 100};
    logs_spawned(logs, 0);
    char *path = dt_format("%s/stdout.log", logs_worker_dir(logs, 0));
    assert_int_equal(pthread_create(&thread, NULL, flood, &f), 0);
    wait_size(path, (off_t)size);
    assert_int_equal(pthread_join(thread, NULL), 0);
    logs_finish(logs, 0);
    free(path);
    finish(lost);
}

static void test_stopped_console(void **state)
{
    (void)state;
    int ends[2];
    struct dt_text lost;
    dt_text_init(&lost);
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    console[0] = ends[1];
    stuck = true;
    BEGIN("-t1", "--time_scale=20", "x");
    flood_through(8 << 20, &lost);
    assert_string_equal(dt_text_str(&lost), "");
    assert_int_equal(dt_file_read(in_folder("err"), 1 << 20, &lost, &err), 0);
    assert_non_null(strstr(dt_text_str(&lost), "lines were not shown; the console did not read; they are in /tmp/"));
    assert_int_not_equal(strtol(dt_text_str(&lost) + strlen("dtrun: "), NULL, 10), 0);
    dt_text_clear(&lost);
    /* The thread that hangs in its write comes free, as at the end of the program. */
    (void)close(ends[0]);
}

static void test_closed_console(void **state)
{
    (void)state;
    int ends[2];
    struct dt_text lost;
    dt_text_init(&lost);
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    (void)close(ends[0]);
    console[0] = ends[1];
    BEGIN("-t1", "x");
    flood_through(6 << 20, &lost);
    assert_string_equal(dt_text_str(&lost), "");
    file_is(in_folder("err"), "", 0);
    dt_text_clear(&lost);
}

/* A console that reads, however slowly at first, gets every line. */
static void *slow_reader(void *argument)
{
    static char buffer[65536];
    size_t *got = argument;
    ssize_t n;
    for (int i = 0; (n = read((int)got[1], buffer, sizeof buffer)) > 0; i++) {
        got[0] += (size_t)n;
        if (i < 20) {
            dt_sleep_s(0.01);
        }
    }
    return NULL;
}
static void test_slow_console(void **state)
{
    (void)state;
    int ends[2];
    struct dt_text lost;
    pthread_t thread;
    dt_text_init(&lost);
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    size_t got[2] = {0, (size_t)ends[0]};
    console[0] = ends[1];
    BEGIN("-t1", "--log_line_prefix_template=", "--time_scale=0.01", "x");
    assert_int_equal(pthread_create(&thread, NULL, slow_reader, got), 0);
    int fds[2];
    assert_int_equal(logs_streams(logs, 0, fds, &err), 0);
    struct flood f = {dup(fds[0]), 12 << 20, 64};
    logs_spawned(logs, 0);
    pthread_t writer;
    char *path = dt_format("%s/stdout.log", logs_worker_dir(logs, 0));
    assert_int_equal(pthread_create(&writer, NULL, flood, &f), 0);
    wait_size(path, 12 << 20);
    assert_int_equal(pthread_join(writer, NULL), 0);
    logs_finish(logs, 0);
    logs_flush(logs, 60);
    free(path);
    wait_console();
    finish(&lost);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(got[0], 12 << 20);
    assert_string_equal(dt_text_str(&lost), "");
    (void)close(ends[0]);
    dt_text_clear(&lost);
}

static void test_full_disk(void **state)
{
    (void)state;
    struct rlimit before;
    struct dt_text lost;
    int ends[2];
    dt_text_init(&lost);
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    console[1] = ends[1];
    BEGIN("-r1", "x");
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    struct rlimit small = {100000, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int fds[2];
    assert_int_equal(logs_streams(logs, 0, fds, &err), 0);
    struct flood f = {dup(fds[0]), 400000, 100};
    logs_spawned(logs, 0);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, flood, &f), 0);
    char *path = dt_format("%s/stdout.log", logs_worker_dir(logs, 0));
    wait_size(path, 100000);
    /* The pipe ends: the loop has nothing left to do. */
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    logs_finish(logs, 0);
    logs_flush(logs, 60);
    logs_flush(logs, 60);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    char *expected = dt_format("dtrun: %s: File too large; the job goes on, lost output is counted\n", logs_dir(logs));
    char *expected_loss =
        dt_format("dtrun: %s: 3000 lines (300000 bytes) of output were lost: File too large\n", logs_dir(logs));
    finish(&lost);
    char text[1024] = "";
    assert_true(read(ends[0], text, sizeof text - 1) > 0);
    assert_string_equal(text, expected);
    assert_string_equal(dt_text_str(&lost), expected_loss);
    (void)close(ends[0]);
    free(expected_loss);
    free(expected);
    free(path);
    dt_text_clear(&lost);
}

static void test_open_errors(void **state)
{
    (void)state;
    char *file = dt_format("%s/file", folder);
    assert_int_equal(dt_file_write(file, "x", 1, &err), 0);
    char *option = dt_format("--log_dir=%s", file);
    char *argv[] = {"dtrun", option, "x", NULL};
    char *env[] = {NULL};
    assert_int_equal(options_read(&o, 3, argv, env, &err), 0);
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(logs_open(&logs, &loop, &o, &err), -1);
    assert_non_null(strstr(err.text, "--log_dir: "));
    assert_int_equal(uv_loop_close(&loop), 0);
    options_clear(&o);
    free(option);
    free(file);
    /* A default folder in which nothing was left does not stay. */
    assert_int_equal(setenv("TMPDIR", folder, 1), 0);
    char *plain[] = {"dtrun", "x", NULL};
    begin(2, plain);
    char *dir = dt_strdup(logs_dir(logs));
    assert_int_equal(strncmp(dir, folder, strlen(folder)), 0);
    assert_true(dt_file_exists(dir));
    finish(NULL);
    *strrchr(dir, '/') = '\0';
    assert_false(dt_file_exists(dir));
    begin(2, plain);
    free(dir);
    dir = dt_strdup(logs_error_file(logs, 0));
    assert_int_equal(dt_file_write(dir, "x", 1, &err), 0);
    finish(NULL);
    assert_true(dt_file_exists(dir));
    free(dir);
}

static void collect(void *context, const char *line, size_t size)
{
    dt_text_puts(context, "|");
    dt_text_add(context, line, size);
}

static void test_lines(void **state)
{
    (void)state;
    struct log_lines l = {0};
    struct dt_text out;
    dt_text_init(&out);
    static const char *const pieces[] = {"a", "b\n", "\n", "c\r", "\nd\r", "e\r\r\r\n", "f"};
    for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
        log_lines_feed(&l, pieces[i], strlen(pieces[i]), collect, &out);
    }
    log_lines_end(&l, collect, &out);
    log_lines_end(&l, collect, &out);
    assert_string_equal(dt_text_str(&out), "|ab||c|d|e|f");
    dt_text_reset(&out);
    char *big = dt_alloc(1 << 20);
    memset(big, 'x', 1 << 20);
    for (int i = 0; i < 20; i++) {
        log_lines_feed(&l, big, 1 << 20, collect, &out);
        assert_true(l.line.capacity < 4 * LOG_LINE_BYTES);
    }
    log_lines_feed(&l, "\nshort\n", 7, collect, &out);
    assert_int_equal(out.size, 1 + LOG_LINE_BYTES + strlen(" ... (line cut)|short"));
    free(big);
    log_lines_clear(&l);
    static const struct {
        const char *in, *out;
        bool colours;
    } cases[] = {
        {"plain\ttext", "plain\ttext", true},
        {"\033[1;31mred", "\033[1;31mred\033[0m", true},
        {"\033[1;31mred", "red", false},
        {"\033[2J\033]0;title\a", "^[[2J^[]0;title^G", true},
        {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", true},
        {"\xc2\x9b"
         "1m\xff\xed\xa0\x80\x7f",
         "<c2><9b>1m<ff><ed><a0><80>^?", true},
        {"a\rb\bc", "a^Mb^Hc", false},
        {"\xe2\x80\xae\xe2\x80\xa7\xe2\x81\xa5\xe2\x81\xa9", "<e2><80><ae>\xe2\x80\xa7\xe2\x81\xa5<e2><81><a9>", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dt_text_reset(&out);
        log_safe(&out, cases[i].in, strlen(cases[i].in), cases[i].colours);
        assert_string_equal(dt_text_str(&out), cases[i].out);
    }
    dt_text_clear(&out);
}

/* A second of much is a flood, and said once a minute; the same with a pause in it is none. */
static void test_floods(void **state)
{
    struct log_rate r = {0};
    char words[96], lines[4096];
    double t = 1000;
    int told = 0;
    (void)state;
    memset(lines, '\n', sizeof lines);
    for (int i = 0; i < 200; i++, t += 0.01) { /* 409600 lines a second */
        assert_false(log_rate_add(&r, lines, sizeof lines, t, words, sizeof words));
    }
    for (int i = 0; i < 12000; i++, t += 0.005) { /* twice as many, for a minute */
        told += log_rate_add(&r, lines, sizeof lines, t, words, sizeof words);
    }
    assert_in_range(told, 1, 2);
    assert_non_null(strstr(words, " lines a second"));
    r = (struct log_rate){0};
    for (int i = 0; i < 10; i++, t += 2) { /* bursts */
        for (int k = 0; k < 1000; k++) {
            assert_false(log_rate_add(&r, "\n", 1, t, words, sizeof words));
        }
    }
    r = (struct log_rate){0};
    static char big[1 << 20];
    for (int i = 0; i < 110; i++, t += 0.01) { /* no line at all */
        told = log_rate_add(&r, big, sizeof big, t, words, sizeof words);
        if (told) {
            break;
        }
    }
    assert_true(told);
    assert_non_null(strstr(words, " and 0 lines a second"));
}

/* A file that hangs, as on a dead file server, is left to the thread; when it comes back it
 * still has what it needs, writes no more, and closes the file. */
static void test_hanging_file(void **state)
{
    (void)state;
    int ends[2];
    char data[100000], back[65536];
    size_t got = 0;
    memset(data, 'x', sizeof data);
    assert_int_equal(pipe(ends), 0);
    assert_true(fcntl(ends[1], F_SETPIPE_SZ, 4096) >= 4096);
    struct log_writer *w = log_writer_open(&err);
    struct log_sink *file = log_writer_sink(w, ends[1], true);
    log_writer_put(w, file, data, sizeof data);
    log_writer_end(w, file);
    assert_true(log_writer_close(w, 0.1).bytes > sizeof data / 2);
    for (ssize_t n = 1; n > 0; got += (size_t)n) {
        struct pollfd p = {.fd = ends[0], .events = POLLIN};
        assert_int_equal(poll(&p, 1, 60000), 1);
        n = read(ends[0], back, sizeof back);
        assert_true(n >= 0);
    }
    assert_in_range(got, 4096, 16384);
    (void)close(ends[0]);
}

/* Each write ends with a line, so that one of another process comes between two: a packet of the
 * pipe is one write. */
static void test_whole_lines(void **state)
{
    (void)state;
    int ends[2];
    char line[100], packet[8192];
    size_t got = 0, packets = 0;
    memset(line, 'x', sizeof line);
    line[sizeof line - 1] = '\n';
    assert_int_equal(pipe2(ends, O_DIRECT | O_CLOEXEC), 0);
    struct log_writer *w = log_writer_open(&err);
    struct log_sink *sink = log_writer_sink(w, ends[1], false);
    for (int i = 0; i < 2000; i++) { /* six blocks */
        log_writer_put(w, sink, line, sizeof line);
    }
    for (; got < 2000 * sizeof line; packets++) {
        ssize_t n = read(ends[0], packet, sizeof packet);
        assert_true(n > 0);
        assert_int_equal(packet[n - 1], '\n');
        got += (size_t)n;
    }
    assert_in_range(packets, 2000 * sizeof line / 4096, 2000);
    assert_int_equal(log_writer_close(w, 60).bytes, 0);
    (void)close(ends[0]);
    (void)close(ends[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_floods),
        cmocka_unit_test(test_tree),
        cmocka_unit_test(test_tee),
        cmocka_unit_test(test_template),
        cmocka_unit_test(test_filter_and_tail),
        cmocka_unit_test(test_closed_console),
        cmocka_unit_test(test_slow_console),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_open_errors),
        cmocka_unit_test(test_stopped_console),
        cmocka_unit_test(test_hanging_file),
        cmocka_unit_test(test_whole_lines),
    };
    return cmocka_run_group_tests(tests, setup, folder_teardown);
}
