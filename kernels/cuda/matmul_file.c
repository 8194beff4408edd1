/* The plan file of products: one line per shape, with the shape's numbers and the algorithm's. */
#include "kernels/cuda/matmul.h"

#include "base/text.h"

#include <inttypes.h>

static void put_row(struct dt_text *out, const void *key, const void *value)
{
    const struct dt_matmul_key *k = key;
    const struct dt_matmul_algo *algo = value;
    dt_text_printf(out,
                   "%" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64
                   " %d %d %d %d %d %d %d %d %d %d",
                   k->m, k->n, k->k, k->lda, k->ldb, k->ldc, k->busy_sms, k->a_alignment, k->b_alignment,
                   k->c_alignment, k->vector_alignment, k->a_transposed, k->b_transposed, k->epilogue, k->type,
                   k->c_type, k->tf32);
    for (int i = 0; i < 8; i++) {
        dt_text_printf(out, " %" PRIx64, algo->words[i]);
    }
    dt_text_printf(out, " %" PRId64, algo->workspace_bytes);
}

static bool take_row(char **at, void *key, void *value)
{
    struct dt_matmul_key *k = key;
    struct dt_matmul_algo *algo = value;
    int64_t *const sizes[] = {&k->m, &k->n, &k->k, &k->lda, &k->ldb, &k->ldc, &k->busy_sms};
    uint16_t *const alignments[] = {&k->a_alignment, &k->b_alignment, &k->c_alignment, &k->vector_alignment};
    uint8_t *const small[] = {&k->a_transposed, &k->b_transposed, &k->epilogue, &k->type, &k->c_type, &k->tf32};
    uint64_t x = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        if (!dt_plan_file_number(at, 10, INT64_MAX, &x)) {
            return false;
        }
        *sizes[i] = (int64_t)x;
    }
    for (size_t i = 0; i < sizeof alignments / sizeof alignments[0]; i++) {
        if (!dt_plan_file_number(at, 10, DT_MATMUL_ALIGNMENT_MOST, &x)) {
            return false;
        }
        *alignments[i] = (uint16_t)x;
    }
    for (size_t i = 0; i < sizeof small / sizeof small[0]; i++) {
        if (!dt_plan_file_number(at, 10, 16, &x)) {
            return false;
        }
        *small[i] = (uint8_t)x;
    }
    for (int i = 0; i < 8; i++) {
        if (!dt_plan_file_number(at, 16, UINT64_MAX, &algo->words[i])) {
            return false;
        }
    }
    if (!dt_plan_file_number(at, 10, INT64_MAX, &x)) {
        return false;
    }
    algo->workspace_bytes = (int64_t)x;
    return true;
}

const struct dt_plan_kind dt_matmul_plans = {.name = "matmul",
                                             .head = "dtrun matmul plans 3\n",
                                             .key_bytes = sizeof(struct dt_matmul_key),
                                             .value_bytes = sizeof(struct dt_matmul_algo),
                                             .put = put_row,
                                             .take = take_row};
