/* The floor of collectives between hosts: a plain exchange over two sockets. */
#ifndef DT_CMD_BENCH_SOCKETS_H
#define DT_CMD_BENCH_SOCKETS_H

#include <stddef.h>
#include <stdint.h>

/* Mean seconds of `times` exchanges over loopback: two threads each send size_bytes to the other
 * and receive as much, both ways at once. memory: 4 * size_bytes. 0 when sockets are not to be
 * had. */
double bench_sockets_once(char *memory, size_t size_bytes, int64_t times);

#endif
