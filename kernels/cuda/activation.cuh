/* Activations and their slopes, computed like on the CPU: one exponential each. For the rows
 * activation, gate and their backward. */
#ifndef DT_KERNELS_CUDA_ACTIVATION_CUH
#define DT_KERNELS_CUDA_ACTIVATION_CUH

#include "kernels/cuda/vector.cuh"
#include "kernels/normal.h"

static const float GELU_SCALE = 0.79788456080286535588F; /* sqrt(2 / pi) */
static const float GELU_CUBIC = 0.044715F;

/* a / b. bf16 does not need an exactly rounded division; the fast one gives 0 for b beyond 2^126,
 * which is right here */
template <typename T> DT_FN float quotient(float a, float b)
{
    return a / b;
}
template <> DT_METHOD float quotient<bf16>(float a, float b)
{
    return __fdividef(a, b);
}

/* 1 / (1 + e^-x) */
template <typename T> DT_FN float sigmoid(float x)
{
    return quotient<T>(1.0F, 1.0F + exponential<T>(-x));
}

/* gelu(x) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3) */
template <typename T> DT_FN float gelu_sigmoid(float x)
{
    return sigmoid<T>(x * fmaf(x * x, 2 * GELU_SCALE * GELU_CUBIC, 2 * GELU_SCALE));
}

/* P(X < x) of the normal distribution, and exp(-x^2 / 2), for x as far from 0 as DT_NORMAL_MOST */
template <typename T> DT_FN float normal(float x, float *bell)
{
    float a = fminf(fabsf(x), DT_NORMAL_MOST), square = a * a;
    float e = exponential<T>(-0.5F * square), t = quotient<T>(1.0F, fmaf(a, DT_NORMAL_STEP, 1.0F));
    e = fmaf(e, -0.5F * fmaf(a, a, -square), e); /* makes up for the rounding of a * a */
    float tail = e * (t * DT_NORMAL_TAIL(t, float, fmaf));
    *bell = e;
    return x < 0 ? tail : 1.0F - tail;
}

template <typename T, int KIND> DT_FN float activation_value(float x)
{
    if (KIND == DT_ACT_GELU) {
        return x * gelu_sigmoid<T>(x);
    }
    if (KIND == DT_ACT_RELU) { /* NaN stays NaN */
        return x < 0 ? 0 : x;
    }
    if (KIND == DT_ACT_GELU_ERF) {
        float bell;
        return x * normal<T>(x, &bell);
    }
    if (KIND == DT_ACT_SILU) {
        return x * sigmoid<T>(x);
    }
    return 2.0F * sigmoid<T>(2.0F * x) - 1.0F;
}

template <typename T, int KIND> DT_FN float activation_slope(float x)
{
    if (KIND == DT_ACT_GELU) {
        float s = gelu_sigmoid<T>(x);
        float t = fmaf(x * x, 6 * GELU_SCALE * GELU_CUBIC, 2 * GELU_SCALE); /* (2 u)' */
        return fmaf(x * t, s * (1.0F - s), s);
    }
    if (KIND == DT_ACT_RELU) {
        return x > 0 ? 1 : 0;
    }
    if (KIND == DT_ACT_GELU_ERF) {
        float bell, below = normal<T>(x, &bell);
        return fmaf(x * DT_NORMAL_DENSITY, bell, below);
    }
    if (KIND == DT_ACT_SILU) {
        float s = sigmoid<T>(x);
        return fmaf(x * s, 1.0F - s, s);
    }
    float t = 2.0F * sigmoid<T>(2.0F * x) - 1.0F;
    return 1.0F - t * t;
}

/* Calls f<T, kind>(arguments...) with the kind as a constant. */
#define DT_FOR_KIND(kind, f, T, ...)                                                                                   \
    switch (kind) {                                                                                                    \
    case DT_ACT_GELU:                                                                                                  \
        return f<T, DT_ACT_GELU>(__VA_ARGS__);                                                                         \
    case DT_ACT_RELU:                                                                                                  \
        return f<T, DT_ACT_RELU>(__VA_ARGS__);                                                                         \
    case DT_ACT_TANH:                                                                                                  \
        return f<T, DT_ACT_TANH>(__VA_ARGS__);                                                                         \
    case DT_ACT_GELU_ERF:                                                                                              \
        return f<T, DT_ACT_GELU_ERF>(__VA_ARGS__);                                                                     \
    case DT_ACT_SILU:                                                                                                  \
        return f<T, DT_ACT_SILU>(__VA_ARGS__);                                                                         \
    }

#endif
