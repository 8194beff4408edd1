/* Communicators whose ranks are processes. A test forks a store and its ranks. The ranks write
 * results to memory that they share with the test. */
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

/* For use in a child, where cmocka's assertions do not work. */
#define NEED(x)                                                                                                        \
    do {                                                                                                               \
        if (!(x)) {                                                                                                    \
            (void)fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #x);                                      \
            _exit(3);                                                                                                  \
        }                                                                                                              \
    } while (0)

struct told {
    _Atomic int64_t count; /* number of completed collectives */
    struct dt_error error;
};

extern struct told *told; /* by rank */
extern pid_t pids[PROCESSES_MAX];
extern int port; /* of the store */

/* Set-up and tear-down of a test: the store and `told`. processes_renew makes a new store for a new
 * round. */
int processes_setup(void **unused);
int processes_teardown(void **unused);
void processes_renew(void);
/* The child dies with the test. */
pid_t fork_child(void);
/* Forks `size` ranks. Each enters its communicator and runs the body; `leave` closes the
 * communicator (null: dt_comm_close). */
void processes_begin(int size, struct dt_comm *(*enter)(int rank, int size, const void *arg), const void *arg,
                     void (*body)(struct dt_comm *c), void (*leave)(struct dt_comm *c));
/* Waits for the end of a rank and returns its status. */
int end(int rank);
/* Kills `victim`, and checks that all other ranks of `size` end in order, with an error that names
 * the victim as `who`. */
void kill_and_check(int victim, int size, const char *who);
/* Waits until a rank has completed so many collectives. */
void wait_for_count(int rank, int64_t count);

/* Bodies. Sums of small integers, which are exact in any order, in the whole and in halves; with
 * memory of the communicator and other memory. */
void sums(struct dt_comm *c);
/* Runs all-reduces until one fails: odd ones are large, even ones small. */
void work(struct dt_comm *c);
/* Runs no collective; poll reports the loss. */
void idle(struct dt_comm *c);

#endif
