#include "base/log.h"

#include "base/clock.h"
#include "base/text.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void (*_Atomic writer)(const char *line, size_t size);
static struct {
    enum dt_log_level level;
    int rank, fd;
} state = {DT_LOG_WARN, -1, 2}; /* set once at start, before there are other threads */

static const char *name_of(enum dt_log_level level)
{
    switch (level) {
    case DT_LOG_ERROR:
        return "error";
    case DT_LOG_WARN:
        return "warn";
    case DT_LOG_INFO:
        return "info";
    case DT_LOG_DEBUG:
        return "debug";
    }
    return "unknown";
}

int dt_log_parse(const char *name, enum dt_log_level *out)
{
    for (enum dt_log_level level = DT_LOG_ERROR; level <= DT_LOG_DEBUG; level++) {
        if (strcmp(name, name_of(level)) == 0) {
            *out = level;
            return 0;
        }
    }
    return -1;
}

void dt_log_open(enum dt_log_level level, int rank, int fd)
{
    const char *wish = getenv("DTRUN_LOG");
    state.level = level;
    if (wish != NULL) {
        (void)dt_log_parse(wish, &state.level);
    }
    state.rank = rank;
    state.fd = fd;
}

void dt_log_to(void (*write)(const char *line, size_t size))
{
    atomic_store(&writer, write);
}

enum dt_log_level dt_log_level(void)
{
    return state.level;
}

void dt_log(enum dt_log_level level, const char *module, const char *fmt, ...)
{
    if (level > state.level) {
        return;
    }
    int saved = errno;
    char line[1024], when[32], rank[16] = "";
    dt_wall_text(dt_wall_s(), when, sizeof when);
    if (state.rank >= 0) {
        (void)snprintf(rank, sizeof rank, " rank %d", state.rank);
    }
    int used = snprintf(line, sizeof line, "%s %s%s %s: ", when, name_of(level), rank, module);
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(line + used, sizeof line - (size_t)used - 1, fmt, args);
    va_end(args);
    dt_text_make_visible(line, sizeof line - 1);
    size_t size = strlen(line);
    line[size++] = '\n';
    void (*to)(const char *, size_t) = atomic_load(&writer);
    if (to != NULL) {
        to(line, size);
    }
    while (to == NULL && write(state.fd, line, size) < 0 && errno == EINTR) {
    }
    errno = saved;
}
