/* Few dozen lines per rank, so a name is looked for from the beginning. */
#include "cmd/doctor/facts.h"

#include <stdio.h>
#include <string.h>

void facts_init(struct facts *f)
{
    dt_text_init(&f->lines);
}

void facts_clear(struct facts *f)
{
    dt_text_clear(&f->lines);
}

void facts_set(struct facts *f, const char *name, const char *fmt, ...)
{
    va_list args;
    dt_text_printf(&f->lines, "%s ", name);
    size_t begin = f->lines.size;
    va_start(args, fmt);
    dt_text_vprintf(&f->lines, fmt, args);
    va_end(args);
    for (size_t i = begin; i < f->lines.size; i++) {
        if (f->lines.data[i] == '\n' || f->lines.data[i] == '\0') {
            f->lines.data[i] = ' ';
        }
    }
    dt_text_puts(&f->lines, "\n");
}

void facts_add(struct facts *f, const char *lines)
{
    dt_text_puts(&f->lines, lines);
}

const char *facts_get(const struct facts *f, const char *name, char *out, size_t out_bytes)
{
    size_t n = strlen(name);
    out[0] = '\0';
    for (const char *line = dt_text_str(&f->lines); *line != '\0';) {
        size_t size = strcspn(line, "\n");
        if (size > n && strncmp(line, name, n) == 0 && line[n] == ' ') {
            (void)snprintf(out, out_bytes, "%.*s", (int)(size - n - 1), line + n + 1);
            return out;
        }
        line += size + (line[size] == '\n');
    }
    return NULL;
}

double facts_number(const struct facts *f, const char *name, double fallback)
{
    char text[64];
    double value;
    return facts_get(f, name, text, sizeof text) != NULL && dt_parse_double(text, &value) ? value : fallback;
}
