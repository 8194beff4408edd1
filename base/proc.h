/* Facts of this machine and of processes, from small files of the kernel in /proc and /sys. A
 * file that is missing, or a process that has gone meanwhile, is no error. */
#ifndef DT_BASE_PROC_H
#define DT_BASE_PROC_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum { DT_PROC_NAME_BYTES = 64, DT_BOOT_ID_BYTES = 40 };

/* Reads a small file whole, as text; empty when it cannot be read. */
void dt_proc_read(const char *path, char *out, size_t out_bytes);
/* The number behind `key` at the beginning of a line ("MemTotal:"; "": of the file), times 1024
 * where its unit is kB. -1: there is none. */
double dt_proc_number(const char *path, const char *key);
/* The boot's id, the same for all containers of a machine; "" where it is not known. Returns
 * out. */
char *dt_proc_boot_id(char out[DT_BOOT_ID_BYTES]);

struct dt_proc_look {
    pid_t parent;
    char state;              /* as ps shows it: R, S, D (in the kernel, deaf to signals), T
                              * (stopped), t, Z */
    double user_s, system_s; /* used so far by all its threads */
    double children_s;       /* by children that it has waited for */
    int thread_count;
    double resident_bytes;
};

/* False (out zeroed) when there is no such process. */
bool dt_proc_look(pid_t pid, struct dt_proc_look *out);
/* The name that a process has chosen, made harmless; "" when there is no such process. Returns
 * out. */
char *dt_proc_name(pid_t pid, char out[DT_PROC_NAME_BYTES]);

#endif
