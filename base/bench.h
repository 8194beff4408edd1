/* The parts that all benchmarks share. Samples become one JSON line on stdout. One function
 * reads options of the form --name value. */
#ifndef DT_BASE_BENCH_H
#define DT_BASE_BENCH_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/types.h>

struct dt_bench_case {
    const char *bench, *name; /* "store", "add" */
    const char *unit;         /* "us", "ops/s", "GB/s" */
    long long calls;          /* how many make up the value together; 0: it is of one */
    double bytes;             /* that one call must move, where it is a time in us: printed with
                               * the rate; 0: not known */
    double flops;             /* that one call must do, likewise; 0: bytes decide */
    double floor;             /* what the machine would allow, same unit; 0: not known */
    double peer;              /* another system in the same run, same unit; 0: not measured */
    const char *peer_name;    /* "torch"; null without */
    const char *device;       /* what it ran on, as that names itself; null: not said */
    const char *by;           /* which of several ways was taken; null: there is one */
};

/* Prints {"bench", "case", "value" (the median), "unit", "p10", "p90", "count", "floor", "peer",
 * ..., "load"}. Sorts the samples. */
void dt_bench_print(const struct dt_bench_case *c, double *samples, size_t count);
/* The median; sorts the samples. 0 without any. */
double dt_bench_median(double *samples, size_t count);

/* Refuses what is not among the options, a list like "--repeats=1..101 --op=NAME --peer": LO..HI
 * asks for a whole number in that range, another word for any value, none for none. argv[0] is
 * the benchmark's name. */
int dt_bench_check(int argc, char **argv, const char *options, struct dt_error *err);
/* Value of --name in argv (as `--name value` or `--name=value`), or fallback. */
const char *dt_bench_option(int argc, char **argv, const char *name, const char *fallback);
long dt_bench_number(int argc, char **argv, const char *name, long fallback);
bool dt_bench_flag(int argc, char **argv, const char *name);
/* Python with PyTorch for comparisons (DTRUN_PEERS, or the cache folder), or null when there is
 * none; belongs to the caller. */
char *dt_bench_peer_program(const char *name);

/* Another system's program that measures on request: a line on its stdin, seconds on its stdout.
 * It dies with us. */
struct dt_bench_peer {
    FILE *orders, *answers;
    pid_t pid;
};
/* argv[0] is looked for in PATH. -1: it could not be started (that it runs, the first answer
 * shows). */
int dt_bench_peer_open(struct dt_bench_peer *p, char *const *argv);
/* Seconds, or negative when it has ended or does not answer with a number. One that says nothing
 * for two minutes is said on stderr and killed. */
double dt_bench_peer_ask(struct dt_bench_peer *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void dt_bench_peer_close(struct dt_bench_peer *p);

#endif
