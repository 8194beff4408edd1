/* What a worker leaves: its error file and its output, from hostile bytes. The report must come,
 * with lines that a terminal can show. */
#include "driver.h"

#include "launcher/output/log_lines.h"
#include "launcher/output/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void check_harmless(const struct dt_text *text)
{
    for (size_t i = 0; i < text->size; i++) {
        unsigned char c = (unsigned char)text->data[i];
        if ((c < 32 && c != '\n' && c != '\t') || c == 127) {
            abort();
        }
    }
}

static void on_line(void *context, const char *line, size_t size)
{
    if (memchr(line, '\n', size) != NULL || memchr(line, '\r', size) != NULL || size > LOG_LINE_BYTES + 32) {
        abort();
    }
    log_safe(context, line, size, false);
}

static void report(const char *path)
{
    struct report_failure f;
    struct dt_text out;
    struct report_context c = {.title = "x.py"};
    dt_text_init(&out);
    report_failure_init(&f);
    f.exit_code = 1;
    f.wall_s = 1795173860.5;
    report_read_error_file(&f, path);
    report_write(&f, 1, report_root(&f, 1), &c, &out);
    check_harmless(&out);
    if (strstr(dt_text_str(&out), "Root Cause (first observed failure):\n[0]:\n") == NULL) {
        abort();
    }
    (void)report_write_parent("/dev/null/no", &f, NULL);
    report_failure_clear(&f);
    dt_text_clear(&out);
}

int dt_fuzz(const uint8_t *data, size_t size)
{
    char path[64];
    int fd = memfd_create("error.json", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) {
        return 0;
    }
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    report(path);
    (void)close(fd);

    struct log_lines lines = {0};
    struct dt_text out;
    struct dt_text tail;
    dt_text_init(&out);
    dt_text_init(&tail);
    for (size_t at = 0; at < size; at += 7) {
        log_lines_feed(&lines, (const char *)data + at, size - at < 7 ? size - at : 7, on_line, &out);
    }
    log_lines_end(&lines, on_line, &out);
    check_harmless(&out);
    dt_text_reset(&out);
    dt_text_add(&tail, data, size);
    if (log_last_lines(&tail, 5, &out) > 5) {
        abort();
    }
    check_harmless(&out);
    dt_text_clear(&tail);
    dt_text_clear(&out);
    log_lines_clear(&lines);
    return 0;
}
