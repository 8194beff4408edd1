/* See the header. */
#include "cmd/dtdata/train_queue.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>

enum {
    HEAP_MOST = 65536,
    WAYS = 8,
    FIRST_WAITING = 4096,
    BREATHE_ROWS = 1024,
    /* Classes of counts: one for each below EXACT, then PARTS for each power of two. */
    EXACT_BITS = 12,
    PART_BITS = 8,
    EXACT = 1 << EXACT_BITS,
    PARTS = 1 << PART_BITS,
    CLASSES = EXACT + (63 - EXACT_BITS) * PARTS
};

static size_t class_of(int64_t count)
{
    if (count < EXACT) {
        return (size_t)count;
    }
    int top = 63 - __builtin_clzll((unsigned long long)count);
    return EXACT + (size_t)(top - EXACT_BITS) * PARTS + ((size_t)(count >> (top - PART_BITS)) & (PARTS - 1));
}

/* The smallest count of a class. */
static int64_t class_begin(size_t class)
{
    if (class < EXACT) {
        return (int64_t) class;
    }
    size_t top = (class - EXACT) / PARTS + EXACT_BITS, part = (class - EXACT) % PARTS;
    return (int64_t)1 << top | (int64_t)part << (top - PART_BITS);
}

static bool before(const struct candidate *a, const struct candidate *b)
{
    return a->count != b->count ? a->count > b->count : a->pair != b->pair ? a->pair < b->pair : a->list < b->list;
}

int queue_open(struct queue *q, struct store *store, struct dt_error *err)
{
    void *at;
    if (store_alloc(store, &at, FIRST_WAITING * sizeof(struct candidate), err) != 0) {
        return -1;
    }
    *q = (struct queue){.store = store, .waiting = at, .waiting_capacity = FIRST_WAITING, .heap_most = HEAP_MOST};
    return 0;
}

void queue_close(struct queue *q)
{
    store_free(q->store, q->waiting);
    store_free(q->store, q->heap);
    q->heap = NULL;
}

static int add_waiting(struct queue *q, const struct candidate *c, struct dt_error *err)
{
    if (q->waiting_count == q->waiting_capacity) {
        void *at = q->waiting;
        if (store_grow(q->store, &at, 2 * q->waiting_capacity * sizeof *q->waiting, err) != 0) {
            return -1;
        }
        q->waiting = at;
        q->waiting_capacity *= 2;
    }
    q->waiting[q->waiting_count++] = *c;
    return 0;
}

static void sink(struct queue *q, size_t at)
{
    const struct candidate moved = q->heap[at];
    for (size_t child; (child = WAYS * at + 1) < q->heap_count;) {
        size_t last = child + WAYS < q->heap_count ? child + WAYS : q->heap_count, best = child;
        for (size_t i = child + 1; i < last; i++) {
            best = before(&q->heap[i], &q->heap[best]) ? i : best;
        }
        if (!before(&q->heap[best], &moved)) {
            break;
        }
        q->heap[at] = q->heap[best];
        at = best;
    }
    q->heap[at] = moved;
}

/* Candidates with equal counts may be many more than HEAP_MOST, so the heap belongs to the store. */
static int add_heap(struct queue *q, const struct candidate *c, struct dt_error *err)
{
    if (q->heap_count == q->heap_capacity) {
        size_t capacity = q->heap_capacity == 0 ? 1024 : q->heap_capacity * 2;
        void *at = q->heap;
        if (store_grow(q->store, &at, capacity * sizeof *q->heap, err) != 0) {
            return -1;
        }
        q->heap = at;
        q->heap_capacity = capacity;
    }
    size_t at = q->heap_count++;
    for (; at > 0 && before(c, &q->heap[(at - 1) / WAYS]); at = (at - 1) / WAYS) {
        q->heap[at] = q->heap[(at - 1) / WAYS];
    }
    q->heap[at] = *c;
    return 0;
}

/* The largest threshold that at least `wanted` of the candidates reach, or all. */
static int64_t choose(const struct queue *q, const struct candidate *c, size_t count, size_t wanted,
                      struct dt_error *err)
{
    size_t *classes = dt_alloc(CLASSES * sizeof *classes), class = CLASSES;
    int64_t result = 0;
    for (size_t i = 0; result == 0 && i < count; i++) {
        classes[class_of(c[i].count)]++;
        result = i % BREATHE_ROWS == 0 ? store_breathe(q->store, err) : 0;
    }
    for (size_t reached = 0; class > 0 && reached < wanted; reached += classes[class]) {
        class --;
    }
    free(classes);
    return result == 0 ? class_begin(class) : -1;
}

/* Lets the rear half of a heap that is too large wait. */
static int shrink(struct queue *q, struct dt_error *err)
{
    q->threshold = choose(q, q->heap, q->heap_count, HEAP_MOST / 2, err);
    if (q->threshold < 0) {
        return -1;
    }
    size_t kept = 0;
    for (size_t i = 0; i < q->heap_count; i++) {
        if (q->heap[i].count >= q->threshold) {
            q->heap[kept++] = q->heap[i];
        } else if (add_waiting(q, &q->heap[i], err) != 0) {
            return -1;
        }
    }
    q->heap_count = kept;
    for (size_t i = kept; i-- > 0;) {
        sink(q, i);
        if (i % BREATHE_ROWS == 0 && store_breathe(q->store, err) != 0) {
            return -1;
        }
    }
    q->heap_most = kept > q->heap_most / 4 * 3 ? kept * 2 : HEAP_MOST; /* many with the same count */
    return store_breathe(q->store, err);
}

/* Brings the foremost of those that wait into the empty heap. */
static int refill(struct queue *q, struct dt_error *err)
{
    q->threshold = choose(q, q->waiting, q->waiting_count, HEAP_MOST / 2, err);
    if (q->threshold < 0) {
        return -1;
    }
    size_t kept = 0;
    for (size_t i = 0; i < q->waiting_count; i++) {
        if (q->waiting[i].count >= q->threshold) {
            if (add_heap(q, &q->waiting[i], err) != 0) {
                return -1;
            }
        } else {
            q->waiting[kept++] = q->waiting[i];
        }
        if (i % BREATHE_ROWS == 0 && store_breathe(q->store, err) != 0) {
            return -1;
        }
    }
    q->waiting_count = kept;
    return 0;
}

int queue_add(struct queue *q, const struct candidate *c, struct dt_error *err)
{
    if (c->count < q->threshold) {
        return add_waiting(q, c, err);
    }
    if (add_heap(q, c, err) != 0) {
        return -1;
    }
    return q->heap_count > q->heap_most ? shrink(q, err) : 0;
}

int queue_take(struct queue *q, struct candidate *out, struct dt_error *err)
{
    if (q->heap_count == 0 && q->waiting_count > 0 && refill(q, err) != 0) {
        return -1;
    }
    if (q->heap_count == 0) {
        return 0;
    }
    *out = q->heap[0];
    q->heap[0] = q->heap[--q->heap_count];
    if (q->heap_count > 0) {
        sink(q, 0);
    }
    return 1;
}
