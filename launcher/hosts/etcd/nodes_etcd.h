/* The witness of nodes.c in a real etcd: its calls become transactions on two keys below
 * PREFIX/RUN ID/, what etcd says goes to people. */
#ifndef DT_LAUNCHER_HOSTS_ETCD_NODES_ETCD_H
#define DT_LAUNCHER_HOSTS_ETCD_NODES_ETCD_H

#include "launcher/options/options.h"
#include "launcher/rounds/witness.h"

#include <uv.h>

struct nodes_etcd_hooks {
    void *user;
    void (*moved)(void *user);                    /* the member was called: its deadlines may be
                                                   * others */
    void (*trouble)(void *user, const char *why); /* no answer, or not the one wanted; null: it
                                                   * answers */
    /* It will not answer, however often it is asked: a password, a permission, a version. */
    void (*refused)(void *user, const char *why);
    void (*knock)(void *user, const struct peer_info *at); /* witness.h */
};

struct nodes_etcd;

/* member, o and hooks->user must outlive it. Asks nothing yet. */
int nodes_etcd_open(struct nodes_etcd **out, uv_loop_t *loop, const struct options *o, struct member *member,
                    const struct nodes_etcd_hooks *hooks, struct dt_error *err);
struct witness_end *nodes_etcd_witness(struct nodes_etcd *n);
/* Lets what is under way get away, at most 5 s / time_scale (at least 1 s): the verdict of the
 * run may be among it. Then it is gone. */
void nodes_etcd_close(struct nodes_etcd *n);

#endif
