#include "kernels/cuda/turns.h"

#include "kernels/cuda/cuda.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

int turns_open(struct turns *t, struct dt_stream *s, cudaStream_t native, const char *what, int count)
{
    memset(t, 0, sizeof *t);
    t->stream = s;
    t->native = native;
    t->what = what;
    t->count = count;
    for (int i = 0; i <= count; i++) {
        if (cudaEventCreateWithFlags(&t->events[i], cudaEventDefault) != cudaSuccess) {
            return -1;
        }
    }
    return 0;
}

void turns_close(struct turns *t)
{
    for (int i = 0; i <= TURNS_CANDIDATES; i++) {
        if (t->events[i] != NULL) {
            (void)cudaEventDestroy(t->events[i]);
        }
    }
    memset(t->events, 0, sizeof t->events);
}

int turns_take(struct turns *t, int turn, turns_run run, void *context)
{
    int ran[TURNS_CANDIDATES], runs = 0;
    bool begun = false, good = true;
    for (int i = 0; i < t->count && good; i++) {
        if (t->each[i].out) {
            continue;
        }
        if (!run(context, i)) {
            t->each[i].out = true;
            continue;
        }
        if (!begun) {
            begun = true;
            good = cudaEventRecord(t->events[0], t->native) == cudaSuccess;
            i--;
            continue;
        }
        ran[runs++] = i;
        good = cudaEventRecord(t->events[runs], t->native) == cudaSuccess;
    }
    good = good && (runs == 0 || cudaEventSynchronize(t->events[runs]) == cudaSuccess);
    for (int r = 0; r < runs && good; r++) {
        good = cudaEventElapsedTime(&t->each[ran[r]].ms[turn], t->events[r], t->events[r + 1]) == cudaSuccess;
    }
    return good && !dt_stream_failed(t->stream, NULL) ? 0 : -1;
}

int turns_compare(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

int turns_hash(struct turns *t, const char *result, size_t size_bytes, char *window, size_t window_bytes,
               uint64_t *bits)
{
    *bits = 0;
    for (size_t at = 0; at < size_bytes; at += window_bytes) {
        size_t n = size_bytes - at < window_bytes ? size_bytes - at : window_bytes;
        dt_stream_copy(t->stream, window, result + at, n);
        if (cudaStreamSynchronize(t->native) != cudaSuccess) {
            return -1;
        }
        *bits = XXH3_64bits_withSeed(window, n, *bits);
    }
    return dt_stream_failed(t->stream, NULL) ? -1 : 0;
}

int turns_fastest(struct turns *t, int from, int to, float ms[2])
{
    int best = -1;
    ms[0] = ms[1] = 0;
    for (int i = 0; i < t->count; i++) {
        if (t->each[i].out) {
            continue;
        }
        qsort(t->each[i].ms + from, (size_t)(to - from), sizeof t->each[i].ms[0], turns_compare);
        float median = t->each[i].ms[from + (to - from) / 2];
        ms[1] = i == 0 ? median : ms[1];
        if (best < 0 || median < (best == 0 ? 0.99F : 1.0F) * ms[0]) {
            best = i;
            ms[0] = median;
        }
    }
    return best;
}

int turns_fail(struct turns *t, struct dt_error *err)
{
    cudaError_t last = cudaGetLastError();
    struct dt_error why;
    if (!dt_cuda_broken(t->stream, t->what, &why)) {
        (void)dt_fail(&why, DT_IO, "%s: %s", t->what, cudaGetErrorString(last));
    }
    dt_stream_fail(t->stream, why.status, "%s", why.text);
    (void)dt_stream_failed(t->stream, err);
    return -1;
}
