/* A client of etcd's version 3, over its JSON gateway: conditional transactions on a few keys,
 * and leases that clean up. One request at a time; libcurl on the libuv loop, on its thread
 * alone. libcurl is loaded when it is first needed: linked in, it would cost each start of dtrun
 * 50 ms.
 *
 * Errors of a call: DT_INVALID when another try fails the same way (password, permission,
 * version, certificate), else another try may work, and goes to the next endpoint. The text
 * holds what the server said. */
#ifndef DT_LAUNCHER_HOSTS_ETCD_ETCD_H
#define DT_LAUNCHER_HOSTS_ETCD_ETCD_H

#include "base/error.h"
#include "base/text.h"

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

enum { ETCD_ENDPOINTS = 8, ETCD_KEYS = 2, ETCD_ANSWER_BYTES = 1 << 20 };

struct etcd_options { /* strings are copied; null: not given */
    struct {
        const char *host; /* without brackets */
        int port;
    } endpoints[ETCD_ENDPOINTS];
    int endpoint_count;
    bool tls;
    const char *cacert, *cert, *key; /* files */
    const char *user_file;           /* one line NAME:PASSWORD, readable by its owner alone */
    double timeout_s;                /* of a request; 0: 3 s */
};

struct etcd_txn {
    int key_count;
    struct etcd_key {
        const char *key;
        bool compare;
        int64_t revision; /* compare: the key was changed last at this one; 0: it is not there */
        const void *put;  /* null: stays as it is */
        size_t put_bytes;
    } keys[ETCD_KEYS];
    int64_t lease; /* of what is put; 0: none */
};

struct etcd_result {
    bool succeeded;   /* of a transaction: all compared equal, and everything was put */
    int64_t revision; /* of the store now; what was put has it */
    struct etcd_value {
        bool found; /* of a transaction that put nothing */
        int64_t revision;
        struct dt_text bytes;
    } values[ETCD_KEYS];
    int64_t lease; /* of a grant */
};

struct etcd;
/* result: null with err. Called once per call, from the loop; it may call again. */
typedef void etcd_done(void *user, const struct etcd_result *result, const struct dt_error *err);

/* Connects to nobody yet. Errors: libcurl is not there, a bad user file. */
int etcd_open(struct etcd **out, uv_loop_t *loop, const struct etcd_options *options, struct dt_error *err);
/* Whether a call is under way: wait for its `done` before the next one. */
bool etcd_is_busy(const struct etcd *e);
/* Compares and puts at once. Where something differs, and where nothing is put, all keys are
 * read. */
void etcd_txn(struct etcd *e, const struct etcd_txn *txn, etcd_done *done, void *user);
/* A lease that ends after ttl_s (at least a second), with the keys that were put under it. */
void etcd_grant(struct etcd *e, double ttl_s, etcd_done *done, void *user);
/* Gives up what is under way without a call of its `done`. */
void etcd_close(struct etcd *e);

#endif
