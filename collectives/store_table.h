/* The key-value state behind the store: values, queues, barriers and the waiters parked on keys.
 * Pure data: no sockets, no clock, no lock. The semantics are those of PyTorch's TCPStore (libuv
 * server), with its defects in queue waits put right. One thread at a time may use a table (a
 * server's loop, or struct dt_store_local under its mutex). */
#ifndef DT_COLLECTIVES_STORE_TABLE_H
#define DT_COLLECTIVES_STORE_TABLE_H

#include "base/error.h"
#include "base/text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes that somebody else owns; may hold NULs. */
struct dt_bytes {
    const void *data;
    size_t size;
};

/* All inclusive; a zero means the default. */
struct dt_store_limits {
    size_t key_bytes;     /* one key: 8 KiB */
    size_t value_bytes;   /* one value in a request: 8 MiB; append may grow a stored one beyond
                           * it */
    size_t key_count;     /* keys in one request: 131072 */
    size_t request_bytes; /* one whole request, and one whole reply: 256 MiB */
    size_t total_bytes;   /* everything a table stores: 1 GiB */
};
/* Fills in the defaults; `limits` may be null. */
struct dt_store_limits dt_store_limits_or_default(const struct dt_store_limits *limits);
/* A key for messages: printable, cut to out_bytes. Returns out. */
char *dt_store_key_text(struct dt_bytes key, char *out, size_t out_bytes);

/* Somebody who can wait, one wait at a time (a connection). The caller owns it and keeps it
 * until it no longer waits. */
struct dt_store_waiter {
    void (*ready)(struct dt_store_waiter *w); /* the wait is over; called in the midst of a
                                               * change: note it, do not touch the table */
    void *user;
    double since_s; /* set by the caller when it waits; only shown */
    /* the table's */
    struct dt_store_wait *waits;
    size_t wait_count, missing_count, waits_bytes;
    struct dt_store_waiter *next, *previous;
};

struct dt_store_table;
struct dt_store_value; /* bytes that answers share with the table */

/* Never fails: running out of memory ends the program. limits may be null. */
struct dt_store_table *dt_store_table_open(const struct dt_store_limits *limits);
/* Frees everything; waiters are forgotten without a call. Null is fine. */
void dt_store_table_close(struct dt_store_table *t);
/* Empty again, as after open; waiters are forgotten without a call. */
void dt_store_table_reset(struct dt_store_table *t);
const struct dt_store_limits *dt_store_table_limits(const struct dt_store_table *t);

/* Changes that store bytes fail with DT_NO_MEMORY when total_bytes would be exceeded, and
 * DT_INVALID for a key or value over the limits. They wake the waiters of the key. */
int dt_store_table_set(struct dt_store_table *t, struct dt_bytes key, struct dt_bytes value, struct dt_error *err);
int dt_store_table_append(struct dt_store_table *t, struct dt_bytes key, struct dt_bytes value, struct dt_error *err);
/* Decimal text + delta, wrapping; absent is 0. DT_INVALID when the value is no number; *total is
 * the new value. */
int dt_store_table_add(struct dt_store_table *t, struct dt_bytes key, int64_t delta, int64_t *total,
                       struct dt_error *err);
/* An absent key is created when `expected` is empty, and otherwise left absent with *now =
 * expected. A present key is replaced when it equals `expected`. *now is what the reply says:
 * the value afterwards; valid until the next change. */
int dt_store_table_compare_set(struct dt_store_table *t, struct dt_bytes key, struct dt_bytes expected,
                               struct dt_bytes desired, struct dt_bytes *now, struct dt_error *err);
/* False for an absent key. *value stays valid until the next change. */
bool dt_store_table_get(const struct dt_store_table *t, struct dt_bytes key, struct dt_bytes *value);
/* `value` is a whole one, as dt_store_table_get has just given it: its bytes stay where and what
 * they are until they are given back, whatever becomes of the key. All must be given back before
 * the table is reset or closed. */
struct dt_store_value *dt_store_table_share(struct dt_bytes value);
void dt_store_table_unshare(struct dt_store_table *t, struct dt_store_value *v);
/* No key has it any more. */
bool dt_store_value_is_left(const struct dt_store_value *v);
/* True when every key has a value or a queue with something in it. */
bool dt_store_table_check(const struct dt_store_table *t, const struct dt_bytes *keys, size_t count);
/* Removes a value (not a queue); wakes nobody. */
bool dt_store_table_delete(struct dt_store_table *t, struct dt_bytes key);
/* Keys with values; queues are not counted. `each` calls back for each of them, in no order. */
int64_t dt_store_table_key_count(const struct dt_store_table *t);
void dt_store_table_each(const struct dt_store_table *t,
                         void (*call)(void *user, struct dt_bytes key, struct dt_bytes value), void *user);

/* Queues have a name space of their own. A push wakes the longest waiter whose wait it
 * completes. */
int dt_store_table_push(struct dt_store_table *t, struct dt_bytes key, struct dt_bytes value, struct dt_error *err);
/* Length before the pop; when it is not 0, the first element is appended to out and removed. */
int64_t dt_store_table_pop(struct dt_store_table *t, struct dt_bytes key, struct dt_text *out);
int64_t dt_store_table_queue_length(const struct dt_store_table *t, struct dt_bytes key);
/* The element that pop would return; false for an empty queue. */
bool dt_store_table_queue_front(const struct dt_store_table *t, struct dt_bytes key, struct dt_bytes *value);

/* True: all keys are ready now. False: w is parked, and w->ready is called once all have become
 * ready. A wait that was pending on w is replaced. */
bool dt_store_table_wait(struct dt_store_table *t, struct dt_store_waiter *w, const struct dt_bytes *keys,
                         size_t count);
/* Adds one arrival at key; *passed when `world_size` have arrived (all waiters of the key are
 * woken), else w is parked. */
int dt_store_table_barrier(struct dt_store_table *t, struct dt_store_waiter *w, struct dt_bytes key, int64_t world_size,
                           bool *passed, struct dt_error *err);
/* Forgets the wait of w, if there is one. */
void dt_store_table_cancel(struct dt_store_table *t, struct dt_store_waiter *w);
/* Who waits: calls back for each parked waiter with a key it still misses. */
void dt_store_table_each_waiter(const struct dt_store_table *t,
                                void (*call)(void *user, const struct dt_store_waiter *w, struct dt_bytes key),
                                void *user);
/* Bytes of keys, values and queues together. */
size_t dt_store_table_bytes(const struct dt_store_table *t);
/* Bytes of values that are still shared, and that no key has any more. */
size_t dt_store_table_left_bytes(const struct dt_store_table *t);

#endif
