/* All-reduce across the real ranks: are the sums right, how long do they take? */
#ifndef DT_CMD_DOCTOR_SUMS_H
#define DT_CMD_DOCTOR_SUMS_H

#include "base/error.h"
#include "base/page.h"
#include "collectives/store.h"

#include <stdint.h>

struct sums_result {
    size_t bytes;
    double seconds; /* the slowest rank's mean of the middle repetition */
    int64_t wrong;  /* elements of all ranks that are not the sum */
    const char *backend;
};

/* Sizes that are summed; room for so many results. */
#define SUMS_COUNT 2
/* All ranks call it alike; host tells ranks of one host from others (as dt_comm_options.host).
 * Opening and each sum end after 20 s: DT_TIMEOUT names who is missing. */
int doctor_sums(struct dt_store *store, struct dt_page *page, int rank, int size, const char *host,
                struct sums_result out[SUMS_COUNT], struct dt_error *err);

#endif
