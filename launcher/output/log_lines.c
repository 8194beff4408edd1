/* Splits a stream of bytes into lines, and makes bytes harmless for a terminal. */
#include "launcher/output/log_lines.h"

#include "launcher/options/env.h"

#include <stdio.h>
#include <string.h>

static void finish(struct log_lines *l, log_line_fn *each, void *context)
{
    if (l->cut) {
        dt_text_puts(&l->line, " ... (line cut)");
    }
    each(context, dt_text_str(&l->line), l->line.size);
    dt_text_reset(&l->line);
    l->cut = false;
}

void log_lines_feed(struct log_lines *l, const char *data, size_t size, log_line_fn *each, void *context)
{
    const char *end = data + size;
    while (data < end) {
        const char *p = data;
        while (p < end && *p != '\n' && *p != '\r') {
            p++;
        }
        size_t n = (size_t)(p - data);
        size_t room = LOG_LINE_BYTES - l->line.size;
        if (n > 0) {
            l->after_return = false;
            l->cut = l->cut || n > room;
            dt_text_add(&l->line, data, n < room ? n : room);
        }
        if (p < end && *p == '\n') {
            if (l->line.size > 0 || l->cut || !l->after_return) {
                finish(l, each, context);
            }
            l->after_return = false;
        } else if (p < end) {
            if (l->line.size > 0 || l->cut) {
                finish(l, each, context);
            }
            l->after_return = true;
        }
        data = p < end ? p + 1 : p;
    }
}

void log_lines_end(struct log_lines *l, log_line_fn *each, void *context)
{
    if (l->line.size > 0 || l->cut) {
        finish(l, each, context);
    }
}

void log_lines_clear(struct log_lines *l)
{
    dt_text_clear(&l->line);
    memset(l, 0, sizeof *l);
}

char *log_prefix(const char *template, const char *role, const char *host, const int numbers[4])
{
    static const char *const names[] = {"local_rank", "rank", "group_rank", "world_size"};
    char text[4][16];
    const char *pairs[6][2] = {{"role_name", role}, {"hostname", host}};
    for (int i = 0; i < 4; i++) {
        (void)snprintf(text[i], sizeof text[i], "%d", numbers[i]);
        pairs[2 + i][0] = names[i];
        pairs[2 + i][1] = text[i];
    }
    struct dt_text out;
    dt_text_init(&out);
    env_substitute(&out, template, (const char *const(*)[2])pairs, 6);
    char *prefix = dt_strdup(dt_text_str(&out));
    dt_text_clear(&out);
    return prefix;
}

/* Length of a colour sequence (ESC [ digits ; m) at s; 0 for none. */
static size_t colour(const unsigned char *s, size_t size)
{
    size_t n = 2;
    if (size < 3 || s[0] != 0x1b || s[1] != '[') {
        return 0;
    }
    while (n < size && n < 32 && ((s[n] >= '0' && s[n] <= '9') || s[n] == ';' || s[n] == ':')) {
        n++;
    }
    return n < size && s[n] == 'm' ? n + 1 : 0;
}

void log_safe(struct dt_text *out, const char *data, size_t size, bool colours)
{
    const unsigned char *s = (const unsigned char *)data;
    bool coloured = false;
    for (size_t i = 0; i < size;) {
        size_t n = 0;
        while (i + n < size && ((s[i + n] >= 32 && s[i + n] < 127) || s[i + n] == '\t')) {
            n++;
        }
        if (n > 0) {
            dt_text_add(out, data + i, n);
        } else if ((n = colour(s + i, size - i)) > 0) {
            if (colours) {
                dt_text_add(out, data + i, n);
                coloured = true;
            }
        } else if ((n = dt_text_visible(data + i, size - i)) > 0) {
            dt_text_add(out, data + i, n);
        } else {
            n = 1;
            if (s[i] < 32) {
                dt_text_printf(out, "^%c", s[i] + 64);
            } else {
                dt_text_printf(out, s[i] == 127 ? "^?" : "<%02x>", s[i]);
            }
        }
        i += n;
    }
    if (coloured) {
        dt_text_puts(out, "\033[0m");
    }
}

/* Start of the last `line_count` lines. Carriage returns end lines, too. */
static const char *find_last(const struct dt_text *tail, int line_count)
{
    const char *start = tail->data;
    const char *p = tail->data + tail->size;
    while (p > start && (p[-1] == '\n' || p[-1] == '\r')) {
        p--;
    }
    for (; p > start; p--) {
        bool end = p[-1] == '\n' || (p[-1] == '\r' && p[0] != '\n');
        if (end && --line_count == 0) {
            break;
        }
    }
    return p;
}

int log_last_lines(const struct dt_text *tail, int line_count, struct dt_text *out)
{
    const char *end = tail->data + tail->size;
    int count = 0;
    for (const char *p = find_last(tail, line_count); p < end && count < line_count; count++) {
        const char *q = p;
        while (q < end && *q != '\n' && *q != '\r') {
            q++;
        }
        log_safe(out, p, q - p > 2000 ? 2000 : (size_t)(q - p), false);
        dt_text_puts(out, "\n");
        p = q + 1 < end && q[0] == '\r' && q[1] == '\n' ? q + 2 : q + 1;
        if (p < end && strspn(p, "\r\n") == (size_t)(end - p)) {
            p = end;
        }
    }
    return count;
}
