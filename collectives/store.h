/* The store client: a small key-value store that all ranks of a round share. Calls block. A client
 * belongs to one thread (dt_store_clone makes one for another thread). It speaks to a server of the
 * TCPStore protocol, or directly to a table of this process, so that tests can run ranks as
 * threads. Keys are any bytes but NUL. PyTorch puts `/` before each of its keys, so keys without
 * `/` are ours alone.
 *
 * Every call ends: after its timeout (DT_TIMEOUT, the text names the keys), when the page's order
 * becomes DT_ORDER_ABORT (DT_STOPPED), or when the server is gone (DT_PEER, or DT_STOPPED if the
 * order explains it). After DT_PEER or an unanswered request the client is broken: every later call
 * fails with DT_PEER. */
#ifndef DT_COLLECTIVES_STORE_H
#define DT_COLLECTIVES_STORE_H

#include "base/error.h"
#include "base/page.h"
#include "base/text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dt_store;
struct dt_store_local; /* a table with a lock, for clients in one process */

/* Connects, and tries again until timeout_s is over. timeout_s is also the timeout of requests that
 * do not wait for a key. page may be null. The caller closes *out. */
int dt_store_open(struct dt_store **out, const char *host, int port, double timeout_s, struct dt_page *page,
                  struct dt_error *err);
/* A table for this process. It must outlive its clients. */
struct dt_store_local *dt_store_local_open(void);
void dt_store_local_close(struct dt_store_local *local);
int dt_store_open_local(struct dt_store **out, struct dt_store_local *local, struct dt_page *page,
                        struct dt_error *err);
/* Opens another client of the same store, for another thread, with a connection of its own. */
int dt_store_clone(struct dt_store *s, struct dt_store **out, double timeout_s, struct dt_error *err);
/* Null is allowed. */
void dt_store_close(struct dt_store *s);
/* "host:port" or "local", for messages; belongs to s. */
const char *dt_store_name(const struct dt_store *s);

/* Does not wait for an answer: a lost server shows at the next call that has one. */
int dt_store_set(struct dt_store *s, const char *key, const void *value, size_t size, struct dt_error *err);
int dt_store_append(struct dt_store *s, const char *key, const void *value, size_t size, struct dt_error *err);
/* Waits until the key has a value, then replaces the content of out (initialised) with it. */
int dt_store_get(struct dt_store *s, const char *key, struct dt_text *out, double timeout_s, struct dt_error *err);
/* Gets the values of several keys with one wait and one answer. out[i] are initialised texts. */
int dt_store_multi_get(struct dt_store *s, const char *const *keys, size_t count, struct dt_text *out, double timeout_s,
                       struct dt_error *err);
/* Sets keys[i] to sizes[i] bytes at values[i], all in one message. */
int dt_store_multi_set(struct dt_store *s, const char *const *keys, const void *const *values, const size_t *sizes,
                       size_t count, struct dt_error *err);
/* Adds delta to the decimal number under key; a missing key counts as 0. total may be null. */
int dt_store_add(struct dt_store *s, const char *key, int64_t delta, int64_t *total, struct dt_error *err);
/* Replaces the value if it equals `expected`; a missing key counts as empty. out (initialised)
 * becomes the reply: the desired value on success, else the current one, or `expected` itself if
 * the key is missing. */
int dt_store_compare_set(struct dt_store *s, const char *key, const void *expected, size_t expected_size,
                         const void *desired, size_t desired_size, struct dt_text *out, struct dt_error *err);
/* *ready: all keys have a value now. */
int dt_store_check(struct dt_store *s, const char *const *keys, size_t count, bool *ready, struct dt_error *err);
/* Waits until all keys have a value. */
int dt_store_wait(struct dt_store *s, const char *const *keys, size_t count, double timeout_s, struct dt_error *err);
/* *deleted (may be null): the key had a value. */
int dt_store_delete(struct dt_store *s, const char *key, bool *deleted, struct dt_error *err);
int dt_store_key_count(struct dt_store *s, int64_t *count, struct dt_error *err);
/* Returns once world_size callers have arrived at key. A key serves one barrier. */
int dt_store_barrier(struct dt_store *s, const char *key, int world_size, double timeout_s, struct dt_error *err);
/* A queue: first in, first out. pop waits until there is an element. */
int dt_store_push(struct dt_store *s, const char *key, const void *value, size_t size, struct dt_error *err);
int dt_store_pop(struct dt_store *s, const char *key, struct dt_text *out, double timeout_s, struct dt_error *err);
int dt_store_queue_length(struct dt_store *s, const char *key, int64_t *count, struct dt_error *err);
/* Makes one round trip. */
int dt_store_ping(struct dt_store *s, struct dt_error *err);

#endif
