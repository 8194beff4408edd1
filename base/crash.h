/* The last words of a process that crashes: the signal, the address and the calls that led
 * there, on stderr and in its log. Then it dies of the signal as it would have: exit status,
 * core file and debuggers see no difference. */
#ifndef DT_BASE_CRASH_H
#define DT_BASE_CRASH_H

/* For SEGV, ABRT, BUS, ILL and FPE from now on; `who` begins the lines ("train: rank 3").
 * Signals that are ignored or already handled stay so. Nothing in builds with sanitizers, which
 * have their own. */
void dt_crash_open(const char *who);
/* The lines also go to the end of this file, if it can be opened then. Null: no longer. One per
 * process; nothing before dt_crash_open, so that ranks which are threads need not agree. */
void dt_crash_log(const char *path);

#endif
