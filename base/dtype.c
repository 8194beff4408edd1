#include "base/dtype.h"

#include <string.h>

static const struct {
    const char *name;
    size_t size;
} types[DT_DTYPE_COUNT] = {
    [DT_F32] = {"F32", 4}, [DT_F64] = {"F64", 8}, [DT_BF16] = {"BF16", 2}, [DT_F16] = {"F16", 2},
    [DT_I64] = {"I64", 8}, [DT_I32] = {"I32", 4}, [DT_U16] = {"U16", 2},   [DT_U8] = {"U8", 1},
};

size_t dt_dtype_size(enum dt_dtype type)
{
    return types[type].size;
}

const char *dt_dtype_name(enum dt_dtype type)
{
    return types[type].name;
}

int dt_dtype_parse(const char *name, enum dt_dtype *out)
{
    for (int i = 0; i < DT_DTYPE_COUNT; i++) {
        if (strcmp(types[i].name, name) == 0) {
            *out = (enum dt_dtype)i;
            return 0;
        }
    }
    return -1;
}

enum dt_dtype dt_dtype_wide(enum dt_dtype type)
{
    return type == DT_BF16 || type == DT_F16 ? DT_F32 : type;
}
