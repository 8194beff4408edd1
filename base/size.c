/* See the header. */
#include "base/size.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

bool dt_parse_bytes(const char *s, int64_t *out)
{
    static const char *const units[] = {"", "KB", "MB", "GB", "TB"};
    size_t size = strlen(s);
    while (size > 0 && strchr("0123456789.", s[size - 1]) == NULL) {
        size--;
    }
    char *number = dt_format("%.*s", (int)size, s);
    const char *unit = s + size + strspn(s + size, " ");
    double value, factor = 1;
    bool good = size > 0 && dt_parse_double(number, &value);
    free(number);
    for (size_t i = 0; good && i < sizeof units / sizeof units[0]; i++, factor *= 1000) {
        if (strcasecmp(units[i], unit) == 0 && value * factor >= 1 && value * factor < 9e18) {
            *out = (int64_t)(value * factor);
            return true;
        }
    }
    return false;
}
