/* Communicators whose ranks are threads of one program. Every collective is compared with sums in
 * tree order. */
#ifndef DT_TESTS_LIB_COMM_THREADS_H
#define DT_TESTS_LIB_COMM_THREADS_H

#include "base/page.h"
#include "collectives/comm.h"
#include "collectives/store.h"
#include "kernels/device.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

/* cmocka's assertions may only run in the main thread. */
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
extern pthread_barrier_t meeting; /* for all threads of a run, independent of the communicator */

/* Runs body in `size` threads, without rank `without` (-1: with all). layout: the host of each
 * rank, one letter per rank; null: all on one host. */
void threads_run(int size, const char *layout, int without, void (*body)(struct rank *r));
/* Opens the communicator of all ranks; on device `r->device` if the body has opened it
 * (device_open). */
struct dt_comm *world(struct rank *r);
/* From now on this thread's collectives use a stream of the device, and `start` waits for the
 * stream. Close the communicator before device_close. */
void device_open(struct rank *r, const char *name);
void device_close(struct rank *r);
/* Runs one collective, which must succeed. */
void start(struct dt_comm *c, const struct dt_collective *x);
/* Element i of rank r. The values are such that their sum depends on the order. */
double element(int r, int64_t i);
/* Stores element `at` of rank r at p[i], as `type`. */
void put(void *p, enum dt_dtype type, int64_t i, int r, int64_t at);
/* Compares one collective of `count` elements, with buffers in and out, with dt_tree_reduce. */
void check_one(struct dt_comm *c, enum dt_coll kind, enum dt_reduction op, enum dt_dtype type, int64_t count, char *in,
               char *out);
/* Collectives in place: results replace the inputs; all_gather and reduce_scatter use their place
 * in the large buffer, n floats per rank. x, want: n * size floats. */
void check_in_place(struct dt_comm *c, int64_t n, float *x, float *want);
/* Four ranks as two by two: the sum of n floats over rows and then over columns equals the tree
 * over all four. x, y, whole: n floats; y and whole end up with the sum. */
void check_two_by_two(struct dt_comm *c, struct dt_comm *row, struct dt_comm *column, int64_t n, float *x, float *y,
                      float *whole);

#endif
