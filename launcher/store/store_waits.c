/* See store_waits.h. */
#include "launcher/store/store_waits.h"

#include <string.h>

enum { WAIT_KEYS = 64 }; /* enough to see what all wait for */

struct waits {
    struct {
        struct dt_bytes key;
        const struct dt_store_waiter *oldest;
        size_t count;
    } keys[WAIT_KEYS];
    size_t key_count;
};

static void note_wait(void *user, const struct dt_store_waiter *w, struct dt_bytes key)
{
    struct waits *l = user;
    size_t i = 0;
    while (i < l->key_count &&
           (l->keys[i].key.size != key.size || memcmp(l->keys[i].key.data, key.data, key.size) != 0)) {
        i++;
    }
    if (i == WAIT_KEYS) {
        return;
    }
    if (i == l->key_count) {
        l->keys[l->key_count++].key = key;
    }
    l->keys[i].count++;
    if (l->keys[i].oldest == NULL || w->since_s < l->keys[i].oldest->since_s) {
        l->keys[i].oldest = w;
    }
}

void store_waits_show(const struct dt_store_table *t, double now_s,
                      const char *(*name_of)(const struct dt_store_waiter *w, char *out, size_t out_bytes),
                      struct dt_text *out)
{
    struct waits l = {.key_count = 0};
    dt_store_table_each_waiter(t, note_wait, &l);
    for (size_t i = 0; i < l.key_count; i++) {
        char name[320], text[256];
        const struct dt_store_waiter *w = l.keys[i].oldest;
        dt_text_printf(out, "%s{\"peer\":\"%s\",\"key\":", i > 0 ? "," : "", name_of(w, name, sizeof name));
        (void)dt_store_key_text(l.keys[i].key, text, sizeof text);
        dt_text_json(out, text, strlen(text));
        dt_text_printf(out, ",\"count\":%zu,\"missing\":%zu,\"age_s\":%.1f}", l.keys[i].count, w->missing_count,
                       now_s - w->since_s);
    }
}
