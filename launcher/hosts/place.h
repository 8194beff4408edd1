/* How this host joins a job on several hosts (several.c): which settings must be the same on all
 * hosts, which host holds the endpoint, and at which address others reach this host. */
#ifndef DT_LAUNCHER_HOSTS_PLACE_H
#define DT_LAUNCHER_HOSTS_PLACE_H

#include "launcher/net/endpoint.h"
#include "launcher/rounds/member.h"
#include "launcher/options/options.h"

struct hosts_place {
    struct lookup_list endpoint; /* addresses of the endpoint; count 0: unknown */
    bool hosts;                  /* this host holds the endpoint */
    bool translated;             /* this host holds the endpoint, but has none of its addresses */
    /* others are told an address that this host got from the endpoint's name */
    bool by_name;
};

/* Writes the settings that hosts compare before they begin, one per line: version, sizes,
 * --dead_after, back end, program. For train also the hash of its job file, and its arguments. */
void hosts_digest(const struct options *o, char *out, size_t out_bytes);
/* Which host should hold the endpoint, according to the options. */
enum endpoint_choice hosts_endpoint_choice(const struct options *o);
/* Decides whether this host holds the endpoint, and listens. Fills in *p, self->port and
 * self->address ("" if only a link can tell the address). It waits only for the look-up of the
 * endpoint's name, at most a second. An unknown name is no error; `trouble` then describes it.
 * Returns the listening socket, or -1. */
int hosts_place_open(struct hosts_place *p, const struct options *o, struct peer_info *self, char *trouble,
                     size_t trouble_bytes, struct dt_error *err);
/* Whether only this machine can reach a numeric address. True for "". */
bool hosts_is_loopback(const char *address);

#endif
