/* Copies past the processor's cache, for much memory that is not read soon: a usual store first fetches the
 * cache line that it writes, which takes a third of such a copy's time. Places may be unaligned. */
#ifndef DT_KERNELS_CPU_PAST_CACHE_H
#define DT_KERNELS_CPU_PAST_CACHE_H

#include <stddef.h>
#include <stdint.h>

/* Less than this is better copied through the cache. */
enum { DT_PAST_CACHE_BYTES = 256 << 10 };

/* The two places do not overlap. */
void dt_copy_past_cache(void *to, const void *from, size_t size_bytes);
/* `count` BF16 at `from` become floats. */
void dt_widen_past_cache(float *to, const void *from, int64_t count);

#endif
