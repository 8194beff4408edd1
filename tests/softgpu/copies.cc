/* The runtime's loops over tensors. Unlike the rest of the runtime they are compiled with all
 * sanitizers. */
#include "tests/softgpu/runtime.h"

#include <string.h>

void softgpu_copy_bytes(void *dst, const void *src, size_t size_bytes)
{
    memmove(dst, src, size_bytes);
}

void softgpu_set_bytes(void *dst, int value, size_t size_bytes)
{
    memset(dst, value, size_bytes);
}
