/* Waits for keys of the store's table. A wait is an array of nodes, one per missing key. Each node is
 * in the list of its entry, ordered by waiting time. When a key becomes ready, its nodes are removed,
 * and a waiter without nodes left is told. A key that was ready once counts as ready for the rest of
 * that wait, even if it is deleted before the last key is ready. */
#include "collectives/store_entry.h"

#include <stdlib.h>

static void unhook(struct dt_store_wait *n)
{
    struct entry *e = n->entry;
    *(n->previous != NULL ? &n->previous->next : &e->wait_first) = n->next;
    *(n->next != NULL ? &n->next->previous : &e->wait_last) = n->previous;
    n->entry = NULL;
    n->waiter->missing_count--;
}

static void hook(struct dt_store_wait *n, struct dt_store_waiter *w, struct entry *e)
{
    *n = (struct dt_store_wait){.waiter = w, .entry = e, .previous = e->wait_last};
    *(e->wait_last != NULL ? &e->wait_last->next : &e->wait_first) = n;
    e->wait_last = n;
    w->missing_count++;
}

/* The memory of waits counts like that of keys: a thousand clients may wait for the same hundred
 * thousand keys. */
static void make_waits(struct dt_store_table *t, struct dt_store_waiter *w, size_t count)
{
    w->waits_bytes = count * sizeof *w->waits;
    w->waits = dt_alloc(w->waits_bytes);
    t->bytes += w->waits_bytes;
}

static void park(struct dt_store_table *t, struct dt_store_waiter *w)
{
    w->previous = NULL;
    w->next = t->waiters;
    if (w->next != NULL) {
        w->next->previous = w;
    }
    t->waiters = w;
}

void dt_store_unpark(struct dt_store_table *t, struct dt_store_waiter *w)
{
    *(w->previous != NULL ? &w->previous->next : &t->waiters) = w->next;
    if (w->next != NULL) {
        w->next->previous = w->previous;
    }
    w->next = w->previous = NULL;
    t->bytes -= w->waits_bytes;
    free(w->waits);
    w->waits = NULL;
    w->wait_count = w->missing_count = 0;
}

void dt_store_table_cancel(struct dt_store_table *t, struct dt_store_waiter *w)
{
    if (w->waits == NULL) {
        return;
    }
    for (size_t i = 0; i < w->wait_count; i++) {
        struct entry *e = w->waits[i].entry;
        if (e != NULL) {
            unhook(&w->waits[i]);
            dt_store_drop_if_empty(t, e);
        }
    }
    dt_store_unpark(t, w);
}

void dt_store_finish_wait(struct dt_store_table *t, struct dt_store_waiter *w)
{
    dt_store_table_cancel(t, w);
    w->ready(w);
}

/* Removes the nodes of keys that became ready without a wake-up. A push wakes nobody if it
 * completes no wait. */
static void recheck(struct dt_store_waiter *w)
{
    for (size_t i = 0; i < w->wait_count; i++) {
        if (dt_store_is_ready(w->waits[i].entry)) {
            unhook(&w->waits[i]);
        }
    }
}

void dt_store_wake_all(struct dt_store_table *t, struct entry *e)
{
    while (e->wait_first != NULL) {
        struct dt_store_waiter *w = e->wait_first->waiter;
        unhook(e->wait_first);
        if (w->missing_count > 0 && t->element_count > 0) {
            recheck(w);
        }
        if (w->missing_count == 0) {
            dt_store_finish_wait(t, w);
        }
    }
}

bool dt_store_table_wait(struct dt_store_table *t, struct dt_store_waiter *w, const struct dt_bytes *keys, size_t count)
{
    dt_store_table_cancel(t, w);
    size_t missing = 0;
    for (size_t i = 0; i < count; i++) {
        missing += dt_store_is_ready(dt_store_find(t, keys[i])) ? 0 : 1;
    }
    if (missing == 0) {
        return true;
    }
    make_waits(t, w, missing);
    for (size_t i = 0; i < count; i++) {
        struct entry *e = dt_store_find_or_make(t, keys[i]);
        /* skip a key that is named twice */
        if (dt_store_is_ready(e) || (e->wait_last != NULL && e->wait_last->waiter == w)) {
            continue;
        }
        hook(&w->waits[w->wait_count++], w, e);
    }
    park(t, w);
    return false;
}

int dt_store_table_barrier(struct dt_store_table *t, struct dt_store_waiter *w, struct dt_bytes key, int64_t world_size,
                           bool *passed, struct dt_error *err)
{
    struct entry *before = dt_store_find(t, key);
    /* Only the last arrival wakes the waiters. So hide them from dt_store_table_add, which would
     * wake them. */
    struct dt_store_wait *first = before != NULL ? before->wait_first : NULL,
                         *last = before != NULL ? before->wait_last : NULL;
    if (before != NULL) {
        before->wait_first = before->wait_last = NULL;
    }
    int64_t total = 0;
    int rc = dt_store_table_add(t, key, 1, &total, err);
    struct entry *e = rc == 0 ? dt_store_find(t, key) : before;
    if (e != NULL && first != NULL) {
        e->wait_first = first;
        e->wait_last = last;
    }
    if (rc != 0) {
        return -1;
    }
    *passed = total >= world_size;
    dt_store_table_cancel(t, w);
    if (*passed) {
        dt_store_wake_all(t, e);
        return 0;
    }
    make_waits(t, w, 1);
    hook(&w->waits[w->wait_count++], w, e);
    park(t, w);
    return 0;
}

void dt_store_table_each_waiter(const struct dt_store_table *t,
                                void (*call)(void *user, const struct dt_store_waiter *w, struct dt_bytes key),
                                void *user)
{
    for (const struct dt_store_waiter *w = t->waiters; w != NULL; w = w->next) {
        for (size_t i = 0; i < w->wait_count; i++) {
            const struct entry *e = w->waits[i].entry;
            if (e != NULL) {
                call(user, w, (struct dt_bytes){e->key, e->key_size});
                break;
            }
        }
    }
}
