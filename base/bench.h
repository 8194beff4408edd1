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
    long long calls;          /* number of calls that the value is for; 0: one */
    /* for times in us: bytes that one call must move; the rate is printed too; 0: unknown */
    double bytes;
    /* for times in us: operations of one call, likewise; 0: bytes determine the rate */
    double flops;
    double floor; /* the machine's limit in the same unit; 0: unknown */
    /* another system's value from the same run, in the same unit; 0: not measured */
    double peer;
    const char *peer_name; /* "torch"; null: none */
    const char *device;    /* name of the device that was measured; null: not printed */
    const char *by;        /* the algorithm that was used; null: there is only one */
};

/* Prints {"bench", "case", "value" (the median), "unit", "p10", "p90", "count", "floor", "peer",
 * ..., "load"}. Sorts the samples. */
void dt_bench_print(const struct dt_bench_case *c, double *samples, size_t count);
/* The median; sorts the samples. 0 if there are none. */
double dt_bench_median(double *samples, size_t count);

/* Refuses arguments that are not in `options`, a list like "--repeats=1..101 --op=NAME --peer".
 * LO..HI requires a whole number in that range; any other word requires a value; no word means that
 * the option takes none. argv[0] is the benchmark's name. */
int dt_bench_check(int argc, char **argv, const char *options, struct dt_error *err);
/* Value of --name in argv (as `--name value` or `--name=value`), or fallback. */
const char *dt_bench_option(int argc, char **argv, const char *name, const char *fallback);
long dt_bench_number(int argc, char **argv, const char *name, long fallback);
bool dt_bench_flag(int argc, char **argv, const char *name);
/* Path of a program (Python with PyTorch) for comparisons, from DTRUN_PEERS or the cache folder.
 * Null: there is none. The caller frees it. */
char *dt_bench_peer_program(const char *name);

/* A program of another system that measures on request: a line on its stdin, seconds on its stdout.
 * It ends when we end. */
struct dt_bench_peer {
    FILE *orders, *answers;
    pid_t pid;
};
/* Starts the program; argv[0] is looked up in PATH. -1: it could not be started. Whether it works
 * shows in the first answer. */
int dt_bench_peer_open(struct dt_bench_peer *p, char *const *argv);
/* Returns seconds, or a negative number if the program has ended or does not answer with a number.
 * If it is silent for two minutes, this is reported on stderr and it is killed. */
double dt_bench_peer_ask(struct dt_bench_peer *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void dt_bench_peer_close(struct dt_bench_peer *p);

#endif
