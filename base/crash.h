/* Reports the crash of a process: the signal, the address, and the calls that led there, on stderr
 * and in its log. Then the process dies of the signal as it would without us, with the same exit
 * status, core file and debugger events. */
#ifndef DT_BASE_CRASH_H
#define DT_BASE_CRASH_H

/* Handles SEGV, ABRT, BUS, ILL and FPE from now on. `who` begins the lines ("train: rank 3").
 * Signals that are ignored or already handled are left alone. Does nothing in builds with
 * sanitizers, which have their own reports. */
void dt_crash_open(const char *who);
/* Also appends the lines to this file, if it can be opened at the crash. Null: no longer. One
 * file per process. Ignored before dt_crash_open, so that ranks which are threads need not agree
 * on one. */
void dt_crash_log(const char *path);

#endif
