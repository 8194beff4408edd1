/* Lists the clients that wait in a store's table, by key: the first thing to know about a start
 * that hangs. */
#ifndef DT_LAUNCHER_STORE_STORE_WAITS_H
#define DT_LAUNCHER_STORE_STORE_WAITS_H

#include "base/text.h"
#include "collectives/store_table.h"

/* Appends JSON objects, with commas between them: the key, the number of clients that wait for it,
 * and the oldest client's peer (name_of), missing keys and age. */
void store_waits_show(const struct dt_store_table *t, double now_s,
                      const char *(*name_of)(const struct dt_store_waiter *w, char *out, size_t out_bytes),
                      struct dt_text *out);

#endif
