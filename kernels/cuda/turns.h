/* Times candidates for the same work, in turns on one stream. A turn runs each remaining candidate
 * once, and the host waits once, at the end of the turn. Medians over turns compensate for changing
 * clocks. The first candidate, the library's own proposal, stays unless another is 1 % faster. */
#ifndef DT_KERNELS_CUDA_TURNS_H
#define DT_KERNELS_CUDA_TURNS_H

#include "base/error.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dt_stream;

enum { TURNS_MOST = 9, TURNS_CANDIDATES = 32 };

struct turns {
    struct dt_stream *stream;
    cudaStream_t native;
    const char *what; /* the activity, for messages */
    int count;
    struct {
        float ms[TURNS_MOST];
        bool out; /* refused, or too slow for another turn */
    } each[TURNS_CANDIDATES];
    cudaEvent_t events[TURNS_CANDIDATES + 1];
};

/* Enqueues candidate number i. False: it is refused, and dropped. */
typedef bool (*turns_run)(void *context, int i);

/* Opens the turns of `count` candidates, at most TURNS_CANDIDATES. All take part, but those that
 * the caller drops. -1: the device failed. Call turns_close in any case; a zeroed struct is
 * allowed. */
int turns_open(struct turns *t, struct dt_stream *s, cudaStream_t native, const char *what, int count);
void turns_close(struct turns *t);
/* Runs one turn; the times go to ms[turn]. The first candidate runs twice, and its first run does
 * not count: on an idle stream it would include the host's work. -1: the device failed. */
int turns_take(struct turns *t, int turn, turns_run run, void *context);
/* *bits: a hash of what a candidate computed, read through a window of pinned memory. -1: the device failed. */
int turns_hash(struct turns *t, const char *result, size_t size_bytes, char *window, size_t window_bytes,
               uint64_t *bits);
/* Returns the index of the fastest by its median over the turns [from, to); -1: none is left. ms
 * becomes its median and that of the first. Sorts the times. */
int turns_fastest(struct turns *t, int from, int to, float ms[2]);
/* Call it after -1: passes the device's failure to the stream and to err. Returns -1. */
int turns_fail(struct turns *t, struct dt_error *err);
int turns_compare(const void *a, const void *b); /* of two floats, for qsort */

#endif
