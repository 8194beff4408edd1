/* covers: launcher/query/status.c */
/* The status socket with an answer larger than any buffer, those who do not read it, and the
 * text made of answers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/clock.h"
#include "launcher/query/status.h"
#include "tests/lib/folder.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { ANSWER = 4 << 20, ASKERS = 8 };
#define PATIENCE_S 60.0

static int make_folder(void **state)
{
    return folder_setup(state) == 0 && setenv("DTRUN_RUNTIME_DIR", folder, 1) == 0 ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    return rmdir(folder); /* nothing is left in it */
}

static void describe(void *user, struct dt_text *out)
{
    ++*(int *)user;
    for (int i = 0; i < ANSWER / 16; i++) {
        dt_text_puts(out, "0123456789abcde\n");
    }
}

/* The path of the only socket. */
static char *find_socket(void)
{
    DIR *d = opendir(folder);
    char *path = NULL;
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        if (status_is_socket(e->d_name)) {
            assert_null(path);
            path = dt_format("%s/%s", folder, e->d_name);
        }
    }
    (void)closedir(d);
    return path;
}

/* Reads what there is; true at the end of the stream. */
static bool take(int fd, size_t *got)
{
    char buffer[65536];
    ssize_t n;
    while ((n = read(fd, buffer, sizeof buffer)) > 0) {
        *got += (size_t)n;
    }
    assert_true(n == 0 || errno == EAGAIN);
    return n == 0;
}

static void one_who_does_not_read_keeps_only_its_own_place(void **state)
{
    uv_loop_t loop;
    struct status *s;
    struct dt_error err;
    int asked = 0;
    int fds[ASKERS + 2];
    size_t got = 0;
    bool stale;
    (void)state;
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(status_open(&s, &loop, "this", describe, &asked, &err), 0);
    char *path = find_socket();
    assert_non_null(path);
    for (int i = 0; i < ASKERS + 2; i++) {
        fds[i] = status_connect(path, &stale);
        assert_true(fds[i] >= 0);
        assert_int_equal(write(fds[i], "status\n", 7), 7);
        for (int k = 0; k < 4; k++) {
            (void)uv_run(&loop, UV_RUN_NOWAIT);
        }
    }
    assert_int_equal(asked, ASKERS); /* the others wait: what lies in memory is bounded */
    (void)close(fds[3]);             /* one gives up */
    double until_s = dt_now_s() + PATIENCE_S;
    while (asked < ASKERS + 1 && dt_now_s() < until_s) {
        (void)uv_run(&loop, UV_RUN_NOWAIT);
    }
    assert_int_equal(asked, ASKERS + 1);
    bool ended = false;
    while (!ended && dt_now_s() < until_s) {
        ended = take(fds[ASKERS], &got);
        (void)uv_run(&loop, UV_RUN_NOWAIT);
    }
    assert_true(ended);
    assert_int_equal(got, ANSWER + 1);
    status_close(s);
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&loop), 0);
    assert_null(find_socket());
    for (int i = 0; i < ASKERS + 2; i++) {
        (void)(i != 3 && close(fds[i]));
    }
    free(path);
}

/* Turns the loop until the other end of fd has closed, at most some seconds; what came. */
static const char *answer_of(uv_loop_t *loop, int fd, char *out, size_t out_bytes)
{
    double until_s = dt_now_s() + PATIENCE_S;
    size_t size = 0;
    for (ssize_t n = -1; n != 0 && dt_now_s() < until_s;) {
        (void)uv_run(loop, UV_RUN_NOWAIT);
        n = read(fd, out + size, out_bytes - 1 - size);
        assert_true(n >= 0 || errno == EAGAIN || errno == ECONNRESET);
        n = n < 0 && errno == ECONNRESET ? 0 : n; /* closed with something of ours unread */
        size += n > 0 ? (size_t)n : 0;
    }
    out[size] = '\0';
    (void)close(fd);
    return out;
}

static bool prepare(void *user)
{
    *(int *)user += 1000;
    return false;
}

static void describe_short(void *user, struct dt_text *out)
{
    ++*(int *)user;
    dt_text_puts(out, "all");
}

/* What a start of dtrun does to the sockets of others: connects, and closes. Nothing is made
 * ready for it, nor for one who says something else. */
static void only_a_question_makes_work(void **state)
{
    static const struct {
        const char *says, *answer;
        int work;
    } cases[] = {{"status\n", "all\n", 1001},
                 {"status this\nmore", "all\n", 1001},
                 {"status other\n", "{\"format\":1,\"run_id\":\"this\"}\n", 0},
                 {"status \n", "{\"format\":1,\"run_id\":\"this\"}\n", 0},
                 {"stat\n", "", 0},
                 {"statuses\n", "", 0},
                 {"\n", "", 0}};
    uv_loop_t loop;
    struct status *s;
    struct dt_error err;
    int asked = 0;
    bool stale;
    char answer[200], endless[200];
    (void)state;
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(status_open(&s, &loop, "this", describe_short, &asked, &err), 0);
    status_set_prepare(s, prepare);
    char *path = find_socket();
    assert_non_null(path);
    for (int i = 0; i < 3 * ASKERS; i++) { /* more than there are places: each is free again at
                                            * once */
        int fd = status_connect(path, &stale);
        assert_true(fd >= 0);
        (void)uv_run(&loop, UV_RUN_NOWAIT);
        (void)close(fd);
        for (int k = 0; k < 4; k++) {
            (void)uv_run(&loop, UV_RUN_NOWAIT);
        }
    }
    assert_int_equal(asked, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int fd = status_connect(path, &stale);
        asked = 0;
        /* in as many pieces as there can be */
        for (const char *p = cases[i].says, *next; *p != '\0'; p = next) {
            next = *p == '\n' ? strchr(p, '\0') : p + 1;
            assert_int_equal(write(fd, p, (size_t)(next - p)), next - p);
            (void)uv_run(&loop, UV_RUN_NOWAIT);
            (void)uv_run(&loop, UV_RUN_NOWAIT);
        }
        assert_string_equal(answer_of(&loop, fd, answer, sizeof answer), cases[i].answer);
        assert_int_equal(asked, cases[i].work);
    }
    int fd = status_connect(path, &stale);
    (void)memset(endless, 's', sizeof endless);
    assert_int_equal(write(fd, endless, sizeof endless), sizeof endless);
    assert_string_equal(answer_of(&loop, fd, answer, sizeof answer), "");
    status_close(s);
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&loop), 0);
    free(path);
}

static void sockets_of_the_dead_are_removed(void **state)
{
    uv_loop_t loop;
    struct status *s;
    struct dt_error err;
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    const int numbers[] = {4194304, 1, (int)getpid()}; /* of nobody, of another program, of
                                                        * ourselves: a container gives the same
                                                        * ones again and again */
    int asked = 0;
    bool stale;
    (void)state;
    for (int i = 0; i < 3; i++) {
        (void)snprintf(at.sun_path, sizeof at.sun_path, "%s/%d-dead.sock", folder, numbers[i]);
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
        (void)close(fd);
        assert_int_equal(status_connect(at.sun_path, &stale), -1);
        assert_true(stale);
    }
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(status_open(&s, &loop, "this", describe, &asked, &err), 0);
    free(find_socket()); /* one, and it is new */
    status_close(s);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&loop);
    assert_int_equal(status_connect("/nonexistent/1-a.sock", &stale), -1);
    assert_false(stale);
}

static void add_job(struct dt_text *json, int ranks, int hosts, int waits)
{
    dt_text_puts(json, "{\"run_id\":\"\\u001b[2Jr\",\"state\":\"running\",\"command\":\"");
    for (int i = 0; i < 300; i++) {
        dt_text_puts(json, "\xc3\xa9");
    }
    dt_text_puts(json, "\",\"members\":[");
    for (int i = 0; i < hosts; i++) {
        dt_text_printf(json, "%s{\"host\":\"h%d\",\"order\":%d,\"state\":\"in the round\",\"heard_s\":1e9}",
                       i > 0 ? "," : "", i, i);
    }
    dt_text_puts(json, "],\"ranks\":[");
    for (int i = 0; i < ranks; i++) {
        dt_text_printf(json,
                       "%s{\"rank\":%d,\"pid\":%d,\"running\":true,\"state\":\"R\",\"step\":%d,\"phase\":\"forward\","
                       "\"pulse_s\":%d}",
                       i > 0 ? "," : "", i, i + 100, i == ranks - 1 ? 5 : 9, i);
    }
    dt_text_puts(json, "],\"store\":{\"waits\":[");
    for (int i = 0; i < waits; i++) {
        dt_text_printf(json, "%s{\"key\":\"k\\n%d\",\"age_s\":1}", i > 0 ? "," : "", i);
    }
    dt_text_puts(json, "]}}");
}

/* Whatever the numbers: few lines, none wider than a terminal, the one who is behind among them. */
static void the_text_is_bounded(void **state)
{
    static const int sizes[][3] = {{0, 0, 0}, {1, 1, 1}, {32, 32, 16}, {33, 33, 17}, {4096, 256, 64}};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct dt_text json, out;
        struct dt_error err;
        dt_text_init(&json);
        dt_text_init(&out);
        add_job(&json, sizes[i][0], sizes[i][1], sizes[i][2]);
        assert_int_equal(status_show(json.data, json.size, &out, &err), 0);
        int lines = 0;
        for (const char *p = dt_text_str(&out); *p != '\0'; p += strcspn(p, "\n") + 1, lines++) {
            int columns = 0;
            for (const char *c = p; *c != '\n'; c++) {
                columns += (*c & 0xc0) != 0x80;
                assert_true(*c < 0 || *c >= 32);
            }
            assert_in_range(columns, 0, 80);
        }
        assert_in_range(lines, 3, 100);
        assert_true(sizes[i][0] == 0 || strstr(dt_text_str(&out), " 5      forward, pulse ") != NULL);
        dt_text_clear(&json);
        dt_text_clear(&out);
    }
}

/* A job on several hosts: all ranks by number with their host, hosts without an answer, a
 * witness that is no host. */
static void several_hosts_are_shown(void **state)
{
    static const char job[] =
        "{\"run_id\":\"r\",\"state\":\"running\",\"hosts\":2,\"world_size\":2,\"host\":\"b\",\"members\":["
        "{\"id\":\"01\",\"host\":\"a\",\"pid\":7,\"order\":0,\"state\":\"in the "
        "round\",\"workers\":1,\"answered\":true},"
        "{\"id\":\"02\",\"host\":\"b\",\"order\":1,\"state\":\"in the round\",\"workers\":1,\"answered\":false},"
        "{\"witness\":true,\"host\":\"etcd\",\"pid\":7,\"order\":-1,\"state\":\"in the "
        "council\",\"workers\":0,\"answered\":null}],\"ranks\":["
        "{\"rank\":1,\"host\":\"b\",\"local_rank\":0,\"pid\":78,\"running\":true,\"state\":\"R\",\"step\":312,\"data_"
        "s\":0.01,\"compute_s\":0.05,"
        "\"communication_s\":0.04,\"pulse_s\":1234,\"phase\":"
        "\"backward\","
        "\"in_collective\":true,\"collective\":\"all_reduce the gradients of all units\"},"
        "{\"rank\":0,\"host\":\"a-very-long-name.example\",\"local_rank\":0,\"pid\":77,\"running\":true,\"state\":"
        "\"S\",\"output_s\":3}]}";
    static const char shown[] = "  host a pid 7 (node 0): in the round, 1 worker\n"
                                "  host b (node 1): in the round, 1 worker, no answer\n"
                                "  witness etcd: in the council\n"
                                "  rank host         local     pid S     step busy   pulse doing\n"
                                "     0 a-very-long-     0      77 S output 3.0 s ago\n"
                                "     1 b                0      78 R      312  60%  21 min backward, in all_re...\n";
    (void)state;
    struct dt_text out;
    struct dt_error err;
    dt_text_init(&out);
    assert_int_equal(status_show(job, sizeof job - 1, &out, &err), 0);
    const char *hosts = strstr(dt_text_str(&out), "  host a");
    assert_non_null(hosts);
    assert_string_equal(hosts, shown);
    for (int n = 0; n < 3; n++) {
        char counted[200];
        int size =
            snprintf(counted, sizeof counted,
                     "{\"run_id\":\"r\",\"state\":\"waiting\",\"host\":\"b\",\"hosts\":%d,\"world_size\":%d}", n, n);
        dt_text_reset(&out);
        assert_int_equal(status_show(counted, (size_t)size, &out, &err), 0);
        assert_non_null(strstr(dt_text_str(&out), n == 0   ? "  0 hosts, 0 ranks; "
                                                  : n == 1 ? "  1 host, 1 rank; "
                                                           : "  2 hosts, 2 ranks; "));
    }
    static const char spare[] = /* of the round before it became one there is still something
                                 * left */
        "{\"run_id\":\"r\",\"state\":\"spare\",\"round\":3,\"max_restarts\":2,\"hosts\":1,\"world_size\":4,\"host\":"
        "\"b\",\"role\":\"following\","
        "\"pid\":9,"
        "\"ranks\":[{\"rank\":0,\"host\":\"a\",\"local_rank\":0,\"pid\":77,\"running\":true,\"state\":\"S\",\"cpu_s\":"
        "3}]}";
    dt_text_reset(&out);
    assert_int_equal(status_show(spare, sizeof spare - 1, &out, &err), 0);
    assert_string_equal(dt_text_str(&out), "run r: spare, 0 of 2 restarts used\n"
                                           "  host b following, pid 9, up 0.0 s\n"
                                           "  command \n"
                                           "  rank host         local     pid S     step busy   pulse doing\n"
                                           "     0 a                0      77 S\n");
    dt_text_clear(&out);
}

static void answers_that_are_none(void **state)
{
    static const char *const texts[] = {"",
                                        "{",
                                        "[]",
                                        "7",
                                        "{\"ranks\":7,\"members\":{\"a\":[]},\"store\":[1]}",
                                        "{\"ranks\":[7,null,{}],\"members\":[[]]}",
                                        "{\"store\":{\"waits\":[null]},\"up_s\":-1e300}"};
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct dt_text out;
        struct dt_error err;
        dt_text_init(&out);
        assert_int_equal(status_show(texts[i], strlen(texts[i]), &out, &err), i < 2 ? -1 : 0);
        dt_text_clear(&out);
    }
}

int main(void)
{
    (void)signal(SIGPIPE, SIG_IGN); /* as the agent does */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(one_who_does_not_read_keeps_only_its_own_place, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(only_a_question_makes_work, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(sockets_of_the_dead_are_removed, make_folder, remove_folder),
        cmocka_unit_test(the_text_is_bounded),
        cmocka_unit_test(several_hosts_are_shown),
        cmocka_unit_test(answers_that_are_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
