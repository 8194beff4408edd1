/* Runs a function in a child process and tells how it ended and what it said. */
#ifndef DT_TESTS_LIB_CHILD_H
#define DT_TESTS_LIB_CHILD_H

#ifdef __cplusplus
extern "C" {
#endif

#define CHILD_TEXT 16384

/* The exit code of fn's process, -N when signal N ended it. text, CHILD_TEXT bytes, gets the
 * beginning of its stderr. Ends the child with SIGKILL after 60 s (600 s in sanitizer builds). */
int child_run(int (*fn)(void), char *text);

/* In fn, or what it calls: ends the process unless x. The exit code is 1 + line modulo 255, or 1
 * where that would be SOFTGPU_EXIT; stderr gets line and x. */
#define CHECK(x) ((x) ? (void)0 : child_fail(__LINE__, #x))
void child_fail(int line, const char *what) __attribute__((noreturn));

#ifdef __cplusplus
}
#endif
#endif
