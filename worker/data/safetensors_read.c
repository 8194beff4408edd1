/* Converts elements of safetensors files to float, double or int64. Data may be unaligned, so every
 * element is copied before it is used. Only the pages of the elements are touched. */
#include "worker/data/safetensors.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

static double from_f16(uint16_t h)
{
    int exponent = h >> 10 & 31, fraction = h & 1023;
    double v = exponent == 31  ? (fraction != 0 ? NAN : INFINITY)
               : exponent == 0 ? ldexp(fraction, -24)
                               : ldexp(1024 + fraction, exponent - 25);
    return (h & 0x8000) != 0 ? -v : v;
}

static float from_bf16(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

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

static double real_at(enum dt_dtype type, const char *p)
{
    uint16_t half;
    float x;
    double wide;
    switch (type) {
    case DT_F32:
        memcpy(&x, p, sizeof x);
        return (double)x;
    case DT_F64:
        memcpy(&wide, p, sizeof wide);
        return wide;
    case DT_BF16:
        memcpy(&half, p, sizeof half);
        return (double)from_bf16(half);
    default:
        memcpy(&half, p, sizeof half);
        return from_f16(half);
    }
}

int st_read_f64(const struct st_file *f, const struct st_tensor *t, int64_t first, int64_t count, double *out,
                struct dt_error *err)
{
    if (check_range(f, t, first, count, err) != 0) {
        return -1;
    }
    if (!is_real(t->type)) {
        return wrong_type(f, t, "F32, F64, BF16 or F16", err);
    }
    size_t width = dt_dtype_size(t->type);
    const char *base = (const char *)t->data + (size_t)first * width;
    for (int64_t i = 0; i < count; i++) {
        out[i] = real_at(t->type, base + (size_t)i * width);
    }
    return 0;
}

int st_read_f32(const struct st_file *f, const struct st_tensor *t, int64_t first, int64_t count, float *out,
                struct dt_error *err)
{
    if (check_range(f, t, first, count, err) != 0) {
        return -1;
    }
    if (!is_real(t->type)) {
        return wrong_type(f, t, "F32, F64, BF16 or F16", err);
    }
    size_t width = dt_dtype_size(t->type);
    const char *base = (const char *)t->data + (size_t)first * width;
    if (t->type == DT_F32 && count > 0) {
        memcpy(out, base, (size_t)count * width);
    }
    for (int64_t i = 0; t->type != DT_F32 && i < count; i++) {
        out[i] = (float)real_at(t->type, base + (size_t)i * width);
    }
    return 0;
}
