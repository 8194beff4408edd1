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

} // namespace

extern "C" void dt_cuda_column_sum(struct dt_stream *s, const struct dt_column_sum_args *a)
{
    struct dt_cuda_launch l;
    if (a->col_count <= 0 || !dt_cuda_begin(s, &l)) {
        return;
    }
    if (a->col_count > COLUMNS_MOST) {
        dt_stream_fail(s, DT_INVALID, "column_sum: %lld columns: a device takes %d", (long long)a->col_count,
                       (int)COLUMNS_MOST);
    } else if (a->type == DT_F32) {
        column_sum<float>(&l, a, DT_F32);
    } else if (a->type == DT_BF16 && (a->grad_type == DT_F32 || a->grad_type == DT_BF16)) {
        column_sum<bf16>(&l, a, a->grad_type);
    } else {
        dt_stream_fail(s, DT_INTERNAL, "column_sum: types %s, %s are not made", dt_dtype_name(a->type),
                       dt_dtype_name(a->grad_type));
    }
    dt_cuda_end(s, "column_sum");
}
