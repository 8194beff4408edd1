/* The store's server side from hostile bytes: what the parser hands out is within its limits,
 * whatever they are. The first byte says in pieces of which size the rest arrives and whether
 * the handshake is done already. Two connections on one table get the same stream, the second a
 * piece behind, so that waits, queues, barriers and closes of one meet those of the other. */
#include "driver.h"

#include "collectives/wire.h"

#include <stdlib.h>

struct side {
    struct dt_wire_parser parser;
    struct dt_store_waiter waiter;
    struct dt_wire_output out;
    int open;
};

static void on_ready(struct dt_store_waiter *w)
{
    struct side *s = w->user;
    if (!s->open) {
        abort(); /* a closed connection must not be woken */
    }
    dt_wire_put_u8(&s->out.text, DT_WIRE_STOP_WAITING);
}

static void end(struct dt_store_table *t, struct side *s)
{
    dt_store_table_cancel(t, &s->waiter);
    dt_wire_parser_clear(&s->parser);
    dt_wire_output_clear(&s->out, t);
    s->open = 0;
}

static void need(int condition)
{
    if (!condition) {
        abort();
    }
}

static size_t check_bytes(struct dt_bytes b, size_t limit)
{
    need(b.size <= limit && (b.size == 0 || b.data != NULL));
    for (size_t i = 0; i < b.size; i++) { /* all of it can be read */
        volatile char byte = ((const char *)b.data)[i];
        (void)byte;
    }
    return b.size;
}

/* What the table and the server rely on. */
static void check_request(const struct dt_wire_request *r, const struct dt_store_limits *l)
{
    size_t sum = check_bytes(r->key, l->key_bytes) + check_bytes(r->value, l->value_bytes) +
                 check_bytes(r->desired, l->value_bytes);
    need((unsigned)r->query < DT_WIRE_QUERY_COUNT && r->count <= l->key_count);
    need(r->query != DT_WIRE_BARRIER || (r->number >= 1 && r->number <= INT32_MAX));
    need(r->query != DT_WIRE_VALIDATE || r->word == DT_WIRE_MAGIC);
    need(r->query != DT_WIRE_MULTI_SET || r->count == 0 || r->values != NULL);
    for (size_t i = 0; i < r->count; i++) {
        sum +=
            check_bytes(r->keys[i], l->key_bytes) + (r->values != NULL ? check_bytes(r->values[i], l->value_bytes) : 0);
    }
    need(sum <= l->request_bytes);
}

/* Sends some of what there is. */
static void send_some(struct dt_store_table *t, struct side *s, size_t size)
{
    struct iovec pieces[4];
    size_t sum = 0, before = dt_wire_output_unsent(&s->out);
    int count = dt_wire_output_gather(&s->out, pieces, 4, size);
    for (int i = 0; i < count; i++) {
        sum += check_bytes((struct dt_bytes){pieces[i].iov_base, pieces[i].iov_len}, size);
    }
    need(sum <= size && sum <= before && (sum > 0 || before == 0));
    dt_wire_output_sent(&s->out, t, sum);
    need(dt_wire_output_unsent(&s->out) == before - sum);
}

static void feed(struct dt_store_table *t, struct side *s, const uint8_t *data, size_t size)
{
    struct dt_wire_request r;
    struct dt_error err;
    int rc;
    dt_wire_feed(&s->parser, data, size);
    while ((rc = dt_wire_next(&s->parser, &r, &err)) == 1) {
        size_t before = dt_wire_output_unsent(&s->out);
        check_request(&r, dt_store_table_limits(t));
        rc = dt_wire_answer(t, &s->waiter, &r, &s->out, &err);
        if (rc != 0) {
            break;
        }
        need(dt_wire_output_unsent(&s->out) - before <= dt_store_table_limits(t)->request_bytes + 16);
    }
    if (rc != 0) {
        end(t, s);
    } else {
        send_some(t, s, 1 + size * 3);
    }
}

int dt_fuzz(const uint8_t *data, size_t size)
{
    static const uint8_t hello[5] = {0x00, 0xce, 0xf7, 0x85, 0x3c};
    static const struct dt_store_limits limits = {
        .key_bytes = 64, .value_bytes = 512, .key_count = 16, .request_bytes = 4096, .total_bytes = 65536};
    struct dt_store_table *t = dt_store_table_open(&limits);
    struct side sides[2] = {0};
    size_t piece = size > 0 ? (size_t)1 + data[0] % 64 : 1;
    for (int i = 0; i < 2; i++) {
        dt_wire_parser_init(&sides[i].parser, &limits);
        sides[i].waiter = (struct dt_store_waiter){.ready = on_ready, .user = &sides[i]};
        sides[i].open = 1;
        sides[i].out.copy_bytes = i == 0 ? 1 : SIZE_MAX; /* shares what it can; copies all */
        if (size > 0 && (data[0] & 0x80) != 0) {         /* half of the inputs begin validated */
            feed(t, &sides[i], hello, sizeof hello);
        }
    }
    int turn = 0; /* the second connection replays the same stream, one piece behind */
    for (size_t at = 1; at < size; at += piece) {
        size_t step = size - at < piece ? size - at : piece;
        if (sides[0].open) {
            feed(t, &sides[0], data + at, step);
        }
        if (sides[1].open && turn++ > 0) {
            feed(t, &sides[1], data + at - piece, piece);
        }
        need(dt_store_table_bytes(t) <= 2 * limits.total_bytes);
    }
    for (int i = 0; i < 2; i++) {
        if (sides[i].open) {
            end(t, &sides[i]);
        }
    }
    need(dt_store_table_left_bytes(t) == 0);
    dt_store_table_close(t);
    return 0;
}
