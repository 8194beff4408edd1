/* The sums are of small whole numbers, exact in any order. */
#include "cmd/doctor/sums.h"

#include "base/clock.h"
#include "collectives/comm.h"

#include <stdbool.h>
#include <stdlib.h>

#define LIMIT_S 20.0
#define REPEATS 7
#define PER_REPEAT_S 0.05

static const size_t sizes[SUMS_COUNT] = {1024, (size_t)1 << 20};

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void fill(float *values, int64_t count, int rank)
{
    for (int64_t i = 0; i < count; i++) {
        values[i] = (float)(i % 251 + rank % 61);
    }
}

static int64_t wrong_of(const float *values, int64_t count, int size)
{
    int64_t ranks = 0, wrong = 0;
    for (int r = 0; r < size; r++) {
        ranks += r % 61;
    }
    for (int64_t i = 0; i < count; i++) {
        wrong += values[i] != (float)(i % 251 * size + ranks);
    }
    return wrong;
}

/* The slowest rank's mean of so many sums. */
static double time_sums(struct dt_comm *c, float *values, int64_t count, int64_t times)
{
    dt_comm_start(c, &(struct dt_collective){.kind = DT_BARRIER, .name = "doctor begins"}, NULL);
    double start_s = dt_now_s();
    for (int64_t i = 0; i < times; i++) {
        dt_comm_start(c, &(struct dt_collective){DT_ALL_REDUCE, DT_MAX, "doctor", values, values, count, DT_F32, 0},
                      NULL);
    }
    double mean_s = (dt_now_s() - start_s) / (double)times;
    dt_comm_start(c, &(struct dt_collective){DT_ALL_REDUCE, DT_MAX, "doctor slowest", &mean_s, &mean_s, 1, DT_F64, 0},
                  NULL);
    return mean_s;
}

static int measure(struct dt_comm *c, float *values, size_t bytes, struct sums_result *out, struct dt_error *err)
{
    int64_t count = (int64_t)(bytes / sizeof(float)), wrong;
    double all_s[REPEATS];
    int repeats = 0;
    fill(values, count, c->rank);
    dt_comm_start(c, &(struct dt_collective){DT_ALL_REDUCE, DT_SUM, "doctor", values, values, count, DT_F32, 0}, NULL);
    wrong = wrong_of(values, count, c->size);
    dt_comm_start(c, &(struct dt_collective){DT_ALL_REDUCE, DT_SUM, "doctor wrong", &wrong, &wrong, 1, DT_I64, 0},
                  NULL);
    double once_s = time_sums(c, values, count, 1); /* the same on all ranks, so all repeat as
                                                     * often */
    int64_t times = once_s < PER_REPEAT_S / 1000 ? 1000 : once_s < PER_REPEAT_S ? (int64_t)(PER_REPEAT_S / once_s) : 1;
    do {
        all_s[repeats++] = time_sums(c, values, count, times);
    } while (repeats < REPEATS && once_s < 1);
    qsort(all_s, (size_t)repeats, sizeof all_s[0], by_value);
    *out = (struct sums_result){.bytes = bytes, .seconds = all_s[repeats / 2], .wrong = wrong, .backend = c->ops->name};
    return dt_comm_poll(c, err);
}

int doctor_sums(struct dt_store *store, struct dt_page *page, int rank, int size, const char *host,
                struct sums_result out[SUMS_COUNT], struct dt_error *err)
{
    struct dt_comm *c = NULL;
    void *values = NULL;
    struct dt_comm_options o = {.host = host,
                                .name = "doctor",
                                .rank = rank,
                                .size = size,
                                .store = store,
                                .page = page,
                                .timeout_s = LIMIT_S,
                                .open_timeout_s = LIMIT_S};
    int rc = dt_comm_open(&c, &o, err);
    if (rc == 0) {
        rc = dt_comm_alloc(c, sizes[SUMS_COUNT - 1], &values, err);
    }
    for (int i = 0; rc == 0 && i < SUMS_COUNT; i++) {
        rc = measure(c, values, sizes[i], &out[i], err);
    }
    dt_comm_close(c);
    return rc;
}
