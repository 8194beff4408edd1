/* Runs a function in a child process and tells how it ended and what it said. */
#ifndef DT_TESTS_UNIT_SUPPORT_CHILD_H
#define DT_TESTS_UNIT_SUPPORT_CHILD_H

#ifdef __cplusplus
extern "C" {
#endif

#define CHILD_TEXT 16384

/* The exit code of fn's process, -N when signal N ended it. text, CHILD_TEXT bytes, gets the beginning of its stderr.
 * Ends the child with SIGKILL after 60 s (600 s in sanitizer builds). */
int child_run(int (*fn)(void), char *text);

#ifdef __cplusplus
}
#endif
#endif
