/* Communicators with ranks as threads of one program, and every collective against sums in tree
 * order. */
#ifndef DT_TESTS_LIB_COMM_THREADS_H
#define DT_TESTS_LIB_COMM_THREADS_H

#include "base/page.h"
#include "collectives/comm.h"
#include "collectives/store.h"
#include "kernels/device.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

/* cmocka's assertions belong to the main thread. */
#define CHECK(x)                                                                                                       \
    do {                                                                                                               \
        if (!(x)) {                                                                                                    \
            (void)fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #x);                                      \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)
#define OK(call)                                                                                                       \
    do {                                                                                                               \
        if ((call) != 0) {                                                                                             \
            (void)fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, err.text);                             \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

enum { THREADS_MAX = 8 };

struct rank {
    int rank, size;
    char host[2]; /* empty: all ranks share one */
    double timeout_s;
    struct dt_store *store;
    struct dt_page *page;
    struct dt_device device; /* ops null: host memory */
    struct dt_stream *stream;
    void (*main)(struct rank *r);
    pthread_t thread;
};

extern struct rank everyone[THREADS_MAX];
extern pthread_barrier_t meeting; /* of all threads of a run, beside the communicator */

/* Runs body in `size` threads, leaving out rank `without` (-1: nobody). layout: one letter per
 * rank, the host it is on; null: all on one. */
void threads_run(int size, const char *layout, int without, void (*body)(struct rank *r));
/* The communicator of all ranks; on device `r->device` where a body has opened one
 * (device_open). */
struct dt_comm *world(struct rank *r);
/* From now on this thread's collectives go to a stream of the device, and `start` waits for it.
 * Close the communicator before device_close. */
void device_open(struct rank *r, const char *name);
void device_close(struct rank *r);
/* One collective, that must come through. */
void start(struct dt_comm *c, const struct dt_collective *x);
/* Element i of rank r: values whose sum depends on the order. */
double element(int r, int64_t i);
/* Stores it at p[i], as `type`; `at`: which element. */
void put(void *p, enum dt_dtype type, int64_t i, int r, int64_t at);
/* One collective of `count` with buffers in, out, against dt_tree_reduce. */
void check_one(struct dt_comm *c, enum dt_coll kind, enum dt_reduction op, enum dt_dtype type, int64_t count, char *in,
               char *out);
/* Results over the inputs, all_gather and reduce_scatter at their place in the large buffer, n
 * floats a rank. x, want: n * size floats. */
void check_in_place(struct dt_comm *c, int64_t n, float *x, float *want);
/* Four ranks as two by two: the sum of n floats in rows and then in columns is the tree over all
 * four. x, y, whole: n floats; y and whole end with the sum. */
void check_two_by_two(struct dt_comm *c, struct dt_comm *row, struct dt_comm *column, int64_t n, float *x, float *y,
                      float *whole);

#endif
