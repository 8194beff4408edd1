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
    double cpu_s;           /* of all threads, those that have ended too, and of children that
                             * were waited for (these in ticks of the kernel) */
    double waited_s;        /* of their main threads: ready to compute, but others had the CPU; 0
                             * where the kernel does not say */
    uint64_t written_bytes; /* to files, pipes and terminals, by write and its kin: Linux's wchar */
    bool hides_writes;      /* of one of them at least we may not read what it has written, or
                             * the kernel does not count it */
};

/* The signals by which others may ask for something: INT, TERM, HUP, QUIT, USR1, USR2, TSTP and
 * handled[n], without those that are not ours (base/signals.h). */
void process_wishes(const bool handled[65], sigset_t *out);
/* Whether /proc numbers processes as we do: not where it is missing (a chroot), or still that of
 * the PID namespace around ours. */
bool process_numbers_are_ours(void);
/* False (out zeroed) when there is no such process. */
bool process_look(pid_t pid, struct process_look *out);
/* The process ignores signal n. */
bool process_ignores(pid_t pid, int n);
/* Adds what a process has used; nothing when there is none. */
void process_add_use(pid_t pid, struct process_use *out);
/* Appends where its main thread is in the kernel, as far as we may read it: "futex_wait_queue",
 * "; kernel stack: futex_wait_queue < futex_wait < do_futex", or "system call 202". Nothing when
 * the kernel does not say, or the process computes. Returns the bytes of the place alone, which go
 * before the kernel's stack; 0: only that is known. */
size_t process_where(pid_t pid, struct dt_text *out);
/* The same of what the three files of /proc hold. */
size_t process_where_text(const char *wchan, const char *stack, const char *call, struct dt_text *out);
/* Reads a small file whole, as text; empty when it cannot be read. */
void process_read(const char *path, char *out, size_t out_bytes);

#endif
