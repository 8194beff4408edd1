/* A hash table of entries. An entry exists for a key that has a value, a queue or waiters, and is
 * removed with the last of them. store_entry.c has the entries, store_waits.c the waits. */
#include "collectives/store_entry.h"

#include <assert.h>
#include <stdlib.h>

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

/* ---- the table ---- */

static void empty(struct dt_store_table *t)
{
    while (t->waiters != NULL) {
        dt_store_unpark(t, t->waiters);
    }
    for (size_t i = 0; i < t->bucket_count; i++) {
        for (struct entry *e = t->buckets[i], *next; e != NULL; e = next) {
            next = e->next;
            dt_store_free_queue(t, e);
            dt_store_leave_value(t, e);
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
    dt_store_put_value(t, e, value);
    dt_store_wake_all(t, e);
}

int dt_store_table_set(struct dt_store_table *t, struct dt_bytes key, struct dt_bytes value, struct dt_error *err)
{
    if (check_size(t, key, value, err) != 0) {
        return -1;
    }
    set_value(t, dt_store_find_or_make(t, key), value);
    return 0;
}

int dt_store_table_append(struct dt_store_table *t, struct dt_bytes key, struct dt_bytes value, struct dt_error *err)
{
    if (check_size(t, key, value, err) != 0) {
        return -1;
    }
    const struct entry *old = dt_store_find(t, key);
    /* growing may also take a copy of the old bytes */
    size_t doubled = old != NULL ? old->value_size : 0;
    if (t->bytes + doubled + value.size > t->limits.total_bytes) {
        return dt_fail(err, DT_NO_MEMORY, "append of %zu bytes to %zu: the store is full", value.size, doubled);
    }
    struct entry *e = dt_store_find_or_make(t, key);
    size_t size = e->has_value ? e->value_size : 0;
    if (size + value.size > dt_store_capacity_of(e)) {
        dt_store_reserve(t, e, size + value.size);
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
    dt_store_wake_all(t, e);
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
    struct entry *e = dt_store_find(t, key);
    if (e != NULL && e->has_value && !parse_number(dt_store_data_of(e), e->value_size, &number)) {
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
    set_value(t, e != NULL ? e : dt_store_find_or_make(t, key), value);
    return 0;
}

int dt_store_table_compare_set(struct dt_store_table *t, struct dt_bytes key, struct dt_bytes expected,
                               struct dt_bytes desired, struct dt_bytes *now, struct dt_error *err)
{
    struct entry *e = dt_store_find(t, key);
    bool has_value = e != NULL && e->has_value;
    if (!has_value && expected.size > 0) {
        *now = expected; /* PyTorch's server answers the same, and its clients rely on it */
        return 0;
    }
    if (!has_value || dt_store_same_bytes(dt_store_data_of(e), e->value_size, expected)) {
        if (dt_store_table_set(t, key, desired, err) != 0) {
            return -1;
        }
        e = dt_store_find(t, key);
    } else {
        dt_store_wake_all(t, e);
    }
    *now = (struct dt_bytes){dt_store_data_of(e), e->value_size};
    return 0;
}

bool dt_store_table_get(const struct dt_store_table *t, struct dt_bytes key, struct dt_bytes *value)
{
    const struct entry *e = dt_store_find(t, key);
    if (e == NULL || !e->has_value) {
        return false;
    }
    *value = (struct dt_bytes){dt_store_data_of(e), e->value_size};
    return true;
}

bool dt_store_table_check(const struct dt_store_table *t, const struct dt_bytes *keys, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (!dt_store_is_ready(dt_store_find(t, keys[i]))) {
            return false;
        }
    }
    return true;
}

bool dt_store_table_delete(struct dt_store_table *t, struct dt_bytes key)
{
    struct entry *e = dt_store_find(t, key);
    if (e == NULL || !e->has_value) {
        return false;
    }
    dt_store_leave_value(t, e);
    e->has_value = false;
    t->value_count--;
    dt_store_drop_if_empty(t, e);
    return true;
}

void dt_store_table_each(const struct dt_store_table *t,
                         void (*call)(void *user, struct dt_bytes key, struct dt_bytes value), void *user)
{
    for (size_t i = 0; i < t->bucket_count; i++) {
        for (const struct entry *e = t->buckets[i]; e != NULL; e = e->next) {
            if (e->has_value) {
                call(user, (struct dt_bytes){e->key, e->key_size},
                     (struct dt_bytes){dt_store_data_of(e), e->value_size});
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
    struct entry *e = dt_store_find_or_make(t, key);
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
            still += w->waits[i].entry != NULL && !dt_store_is_ready(w->waits[i].entry) ? 1 : 0;
        }
        if (still == 0) {
            dt_store_finish_wait(t, w);
            break;
        }
    }
    return 0;
}

int64_t dt_store_table_queue_length(const struct dt_store_table *t, struct dt_bytes key)
{
    const struct entry *e = dt_store_find(t, key);
    return e != NULL ? e->queue_length : 0;
}

bool dt_store_table_queue_front(const struct dt_store_table *t, struct dt_bytes key, struct dt_bytes *value)
{
    const struct entry *e = dt_store_find(t, key);
    if (e == NULL || e->queue_first == NULL) {
        return false;
    }
    *value = (struct dt_bytes){e->queue_first->data, e->queue_first->size};
    return true;
}

int64_t dt_store_table_pop(struct dt_store_table *t, struct dt_bytes key, struct dt_text *out)
{
    struct entry *e = dt_store_find(t, key);
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
    dt_store_drop_if_empty(t, e);
    return length;
}
