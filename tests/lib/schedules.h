/* What tests of many schedules share, over the one cluster of cluster.h: how many there are to
 * be, and how one ended. */
#ifndef DT_TESTS_LIB_SCHEDULES_H
#define DT_TESTS_LIB_SCHEDULES_H

#include <stddef.h>

/* The number in a variable (DTRUN_SEED and so on), or the fallback. */
long long schedule_setting(const char *name, long long fallback);
/* Agents of `count` that ended with the code. */
int schedule_count_codes(int count, int code);
/* "no end: ...": everybody's state, of many those who did not end. */
void schedule_list_left(int count, char *out, size_t out_bytes);

#endif
