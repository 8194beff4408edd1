/* See the header. */
#include "cmd/dtdata/utf8.h"

#include "worker/data/tokenizers/characters.h"

long long utf8_replace(const char *text, size_t size, struct dt_text *out)
{
    long long count = 0;
    for (size_t at = 0; at < size;) {
        size_t valid = utf8_valid(text + at, size - at);
        dt_text_add(out, text + at, valid);
        at += valid;
        if (at < size) {
            dt_text_puts(out, "\xef\xbf\xbd");
            at += utf8_invalid(text + at, size - at);
            count++;
        }
    }
    return count;
}
