/* Carries out requests on the table, and makes their answers. Large values are not copied into the
 * answer: the answer shares them with the table, and the table's bytes are sent. So the server's
 * memory and time do not grow with the size of what clients ask for. */
#include "collectives/wire.h"

#include <stdlib.h>
#include <string.h>

enum {
    /* bytes of each answer that are copied before values are shared */
    copied_bytes = 65536,
    /* capacity of an empty buffer that is kept; thousands of clients may be idle */
    kept_bytes = 4096,
    shared_bytes = 256 /* beyond copied_bytes, values from this size on are shared */
};

/* ---- what is to be sent ---- */

void dt_wire_output_clear(struct dt_wire_output *o, struct dt_store_table *t)
{
    for (size_t i = o->first; i < o->count; i++) {
        dt_store_table_unshare(t, o->shares[i].value);
    }
    free(o->shares);
    dt_text_clear(&o->text);
    *o = (struct dt_wire_output){.copy_bytes = o->copy_bytes};
}

size_t dt_wire_output_held(const struct dt_wire_output *o)
{
    return o->text.capacity + o->capacity * sizeof *o->shares;
}

size_t dt_wire_output_left(const struct dt_wire_output *o)
{
    size_t left = 0;
    for (size_t i = o->first; i < o->count; i++) {
        left += dt_store_value_is_left(o->shares[i].value) ? o->shares[i].bytes.size : 0;
    }
    return left;
}

int dt_wire_output_gather(const struct dt_wire_output *o, struct iovec *out, int count, size_t size)
{
    size_t text_at = o->text_sent, share = o->first, skip = o->share_sent;
    int n = 0;
    while (n < count && size > 0 && (share < o->count || text_at < o->text.size)) {
        size_t text_end = share < o->count ? o->shares[share].at : o->text.size;
        const char *from =
            text_at < text_end ? o->text.data + text_at : (const char *)o->shares[share].bytes.data + skip;
        size_t have = text_at < text_end ? text_end - text_at : o->shares[share].bytes.size - skip,
               part = have < size ? have : size;
        out[n++] = (struct iovec){(void *)(uintptr_t)from, part};
        size -= part;
        if (text_at < text_end) {
            text_at += part;
        } else {
            share++;
            skip = 0;
        }
    }
    return n;
}

/* Removes the text that was sent, once it is the larger part. Otherwise a client that reads slowly
 * and keeps asking would keep it. */
static void shrink(struct dt_wire_output *o)
{
    if (dt_wire_output_unsent(o) == 0) {
        o->text_sent = 0;
        dt_text_reset(&o->text);
        if (o->text.capacity > kept_bytes) {
            dt_text_clear(&o->text);
        }
        free(o->shares);
        o->shares = NULL;
        o->first = o->count = o->capacity = 0;
    } else if (o->text_sent > 0 && o->text_sent >= o->text.size - o->text_sent) {
        o->text.size -= o->text_sent;
        memmove(o->text.data, o->text.data + o->text_sent, o->text.size);
        for (size_t i = o->first; i < o->count; i++) {
            o->shares[i].at -= o->text_sent;
        }
        o->text_sent = 0;
    }
}

void dt_wire_output_sent(struct dt_wire_output *o, struct dt_store_table *t, size_t size)
{
    while (size > 0) {
        size_t text_end = o->first < o->count ? o->shares[o->first].at : o->text.size;
        if (o->text_sent < text_end) {
            size_t part = text_end - o->text_sent < size ? text_end - o->text_sent : size;
            o->text_sent += part;
            size -= part;
            continue;
        }
        const struct dt_wire_share *s = &o->shares[o->first];
        size_t part = s->bytes.size - o->share_sent < size ? s->bytes.size - o->share_sent : size;
        o->share_sent += part;
        o->shares_size -= part;
        size -= part;
        if (o->share_sent == s->bytes.size) {
            dt_store_table_unshare(t, s->value);
            o->first++;
            o->share_sent = 0;
        }
    }
    shrink(o);
}

static void add_share(struct dt_wire_output *o, struct dt_bytes value)
{
    if (o->count == o->capacity) {
        o->capacity = o->capacity > 0 ? o->capacity * 2 : 4;
        o->shares = dt_realloc(o->shares, o->capacity * sizeof *o->shares);
    }
    o->shares[o->count++] =
        (struct dt_wire_share){.at = o->text.size, .bytes = value, .value = dt_store_table_share(value)};
    o->shares_size += value.size;
}

/* ---- answers ---- */

struct answer {
    const struct dt_store_table *table;
    const struct dt_wire_request *request;
    struct dt_wire_output *out;
    size_t begun, size; /* bytes of text before this answer; bytes of this answer so far */
};

/* Appends a value to the answer. `stored`: a whole value of the table, which may be shared. */
static int put_value(struct answer *a, struct dt_bytes value, bool stored, struct dt_error *err)
{
    size_t limit = dt_store_table_limits(a->table)->request_bytes;
    a->size += 8 + value.size;
    if (a->size > limit) {
        return dt_fail(err, DT_INVALID, "%s with an answer of more than %zu bytes",
                       dt_wire_query_name(a->request->query), limit);
    }
    size_t copied = a->out->text.size - a->begun + value.size,
           most = a->out->copy_bytes > 0 ? a->out->copy_bytes : copied_bytes;
    if (stored && value.size >= shared_bytes && copied > most) {
        dt_wire_put_i64(&a->out->text, (int64_t)value.size);
        add_share(a->out, value);
    } else {
        dt_wire_put_bytes(&a->out->text, value.data, value.size);
    }
    return 0;
}

static int put_stored(struct answer *a, struct dt_bytes key, struct dt_error *err)
{
    struct dt_bytes value = {NULL, 0};
    bool stored = dt_store_table_get(a->table, key, &value);
    return put_value(a, value, stored, err);
}

/* MULTI_GET: all values or none. */
static int put_all_stored(struct answer *a, struct dt_store_table *t, struct dt_error *err)
{
    struct dt_wire_output *o = a->out;
    size_t shares = o->count;
    for (size_t i = 0; i < a->request->count; i++) {
        if (put_stored(a, a->request->keys[i], err) != 0) {
            for (; o->count > shares; o->count--) {
                o->shares_size -= o->shares[o->count - 1].bytes.size;
                dt_store_table_unshare(t, o->shares[o->count - 1].value);
            }
            o->text.size = a->begun;
            return -1;
        }
    }
    return 0;
}

struct listing {
    struct dt_text *out;
    size_t size;
};

static void measure_key(void *user, struct dt_bytes key, struct dt_bytes value)
{
    struct listing *l = user;
    (void)value;
    l->size += 8 + key.size;
}

static void list_key(void *user, struct dt_bytes key, struct dt_bytes value)
{
    struct listing *l = user;
    (void)value;
    dt_wire_put_bytes(l->out, key.data, key.size);
}

static int answer_list(const struct dt_store_table *t, struct dt_text *out, struct dt_error *err)
{
    struct listing l = {out, 0};
    dt_store_table_each(t, measure_key, &l);
    if (l.size > dt_store_table_limits(t)->request_bytes) {
        return dt_fail(err, DT_INVALID, "LIST_KEYS of more than %zu bytes", dt_store_table_limits(t)->request_bytes);
    }
    dt_wire_put_i64(out, dt_store_table_key_count(t));
    dt_store_table_each(t, list_key, &l);
    return 0;
}

static void answer_pop(struct dt_store_table *t, struct dt_bytes key, struct dt_text *out)
{
    struct dt_bytes first = {NULL, 0};
    bool some = dt_store_table_queue_front(t, key, &first);
    dt_wire_put_i64(out, dt_store_table_queue_length(t, key));
    if (some) {
        dt_wire_put_i64(out, (int64_t)first.size);
        (void)dt_store_table_pop(t, key, out);
    }
}

/* Checks total_bytes: keys that a client waits for take room, too. */
static int check_room(const struct dt_store_table *t, const struct dt_wire_request *r, struct dt_error *err)
{
    size_t size = dt_store_table_bytes(t);
    for (size_t i = 0; i < r->count; i++) {
        size += r->keys[i].size + 256;
    }
    if (size > dt_store_table_limits(t)->total_bytes) {
        return dt_fail(err, DT_NO_MEMORY, "WAIT for %zu keys: the store is full", r->count);
    }
    return 0;
}

int dt_wire_answer(struct dt_store_table *t, struct dt_store_waiter *w, const struct dt_wire_request *r,
                   struct dt_wire_output *output, struct dt_error *err)
{
    struct answer a = {t, r, output, output->text.size, 0};
    struct dt_text *out = &output->text;
    struct dt_bytes value = {NULL, 0};
    int64_t total = 0;
    bool passed = false;
    switch (r->query) {
    case DT_WIRE_VALIDATE:
        return 0;
    case DT_WIRE_SET:
        return dt_store_table_set(t, r->key, r->value, err);
    case DT_WIRE_APPEND:
        return dt_store_table_append(t, r->key, r->value, err);
    case DT_WIRE_QUEUE_PUSH:
        return dt_store_table_push(t, r->key, r->value, err);
    case DT_WIRE_MULTI_SET:
        for (size_t i = 0; i < r->count; i++) {
            if (dt_store_table_set(t, r->keys[i], r->values[i], err) != 0) {
                return -1;
            }
        }
        return 0;
    case DT_WIRE_COMPARE_SET:
        if (dt_store_table_compare_set(t, r->key, r->value, r->desired, &value, err) != 0) {
            return -1;
        }
        return put_value(&a, value, value.data != r->value.data, err);
    case DT_WIRE_GET:
        return put_stored(&a, r->key, err);
    case DT_WIRE_ADD:
        if (dt_store_table_add(t, r->key, r->number, &total, err) != 0) {
            return -1;
        }
        dt_wire_put_i64(out, total);
        return 0;
    case DT_WIRE_CHECK:
        dt_wire_put_u8(out, dt_store_table_check(t, r->keys, r->count) ? DT_WIRE_READY : DT_WIRE_NOT_READY);
        return 0;
    case DT_WIRE_WAIT:
        if (check_room(t, r, err) != 0) {
            return -1;
        }
        if (dt_store_table_wait(t, w, r->keys, r->count)) {
            dt_wire_put_u8(out, DT_WIRE_STOP_WAITING);
        }
        return 0;
    case DT_WIRE_BARRIER:
        if (dt_store_table_barrier(t, w, r->key, r->number, &passed, err) != 0) {
            return -1;
        }
        if (passed) {
            dt_wire_put_u8(out, DT_WIRE_STOP_WAITING);
        }
        return 0;
    case DT_WIRE_CANCEL_WAIT:
        dt_store_table_cancel(t, w);
        dt_wire_put_u8(out, DT_WIRE_WAIT_CANCELED);
        return 0;
    case DT_WIRE_KEY_COUNT:
        dt_wire_put_i64(out, dt_store_table_key_count(t));
        return 0;
    case DT_WIRE_DELETE:
        dt_wire_put_i64(out, dt_store_table_delete(t, r->key) ? 1 : 0);
        return 0;
    case DT_WIRE_MULTI_GET:
        return put_all_stored(&a, t, err);
    case DT_WIRE_PING:
        dt_wire_put_u32(out, r->word);
        return 0;
    case DT_WIRE_QUEUE_POP:
        answer_pop(t, r->key, out);
        return 0;
    case DT_WIRE_QUEUE_LENGTH:
        dt_wire_put_i64(out, dt_store_table_queue_length(t, r->key));
        return 0;
    case DT_WIRE_LIST_KEYS:
        return answer_list(t, out, err);
    case DT_WIRE_QUERY_COUNT:
        break;
    }
    return dt_fail(err, DT_INTERNAL, "query %d has no answer", (int)r->query);
}
