/* Who waits in a store's table, by key: what a hanging start-up is asked first. */
#ifndef DT_LAUNCHER_STORE_STORE_WAITS_H
#define DT_LAUNCHER_STORE_STORE_WAITS_H

#include "base/text.h"
#include "collectives/store_table.h"

/* Appends JSON objects, with commas between them: key, how many wait for it, and of the oldest
 * its peer (name_of), missing keys and age. */
void store_waits_show(const struct dt_store_table *t, double now_s,
                      const char *(*name_of)(const struct dt_store_waiter *w, char *out, size_t out_bytes),
                      struct dt_text *out);

#endif
