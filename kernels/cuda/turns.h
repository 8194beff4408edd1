/* Timing candidates for the same work, in turns on one stream: a turn runs each one that is left
 * once, and the host waits once, at the turn's end. Medians over turns make up for clocks that
 * move, and the first candidate, the library's own proposal, stays unless another is 1 % faster. */
#ifndef DT_KERNELS_CUDA_TURNS_H
#define DT_KERNELS_CUDA_TURNS_H

#include "base/error.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>

struct dt_stream;

enum { TURNS_MOST = 9, TURNS_CANDIDATES = 32 };

struct turns {
    struct dt_stream *stream;
    cudaStream_t native;
    const char *what; /* is measured, for messages */
    int count;
    struct {
        float ms[TURNS_MOST];
        bool out; /* refused, or not worth another turn */
    } each[TURNS_CANDIDATES];
    cudaEvent_t events[TURNS_CANDIDATES + 1];
};

/* Puts candidate number i on the stream; false: it is refused after all, and out. */
typedef bool (*turns_run)(void *context, int i);

/* For `count` candidates, at most TURNS_CANDIDATES; all of them are in, but those that the
 * caller then takes out. -1: the device failed. turns_close ends it in any case, and is harmless
 * where it was not opened but zeroed. */
int turns_open(struct turns *t, struct dt_stream *s, cudaStream_t native, const char *what, int count);
void turns_close(struct turns *t);
/* One turn; the times go to ms[turn]. The first one runs twice, and its first run is not
 * counted: on an idle stream it would be charged for the host's work, too. -1: the device
 * failed. */
int turns_take(struct turns *t, int turn, turns_run run, void *context);
/* The place of the fastest by its median over the turns [from, to), or -1: none is left. Its
 * median and the first one's go to ms; the times are sorted by it. */
int turns_fastest(struct turns *t, int from, int to, float ms[2]);
/* After -1: what the device failed with goes to the stream and to err. Returns -1. */
int turns_fail(struct turns *t, struct dt_error *err);
int turns_compare(const void *a, const void *b); /* of two floats, for qsort */

#endif
