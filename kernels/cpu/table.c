/* Chooses the table of CPU kernels by the instruction sets of this machine. */
#include "kernels/cpu/cpu.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

extern const struct dt_kernels dt_kernels_table_plain, dt_kernels_table_avx2, dt_kernels_table_avx512;
extern const struct dt_cpu_half dt_cpu_half_plain, dt_cpu_half_avx2, dt_cpu_half_avx512;
extern const struct dt_cpu_half dt_cpu_half_plain_f16, dt_cpu_half_avx2_f16, dt_cpu_half_avx512_f16;

const struct dt_kernels *dt_kernels_cpu_named(const char *name)
{
    if (strcmp(name, "plain") == 0) {
        return &dt_kernels_table_plain;
    }
#if defined(__x86_64__)
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (strcmp(name, "avx2") == 0 && avx2) {
        return &dt_kernels_table_avx2;
    }
    if (strcmp(name, "avx512") == 0 && avx512) {
        return &dt_kernels_table_avx512;
    }
#endif
    return NULL;
}

const struct dt_kernels *dt_kernels_cpu(struct dt_error *err)
{
    const char *wanted = getenv("DTRUN_CPU");
    if (wanted != NULL && *wanted != '\0') {
        const struct dt_kernels *k = dt_kernels_cpu_named(wanted);
        if (k == NULL) {
            dt_fail(err, DT_INVALID, "DTRUN_CPU=%s: this CPU cannot run it; use plain, avx2 or avx512", wanted);
        }
        return k;
    }
    const struct dt_kernels *best = dt_kernels_cpu_named("avx512");
    best = best != NULL ? best : dt_kernels_cpu_named("avx2");
    return best != NULL ? best : dt_kernels_cpu_named("plain");
}

bool dt_gemm_has_dots(void)
{
#if defined(__x86_64__)
    return dt_kernels_cpu(NULL) == &dt_kernels_table_avx512 && __builtin_cpu_supports("avx512bf16") != 0;
#else
    return false;
#endif
}

static const struct dt_cpu_half *half, *half_f16;
static pthread_once_t half_once = PTHREAD_ONCE_INIT;

static void choose_half(void)
{
    const struct dt_kernels *k = dt_kernels_cpu(NULL);
    bool avx512 = k == &dt_kernels_table_avx512, avx2 = k == &dt_kernels_table_avx2;
    half = avx512 ? &dt_cpu_half_avx512 : avx2 ? &dt_cpu_half_avx2 : &dt_cpu_half_plain;
    half_f16 = avx512 ? &dt_cpu_half_avx512_f16 : avx2 ? &dt_cpu_half_avx2_f16 : &dt_cpu_half_plain_f16;
}

const struct dt_cpu_half *dt_cpu_half(enum dt_dtype type)
{
    pthread_once(&half_once, choose_half);
    return type == DT_F16 ? half_f16 : half;
}
