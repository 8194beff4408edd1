/* Requests to the metrics endpoint, which anybody may send, as they come in: more bytes take no
 * verdict back, and nothing is answered before a line has ended. */
#include "driver.h"

#include "launcher/query/exporter.h"

#include <stdlib.h>
#include <string.h>

int dt_fuzz(const uint8_t *data, size_t size)
{
    enum exporter_request before = EXPORTER_MORE;
    for (size_t n = 1; n <= size && n <= 300; n++) {
        char *exact = malloc(n); /* so that a look beyond is seen */
        if (exact == NULL) {
            return 0;
        }
        memcpy(exact, data, n);
        enum exporter_request now = exporter_read(exact, n);
        if ((before != EXPORTER_MORE && now != before) || (now > EXPORTER_GARBAGE && memchr(exact, '\n', n) == NULL)) {
            abort();
        }
        before = now;
        free(exact);
    }
    (void)exporter_read((const char *)data, size);
    return 0;
}
