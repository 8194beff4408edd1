/* The store's server side from hostile bytes. The first byte says in pieces of which size the rest arrives and whether the handshake
 * is done already. Two connections on one table get the same stream, the second a piece behind, so that waits, queues, barriers
 * and closes of one meet those of the other. */
#include "driver.h"

#include "collectives/wire.h"

#include <stdlib.h>

struct side {
    struct dt_wire_parser parser;
    struct dt_store_waiter waiter;
    struct dt_text out;
    int open;
};

static void on_ready(struct dt_store_waiter *w)
{
    struct side *s = w->user;
    if (!s->open) {
        abort(); /* a closed connection must not be woken */
    }
    dt_wire_put_u8(&s->out, DT_WIRE_STOP_WAITING);
}

static void end(struct dt_store_table *t, struct side *s)
{
    dt_store_table_cancel(t, &s->waiter);
    dt_wire_parser_clear(&s->parser);
    dt_text_clear(&s->out);
    s->open = 0;
}

static void feed(struct dt_store_table *t, struct side *s, const uint8_t *data, size_t size)
{
    struct dt_wire_request r;
    struct dt_error err;
    int rc;
    dt_wire_feed(&s->parser, data, size);
    while ((rc = dt_wire_next(&s->parser, &r, &err)) == 1) {
        rc = dt_wire_answer(t, &s->waiter, &r, &s->out, &err);
        if (rc != 0) {
            break;
        }
    }
    if (rc != 0) {
        end(t, s);
    }
}

int dt_fuzz(const uint8_t *data, size_t size)
{
    static const uint8_t hello[5] = {0x00, 0xce, 0xf7, 0x85, 0x3c};
    static const struct dt_store_limits limits = {.key_bytes = 64, .value_bytes = 256, .key_count = 16, .request_bytes = 4096, .total_bytes = 65536};
    struct dt_store_table *t = dt_store_table_open(&limits);
    struct side sides[2] = {0};
    size_t piece = size > 0 ? (size_t)1 + data[0] % 64 : 1;
    for (int i = 0; i < 2; i++) {
        dt_wire_parser_init(&sides[i].parser, &limits);
        sides[i].waiter = (struct dt_store_waiter){.ready = on_ready, .user = &sides[i]};
        sides[i].open = 1;
        if (size > 0 && (data[0] & 0x80) != 0) { /* half of the inputs begin validated */
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
        if (dt_store_table_bytes(t) > 2 * limits.total_bytes) {
            abort(); /* more is stored than may be */
        }
    }
    for (int i = 0; i < 2; i++) {
        if (sides[i].open) {
            end(t, &sides[i]);
        }
    }
    dt_store_table_close(t);
    return 0;
}
