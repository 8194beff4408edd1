/* Names to addresses without waiting: each look-up runs in a thread of its own, since a resolver
 * may take half a minute and libuv's own look-up can neither be left behind nor told to stop.
 * Literals (also with a scope, fe80::1%eth0) are answered the same way. */
#ifndef DT_LAUNCHER_NET_LOOKUP_H
#define DT_LAUNCHER_NET_LOOKUP_H

#include "base/error.h"

#include <netdb.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <uv.h>

enum { LOOKUP_MAX = 16, LOOKUP_NAME_BYTES = 96 };

struct lookup_list {
    int count;
    struct sockaddr_storage addresses[LOOKUP_MAX]; /* with the port */
};

struct lookup;
/* list: the addresses in the order in which to try them, at least one; or null with err. Called
 * once, from the loop. */
typedef void lookup_done(void *user, const struct lookup_list *list, const struct dt_error *err);
/* getaddrinfo, or a stand-in for tests. */
typedef int lookup_resolver(const char *host, const char *service, const struct addrinfo *hints,
                            struct addrinfo **found);

/* Begins; *out is valid until `done` is called. resolver null: getaddrinfo. */
int lookup_open(struct lookup **out, uv_loop_t *loop, const char *host, int port, lookup_resolver *resolver,
                lookup_done *done, void *user, struct dt_error *err);
/* Gives up: `done` is not called. The loop has nothing more to wait for, even if the resolver
 * still does. */
void lookup_close(struct lookup *l);

/* Blocking, for the start of a program: a literal, or whatever getaddrinfo says. */
int lookup_now(const char *host, int port, struct lookup_list *out, struct dt_error *err);
/* The same, at most so long; DT_TIMEOUT: no answer yet. resolver null: getaddrinfo. */
int lookup_within(const char *host, int port, double seconds, lookup_resolver *resolver, struct lookup_list *out,
                  struct dt_error *err);
/* Families take turns, beginning with the first one (happy eyeballs, RFC 8305); order within a
 * family is kept, repeats go. */
void lookup_order(struct lookup_list *list);
/* Sizes and texts of socket addresses. lookup_host: without the port; IPv4 in IPv6 is shown as
 * IPv4. lookup_name: [host]:port. */
socklen_t lookup_size(const struct sockaddr *a);
int lookup_port(const struct sockaddr *a);
void lookup_set_port(struct sockaddr *a, int port);
char *lookup_host(const struct sockaddr *a, char *out, size_t out_bytes);
char *lookup_name(const struct sockaddr *a, char *out, size_t out_bytes);
/* The same host, whatever the port; IPv4 in IPv6 equals IPv4. */
bool lookup_same_host(const struct sockaddr *a, const struct sockaddr *b);
/* An IPv4 address in IPv6 becomes plain IPv4. */
void lookup_unmap(struct sockaddr_storage *a);
/* The address alone, as one of version 6: what tells hosts apart. */
void lookup_bytes(const struct sockaddr *a, uint8_t out[16]);

#endif
