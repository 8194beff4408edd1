/* What agents say to each other, from hostile bytes: refused, or exactly what we would send for what was understood. */
#include "driver.h"

#include "launcher/message.h"

#include <stdlib.h>
#include <string.h>

int dt_fuzz(const uint8_t *data, size_t size)
{
    static struct message m;
    struct dt_error err;
    struct dt_text again = {0};
    if (message_decode(&m, data, size, &err) != 0) {
        return 0;
    }
    message_encode(&m, &again);
    if (again.size != size || memcmp(again.data, data, size) != 0) {
        abort(); /* two encodings of one message */
    }
    dt_text_clear(&again);
    return 0;
}
