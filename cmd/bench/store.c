/* Servers in processes of their own: ours, PyTorch's when asked for, and as floor a loop that
 * returns what it gets. First our own client against them, then PyTorch's clients
 * (tests/peers/store.py), with the CPU time that the server needs per operation. Each repeat
 * runs a case on all of them in turn, so that a noisy machine is noisy for all. PyTorch's server
 * looks up the names of its peers: on a machine without a name server that takes seconds and
 * shows in `connect`. */
#include "cmd/bench/store.h"

#include "base/bench.h"
#include "base/clock.h"
#include "base/text.h"
#include "collectives/net.h"
#include "collectives/store.h"
#include "collectives/wire.h"
#include "cmd/bench/store_servers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { max_repeats = 101, max_servers = 2 };
static const double deadline_s = 120;

struct setup {
    long op_count, client_count, connect_count, wake_count;
    char value[100];
};

/* ---- cases: each returns one sample, negative on failure ---- */

static double run_set(struct bench_server *s, const struct setup *o)
{
    double began_s = dt_now_s();
    int rc = 0;
    for (long i = 0; i < o->op_count && rc == 0; i++) {
        rc = dt_store_set(s->store, "bench/k", o->value, sizeof o->value, NULL);
    }
    rc = rc == 0 ? dt_store_ping(s->store, NULL) : rc;
    return rc == 0 ? (double)o->op_count / (dt_now_s() - began_s) : -1;
}

static double run_add(struct bench_server *s, const struct setup *o)
{
    double began_s = dt_now_s();
    int rc = 0;
    for (long i = 0; i < o->op_count && rc == 0; i++) {
        rc = dt_store_add(s->store, "bench/n", 1, NULL, NULL);
    }
    return rc == 0 ? (dt_now_s() - began_s) * 1e6 / (double)o->op_count : -1;
}

static double run_get(struct bench_server *s, const struct setup *o)
{
    struct dt_text out;
    dt_text_init(&out);
    int rc = dt_store_set(s->store, "bench/g", o->value, sizeof o->value, NULL);
    double began_s = dt_now_s();
    for (long i = 0; i < o->op_count && rc == 0; i++) {
        rc = dt_store_get(s->store, "bench/g", &out, deadline_s, NULL);
    }
    dt_text_clear(&out);
    return rc == 0 ? (dt_now_s() - began_s) * 1e6 / (double)o->op_count : -1;
}

/* Opens connections, sends `hello` on each, and reads the ping's answer from each. */
static int greet_all(struct bench_server *s, struct dt_net *nets, long count, const struct dt_text *hello)
{
    int rc = 0;
    char bytes[4];
    for (long i = 0; i < count; i++) {
        nets[i].fd = -1;
    }
    for (long i = 0; i < count && rc == 0; i++) {
        rc = dt_net_connect(&nets[i], "127.0.0.1", s->port, dt_now_s() + deadline_s, NULL, NULL);
        rc = rc == 0 ? dt_net_write(&nets[i], hello->data, hello->size, dt_now_s() + deadline_s, NULL) : rc;
    }
    for (long i = 0; i < count && rc == 0; i++) {
        rc = dt_net_read(&nets[i], bytes, sizeof bytes, dt_now_s() + deadline_s, NULL);
    }
    return rc;
}

static void close_all(struct dt_net *nets, long count)
{
    for (long i = 0; i < count; i++) {
        dt_net_close(&nets[i]);
    }
    free(nets);
}

static void put_hello(struct dt_text *out)
{
    dt_text_init(out);
    dt_wire_put_request(out, &(struct dt_wire_request){.query = DT_WIRE_VALIDATE, .word = DT_WIRE_MAGIC});
    dt_wire_put_request(out, &(struct dt_wire_request){.query = DT_WIRE_PING, .word = 7});
}

/* Milliseconds until all connections were opened and answered; one that is refused fails the
 * case. */
static double run_connect(struct bench_server *s, const struct setup *o)
{
    struct dt_text hello;
    struct dt_net *nets = dt_alloc((size_t)o->connect_count * sizeof *nets);
    put_hello(&hello);
    double began_s = dt_now_s();
    int rc = greet_all(s, nets, o->connect_count, &hello);
    double took_s = dt_now_s() - began_s;
    close_all(nets, o->connect_count);
    dt_text_clear(&hello);
    return rc == 0 ? took_s * 1e3 : -1;
}

/* Milliseconds from one set until the last of the parked clients has been told. */
static double run_wake(struct bench_server *s, const struct setup *o)
{
    struct dt_text hello;
    struct dt_net *nets = dt_alloc((size_t)o->wake_count * sizeof *nets);
    struct dt_bytes key = {"bench/go", 8};
    char byte;
    put_hello(&hello);
    dt_wire_put_request(&hello, &(struct dt_wire_request){.query = DT_WIRE_WAIT, .count = 1, .keys = &key});
    int rc = dt_store_delete(s->store, "bench/go", NULL, NULL);
    /* the ping is answered and the wait follows in the same segment */
    rc = rc == 0 ? greet_all(s, nets, o->wake_count, &hello) : rc;
    dt_sleep_s(0.05);
    double began_s = dt_now_s();
    rc = rc == 0 ? dt_store_set(s->store, "bench/go", "1", 1, NULL) : rc;
    for (long i = 0; i < o->wake_count && rc == 0; i++) {
        rc = dt_net_read(&nets[i], &byte, 1, dt_now_s() + deadline_s, NULL);
    }
    double took_s = dt_now_s() - began_s;
    close_all(nets, o->wake_count);
    dt_text_clear(&hello);
    return rc == 0 ? took_s * 1e3 : -1;
}

static double run_echo(struct dt_net *n, const struct setup *o)
{
    char bytes[20] = {0};
    double began_s = dt_now_s();
    for (long i = 0; i < o->op_count; i++) {
        if (dt_net_write(n, bytes, sizeof bytes, dt_now_s() + deadline_s, NULL) != 0 ||
            dt_net_read(n, bytes, sizeof bytes, dt_now_s() + deadline_s, NULL) != 0) {
            return -1;
        }
    }
    return (dt_now_s() - began_s) * 1e6 / (double)o->op_count;
}

static const struct {
    const char *name, *unit;
    double (*run)(struct bench_server *s, const struct setup *o);
    bool has_floor; /* one round trip */
    bool many;      /* connections */
} cases[] = {
    {"set", "ops/s", run_set, false, false}, {"add", "us", run_add, true, false},
    {"get", "us", run_get, true, false},     {"connect", "ms", run_connect, false, true},
    {"wake", "ms", run_wake, false, true},
};

static void name_case(char *out, size_t out_bytes, size_t i, const struct setup *o)
{
    long count = cases[i].run == run_connect ? o->connect_count : cases[i].run == run_wake ? o->wake_count : 0;
    (void)snprintf(out, out_bytes, count > 0 ? "%s, %ld clients" : "%s", cases[i].name, count);
}

static int run_cases(struct bench_server *servers, int server_count, struct dt_net *echo, const struct setup *o,
                     long repeats)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double samples[max_servers][max_repeats], floors[max_repeats];
        /* PyTorch's takes minutes for thousands of connections */
        int measured = cases[i].many && o->client_count == 0 ? 1 : server_count;
        /* the first is a warm-up */
        for (long r = -1; r < repeats; r++) {
            for (int k = 0; k < measured; k++) {
                samples[k][r < 0 ? 0 : r] = cases[i].run(&servers[k], o);
                if (samples[k][r < 0 ? 0 : r] < 0) {
                    (void)fprintf(stderr, "bench: case %s failed against the server '%s'\n", cases[i].name,
                                  servers[k].name);
                    measured = k; /* a peer may be unable to do it; we may not */
                    if (k == 0) {
                        return 1;
                    }
                }
            }
            floors[r < 0 ? 0 : r] = cases[i].has_floor ? run_echo(echo, o) : 0;
        }
        char name[64];
        name_case(name, sizeof name, i, o);
        struct dt_bench_case c = {.bench = "store", .name = name, .unit = cases[i].unit};
        c.floor = dt_bench_median(floors, (size_t)repeats);
        if (measured > 1) {
            c.peer = dt_bench_median(samples[1], (size_t)repeats);
            c.peer_name = servers[1].name;
        }
        dt_bench_print(&c, samples[0], (size_t)repeats);
    }
    return 0;
}

/* ---- PyTorch's clients: against its own server and ours, and our client against ours ---- */

/* Operations per second, and the server's CPU microseconds per operation; negative when the
 * clients failed. */
static double run_clients(struct dt_bench_peer *c, const struct bench_server *s, const char *kind, int clients,
                          long ops, double *cpu_us)
{
    double cpu_s = bench_server_cpu_s(s), took_s = dt_bench_peer_ask(c, "%d %s %d %ld", s->port, kind, clients, ops);
    *cpu_us = (bench_server_cpu_s(s) - cpu_s) * 1e6 / (double)ops;
    return (double)ops / took_s;
}

static void print_clients(const char *kind, int clients, const char *what, const char *unit,
                          double samples[2][max_repeats], long repeats)
{
    char name[64];
    (void)snprintf(name, sizeof name, "%s, %d torch client%s%s", kind, clients, clients == 1 ? "" : "s", what);
    struct dt_bench_case c = {.bench = "store",
                              .name = name,
                              .unit = unit,
                              .peer = dt_bench_median(samples[1], (size_t)repeats),
                              .peer_name = "torch"};
    dt_bench_print(&c, samples[0], (size_t)repeats);
}

/* One client of ours on our server, and PyTorch's on PyTorch's. Not in turns with PyTorch's
 * client on ours, which it would leave on another core than it had. */
static int run_pairs(struct bench_server *servers, struct dt_bench_peer *c, const struct setup *o, const char *kind,
                     long ops, long repeats)
{
    double ours[max_repeats], theirs[max_repeats], cpu_us;
    for (long r = -1; r < repeats; r++) {
        long at = r < 0 ? 0 : r;
        ours[at] = strcmp(kind, "set") == 0 ? run_set(&servers[0], o)
                                            : 1e6 / (strcmp(kind, "get") == 0 ? run_get : run_add)(&servers[0], o);
        theirs[at] = run_clients(c, &servers[1], kind, 1, ops, &cpu_us);
        if (ours[at] < 0 || theirs[at] < 0) {
            return 1;
        }
    }
    char name[64];
    (void)snprintf(name, sizeof name, "%s, own client and server", kind);
    struct dt_bench_case pair = {.bench = "store",
                                 .name = name,
                                 .unit = "ops/s",
                                 .peer = dt_bench_median(theirs, (size_t)repeats),
                                 .peer_name = "torch's client and server"};
    dt_bench_print(&pair, ours, (size_t)repeats);
    return 0;
}

static int run_torch_clients(struct bench_server *servers, const struct setup *o, const char *script, long repeats)
{
    static const char *const kinds[] = {"set", "get", "add", "wait"};
    static const int counts[] = {1, 8, 64};
    char *python = dt_bench_peer_program("python"), *argv[] = {python, (char *)script, NULL};
    struct dt_bench_peer c;
    long ops = o->op_count < 64 ? 64 : o->op_count;
    int code = dt_bench_peer_open(&c, argv);
    free(python);
    for (size_t i = 0; i < 12 && code == 0; i++) {
        const char *kind = kinds[i / 3];
        int clients = counts[i % 3];
        double rates[2][max_repeats], cpu_us[2][max_repeats];
        for (long r = -1; r < repeats && code == 0; r++) {
            long at = r < 0 ? 0 : r;
            for (int k = 0; k < 2 && code == 0; k++) {
                rates[k][at] = run_clients(&c, &servers[k], kind, clients, ops, &cpu_us[k][at]);
                code = rates[k][at] < 0;
            }
        }
        if (code == 0) {
            print_clients(kind, clients, "", "ops/s", rates, repeats);
            print_clients(kind, clients, ", CPU of the server", "us/op", cpu_us, repeats);
        }
        if (code == 0 && clients == 1 && strcmp(kind, "wait") != 0) {
            code = run_pairs(servers, &c, o, kind, ops, repeats);
        }
    }
    if (code != 0) {
        (void)fprintf(stderr, "bench: PyTorch's clients failed (%s)\n", script);
    }
    dt_bench_peer_close(&c);
    return code;
}

/* As many connections as there can be open files here. */
static long at_most_files(long count)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        return count;
    }
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
    long most = limit.rlim_cur > 1000000 ? 1000000 : (long)limit.rlim_cur - 100;
    return count < most ? count : most;
}

int bench_store(int argc, char **argv)
{
    struct setup o = {.op_count = dt_bench_number(argc, argv, "ops", 6400),
                      .client_count = dt_bench_number(argc, argv, "clients", 0)};
    long repeats = dt_bench_number(argc, argv, "repeats", 9);
    struct bench_server servers[max_servers] = {{0}}, echo_server = {0};
    struct dt_net echo = {.fd = -1};
    struct dt_error err = {0};
    int server_count = 1, code = 1;
    if (repeats < 1 || repeats > max_repeats || o.op_count < 1 || o.client_count < 0 || o.client_count > 60000) {
        (void)fprintf(stderr, "bench: --repeats 1..%d, --ops from 1, --clients 1..60000\n", max_repeats);
        return 2;
    }
    o.connect_count = at_most_files(o.client_count > 0 ? o.client_count : 4000);
    o.wake_count = at_most_files(o.client_count > 0 ? o.client_count : 10000);
    memset(o.value, 'v', sizeof o.value);
    if (bench_server_start(&echo_server, "echo", bench_serve_echo) != 0 ||
        bench_server_start(&servers[0], "dtrun", bench_serve_ours) != 0) {
        goto out;
    }
    if (dt_bench_flag(argc, argv, "peer")) {
        char *python = dt_bench_peer_program("python");
        if (python == NULL) {
            (void)fprintf(stderr, "bench: no PyTorch to compare with: scripts/setup.sh --peers\n");
        } else if (bench_server_start(&servers[1], "torch", bench_serve_torch) == 0) {
            server_count = 2;
        }
        free(python);
    }
    for (int i = 0; i < server_count; i++) {
        if (dt_store_open(&servers[i].store, "127.0.0.1", servers[i].port, deadline_s, NULL, &err) != 0) {
            (void)fprintf(stderr, "bench: %s\n", err.text);
            goto out;
        }
    }
    if (dt_net_connect(&echo, "127.0.0.1", echo_server.port, dt_now_s() + deadline_s, NULL, &err) != 0) {
        (void)fprintf(stderr, "bench: %s\n", err.text);
        goto out;
    }
    code = run_cases(servers, server_count, &echo, &o, repeats);
    if (code == 0 && server_count > 1) {
        code = run_torch_clients(servers, &o, dt_bench_option(argc, argv, "script", "tests/peers/store.py"), repeats);
    }
out:
    dt_net_close(&echo);
    for (int i = 0; i < max_servers; i++) {
        bench_server_stop(&servers[i]);
    }
    bench_server_stop(&echo_server);
    return code;
}
