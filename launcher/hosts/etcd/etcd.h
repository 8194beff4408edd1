/* A client of etcd's version 3, over its JSON gateway: conditional transactions on a few keys, and
 * leases that clean up. One request at a time, on the thread of the libuv loop. libcurl is loaded
 * when it is first needed: linking it would cost each start of dtrun 50 ms.
 * Errors of a call: DT_INVALID when another try would fail the same way (password, permission,
 * version, certificate). After any other error the next call goes to the next endpoint and may
 * work. The text quotes the server. */
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
    const char *cacert, *cert, *key; /* names of files */
    const char *user_file;           /* one line NAME:PASSWORD, readable by its owner alone */
    double timeout_s;                /* limit of one request; 0: 3 s */
};

struct etcd_txn {
    int key_count;
    struct etcd_key {
        const char *key;
        bool compare;
        /* expected revision of the key's last change; 0: the key does not exist */
        int64_t revision;
        const void *put; /* new value; null: unchanged */
        size_t put_bytes;
    } keys[ETCD_KEYS];
    int64_t lease; /* lease of the new value; 0: none */
};

struct etcd_result {
    bool succeeded;   /* of a transaction: all revisions matched, and everything was put */
    int64_t revision; /* of the store now, and of the keys that were put */
    struct etcd_value {
        bool found; /* of a transaction that put nothing */
        int64_t revision;
        struct dt_text bytes;
    } values[ETCD_KEYS];
    int64_t lease; /* of a grant */
};

struct etcd;
/* result is null after an error. Called once per call, from the loop. May begin the next call. */
typedef void etcd_done(void *user, const struct etcd_result *result, const struct dt_error *err);

/* Makes no connection yet. Errors: libcurl is missing, or the user file is bad. */
int etcd_open(struct etcd **out, uv_loop_t *loop, const struct etcd_options *options, struct dt_error *err);
/* Whether a call is under way: the next call must wait for its `done`. */
bool etcd_is_busy(const struct etcd *e);
/* Compares and puts in one transaction. If a revision differs, or nothing is put, all keys are read
 * instead. */
void etcd_txn(struct etcd *e, const struct etcd_txn *txn, etcd_done *done, void *user);
/* Makes a lease that ends after ttl_s (at least a second). Keys that were put under it vanish with
 * it. */
void etcd_grant(struct etcd *e, double ttl_s, etcd_done *done, void *user);
/* Cancels the call under way without calling its `done`. */
void etcd_close(struct etcd *e);

#endif
