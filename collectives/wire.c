/* The parser walks a request along the letters of its row in `layouts`: u word, i 64-bit number, s
 * string, v value, K count and keys, P count and pairs. Strings are kept as offsets from the start
 * of the request, so the bytes may move while a request is incomplete. No byte is parsed twice,
 * however the stream is cut. */
#include "collectives/wire.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* capacity of a buffer that is kept between requests; thousands of clients may be idle */
enum { kept_bytes = 4096 };

static const struct {
    const char *name, *fields;
} layouts[DT_WIRE_QUERY_COUNT] = {
    [DT_WIRE_VALIDATE] = {"VALIDATE", "u"},
    [DT_WIRE_SET] = {"SET", "sv"},
    [DT_WIRE_COMPARE_SET] = {"COMPARE_SET", "svv"},
    [DT_WIRE_GET] = {"GET", "s"},
    [DT_WIRE_ADD] = {"ADD", "si"},
    [DT_WIRE_CHECK] = {"CHECK", "K"},
    [DT_WIRE_WAIT] = {"WAIT", "K"},
    [DT_WIRE_KEY_COUNT] = {"GETNUMKEYS", ""},
    [DT_WIRE_DELETE] = {"DELETE_KEY", "s"},
    [DT_WIRE_APPEND] = {"APPEND", "sv"},
    [DT_WIRE_MULTI_GET] = {"MULTI_GET", "K"},
    [DT_WIRE_MULTI_SET] = {"MULTI_SET", "P"},
    [DT_WIRE_CANCEL_WAIT] = {"CANCEL_WAIT", ""},
    [DT_WIRE_PING] = {"PING", "u"},
    [DT_WIRE_QUEUE_PUSH] = {"QUEUE_PUSH", "sv"},
    [DT_WIRE_QUEUE_POP] = {"QUEUE_POP", "s"},
    [DT_WIRE_QUEUE_LENGTH] = {"QUEUE_LEN", "s"},
    [DT_WIRE_LIST_KEYS] = {"LIST_KEYS", ""},
    [DT_WIRE_BARRIER] = {"BARRIER", "si"},
};

const char *dt_wire_query_name(enum dt_wire_query query)
{
    return (unsigned)query < DT_WIRE_QUERY_COUNT ? layouts[query].name : "?";
}

/* ---- numbers ---- */

static uint64_t read_little(const unsigned char *p, size_t size)
{
    uint64_t value = 0;
    for (size_t i = 0; i < size; i++) {
        value |= (uint64_t)p[i] << (8 * i);
    }
    return value;
}

static void put_little(struct dt_text *out, uint64_t value, size_t size)
{
    unsigned char bytes[8];
    for (size_t i = 0; i < size; i++) {
        bytes[i] = (unsigned char)(value >> (8 * i));
    }
    dt_text_add(out, bytes, size);
}

uint32_t dt_wire_read_u32(const void *p)
{
    return (uint32_t)read_little(p, 4);
}

int64_t dt_wire_read_i64(const void *p)
{
    return (int64_t)read_little(p, 8);
}

void dt_wire_put_u8(struct dt_text *out, uint8_t value)
{
    dt_text_add(out, &value, 1);
}

void dt_wire_put_u32(struct dt_text *out, uint32_t value)
{
    put_little(out, value, 4);
}

void dt_wire_put_i64(struct dt_text *out, int64_t value)
{
    put_little(out, (uint64_t)value, 8);
}

void dt_wire_put_bytes(struct dt_text *out, const void *data, size_t size)
{
    put_little(out, size, 8);
    dt_text_add(out, data, size);
}

void dt_wire_put_request(struct dt_text *out, const struct dt_wire_request *r)
{
    const struct dt_bytes strings[] = {r->key, r->value, r->desired};
    size_t string = 0;
    dt_wire_put_u8(out, (uint8_t)r->query);
    for (const char *field = layouts[r->query].fields; *field != '\0'; field++) {
        switch (*field) {
        case 'u':
            dt_wire_put_u32(out, r->word);
            break;
        case 'i':
            dt_wire_put_i64(out, r->number);
            break;
        case 's':
        case 'v':
            dt_wire_put_bytes(out, strings[string].data, strings[string].size);
            string++;
            break;
        default:
            dt_wire_put_i64(out, (int64_t)r->count);
            for (size_t i = 0; i < r->count; i++) {
                dt_wire_put_bytes(out, r->keys[i].data, r->keys[i].size);
                if (*field == 'P') {
                    dt_wire_put_bytes(out, r->values[i].data, r->values[i].size);
                }
            }
        }
    }
}

/* ---- the parser ---- */

void dt_wire_parser_init(struct dt_wire_parser *p, const struct dt_store_limits *limits)
{
    *p = (struct dt_wire_parser){.limits = dt_store_limits_or_default(limits)};
}

void dt_wire_parser_clear(struct dt_wire_parser *p)
{
    dt_text_clear(&p->held);
    free(p->spans);
    free(p->bytes);
    *p = (struct dt_wire_parser){.limits = p->limits};
}

size_t dt_wire_parser_held(const struct dt_wire_parser *p)
{
    return p->held.capacity + p->span_capacity * sizeof *p->spans + p->bytes_capacity * sizeof *p->bytes;
}

void dt_wire_feed(struct dt_wire_parser *p, const void *data, size_t size)
{
    if (p->held.size > 0) {
        dt_text_add(&p->held, data, size);
        p->window = p->held.data;
        p->window_size = p->held.size;
    } else {
        p->window = data;
        p->window_size = size;
        p->start = 0;
    }
}

/* Keeps the unfinished request for the next feed. `at` stays relative to its start. Large buffers
 * are freed with their request. */
static int hold_rest(struct dt_wire_parser *p)
{
    size_t rest = p->window_size - p->start;
    if (p->held.size == 0) {
        if (rest > 0) {
            dt_text_add(&p->held, p->window + p->start, rest);
        }
    } else if (rest > 0) {
        if (p->start > 0) {
            memmove(p->held.data, p->held.data + p->start, rest);
            p->held.size = rest;
        }
    } else if (p->held.capacity > kept_bytes) {
        dt_text_clear(&p->held);
    } else {
        dt_text_reset(&p->held);
    }
    p->start = 0;
    p->window = p->held.data;
    p->window_size = p->held.size;
    return 0;
}

/* Takes size bytes from the request. Null: not all of them are here yet. */
static const char *take(struct dt_wire_parser *p, size_t size)
{
    size_t have = p->window_size - p->start - p->at;
    if (have < size) {
        return NULL;
    }
    const char *from = p->window + p->start + p->at;
    p->at += size;
    return from;
}

static void add_span(struct dt_wire_parser *p, size_t size)
{
    if (p->span_count == p->span_capacity) {
        p->span_capacity = p->span_capacity > 0 ? p->span_capacity * 2 : 4;
        p->spans = dt_realloc(p->spans, p->span_capacity * sizeof *p->spans);
    }
    p->spans[p->span_count++] = (struct dt_wire_span){p->at, size};
}

/* Parses one string or value: 1 done, 0 incomplete, -1 too long. */
static int parse_string(struct dt_wire_parser *p, bool is_key, struct dt_error *err)
{
    const char *length = take(p, 8);
    if (length == NULL) {
        return 0;
    }
    uint64_t size = read_little((const unsigned char *)length, 8);
    size_t limit = is_key ? p->limits.key_bytes : p->limits.value_bytes;
    if (size > limit) {
        return dt_fail(err, DT_INVALID, "%s with a %s of %llu bytes: at most %zu", layouts[p->query].name,
                       is_key ? "key" : "value", (unsigned long long)size, limit);
    }
    if (p->at + size > p->limits.request_bytes) {
        return dt_fail(err, DT_INVALID, "%s of more than %zu bytes", layouts[p->query].name, p->limits.request_bytes);
    }
    add_span(p, (size_t)size);
    if (take(p, (size_t)size) == NULL) {
        p->span_count--;
        p->at -= 8;
        return 0;
    }
    return 1;
}

static int parse_field(struct dt_wire_parser *p, char field, struct dt_error *err)
{
    const char *from;
    switch (field) {
    case 'u':
        if ((from = take(p, 4)) == NULL) {
            return 0;
        }
        p->word = dt_wire_read_u32(from);
        return 1;
    case 'i':
        if ((from = take(p, 8)) == NULL) {
            return 0;
        }
        p->number = dt_wire_read_i64(from);
        if (p->query == DT_WIRE_BARRIER && (p->number < 1 || p->number > INT32_MAX)) {
            return dt_fail(err, DT_INVALID, "BARRIER of %lld callers", (long long)p->number);
        }
        return 1;
    case 's':
        return parse_string(p, true, err);
    case 'v':
        return parse_string(p, false, err);
    default:
        break;
    }
    if (p->todo == SIZE_MAX) { /* for K and P, first the count */
        if ((from = take(p, 8)) == NULL) {
            return 0;
        }
        uint64_t count = read_little((const unsigned char *)from, 8);
        if (count > p->limits.key_count) {
            return dt_fail(err, DT_INVALID, "%s with %llu keys: at most %zu", layouts[p->query].name,
                           (unsigned long long)count, p->limits.key_count);
        }
        p->todo = (size_t)count * (field == 'P' ? 2 : 1);
        p->done = 0;
    }
    while (p->done < p->todo) {
        int rc = parse_string(p, field == 'K' || p->done % 2 == 0, err);
        if (rc != 1) {
            return rc;
        }
        p->done++;
    }
    return 1;
}

static int begin_request(struct dt_wire_parser *p, struct dt_error *err)
{
    const char *from = take(p, 1);
    if (from == NULL) {
        return 0;
    }
    p->query = (unsigned char)*from;
    if (!p->validated && p->query != DT_WIRE_VALIDATE) {
        return dt_fail(err, DT_INVALID, "begins with byte 0x%02x: not a store client", (unsigned)p->query);
    }
    if (p->validated && p->query == DT_WIRE_VALIDATE) {
        return dt_fail(err, DT_INVALID, "a second VALIDATE");
    }
    if (p->query >= DT_WIRE_QUERY_COUNT) {
        return dt_fail(err, DT_INVALID, "unknown query code %d", p->query);
    }
    p->begun = true;
    p->field = layouts[p->query].fields;
    p->todo = SIZE_MAX;
    p->span_count = 0;
    p->word = 0;
    p->number = 0;
    return 1;
}

/* Turns offsets into pointers. The spans of MULTI_SET alternate: its keys go into the first half,
 * its values into the second. */
static void resolve(struct dt_wire_parser *p, struct dt_wire_request *out)
{
    if (p->bytes_capacity < p->span_count) {
        p->bytes_capacity = p->span_capacity;
        p->bytes = dt_realloc(p->bytes, p->bytes_capacity * sizeof *p->bytes);
    }
    const char *base = p->window + p->start;
    bool pairs = p->query == DT_WIRE_MULTI_SET;
    size_t half = p->span_count / 2;
    for (size_t i = 0; i < p->span_count; i++) {
        size_t to = pairs ? i / 2 + (i % 2) * half : i;
        p->bytes[to] = (struct dt_bytes){base + p->spans[i].at, p->spans[i].size};
    }
    *out = (struct dt_wire_request){.query = (enum dt_wire_query)p->query, .word = p->word, .number = p->number};
    const char *fields = layouts[p->query].fields;
    if (fields[0] == 'K' || pairs) {
        out->count = pairs ? half : p->span_count;
        out->keys = p->bytes;
        /* no pointer arithmetic on null */
        out->values = half > 0 && pairs ? p->bytes + half : NULL;
        return;
    }
    if (p->span_count > 0) {
        out->key = p->bytes[0];
    }
    if (p->span_count > 1) {
        out->value = p->bytes[1];
    }
    if (p->span_count > 2) {
        out->desired = p->bytes[2];
    }
}

/* Frees the memory of a large request before the next one. */
static void shrink(struct dt_wire_parser *p)
{
    if (p->span_capacity * sizeof *p->spans > kept_bytes) {
        free(p->spans);
        free(p->bytes);
        p->spans = NULL;
        p->bytes = NULL;
        p->span_capacity = p->bytes_capacity = 0;
    }
    p->span_count = 0;
}

int dt_wire_next(struct dt_wire_parser *p, struct dt_wire_request *out, struct dt_error *err)
{
    if (!p->begun) {
        shrink(p);
        int rc = begin_request(p, err);
        if (rc != 1) {
            return rc == 0 ? hold_rest(p) : -1;
        }
    }
    for (; *p->field != '\0'; p->field++) {
        int rc = parse_field(p, *p->field, err);
        if (rc != 1) {
            return rc == 0 ? hold_rest(p) : -1;
        }
    }
    if (p->query == DT_WIRE_VALIDATE) {
        if (p->word != DT_WIRE_MAGIC) {
            return dt_fail(err, DT_INVALID, "VALIDATE with the wrong magic 0x%08x", (unsigned)p->word);
        }
        p->validated = true;
    }
    resolve(p, out);
    p->start += p->at;
    p->at = 0;
    p->begun = false;
    return 1;
}
