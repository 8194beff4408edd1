/* One client with two ways to a table. Over a socket, a request is written and its answer read. On
 * a table of this process, the request is carried out under a lock; the answer goes into a buffer
 * of the client, where a later wake-up may append to it. Either way `receive` yields the next bytes
 * of the answer, so the code above it exists once. */
#include "collectives/store.h"

#include "base/clock.h"
#include "collectives/net.h"
#include "collectives/store_table.h"
#include "collectives/wire.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* how often a wait on a table reads the page's order */
static const double order_interval_s = 0.02;
/* timeout of requests on a table that do not wait for a key */
static const double local_timeout_s = 60;

struct dt_store_local {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct dt_store_table *table;
};

struct dt_store {
    struct dt_net net;
    char *host;
    int port;
    double timeout_s; /* of requests that do not wait for a key */
    struct dt_page *page;
    bool broken; /* an answer is missing, so later bytes would be misread */
    struct dt_text request;
    /* received bytes of answers that are not consumed yet */
    char *buffer;
    size_t buffer_at, buffer_size;
    /* for a client on a table of this process */
    struct dt_store_local *local;
    struct dt_store_waiter waiter;
    struct dt_wire_output answer;
    size_t answer_at;
};

enum { buffer_bytes = 4096 };

static struct dt_bytes bytes_of(const char *s)
{
    return (struct dt_bytes){s, strlen(s)};
}

/* ---- on a table ---- */

struct dt_store_local *dt_store_local_open(void)
{
    struct dt_store_local *local = dt_alloc(sizeof *local);
    pthread_condattr_t attr;
    (void)pthread_mutex_init(&local->lock, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&local->changed, &attr);
    (void)pthread_condattr_destroy(&attr);
    local->table = dt_store_table_open(NULL);
    return local;
}

void dt_store_local_close(struct dt_store_local *local)
{
    if (local != NULL) {
        dt_store_table_close(local->table);
        (void)pthread_cond_destroy(&local->changed);
        (void)pthread_mutex_destroy(&local->lock);
        free(local);
    }
}

static void local_ready(struct dt_store_waiter *w)
{
    struct dt_store *s = w->user;
    dt_wire_put_u8(&s->answer.text, DT_WIRE_STOP_WAITING);
    (void)pthread_cond_broadcast(&s->local->changed);
}

static bool is_aborted(const struct dt_store *s)
{
    return s->page != NULL && atomic_load_explicit(&s->page->order, memory_order_relaxed) >= DT_ORDER_ABORT;
}

/* 0, or -1 with DT_TIMEOUT or DT_STOPPED. */
static int local_receive(struct dt_store *s, void *data, size_t size, double deadline_s, struct dt_error *err)
{
    int rc = 0;
    (void)pthread_mutex_lock(&s->local->lock);
    while (s->answer.text.size - s->answer_at < size && rc == 0) {
        double now_s = dt_now_s();
        if (is_aborted(s)) {
            rc = dt_fail(err, DT_STOPPED, "local store: the round was ended");
        } else if (now_s >= deadline_s) {
            rc = dt_fail(err, DT_TIMEOUT, "local store: no answer in time");
        } else {
            double until_s =
                s->page != NULL ? fmin(deadline_s, now_s + order_interval_s) : fmin(deadline_s, now_s + 3600);
            struct timespec until = dt_timespec(until_s);
            (void)pthread_cond_timedwait(&s->local->changed, &s->local->lock, &until);
        }
    }
    if (rc == 0) {
        memcpy(data, s->answer.text.data + s->answer_at, size);
        s->answer_at += size;
        if (s->answer_at == s->answer.text.size) {
            dt_text_reset(&s->answer.text);
            s->answer_at = 0;
        }
    }
    (void)pthread_mutex_unlock(&s->local->lock);
    return rc;
}

static int local_send(struct dt_store *s, const struct dt_wire_request *r, struct dt_error *err)
{
    (void)pthread_mutex_lock(&s->local->lock);
    int rc = dt_wire_answer(s->local->table, &s->waiter, r, &s->answer, err);
    (void)pthread_mutex_unlock(&s->local->lock);
    return rc;
}

/* ---- bytes out and in ---- */

/* Collects requests; flush sends them together. So WAIT and its GET travel in one segment. */
static int put(struct dt_store *s, const struct dt_wire_request *r, struct dt_error *err)
{
    if (s->broken) {
        return is_aborted(s) ? dt_fail(err, DT_STOPPED, "%s: the round was ended", dt_store_name(s))
                             : dt_fail(err, DT_PEER, "%s: an earlier request failed, the connection is of no use",
                                       dt_store_name(s));
    }
    if (s->local != NULL) {
        return local_send(s, r, err);
    }
    dt_wire_put_request(&s->request, r);
    return 0;
}

static int flush(struct dt_store *s, double deadline_s, struct dt_error *err)
{
    if (s->local != NULL) {
        return 0;
    }
    int rc = dt_net_write(&s->net, s->request.data, s->request.size, deadline_s, err);
    if (s->request.capacity > 65536) {
        dt_text_clear(&s->request);
    } else {
        dt_text_reset(&s->request);
    }
    s->broken = rc != 0;
    return rc;
}

static int receive(struct dt_store *s, void *data, size_t size, double deadline_s, struct dt_error *err)
{
    if (s->local != NULL) {
        return local_receive(s, data, size, deadline_s, err);
    }
    char *to = data;
    while (size > 0) {
        if (s->buffer_at < s->buffer_size) {
            size_t part = s->buffer_size - s->buffer_at < size ? s->buffer_size - s->buffer_at : size;
            memcpy(to, s->buffer + s->buffer_at, part);
            s->buffer_at += part;
            to += part;
            size -= part;
        } else if (size >= buffer_bytes) {
            return dt_net_read(&s->net, to, size, deadline_s, err);
        } else {
            int rc = dt_net_read_some(&s->net, s->buffer, buffer_bytes, &s->buffer_size, deadline_s, err);
            s->buffer_at = 0;
            if (rc != 0) {
                s->buffer_size = 0;
                return -1;
            }
        }
    }
    return 0;
}

/* Receives the answer to a request that does not wait for a key. */
static int receive_now(struct dt_store *s, void *data, size_t size, double deadline_s, struct dt_error *err)
{
    int rc = receive(s, data, size, deadline_s, err);
    s->broken = s->broken || rc != 0;
    return rc;
}

static int receive_i64(struct dt_store *s, int64_t *out, double deadline_s, struct dt_error *err)
{
    char bytes[8];
    if (receive_now(s, bytes, sizeof bytes, deadline_s, err) != 0) {
        return -1;
    }
    *out = dt_wire_read_i64(bytes);
    return 0;
}

static int receive_body(struct dt_store *s, int64_t size, struct dt_text *out, double deadline_s, struct dt_error *err)
{
    if (size < 0 || size > (int64_t)1 << 32) {
        s->broken = true;
        return dt_fail(err, DT_PEER, "%s: answer with a value of %lld bytes: not a store", dt_store_name(s),
                       (long long)size);
    }
    dt_text_reset(out);
    /* by parts: a wrong length must not reserve memory for bytes that never come */
    char part[4096];
    for (size_t left = (size_t)size, step; left > 0; left -= step) {
        step = left < sizeof part ? left : sizeof part;
        if (receive_now(s, part, step, deadline_s, err) != 0) {
            return -1;
        }
        dt_text_add(out, part, step);
    }
    return 0;
}

static int receive_value(struct dt_store *s, struct dt_text *out, double deadline_s, struct dt_error *err)
{
    int64_t size = 0;
    return receive_i64(s, &size, deadline_s, err) != 0 ? -1 : receive_body(s, size, out, deadline_s, err);
}

/* Sends one request that does not wait for a key. The caller reads the answer, if there is one,
 * until *deadline_s. */
static int ask(struct dt_store *s, const struct dt_wire_request *r, double *deadline_s, struct dt_error *err)
{
    *deadline_s = dt_now_s() + s->timeout_s;
    return put(s, r, err) != 0 || flush(s, *deadline_s, err) != 0 ? -1 : 0;
}

static int ask_i64(struct dt_store *s, const struct dt_wire_request *r, int64_t *out, struct dt_error *err)
{
    double deadline_s = 0;
    return ask(s, r, &deadline_s, err) != 0 ? -1 : receive_i64(s, out, deadline_s, err);
}

/* After a timeout: sends CANCEL_WAIT and reads up to its answer. A STOP_WAITING sent before the
 * server got the request comes first. The connection stays usable. */
static void cancel_wait(struct dt_store *s)
{
    double deadline_s = 0;
    unsigned char byte = DT_WIRE_STOP_WAITING;
    int rc = ask(s, &(struct dt_wire_request){.query = DT_WIRE_CANCEL_WAIT}, &deadline_s, NULL);
    while (rc == 0 && byte != DT_WIRE_WAIT_CANCELED) {
        rc = receive_now(s, &byte, 1, deadline_s, NULL);
    }
}

static int fail_wait(struct dt_store *s, const char *what, const char *const *keys, size_t count, double timeout_s,
                     struct dt_error *err)
{
    char more[48] = "";
    if (count > 1) {
        (void)snprintf(more, sizeof more, " (and %zu more)", count - 1);
    }
    return dt_fail(err, DT_TIMEOUT, "%s: %s '%.200s'%s: not there after %.1f s", dt_store_name(s), what,
                   count > 0 ? keys[0] : "", more, timeout_s);
}

/* Reads the answer of a wait. After a timeout it cancels the wait, and the error names the keys. */
static int receive_wait(struct dt_store *s, void *data, size_t size, const char *what, const char *const *keys,
                        size_t count, double timeout_s, double deadline_s, struct dt_error *err)
{
    struct dt_error cause = {0};
    if (receive(s, data, size, deadline_s, &cause) == 0) {
        return 0;
    }
    if (cause.status == DT_TIMEOUT) {
        cancel_wait(s);
        return fail_wait(s, what, keys, count, timeout_s, err);
    }
    s->broken = true;
    if (err != NULL) {
        *err = cause;
    }
    return dt_wrap(err, "%s '%.100s'", what, count > 0 ? keys[0] : "");
}

/* ---- open and close ---- */

static int shake_hands(struct dt_store *s, double deadline_s, struct dt_error *err)
{
    char bytes[4];
    uint32_t nonce = (uint32_t)getpid() | DT_WIRE_LOOKS;
    if (put(s, &(struct dt_wire_request){.query = DT_WIRE_VALIDATE, .word = DT_WIRE_MAGIC}, err) != 0 ||
        put(s, &(struct dt_wire_request){.query = DT_WIRE_PING, .word = nonce}, err) != 0 ||
        flush(s, deadline_s, err) != 0 || receive_now(s, bytes, sizeof bytes, deadline_s, err) != 0) {
        return -1;
    }
    return dt_wire_read_u32(bytes) == nonce
               ? 0
               : dt_fail(err, DT_PEER, "%s: wrong answer to a ping: not a store", s->net.name);
}

int dt_store_open(struct dt_store **out, const char *host, int port, double timeout_s, struct dt_page *page,
                  struct dt_error *err)
{
    struct dt_store *s = dt_alloc(sizeof *s);
    double deadline_s = dt_now_s() + timeout_s;
    s->net = (struct dt_net){.fd = -1, .page = page};
    s->host = dt_strdup(host);
    s->port = port;
    s->timeout_s = timeout_s;
    s->page = page;
    s->buffer = dt_alloc(buffer_bytes);
    for (;;) { /* A server that is reset while we connect closes the connection. Connect again. */
        struct dt_error cause = {0};
        if (dt_net_connect(&s->net, host, port, deadline_s, page, err) != 0) {
            dt_store_close(s);
            return -1;
        }
        if (shake_hands(s, deadline_s, &cause) == 0) {
            *out = s;
            return 0;
        }
        dt_net_close(&s->net);
        if (cause.status != DT_PEER || dt_now_s() + 0.1 >= deadline_s) {
            if (err != NULL) {
                *err = cause;
            }
            dt_store_close(s);
            return -1;
        }
        s->broken = false;
        s->buffer_at = s->buffer_size = 0;
        dt_text_reset(&s->request);
        dt_sleep_s(0.05);
    }
}

int dt_store_open_local(struct dt_store **out, struct dt_store_local *local, struct dt_page *page, struct dt_error *err)
{
    (void)err;
    struct dt_store *s = dt_alloc(sizeof *s);
    s->net.fd = -1;
    s->page = page;
    s->local = local;
    s->timeout_s = local_timeout_s;
    s->answer.copy_bytes = SIZE_MAX;
    s->waiter.ready = local_ready;
    s->waiter.user = s;
    *out = s;
    return 0;
}

int dt_store_clone(struct dt_store *s, struct dt_store **out, double timeout_s, struct dt_error *err)
{
    return s->local != NULL ? dt_store_open_local(out, s->local, s->page, err)
                            : dt_store_open(out, s->host, s->port, timeout_s, s->page, err);
}

void dt_store_close(struct dt_store *s)
{
    if (s == NULL) {
        return;
    }
    if (s->local != NULL) {
        (void)pthread_mutex_lock(&s->local->lock);
        dt_store_table_cancel(s->local->table, &s->waiter);
        (void)pthread_mutex_unlock(&s->local->lock);
    }
    dt_net_close(&s->net);
    dt_text_clear(&s->request);
    dt_text_clear(&s->answer.text);
    free(s->buffer);
    free(s->host);
    free(s);
}

const char *dt_store_name(const struct dt_store *s)
{
    return s->local != NULL ? "local store" : s->net.name;
}

/* ---- requests ---- */

int dt_store_set(struct dt_store *s, const char *key, const void *value, size_t size, struct dt_error *err)
{
    double deadline_s = 0;
    return ask(s, &(struct dt_wire_request){.query = DT_WIRE_SET, .key = bytes_of(key), .value = {value, size}},
               &deadline_s, err);
}

int dt_store_append(struct dt_store *s, const char *key, const void *value, size_t size, struct dt_error *err)
{
    double deadline_s = 0;
    return ask(s, &(struct dt_wire_request){.query = DT_WIRE_APPEND, .key = bytes_of(key), .value = {value, size}},
               &deadline_s, err);
}

int dt_store_push(struct dt_store *s, const char *key, const void *value, size_t size, struct dt_error *err)
{
    double deadline_s = 0;
    return ask(s, &(struct dt_wire_request){.query = DT_WIRE_QUEUE_PUSH, .key = bytes_of(key), .value = {value, size}},
               &deadline_s, err);
}

/* WAIT and GET leave together. For a key with a value the answer is 00 and the value. For a missing
 * key the answer to GET comes at once: an empty value, eight zero bytes. 00 follows when the key
 * has a value: nine zero bytes in all. Then GET is sent again. An empty value looks the same, and
 * costs the second GET, too. */
int dt_store_get(struct dt_store *s, const char *key, struct dt_text *out, double timeout_s, struct dt_error *err)
{
    struct dt_bytes name = bytes_of(key);
    struct dt_wire_request wait = {.query = DT_WIRE_WAIT, .count = 1, .keys = &name},
                           get = {.query = DT_WIRE_GET, .key = name};
    double began_s = dt_now_s(), deadline_s = began_s + timeout_s;
    char head[9];
    if (put(s, &wait, err) != 0 || put(s, &get, err) != 0 || flush(s, began_s + s->timeout_s, err) != 0 ||
        receive_now(s, head, 8, began_s + fmax(s->timeout_s, timeout_s), err) != 0 ||
        receive_wait(s, head + 8, 1, "get", &key, 1, timeout_s, deadline_s, err) != 0) {
        return -1;
    }
    double answer_s = dt_now_s() + s->timeout_s;
    int64_t size = dt_wire_read_i64(head + 1);
    if (head[0] == 0 && size != 0) {
        return receive_body(s, size, out, answer_s, err);
    }
    return put(s, &get, err) != 0 || flush(s, answer_s, err) != 0 || receive_value(s, out, answer_s, err) != 0 ? -1 : 0;
}

static struct dt_bytes *names_of(const char *const *keys, size_t count)
{
    struct dt_bytes *names = dt_alloc(count * sizeof *names);
    for (size_t i = 0; i < count; i++) {
        names[i] = bytes_of(keys[i]);
    }
    return names;
}

int dt_store_wait(struct dt_store *s, const char *const *keys, size_t count, double timeout_s, struct dt_error *err)
{
    struct dt_bytes *names = names_of(keys, count);
    double began_s = dt_now_s();
    unsigned char byte;
    int rc = put(s, &(struct dt_wire_request){.query = DT_WIRE_WAIT, .count = count, .keys = names}, err);
    rc = rc == 0 ? flush(s, began_s + s->timeout_s, err) : rc;
    rc = rc == 0 ? receive_wait(s, &byte, 1, "wait for", keys, count, timeout_s, began_s + timeout_s, err) : rc;
    free(names);
    return rc;
}

int dt_store_multi_get(struct dt_store *s, const char *const *keys, size_t count, struct dt_text *out, double timeout_s,
                       struct dt_error *err)
{
    if (dt_store_wait(s, keys, count, timeout_s, err) != 0) {
        return -1;
    }
    struct dt_bytes *names = names_of(keys, count);
    double deadline_s = 0;
    int rc =
        ask(s, &(struct dt_wire_request){.query = DT_WIRE_MULTI_GET, .count = count, .keys = names}, &deadline_s, err);
    for (size_t i = 0; i < count && rc == 0; i++) {
        rc = receive_value(s, &out[i], deadline_s, err);
    }
    free(names);
    return rc;
}

int dt_store_multi_set(struct dt_store *s, const char *const *keys, const void *const *values, const size_t *sizes,
                       size_t count, struct dt_error *err)
{
    struct dt_bytes *names = names_of(keys, count), *contents = dt_alloc(count * sizeof *contents);
    for (size_t i = 0; i < count; i++) {
        contents[i] = (struct dt_bytes){values[i], sizes[i]};
    }
    double deadline_s = 0;
    int rc =
        ask(s, &(struct dt_wire_request){.query = DT_WIRE_MULTI_SET, .count = count, .keys = names, .values = contents},
            &deadline_s, err);
    free(contents);
    free(names);
    return rc;
}

int dt_store_add(struct dt_store *s, const char *key, int64_t delta, int64_t *total, struct dt_error *err)
{
    int64_t sum = 0;
    if (ask_i64(s, &(struct dt_wire_request){.query = DT_WIRE_ADD, .key = bytes_of(key), .number = delta}, &sum, err) !=
        0) {
        return -1;
    }
    if (total != NULL) {
        *total = sum;
    }
    return 0;
}

int dt_store_compare_set(struct dt_store *s, const char *key, const void *expected, size_t expected_size,
                         const void *desired, size_t desired_size, struct dt_text *out, struct dt_error *err)
{
    double deadline_s = 0;
    struct dt_wire_request r = {.query = DT_WIRE_COMPARE_SET,
                                .key = bytes_of(key),
                                .value = {expected, expected_size},
                                .desired = {desired, desired_size}};
    return ask(s, &r, &deadline_s, err) != 0 ? -1 : receive_value(s, out, deadline_s, err);
}

int dt_store_check(struct dt_store *s, const char *const *keys, size_t count, bool *ready, struct dt_error *err)
{
    struct dt_bytes *names = names_of(keys, count);
    double deadline_s = 0;
    unsigned char byte = DT_WIRE_NOT_READY;
    int rc = ask(s, &(struct dt_wire_request){.query = DT_WIRE_CHECK, .count = count, .keys = names}, &deadline_s, err);
    rc = rc == 0 ? receive_now(s, &byte, 1, deadline_s, err) : rc;
    free(names);
    if (rc == 0) {
        *ready = byte == DT_WIRE_READY;
    }
    return rc;
}

int dt_store_delete(struct dt_store *s, const char *key, bool *deleted, struct dt_error *err)
{
    int64_t count = 0;
    if (ask_i64(s, &(struct dt_wire_request){.query = DT_WIRE_DELETE, .key = bytes_of(key)}, &count, err) != 0) {
        return -1;
    }
    if (deleted != NULL) {
        *deleted = count == 1;
    }
    return 0;
}

int dt_store_key_count(struct dt_store *s, int64_t *count, struct dt_error *err)
{
    return ask_i64(s, &(struct dt_wire_request){.query = DT_WIRE_KEY_COUNT}, count, err);
}

int dt_store_barrier(struct dt_store *s, const char *key, int world_size, double timeout_s, struct dt_error *err)
{
    double began_s = dt_now_s();
    unsigned char byte;
    struct dt_wire_request r = {.query = DT_WIRE_BARRIER, .key = bytes_of(key), .number = world_size};
    if (put(s, &r, err) != 0 || flush(s, began_s + s->timeout_s, err) != 0) {
        return -1;
    }
    return receive_wait(s, &byte, 1, "barrier", &key, 1, timeout_s, began_s + timeout_s, err);
}

int dt_store_pop(struct dt_store *s, const char *key, struct dt_text *out, double timeout_s, struct dt_error *err)
{
    double began_s = dt_now_s(), deadline_s = 0;
    /* the server may tell two consumers of one element: the one that gets none waits again */
    for (;;) {
        int64_t length = 0;
        double left_s = fmax(began_s + timeout_s - dt_now_s(), 0);
        if (dt_store_wait(s, &key, 1, left_s, err) != 0 ||
            ask(s, &(struct dt_wire_request){.query = DT_WIRE_QUEUE_POP, .key = bytes_of(key)}, &deadline_s, err) !=
                0 ||
            receive_i64(s, &length, deadline_s, err) != 0) {
            return -1;
        }
        if (length > 0) {
            return receive_value(s, out, deadline_s, err);
        }
        if (dt_now_s() >= began_s + timeout_s) {
            return fail_wait(s, "pop", &key, 1, timeout_s, err);
        }
    }
}

int dt_store_queue_length(struct dt_store *s, const char *key, int64_t *count, struct dt_error *err)
{
    return ask_i64(s, &(struct dt_wire_request){.query = DT_WIRE_QUEUE_LENGTH, .key = bytes_of(key)}, count, err);
}

int dt_store_ping(struct dt_store *s, struct dt_error *err)
{
    double deadline_s = 0;
    char bytes[4];
    return ask(s, &(struct dt_wire_request){.query = DT_WIRE_PING, .word = 1}, &deadline_s, err) != 0
               ? -1
               : receive_now(s, bytes, 4, deadline_s, err);
}
