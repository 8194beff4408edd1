/* A second begins with the first byte after the last one, so a silent stream costs nothing. */
#include "launcher/output/log_rate.h"

#include "base/text.h"

#include <stdio.h>
#include <string.h>

#define FLOOD_BYTES ((size_t)64 << 20) /* per second */
#define FLOOD_LINES ((size_t)500000)
#define AGAIN_S 60.0

bool log_rate_add(struct log_rate *r, const char *data, size_t size, double now_s, char *out, size_t out_bytes)
{
    bool flood = false;
    double passed_s = now_s - r->since_s;
    if (r->since_s > 0 && passed_s >= 1) {
        double bytes_s = (double)r->bytes / passed_s, lines_s = (double)r->line_count / passed_s;
        flood = (bytes_s >= (double)FLOOD_BYTES || lines_s >= (double)FLOOD_LINES) &&
                (r->told_s <= 0 || now_s - r->told_s >= AGAIN_S);
        if (flood) {
            char shown[32];
            (void)snprintf(out, out_bytes, "%s and %.0f lines a second", dt_text_bytes(bytes_s, shown, sizeof shown),
                           lines_s);
            r->told_s = now_s;
        }
        r->since_s = 0;
    }
    if (r->since_s <= 0) {
        r->since_s = now_s;
        r->bytes = r->line_count = 0;
    }
    r->bytes += size;
    for (const char *end = data + size; (data = memchr(data, '\n', (size_t)(end - data))) != NULL; data++) {
        r->line_count++;
    }
    return flood;
}
