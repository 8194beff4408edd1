/* Element types, with the names of safetensors. */
#ifndef DT_BASE_DTYPE_H
#define DT_BASE_DTYPE_H

#include <stdbool.h>
#include <stddef.h>

enum dt_dtype { DT_F32, DT_F64, DT_BF16, DT_F16, DT_I64, DT_I32, DT_U16, DT_U8, DT_DTYPE_COUNT };

size_t dt_dtype_size(enum dt_dtype type);      /* bytes per element */
const char *dt_dtype_name(enum dt_dtype type); /* "F32" */
/* type of sums, statistics and master copies of tensors of this type: F32 for BF16 and F16, else
 * the same type */
enum dt_dtype dt_dtype_wide(enum dt_dtype type);
/* BF16 or F16: computed with in F32, and rounded when it is stored */
static inline bool dt_dtype_half(enum dt_dtype type)
{
    return type == DT_BF16 || type == DT_F16;
}
int dt_dtype_parse(const char *name, enum dt_dtype *out); /* -1: unknown */

#endif
