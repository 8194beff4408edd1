/* covers: cmd/doctor/pairs.c */
/* Messages between two hosts, both in this process: a way that is well, and servers that are
 * not. */
#include "base/clock.h"
#include "base/text.h"
#include "cmd/doctor/pairs.h"
#include "collectives/net.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A host of the job whose nonce is 7, at any port: *port. */
static struct pair_server *serve(int *port)
{
    struct pair_server *s;
    struct dt_error err;
    assert_int_equal(pair_serve(&s, "127.0.0.1", 0, 0, 7, port, &err), 0);
    return s;
}

static void all_sizes_pass(void **state)
{
    (void)state;
    struct pair_result r;
    int port;
    struct pair_server *s = serve(&port);
    pair_call("127.0.0.1", port, 7, NULL, &r);
    assert_int_equal(r.state, PAIR_OK);
    assert_true(r.latency_s > 0 && r.latency_s < 1 && r.bytes_per_s > 0 && r.passed_bytes == (size_t)1 << 20);
    assert_true(fabs(r.clock_ahead_s) < 0.5);
    pair_server_close(s);
    pair_call("127.0.0.1", port, 7, NULL, &r); /* nobody listens any more */
    assert_int_equal(r.state, PAIR_UNREACHABLE);
    assert_non_null(strstr(r.cause, "refused"));
}

static void another_job_is_not_served(void **state)
{
    (void)state;
    struct pair_result r;
    int port;
    struct pair_server *s = serve(&port);
    pair_call("127.0.0.1", port, 8, NULL, &r);
    assert_int_equal(r.state, PAIR_SILENT);
    pair_server_close(s);
}

static void ports_are_of_the_range(void **state)
{
    (void)state;
    struct pair_server *none = NULL;
    struct dt_error err;
    int port, same;
    struct pair_server *s = serve(&port);
    assert_int_equal(pair_serve(&none, "127.0.0.1", port, port, 7, &same, &err), -1);
    assert_null(none);
    assert_non_null(strstr(err.text, "no free port in"));
    pair_server_close(s);
}

/* A server that understands nothing: reads so many bytes of every caller and then does what the
 * case says. */
struct fake {
    struct dt_net listener;
    pthread_t thread;
    size_t reads;
    bool answers_wrongly;
    int callers;
};

static void *fake_main(void *arg)
{
    struct fake *f = arg;
    struct dt_net all[8];
    struct dt_error err;
    char *room = dt_alloc(f->reads + 1);
    while (f->callers < 8 && dt_net_accept(&f->listener, &all[f->callers], dt_now_s() + 60, &err) == 0) {
        struct dt_net *n = &all[f->callers++];
        (void)dt_net_read(n, room, f->reads, dt_now_s() + 60, &err);
        if (f->answers_wrongly) {
            (void)dt_net_write(n, "0123456789abcdef", 16, dt_now_s() + 60, &err);
        }
    }
    for (int i = 0; i < f->callers; i++) {
        dt_net_close(&all[i]);
    }
    free(room);
    return NULL;
}

static struct pair_result call_fake(size_t reads, bool answers_wrongly, int *callers, double *seconds)
{
    struct fake f = {.reads = reads, .answers_wrongly = answers_wrongly};
    struct dt_page *page;
    struct pair_result r;
    struct dt_error err;
    int port, fd;
    assert_int_equal(dt_page_create(&page, &fd, 0, &err), 0);
    assert_int_equal(dt_net_listen(&f.listener, "127.0.0.1", 0, 0, page, &port, &err), 0);
    assert_int_equal(pthread_create(&f.thread, NULL, fake_main, &f), 0);
    double start_s = dt_now_s();
    pair_call("127.0.0.1", port, 7, NULL, &r);
    *seconds = dt_now_s() - start_s;
    atomic_store(&page->order, DT_ORDER_ABORT);
    assert_int_equal(pthread_join(f.thread, NULL), 0);
    dt_net_close(&f.listener);
    dt_page_close(page, fd);
    *callers = f.callers;
    return r;
}

static void silence_has_a_deadline(void **state)
{
    (void)state;
    int callers;
    double seconds;
    struct pair_result r = call_fake(16, false, &callers, &seconds);
    assert_int_equal(r.state, PAIR_SILENT);
    assert_int_equal(r.lost_bytes, 64);
    assert_int_equal(callers, 2); /* tried again, since a packet may be lost by chance */
    assert_true(seconds < 20);
}

static void wrong_answers_are_not_believed(void **state)
{
    (void)state;
    int callers;
    double seconds;
    struct pair_result r = call_fake(16, true, &callers, &seconds);
    assert_int_equal(r.state, PAIR_SILENT);
    assert_string_equal(r.cause, "an answer that is none");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_sizes_pass),
        cmocka_unit_test(another_job_is_not_served),
        cmocka_unit_test(ports_are_of_the_range),
        cmocka_unit_test(silence_has_a_deadline),
        cmocka_unit_test(wrong_answers_are_not_believed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
