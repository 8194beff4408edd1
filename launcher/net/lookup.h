/* Looks names up without blocking the loop. Each look-up has its own thread, because a resolver may
 * take half a minute and libuv's look-up cannot be cancelled while it runs. Literals (also with a
 * scope, fe80::1%eth0) are answered the same way. */
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
    struct sockaddr_storage addresses[LOOKUP_MAX]; /* with the port set */
};

struct lookup;
/* list: the addresses in the order in which to try them, at least one; or null with err. Called
 * once, from the loop. */
typedef void lookup_done(void *user, const struct lookup_list *list, const struct dt_error *err);
/* getaddrinfo, or a stand-in for tests. */
typedef int lookup_resolver(const char *host, const char *service, const struct addrinfo *hints,
                            struct addrinfo **found);

/* Begins a look-up. *out is valid until `done` is called. resolver null: getaddrinfo. */
int lookup_open(struct lookup **out, uv_loop_t *loop, const char *host, int port, lookup_resolver *resolver,
                lookup_done *done, void *user, struct dt_error *err);
/* Cancels: `done` is not called. The loop can end even if the resolver still runs. */
void lookup_close(struct lookup *l);

/* Blocks: for the start of a program. */
int lookup_now(const char *host, int port, struct lookup_list *out, struct dt_error *err);
/* Like lookup_now, for at most `seconds`; DT_TIMEOUT: no answer yet. resolver null: getaddrinfo. */
int lookup_within(const char *host, int port, double seconds, lookup_resolver *resolver, struct lookup_list *out,
                  struct dt_error *err);
/* Alternates the address families, beginning with that of the first address (happy eyeballs, RFC
 * 8305). Keeps the order within a family and removes duplicates. */
void lookup_order(struct lookup_list *list);
/* Sizes and texts of socket addresses. lookup_host: without the port; IPv4 in IPv6 is shown as
 * IPv4. lookup_name: [host]:port. */
socklen_t lookup_size(const struct sockaddr *a);
int lookup_port(const struct sockaddr *a);
void lookup_set_port(struct sockaddr *a, int port);
char *lookup_host(const struct sockaddr *a, char *out, size_t out_bytes);
char *lookup_name(const struct sockaddr *a, char *out, size_t out_bytes);
/* Whether both are the same host, whatever the port. IPv4 in IPv6 equals IPv4. */
bool lookup_same_host(const struct sockaddr *a, const struct sockaddr *b);
/* Turns an IPv4 address in IPv6 into plain IPv4. */
void lookup_unmap(struct sockaddr_storage *a);
/* The address without the port, as an IPv6 address: a key that tells hosts apart. */
void lookup_bytes(const struct sockaddr *a, uint8_t out[16]);

#endif
