/* What comes over the links of a job on several hosts becomes calls of the member. */
#include "launcher/hosts/several_private.h"

#include "base/clock.h"
#include "base/log.h"
#include "launcher/net/endpoint.h"
#include "launcher/output/console.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const double skew_s = 30;     /* between two clocks; the time of a message on its way is
                                      * no skew */
static const double name_line_s = 5; /* an endpoint's name that means nothing is said after this */

/* Publishes the address at which a peer came to this host, when no other is known but a loopback
 * address, or the endpoint's name as this host reads it: other hosts may read the name as another
 * address (a container's own name). */
static void learn_address(struct several *s, uint64_t peer, const char *host)
{
    struct peer_info *self = &s->member.options.self;
    char local[sizeof self->address];
    bool others_reach = !hosts_is_loopback(self->address),
         named = s->place.by_name && s->member.record.round == 0 && strcmp(host, self->address) != 0;
    if ((others_reach && !named) || link_local_address(s->link, peer, local, sizeof local) != 0 ||
        strcmp(local, self->address) == 0 || (hosts_is_loopback(local) && self->address[0] != '\0')) {
        s->place.by_name = s->place.by_name && !named;
        return;
    }
    if (others_reach) {
        s->place.by_name = false;
        console_say("dtrun: warning: %s is %s on this host, but another one came to %s: all are told that one; "
                    "--local_addr=ADDRESS names "
                    "another\n",
                    s->base.o->master_addr, self->address, local);
    }
    memcpy(self->address, local, sizeof local);
}

static void on_up(void *user, uint64_t peer, const char *host)
{
    struct several *s = user;
    struct peer_info who = {.id = peer, .order = -1, .port = link_port(s->link, peer)};
    (void)snprintf(who.host, sizeof who.host, "%s", host);
    (void)snprintf(who.address, sizeof who.address, "%s", host);
    learn_address(s, peer, host);
    hosts_wait_met(&s->wait);
    dt_log(DT_LOG_INFO, "nodes", "link with %016llx at %s port %d", (unsigned long long)peer, host, who.port);
    member_up(&s->member, &who, dt_now_s());
    several_moved(s);
}

static enum member_end end_of(enum link_end end)
{
    switch (end) {
    case LINK_LOST:
        return MEMBER_LOST;
    case LINK_ENDED:
        return MEMBER_ENDED;
    case LINK_RESET:
        return MEMBER_RESET;
    }
    return MEMBER_LOST;
}

static void on_down(void *user, uint64_t peer, enum link_end end)
{
    struct several *s = user;
    const char *how = end == LINK_ENDED ? ": its process is gone" : end == LINK_RESET ? ": reset, and refused" : "";
    dt_log(DT_LOG_INFO, "nodes", "link with %016llx is down%s", (unsigned long long)peer, how);
    member_down(&s->member, peer, end_of(end), dt_now_s());
    several_moved(s);
}

/* Says once per peer that its clock differs from ours: people compare times in logs and files. */
static void note_skew(struct several *s, uint64_t peer, const struct message *join)
{
    double ahead_s = join->wall_s - dt_wall_s();
    bool told = s->skewed_count == SEVERAL_SKEWED || join->wall_s <= 0 || s->member.role != MEMBER_LEADING;
    for (int i = 0; i < s->skewed_count; i++) {
        told = told || s->skewed[i] == peer;
    }
    if (told || fabs(ahead_s) < skew_s) {
        return;
    }
    s->skewed[s->skewed_count++] = peer;
    console_say("dtrun: host %s: its clock is %.0f s %s that of host %s; times in its logs differ by this, nothing "
                "else depends on it\n",
                join->info.host, fabs(ahead_s), ahead_s > 0 ? "ahead of" : "behind", s->member.options.self.host);
}

/* The peer's message makes no sense here. The peer may come again, with a new link. */
static void refuse_message(struct several *s, uint64_t peer, const struct dt_error *err)
{
    const struct member_peer *p = member_find(&s->member, peer);
    double now_s = dt_now_s();
    if (now_s - s->refused_s >= SEVERAL_REFUSED_LINE_S) {
        s->refused_s = now_s;
        console_say("dtrun: warning: host %s (%s): %s; the link with it is closed\n", p != NULL ? p->info.host : "?",
                    p != NULL ? p->info.address : "?", err->text);
    }
    link_refuse(s->link, peer);
    on_down(s, peer, LINK_LOST);
}

static void on_message(void *user, uint64_t peer, const void *bytes, size_t size)
{
    struct several *s = user;
    struct dt_error err;
    if (message_decode(&s->in, bytes, size, &err) != 0 || member_check(&s->member, &s->in, dt_now_s(), &err) != 0) {
        refuse_message(s, peer, &err);
        return;
    }
    dt_log(DT_LOG_DEBUG, "nodes", "%s from %016llx", message_name(s->in.kind), (unsigned long long)peer);
    if (gather_message(s->gather, peer, &s->in)) {
        return;
    }
    if (s->in.kind == MESSAGE_JOIN) {
        note_skew(s, peer, &s->in);
    }
    member_message(&s->member, peer, &s->in, dt_now_s());
    several_moved(s);
}

static void on_other_version(void *user, const struct dt_error *err)
{
    struct several *s = user;
    several_end_at_once(s, DT_EXIT_USAGE, err->text);
    s->base.hooks.settle(s->base.hooks.user);
}

static void end_for_key(struct several *s)
{
    struct dt_text line;
    dt_text_init(&line);
    hosts_wait_endpoint(&s->wait, &s->member, s->base.o, &line);
    several_end_at_once(s, DT_EXIT_USAGE, dt_text_str(&line));
    dt_text_clear(&line);
    s->base.hooks.settle(s->base.hooks.user);
}

static void on_failed(void *user, uint64_t peer, const struct dt_error *err)
{
    struct several *s = user;
    dt_log(DT_LOG_DEBUG, "nodes", "connect %016llx: %s", (unsigned long long)peer, err->text);
    /* it has another key, or is another run or program */
    bool refused = err->status == DT_INVALID || err->status == DT_IN_USE;
    /* the endpoint that we hold is in no trouble */
    if (peer == 0 && (!s->place.hosts || refused)) {
        hosts_wait_trouble(&s->wait, err->text, err->digest);
        bool sure = err->status == DT_INVALID &&
                    hosts_wait_key_refused(&s->wait, err->text, err->digest, dt_now_s(), s->base.o->time_scale);
        bool denied = refused && strcmp(s->wait.trouble, s->wait.denied) != 0;
        if (denied) { /* waiting will hardly help */
            memcpy(s->wait.denied, s->wait.trouble, sizeof s->wait.denied);
            s->wait.denied_digest = err->digest;
            several_say(s->wait.trouble);
        } else if (s->place.endpoint.count == 0 && !s->told_name &&
                   dt_now_s() - s->open_s >= name_line_s / s->base.o->time_scale) {
            s->told_name = true;
            console_say("dtrun: endpoint %s; trying on\n", s->wait.trouble);
        }
        if (sure) {
            end_for_key(s);
        }
    }
}

struct link_hooks several_link_hooks(struct several *s)
{
    return (struct link_hooks){.user = s,
                               .up = on_up,
                               .down = on_down,
                               .message = on_message,
                               .failed = on_failed,
                               .other_version = on_other_version};
}

/* This host listens at the endpoint's port from now on, so that hosts which come late find the
 * job there. */
void several_claimed(void *user, int fd, const struct lookup_list *list)
{
    struct several *s = user;
    struct dt_error err;
    claim_close(s->claim);
    s->claim = NULL;
    if (s->member.role == MEMBER_OVER) { /* its holder just ended the job */
        (void)close(fd);
        return;
    }
    if (store_server_listen(s->base.store, fd, &err) != 0) {
        dt_log(DT_LOG_WARN, "nodes", "endpoint %s port %d: %s", s->base.o->master_addr, s->base.o->master_port,
               err.text);
        (void)close(fd);
        return;
    }
    console_say("dtrun: endpoint %s port %d: held by this host now\n", s->base.o->master_addr, s->base.o->master_port);
    struct peer_info *self = &s->member.options.self;
    s->place.endpoint = *list;
    s->place.hosts = true;
    hosts_wait_trouble(&s->wait, "", 0); /* was with the endpoint of somebody else */
    self->port = s->base.o->master_port;
    link_set_port(s->link, self->port);
    if (self->address[0] == '\0') {
        (void)endpoint_published(list, self->address, sizeof self->address, NULL, &err);
    }
    member_hold(&s->member, dt_now_s());
    several_moved(s);
}
