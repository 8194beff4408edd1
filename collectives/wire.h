/* Frames of the TCPStore protocol (PyTorch 2.2 and later): query codes, an incremental parser for
 * the server's side, the answers, and small writers for both sides. No sockets. A request is a code
 * byte and its fields. Strings have a 64-bit length in front. Everything is little-endian. The
 * parser takes a stream cut anywhere and yields whole requests. It refuses a connection that does
 * not begin with VALIDATE, unknown codes, and sizes over the limits as soon as the length field is
 * there. */
#ifndef DT_COLLECTIVES_WIRE_H
#define DT_COLLECTIVES_WIRE_H

#include "base/error.h"
#include "base/text.h"
#include "collectives/store_table.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

enum dt_wire_query {
    DT_WIRE_VALIDATE,
    DT_WIRE_SET,
    DT_WIRE_COMPARE_SET,
    DT_WIRE_GET,
    DT_WIRE_ADD,
    DT_WIRE_CHECK,
    DT_WIRE_WAIT,
    DT_WIRE_KEY_COUNT,
    DT_WIRE_DELETE,
    DT_WIRE_APPEND,
    DT_WIRE_MULTI_GET,
    DT_WIRE_MULTI_SET,
    DT_WIRE_CANCEL_WAIT,
    DT_WIRE_PING,
    DT_WIRE_QUEUE_PUSH,
    DT_WIRE_QUEUE_POP,
    DT_WIRE_QUEUE_LENGTH,
    DT_WIRE_LIST_KEYS,
    DT_WIRE_BARRIER,
    DT_WIRE_QUERY_COUNT
};
#define DT_WIRE_MAGIC 0x3C85F7CEu
/* In PING's nonce: this client polls for its answers instead of sleeping, and sends its next
 * request at once. */
#define DT_WIRE_LOOKS 0x80000000u
enum { DT_WIRE_READY = 0, DT_WIRE_NOT_READY = 1, DT_WIRE_STOP_WAITING = 0, DT_WIRE_WAIT_CANCELED = 1 };

/* "SET", for statistics. */
const char *dt_wire_query_name(enum dt_wire_query query);

struct dt_wire_request {
    enum dt_wire_query query;
    /* VALIDATE's magic; PING's nonce: a process id, and DT_WIRE_LOOKS */
    uint32_t word;
    int64_t number;                      /* ADD's delta, any number; BARRIER's world size, from 1
                                          * to INT32_MAX */
    struct dt_bytes key, value, desired; /* for COMPARE_SET, value is the expected value */
    size_t count;                        /* of keys (for MULTI_SET also of values) */
    const struct dt_bytes *keys, *values;
};

struct dt_wire_parser {
    struct dt_store_limits limits;
    bool validated;
    struct dt_text held;           /* the start of an unfinished request */
    const char *window;            /* the bytes being parsed: the caller's, or `held` */
    size_t window_size, start, at; /* start of the request, and the next byte to parse */
    /* the request in progress; offsets are from its start */
    bool begun;
    int query;
    const char *field; /* the next field to parse */
    size_t todo, done; /* items of a repeated field: keys or pairs */
    struct dt_wire_span {
        size_t at, size;
    } * spans; /* strings found so far */
    size_t span_count, span_capacity;
    struct dt_bytes *bytes; /* the same as pointers */
    size_t bytes_capacity;
    uint32_t word;
    int64_t number;
};

void dt_wire_parser_init(struct dt_wire_parser *p, const struct dt_store_limits *limits);
void dt_wire_parser_clear(struct dt_wire_parser *p);
/* Bytes of memory that the parser keeps. */
size_t dt_wire_parser_held(const struct dt_wire_parser *p);
/* Gives the parser bytes that were read. They must stay until dt_wire_next has returned 0 or -1. */
void dt_wire_feed(struct dt_wire_parser *p, const void *data, size_t size);
/* 1: a request, valid until the next call; 0: all bytes are consumed, feed more; -1: bad input,
 * close the connection. */
int dt_wire_next(struct dt_wire_parser *p, struct dt_wire_request *out, struct dt_error *err);

/* Answers to be sent: text, and values that belong to the table, inserted into the text. All zeros:
 * empty. */
struct dt_wire_output {
    /* at least this much of an answer is copied before values are shared; 0: 64 KiB; SIZE_MAX: all
     * of it */
    size_t copy_bytes;
    struct dt_text text;
    size_t text_sent;
    struct dt_wire_share {
        size_t at; /* bytes of text before the value */
        struct dt_bytes bytes;
        struct dt_store_value *value;
    } * shares;
    size_t first, count, capacity; /* of shares; those before `first` are sent */
    /* bytes of shares[first] that are sent; bytes of all shares that are not sent */
    size_t share_sent, shares_size;
};
/* Empties the output, and frees its memory. */
void dt_wire_output_clear(struct dt_wire_output *o, struct dt_store_table *t);
/* held: bytes of the output's own memory. left: bytes of shared values that no key has any more. */
size_t dt_wire_output_held(const struct dt_wire_output *o);
size_t dt_wire_output_left(const struct dt_wire_output *o);
/* The next bytes to send, at most `size` bytes in at most `count` pieces. The output still owns
 * them. Returns the number of pieces. */
int dt_wire_output_gather(const struct dt_wire_output *o, struct iovec *out, int count, size_t size);
/* Removes the next `size` bytes, which were sent. */
void dt_wire_output_sent(struct dt_wire_output *o, struct dt_store_table *t, size_t size);
static inline size_t dt_wire_output_unsent(const struct dt_wire_output *o)
{
    return o->text.size - o->text_sent + o->shares_size;
}

/* Carries out a request on the table, and appends its answer to out if there is one now. A WAIT or
 * BARRIER that must wait parks w; w->ready then sends the client one byte DT_WIRE_STOP_WAITING. -1:
 * the request is refused, close the connection (part of the answer may be in out). */
int dt_wire_answer(struct dt_store_table *t, struct dt_store_waiter *w, const struct dt_wire_request *r,
                   struct dt_wire_output *out, struct dt_error *err);

/* Writers. A request is written by its query's layout, from the members that the parser fills. */
void dt_wire_put_request(struct dt_text *out, const struct dt_wire_request *r);
void dt_wire_put_u8(struct dt_text *out, uint8_t value);
void dt_wire_put_u32(struct dt_text *out, uint32_t value);
void dt_wire_put_i64(struct dt_text *out, int64_t value);
void dt_wire_put_bytes(struct dt_text *out, const void *data, size_t size); /* length and bytes */
uint32_t dt_wire_read_u32(const void *p);
int64_t dt_wire_read_i64(const void *p);

#endif
