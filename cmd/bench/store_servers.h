/* Servers of the store for the bench, each in a process of its own that ends with ours. Between
 * bench_store*.c only. */
#ifndef DT_CMD_BENCH_STORE_SERVERS_H
#define DT_CMD_BENCH_STORE_SERVERS_H

#include "collectives/store.h"

#include <sys/types.h>

struct bench_server {
    const char *name;
    pid_t pid;
    int port;
    struct dt_store *store; /* our own client's connection; the bench opens it */
};

/* The body of the server's process: opens a port, writes it as a line to fd, serves until it is
 * killed. */
void bench_serve_ours(int fd);
void bench_serve_torch(int fd); /* PyTorch's own; needs its Python */
void bench_serve_echo(int fd);  /* one connection; what comes goes back */

int bench_server_start(struct bench_server *s, const char *name, void (*serve)(int fd));
void bench_server_stop(struct bench_server *s);
/* CPU seconds that all its threads have used; negative when the kernel does not tell. */
double bench_server_cpu_s(const struct bench_server *s);

#endif
