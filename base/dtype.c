#include "base/dtype.h"

#include <string.h>

size_t dt_dtype_size(enum dt_dtype type)
{
    switch (type) {
    case DT_F32:
        return 4;
    case DT_F64:
        return 8;
    case DT_BF16:
        return 2;
    case DT_F16:
        return 2;
    case DT_I64:
        return 8;
    case DT_I32:
        return 4;
    case DT_U16:
        return 2;
    case DT_U8:
        return 1;
    case DT_DTYPE_COUNT:
        break;
    }
    return 0;
}

const char *dt_dtype_name(enum dt_dtype type)
{
    switch (type) {
    case DT_F32:
        return "F32";
    case DT_F64:
        return "F64";
    case DT_BF16:
        return "BF16";
    case DT_F16:
        return "F16";
    case DT_I64:
        return "I64";
    case DT_I32:
        return "I32";
    case DT_U16:
        return "U16";
    case DT_U8:
        return "U8";
    case DT_DTYPE_COUNT:
        break;
    }
    return "unknown";
}

int dt_dtype_parse(const char *name, enum dt_dtype *out)
{
    for (enum dt_dtype type = DT_F32; type < DT_DTYPE_COUNT; type++) {
        if (strcmp(dt_dtype_name(type), name) == 0) {
            *out = type;
            return 0;
        }
    }
    return -1;
}

enum dt_dtype dt_dtype_wide(enum dt_dtype type)
{
    return dt_dtype_half(type) ? DT_F32 : type;
}
