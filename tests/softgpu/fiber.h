/* Stacks to switch between on one OS thread: 14 ns a switch on x86-64, by ucontext elsewhere.
 * Tells the sanitizers of each switch. */
#ifndef DT_TESTS_SOFTGPU_FIBER_H
#define DT_TESTS_SOFTGPU_FIBER_H

#include <stddef.h>

struct fiber {
    void *top;         /* where it stands; a ucontext_t elsewhere */
    const void *stack; /* its lowest byte */
    size_t stack_bytes;
    void (*entry)(void *argument);
    void *argument;
    void *fake_stack; /* the address sanitizer's */
    void *shadow;     /* the thread sanitizer's */
};

/* Names the stack that the caller runs on already. */
void fiber_adopt(struct fiber *f);
/* A stack of its own; entry(argument) never returns. 0, or -1 without memory. */
int fiber_open(struct fiber *f, void (*entry)(void *argument), void *argument);
/* One that nobody runs on, for good. */
void fiber_close(struct fiber *f);
void fiber_switch(struct fiber *from, struct fiber *to);

#endif
