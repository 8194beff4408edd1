/* Messages between two hosts, small and large, in both directions and with deadlines: does what
 * one sends arrive at the other? One side serves, the other one calls and judges. Sizes grow
 * step by step, so that the first that is lost tells the largest packet of the way. */
#ifndef DT_CMD_DOCTOR_PAIRS_H
#define DT_CMD_DOCTOR_PAIRS_H

#include "base/error.h"
#include "base/page.h"

#include <stddef.h>
#include <stdint.h>

enum pair_state {
    PAIR_OK,
    PAIR_UNREACHABLE, /* no connection: `cause` says why */
    PAIR_SILENT,      /* connected, but not even a small message came through */
    PAIR_LOST,        /* messages of `lost_bytes` do not arrive, those of `passed_bytes` do */
    PAIR_LOSSY,       /* a message of `lost_bytes` did not arrive in time, another time it did */
    PAIR_SLOW         /* a large message moves, but did not arrive within its deadline */
};

struct pair_result {
    enum pair_state state;
    double latency_s;     /* median round trip of a small message */
    double bytes_per_s;   /* of the largest message, to the server and back: the slower way; of
                           * PAIR_SLOW what came */
    double clock_ahead_s; /* the server's wall clock less ours */
    size_t passed_bytes, lost_bytes;
    int from_server; /* the message that was lost went from the server to the caller */
    char address[288];
    char cause[200];
};

struct pair_server;
/* Listens on address, on a port of lo..hi (0, 0: any), and answers callers that know the nonce,
 * each in a thread that ends by itself. */
int pair_serve(struct pair_server **out, const char *address, int lo, int hi, uint64_t nonce, int *port,
               struct dt_error *err);
/* Stops listening; callers that are being served are left to their deadlines. Null is allowed. */
void pair_server_close(struct pair_server *s);
/* Judges the way to a server; takes at most 30 s. An order of the page to end shows as
 * PAIR_UNREACHABLE or PAIR_SILENT. */
void pair_call(const char *host, int port, uint64_t nonce, struct dt_page *page, struct pair_result *out);

#endif
