/* Inside the store's table: its entries, the bytes of their values, and who waits for them. Only
 * store_table.c, store_entry.c and store_waits.c include it. */
#ifndef DT_COLLECTIVES_STORE_ENTRY_H
#define DT_COLLECTIVES_STORE_ENTRY_H

#include "collectives/store_table.h"

#include <string.h>

struct element {
    struct element *next;
    size_t size;
    char data[];
};

struct dt_store_value {
    size_t capacity;
    size_t shares; /* answers that use these bytes and are not sent yet */
    bool is_left;  /* no key uses it any more */
    char data[];
};

struct entry {
    struct entry *next; /* the next entry of the bucket */
    uint64_t hash;
    bool has_value;
    struct dt_store_value *value; /* null: no value, or an empty one */
    size_t value_size;
    struct element *queue_first, *queue_last;
    int64_t queue_length;
    struct dt_store_wait *wait_first, *wait_last;
    size_t key_size;
    char key[];
};

struct dt_store_wait {
    struct dt_store_waiter *waiter;
    struct entry *entry; /* null once the key was ready */
    struct dt_store_wait *next, *previous;
};

struct dt_store_table {
    struct dt_store_limits limits;
    struct entry **buckets; /* bucket_count of them, a power of two */
    size_t bucket_count, entry_count;
    int64_t value_count;   /* entries with a value */
    int64_t element_count; /* in all queues together */
    size_t bytes, left_bytes;
    struct dt_store_waiter *waiters;
};

static inline bool dt_store_same_bytes(const void *a, size_t a_size, struct dt_bytes b)
{
    return a_size == b.size && (a_size == 0 || memcmp(a, b.data, a_size) == 0);
}

static inline bool dt_store_is_ready(const struct entry *e)
{
    return e != NULL && (e->has_value || e->queue_length > 0);
}

static inline char *dt_store_data_of(const struct entry *e)
{
    return e->value != NULL ? e->value->data : NULL;
}

static inline size_t dt_store_capacity_of(const struct entry *e)
{
    return e->value != NULL ? e->value->capacity : 0;
}

/* The entry of a key; null if there is none. The second function makes it. */
struct entry *dt_store_find(const struct dt_store_table *t, struct dt_bytes key);
struct entry *dt_store_find_or_make(struct dt_store_table *t, struct dt_bytes key);
/* Frees the elements of an entry's queue; the entry is about to go, or to be emptied. */
void dt_store_free_queue(struct dt_store_table *t, struct entry *e);
/* Removes an entry that holds nothing any more. */
void dt_store_drop_if_empty(struct dt_store_table *t, struct entry *e);
/* Takes the value from the key. Its bytes are freed, unless an answer shares them. */
void dt_store_leave_value(struct dt_store_table *t, struct entry *e);
/* Makes room for size bytes and keeps the content. The first capacity is exact; appends double it. */
void dt_store_reserve(struct dt_store_table *t, struct entry *e, size_t size);
void dt_store_put_value(struct dt_store_table *t, struct entry *e, struct dt_bytes value);
/* The key of e has a value now. Removes it from every wait for it, and ends the waits that it
 * completes. */
void dt_store_wake_all(struct dt_store_table *t, struct entry *e);
/* Takes a waiter off the table's list, without a word to it; and with its `ready`. */
void dt_store_unpark(struct dt_store_table *t, struct dt_store_waiter *w);
void dt_store_finish_wait(struct dt_store_table *t, struct dt_store_waiter *w);

#endif
