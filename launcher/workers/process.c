/* /proc/PID/stat, wchan and stack. The name in stat may hold anything, blanks and brackets too:
 * fields are counted from the last ')'. */
#include "launcher/workers/process.h"

#include "base/signals.h"

#include <ctype.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { STACK_FRAMES = 5, NAME_BYTES = 48 };

void process_read(const char *path, char *out, size_t out_bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = fd >= 0 ? read(fd, out, out_bytes - 1) : 0;
    if (fd >= 0) {
        (void)close(fd);
    }
    out[size > 0 ? size : 0] = '\0';
}

void process_wishes(const bool handled[65], sigset_t *out)
{
    (void)sigemptyset(out);
    for (int n = 1; n < 65; n++) {
        bool always =
            n == SIGINT || n == SIGTERM || n == SIGHUP || n == SIGQUIT || n == SIGUSR1 || n == SIGUSR2 || n == SIGTSTP;
        if ((always || handled[n]) && dt_signal_wanted(n)) {
            (void)sigaddset(out, n);
        }
    }
}

bool process_numbers_are_ours(void)
{
    char self[32] = "";
    return readlink("/proc/self", self, sizeof self - 1) > 0 && (pid_t)atoi(self) == getpid();
}

bool process_look(pid_t pid, struct process_look *out)
{
    char path[64], text[1024];
    unsigned long long ticks[4];
    long long resident;
    *out = (struct process_look){0};
    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    process_read(path, text, sizeof text);
    const char *end = strrchr(text, ')');
    char state;
    int parent, threads;
    if (end == NULL ||
        sscanf(end + 1, " %c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %llu %llu %*d %*d %d %*d %*u %*u %lld",
               &state, &parent, &ticks[0], &ticks[1], &ticks[2], &ticks[3], &threads, &resident) != 8) {
        return false;
    }
    double tick_s = 1.0 / (double)sysconf(_SC_CLK_TCK);
    *out = (struct process_look){.parent = (pid_t)parent,
                                 .state = state,
                                 .user_s = (double)ticks[0] * tick_s,
                                 .system_s = (double)ticks[1] * tick_s,
                                 .children_s = (double)(ticks[2] + ticks[3]) * tick_s,
                                 .thread_count = threads,
                                 .resident_bytes = (double)resident * (double)sysconf(_SC_PAGESIZE)};
    return true;
}

bool process_ignores(pid_t pid, int n)
{
    char path[64], text[4096];
    unsigned long long mask = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    process_read(path, text, sizeof text);
    const char *line = strstr(text, "\nSigIgn:");
    return line != NULL && sscanf(line, "\nSigIgn: %llx", &mask) == 1 && n >= 1 && n <= 64 &&
           (mask >> (n - 1) & 1) != 0;
}

/* The clock of a process counts nanoseconds where /proc/PID/stat has ticks of 10 ms: a program
 * that writes a line now and then uses much less. */
void process_add_use(pid_t pid, struct process_use *out)
{
    struct process_look look;
    struct timespec used;
    clockid_t clock;
    char path[64], text[512];
    if (!process_look(pid, &look)) {
        return;
    }
    bool exact = clock_getcpuclockid(pid, &clock) == 0 && clock_gettime(clock, &used) == 0;
    out->cpu_s +=
        look.children_s + (exact ? (double)used.tv_sec + (double)used.tv_nsec / 1e9 : look.user_s + look.system_s);
    unsigned long long waited_ns = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/schedstat", (int)pid);
    process_read(path, text, sizeof text);
    if (sscanf(text, "%*u %llu", &waited_ns) == 1) {
        out->waited_s += (double)waited_ns / 1e9;
    }
    (void)snprintf(path, sizeof path, "/proc/%d/io", (int)pid);
    process_read(path, text, sizeof text);
    uint64_t written_bytes = 0;
    const char *line = strstr(text, "wchar: ");
    if (line == NULL || sscanf(line, "wchar: %" SCNu64, &written_bytes) != 1) {
        out->hides_writes = true;
    }
    out->written_bytes += written_bytes;
}

/* Appends the name of a kernel function at `text`, without what follows it; false when there is
 * none, or one that says nothing. */
static bool add_function(const char *before, const char *text, struct dt_text *out)
{
    static const char *const entries[] = {"__switch_to_asm", "do_syscall_64", "entry_SYSCALL_64_after_hwframe",
                                          "el0_svc",         "el0t_64_sync",  "0"};
    size_t n = 0;
    while (isalnum((unsigned char)text[n]) || text[n] == '_' || text[n] == '.') {
        n++;
    }
    /* 0: wchan of a process that runs, or where it is hidden */
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        if (n == strlen(entries[i]) && strncmp(entries[i], text, n) == 0) {
            return false;
        }
    }
    if (n > 0) {
        dt_text_puts(out, before);
        dt_text_add(out, text, n < NAME_BYTES ? n : NAME_BYTES);
    }
    return n > 0;
}

size_t process_where_text(const char *wchan, const char *stack, const char *call, struct dt_text *out)
{
    size_t before = out->size;
    bool known = add_function("", wchan, out);
    size_t place = out->size - before;
    int count = 0;
    /* [<0>] futex_wait_queue+0x5f/0x90 */
    for (const char *line = stack; *line != '\0' && count < STACK_FRAMES;) {
        const char *end = line + strcspn(line, "\n");
        const char *name = memmem(line, (size_t)(end - line), "] ", 2);
        if (name != NULL) {
            count += add_function(count > 0 ? " < " : known ? "; kernel stack: " : "kernel stack: ", name + 2, out);
        }
        line = end + (*end != '\0');
    }
    /* "202 0x7f... ": its number; "running" while it computes */
    if (!known && count == 0 && isdigit((unsigned char)call[0])) {
        dt_text_printf(out, "system call %.*s", (int)strspn(call, "0123456789"), call);
        place = out->size - before;
    }
    return place;
}

size_t process_where(pid_t pid, struct dt_text *out)
{
    char path[64], wchan[256], stack[4096], call[256];
    (void)snprintf(path, sizeof path, "/proc/%d/wchan", (int)pid);
    process_read(path, wchan, sizeof wchan);
    (void)snprintf(path, sizeof path, "/proc/%d/stack", (int)pid); /* root's alone */
    process_read(path, stack, sizeof stack);
    (void)snprintf(path, sizeof path, "/proc/%d/syscall", (int)pid);
    process_read(path, call, sizeof call);
    return process_where_text(wchan, stack, call, out);
}
