/* Runs a function in a child process and reports how it ended and what it wrote to stderr. */
#ifndef DT_TESTS_LIB_CHILD_H
#define DT_TESTS_LIB_CHILD_H

#ifdef __cplusplus
extern "C" {
#endif

#define CHILD_TEXT 16384

/* Returns the exit code of fn's process, or -N if signal N ended it. text (CHILD_TEXT bytes) gets
 * the beginning of its stderr. Kills the child after 60 s (600 s in sanitizer builds). */
int child_run(int (*fn)(void), char *text);

/* For use in fn and in functions that it calls: ends the process unless x is true. stderr gets the
 * line and x. The exit code is 1 + line modulo 255, or 1 if that would be SOFTGPU_EXIT. */
#define CHECK(x) ((x) ? (void)0 : child_fail(__LINE__, #x))
void child_fail(int line, const char *what) __attribute__((noreturn));

#ifdef __cplusplus
}
#endif
#endif
