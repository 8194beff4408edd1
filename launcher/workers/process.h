/* What the kernel tells of processes: state, time used, where they wait. Reads small files of
 * /proc; a process that has gone meanwhile is no error. */
#ifndef DT_LAUNCHER_WORKERS_PROCESS_H
#define DT_LAUNCHER_WORKERS_PROCESS_H

#include "base/text.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct process_look {
    pid_t parent;
    char state;              /* as ps shows it: R, S, D (in the kernel, deaf to signals), T
                              * (stopped), t, Z */
    double user_s, system_s; /* used so far by all its threads */
    double children_s;       /* by children that it has waited for */
    int thread_count;
    double resident_bytes;
};

/* sums over processes */
struct process_use {
    /* of all threads, including ended ones, and of children that were waited for (those in ticks of
     * the kernel) */
    double cpu_s;
    /* time in which their main threads were ready but had no CPU; 0 if the kernel does not tell */
    double waited_s;
    /* written to files, pipes and terminals, by write and similar calls (wchar in Linux) */
    uint64_t written_bytes;
    /* for at least one process we may not read the count, or the kernel does not count */
    bool hides_writes;
};

/* The signals with which others may request something: INT, TERM, HUP, QUIT, USR1, USR2, TSTP and
 * handled[n], without those reserved for others (base/signals.h). */
void process_wishes(const bool handled[65], sigset_t *out);
/* Whether /proc uses our process numbers. It does not if it is missing (a chroot), or still belongs
 * to the PID namespace around ours. */
bool process_numbers_are_ours(void);
/* False (out zeroed) when there is no such process. */
bool process_look(pid_t pid, struct process_look *out);
/* The process ignores signal n. */
bool process_ignores(pid_t pid, int n);
/* Adds what a process has used; nothing if the process is gone. */
void process_add_use(pid_t pid, struct process_use *out);
/* Appends where the main thread waits in the kernel, as far as we may read it: "futex_wait_queue",
 * "; kernel stack: futex_wait_queue < futex_wait < do_futex", or "system call 202". Appends nothing
 * if the kernel does not tell, or the process computes. Returns the size of the first part, the
 * place before the kernel stack; 0: only the rest is known. */
size_t process_where(pid_t pid, struct dt_text *out);
/* The same for the content of the three files in /proc. */
size_t process_where_text(const char *wchan, const char *stack, const char *call, struct dt_text *out);
/* Reads a small file whole, as text; empty when it cannot be read. */
void process_read(const char *path, char *out, size_t out_bytes);

#endif
