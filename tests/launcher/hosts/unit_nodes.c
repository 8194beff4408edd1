/* covers: launcher/hosts */
/* Many agents with their links, members and stores, without workers: those of the followers in
 * this process, the leader's in one that is killed. They meet, elect another leader, and hold a
 * few links each, not one with everybody. 80 agents; with DTRUN_ALL=1 a thousand. Before that,
 * what hosts compare. */
#include "launcher/hosts/hosts.h"
#include "launcher/hosts/place.h"
#include "launcher/hosts/wait.h"
#include "launcher/options/rendezvous.h"
#include "launcher/hosts/link/link.h"
#include "launcher/store/store_server.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "collectives/net.h"

#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

extern char **environ;

struct agent {
    struct crowd *crowd;
    struct hosts *hosts;
    struct options options;
    bool join; /* to be said when the member may be called */
    int world; /* of its newest round */
    char launch[33];
};
struct crowd {
    uv_loop_t loop;
    uv_timer_t waker;
    struct agent *agents;
    int count, over;
};

static void on_act(void *user, const struct action *a, const struct hosts_meeting *meeting)
{
    struct agent *agent = user;
    if (a->kind == ACTION_START) {
        assert_true(meeting->master_addr[0] != '\0' && meeting->master_port > 0);
        agent->world = a->place.world_size;
        memcpy(agent->launch, meeting->launch, sizeof agent->launch);
    } else if (a->kind == ACTION_END) {
        agent->join = true;
    } else {
        agent->crowd->over++;
    }
}

static void say_join(struct agent *a)
{
    hosts_tell(a->hosts, &(struct event){.kind = EVENT_JOIN, .local_world_size = 1, .order = -1, .role = "default"});
}

static void on_settle(void *user)
{
    struct agent *a = user;
    if (a->join) {
        a->join = false;
        a->world = 0;
        say_join(a);
    }
}

static void on_wake(uv_timer_t *timer)
{
    (void)timer;
}

/* Agents first .. first + count - 1 of `all`. */
static void begin(struct crowd *c, int first, int count, int all, int port)
{
    struct dt_error err;
    *c = (struct crowd){.agents = dt_alloc((size_t)count * sizeof *c->agents), .count = count};
    (void)dt_file_raise_limit();
    assert_int_equal(uv_loop_init(&c->loop), 0);
    assert_int_equal(uv_timer_init(&c->loop, &c->waker), 0);
    assert_int_equal(uv_timer_start(&c->waker, on_wake, 100, 100), 0);
    for (int i = 0; i < count; i++) {
        struct agent *a = &c->agents[i];
        char nodes[40], rank[40], where[40];
        (void)snprintf(nodes, sizeof nodes, "--nnodes=%d:%d", all - 1, all);
        (void)snprintf(rank, sizeof rank, "--node_rank=%d", first + i);
        (void)snprintf(where, sizeof where, "--master_port=%d", port);
        char *argv[] = {(char *)"dtrun",
                        nodes,
                        rank,
                        where,
                        (char *)"--master_addr=127.0.0.1",
                        (char *)"--nproc_per_node=1",
                        (char *)"--last_call=1",
                        (char *)"--dead_after=60",
                        (char *)"--no_python",
                        (char *)"/bin/true",
                        NULL};
        a->crowd = c;
        assert_int_equal(options_read(&a->options, 10, argv, environ, &err), 0);
        struct hosts_hooks hooks = {.user = a, .act = on_act, .settle = on_settle};
        assert_int_equal(hosts_open(&a->hosts, &c->loop, &a->options, &hooks, &err), 0);
        say_join(a);
    }
}

static bool all_in(const struct crowd *c, int world)
{
    for (int i = 0; i < c->count; i++) {
        if (c->agents[i].world != world) {
            return false;
        }
    }
    return true;
}

/* What an agent that is not in says of itself. */
static void fail_late(const struct crowd *c, int world)
{
    const struct agent *late = NULL;
    int in = 0;
    struct dt_text status;
    for (int i = 0; i < c->count; i++) {
        in += c->agents[i].world == world;
        late = late == NULL && c->agents[i].world != world ? &c->agents[i] : late;
    }
    dt_text_init(&status);
    hosts_status(late->hosts, &status);
    fail_msg("%d of %d agents are in a round of %d; agent %d: %s", in, c->count, world, (int)(late - c->agents),
             dt_text_str(&status));
}

static void run_until_all_in(struct crowd *c, int world)
{
    for (double until_s = dt_now_s() + 240; !all_in(c, world);) {
        assert_int_equal(c->over, 0);
        if (dt_now_s() > until_s) {
            fail_late(c, world);
        }
        (void)uv_run(&c->loop, UV_RUN_ONCE);
    }
}

/* That of the first agent, and of all others. */
static const char *launch_of(const struct crowd *c)
{
    assert_int_equal(strspn(c->agents[0].launch, "0123456789abcdef"), 32);
    for (int i = 1; i < c->count; i++) {
        assert_string_equal(c->agents[i].launch, c->agents[0].launch);
    }
    return c->agents[0].launch;
}

static int open_sockets(void)
{
    DIR *d = opendir("/proc/self/fd");
    const struct dirent *e;
    char target[64];
    int count = 0;
    assert_non_null(d);
    while ((e = readdir(d)) != NULL) {
        ssize_t size = readlinkat(dirfd(d), e->d_name, target, sizeof target - 1);
        target[size > 0 ? size : 0] = '\0';
        count += strncmp(target, "socket:", 7) == 0;
    }
    (void)closedir(d);
    return count;
}

static FILE *said;  /* what went to standard error meanwhile */
static int said_to; /* the real one */

static void hush(void)
{
    said = tmpfile();
    said_to = dup(2);
    assert_true(said != NULL && said_to >= 0 && dup2(fileno(said), 2) == 2);
}

/* What the test said of its failure, without the agents' lines. */
static int unhush(void **state)
{
    (void)state;
    char line[1024];
    if (said == NULL || dup2(said_to, 2) != 2) {
        return -1;
    }
    rewind(said);
    while (fgets(line, sizeof line, said) != NULL) {
        if (strncmp(line, "dtrun: ", 7) != 0) {
            (void)fputs(line, stderr);
        }
    }
    (void)fclose(said);
    (void)close(said_to);
    return 0;
}

static void followers_of_a_killed_leader_elect_another(void **state)
{
    (void)state;
    int all = getenv("DTRUN_ALL") != NULL ? 1000 : 80, port = 0, status;
    struct dt_net listener;
    struct dt_error err;
    struct crowd c;
    assert_int_equal(dt_net_listen(&listener, "127.0.0.1", 0, 1, NULL, &port, &err), 0);
    dt_net_close(&listener);
    pid_t leader = fork();
    if (leader == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)setenv("CMOCKA_TEST_ABORT", "1", 1); /* the other tests are not for the child */
        begin(&c, 0, 1, all, port);
        for (;;) {
            (void)uv_run(&c.loop, UV_RUN_ONCE);
        }
    }
    assert_true(leader > 0);
    hush(); /* every agent says that it lost its leader */
    begin(&c, 1, all - 1, all, port);
    run_until_all_in(&c, all);
    int before = open_sockets();
    char launch[33];
    (void)snprintf(launch, sizeof launch, "%s", launch_of(&c));
    assert_int_equal(kill(leader, SIGKILL), 0);
    assert_int_equal(waitpid(leader, &status, 0), leader);
    run_until_all_in(&c, all - 1);
    assert_string_equal(launch_of(&c), launch); /* another leader, the same launch */
    for (int i = 0; i < 20; i++) {              /* goodbyes of links that were only for the
                                                 * search */
        (void)uv_run(&c.loop, UV_RUN_ONCE);
    }
    assert_true(before < 3 * all + 100);         /* each a listener and a link */
    assert_true(open_sockets() < 4 * all + 200); /* the leader's ends are here, too; and the
                                                  * council's among themselves */
    for (int i = 0; i < c.count; i++) {
        hosts_close(c.agents[i].hosts);
    }
    uv_close((uv_handle_t *)&c.waker, NULL);
    (void)uv_run(&c.loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&c.loop), 0);
    for (int i = 0; i < c.count; i++) {
        hosts_free(c.agents[i].hosts);
        options_clear(&c.agents[i].options);
    }
    free(c.agents);
}

/* A host of the job that leads, and says what it likes. */
struct liar {
    struct link *link;
    int workers;      /* of its next START */
    int starts, lost; /* said; links that the other side gave up */
    double stamp;     /* of the other side, newest */
};

static void liar_send(struct liar *l, uint64_t peer, struct message *m)
{
    struct dt_text bytes = {0};
    message_encode(m, &bytes);
    (void)link_send(l->link, peer, bytes.data, bytes.size, false);
    dt_text_clear(&bytes);
}

static void liar_up(void *user, uint64_t peer, const char *host)
{
    (void)user, (void)peer, (void)host;
}

static void liar_down(void *user, uint64_t peer, enum link_end end)
{
    struct liar *l = user;
    (void)peer, (void)end;
    l->lost++;
}

/* After the other side's wish to join: a beat that echoes it, and the START. */
static void liar_message(void *user, uint64_t peer, const void *bytes, size_t size)
{
    static struct message in;
    struct liar *l = user;
    struct dt_error err;
    const struct peer_info me = {.id = 1, .order = 0, .port = 9, .host = "liar", .address = "127.0.0.1"};
    if (message_decode(&in, bytes, size, &err) != 0) {
        fail_msg("%s", err.text);
    }
    if (in.kind != MESSAGE_JOIN) {
        return;
    }
    struct message m = {
        .kind = MESSAGE_BEAT,
        .term = 5,
        .beat = {.info = me, .nonce = {7, 9}, .committed = true, .hosts = 1, .stamp = 1, .echo = in.join.stamp}};
    liar_send(l, peer, &m);
    m = (struct message){.kind = MESSAGE_ACTION, .term = 5, .action = {.order = 1}};
    m.action.record = (struct record){.nonce = {7, 9},
                                      .term = 5,
                                      .leader = 1,
                                      .round = 1,
                                      .history = {.best_step = -1, .best_saved = -1, .oom_step = -1},
                                      .committed = true,
                                      .members = 2,
                                      .leader_in = true,
                                      .council_count = 1,
                                      .council = {me},
                                      .next_order = 2};
    m.action.action = (struct action){.kind = ACTION_START,
                                      .place = {.round = 1,
                                                .group_rank = 1,
                                                .group_world_size = 2,
                                                .rank = 1,
                                                .world_size = 1 + l->workers,
                                                .role_rank = 1,
                                                .role_world_size = 1 + l->workers,
                                                .local_world_size = l->workers}};
    liar_send(l, peer, &m);
    l->starts++;
}

static void run_while(uv_loop_t *loop, const int *count, int below)
{
    for (double until_s = dt_now_s() + 60; *count < below;) {
        assert_true(dt_now_s() < until_s);
        (void)uv_run(loop, UV_RUN_ONCE);
    }
}

/* A START of more workers than this host has costs the link with whoever said so, and nothing
 * begins; the next one, which fits, is followed. */
static void a_start_that_cannot_be_costs_the_link(void **state)
{
    (void)state;
    struct crowd c;
    struct liar l = {.workers = 3000};
    struct store_server *store;
    struct secure_key none = {{0}, false};
    struct dt_error err;
    struct dt_net listener;
    int port = 0;
    assert_int_equal(dt_net_listen(&listener, "127.0.0.1", 0, 1, NULL, &port, &err), 0);
    dt_net_close(&listener);
    hush();
    begin(&c, 1, 1, 2, port);
    struct link_options o = {.id = 1,
                             .port = port,
                             .run_id = "none",
                             .key = &none,
                             .time_scale = 10,
                             .hooks = {.user = &l, .up = liar_up, .down = liar_down, .message = liar_message}};
    assert_int_equal(link_open(&l.link, &c.loop, &o, &err), 0);
    struct store_server_options s = {.host = "127.0.0.1", .port = port, .take = link_take, .user = l.link};
    assert_int_equal(store_server_open(&store, &c.loop, &s, &err), 0);
    run_while(&c.loop, &l.lost, 2);
    assert_true(l.starts >= 2);
    assert_int_equal(c.agents[0].world, 0);
    l.workers = 1;
    run_while(&c.loop, &c.agents[0].world, 1);
    assert_int_equal(c.agents[0].world, 2);
    assert_int_equal(c.over, 0);
    hosts_close(c.agents[0].hosts);
    link_close(l.link, NULL, NULL);
    store_server_close(store, NULL, NULL);
    uv_close((uv_handle_t *)&c.waker, NULL);
    (void)uv_run(&c.loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&c.loop), 0);
    hosts_free(c.agents[0].hosts);
    options_clear(&c.agents[0].options);
    free(c.agents);
    char line[1024];
    bool named = false;
    rewind(said);
    while (fgets(line, sizeof line, said) != NULL) {
        named =
            named ||
            strstr(line, "host liar (127.0.0.1): action message: start of 3000 workers on this host, which has 1") !=
                NULL;
    }
    assert_true(named);
}

/* What a host compares that was started with these words. */
static void digest_of(char *out, char *const *words, char *const *variables)
{
    static char *argv[64];
    struct options o;
    struct dt_error err;
    int argc = 0;
    argv[argc++] = (char *)"dtrun";
    argv[argc++] = (char *)"--nnodes=2";
    argv[argc++] = (char *)"--rdzv_endpoint=127.0.0.1:29500";
    for (; *words != NULL; words++) {
        argv[argc++] = *words;
    }
    argv[argc] = NULL;
    assert_int_equal(options_read(&o, argc, argv, (char **)(uintptr_t)variables, &err), 0);
    hosts_digest(&o, out, MESSAGE_TEXT_BYTES);
    assert_true(strlen(out) < MESSAGE_TEXT_BYTES - 1);
    options_clear(&o);
}

/* The fences are made of it, wherever it comes from. */
static void hosts_compare_dead_after_as_it_is_used(void **state)
{
    (void)state;
    static char plain[MESSAGE_TEXT_BYTES], other[MESSAGE_TEXT_BYTES];
    char *const none[] = {NULL};
    digest_of(plain, (char *const[]){(char *)"/bin/true", NULL}, none);
    assert_non_null(strstr(plain, "\n--dead_after 15\n"));
    digest_of(other, (char *const[]){(char *)"--dead_after=5", (char *)"/bin/true", NULL}, none);
    assert_non_null(strstr(other, "\n--dead_after 5\n"));
    digest_of(other, (char *const[]){(char *)"--time_scale=10", (char *)"/bin/true", NULL}, none);
    assert_non_null(strstr(other, "\n--dead_after 1.5\n"));
    digest_of(other, (char *const[]){(char *)"/bin/true", NULL},
              (char *const[]){(char *)"PET_RDZV_CONF=keep_alive_interval=2,keep_alive_max_attempt=4", NULL});
    assert_non_null(strstr(other, "\n--dead_after 8\n"));
    digest_of(other, (char *const[]){(char *)"--dead_after=30", (char *)"--time_scale=2", (char *)"/bin/true", NULL},
              none);
    assert_string_equal(other, plain); /* the same in the end */
}

/* At an etcd alone: elsewhere an endpoint keeps jobs apart. */
static void hosts_of_a_job_without_a_name_compare_what_they_run(void **state)
{
    (void)state;
    static char first[MESSAGE_TEXT_BYTES], second[MESSAGE_TEXT_BYTES], padding[4000];
    char *const none[] = {NULL}, *etcd = (char *)"--rdzv_backend=etcd-v3", *id = (char *)"--rdzv_id=a";
    memset(padding, 'x', sizeof padding - 1);
    digest_of(first, (char *const[]){etcd, (char *)"/bin/true", padding, (char *)"1", NULL}, none);
    assert_non_null(strstr(first, "\n" MEMBER_UNNAMED "/bin/true xxx"));
    digest_of(second, (char *const[]){etcd, (char *)"/bin/true", padding, (char *)"2", NULL}, none);
    assert_string_not_equal(first, second);
    digest_of(second,
              (char *const[]){etcd, (char *)"--nproc_per_node=2", (char *)"/bin/true", padding, (char *)"1", NULL},
              none);
    assert_string_equal(first, second); /* hosts may have more workers */
    digest_of(first, (char *const[]){etcd, id, (char *)"/bin/true", (char *)"1", NULL}, none);
    digest_of(second, (char *const[]){etcd, id, (char *)"/bin/false", NULL}, none);
    assert_string_equal(first, second);
    digest_of(first, (char *const[]){(char *)"/bin/true", (char *)"1", NULL}, none);
    digest_of(second, (char *const[]){(char *)"/bin/false", NULL}, none);
    assert_string_equal(first, second);
}

/* However long they are, and where one ends. */
static void hosts_compare_all_arguments_of_train(void **state)
{
    (void)state;
    static char first[MESSAGE_TEXT_BYTES], second[MESSAGE_TEXT_BYTES], padding[4000];
    char *const none[] = {NULL};
    memset(padding, 'x', sizeof padding - 1);
    for (size_t i = 10; i < sizeof padding - 1; i += 10) {
        padding[i] = ' ';
    }
    digest_of(first, (char *const[]){(char *)"train", (char *)"job", padding, (char *)"training.seed=1", NULL}, none);
    digest_of(second, (char *const[]){(char *)"train", (char *)"job", padding, (char *)"training.seed=2", NULL}, none);
    assert_string_not_equal(first, second);
    digest_of(second, (char *const[]){(char *)"train", (char *)"job", padding, (char *)"training.seed=1", NULL}, none);
    assert_string_equal(first, second);
    digest_of(first, (char *const[]){(char *)"train", (char *)"a", (char *)"b c", NULL}, none);
    digest_of(second, (char *const[]){(char *)"train", (char *)"a b", (char *)"c", NULL}, none);
    assert_string_not_equal(first, second);
    digest_of(second, (char *const[]){(char *)"train", (char *)"a", (char *)"b\tc", NULL}, none);
    assert_string_not_equal(first, second);
    assert_null(strchr(second, '\t')); /* no message may hold it */
}

/* A wrong key is the cause when it was refused for five seconds; an endpoint that heard it too
 * often says nothing more, which is no other cause. */
static void a_wrong_key_is_named_while_waiting_and_at_the_end(void **state)
{
    (void)state;
    static const char key[] = "10.0.0.1:29500: refused our proof: the key files differ, or it is ending";
    struct options o = {.rdzv.row = rendezvous_find("c10d"),
                        .rdzv.master_addr = (char *)"10.0.0.1",
                        .rdzv.master_port = 29500,
                        .rdzv.join_timeout_s = 600,
                        .time_scale = 1};
    struct member *m = dt_alloc(sizeof *m);
    struct hosts_wait w = {.since_s = dt_now_s()};
    struct dt_text line;
    dt_text_init(&line);
    m->role = MEMBER_SEEKING;
    m->seeking.since_s = w.since_s;
    for (int i = 0; i < 15; i++) {
        assert_false(hosts_wait_key_refused(&w, key, 7, 100 + i, 1));
    }
    assert_true(hosts_wait_key_refused(&w, key, 7, 115, 1));
    assert_true(hosts_wait_is_key(&w, m));
    (void)snprintf(w.trouble, sizeof w.trouble,
                   "10.0.0.1:29500: closed the connection; no agent of this job, or it is ending");
    (void)snprintf(w.denied, sizeof w.denied, "%s", key);
    w.denied_digest = 7;
    hosts_wait_line(&w, m, &o, 0, &line);
    assert_non_null(strstr(dt_text_str(&line), "s left: refused our proof: the key files differ"));
    dt_text_reset(&line);
    hosts_wait_too_few(&w, m, &o, &line);
    assert_string_equal(dt_text_str(&line),
                        "endpoint 10.0.0.1 port 29500: refused our proof: the key files differ, or it is ending");
    m->record.round = 1; /* whoever was in a round had the right key: the job ends with another
                          * code, and names what it saw last */
    dt_text_reset(&line);
    hosts_wait_too_few(&w, m, &o, &line);
    assert_non_null(strstr(dt_text_str(&line), "port 29500: closed the connection"));
    dt_text_clear(&line);
    free(m);
}

static void refusals_far_apart_are_no_proof(void **state)
{
    (void)state;
    struct hosts_wait w = {.since_s = 0};
    for (int i = 0; i < 10; i++) {
        assert_false(hosts_wait_key_refused(&w, "x", 7, 100 + 3 * i, 1));
    }
    hosts_wait_met(&w);
    assert_false(hosts_wait_key_refused(&w, "x", 7, 128, 1));
    assert_int_equal(w.key_refusals, 1);
}

int main(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(a_start_that_cannot_be_costs_the_link, unhush),
                                       cmocka_unit_test(hosts_compare_dead_after_as_it_is_used),
                                       cmocka_unit_test(hosts_of_a_job_without_a_name_compare_what_they_run),
                                       cmocka_unit_test(hosts_compare_all_arguments_of_train),
                                       cmocka_unit_test(a_wrong_key_is_named_while_waiting_and_at_the_end),
                                       cmocka_unit_test(refusals_far_apart_are_no_proof),
                                       cmocka_unit_test_teardown(followers_of_a_killed_leader_elect_another, unhush)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
