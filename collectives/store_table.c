/* A hash table of entries. An entry exists for a key that has a value, a queue or waiters, and is
 * removed with the last of them. A wait is an array of nodes, one per missing key. Each node is in
 * the list of its entry, ordered by waiting time. When a key becomes ready, its nodes are removed,
 * and a waiter without nodes left is told. A key that was ready once counts as ready for the rest
 * of that wait, even if it is deleted before the last key is ready. */
#include "collectives/store_table.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

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

struct dt_store_limits dt_store_limits_or_default(const struct dt_store_limits *limits)
{
    struct dt_store_limits l = limits != NULL ? *limits : (struct dt_store_limits){0};
    l.key_bytes = l.key_bytes > 0 ? l.key_bytes : 8192;
    l.value_bytes = l.value_bytes > 0 ? l.value_bytes : (size_t)8 << 20;
    l.key_count = l.key_count > 0 ? l.key_count : 131072;
    l.request_bytes = l.request_bytes > 0 ? l.request_bytes : (size_t)256 << 20;
    l.total_bytes = l.total_bytes > 0 ? l.total_bytes : (size_t)1 << 30;
    return l;
}

char *dt_store_key_text(struct dt_bytes key, char *out, size_t out_bytes)
{
    const char *from = key.data;
    size_t size = key.size < out_bytes - 1 ? key.size : out_bytes - 1;
    for (size_t i = 0; i < size; i++) {
        out[i] = from[i] >= ' ' && from[i] <= '~' ? from[i] : '?';
    }
    out[size] = '\0';
    return out;
}

/* ---- entries ---- */

static uint64_t hash_of(struct dt_bytes key)
{
    return XXH3_64bits(key.data, key.size);
}

static bool same_bytes(const void *a, size_t a_size, struct dt_bytes b)
{
    return a_size == b.size && (a_size == 0 || memcmp(a, b.data, a_size) == 0);
}

static struct entry *find(const struct dt_store_table *t, struct dt_bytes key)
{
    uint64_t hash = hash_of(key);
    for (struct entry *e = t->buckets[hash & (t->bucket_count - 1)]; e != NULL; e = e->next) {
        if (e->hash == hash && same_bytes(e->key, e->key_size, key)) {
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

static struct entry *find_or_make(struct dt_store_table *t, struct dt_bytes key)
{
    struct entry *e = find(t, key);
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

static void free_queue(struct dt_store_table *t, struct entry *e)
{
    for (struct element *x = e->queue_first, *next; x != NULL; x = next) {
        next = x->next;
        t->bytes -= sizeof *x + x->size;
        t->element_count--;
        free(x);
    }
}

/* Removes an entry that holds nothing any more. */
static void drop_if_empty(struct dt_store_table *t, struct entry *e)
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

static bool is_ready(const struct entry *e)
{
    return e != NULL && (e->has_value || e->queue_length > 0);
}

static int check_size(const struct dt_store_table *t, struct dt_bytes key, struct dt_bytes value, struct dt_error *err)
{
    if (key.size > t->limits.key_bytes) {
        return dt_fail(err, DT_INVALID, "key of %zu bytes: at most %zu", key.size, t->limits.key_bytes);
    }
    if (value.size > t->limits.value_bytes) {
        return dt_fail(err, DT_INVALID, "value of %zu bytes: at most %zu", value.size, t->limits.value_bytes);
    }
    size_t more = sizeof(struct entry) + key.size + value.size;
    if (t->bytes + more > t->limits.total_bytes) {
        return dt_fail(err, DT_NO_MEMORY, "the store is full: %zu bytes of %zu", t->bytes, t->limits.total_bytes);
    }
    return 0;
}

/* ---- the bytes of a value ---- */

static char *data_of(const struct entry *e)
{
    return e->value != NULL ? e->value->data : NULL;
}

static size_t capacity_of(const struct entry *e)
{
    return e->value != NULL ? e->value->capacity : 0;
}

/* Takes the value from the key. Its bytes are freed, unless an answer shares them. */
static void leave_value(struct dt_store_table *t, struct entry *e)
{
    struct dt_store_value *v = e->value;
    t->bytes -= capacity_of(e);
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

/* Makes room for size bytes and keeps the content. The first capacity is exact; appends double
 * it. */
static void reserve(struct dt_store_table *t, struct entry *e, size_t size)
{
    size_t kept = e->value_size, capacity = e->has_value && size > kept && size < kept * 2 ? kept * 2 : size;
    size_t old_capacity = capacity_of(e);
    struct dt_store_value *old = e->value, *v;
    bool shared = old != NULL && old->shares > 0;
    if (size <= old_capacity && size >= old_capacity / 4) {
        return;
    }
    v = dt_realloc(shared ? NULL : old, sizeof *v + capacity);
    if (shared) {
        memcpy(v->data, old->data, kept);
        leave_value(t, e);
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

static void put_value(struct dt_store_table *t, struct entry *e, struct dt_bytes value)
{
    if (e->value != NULL && e->value->shares > 0) {
        leave_value(t, e);
    }
    if (capacity_of(e) < value.size || capacity_of(e) / 4 > value.size) {
        e->value_size = 0;
        reserve(t, e, value.size);
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

/* ---- waits ---- */

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

static void unpark(struct dt_store_table *t, struct dt_store_waiter *w)
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
            drop_if_empty(t, e);
        }
    }
    unpark(t, w);
}

static void finish(struct dt_store_table *t, struct dt_store_waiter *w)
{
    dt_store_table_cancel(t, w);
    w->ready(w);
}

/* Removes the nodes of keys that became ready without a wake-up. A push wakes nobody if it
 * completes no wait. */
static void recheck(struct dt_store_waiter *w)
{
    for (size_t i = 0; i < w->wait_count; i++) {
        if (is_ready(w->waits[i].entry)) {
            unhook(&w->waits[i]);
        }
    }
}

/* The key of e has a value now. Removes it from every wait for it, and ends the waits that it
 * completes. */
static void wake_all(struct dt_store_table *t, struct entry *e)
{
    while (e->wait_first != NULL) {
        struct dt_store_waiter *w = e->wait_first->waiter;
        unhook(e->wait_first);
        if (w->missing_count > 0 && t->element_count > 0) {
            recheck(w);
        }
        if (w->missing_count == 0) {
            finish(t, w);
        }
    }
}

bool dt_store_table_wait(struct dt_store_table *t, struct dt_store_waiter *w, const struct dt_bytes *keys, size_t count)
{
    dt_store_table_cancel(t, w);
    size_t missing = 0;
    for (size_t i = 0; i < count; i++) {
        missing += is_ready(find(t, keys[i])) ? 0 : 1;
    }
    if (missing == 0) {
        return true;
    }
    make_waits(t, w, missing);
    for (size_t i = 0; i < count; i++) {
        struct entry *e = find_or_make(t, keys[i]);
        /* skip a key that is named twice */
        if (is_ready(e) || (e->wait_last != NULL && e->wait_last->waiter == w)) {
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
    struct entry *before = find(t, key);
    /* Only the last arrival wakes the waiters. So hide them from dt_store_table_add, which would
     * wake them. */
    struct dt_store_wait *first = before != NULL ? before->wait_first : NULL,
                         *last = before != NULL ? before->wait_last : NULL;
    if (before != NULL) {
        before->wait_first = before->wait_last = NULL;
    }
    int64_t total = 0;
    int rc = dt_store_table_add(t, key, 1, &total, err);
    struct entry *e = rc == 0 ? find(t, key) : before;
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
        wake_all(t, e);
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

/* ---- the table ---- */

static void empty(struct dt_store_table *t)
{
    while (t->waiters != NULL) {
        unpark(t, t->waiters);
    }
    for (size_t i = 0; i < t->bucket_count; i++) {
        for (struct entry *e = t->buckets[i], *next; e != NULL; e = next) {
            next = e->next;
            free_queue(t, e);
            leave_value(t, e);
            free(e);
        }
    }
    free(t->buckets);
}

static void begin(struct dt_store_table *t)
{
    assert(t->left_bytes == 0); /* every shared value was given back */
    t->bucket_count = 64;
    t->buckets = dt_alloc(t->bucket_count * sizeof *t->buckets);
    t->entry_count = t->bytes = 0;
    t->value_count = t->element_count = 0;
}

struct dt_store_table *dt_store_table_open(const struct dt_store_limits *limits)
{
    struct dt_store_table *t = dt_alloc(sizeof *t);
    t->limits = dt_store_limits_or_default(limits);
    begin(t);
    return t;
}

void dt_store_table_close(struct dt_store_table *t)
{
    if (t != NULL) {
        empty(t);
        free(t);
    }
}

void dt_store_table_reset(struct dt_store_table *t)
{
    empty(t);
    begin(t);
}

const struct dt_store_limits *dt_store_table_limits(const struct dt_store_table *t)
{
    return &t->limits;
}

size_t dt_store_table_bytes(const struct dt_store_table *t)
{
    return t->bytes;
}

size_t dt_store_table_left_bytes(const struct dt_store_table *t)
{
    return t->left_bytes;
}

int64_t dt_store_table_key_count(const struct dt_store_table *t)
{
    return t->value_count;
}

/* ---- values ---- */

static void set_value(struct dt_store_table *t, struct entry *e, struct dt_bytes value)
{
    put_value(t, e, value);
    wake_all(t, e);
}

int dt_store_table_set(struct dt_store_table *t, struct dt_bytes key, struct dt_bytes value, struct dt_error *err)
{
    if (check_size(t, key, value, err) != 0) {
        return -1;
    }
    set_value(t, find_or_make(t, key), value);
    return 0;
}

int dt_store_table_append(struct dt_store_table *t, struct dt_bytes key, struct dt_bytes value, struct dt_error *err)
{
    if (check_size(t, key, value, err) != 0) {
        return -1;
    }
    const struct entry *old = find(t, key);
    /* growing may also take a copy of the old bytes */
    size_t doubled = old != NULL ? old->value_size : 0;
    if (t->bytes + doubled + value.size > t->limits.total_bytes) {
        return dt_fail(err, DT_NO_MEMORY, "append of %zu bytes to %zu: the store is full", value.size, doubled);
    }
    struct entry *e = find_or_make(t, key);
    size_t size = e->has_value ? e->value_size : 0;
    if (size + value.size > capacity_of(e)) {
        reserve(t, e, size + value.size);
    }
    /* the new bytes follow those that answers may share, which stay unchanged */
    if (value.size > 0) {
        memcpy(e->value->data + size, value.data, value.size);
    }
    e->value_size = size + value.size;
    if (!e->has_value) {
        e->has_value = true;
        t->value_count++;
    }
    wake_all(t, e);
    return 0;
}

/* Parses like strtoll in base 10: white space, sign, digits; the rest is ignored. */
static bool parse_number(const char *s, size_t size, int64_t *out)
{
    size_t i = 0;
    while (i < size && (s[i] == ' ' || (s[i] >= '\t' && s[i] <= '\r'))) {
        i++;
    }
    bool negative = i < size && s[i] == '-';
    i += i < size && (s[i] == '-' || s[i] == '+') ? 1 : 0;
    if (i == size || s[i] < '0' || s[i] > '9') {
        return false;
    }
    uint64_t limit = (uint64_t)INT64_MAX + (negative ? 1 : 0), number = 0;
    for (; i < size && s[i] >= '0' && s[i] <= '9'; i++) {
        uint64_t digit = (uint64_t)(s[i] - '0');
        if (number > (limit - digit) / 10) {
            return false;
        }
        number = number * 10 + digit;
    }
    *out = (int64_t)(negative ? 0 - number : number);
    return true;
}

/* Writes decimal text at the end of `room`. With printf this would be half of an add's work. */
static struct dt_bytes put_number(int64_t number, char *room, size_t room_bytes)
{
    uint64_t rest = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    char *at = room + room_bytes;
    do {
        *--at = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest > 0);
    if (number < 0) {
        *--at = '-';
    }
    return (struct dt_bytes){at, (size_t)(room + room_bytes - at)};
}

int dt_store_table_add(struct dt_store_table *t, struct dt_bytes key, int64_t delta, int64_t *total,
                       struct dt_error *err)
{
    int64_t number = 0;
    struct entry *e = find(t, key);
    if (e != NULL && e->has_value && !parse_number(data_of(e), e->value_size, &number)) {
        char name[128];
        return dt_fail(err, DT_INVALID, "add to key '%s': its value is not a number",
                       dt_store_key_text(key, name, sizeof name));
    }
    char digits[24];
    *total = number = (int64_t)((uint64_t)number + (uint64_t)delta);
    struct dt_bytes value = put_number(number, digits, sizeof digits);
    if (check_size(t, key, value, err) != 0) {
        return -1;
    }
    set_value(t, e != NULL ? e : find_or_make(t, key), value);
    return 0;
}

int dt_store_table_compare_set(struct dt_store_table *t, struct dt_bytes key, struct dt_bytes expected,
                               struct dt_bytes desired, struct dt_bytes *now, struct dt_error *err)
{
    struct entry *e = find(t, key);
    bool has_value = e != NULL && e->has_value;
    if (!has_value && expected.size > 0) {
        *now = expected; /* PyTorch's server answers the same, and its clients rely on it */
        return 0;
    }
    if (!has_value || same_bytes(data_of(e), e->value_size, expected)) {
        if (dt_store_table_set(t, key, desired, err) != 0) {
            return -1;
        }
        e = find(t, key);
    } else {
        wake_all(t, e);
    }
    *now = (struct dt_bytes){data_of(e), e->value_size};
    return 0;
}

bool dt_store_table_get(const struct dt_store_table *t, struct dt_bytes key, struct dt_bytes *value)
{
    const struct entry *e = find(t, key);
    if (e == NULL || !e->has_value) {
        return false;
    }
    *value = (struct dt_bytes){data_of(e), e->value_size};
    return true;
}

bool dt_store_table_check(const struct dt_store_table *t, const struct dt_bytes *keys, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (!is_ready(find(t, keys[i]))) {
            return false;
        }
    }
    return true;
}

bool dt_store_table_delete(struct dt_store_table *t, struct dt_bytes key)
{
    struct entry *e = find(t, key);
    if (e == NULL || !e->has_value) {
        return false;
    }
    leave_value(t, e);
    e->has_value = false;
    t->value_count--;
    drop_if_empty(t, e);
    return true;
}

void dt_store_table_each(const struct dt_store_table *t,
                         void (*call)(void *user, struct dt_bytes key, struct dt_bytes value), void *user)
{
    for (size_t i = 0; i < t->bucket_count; i++) {
        for (const struct entry *e = t->buckets[i]; e != NULL; e = e->next) {
            if (e->has_value) {
                call(user, (struct dt_bytes){e->key, e->key_size}, (struct dt_bytes){data_of(e), e->value_size});
            }
        }
    }
}

/* ---- queues ---- */

int dt_store_table_push(struct dt_store_table *t, struct dt_bytes key, struct dt_bytes value, struct dt_error *err)
{
    if (check_size(t, key, value, err) != 0) {
        return -1;
    }
    struct entry *e = find_or_make(t, key);
    struct element *x = dt_alloc(sizeof *x + value.size);
    x->size = value.size;
    if (value.size > 0) {
        memcpy(x->data, value.data, value.size);
    }
    *(e->queue_last != NULL ? &e->queue_last->next : &e->queue_first) = x;
    e->queue_last = x;
    e->queue_length++;
    t->element_count++;
    t->bytes += sizeof *x + value.size;
    for (struct dt_store_wait *n = e->wait_first; n != NULL; n = n->next) {
        struct dt_store_waiter *w = n->waiter;
        /* keys that the waiter still misses; other queues may have filled without waking it */
        size_t still = 0;
        for (size_t i = 0; i < w->wait_count; i++) {
            still += w->waits[i].entry != NULL && !is_ready(w->waits[i].entry) ? 1 : 0;
        }
        if (still == 0) {
            finish(t, w);
            break;
        }
    }
    return 0;
}

int64_t dt_store_table_queue_length(const struct dt_store_table *t, struct dt_bytes key)
{
    const struct entry *e = find(t, key);
    return e != NULL ? e->queue_length : 0;
}

bool dt_store_table_queue_front(const struct dt_store_table *t, struct dt_bytes key, struct dt_bytes *value)
{
    const struct entry *e = find(t, key);
    if (e == NULL || e->queue_first == NULL) {
        return false;
    }
    *value = (struct dt_bytes){e->queue_first->data, e->queue_first->size};
    return true;
}

int64_t dt_store_table_pop(struct dt_store_table *t, struct dt_bytes key, struct dt_text *out)
{
    struct entry *e = find(t, key);
    if (e == NULL || e->queue_first == NULL) {
        return 0;
    }
    struct element *x = e->queue_first;
    int64_t length = e->queue_length--;
    dt_text_add(out, x->data, x->size);
    e->queue_first = x->next;
    if (x->next == NULL) {
        e->queue_last = NULL;
    }
    t->element_count--;
    t->bytes -= sizeof *x + x->size;
    free(x);
    drop_if_empty(t, e);
    return length;
}
