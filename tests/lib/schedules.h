/* Shared by tests that run many schedules on the cluster of cluster.h: how many to run, and how one
 * ended. */
#ifndef DT_TESTS_LIB_SCHEDULES_H
#define DT_TESTS_LIB_SCHEDULES_H

#include <stddef.h>

/* The number in an environment variable (DTRUN_SEED and so on), or the fallback. */
long long schedule_setting(const char *name, long long fallback);
/* How many of `count` agents ended with the code. */
int schedule_count_codes(int count, int code);
/* Writes "no end: ..." and the state of all agents; with many agents, of those that did not end. */
void schedule_list_left(int count, char *out, size_t out_bytes);

#endif
