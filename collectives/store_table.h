/* The state behind the store: values, queues, barriers, and the waiters for keys. It has no
 * sockets, no clock and no lock. The semantics are those of PyTorch's TCPStore (libuv server), but
 * without its defects in queue waits. One thread at a time may use a table: a server's loop, or
 * struct dt_store_local under its mutex. */
#ifndef DT_COLLECTIVES_STORE_TABLE_H
#define DT_COLLECTIVES_STORE_TABLE_H

#include "base/error.h"
#include "base/text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes that the caller or the table owns; may contain NULs. */
struct dt_bytes {
    const void *data;
    size_t size;
};

/* Limits, all inclusive. Zero means the default. */
struct dt_store_limits {
    size_t key_bytes; /* of one key: 8 KiB */
    /* of one value in a request: 8 MiB; appends may grow a stored value beyond it */
    size_t value_bytes;
    size_t key_count;     /* keys of one request: 131072 */
    size_t request_bytes; /* of one whole request, and of one whole reply: 256 MiB */
    size_t total_bytes;   /* of everything that a table stores: 1 GiB */
};
/* Fills in the defaults; `limits` may be null. */
struct dt_store_limits dt_store_limits_or_default(const struct dt_store_limits *limits);
/* The key as printable text for messages, cut to out_bytes. Returns out. */
char *dt_store_key_text(struct dt_bytes key, char *out, size_t out_bytes);

/* A client that can wait, one wait at a time. The caller owns it, and keeps it until it no longer
 * waits. */
struct dt_store_waiter {
    /* The wait is over. It is called in the middle of a change: take note of it, and do not use the
     * table. */
    void (*ready)(struct dt_store_waiter *w);
    void *user;
    double since_s; /* set by the caller when it waits, only to be shown */
    /* used by the table */
    struct dt_store_wait *waits;
    size_t wait_count, missing_count, waits_bytes;
    struct dt_store_waiter *next, *previous;
};

struct dt_store_table;
struct dt_store_value; /* the bytes of a value, which answers share with the table */

/* Never fails: running out of memory ends the program. limits may be null. */
struct dt_store_table *dt_store_table_open(const struct dt_store_limits *limits);
/* Frees everything. Waiters are dropped without a call. Null is allowed. */
void dt_store_table_close(struct dt_store_table *t);
/* Empties the table, as after open. Waiters are dropped without a call. */
void dt_store_table_reset(struct dt_store_table *t);
const struct dt_store_limits *dt_store_table_limits(const struct dt_store_table *t);

/* set and append: DT_NO_MEMORY if total_bytes would be exceeded, DT_INVALID for a key or value over
 * the limits. They wake the waiters of the key. */
int dt_store_table_set(struct dt_store_table *t, struct dt_bytes key, struct dt_bytes value, struct dt_error *err);
int dt_store_table_append(struct dt_store_table *t, struct dt_bytes key, struct dt_bytes value, struct dt_error *err);
/* Adds delta to the decimal text of the value, wrapping around; a missing key counts as 0.
 * DT_INVALID if the value is no number. *total is the new value. */
int dt_store_table_add(struct dt_store_table *t, struct dt_bytes key, int64_t delta, int64_t *total,
                       struct dt_error *err);
/* Creates a missing key if `expected` is empty; else leaves it missing, with *now = expected.
 * Replaces a value that equals `expected`. *now is the reply: the value afterwards, valid until the
 * next change. */
int dt_store_table_compare_set(struct dt_store_table *t, struct dt_bytes key, struct dt_bytes expected,
                               struct dt_bytes desired, struct dt_bytes *now, struct dt_error *err);
/* False for a missing key. *value stays valid until the next change. */
bool dt_store_table_get(const struct dt_store_table *t, struct dt_bytes key, struct dt_bytes *value);
/* Shares a value as dt_store_table_get has just returned it. Its bytes stay in place and unchanged
 * until unshare, whatever happens to the key. All shares must be given back before the table is
 * reset or closed. */
struct dt_store_value *dt_store_table_share(struct dt_bytes value);
void dt_store_table_unshare(struct dt_store_table *t, struct dt_store_value *v);
/* True if no key has the value any more. */
bool dt_store_value_is_left(const struct dt_store_value *v);
/* True if every key has a value or a queue with an element. */
bool dt_store_table_check(const struct dt_store_table *t, const struct dt_bytes *keys, size_t count);
/* Removes a value, but not a queue. Wakes no waiter. */
bool dt_store_table_delete(struct dt_store_table *t, struct dt_bytes key);
/* Number of keys with a value; queues do not count. `each` calls back for each of these keys, in no
 * order. */
int64_t dt_store_table_key_count(const struct dt_store_table *t);
void dt_store_table_each(const struct dt_store_table *t,
                         void (*call)(void *user, struct dt_bytes key, struct dt_bytes value), void *user);

/* Queues have a name space of their own. A push wakes at most one waiter: of those whose wait it
 * completes, the one that has waited longest for the key. */
int dt_store_table_push(struct dt_store_table *t, struct dt_bytes key, struct dt_bytes value, struct dt_error *err);
/* Returns the length before the pop. If it is not 0, the first element is appended to out and
 * removed. */
int64_t dt_store_table_pop(struct dt_store_table *t, struct dt_bytes key, struct dt_text *out);
int64_t dt_store_table_queue_length(const struct dt_store_table *t, struct dt_bytes key);
/* The element that pop would return. False for an empty queue. */
bool dt_store_table_queue_front(const struct dt_store_table *t, struct dt_bytes key, struct dt_bytes *value);

/* True: all keys are ready now. False: w is parked, and w->ready is called once all keys have
 * become ready. It replaces an earlier wait of w. */
bool dt_store_table_wait(struct dt_store_table *t, struct dt_store_waiter *w, const struct dt_bytes *keys,
                         size_t count);
/* Adds one arrival at key. *passed: `world_size` have arrived, and all waiters of the key are
 * woken. Otherwise w is parked. */
int dt_store_table_barrier(struct dt_store_table *t, struct dt_store_waiter *w, struct dt_bytes key, int64_t world_size,
                           bool *passed, struct dt_error *err);
/* Drops the wait of w, if there is one. */
void dt_store_table_cancel(struct dt_store_table *t, struct dt_store_waiter *w);
/* Calls back for each parked waiter, with one key that it still misses. */
void dt_store_table_each_waiter(const struct dt_store_table *t,
                                void (*call)(void *user, const struct dt_store_waiter *w, struct dt_bytes key),
                                void *user);
/* Bytes of keys, values, queues and waits together. */
size_t dt_store_table_bytes(const struct dt_store_table *t);
/* Bytes of shared values that no key has any more. */
size_t dt_store_table_left_bytes(const struct dt_store_table *t);

#endif
