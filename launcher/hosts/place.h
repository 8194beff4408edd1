/* How this host comes to a job on several hosts (nodes.c): what must be alike on all, who holds
 * the endpoint, and by which address others reach us. */
#ifndef DT_LAUNCHER_HOSTS_PLACE_H
#define DT_LAUNCHER_HOSTS_PLACE_H

#include "launcher/net/endpoint.h"
#include "launcher/rounds/member.h"
#include "launcher/options/options.h"

struct hosts_place {
    struct lookup_list endpoint; /* where hosts meet; count 0: not known */
    bool hosts;                  /* we hold it */
    bool translated;             /* but none of its addresses is here */
    bool by_name;                /* what others are told is what its name is on this host */
};

/* What hosts compare before they begin, a line each: version, sizes, --dead_after, backend,
 * program; of train also its job file's hash and its arguments. */
void hosts_digest(const struct options *o, char *out, size_t out_bytes);
/* Who should hold the endpoint, as far as options say. */
enum endpoint_choice hosts_endpoint_choice(const struct options *o);
/* Decides who does, and listens. Fills in *p, self->port and self->address ("" while only a link
 * can tell). Waits for nothing but the look-up of the endpoint's name, a second; a name that
 * means nothing yet is no error, and `trouble` says so then. Returns the listening socket, or
 * -1. */
int hosts_place_open(struct hosts_place *p, const struct options *o, struct peer_info *self, char *trouble,
                     size_t trouble_bytes, struct dt_error *err);
/* Only this machine reaches a numeric address, or it is "". */
bool hosts_is_loopback(const char *address);

#endif
