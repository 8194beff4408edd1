/* Switching stacks, with the calls that each sanitizer wants around it. */
#include "tests/softgpu/fiber.h"

#include "tests/softgpu/sanitize.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#define STACK_BYTES ((size_t)256 << 10)
/* Stacks lie a power of two apart. Were their tops in use at the same offset, too, all would share
 * one set of each cache, and every switch would miss it. */
#define SHIFT_BYTES ((size_t)448)
#define SHIFTS ((size_t)64 << 10)

#if defined(__x86_64__)

extern "C" void softgpu_switch(void **save, void *load);
/* Saves what the calling convention keeps, takes the other stack, returns there. */
__asm__(".text\n"
        ".globl softgpu_switch\n"
        ".type softgpu_switch, @function\n"
        "softgpu_switch:\n"
        "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n    pushq %r13\n    pushq %r14\n    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n    popq %r14\n    popq %r13\n    popq %r12\n    popq %rbx\n    popq %rbp\n"
        "    ret\n"
        ".size softgpu_switch, .-softgpu_switch\n");

static __thread struct fiber *starting;

#else
#include <ucontext.h>
static __thread struct fiber *starting;
#endif

static void begin_switch(struct fiber *from, struct fiber *to)
{
    (void)from, (void)to;
#ifdef SOFTGPU_ASAN
    __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->stack_bytes);
#endif
#ifdef SOFTGPU_MSAN
    __msan_start_switch_fiber(to->stack, to->stack_bytes);
#endif
#ifdef SOFTGPU_TSAN
    __tsan_switch_to_fiber(to->shadow, 1);
#endif
}

/* On the new stack; fake: what begin_switch stored when this fiber was left. */
static void end_switch(void *fake)
{
    (void)fake;
#ifdef SOFTGPU_ASAN
    const void *bottom = nullptr;
    size_t bytes = 0;
    __sanitizer_finish_switch_fiber(fake, &bottom, &bytes);
#endif
#ifdef SOFTGPU_MSAN
    const void *bottom = nullptr;
    size_t bytes = 0;
    __msan_finish_switch_fiber(&bottom, &bytes);
#endif
}

static void first_entry(void)
{
    struct fiber *f = starting;
    end_switch(nullptr);
    f->entry(f->argument);
    abort();
}

void fiber_adopt(struct fiber *f)
{
    *f = {};
    pthread_attr_t attr;
    void *low = nullptr;
    pthread_getattr_np(pthread_self(), &attr);
    pthread_attr_getstack(&attr, &low, &f->stack_bytes);
    pthread_attr_destroy(&attr);
    f->stack = low;
#ifdef SOFTGPU_TSAN
    f->shadow = __tsan_get_current_fiber();
#endif
#if !defined(__x86_64__)
    f->top = calloc(1, sizeof(ucontext_t));
#endif
}

int fiber_open(struct fiber *f, void (*entry)(void *argument), void *argument)
{
    *f = {};
    char *stack = (char *)mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (stack == MAP_FAILED) {
        return -1;
    }
    mprotect(stack, 4096, PROT_NONE);
    f->stack = stack;
    f->stack_bytes = STACK_BYTES;
    f->entry = entry;
    f->argument = argument;
#ifdef SOFTGPU_TSAN
    f->shadow = __tsan_create_fiber(0);
#endif
#if defined(__x86_64__)
    static __thread size_t opened;
    void **top = (void **)(stack + STACK_BYTES - opened++ * SHIFT_BYTES % SHIFTS / 64 * 64);
    *--top = nullptr;             /* a return address would stand here: rsp is 8 mod 16 at entry */
    *--top = (void *)first_entry; /* what the switch returns to */
    for (int i = 0; i < 6; i++) {
        *--top = nullptr;
    }
    f->top = top;
#else
    ucontext_t *c = (ucontext_t *)calloc(1, sizeof *c);
    getcontext(c);
    c->uc_stack.ss_sp = stack;
    c->uc_stack.ss_size = STACK_BYTES;
    makecontext(c, first_entry, 0);
    f->top = c;
#endif
    return 0;
}

void fiber_close(struct fiber *f)
{
#ifdef SOFTGPU_TSAN
    __tsan_destroy_fiber(f->shadow);
#endif
#if !defined(__x86_64__)
    free(f->top);
#endif
    asan_unpoison(f->stack, f->stack_bytes);
    munmap((void *)f->stack, f->stack_bytes);
    *f = {};
}

void fiber_switch(struct fiber *from, struct fiber *to)
{
    starting = to;
    begin_switch(from, to);
#if defined(__x86_64__)
    softgpu_switch(&from->top, to->top);
#else
    swapcontext((ucontext_t *)from->top, (ucontext_t *)to->top);
#endif
    end_switch(from->fake_stack);
}
