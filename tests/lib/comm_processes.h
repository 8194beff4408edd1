/* Communicators with ranks as processes. A test forks a store and its ranks; what ranks find is
 * in memory that they share with the test. */
#ifndef DT_TESTS_LIB_COMM_PROCESSES_H
#define DT_TESTS_LIB_COMM_PROCESSES_H

#include "base/error.h"
#include "collectives/comm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>
// clang-format off: needs the headers above
#include <cmocka.h>
// clang-format on

enum { PROCESSES_MAX = 16 };
#define PATIENCE_S 60.0

/* In a child, where cmocka's assertions mean nothing. */
#define NEED(x)                                                                                                        \
    do {                                                                                                               \
        if (!(x)) {                                                                                                    \
            (void)fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #x);                                      \
            _exit(3);                                                                                                  \
        }                                                                                                              \
    } while (0)

struct told {
    _Atomic int64_t count; /* collectives done */
    struct dt_error error;
};

extern struct told *told; /* by rank */
extern pid_t pids[PROCESSES_MAX];
extern int port; /* of the store */

/* A test's set-up and tear-down: the store and `told`. A new round has a new store:
 * processes_renew. */
int processes_setup(void **unused);
int processes_teardown(void **unused);
void processes_renew(void);
/* The child dies with the test. */
pid_t fork_child(void);
/* Forks `size` ranks; each enters its communicator and runs the body. It is closed by `leave`
 * (null: dt_comm_close). */
void processes_begin(int size, struct dt_comm *(*enter)(int rank, int size, const void *arg), const void *arg,
                     void (*body)(struct dt_comm *c), void (*leave)(struct dt_comm *c));
/* Waits for a rank's end; its status. */
int end(int rank);
/* Kills `victim`, and checks that all others of `size` end in order, having been told that it is
 * gone; by the name `who`. */
void kill_and_check(int victim, int size, const char *who);
/* Until a rank has done so many. */
void wait_for_count(int rank, int64_t count);

/* Bodies. Sums of small integers, which are exact in any order, in the whole and in halves; with
 * memory of the communicator and other. */
void sums(struct dt_comm *c);
/* All-reduces until it fails: odd numbers are large, even ones small. */
void work(struct dt_comm *c);
/* In no collective: poll tells. */
void idle(struct dt_comm *c);

#endif
