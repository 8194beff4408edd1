/* Time in seconds as double on the monotonic clock; wall-clock time for people. */
#ifndef DT_BASE_CLOCK_H
#define DT_BASE_CLOCK_H

#include <stddef.h>
#include <time.h>

/* Monotonic seconds. */
double dt_now_s(void);
/* Wall-clock seconds since 1970. */
double dt_wall_s(void);
/* Converts seconds, a span or a time of one of these clocks, for system calls that wait. Rounds
 * down to nanoseconds, so tv_nsec is 0 .. 999999999. Negative numbers and NaN become 0, which ends
 * a wait at once. The limit is 9e9 (285 years, also for infinity), because the kernel's 64-bit
 * nanoseconds hold no more. */
struct timespec dt_timespec(double seconds);
/* Sleeps; goes on after signals until the time is over. */
void dt_sleep_s(double seconds);
/* Writes UTC as 2026-01-31T12:34:56.789Z; `out` has at least 32 bytes. */
void dt_wall_text(double wall_s, char *out, size_t out_bytes);

#endif
