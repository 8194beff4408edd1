/* Time: seconds as double on the monotonic clock; wall time for what people read. */
#ifndef DT_BASE_CLOCK_H
#define DT_BASE_CLOCK_H

#include <stddef.h>

/* Monotonic seconds. */
double dt_now_s(void);
/* Wall-clock seconds since 1970. */
double dt_wall_s(void);
/* Sleeps; goes on after signals until the time is over. */
void dt_sleep_s(double seconds);
/* Writes UTC as 2026-01-31T12:34:56.789Z; `out` of at least 32 bytes. */
void dt_wall_text(double wall_s, char *out, size_t out_bytes);

#endif
