/* The handler runs on a stack of its own, because the usual one may have overflowed. It makes only
 * calls that are allowed in a handler. backtrace() is one of them once its library is loaded, so
 * dt_crash_open calls it once. */
#include "base/crash.h"

#include <execinfo.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>

enum {
    FRAMES = 48,
    STACK_BYTES = 64 * 1024,
    PERHAPS = 128,
    OWN_FRAMES = 2,        /* the handler's frame, and that of the return from the signal */
    LEAST_OURS = 3,        /* with fewer frames of this program, the unwinder was stopped early */
    SCAN_BYTES = 64 * 1024 /* of the stack to search */
};
/* A stack pointer farther below the main thread's first frames does not point to its stack. */
#define STACK_MOST_BYTES ((uintptr_t)64 << 20)

static char name[64];
static char log_path[PATH_MAX];
static atomic_int crashing;
static _Alignas(16) char stack[STACK_BYTES];
/* the end of the main thread's stack, or of its page at the call of dt_crash_open */
static uintptr_t main_top;

/* A line, written by one call, because other ranks write to the same pipe. */
struct line {
    char text[256];
    size_t size;
};

static void add(struct line *line, const char *text)
{
    size_t size = strlen(text), room = sizeof line->text - line->size;
    size = size < room ? size : room;
    memcpy(line->text + line->size, text, size);
    line->size += size;
}

static void add_hex(struct line *line, unsigned long value)
{
    char text[2 + 2 * sizeof value + 1] = "0x";
    size_t n = 2;
    for (int shift = (int)(8 * sizeof value) - 4; shift >= 0; shift -= 4) {
        unsigned digit = (unsigned)(value >> shift) & 15;
        if (digit != 0 || n > 2 || shift == 0) {
            text[n++] = "0123456789abcdef"[digit];
        }
    }
    text[n] = '\0';
    add(line, text);
}

static void put(int fd, const struct line *line)
{
    (void)!write(fd, line->text, line->size);
}

static bool is_ours(uintptr_t address)
{
    extern const char __executable_start, etext; /* defined by the linker */
    return address > (uintptr_t)&__executable_start && address < (uintptr_t)&etext;
}

/* Finds return addresses into this program on the stack, in case the unwinder stopped early. It
 * stops at code generated at run time (matrix products) and in the kernel's page (clocks). Some
 * addresses may be left from calls that have ended. Generated code may use the stack pointer for
 * something else; then the main thread's stack is searched from its top. Returns the number of
 * addresses, innermost first. */
static int scan_stack(const ucontext_t *at, void **out)
{
#if defined(__x86_64__)
    uintptr_t sp = (uintptr_t)at->uc_mcontext.gregs[REG_RSP];
#elif defined(__aarch64__)
    uintptr_t sp = (uintptr_t)at->uc_mcontext.sp;
#else
    uintptr_t sp = 0;
#endif
    static uintptr_t words[SCAN_BYTES / sizeof(uintptr_t)];
    enum { PIECE = 4096 };
    bool elsewhere = gettid() == getpid() && main_top != 0 && (sp >= main_top || main_top - sp > STACK_MOST_BYTES);
    size_t size = 0;
    int count = 0, found = 0;
    sp = elsewhere ? main_top - sizeof words : sp;
    /* read through the kernel, which fails at the end of the stack */
    while (sp != 0 && size + PIECE <= sizeof words) {
        struct iovec to = {(char *)words + size, PIECE}, from = {(void *)(sp + size), PIECE};
        ssize_t got = process_vm_readv(getpid(), &to, 1, &from, 1, 0);
        if (got <= 0) {
            break;
        }
        size += (size_t)got;
        if (got < PIECE) {
            break;
        }
    }
    for (size_t i = 0; i < size / sizeof *words; i++) {
        found += is_ours(words[i]);
    }
    /* keep the outer ones, whose calls have not ended */
    int skip = elsewhere && found > PERHAPS ? found - PERHAPS : 0;
    for (size_t i = 0; i < size / sizeof *words && count < PERHAPS; i++) {
        if (is_ours(words[i]) && skip-- <= 0) {
            out[count++] = (void *)words[i];
        }
    }
    return count;
}

static void write_report(int fd, int number, const siginfo_t *info, void *const *frames, int count,
                         void *const *perhaps, int perhaps_count)
{
    const char *word = sigabbrev_np(number);
    struct line first = {.size = 0};
    add(&first, name);
    add(&first, ": crashed: SIG");
    add(&first, word != NULL ? word : "?");
    if (info->si_code > 0 && number != SIGABRT) {
        add(&first, " at address ");
        add_hex(&first, (unsigned long)info->si_addr);
    } else {
        add(&first, ", sent by a process");
    }
    add(&first, "; the calls that led there:\n");
    put(fd, &first);
    backtrace_symbols_fd(frames, count, fd);
    if (perhaps_count > 0) {
        struct line next = {.size = 0};
        add(&next, "from code that cannot be followed back; on its stack, perhaps these:\n");
        put(fd, &next);
        backtrace_symbols_fd(perhaps, perhaps_count, fd);
    }
}

static void on_crash(int number, siginfo_t *info, void *context)
{
    void *frames[FRAMES], *perhaps[PERHAPS];
    if (atomic_exchange(&crashing, 1) == 0) { /* only the first of several threads reports */
        int count = backtrace(frames, FRAMES), skip = count > OWN_FRAMES ? OWN_FRAMES : 0;
        int ours = 0;
        for (int i = skip; i < count; i++) {
            ours += is_ours((uintptr_t)frames[i]);
        }
        int more = ours < LEAST_OURS ? scan_stack(context, perhaps) : 0;
        write_report(STDERR_FILENO, number, info, frames + skip, count - skip, perhaps, more);
        int fd = log_path[0] != '\0'
                     ? open(log_path, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644)
                     : -1;
        if (fd >= 0) {
            write_report(fd, number, info, frames + skip, count - skip, perhaps, more);
        }
    }
    (void)raise(number); /* because of SA_RESETHAND, the default action follows when we return */
}

void dt_crash_open(const char *who)
{
#ifndef DT_SANITIZED
    static const int numbers[] = {SIGSEGV, SIGABRT, SIGBUS, SIGILL, SIGFPE};
    void *frames[2];
    (void)snprintf(name, sizeof name, "%s", who);
    (void)backtrace(frames, 2);
    main_top = gettid() == getpid() ? ((uintptr_t)__builtin_frame_address(0) | 4095) + 1 : 0;
    stack_t own = {.ss_sp = stack, .ss_size = sizeof stack};
    (void)sigaltstack(&own, NULL);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct sigaction now,
            ours = {.sa_sigaction = on_crash, .sa_flags = SA_SIGINFO | SA_ONSTACK | (int)SA_RESETHAND};
        (void)sigemptyset(&ours.sa_mask);
        if (sigaction(numbers[i], NULL, &now) == 0 && now.sa_handler == SIG_DFL) {
            (void)sigaction(numbers[i], &ours, NULL);
        }
    }
#else
    (void)who;
    (void)on_crash;
    (void)stack;
#endif
}

void dt_crash_log(const char *path)
{
    char whole[PATH_MAX];
    if (name[0] == '\0') {
        return;
    }
    log_path[0] = '\0';
    /* make it absolute: the working folder may change */
    if (path != NULL && path[0] != '/' && getcwd(whole, sizeof whole) != NULL) {
        size_t n = strlen(whole);
        if (snprintf(whole + n, sizeof whole - n, "/%s", path) < (int)(sizeof whole - n)) {
            (void)strcpy(log_path, whole);
        }
    } else if (path != NULL && strlen(path) < sizeof log_path) {
        (void)strcpy(log_path, path);
    }
}
