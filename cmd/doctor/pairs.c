/* caller                                 server
 *   hello (nonce) ---------------------->
 *   step, n bytes in all --------------->  reads them
 *     <--------------------------- one answer per 64 KiB: its wall clock
 *   step asking for n bytes back ------->
 *     <------------------------------ n bytes
 * A message is written at once and the next one waits for its answer, so that one below the
 * largest packet is one packet. Whoever gets something wrong closes. */
#include "cmd/doctor/pairs.h"

#include "base/clock.h"
#include "base/text.h"
#include "collectives/net.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PAIR_MAGIC 0x52444431u
#define CHUNK_BYTES ((size_t)65536)
#define LARGE_BYTES ((size_t)1 << 20)
#define CALLERS_MAX 64
#define CONNECT_S 3.0
#define STEP_S 3.0
#define LARGE_S 5.0
#define IDLE_S 20.0 /* of a caller */
#define PAIR_S 15.0
/* no packet is much larger; what is lost above is not lost by its size */
#define FRAME_BYTES ((size_t)8900)
#define PINGS 21

struct hello {
    uint32_t magic, unused;
    uint64_t nonce;
};
struct step {
    uint32_t magic, back; /* back: the bytes come from the server */
    uint64_t size_bytes;  /* of the message that goes there, this struct included, or of the one
                           * that comes back */
};
struct answer {
    uint32_t magic, unused;
    double wall_s;
};

struct pair_server {
    struct dt_net listener;
    uint64_t nonce;
    pthread_t thread;
    struct dt_page *page; /* private: its order ends accept */
    int page_fd;
    atomic_int callers;
    atomic_int users; /* this struct is freed by the last one */
};

struct caller {
    struct pair_server *server;
    struct dt_net net;
};

static void release(struct pair_server *s)
{
    if (atomic_fetch_sub(&s->users, 1) == 1) {
        dt_page_close(s->page, s->page_fd);
        free(s);
    }
}

/* One step of a caller; -1 ends the connection. */
static int serve_step(struct dt_net *n, char *room)
{
    struct step step;
    struct dt_error err;
    if (dt_net_read(n, &step, sizeof step, dt_now_s() + IDLE_S, &err) != 0 || step.magic != PAIR_MAGIC ||
        step.size_bytes < sizeof step || step.size_bytes > LARGE_BYTES) {
        return -1;
    }
    if (step.back) {
        return dt_net_write(n, room, (size_t)step.size_bytes, dt_now_s() + IDLE_S, &err);
    }
    size_t got = sizeof step;
    do {
        size_t end = got + CHUNK_BYTES < step.size_bytes ? got + CHUNK_BYTES : (size_t)step.size_bytes;
        if (dt_net_read(n, room, end - got, dt_now_s() + IDLE_S, &err) != 0) {
            return -1;
        }
        got = end;
        struct answer answer = {PAIR_MAGIC, 0, dt_wall_s()};
        if (dt_net_write(n, &answer, sizeof answer, dt_now_s() + IDLE_S, &err) != 0) {
            return -1;
        }
    } while (got < step.size_bytes);
    return 0;
}

static void *serve_caller(void *arg)
{
    struct caller *c = arg;
    struct hello hello;
    struct dt_error err;
    char *room = dt_alloc(LARGE_BYTES);
    if (dt_net_read(&c->net, &hello, sizeof hello, dt_now_s() + STEP_S, &err) == 0 && hello.magic == PAIR_MAGIC &&
        hello.nonce == c->server->nonce) {
        while (serve_step(&c->net, room) == 0) {
        }
    }
    dt_net_close(&c->net);
    atomic_fetch_sub(&c->server->callers, 1);
    release(c->server);
    free(room);
    free(c);
    return NULL;
}

static void *accept_callers(void *arg)
{
    struct pair_server *s = arg;
    struct dt_error err;
    for (;;) {
        struct caller *c = dt_alloc(sizeof *c);
        pthread_t thread;
        c->server = s;
        if (dt_net_accept(&s->listener, &c->net, dt_now_s() + 3600, &err) != 0) {
            free(c);
            return NULL;
        }
        bool room = atomic_fetch_add(&s->callers, 1) < CALLERS_MAX;
        atomic_fetch_add(&s->users, 1);
        if (room && pthread_create(&thread, NULL, serve_caller, c) == 0) {
            (void)pthread_detach(thread);
            continue;
        }
        dt_net_close(&c->net);
        atomic_fetch_sub(&s->callers, 1);
        release(s);
        free(c);
    }
}

int pair_serve(struct pair_server **out, const char *address, int lo, int hi, uint64_t nonce, int *port,
               struct dt_error *err)
{
    struct pair_server *s = dt_alloc(sizeof *s);
    *s = (struct pair_server){.listener = {.fd = -1}, .nonce = nonce, .page_fd = -1, .users = 1};
    if (dt_page_create(&s->page, &s->page_fd, 0, err) != 0) {
        free(s);
        return -1;
    }
    const char *at = dt_net_is_here(address) ? address : NULL; /* else it is translated to one of
                                                                * ours */
    int rc = dt_net_listen_within(&s->listener, at, &(struct dt_ports){lo, hi, getpid()}, 0, s->page, port, err);
    if (rc == 0 && pthread_create(&s->thread, NULL, accept_callers, s) != 0) {
        rc = dt_fail(err, DT_IO, "a thread cannot be started; raise ulimit -u");
        dt_net_close(&s->listener);
    }
    if (rc != 0) {
        release(s);
        return -1;
    }
    *out = s;
    return 0;
}

void pair_server_close(struct pair_server *s)
{
    if (s == NULL) {
        return;
    }
    atomic_store(&s->page->order, DT_ORDER_ABORT);
    (void)pthread_join(s->thread, NULL);
    dt_net_close(&s->listener);
    release(s);
}

/* ---- the caller ---- */

struct call {
    struct dt_net net;
    double end_s; /* of all steps */
    char *room;   /* LARGE_BYTES */
    struct pair_result *out;
};

/* A message of n bytes to the server. *moved: bytes that surely arrived. */
static int send_message(struct call *c, size_t n, double deadline_s, struct answer *last, size_t *moved,
                        struct dt_error *err)
{
    struct step step = {PAIR_MAGIC, 0, n};
    memcpy(c->room, &step, sizeof step);
    *moved = 0;
    int rc = dt_net_write(&c->net, c->room, n, deadline_s, err);
    deadline_s = rc == 0 ? deadline_s : dt_now_s() + 0.1; /* what has been answered until now */
    for (size_t got = sizeof step; got < n || *moved == 0;) {
        if (dt_net_read(&c->net, last, sizeof *last, deadline_s, err) != 0) {
            return -1;
        }
        if (last->magic != PAIR_MAGIC) {
            return dt_fail(err, DT_PEER, "an answer that is none");
        }
        got = got + CHUNK_BYTES < n ? got + CHUNK_BYTES : n;
        *moved = got;
    }
    return rc;
}

/* A message of n bytes from the server. */
static int fetch_message(struct call *c, size_t n, double deadline_s, size_t *moved, struct dt_error *err)
{
    struct step step = {PAIR_MAGIC, 1, n};
    *moved = 0;
    if (dt_net_write(&c->net, &step, sizeof step, deadline_s, err) != 0) {
        return -1;
    }
    while (*moved < n) {
        size_t got = 0;
        if (dt_net_read_some(&c->net, c->room, n - *moved, &got, deadline_s, err) != 0) {
            return -1;
        }
        *moved += got;
    }
    return 0;
}

/* Both directions with one size. False: out says what is wrong. */
static bool pass_size(struct call *c, size_t n)
{
    for (int back = 0; back < 2; back++) {
        struct answer answer;
        struct dt_error err = {0};
        size_t moved = 0;
        double start_s = dt_now_s(), limit_s = fmin(n >= LARGE_BYTES ? LARGE_S : STEP_S, fmax(c->end_s - start_s, 0.1));
        int rc = back ? fetch_message(c, n, start_s + limit_s, &moved, &err)
                      : send_message(c, n, start_s + limit_s, &answer, &moved, &err);
        double rate = (double)moved / fmax(dt_now_s() - start_s, 1e-9);
        if (rc == 0) {
            if (n >= LARGE_BYTES && (c->out->bytes_per_s <= 0 || rate < c->out->bytes_per_s)) {
                c->out->bytes_per_s = rate;
            }
            continue;
        }
        c->out->state = moved > 0 || n > FRAME_BYTES ? PAIR_SLOW : c->out->passed_bytes > 0 ? PAIR_LOST : PAIR_SILENT;
        c->out->bytes_per_s = rate;
        c->out->lost_bytes = n;
        c->out->from_server = back;
        (void)snprintf(c->out->cause, sizeof c->out->cause, "%.190s", err.text);
        return false;
    }
    c->out->passed_bytes = n;
    return true;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Round trips of a small message; the fastest of them tells the other clock best. */
static void time_small(struct call *c)
{
    double all_s[PINGS], least_s = INFINITY;
    int count = 0;
    for (double end_s = dt_now_s() + 1; count < PINGS && dt_now_s() < end_s; count++) {
        struct answer answer;
        struct dt_error err;
        size_t moved;
        double start_s = dt_now_s(), wall_s = dt_wall_s();
        if (send_message(c, 64, start_s + STEP_S, &answer, &moved, &err) != 0) {
            break;
        }
        all_s[count] = dt_now_s() - start_s;
        if (all_s[count] < least_s) {
            least_s = all_s[count];
            c->out->clock_ahead_s = answer.wall_s - (wall_s + all_s[count] / 2);
        }
    }
    if (count > 0) {
        qsort(all_s, (size_t)count, sizeof all_s[0], by_value);
        c->out->latency_s = all_s[count / 2];
    }
}

/* All sizes over one connection. */
static void climb(const char *host, int port, uint64_t nonce, struct dt_page *page, double end_s,
                  struct pair_result *out)
{
    /* With 52 bytes of headers (IPv4) or 72 they stand beside common packets: 1280 (IPv6's
     * least), tunnels to 1420, Ethernet (1500), jumbo frames. */
    static const size_t sizes[] = {64,   400,  800,  1000, 1100,        1208,        1228,        1248,       1300,
                                   1348, 1400, 1448, 4000, FRAME_BYTES, CHUNK_BYTES, LARGE_BYTES, LARGE_BYTES};
    enum { COUNT = sizeof sizes / sizeof sizes[0] };
    struct dt_error err = {0};
    struct hello hello = {PAIR_MAGIC, 0, nonce};
    struct call c = {.out = out, .end_s = end_s};
    *out = (struct pair_result){.state = PAIR_OK};
    dt_net_name(host, port, out->address, sizeof out->address);
    if (dt_net_connect(&c.net, host, port, fmin(dt_now_s() + CONNECT_S, end_s), page, &err) != 0) {
        out->state = PAIR_UNREACHABLE;
        (void)snprintf(out->cause, sizeof out->cause, "%.190s", err.text);
        return;
    }
    c.room = dt_alloc(LARGE_BYTES);
    bool well = dt_net_write(&c.net, &hello, sizeof hello, dt_now_s() + STEP_S, &err) == 0;
    for (int i = 0; well && i < COUNT; i++) {
        if (i == COUNT - 1) { /* the second large one finds the connection at its speed */
            if (out->bytes_per_s < (double)LARGE_BYTES) {
                break;
            }
            out->bytes_per_s = 0;
        }
        well = pass_size(&c, sizes[i]);
        if (i == 0 && well) {
            time_small(&c);
        }
    }
    dt_net_close(&c.net);
    free(c.room);
}

void pair_call(const char *host, int port, uint64_t nonce, struct dt_page *page, struct pair_result *out)
{
    struct pair_result again;
    double end_s = dt_now_s() + PAIR_S;
    climb(host, port, nonce, page, end_s, out);
    if (out->state != PAIR_LOST && out->state != PAIR_SILENT) {
        return;
    }
    /* What is lost by its size is lost again at that size; what is lost by chance is not. */
    climb(host, port, nonce, page, end_s + PAIR_S, &again);
    if (again.state != out->state || again.lost_bytes != out->lost_bytes) {
        size_t first = out->lost_bytes;
        *out = again;
        out->state = PAIR_LOSSY;
        out->lost_bytes = first;
    }
}
