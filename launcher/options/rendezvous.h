/* How hosts meet: a row for each back end that --rdzv_backend may name. To add one: its row and
 * functions in rendezvous.c, its --rdzv_conf keys in rendezvous_conf.c, its words below. */
#ifndef DT_LAUNCHER_OPTIONS_RENDEZVOUS_H
#define DT_LAUNCHER_OPTIONS_RENDEZVOUS_H

#include "launcher/options/options_table.h"

/* For help, completion and messages. */
#define RENDEZVOUS_NAMES "static|c10d|etcd-v3"
#define RENDEZVOUS_LIST "static, c10d or etcd-v3"
#define RENDEZVOUS_HELP "how hosts meet: by node rank, as they come, or at an etcd; alike on one host"
#define RENDEZVOUS_CONF_HELP                                                                                           \
    "join_timeout, last_call_timeout, is_host, keep_alive_interval and keep_alive_max_attempt (their product is "      \
    "dead_after), timeout (static: join_timeout); for etcd: protocol, cacert, cert, key, user_file, etcd_prefix; "     \
    "other keys are accepted"

struct conf; /* rendezvous_conf.c: what the keys of one --rdzv_conf have said so far */

struct conf_key {
    const char *name;
    /* value: of the key, never empty. Null: the key is accepted and has no effect. */
    int (*take)(struct conf *c, const struct conf_key *key, const char *value, struct dt_error *err);
    size_t offset;      /* of the member of struct options that it fills in, or of struct conf */
    enum option option; /* our own option for the same, which wins when it is given */
};

struct rendezvous {
    const char *name;
    bool by_rank;                /* --node_rank numbers the hosts, and node rank 0 holds the endpoint */
    int default_port;            /* of an endpoint that names none; -1: it must */
    const char *refused;         /* why it cannot be used; null: it can */
    const struct conf_key *conf; /* keys that only this one knows, ended by a null name */
    /* Where several hosts meet, and where the workers of one host find their store: into
     * master_addr and master_port, which port 0 leaves open on one host. Null: refused. */
    int (*meet)(struct options *o, const struct given *g, char *const *env, struct dt_error *err);
    int (*meet_alone)(struct options *o, const struct given *g, struct dt_error *err);
};

extern const struct rendezvous rendezvous_rows[];
extern const int rendezvous_count;

/* rendezvous_conf.c */
extern const struct conf_key conf_of_static[], conf_of_etcd[];

/* The row of this name; of a name that nobody knows a row that is refused. */
const struct rendezvous *rendezvous_find(const char *name);
/* Chooses by o->rdzv, or for --standalone a loopback store and a run id of its own. */
int rendezvous_choose(struct options *o, const struct given *g, char *const *env, struct dt_error *err);

#endif
