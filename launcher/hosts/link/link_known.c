/* The peers that are up, the agents that have proved themselves (newest session), and the addresses
 * from which these came. */
#include "launcher/hosts/link/link_private.h"

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

/* Index of the first host that is not smaller. */
static int place_of_host(const struct link *l, const uint8_t *address, uint64_t peer)
{
    int low = 0, high = l->host_count;
    while (low < high) {
        int middle = low + (high - low) / 2;
        const struct known_host *h = &l->hosts[middle];
        int order = memcmp(h->address, address, sizeof h->address);
        if (order < 0 || (order == 0 && h->peer < peer)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static bool is_joined(const struct link *l, const struct known_host *h, double now_s)
{
    return now_s < h->until_s || link_find(l, h->peer) != NULL;
}

/* Removes addresses that are no longer part of the job, before the array doubles. */
static void make_room(struct link *l)
{
    double now_s = link_now(l);
    int kept = 0;
    for (int i = 0; i < l->host_count; i++) {
        if (is_joined(l, &l->hosts[i], now_s)) {
            l->hosts[kept++] = l->hosts[i];
        }
    }
    l->host_count = kept;
    if (2 * kept >= l->host_capacity) {
        l->host_capacity = l->host_capacity > 0 ? l->host_capacity * 2 : 16;
        l->hosts = dt_realloc(l->hosts, (size_t)l->host_capacity * sizeof *l->hosts);
    }
}

/* Finds the entry of a peer at an address. False: there is none. */
static bool find_host(const struct link *l, uint64_t peer, const struct sockaddr *from, struct known_host *h,
                      int *place)
{
    *h = (struct known_host){.peer = peer};
    lookup_bytes(from, h->address);
    *place = place_of_host(l, h->address, h->peer);
    return *place < l->host_count && l->hosts[*place].peer == h->peer &&
           memcmp(l->hosts[*place].address, h->address, sizeof h->address) == 0;
}

bool known_came_from(const struct link *l, uint64_t peer, const struct sockaddr *from)
{
    struct known_host h;
    int place;
    return find_host(l, peer, from, &h, &place);
}

static void add_host(struct link *l, const struct conn *c)
{
    struct known_host h;
    int i;
    if (l->host_count == l->host_capacity) {
        make_room(l);
    }
    if (find_host(l, c->secure.peer_id, (const struct sockaddr *)&c->from, &h, &i)) {
        return;
    }
    memmove(l->hosts + i + 1, l->hosts + i, (size_t)(l->host_count - i) * sizeof *l->hosts);
    l->hosts[i] = h;
    l->host_count++;
}

/* The addresses of a lost peer stay part of the job for dead_s. By then the host's workers have
 * ended, or the link is up again. */
void known_gone(struct link *l, uint64_t peer, bool said)
{
    double until_s = said ? 0 : link_now(l) + l->options.dead_s;
    for (int i = 0; i < l->host_count; i++) { /* a peer may have come from several addresses */
        if (l->hosts[i].peer == peer) {
            l->hosts[i].until_s = until_s;
        }
    }
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
    add_host(l, c);
}

bool link_is_joined(void *user, const struct sockaddr *from)
{
    const struct link *l = user;
    uint8_t address[16];
    double now_s = link_now(l);
    lookup_bytes(from, address);
    for (int i = place_of_host(l, address, 0);
         i < l->host_count && memcmp(l->hosts[i].address, address, sizeof address) == 0; i++) {
        if (is_joined(l, &l->hosts[i], now_s)) {
            return true;
        }
    }
    return false;
}
