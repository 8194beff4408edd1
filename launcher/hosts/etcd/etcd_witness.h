/* The witness of nodes.c in a real etcd: its calls become transactions on two keys below
 * PREFIX/RUN ID/, what etcd says goes to people. */
#ifndef DT_LAUNCHER_HOSTS_ETCD_ETCD_WITNESS_H
#define DT_LAUNCHER_HOSTS_ETCD_ETCD_WITNESS_H

#include "launcher/options/options.h"
#include "launcher/rounds/witness.h"

#include <uv.h>

struct etcd_witness_hooks {
    void *user;
    void (*moved)(void *user);                    /* the member was called: its deadlines may be
                                                   * others */
    void (*trouble)(void *user, const char *why); /* no answer, or not the one wanted; null: it
                                                   * answers */
    /* It will not answer, however often it is asked: a password, a permission, a version. */
    void (*refused)(void *user, const char *why);
    void (*knock)(void *user, const struct peer_info *at); /* witness.h */
};

struct etcd_witness;

/* member, o and hooks->user must outlive it. Asks nothing yet. */
int etcd_witness_open(struct etcd_witness **out, uv_loop_t *loop, const struct options *o, struct member *member,
                      const struct etcd_witness_hooks *hooks, struct dt_error *err);
struct witness_end *etcd_witness_end(struct etcd_witness *n);
/* Lets what is under way get away, at most 5 s / time_scale (at least 1 s): the verdict of the
 * run may be among it. Then it is gone. */
void etcd_witness_close(struct etcd_witness *n);

#endif
