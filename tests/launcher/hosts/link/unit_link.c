/* covers: launcher/hosts/link */
/* Agents of one process (and, where they must die, of another) linked over loopback: one link
 * per pair however they connect, goodbyes and deaths, strangers of all kinds. Every wait is for
 * a condition. */
#include "launcher/hosts/link/link_private.h"
#include "launcher/store/store_server.h"
#include "launcher/net/strangers.h"

#include "base/clock.h"
#include "base/log.h"
#include "collectives/net.h"

#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { wait_s = 60, many = 300 };

struct agent {
    uint64_t id;
    struct link *link;
    struct store_server *store;
    int port, ups, downs, deaths, messages, failures;
    uint64_t last_up, last_down;
    size_t bytes;
    char text[64];        /* the newest message */
    struct dt_text order; /* first bytes of all messages */
    struct dt_error err;
};

static uv_loop_t loop;
static uv_timer_t waker;
static const struct secure_key key_one = {.bytes = "one", .given = true}, key_two = {.bytes = "two", .given = true},
                               no_key;

static void on_up_anywhere(void *user, uint64_t peer, const char *host)
{
    struct agent *a = user;
    (void)host;
    a->ups++;
    a->last_up = peer;
}

static void on_up(void *user, uint64_t peer, const char *host)
{
    struct agent *a = user;
    assert_string_equal(host, "127.0.0.1");
    assert_true(link_is_up(a->link, peer));
    a->ups++;
    a->last_up = peer;
}

static void on_down(void *user, uint64_t peer, enum link_end end)
{
    struct agent *a = user;
    a->downs++;
    a->deaths += end != LINK_LOST;
    a->last_down = peer;
}

static void on_message(void *user, uint64_t peer, const void *bytes, size_t size)
{
    struct agent *a = user;
    (void)peer;
    a->messages++;
    a->bytes += size;
    (void)snprintf(a->text, sizeof a->text, "%.*s", (int)(size < 60 ? size : 60), (const char *)bytes);
    dt_text_add(&a->order, bytes, 1);
}

static void on_failed(void *user, uint64_t peer, const struct dt_error *err)
{
    struct agent *a = user;
    (void)peer;
    a->failures++;
    a->err = *err;
}

static bool take(void *user, int fd, const void *first, size_t size, const char *from)
{
    const struct agent *a = user;
    return a->link != NULL && link_take(a->link, fd, first, size, from);
}

static struct link_options options_of(struct agent *a, uint64_t id, const struct secure_key *key)
{
    a->id = id;
    return (struct link_options){
        .id = id,
        .port = a->port,
        .run_id = "test",
        .key = key,
        .time_scale = 4,
        .handshake_s = 30,
        .hooks = {.user = a, .up = on_up, .down = on_down, .message = on_message, .failed = on_failed}};
}

static void listen_agent(struct agent *a)
{
    struct dt_error err;
    struct store_server_options s = {.take = take, .user = a};
    *a = (struct agent){0};
    assert_int_equal(store_server_open(&a->store, &loop, &s, &err), 0);
    a->port = store_server_port(a->store);
}

static void start(struct agent *a, uint64_t id, const struct secure_key *key)
{
    struct dt_error err;
    listen_agent(a);
    struct link_options o = options_of(a, id, key);
    assert_int_equal(link_open(&a->link, &loop, &o, &err), 0);
}

static void on_wake(uv_timer_t *timer)
{
    (void)timer;
}

static void begin(void)
{
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(uv_timer_init(&loop, &waker), 0);
    assert_int_equal(uv_timer_start(&waker, on_wake, 10, 10), 0);
}

#define wait_until(condition)                                                                                          \
    do {                                                                                                               \
        double until_s = dt_now_s() + wait_s;                                                                          \
        while (!(condition)) {                                                                                         \
            if (dt_now_s() > until_s) {                                                                                \
                fail_msg("waited in vain for %s", #condition);                                                         \
            }                                                                                                          \
            (void)uv_run(&loop, UV_RUN_ONCE);                                                                          \
        }                                                                                                              \
    } while (0)

static void run_for(double seconds)
{
    double until_s = dt_now_s() + seconds;
    while (dt_now_s() < until_s) {
        (void)uv_run(&loop, UV_RUN_ONCE);
    }
}

static void end_agent(struct agent *a)
{
    if (a->link != NULL) {
        link_close(a->link, NULL, NULL);
        a->link = NULL;
    }
    if (a->store != NULL) {
        store_server_close(a->store, NULL, NULL);
        a->store = NULL;
    }
    dt_text_clear(&a->order);
}

/* Everything is given back: the loop ends by itself. */
static void end(struct agent *agents, int count)
{
    for (int i = 0; i < count; i++) {
        end_agent(&agents[i]);
    }
    uv_close((uv_handle_t *)&waker, NULL);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
}

/* ---- agents among themselves ---- */

static void two_agents_talk_and_part(void **state)
{
    (void)state;
    struct agent a[2];
    static char big[65536];
    char host[LOOKUP_NAME_BYTES];
    memset(big, 'b', sizeof big);
    begin();
    start(&a[0], 1, &key_one);
    start(&a[1], 2, &key_one);
    assert_int_equal(link_send(a[0].link, 2, "x", 1, false), -1);
    link_connect(a[0].link, 2, "localhost", a[1].port);
    wait_until(a[0].ups == 1 && a[1].ups == 1);
    assert_true(a[0].last_up == 2 && a[1].last_up == 1);
    assert_int_equal(link_local_address(a[0].link, 2, host, sizeof host), 0);
    assert_string_equal(host, "127.0.0.1");
    assert_int_equal(link_send(a[0].link, 2, "hello", 5, false), 0);
    assert_int_equal(link_send(a[1].link, 1, big, sizeof big, false), 0);
    assert_int_equal(link_send(a[1].link, 1, big, sizeof big + 1, false), -1);
    assert_int_equal(a[1].messages, 0); /* nothing happens within a call */
    wait_until(a[0].messages == 1 && a[1].messages == 1);
    assert_string_equal(a[1].text, "hello");
    assert_int_equal(a[0].bytes, sizeof big);
    link_connect(a[1].link, 1, "127.0.0.1", a[0].port); /* there is one already */
    link_connect(a[1].link, 0, "127.0.0.1", a[0].port);
    assert_int_equal(link_send(a[0].link, 2, "last", 4, false), 0);
    link_drop(a[0].link, 2); /* what was queued arrives, then the goodbye */
    wait_until(a[1].downs == 1);
    assert_string_equal(a[1].text, "last");
    assert_true(a[1].deaths == 0 && a[0].downs == 0 && a[1].last_down == 1);
    end(a, 2);
}

static unsigned long long stat_of(const struct agent *a, const char *name)
{
    struct dt_text stats;
    unsigned long long value = 0;
    dt_text_init(&stats);
    link_stats(a->link, &stats);
    const char *at = strstr(dt_text_str(&stats), name);
    assert_true(at != NULL && sscanf(at + strlen(name), "\":%llu", &value) == 1);
    dt_text_clear(&stats);
    return value;
}

/* Who calls the endpoint and then holds it himself reaches himself: no link, nobody is refused,
 * and another try may find somebody. */
static void a_call_that_reaches_ourselves(void **state)
{
    (void)state;
    struct agent a;
    begin();
    start(&a, 1, &key_one);
    link_connect(a.link, 0, "127.0.0.1", a.port);
    wait_until(a.failures == 1);
    assert_non_null(strstr(a.err.text, ": this is the agent itself"));
    assert_int_equal(a.err.status, DT_PEER);
    wait_until(stat_of(&a, "half_open") == 0);
    assert_true(stat_of(&a, "refused") == 0 && link_count(a.link) == 0 && a.ups == 0 && a.downs == 0);
    end(&a, 1);
}

static void both_ways_of_connecting_give_one_link(void **state)
{
    (void)state;
    for (int round = 0; round < 16; round++) {
        struct agent a[2];
        begin();
        start(&a[0], 1, &no_key);
        start(&a[1], 2, &no_key);
        int first = round % 2;
        link_connect(a[first].link, round % 4 < 2 ? a[1 - first].id : 0, "127.0.0.1", a[1 - first].port);
        for (int i = 0; i < round / 4; i++) {
            (void)uv_run(&loop, UV_RUN_NOWAIT);
        }
        if (round >= 4) {
            link_connect(a[1 - first].link, a[first].id, "127.0.0.1", a[first].port);
        }
        wait_until(link_is_up(a[0].link, 2) && link_is_up(a[1].link, 1));
        assert_int_equal(link_send(a[0].link, 2, "there", 5, false), 0);
        assert_int_equal(link_send(a[1].link, 1, "back", 4, false), 0);
        wait_until(a[0].messages == 1 && a[1].messages == 1);
        assert_true(link_count(a[0].link) == 1 && link_count(a[1].link) == 1);
        assert_true(a[0].ups == 1 && a[1].ups == 1 && a[0].downs == 0 && a[1].downs == 0);
        end(a, 2);
    }
}

static void three_agents_and_urgent_messages(void **state)
{
    (void)state;
    struct agent a[3];
    static char block[60000];
    memset(block, 'u', sizeof block);
    begin();
    for (int i = 0; i < 3; i++) {
        start(&a[i], (uint64_t)(3 - i), &key_one);
    }
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < 3; k++) {
            link_connect(a[i].link, a[k].id, "127.0.0.1", a[k].port); /* not to itself */
        }
    }
    wait_until(link_count(a[0].link) == 2 && link_count(a[1].link) == 2 && link_count(a[2].link) == 2);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(link_send(a[0].link, a[1].id, block, sizeof block, false), 0);
    }
    assert_int_equal(link_send(a[0].link, a[1].id, "!", 1, true), 0);
    wait_until(a[1].messages == 21);
    assert_int_equal(a[1].order.data[0], '!');
    end_agent(&a[2]);
    wait_until(a[0].downs == 1 && a[1].downs == 1);
    assert_true(a[0].deaths == 0 && a[1].deaths == 0);
    end(a, 3);
}

static void many_agents_in_one_process(void **state)
{
    (void)state;
    struct agent *a = calloc(many, sizeof *a);
    struct dt_error err;
    struct dt_text stats;
    unsigned long long bytes = 0;
    begin();
    start(&a[0], 1, &key_one);
    for (int i = 1; i < many; i++) {
        struct link_options o = options_of(&a[i], (uint64_t)(i + 1), &key_one);
        assert_int_equal(link_open(&a[i].link, &loop, &o, &err), 0);
        link_connect(a[i].link, 1, "127.0.0.1", a[0].port);
    }
    wait_until(link_count(a[0].link) == many - 1);
    for (int i = 1; i < many; i++) {
        wait_until(a[i].ups == 1);
        assert_int_equal(link_send(a[0].link, a[i].id, "beat", 4, true), 0);
        assert_int_equal(link_send(a[i].link, 1, "ack", 3, true), 0);
    }
    wait_until(a[0].messages == many - 1);
    for (int i = 1; i < many; i++) {
        wait_until(a[i].messages == 1);
    }
    dt_text_init(&stats);
    link_stats(a[0].link, &stats);
    const char *at = strstr(dt_text_str(&stats), "\"bytes\":");
    assert_true(at != NULL && sscanf(at, "\"bytes\":%llu", &bytes) == 1);
    assert_true(bytes < many * 2048); /* idle */
    dt_text_clear(&stats);
    end(a, many);
    free(a);
}

static void refused_for_a_reason(void **state)
{
    (void)state;
    struct agent a[4];
    begin();
    start(&a[0], 1, &key_one);
    start(&a[1], 2, &key_two);
    start(&a[2], 3, &no_key);
    struct dt_error err;
    listen_agent(&a[3]);
    struct link_options o = options_of(&a[3], 4, &key_one);
    o.run_id = "another";
    assert_int_equal(link_open(&a[3].link, &loop, &o, &err), 0);
    for (int i = 1; i < 4; i++) {
        link_connect(a[i].link, 0, "127.0.0.1", a[0].port);
        wait_until(a[i].failures == 1);
    }
    assert_non_null(strstr(a[1].err.text, "key files differ"));
    assert_non_null(strstr(a[2].err.text, "--key_file"));
    assert_non_null(strstr(a[3].err.text, "run id"));
    assert_true(a[0].ups == 0 && a[1].ups == 0 && a[2].ups == 0 && a[3].ups == 0);
    end(a, 4);
}

static int stalls; /* look-ups that stall_lookup holds */

static int stall_lookup(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **found)
{
    __atomic_add_fetch(&stalls, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&stalls, __ATOMIC_SEQ_CST) > 0) {
        dt_sleep_s(0.005);
    }
    (void)host;
    return getaddrinfo("127.0.0.1", service, hints, found);
}

static void a_slow_name_stops_nobody(void **state)
{
    (void)state;
    struct agent a[2];
    struct dt_error err;
    begin();
    start(&a[0], 1, &key_one);
    listen_agent(&a[1]);
    struct link_options o = options_of(&a[1], 2, &key_one);
    o.resolver = stall_lookup;
    o.time_scale = 50;
    assert_int_equal(link_open(&a[1].link, &loop, &o, &err), 0);
    link_connect(a[1].link, 0, "slow", a[0].port);
    wait_until(a[1].failures == 1); /* it is told, and goes on waiting */
    assert_non_null(strstr(a[1].err.text, "slow: name look-up: no answer"));
    link_connect(a[0].link, 2, "127.0.0.1", a[1].port);
    wait_until(a[0].ups == 1 && a[1].ups == 1);
    link_drop(a[0].link, 2);
    wait_until(a[1].downs == 1);
    __atomic_store_n(&stalls, 0, __ATOMIC_SEQ_CST);
    wait_until(a[1].ups == 2);
    end(a, 2);
}

static void all_addresses_are_tried(void **state)
{
    (void)state;
    struct agent a[2];
    struct dt_net dead = {.fd = -1}, silent = {.fd = -1};
    struct dt_error err;
    struct lookup_list list, one;
    int dead_port = 0, silent_port = 0;
    begin();
    start(&a[0], 1, &key_one);
    start(&a[1], 2, &key_one);
    assert_int_equal(dt_net_listen(&dead, "127.0.0.1", 0, 1, NULL, &dead_port, &err), 0);
    /* accepts, says nothing */
    assert_int_equal(dt_net_listen(&silent, "127.0.0.1", 0, 16, NULL, &silent_port, &err), 0);
    assert_int_equal(lookup_now("127.0.0.1", silent_port, &list, &err), 0);
    assert_int_equal(lookup_now("127.0.0.1", a[1].port, &one, &err), 0);
    list.addresses[list.count++] = one.addresses[0];
    link_connect_list(a[0].link, 0, &list);
    wait_until(a[0].ups == 1 && a[1].ups == 1);
    assert_int_equal(a[0].failures, 0);
    dt_net_close(&dead); /* now nobody listens there */
    link_connect(a[0].link, 99, "127.0.0.1", dead_port);
    wait_until(a[0].failures == 1);
    assert_non_null(strstr(a[0].err.text, "refused"));
    link_connect(a[0].link, 99, "127.0.0.1", a[1].port); /* somebody else answers there */
    wait_until(a[0].failures == 2);
    assert_non_null(strstr(a[0].err.text, "another agent"));
    dt_net_close(&silent);
    end(a, 2);
}

/* A name with addresses of both families, of which only one is served: whatever the order, the
 * other one costs a moment. */
static void either_family_may_be_the_served_one(void **state)
{
    (void)state;
    static const char *const hosts[] = {"127.0.0.1", "::1"};
    for (int served = 0; served < 2; served++) {
        for (int first = 0; first < 2; first++) {
            struct agent a[2] = {{0}};
            struct dt_net listener;
            struct dt_error err;
            struct lookup_list list = {0}, one;
            begin();
            if (dt_net_listen(&listener, hosts[served], 0, 0, NULL, &a[0].port, &err) != 0) {
                end(a, 0);
                skip(); /* no IPv6 here */
            }
            struct store_server_options s = {.listen_fd = listener.fd, .take = take, .user = &a[0]};
            assert_int_equal(store_server_open(&a[0].store, &loop, &s, &err), 0);
            struct link_options o = options_of(&a[0], 1, &key_one);
            o.hooks.up = on_up_anywhere;
            assert_int_equal(link_open(&a[0].link, &loop, &o, &err), 0);
            o = options_of(&a[1], 2, &key_one);
            o.port = 0;
            o.hooks.up = on_up_anywhere;
            assert_int_equal(link_open(&a[1].link, &loop, &o, &err), 0);
            for (int i = 0; i < 2; i++) {
                if (lookup_now(hosts[(first + i) % 2], a[0].port, &one, &err) == 0) {
                    list.addresses[list.count++] = one.addresses[0];
                }
            }
            link_connect_list(a[1].link, 0, &list);
            wait_until(a[0].ups == 1 && a[1].ups == 1);
            assert_int_equal(a[1].failures, 0);
            end(a, 2);
        }
    }
}

/* ---- an agent in a process of its own ---- */

/* Links with the agent at `port`, then waits to be killed; after `messages` messages it ends
 * without a word. */
static void child_main(int port, int messages)
{
    struct agent a;
    begin();
    start(&a, 77, &key_one);
    link_connect(a.link, 0, "127.0.0.1", port);
    while (a.messages < messages || messages == 0) {
        (void)uv_run(&loop, UV_RUN_ONCE);
    }
    _exit(0);
}

static void the_kernel_tells_of_deaths(void **state)
{
    (void)state;
    for (int how = 0; how < 3; how++) { /* it exits; is killed; is killed with something unread,
                                         * which resets the link */
        struct agent a;
        int pipes[2];
        int port = 0;
        assert_int_equal(pipe(pipes), 0);
        pid_t pid = fork(); /* before there is a loop here */
        if (pid == 0) {
            (void)alarm(120);
            if (read(pipes[0], &port, sizeof port) == (ssize_t)sizeof port) {
                child_main(port, how == 0 ? 1 : 0);
            }
            _exit(3);
        }
        begin();
        start(&a, 1, &key_one);
        port = a.port;
        assert_int_equal(write(pipes[1], &port, sizeof port), sizeof port);
        wait_until(a.ups == 1);
        if (how == 0) {
            assert_int_equal(link_send(a.link, 77, "end", 3, false), 0);
        } else if (how == 1) {
            assert_int_equal(kill(pid, SIGKILL), 0);
        } else {
            int status;
            assert_int_equal(kill(pid, SIGSTOP), 0);
            assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
            assert_int_equal(link_send(a.link, 77, "unread", 6, false), 0);
            run_for(0.1);
            assert_int_equal(a.downs, 0);
            assert_int_equal(kill(pid, SIGKILL), 0);
        }
        wait_until(a.downs == 1);
        assert_true(a.deaths == 1 && a.last_down == 77);
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        (void)close(pipes[0]);
        (void)close(pipes[1]);
        end(&a, 1);
    }
}

/* In a network of its own, where outgoing connections get this port alone: one to itself, then.
 * Returns 77 where there are no namespaces. */
static int lonely_main(void)
{
    enum { only_port = 40001 };
    struct agent a;
    struct dt_net net;
    struct dt_error err;
    struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    int fd = -1, port = 0;
    if ((unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) ||
        (fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) < 0 || ioctl(fd, SIOCSIFFLAGS, &lo) != 0) {
        return 77;
    }
    (void)close(fd);
    begin();
    start(&a, 1, &key_one);
    FILE *range = fopen("/proc/sys/net/ipv4/ip_local_port_range", "we");
    if (range == NULL || fprintf(range, "%d %d", only_port, only_port) < 0 || fclose(range) != 0) {
        return 77;
    }
    link_connect(a.link, 0, "127.0.0.1", only_port);
    wait_until(a.failures == 1);
    assert_non_null(strstr(a.err.text, "nobody listens there"));
    run_for(0.1);
    /* nothing of it is left */
    assert_int_equal(dt_net_listen(&net, "127.0.0.1", only_port, 0, NULL, &port, &err), 0);
    dt_net_close(&net);
    end(&a, 1);
    return 0;
}

static void a_connection_with_itself_is_none(void **state)
{
    (void)state;
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        (void)alarm(120);
        (void)setenv("CMOCKA_TEST_ABORT", "1", 1); /* the other tests are not for the child */
        _exit(lonely_main());
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
        skip();
    }
    assert_int_equal(status, 0);
}

/* ---- strangers and hand-made peers ---- */

static int connect_from(uint32_t address, int port)
{
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr = {htonl(address)}};
    assert_true(fd >= 0 && bind(fd, (struct sockaddr *)&from, sizeof from) == 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

static int connect_raw(int port)
{
    return connect_from(INADDR_LOOPBACK, port);
}

/* Whether the other side has closed; takes what it sent. */
static bool is_closed(int fd)
{
    char bytes[4096];
    ssize_t size = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
    return size == 0 || (size < 0 && errno != EAGAIN);
}

struct raw { /* an agent by hand, on a blocking socket while the loop runs */
    int fd;
    struct secure_self self;
    struct secure s;
    struct dt_text out, sent;
    bool up, ended;
};

static void raw_step(struct raw *r)
{
    char bytes[4096];
    const uint8_t *data;
    size_t size;
    struct dt_error err;
    ssize_t got = recv(r->fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (got > 0) {
        secure_feed(&r->s, bytes, (size_t)got);
    }
    for (enum secure_event e = SECURE_UP; e != SECURE_MORE && e != SECURE_BAD;) {
        e = secure_next(&r->s, &r->out, &data, &size, &err);
        if (e == SECURE_ASKED) {
            secure_prove(&r->s, NULL, &r->out);
        }
        r->up = r->up || e == SECURE_UP;
        r->ended = r->ended || e == SECURE_END;
    }
    if (r->out.size > 0) {
        dt_text_add(&r->sent, r->out.data, r->out.size);
        assert_int_equal(send(r->fd, r->out.data, r->out.size, MSG_NOSIGNAL), (ssize_t)r->out.size);
        dt_text_reset(&r->out);
    }
}

static bool raw_up(struct raw *r)
{
    raw_step(r);
    return r->up;
}

static bool raw_ended(struct raw *r)
{
    raw_step(r);
    return r->ended;
}

static void raw_open_from(struct raw *r, uint32_t address, uint64_t id, int own_port, int port)
{
    struct dt_error err;
    *r = (struct raw){.fd = connect_from(address, port)};
    assert_int_equal(secure_self_init(&r->self, id, own_port, "test", &key_one, 65536, &err), 0);
    secure_init(&r->s, &r->self, true);
    secure_begin(&r->s, &r->out);
    wait_until(raw_up(r));
}

static void raw_open(struct raw *r, uint64_t id, int own_port, int port)
{
    raw_open_from(r, INADDR_LOOPBACK, id, own_port, port);
}

static void raw_close(struct raw *r, bool reset)
{
    struct linger now = {.l_onoff = reset, .l_linger = 0};
    (void)setsockopt(r->fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    (void)close(r->fd);
    secure_clear(&r->s);
    dt_text_clear(&r->out);
    dt_text_clear(&r->sent);
}

/* Listens, takes one connection of the agent, and closes it when the agent has proved itself. */
static void close_at_its_proof(struct agent *a, const struct secure_key *key)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof at;
    struct raw r = {.fd = -1};
    struct dt_error err;
    const uint8_t *data;
    size_t size;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), failures = a->failures;
    assert_true(listener >= 0 && bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 1) == 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &length), 0);
    assert_int_equal(secure_self_init(&r.self, 9, 0, "test", key, 65536, &err), 0);
    secure_init(&r.s, &r.self, false);
    link_connect(a->link, 0, "127.0.0.1", ntohs(at.sin_port));
    wait_until((r.fd = accept(listener, NULL, NULL)) >= 0);
    for (enum secure_event e = SECURE_MORE; e != SECURE_ASKED;) {
        char bytes[4096];
        ssize_t got = recv(r.fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (got > 0) {
            secure_feed(&r.s, bytes, (size_t)got);
        }
        e = secure_next(&r.s, &r.out, &data, &size, &err);
        assert_true(e == SECURE_MORE || e == SECURE_ASKED);
        if (r.out.size > 0) {
            assert_int_equal(send(r.fd, r.out.data, r.out.size, MSG_NOSIGNAL), (ssize_t)r.out.size);
            dt_text_reset(&r.out);
        }
        run_for(0.001);
    }
    raw_close(&r, false);
    (void)close(listener);
    wait_until(a->failures == failures + 1);
}

/* Where no side has a key no proof can be a wrong one: who closes then has other reasons, and it
 * is worth another try. */
static void who_closes_without_a_key_does_not_refuse_ours(void **state)
{
    (void)state;
    struct agent a[2];
    begin();
    start(&a[0], 1, &no_key);
    start(&a[1], 2, &key_one);
    close_at_its_proof(&a[0], &no_key);
    assert_int_equal(a[0].err.status, DT_PEER);
    assert_null(strstr(a[0].err.text, "key"));
    close_at_its_proof(&a[1], &key_one);
    assert_int_equal(a[1].err.status, DT_INVALID);
    assert_non_null(strstr(a[1].err.text, "key files differ"));
    end(a, 2);
}

static void a_reset_alone_is_no_death(void **state)
{
    (void)state;
    struct agent a, alive;
    struct raw r;
    begin();
    start(&a, 1, &key_one);
    start(&alive, 5, &key_one);
    int port = alive.port;
    raw_open(&r, 5, port, a.port); /* its process still listens and answers */
    raw_close(&r, true);
    wait_until(a.downs == 1);
    assert_int_equal(a.deaths, 0);
    raw_open(&r, 5, 0, a.port); /* nobody can tell */
    raw_close(&r, true);
    wait_until(a.downs == 2);
    assert_int_equal(a.deaths, 0);
    raw_open(&r, 6, port, a.port); /* another agent answers there: this one is gone */
    raw_close(&r, true);
    wait_until(a.downs == 3);
    assert_int_equal(a.deaths, 1);
    struct dt_net dying;
    struct dt_error err;
    int dying_port = 0;
    assert_int_equal(dt_net_listen(&dying, "127.0.0.1", 0, 16, NULL, &dying_port, &err), 0);
    raw_open(&r, 7, dying_port, a.port); /* its port takes connections, as those of a dying
                                          * process do, and resets them */
    raw_close(&r, true);
    run_for(0.2);
    assert_int_equal(a.downs, 3);
    dt_net_close(&dying);
    wait_until(a.downs == 4);
    assert_int_equal(a.deaths, 2);
    end_agent(&alive);
    run_for(0.1); /* its listener is closed */
    raw_open(&r, 5, port, a.port);
    raw_close(&r, true);
    wait_until(a.downs == 5);
    assert_int_equal(a.deaths, 3);
    raw_open(&r, 5, 0, a.port); /* an end without a goodbye */
    raw_close(&r, false);
    wait_until(a.downs == 6);
    assert_int_equal(a.deaths, 4);
    end(&a, 1);
}

/* It closes in order; what we still write is answered with a reset, of which the next write
 * hears before we have read that end. */
static void an_end_in_order_counts_beside_a_reset(void **state)
{
    (void)state;
    static const char bytes[60000];
    struct agent a;
    struct raw r;
    begin();
    start(&a, 1, &key_one);
    raw_open(&r, 5, 0, a.port); /* it cannot be asked */
    wait_until(a.ups == 1);
    secure_put(&r.s, "last words", 10, &r.out);
    raw_step(&r);
    raw_close(&r, false);
    for (int i = 0; i < 8; i++) { /* more than one write */
        assert_int_equal(link_send(a.link, 5, bytes, sizeof bytes, false), 0);
    }
    wait_until(a.downs == 1);
    assert_int_equal(a.deaths, 1);
    assert_string_equal(a.text, "last words");
    end(&a, 1);
}

static void a_second_link_replaces_the_first(void **state)
{
    (void)state;
    struct agent a;
    struct raw first, second;
    begin();
    start(&a, 10, &key_one);
    for (uint64_t id = 5; id <= 15; id += 10) { /* a smaller and a larger id */
        raw_open(&first, id, 0, a.port);
        wait_until(link_is_up(a.link, id));
        int downs = a.downs, ups = a.ups;
        raw_open(&second, id, 0, a.port);
        wait_until(a.ups == ups + 1);
        assert_true(a.downs == downs + 1 && a.deaths == 0);
        wait_until(raw_ended(&first));
        assert_true(link_is_up(a.link, id));
        raw_close(&first, false);
        link_drop(a.link, id);
        wait_until(raw_ended(&second));
        raw_close(&second, false);
    }
    end(&a, 1);
}

static void recorded_bytes_are_refused(void **state)
{
    (void)state;
    struct agent a;
    struct raw r;
    begin();
    start(&a, 1, &key_one);
    raw_open(&r, 5, 0, a.port);
    secure_put(&r.s, "stop", 4, &r.out);
    raw_step(&r);
    wait_until(a.messages == 1);
    char byte;
    int fd = connect_raw(a.port);
    assert_int_equal(send(fd, r.sent.data, SECURE_HELLO_BYTES, MSG_NOSIGNAL), SECURE_HELLO_BYTES);
    wait_until(recv(fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 1);
    size_t rest = r.sent.size - SECURE_HELLO_BYTES;
    assert_int_equal(send(fd, r.sent.data + SECURE_HELLO_BYTES, rest, MSG_NOSIGNAL), (ssize_t)rest);
    wait_until(is_closed(fd));
    assert_true(a.messages == 1 && a.ups == 1 && a.downs == 0);
    (void)close(fd);
    /* and a broken frame ends the link, not the agent */
    assert_int_equal(send(r.fd, "\xff\xff\xff\xff....", 8, MSG_NOSIGNAL), 8);
    wait_until(a.downs == 1);
    assert_int_equal(a.deaths, 0);
    raw_close(&r, false);
    end(&a, 1);
}

static void strangers_change_nothing(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",       "SSH-2.0-x\r\n", "\x16\x03\x01\x02\x01\x01\x01\xfc",
        "DTL\xfe and then the rest of a greeting", "\xff\xfe\xfd",  "DTLx and then the rest of a greeting"};
    struct agent a[2];
    int fds[6];
    begin();
    start(&a[0], 1, &key_one);
    start(&a[1], 2, &key_one);
    link_connect(a[1].link, 0, "127.0.0.1", a[0].port);
    wait_until(a[0].ups == 1 && a[1].ups == 1);
    for (int i = 0; i < 6; i++) {
        fds[i] = connect_raw(a[0].port);
        char bytes[256] = {0};
        size_t length = strlen(lines[i]),
               /* the greeting of another version is heard to its end */
            size = memcmp(lines[i], "DTL", 3) == 0 ? sizeof bytes : length;
        (void)memcpy(bytes, lines[i], length);
        assert_int_equal(send(fds[i], bytes, size, MSG_NOSIGNAL), (ssize_t)size);
    }
    assert_int_equal(link_send(a[1].link, 1, "hello", 5, false), 0);
    wait_until(a[0].messages == 1);
    for (int i = 0; i < 6; i++) {
        wait_until(is_closed(fds[i]));
        (void)close(fds[i]);
    }
    assert_true(a[0].downs == 0 && a[0].ups == 1);
    end(a, 2);
}

/* A client's hello, and whatever comes back; the connection then ends. */
static bool say_hello(struct agent *a, uint64_t id, const char *run_id)
{
    struct raw r = {.fd = connect_raw(a->port)};
    struct dt_error err;
    assert_int_equal(secure_self_init(&r.self, id, 0, run_id, &key_two, 65536, &err), 0);
    secure_init(&r.s, &r.self, true);
    secure_begin(&r.s, &r.out);
    (void)send(r.fd, r.out.data, r.out.size, MSG_NOSIGNAL);
    ssize_t got = -1;
    for (double end_s = dt_now_s() + 10; got < 0 && errno != ECONNRESET && dt_now_s() < end_s;) {
        char bytes[4096];
        (void)uv_run(&loop, UV_RUN_NOWAIT);
        errno = 0;
        got = recv(r.fd, bytes, sizeof bytes, MSG_DONTWAIT);
    }
    raw_close(&r, false);
    (void)uv_run(&loop, UV_RUN_NOWAIT);
    return got > 0;
}

/* Who knows the run id, says hello and ends before the proof: each costs the answer, so they are
 * counted, and those above a limit wait for the next second. */
static void hellos_that_end_before_the_proof_wait_for_their_turn(void **state)
{
    (void)state;
    enum { hellos = 3 * STRANGERS_HELLOS_PER_S };
    struct agent a;
    struct dt_error err;
    begin();
    listen_agent(&a);
    struct link_options o = options_of(&a, 1, &key_one);
    assert_int_equal(link_open(&a.link, &loop, &o, &err), 0);
    double start_s = dt_now_s();
    for (int i = 0; i < hellos; i++) {
        assert_true(say_hello(&a, (uint64_t)(100 + i), "test"));
    }
    assert_true(dt_now_s() - start_s >= 0.9); /* a second ends, another one is over, and a third
                                               * begins */
    assert_int_equal(stat_of(&a, "half_open"), 0);
    end(&a, 1);
}

/* What others say at the address of a host keeps its agent out only as long as there is a second
 * left, whether they know the run or not. */
static void hellos_of_others_keep_no_agent_out(void **state)
{
    (void)state;
    struct agent a[2];
    struct dt_error err;
    begin();
    listen_agent(&a[0]);
    struct link_options o = options_of(&a[0], 1, &key_one);
    assert_int_equal(link_open(&a[0].link, &loop, &o, &err), 0);
    for (int i = 0; i < 200; i++) {
        (void)say_hello(&a[0], (uint64_t)(100 + i), "another run");
    }
    for (int i = 0; i < STRANGERS_HELLOS_PER_S + 10; i++) { /* now hellos wait, or a second has
                                                             * just begun */
        (void)say_hello(&a[0], (uint64_t)(1000 + i), "test");
    }
    start(&a[1], 2, &key_one);
    link_connect(a[1].link, 0, "127.0.0.1", a[0].port);
    wait_until(a[0].ups == 1 || a[1].failures > 0);
    assert_int_equal(a[1].failures, 0);
    end(a, 2);
}

/* A stranger who must wait is not stored meanwhile. */
static void who_says_too_much_before_it_is_known_goes(void **state)
{
    (void)state;
    struct agent a;
    struct dt_error err;
    char *bytes = calloc(1, 60000);
    begin();
    listen_agent(&a);
    struct link_options o = options_of(&a, 1, &key_one);
    assert_int_equal(link_open(&a.link, &loop, &o, &err), 0);
    int fd = connect_raw(a.port);
    (void)memcpy(bytes, "DTL", 3);
    (void)send(fd, bytes, 60000, MSG_NOSIGNAL);
    wait_until(stat_of(&a, "refused") == 1);
    assert_true(stat_of(&a, "bytes") < 16384);
    (void)close(fd);
    free(bytes);
    end(&a, 1);
}

/* A burst of guesses from one host: ten are looked at in a second, and kept for a while before
 * they are closed; none learns anything. Whoever has the key comes in beside them, if it has to
 * wait. */
static void keys_cannot_be_guessed_quickly(void **state)
{
    (void)state;
    enum { guesses = 60 };
    struct agent a, friend;
    struct raw r[guesses];
    struct dt_error err;
    begin();
    listen_agent(&a);
    struct link_options o = options_of(&a, 1, &key_one);
    o.time_scale = 2;
    assert_int_equal(link_open(&a.link, &loop, &o, &err), 0);
    double start_s = dt_now_s();
    for (int i = 0; i < guesses; i++) {
        r[i] = (struct raw){.fd = connect_raw(a.port)};
        assert_int_equal(secure_self_init(&r[i].self, (uint64_t)(100 + i), 0, "test", &key_two, 65536, &err), 0);
        secure_init(&r[i].s, &r[i].self, true);
        secure_begin(&r[i].s, &r[i].out);
        for (int k = 0; k < 3; k++) {
            (void)uv_run(&loop, UV_RUN_NOWAIT);
            char bytes[4096];
            const uint8_t *data;
            size_t size;
            if (r[i].out.size > 0) {
                (void)send(r[i].fd, r[i].out.data, r[i].out.size, MSG_NOSIGNAL);
                dt_text_reset(&r[i].out);
            }
            (void)uv_run(&loop, UV_RUN_NOWAIT);
            ssize_t got = recv(r[i].fd, bytes, sizeof bytes, MSG_DONTWAIT);
            if (got > 0) {
                secure_feed(&r[i].s, bytes, (size_t)got);
                if (secure_next(&r[i].s, &r[i].out, &data, &size, &err) == SECURE_ASKED) {
                    secure_prove(&r[i].s, NULL, &r[i].out);
                }
            }
        }
    }
    double took_s = dt_now_s() - start_s;
    assert_true((double)stat_of(&a, "refused") <= 10 * (2 + took_s));
    assert_true(stat_of(&a, "refused") >= 10);
    start(&friend, 2, &key_one);
    link_connect(friend.link, 0, "127.0.0.1", a.port);
    wait_until(a.ups == 1 || friend.failures > 0);
    assert_int_equal(friend.failures, 0);
    for (int i = 0; i < guesses; i++) {
        wait_until(is_closed(r[i].fd));
        raw_close(&r[i], false);
    }
    assert_true(dt_now_s() - start_s >= 0.5); /* the last of the ten was kept for a second, at
                                               * this scale */
    assert_true(a.ups == 1 && a.downs == 0);
    struct agent both[2] = {a, friend};
    end(both, 2);
}

/* More connections than anybody needs, which say nothing: the oldest go, and whoever speaks is
 * served. */
static void a_silent_crowd_harms_nobody(void **state)
{
    (void)state;
    enum { crowd = 1000, places = 100 };
    static const char hello[] = {0x00, (char)0xce, (char)0xf7, (char)0x85, 0x3c, 0x0d, 1, 2, 3, 4};
    struct agent a[2];
    struct dt_error err;
    int *fds = calloc(crowd, sizeof *fds), closed = 0;
    char got[4];
    begin();
    a[0] = (struct agent){0};
    struct store_server_options s = {.take = take, .user = &a[0], .fresh_count = places};
    assert_int_equal(store_server_open(&a[0].store, &loop, &s, &err), 0);
    a[0].port = store_server_port(a[0].store);
    struct link_options o = options_of(&a[0], 1, &key_one);
    assert_int_equal(link_open(&a[0].link, &loop, &o, &err), 0);
    start(&a[1], 2, &key_one);
    for (int i = 0; i < crowd; i++) {
        fds[i] = connect_raw(a[0].port);
        if (i % 50 == 0) {
            (void)uv_run(&loop, UV_RUN_NOWAIT);
        }
    }
    link_connect(a[1].link, 0, "127.0.0.1", a[0].port);
    wait_until(a[0].ups == 1 && a[1].ups == 1);
    int fd = connect_raw(a[0].port);
    assert_int_equal(send(fd, hello, sizeof hello, MSG_NOSIGNAL), (ssize_t)sizeof hello);
    wait_until(recv(fd, got, 4, MSG_DONTWAIT) == 4);
    (void)close(fd);
    for (int i = 0; i < crowd; i++) {
        closed += is_closed(fds[i]);
        (void)close(fds[i]);
    }
    assert_true(closed >= crowd - places - 2 && closed < crowd);
    free(fds);
    end(a, 2);
}

static void half_open_ones_are_few_and_end(void **state)
{
    (void)state;
    struct agent a[2];
    struct dt_error err;
    int fds[20];
    begin();
    listen_agent(&a[0]);
    struct link_options o = options_of(&a[0], 1, &key_one);
    o.half_open_count = 4;
    o.handshake_s = 0.5;
    assert_int_equal(link_open(&a[0].link, &loop, &o, &err), 0);
    start(&a[1], 2, &key_one);
    for (int i = 0; i < 20; i++) { /* a piece of a hello, then silence */
        fds[i] = connect_raw(a[0].port);
        assert_int_equal(send(fds[i], "DTL\x01\x01", 5, MSG_NOSIGNAL), 5);
    }
    link_connect(a[1].link, 0, "127.0.0.1", a[0].port);
    wait_until(a[0].ups == 1 || a[1].failures > 0);
    for (int i = 0; i < 20; i++) {
        wait_until(is_closed(fds[i]));
        (void)close(fds[i]);
    }
    end(a, 2);
}

static void a_peer_that_does_not_read_is_reset(void **state)
{
    (void)state;
    struct agent a;
    struct raw r;
    static char block[60000];
    begin();
    start(&a, 1, &key_one);
    raw_open(&r, 5, 0, a.port);
    wait_until(a.ups == 1);
    for (int i = 0; i < 100000 && link_send(a.link, 5, block, sizeof block, false) == 0; i++) {
        (void)uv_run(&loop, UV_RUN_NOWAIT);
    }
    wait_until(a.downs == 1);
    assert_int_equal(a.deaths, 0);
    raw_close(&r, false);
    end(&a, 1);
}

static struct sockaddr_in address_of(uint32_t number)
{
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {htonl(number)}};
}

static bool is_joined(const struct agent *a, uint32_t number)
{
    struct sockaddr_in from = address_of(number);
    struct sockaddr_in6 mapped = {.sin6_family = AF_INET6};
    mapped.sin6_addr.s6_addr[10] = mapped.sin6_addr.s6_addr[11] = 0xff;
    memcpy(mapped.sin6_addr.s6_addr + 12, &from.sin_addr, 4);
    bool joined = link_is_joined(a->link, (struct sockaddr *)&from);
    assert_int_equal(link_is_joined(a->link, (struct sockaddr *)&mapped), joined);
    return joined;
}

/* Of ten thousand hosts each one's workers may use the store, whoever came last, while their
 * agents are linked. */
static void hosts_of_a_large_job_are_known(void **state)
{
    (void)state;
    enum { HOSTS = 10000 };
    struct agent a;
    struct conn *conns = calloc(HOSTS, sizeof *conns);
    begin();
    start(&a, 1, &key_one);
    for (uint32_t i = 0; i < HOSTS; i++) {
        struct sockaddr_in from = address_of(0x0a000000 + i * 7919 % HOSTS);
        memcpy(&conns[i].from, &from, sizeof from);
        conns[i].secure.peer_id = 2 + i;
        known_add(a.link, &conns[i]);
        link_add(a.link, &conns[i]);
    }
    for (uint32_t i = 0; i < HOSTS + 2; i++) {
        assert_int_equal(is_joined(&a, 0x0a000000 + i), i < HOSTS);
    }
    for (uint32_t i = 0; i < HOSTS; i++) {
        link_remove(a.link, &conns[i]);
        known_gone(a.link, conns[i].secure.peer_id, true);
        assert_false(is_joined(&a, 0x0a000000 + i * 7919 % HOSTS));
    }
    for (uint32_t i = 0; i < HOSTS; i++) { /* others come, and those that left make room */
        conns[i].secure.peer_id = 2 + HOSTS + i;
        known_add(a.link, &conns[i]);
        known_gone(a.link, conns[i].secure.peer_id, true);
    }
    assert_true(a.link->host_capacity <= 2 * 16384);
    free(conns);
    end(&a, 1);
}

/* Until when the address of an agent is one of the job: its goodbye, or ours, or some time after
 * its link was lost. */
static void an_address_is_of_the_job_while_its_agent_is(void **state)
{
    (void)state;
    enum { LOOPBACK = 0x7f000001 };
    struct agent a[2];
    for (int i = 0; i < 4; i++) { /* it leaves, we drop it, it is lost, we refuse what it says */
        begin();
        start(&a[0], 1, &key_one);
        assert_false(is_joined(&a[0], LOOPBACK));
        start(&a[1], 2, &key_one);
        link_connect(a[1].link, 0, "127.0.0.1", a[0].port);
        wait_until(a[0].ups == 1 && a[1].ups == 1);
        assert_true(is_joined(&a[0], LOOPBACK));
        /* another agent at that address */
        struct conn other = {.from = link_find(a[0].link, 2)->from, .secure = {.peer_id = 3}};
        known_add(a[0].link, &other);
        link_add(a[0].link, &other);
        if (i == 0) {
            link_drop(a[1].link, 1);
            wait_until(a[0].downs == 1);
        } else if (i == 1) {
            link_drop(a[0].link, 2);
        } else if (i == 3) {
            link_refuse(a[0].link, 2);
        } else {
            conn_lost(link_find(a[0].link, 2), false, false);
        }
        assert_true(is_joined(&a[0], LOOPBACK));
        link_remove(a[0].link, &other);
        known_gone(a[0].link, 3, true);
        assert_int_equal(is_joined(&a[0], LOOPBACK), i >= 2);
        for (int k = 0; k < a[0].link->host_count; k++) { /* as if dead_s were over */
            a[0].link->hosts[k].until_s -= a[0].link->options.dead_s;
        }
        assert_false(is_joined(&a[0], LOOPBACK));
        end(a, 2);
    }
}

/* A newer link over another address is no goodbye: when it is lost, both addresses are of the
 * job until the peer would be dead. */
static void a_peer_keeps_all_its_addresses(void **state)
{
    (void)state;
    enum { FIRST = 0x7f000001, SECOND = 0x7f000002 };
    struct agent a;
    struct raw first, second;
    struct dt_error err;
    begin();
    listen_agent(&a);
    struct link_options o = options_of(&a, 10, &key_one);
    o.hooks.up = on_up_anywhere;
    assert_int_equal(link_open(&a.link, &loop, &o, &err), 0);
    for (uint64_t id = 5; id <= 15; id += 10) {
        raw_open_from(&first, FIRST, id, 0, a.port);
        raw_open_from(&second, SECOND, id, 0, a.port);
        wait_until(raw_ended(&first));
        assert_true(link_is_up(a.link, id) && is_joined(&a, FIRST) && is_joined(&a, SECOND));
        conn_lost(link_find(a.link, id), false, false);
        assert_true(is_joined(&a, FIRST) && is_joined(&a, SECOND));
        for (int k = 0; k < a.link->host_count; k++) { /* as if dead_s were over */
            a.link->hosts[k].until_s -= a.link->options.dead_s;
        }
        assert_false(is_joined(&a, FIRST) || is_joined(&a, SECOND));
        raw_close(&first, false);
        raw_close(&second, false);
    }
    end(&a, 1);
}

int main(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
    dt_log_open(DT_LOG_ERROR, -1, 2);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_kernel_tells_of_deaths),
        cmocka_unit_test(a_connection_with_itself_is_none),
        cmocka_unit_test(two_agents_talk_and_part),
        cmocka_unit_test(a_call_that_reaches_ourselves),
        cmocka_unit_test(both_ways_of_connecting_give_one_link),
        cmocka_unit_test(three_agents_and_urgent_messages),
        cmocka_unit_test(many_agents_in_one_process),
        cmocka_unit_test(who_closes_without_a_key_does_not_refuse_ours),
        cmocka_unit_test(refused_for_a_reason),
        cmocka_unit_test(a_slow_name_stops_nobody),
        cmocka_unit_test(all_addresses_are_tried),
        cmocka_unit_test(either_family_may_be_the_served_one),
        cmocka_unit_test(a_reset_alone_is_no_death),
        cmocka_unit_test(an_end_in_order_counts_beside_a_reset),
        cmocka_unit_test(a_second_link_replaces_the_first),
        cmocka_unit_test(recorded_bytes_are_refused),
        cmocka_unit_test(strangers_change_nothing),
        cmocka_unit_test(hellos_that_end_before_the_proof_wait_for_their_turn),
        cmocka_unit_test(hellos_of_others_keep_no_agent_out),
        cmocka_unit_test(who_says_too_much_before_it_is_known_goes),
        cmocka_unit_test(keys_cannot_be_guessed_quickly),
        cmocka_unit_test(a_silent_crowd_harms_nobody),
        cmocka_unit_test(half_open_ones_are_few_and_end),
        cmocka_unit_test(a_peer_that_does_not_read_is_reset),
        cmocka_unit_test(hosts_of_a_large_job_are_known),
        cmocka_unit_test(an_address_is_of_the_job_while_its_agent_is),
        cmocka_unit_test(a_peer_keeps_all_its_addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
