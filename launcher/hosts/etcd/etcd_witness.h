/* The witness of a job in a real etcd. Its calls become transactions on two keys below PREFIX/RUN
 * ID/. Errors of etcd are reported to the user. */
#ifndef DT_LAUNCHER_HOSTS_ETCD_ETCD_WITNESS_H
#define DT_LAUNCHER_HOSTS_ETCD_ETCD_WITNESS_H

#include "launcher/options/options.h"
#include "launcher/rounds/witness.h"

#include <uv.h>

struct etcd_witness_hooks {
    void *user;
    /* the member was called, so its deadlines may have changed */
    void (*moved)(void *user);
    /* etcd does not answer, or not as expected; null: it answers again */
    void (*trouble)(void *user, const char *why);
    /* etcd will never accept the request: a wrong password, permission or version. */
    void (*refused)(void *user, const char *why);
    void (*probe_port)(void *user, const struct peer_info *at); /* witness.h */
};

struct etcd_witness;

/* Opens without a request. member, o and hooks->user must outlive it. */
int etcd_witness_open(struct etcd_witness **out, uv_loop_t *loop, const struct options *o, struct member *member,
                      const struct etcd_witness_hooks *hooks, struct dt_error *err);
struct witness_end *etcd_witness_end(struct etcd_witness *n);
/* Waits for calls under way, for at most 5 s / time_scale (at least 1 s), because one of them may
 * carry the verdict of the run. Then frees n. */
void etcd_witness_close(struct etcd_witness *n);

#endif
