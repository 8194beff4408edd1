/* See strangers.h. */
#include "launcher/net/strangers.h"

#include "launcher/net/endpoint.h"
#include "launcher/net/lookup.h"

#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

static bool same_network(const struct sockaddr *a, const struct sockaddr *b)
{
    const struct sockaddr_in6 *p = (const struct sockaddr_in6 *)(const void *)a,
                              *q = (const struct sockaddr_in6 *)(const void *)b;
    bool both = a->sa_family == AF_INET6 && b->sa_family == AF_INET6 && !IN6_IS_ADDR_V4MAPPED(&p->sin6_addr) &&
                !IN6_IS_ADDR_V4MAPPED(&q->sin6_addr);
    return both ? memcmp(&p->sin6_addr, &q->sin6_addr, 8) == 0 : lookup_same_host(a, b);
}

static const struct stranger *find(const struct strangers *t, const struct sockaddr *host)
{
    for (int i = 0; i < STRANGERS; i++) {
        const struct stranger *s = &t->list[i];
        if (s->host.ss_family != AF_UNSPEC && same_network((const struct sockaddr *)&s->host, host)) {
            return s;
        }
    }
    return NULL;
}

static struct stranger *add(struct strangers *t, const struct sockaddr *host)
{
    struct stranger *quiet = &t->list[0];
    for (int i = 0; i < STRANGERS; i++) {
        struct stranger *s = &t->list[i];
        if (s->host.ss_family == AF_UNSPEC) {
            quiet = s;
            break;
        }
        quiet = s->seen_s < quiet->seen_s ? s : quiet;
    }
    *quiet = (struct stranger){.line_s = -STRANGERS_LINE_S};
    memcpy(&quiet->host, host, lookup_size(host));
    return quiet;
}

/* The host's entry, with its time set to now. */
static struct stranger *seen(struct strangers *t, const struct sockaddr *host, double now_s)
{
    const struct stranger *known = find(t, host);
    struct stranger *s = known != NULL ? &t->list[known - t->list] : add(t, host);
    s->seen_s = now_s;
    return s;
}

/* ---- lines ---- */

bool strangers_refused(struct strangers *t, const struct sockaddr *host, double now_s, char more[STRANGERS_MORE_BYTES])
{
    struct stranger *s = seen(t, host, now_s);
    if (t->lines == 0 || now_s - t->lines_s >= STRANGERS_LINE_S) {
        t->lines_s = now_s;
        t->lines = 0;
    }
    if (now_s - s->line_s < STRANGERS_LINE_S) {
        s->unsaid++;
        return false;
    }
    if (t->lines == STRANGERS_LINES) {
        t->hidden++;
        return false;
    }
    int used = s->unsaid > 0 ? snprintf(more, STRANGERS_MORE_BYTES, "; since the last line %d more", s->unsaid) : 0;
    more[used] = '\0';
    if (t->hidden > 0) {
        used +=
            snprintf(more + used, STRANGERS_MORE_BYTES - (size_t)used, "; %d of other hosts were not said", t->hidden);
    }
    if (++t->lines == STRANGERS_LINES) {
        (void)snprintf(more + used, STRANGERS_MORE_BYTES - (size_t)used, "; for %d s no other host is named",
                       STRANGERS_LINE_S);
    }
    t->hidden = 0;
    s->line_s = now_s;
    s->unsaid = 0;
    return true;
}

/* ---- what is looked at ---- */

/* A process of this machine can use every loopback address, so they all share one budget. */
static const struct sockaddr *counted_as(const struct sockaddr *host)
{
    static const union {
        struct sockaddr_in in;
        struct sockaddr any;
    } loopback = {.in = {.sin_family = AF_INET}}; /* 0.0.0.0, which no connection comes from */
    return endpoint_is_loopback(host) ? &loopback.any : host;
}

static void count(struct strangers_second *second, bool guess, double now_s)
{
    if (now_s - second->since_s >= 1) {
        *second = (struct strangers_second){.since_s = now_s};
    }
    second->guesses += guess;
    second->hellos++;
}

static bool has_room(const struct strangers_second *second, bool proof, int times, double now_s)
{
    return now_s - second->since_s >= 1 ||
           (proof ? second->guesses < times * STRANGERS_PER_S : second->hellos < times * STRANGERS_HELLOS_PER_S);
}

void strangers_gone(struct strangers *t, const struct sockaddr *host, bool guess, bool proven, double now_s)
{
    struct stranger *s = seen(t, counted_as(host), now_s);
    bool own = has_room(&s->second, guess, 1, now_s), all = has_room(&t->all, guess, STRANGERS_ALL, now_s);
    if (proven && !(own && all)) {
        count(&s->proven, guess, now_s);
        return;
    }
    if (own) { /* a host above its own limit takes nothing from the limit for all */
        count(&t->all, guess, now_s);
    }
    count(&s->second, guess, now_s);
}

bool strangers_may(const struct strangers *t, const struct sockaddr *host, bool proof, bool proven, double now_s)
{
    const struct stranger *s = find(t, counted_as(host));
    bool own = s == NULL || has_room(&s->second, proof, 1, now_s), all = has_room(&t->all, proof, STRANGERS_ALL, now_s);
    return (own && all) || (proven && (s == NULL || has_room(&s->proven, proof, 1, now_s)));
}
