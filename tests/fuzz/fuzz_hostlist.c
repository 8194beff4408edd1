/* Lists of hosts from hostile bytes, by every reader: bounded, names that are host names, nothing left after a refusal; what was read
 * reads again as the same list. */
#include "driver.h"

#include "base/text.h"
#include "launcher/hostlist.h"

#include <stdlib.h>
#include <string.h>

static void check(const struct hostlist *l)
{
    struct hostlist again;
    struct dt_text text;
    hostlist_init(&again);
    dt_text_init(&text);
    for (size_t i = 0; i < l->count; i++) {
        const char *name = l->hosts[i].name;
        if (name[0] == '\0' || name[0] == '-' || strlen(name) > HOSTLIST_MAX_NAME || strpbrk(name, " ,\n[]$`;") != NULL || l->hosts[i].slots < 0 ||
            l->hosts[i].slots > HOSTLIST_MAX_SLOTS) {
            abort();
        }
        dt_text_printf(&text, "%s%s", i > 0 ? "," : "", name);
    }
    if (l->count > 0 && l->count <= HOSTLIST_MAX_HOSTS) {
        if (hostlist_read_slurm(&again, dt_text_str(&text), NULL) != 0 || again.count != l->count ||
            strcmp(again.hosts[l->count - 1].name, l->hosts[l->count - 1].name) != 0 || hostlist_find(l, again.hosts[0].name) != 0) {
            abort();
        }
    } else {
        abort();
    }
    dt_text_clear(&text);
    hostlist_clear(&again);
}

int dt_fuzz(const uint8_t *data, size_t size)
{
    static int (*const readers[])(struct hostlist *, const char *, struct dt_error *) = {hostlist_read_slurm, hostlist_read_words,
                                                                                         hostlist_read_hostfile};
    struct dt_text text;
    dt_text_init(&text);
    dt_text_add(&text, data, size);
    for (size_t i = 0; i < sizeof readers / sizeof readers[0]; i++) {
        struct hostlist l;
        struct dt_error err = {0};
        hostlist_init(&l);
        if (readers[i](&l, dt_text_str(&text), &err) == 0) {
            check(&l);
        } else if (err.status != DT_INVALID || l.count != 0 || l.hosts != NULL) {
            abort();
        }
        hostlist_clear(&l);
    }
    for (int i = 0; i < 3; i++) {
        if (hostlist_count_at(dt_text_str(&text), i) < -1) {
            abort();
        }
    }
    dt_text_clear(&text);
    return 0;
}
