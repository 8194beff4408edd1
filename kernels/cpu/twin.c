/* The plain twins of every kernel, for float and double: twin.inc included twice. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/plain.h"
#include "kernels/exact.h"

#include <math.h>
#include <string.h>

#define GELU_SCALE 0.79788456080286535588 /* sqrt(2 / pi) */
#define GELU_CUBIC 0.044715

#define REAL float
#define NAME(x) x##_f32
#define TWIN_NAME "twin32"
#include "kernels/cpu/twin.inc"
#undef REAL
#undef NAME
#undef TWIN_NAME

#define REAL double
#define NAME(x) x##_f64
#define TWIN_NAME "twin64"
#include "kernels/cpu/twin.inc"

const struct dt_kernels *dt_kernels_twin(enum dt_dtype type)
{
    return type == DT_F32 ? &table_f32 : type == DT_F64 ? &table_f64 : NULL;
}
