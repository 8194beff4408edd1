/* Between the files several*.c only: one agent of a job on several hosts. */
#ifndef DT_LAUNCHER_HOSTS_SEVERAL_PRIVATE_H
#define DT_LAUNCHER_HOSTS_SEVERAL_PRIVATE_H

#include "launcher/hosts/claim.h"
#include "launcher/hosts/etcd/etcd_witness.h"
#include "launcher/hosts/hosts_private.h"
#include "launcher/hosts/link/link.h"
#include "launcher/hosts/place.h"
#include "launcher/hosts/wait.h"
#include "launcher/net/knock.h"
#include "launcher/query/gather.h"
#include "launcher/rounds/member.h"

#define SEVERAL_SKEWED 16          /* so many clocks that differ are said */
#define SEVERAL_REFUSED_LINE_S 5.0 /* between two lines about messages that were refused */

struct several {
    struct hosts base;
    struct member member;
    struct link *link;
    struct gather *gather;
    struct knock *knocks;
    struct claim *claim;       /* on the endpoint's port, while another process has it; or null */
    struct etcd_witness *etcd; /* in place of the endpoint; or null */
    uv_timer_t tick, news;
    struct hosts_place place;
    struct hosts_wait wait;
    struct hosts_meeting meeting; /* of the newest START */
    double open_s;
    double refused_s;  /* when a refused message was last said */
    bool told_name;    /* people know that the endpoint's name means nothing */
    bool store_used;   /* by workers of a round */
    struct message in; /* decoded */
    struct message out_join;
    uint64_t skewed[SEVERAL_SKEWED]; /* peers whose clock was said to be off */
    int skewed_count;
    struct dt_text out; /* encoded */
};

/* ---- several.c ---- */

void several_say(const char *line);
/* The member was called: follows its deadlines, which may be others now, then lets the job carry
 * out what the member said. The deadline of our workers comes first, before a worker starts. */
void several_moved(struct several *s);

/* ---- several_links.c ---- */

struct link_hooks several_link_hooks(struct several *s);
/* The claim has got the endpoint's port. */
void several_claimed(void *user, int fd, const struct lookup_list *list);

/* ---- several_member.c ---- */

struct member_hooks several_member_hooks(struct several *s);
void several_send(void *user, uint64_t peer, const struct message *m);
/* Ends a job that has not begun a round, for nothing is lost by it; else nothing happens. */
void several_end_at_once(struct several *s, int code, const char *why);
/* Fills in s->wait.holder: the process of this host that has the endpoint's port and is no agent
 * that answers; "" if there is none. */
void several_find_holder(struct several *s);

#endif
