/* Two threads, one connection over loopback with buffers as the tcp backend has them, nothing
 * but send, recv and poll. */
#include "cmd/bench/sockets.h"

#include "base/clock.h"
#include "collectives/net.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

struct side {
    pthread_t thread;
    struct dt_net net;
    char *from, *to;
    size_t size_bytes;
    int64_t times;
    int failed;
};

static void *exchange(void *arg)
{
    struct side *s = arg;
    size_t total = s->size_bytes, sent, got;
    for (int64_t i = 0; i < s->times && !s->failed; i++) {
        for (sent = got = 0; (sent < total || got < total) && !s->failed;) {
            ssize_t out =
                sent < total ? send(s->net.fd, s->from + sent, total - sent, MSG_NOSIGNAL | MSG_DONTWAIT) : -1;
            sent += out > 0 ? (size_t)out : 0;
            ssize_t in = got < total ? recv(s->net.fd, s->to + got, total - got, MSG_DONTWAIT) : -1;
            got += in > 0 ? (size_t)in : 0;
            s->failed = in == 0;
            if (out <= 0 && in <= 0) {
                int want = (sent < total ? POLLOUT : 0) | (got < total ? POLLIN : 0);
                struct pollfd p = {.fd = s->net.fd, .events = (short)want};
                s->failed = want != 0 && poll(&p, 1, 10000) <= 0;
            }
        }
    }
    return NULL;
}

double bench_sockets_once(char *memory, size_t size_bytes, int64_t times)
{
    struct dt_net listener = {.fd = -1};
    struct side two[2] = {{.net = {.fd = -1}}, {.net = {.fd = -1}}};
    struct dt_error err;
    int port = 0, size = 1 << 20;
    double mean_s = 0, deadline_s = dt_now_s() + 10;
    if (dt_net_listen(&listener, "127.0.0.1", 0, 1, NULL, &port, &err) != 0 ||
        dt_net_connect(&two[0].net, "127.0.0.1", port, deadline_s, NULL, &err) != 0 ||
        dt_net_accept(&listener, &two[1].net, deadline_s, &err) != 0) {
        goto out;
    }
    for (size_t i = 0; i < 2; i++) {
        (void)setsockopt(two[i].net.fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
        (void)setsockopt(two[i].net.fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
        two[i].from = memory + i * 2 * size_bytes;
        two[i].to = two[i].from + size_bytes;
        two[i].size_bytes = size_bytes;
        two[i].times = times;
    }
    double start_s = dt_now_s();
    if (pthread_create(&two[1].thread, NULL, exchange, &two[1]) == 0) {
        (void)exchange(&two[0]);
        (void)pthread_join(two[1].thread, NULL);
        mean_s = two[0].failed || two[1].failed ? 0 : (dt_now_s() - start_s) / (double)times;
    }
out:
    dt_net_close(&two[0].net);
    dt_net_close(&two[1].net);
    dt_net_close(&listener);
    return mean_s;
}
