/* Lists of hosts from hostile bytes, by every reader: bounded, names that are host names,
 * nothing left after a refusal; what was read reads again as the same list. */
#include "driver.h"

#include "base/text.h"
#include "launcher/options/hostlist.h"

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
        if (name[0] == '\0' || name[0] == '-' || strlen(name) > HOSTLIST_MAX_NAME ||
            strpbrk(name, " ,\n[]$`;") != NULL || l->hosts[i].slots < 0 || l->hosts[i].slots > HOSTLIST_MAX_SLOTS) {
            abort();
        }
        dt_text_printf(&text, "%s%s", i > 0 ? "," : "", name);
    }
    if (l->count > 0 && l->count <= HOSTLIST_MAX_HOSTS) {
        if (hostlist_read_slurm(&again, dt_text_str(&text), NULL) != 0 || again.count != l->count ||
            strcmp(again.hosts[l->count - 1].name, l->hosts[l->count - 1].name) != 0 ||
            hostlist_find(l, again.hosts[0].name) != 0) {
            abort();
        }
    } else {
        abort();
    }
    dt_text_clear(&text);
    hostlist_clear(&again);
}

/* A filter with hostile bytes, over a fixed list and over one of hostile bytes: what is left are
 * hosts of the list in their order, with slots they have, each once; what one keeps the other
 * leaves out. */
static void filter(const char *list, const char *text)
{
    struct hostlist all, kept[2];
    struct dt_error err;
    int result[2], slots[2] = {0, 0}, whole = 0;
    hostlist_init(&all);
    if (hostlist_read_hostfile(&all, list, &err) != 0) {
        return;
    }
    for (size_t i = 0; i < all.count; i++) {
        whole += all.hosts[i].slots;
    }
    for (int exclude = 0; exclude < 2; exclude++) {
        hostlist_init(&kept[exclude]);
        if (hostlist_read_hostfile(&kept[exclude], list, &err) != 0) {
            abort();
        }
        result[exclude] = hostlist_filter(&kept[exclude], text, exclude != 0, &err);
        size_t at = 0;
        for (size_t i = 0; result[exclude] == 0 && i < kept[exclude].count; i++, at++) {
            const struct hostlist_host *h = &kept[exclude].hosts[i];
            for (; at < all.count && strcmp(all.hosts[at].name, h->name) != 0; at++) {
            }
            if (at == all.count || h->slots > all.hosts[at].slots || (h->chosen != NULL && h->slots == 0)) {
                abort();
            }
            slots[exclude] += h->slots;
            for (int k = 0; h->chosen != NULL && k < h->slots; k++) {
                for (int j = 0; j < k; j++) {
                    if (h->chosen[j] == h->chosen[k]) {
                        abort();
                    }
                }
                if (h->chosen[k] < 0 || h->chosen[k] >= all.hosts[at].slots) {
                    abort();
                }
            }
        }
        if (result[exclude] != 0 && err.status != DT_INVALID) {
            abort();
        }
        hostlist_clear(&kept[exclude]);
    }
    if (result[0] == 0 && result[1] == 0 && slots[0] + slots[1] != whole) {
        abort();
    }
    hostlist_clear(&all);
}

int dt_fuzz(const uint8_t *data, size_t size)
{
    static int (*const readers[])(struct hostlist *, const char *, struct dt_error *) = {
        hostlist_read_slurm, hostlist_read_words, hostlist_read_hostfile};
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
    filter("a slots=4\nb slots=2\nfd00::1 slots=3\nc\n", dt_text_str(&text));
    char *last = size < 4096 ? strrchr(text.data != NULL ? text.data : "", '\n') : NULL;
    if (last != NULL) { /* a file, and a filter in its last line */
        *last = '\0';
        filter(text.data, last + 1);
        *last = '\n';
    }
    for (int i = 0; i < 3; i++) {
        if (hostlist_count_at(dt_text_str(&text), i) < -1) {
            abort();
        }
    }
    dt_text_clear(&text);
    return 0;
}
