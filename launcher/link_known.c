/* Who is known to a link: peers that are up, agents that proved themselves (newest session), and the hosts that they came from. */
#include "launcher/link_private.h"

#include "launcher/endpoint.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

/* ---- peers, sorted by id ---- */

/* Index of the first peer whose id is not smaller. */
static int place_of(const struct link *l, uint64_t peer)
{
    int low = 0, high = l->peer_count;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (l->peers[middle]->secure.peer_id < peer) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

struct conn *link_find(const struct link *l, uint64_t peer)
{
    int i = place_of(l, peer);
    return i < l->peer_count && l->peers[i]->secure.peer_id == peer ? l->peers[i] : NULL;
}

void link_add(struct link *l, struct conn *c)
{
    int i = place_of(l, c->secure.peer_id);
    if (l->peer_count == l->peer_capacity) {
        l->peer_capacity = l->peer_capacity > 0 ? l->peer_capacity * 2 : 16;
        l->peers = dt_realloc(l->peers, (size_t)l->peer_capacity * sizeof(struct conn *));
    }
    memmove(l->peers + i + 1, l->peers + i, (size_t)(l->peer_count - i) * sizeof(struct conn *));
    l->peers[i] = c;
    l->peer_count++;
}

void link_remove(struct link *l, const struct conn *c)
{
    int i = place_of(l, c->secure.peer_id);
    memmove(l->peers + i, l->peers + i + 1, (size_t)(l->peer_count - i - 1) * sizeof(struct conn *));
    l->peer_count--;
}

/* ---- agents that proved themselves ---- */

struct known *known_find(const struct link *l, uint64_t id)
{
    for (int i = 0; i < l->known_count; i++) {
        if (l->known[i].id == id) {
            return &l->known[i];
        }
    }
    return NULL;
}

static struct known_host host_of(const struct sockaddr *a)
{
    struct known_host h = {{0}};
    if (a->sa_family == AF_INET6) {
        memcpy(h.address, &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr, sizeof h.address);
    } else {
        memset(h.address + 10, 0xff, 2);
        memcpy(h.address + 12, &((const struct sockaddr_in *)(const void *)a)->sin_addr, 4);
    }
    return h;
}

/* Index of the first host that is not smaller. */
static int place_of_host(const struct link *l, const struct known_host *h)
{
    int low = 0, high = l->host_count;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (memcmp(&l->hosts[middle], h, sizeof *h) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static void add_host(struct link *l, const struct sockaddr *from)
{
    struct known_host h = host_of(from);
    int i = place_of_host(l, &h);
    if (i < l->host_count && memcmp(&l->hosts[i], &h, sizeof h) == 0) {
        return;
    }
    if (l->host_count == l->host_capacity) {
        l->host_capacity = l->host_capacity > 0 ? l->host_capacity * 2 : 16;
        l->hosts = dt_realloc(l->hosts, (size_t)l->host_capacity * sizeof *l->hosts);
    }
    memmove(l->hosts + i + 1, l->hosts + i, (size_t)(l->host_count - i) * sizeof *l->hosts);
    l->hosts[i] = h;
    l->host_count++;
}

void known_add(struct link *l, const struct conn *c)
{
    struct known *k = known_find(l, c->secure.peer_id);
    if (k == NULL && l->known_count < LINK_KNOWN_MAX) {
        if (l->known_count == l->known_capacity) {
            l->known_capacity = l->known_capacity > 0 ? l->known_capacity * 2 : 16;
            l->known = dt_realloc(l->known, (size_t)l->known_capacity * sizeof *l->known);
        }
        k = &l->known[l->known_count++];
    } else if (k == NULL) {
        k = &l->known[l->known_next++ % LINK_KNOWN_MAX];
    }
    *k = (struct known){.id = c->secure.peer_id};
    memcpy(k->session, c->secure.session, sizeof k->session);
    add_host(l, (const struct sockaddr *)&c->from);
}

bool link_allow(void *user, const struct sockaddr *from)
{
    const struct link *l = user;
    struct known_host h = host_of(from);
    int i = place_of_host(l, &h);
    return (i < l->host_count && memcmp(&l->hosts[i], &h, sizeof h) == 0) || endpoint_is_local(from);
}
