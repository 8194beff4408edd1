/* Converts elements of safetensors files to float or double. Data may be unaligned, so every element
 * is copied before it is used. Only the pages of the elements are touched. */
#include "worker/data/safetensors.h"

#include "kernels/cpu/past_cache.h"
#include "kernels/kernels.h"

#include <stdbool.h>
#include <string.h>

enum { BLOCK = 1024 };

static int check_range(const struct st_file *f, const struct st_tensor *t, int64_t first, int64_t count,
                       struct dt_error *err)
{
    if (first < 0 || count < 0 || first > t->numel || count > t->numel - first) {
        return dt_fail(err, DT_INVALID, "%s: tensor %s: elements [%lld, %lld) of %lld", st_path(f), t->name,
                       (long long)first, (long long)(first + count), (long long)t->numel);
    }
    return 0;
}

static int wrong_type(const struct st_file *f, const struct st_tensor *t, const char *wanted, struct dt_error *err)
{
    return dt_fail(err, DT_INVALID, "%s: tensor %s: type %s; expected %s", st_path(f), t->name, t->dtype, wanted);
}

static bool is_real(enum dt_dtype type)
{
    return type == DT_F32 || type == DT_F64 || type == DT_BF16 || type == DT_F16;
}

/* Reads elements as `to`, DT_F32 or DT_F64. */
static int read_real(const struct st_file *f, const struct st_tensor *t, int64_t first, int64_t count, enum dt_dtype to,
                     void *out, struct dt_error *err)
{
    if (check_range(f, t, first, count, err) != 0) {
        return -1;
    }
    if (!is_real(t->type)) {
        return wrong_type(f, t, "F32, F64, BF16 or F16", err);
    }
    size_t width = dt_dtype_size(t->type);
    const char *from = (const char *)t->data + (size_t)first * width;
    size_t size = (size_t)count * dt_dtype_size(to);
    bool large = size >= DT_PAST_CACHE_BYTES;
    if (t->type == to && count > 0) {
        if (large) {
            dt_copy_past_cache(out, from, size);
        } else {
            memcpy(out, from, size);
        }
        return 0;
    }
    if (large && t->type == DT_BF16 && to == DT_F32) {
        dt_widen_past_cache(out, from, count);
        return 0;
    }
    _Alignas(64) double block[BLOCK];
    for (int64_t i = 0, n; i < count; i += n) {
        n = count - i < BLOCK ? count - i : BLOCK;
        memcpy(block, from + (size_t)i * width, (size_t)n * width);
        dt_cpu_cast(&(struct dt_cast_args){(char *)out + (size_t)i * dt_dtype_size(to), block, n, to, t->type});
    }
    return 0;
}

int st_read_f64(const struct st_file *f, const struct st_tensor *t, int64_t first, int64_t count, double *out,
                struct dt_error *err)
{
    return read_real(f, t, first, count, DT_F64, out, err);
}

int st_read_f32(const struct st_file *f, const struct st_tensor *t, int64_t first, int64_t count, float *out,
                struct dt_error *err)
{
    return read_real(f, t, first, count, DT_F32, out, err);
}
