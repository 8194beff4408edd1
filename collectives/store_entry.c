/* Entries of the store's table, by hash, and the bytes of their values. */
#include "collectives/store_entry.h"

#include <stdlib.h>
#include <xxhash.h>

static uint64_t hash_of(struct dt_bytes key)
{
    return XXH3_64bits(key.data, key.size);
}

struct entry *dt_store_find(const struct dt_store_table *t, struct dt_bytes key)
{
    uint64_t hash = hash_of(key);
    for (struct entry *e = t->buckets[hash & (t->bucket_count - 1)]; e != NULL; e = e->next) {
        if (e->hash == hash && dt_store_same_bytes(e->key, e->key_size, key)) {
            return e;
        }
    }
    return NULL;
}

static void grow(struct dt_store_table *t)
{
    size_t count = t->bucket_count * 2;
    struct entry **buckets = dt_alloc(count * sizeof *buckets);
    for (size_t i = 0; i < t->bucket_count; i++) {
        for (struct entry *e = t->buckets[i], *next; e != NULL; e = next) {
            next = e->next;
            struct entry **place = &buckets[e->hash & (count - 1)];
            e->next = *place;
            *place = e;
        }
    }
    free(t->buckets);
    t->buckets = buckets;
    t->bucket_count = count;
}

struct entry *dt_store_find_or_make(struct dt_store_table *t, struct dt_bytes key)
{
    struct entry *e = dt_store_find(t, key);
    if (e != NULL) {
        return e;
    }
    if (t->entry_count >= t->bucket_count) {
        grow(t);
    }
    e = dt_alloc(sizeof *e + key.size);
    e->hash = hash_of(key);
    e->key_size = key.size;
    if (key.size > 0) {
        memcpy(e->key, key.data, key.size);
    }
    struct entry **place = &t->buckets[e->hash & (t->bucket_count - 1)];
    e->next = *place;
    *place = e;
    t->entry_count++;
    t->bytes += sizeof *e + key.size;
    return e;
}

void dt_store_free_queue(struct dt_store_table *t, struct entry *e)
{
    for (struct element *x = e->queue_first, *next; x != NULL; x = next) {
        next = x->next;
        t->bytes -= sizeof *x + x->size;
        t->element_count--;
        free(x);
    }
}

void dt_store_drop_if_empty(struct dt_store_table *t, struct entry *e)
{
    if (e->has_value || e->queue_length > 0 || e->wait_first != NULL) {
        return;
    }
    struct entry **place = &t->buckets[e->hash & (t->bucket_count - 1)];
    while (*place != e) {
        place = &(*place)->next;
    }
    *place = e->next;
    t->entry_count--;
    t->bytes -= sizeof *e + e->key_size;
    free(e);
}

/* ---- the bytes of a value ---- */

void dt_store_leave_value(struct dt_store_table *t, struct entry *e)
{
    struct dt_store_value *v = e->value;
    t->bytes -= dt_store_capacity_of(e);
    e->value = NULL;
    e->value_size = 0;
    if (v != NULL && v->shares > 0) {
        v->is_left = true;
        t->left_bytes += v->capacity;
    } else {
        free(v);
    }
}

struct dt_store_value *dt_store_table_share(struct dt_bytes value)
{
    struct dt_store_value *v =
        (struct dt_store_value *)((char *)(uintptr_t)value.data - offsetof(struct dt_store_value, data));
    v->shares++;
    return v;
}

void dt_store_table_unshare(struct dt_store_table *t, struct dt_store_value *v)
{
    if (--v->shares == 0 && v->is_left) {
        t->left_bytes -= v->capacity;
        free(v);
    }
}

bool dt_store_value_is_left(const struct dt_store_value *v)
{
    return v->is_left;
}

void dt_store_reserve(struct dt_store_table *t, struct entry *e, size_t size)
{
    size_t kept = e->value_size, capacity = e->has_value && size > kept && size < kept * 2 ? kept * 2 : size;
    size_t old_capacity = dt_store_capacity_of(e);
    struct dt_store_value *old = e->value, *v;
    bool shared = old != NULL && old->shares > 0;
    if (size <= old_capacity && size >= old_capacity / 4) {
        return;
    }
    v = dt_realloc(shared ? NULL : old, sizeof *v + capacity);
    if (shared) {
        memcpy(v->data, old->data, kept);
        dt_store_leave_value(t, e);
    } else {
        t->bytes -= old_capacity;
    }
    v->capacity = capacity;
    v->shares = 0;
    v->is_left = false;
    t->bytes += capacity;
    e->value = v;
    e->value_size = kept;
}

void dt_store_put_value(struct dt_store_table *t, struct entry *e, struct dt_bytes value)
{
    if (e->value != NULL && e->value->shares > 0) {
        dt_store_leave_value(t, e);
    }
    if (dt_store_capacity_of(e) < value.size || dt_store_capacity_of(e) / 4 > value.size) {
        e->value_size = 0;
        dt_store_reserve(t, e, value.size);
    }
    if (value.size > 0) {
        memmove(e->value->data, value.data, value.size);
    }
    e->value_size = value.size;
    if (!e->has_value) {
        e->has_value = true;
        t->value_count++;
    }
}
