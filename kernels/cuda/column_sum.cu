/* Bias gradients: sums of a matrix over its rows. */
#include "kernels/cuda/columns.cuh"

namespace
{

template <typename T>
void column_sum(const struct dt_cuda_launch *l, const struct dt_column_sum_args *a, enum dt_dtype out_type)
{
    const int W = 16 / (int)sizeof(T);
    column_values<T> from = {(const T *)a->x, a->col_count};
    if (aligned16(a->x) && a->col_count % W == 0) {
        sum_columns<column_values<T>, W>(l, from, a->out, NULL, a->row_count, a->col_count, a->accumulate, out_type);
    } else {
        sum_columns<column_values<T>, 1>(l, from, a->out, NULL, a->row_count, a->col_count, a->accumulate, out_type);
    }
}

bool too_wide(struct dt_stream *s, const struct dt_column_sum_args *a)
{
    if (a->col_count > COLUMNS_MOST) {
        dt_stream_fail(s, DT_INVALID, "column_sum: %lld columns: a device takes %d", (long long)a->col_count,
                       (int)COLUMNS_MOST);
    }
    return a->col_count > COLUMNS_MOST;
}

} // namespace

DT_CUDA_SUMS_ROW(column_sum, a->grad_type, a->col_count <= 0 || too_wide(s, a))
