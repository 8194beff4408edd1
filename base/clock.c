#include "base/clock.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <time.h>

static double read_clock(clockid_t id)
{
    struct timespec t;
    (void)clock_gettime(id, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double dt_now_s(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

double dt_wall_s(void)
{
    return read_clock(CLOCK_REALTIME);
}

void dt_sleep_s(double seconds)
{
    if (!(seconds > 0)) {
        return;
    }
    struct timespec t = {.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - floor(seconds)) * 1e9)};
    while (nanosleep(&t, &t) != 0 && errno == EINTR) {
    }
}

void dt_wall_text(double wall_s, char *out, size_t out_bytes)
{
    time_t whole = (time_t)floor(wall_s);
    int milliseconds = (int)((wall_s - (double)whole) * 1e3);
    struct tm tm;
    (void)gmtime_r(&whole, &tm);
    char date[24];
    (void)strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &tm);
    (void)snprintf(out, out_bytes, "%s.%03dZ", date, milliseconds);
}
