#include "base/proc.h"

#include "base/file.h"
#include "base/text.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void dt_proc_read(const char *path, char *out, size_t out_bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = fd >= 0 ? read(fd, out, out_bytes - 1) : 0;
    if (fd >= 0) {
        (void)close(fd);
    }
    out[size > 0 ? size : 0] = '\0';
}

double dt_proc_number(const char *path, const char *key)
{
    struct dt_text text;
    double found = -1;
    dt_text_init(&text);
    char *rest = dt_file_read(path, 1 << 20, &text, NULL) == 0 ? text.data : NULL;
    for (const char *line; found < 0 && (line = strsep(&rest, "\n")) != NULL;) {
        char unit[4] = "";
        if (strncmp(line, key, strlen(key)) == 0 && sscanf(line + strlen(key), "%lf %3s", &found, unit) == 2 &&
            strcmp(unit, "kB") == 0) {
            found *= 1024;
        }
        if (*key == '\0') {
            break;
        }
    }
    dt_text_clear(&text);
    return found >= 0 ? found : -1;
}

char *dt_proc_boot_id(char out[DT_BOOT_ID_BYTES])
{
    dt_proc_read("/proc/sys/kernel/random/boot_id", out, DT_BOOT_ID_BYTES);
    out[strcspn(out, "\n")] = '\0';
    return out;
}

/* The name in /proc/PID/stat may hold anything, blanks and brackets too: fields are counted from
 * the last ')'. */
bool dt_proc_look(pid_t pid, struct dt_proc_look *out)
{
    char path[64], text[1024];
    unsigned long long ticks[4];
    long long resident;
    *out = (struct dt_proc_look){0};
    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    dt_proc_read(path, text, sizeof text);
    const char *end = strrchr(text, ')');
    char state;
    int parent, threads;
    if (end == NULL ||
        sscanf(end + 1, " %c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %llu %llu %*d %*d %d %*d %*u %*u %lld",
               &state, &parent, &ticks[0], &ticks[1], &ticks[2], &ticks[3], &threads, &resident) != 8) {
        return false;
    }
    double tick_s = 1.0 / (double)sysconf(_SC_CLK_TCK);
    *out = (struct dt_proc_look){.parent = (pid_t)parent,
                                 .state = state,
                                 .user_s = (double)ticks[0] * tick_s,
                                 .system_s = (double)ticks[1] * tick_s,
                                 .children_s = (double)(ticks[2] + ticks[3]) * tick_s,
                                 .thread_count = threads,
                                 .resident_bytes = (double)resident * (double)sysconf(_SC_PAGESIZE)};
    return true;
}

char *dt_proc_name(pid_t pid, char out[DT_PROC_NAME_BYTES])
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%d/comm", (int)pid);
    dt_proc_read(path, out, DT_PROC_NAME_BYTES);
    out[strcspn(out, "\n")] = '\0';
    dt_text_make_harmless(out, false);
    return out;
}
