/* Our own client against servers in processes of their own: ours, PyTorch's when asked for, and as floor a loop that returns what it gets.
 * Each repeat runs a case on all of them in turn, so that a noisy machine is noisy for all. PyTorch's server looks up the names of
 * its peers: on a machine without a name server that takes seconds and shows in `connect`. */
#include "launcher/bench_store.h"

#include "base/bench.h"
#include "base/clock.h"
#include "base/text.h"
#include "collectives/net.h"
#include "collectives/store.h"
#include "collectives/wire.h"
#include "launcher/bench_store_servers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { max_repeats = 101, max_servers = 2 };
static const double deadline_s = 120;

struct setup {
    long op_count, client_count;
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

/* Opens client_count connections, sends `hello` on each, and reads `answer` bytes from each. */
static int greet_all(struct bench_server *s, const struct setup *o, struct dt_net *nets, const struct dt_text *hello, size_t answer)
{
    int rc = 0;
    char bytes[8];
    for (long i = 0; i < o->client_count; i++) {
        nets[i].fd = -1;
    }
    for (long i = 0; i < o->client_count && rc == 0; i++) {
        rc = dt_net_connect(&nets[i], "127.0.0.1", s->port, dt_now_s() + deadline_s, NULL, NULL);
        rc = rc == 0 ? dt_net_write(&nets[i], hello->data, hello->size, dt_now_s() + deadline_s, NULL) : rc;
    }
    for (long i = 0; i < o->client_count && rc == 0; i++) {
        rc = dt_net_read(&nets[i], bytes, answer, dt_now_s() + deadline_s, NULL);
    }
    return rc;
}

static void close_all(const struct setup *o, struct dt_net *nets)
{
    for (long i = 0; i < o->client_count; i++) {
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

static double run_connect(struct bench_server *s, const struct setup *o)
{
    struct dt_text hello;
    struct dt_net *nets = dt_alloc((size_t)o->client_count * sizeof *nets);
    put_hello(&hello);
    double began_s = dt_now_s();
    int rc = greet_all(s, o, nets, &hello, 4);
    double took_s = dt_now_s() - began_s;
    close_all(o, nets);
    dt_text_clear(&hello);
    return rc == 0 ? took_s * 1e6 / (double)o->client_count : -1;
}

/* From one set until the last of the parked clients has been told, per client. */
static double run_wake(struct bench_server *s, const struct setup *o)
{
    struct dt_text hello;
    struct dt_net *nets = dt_alloc((size_t)o->client_count * sizeof *nets);
    struct dt_bytes key = {"bench/go", 8};
    char byte;
    put_hello(&hello);
    dt_wire_put_request(&hello, &(struct dt_wire_request){.query = DT_WIRE_WAIT, .count = 1, .keys = &key});
    int rc = dt_store_delete(s->store, "bench/go", NULL, NULL);
    rc = rc == 0 ? greet_all(s, o, nets, &hello, 4) : rc; /* the ping is answered and the wait follows in the same segment */
    dt_sleep_s(0.05);
    double began_s = dt_now_s();
    rc = rc == 0 ? dt_store_set(s->store, "bench/go", "1", 1, NULL) : rc;
    for (long i = 0; i < o->client_count && rc == 0; i++) {
        rc = dt_net_read(&nets[i], &byte, 1, dt_now_s() + deadline_s, NULL);
    }
    double took_s = dt_now_s() - began_s;
    close_all(o, nets);
    dt_text_clear(&hello);
    return rc == 0 ? took_s * 1e6 / (double)o->client_count : -1;
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
} cases[] = {
    {"set", "ops/s", run_set, false},       {"add", "us", run_add, true}, {"get", "us", run_get, true}, {"connect", "us/client", run_connect, false},
    {"wake", "us/client", run_wake, false},
};

static int run_cases(struct bench_server *servers, int server_count, struct dt_net *echo, const struct setup *o, long repeats)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double samples[max_servers][max_repeats], floors[max_repeats];
        for (long r = -1; r < repeats; r++) { /* the first is a warm-up */
            for (int k = 0; k < server_count; k++) {
                samples[k][r < 0 ? 0 : r] = cases[i].run(&servers[k], o);
                if (samples[k][r < 0 ? 0 : r] < 0) {
                    (void)fprintf(stderr, "bench: case %s failed against the server '%s'\n", cases[i].name, servers[k].name);
                    return 1;
                }
            }
            floors[r < 0 ? 0 : r] = cases[i].has_floor ? run_echo(echo, o) : 0;
        }
        struct dt_bench_case c = {.bench = "store", .name = cases[i].name, .unit = cases[i].unit};
        c.floor = dt_bench_median(floors, (size_t)repeats);
        if (server_count > 1) {
            c.peer = dt_bench_median(samples[1], (size_t)repeats);
            c.peer_name = servers[1].name;
        }
        dt_bench_print(&c, samples[0], (size_t)repeats);
    }
    return 0;
}

int bench_store(int argc, char **argv)
{
    struct setup o = {.op_count = dt_bench_number(argc, argv, "ops", 2000), .client_count = dt_bench_number(argc, argv, "clients", 500)};
    long repeats = dt_bench_number(argc, argv, "repeats", 9);
    struct bench_server servers[max_servers] = {{0}}, echo_server = {0};
    struct dt_net echo = {.fd = -1};
    struct dt_error err = {0};
    int server_count = 1, code = 1;
    if (repeats < 1 || repeats > max_repeats || o.op_count < 1 || o.client_count < 1 || o.client_count > 60000) {
        (void)fprintf(stderr, "bench: --repeats 1..%d, --ops from 1, --clients 1..60000\n", max_repeats);
        return 2;
    }
    memset(o.value, 'v', sizeof o.value);
    if (bench_server_start(&echo_server, "echo", bench_serve_echo) != 0 || bench_server_start(&servers[0], "dtrun", bench_serve_ours) != 0) {
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
out:
    dt_net_close(&echo);
    for (int i = 0; i < max_servers; i++) {
        bench_server_stop(&servers[i]);
    }
    bench_server_stop(&echo_server);
    return code;
}
