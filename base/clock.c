#include "base/clock.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>

#define LONGEST_S 9e9

_Static_assert(sizeof(time_t) >= 8, "it holds LONGEST_S");

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

struct timespec dt_timespec(double seconds)
{
    if (!(seconds > 0)) {
        return (struct timespec){0};
    }
    double bounded = fmin(seconds, LONGEST_S), whole = floor(bounded);
    return (struct timespec){.tv_sec = (time_t)whole, .tv_nsec = (long)((bounded - whole) * 1e9)};
}

uint64_t dt_milliseconds(double seconds)
{
    return seconds > 0 ? (uint64_t)(fmin(seconds, LONGEST_S) * 1e3) + 1 : 1;
}

void dt_sleep_s(double seconds)
{
    if (!(seconds > 0)) {
        return;
    }
    struct timespec t = dt_timespec(seconds);
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
