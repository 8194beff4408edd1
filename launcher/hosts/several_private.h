/* Interfaces between the files several*.c: one agent of a job on several hosts. */
#ifndef DT_LAUNCHER_HOSTS_SEVERAL_PRIVATE_H
#define DT_LAUNCHER_HOSTS_SEVERAL_PRIVATE_H

#include "launcher/hosts/endpoint_watch.h"
#include "launcher/hosts/etcd/etcd_witness.h"
#include "launcher/hosts/hosts_private.h"
#include "launcher/hosts/link/link.h"
#include "launcher/hosts/place.h"
#include "launcher/hosts/wait.h"
#include "launcher/net/port_probe.h"
#include "launcher/query/gather.h"
#include "launcher/rounds/member.h"

#define SEVERAL_SKEWED 16          /* most peers whose clock differs that people are told of */
#define SEVERAL_REFUSED_LINE_S 5.0 /* time between two lines about refused messages */

struct several {
    struct hosts base;
    struct member member;
    struct link *link;
    struct gather *gather;
    struct port_probe *probes;
    struct endpoint_watch *watch; /* on the endpoint's port, if another process has it; or null */
    struct etcd_witness *etcd;    /* used instead of an endpoint; or null */
    uv_timer_t tick, news;
    struct hosts_place place;
    struct hosts_wait wait;
    struct hosts_meeting meeting; /* of the newest START */
    double open_s;
    double refused_s;  /* when people were last told of a refused message */
    bool told_name;    /* people were told that the endpoint's name is unknown */
    bool store_used;   /* workers of a round have used it */
    struct message in; /* the decoded message */
    struct message out_join;
    uint64_t skewed[SEVERAL_SKEWED]; /* peers for which people were told that the clock differs */
    int skewed_count;
    struct dt_text out; /* the encoded message */
};

/* ---- several.c ---- */

void several_say(const char *line);
/* Call it after each call of the member. It follows the member's deadlines, which may have changed,
 * and lets the job act. */
void several_moved(struct several *s);

/* ---- several_links.c ---- */

struct link_hooks several_link_hooks(struct several *s);
/* The watch got the endpoint's port. */
void several_endpoint_got(void *user, int fd, const struct lookup_list *list);

/* ---- several_member.c ---- */

struct member_hooks several_member_hooks(struct several *s);
void several_send(void *user, uint64_t peer, const struct message *m);
/* Ends a job that has not begun a round, because nothing is lost then. Otherwise does nothing. */
void several_end_at_once(struct several *s, int code, const char *why);
/* Sets s->wait.holder: the process of this host that holds the endpoint's port and does not answer
 * as an agent; "" if there is none. */
void several_find_holder(struct several *s);

#endif
