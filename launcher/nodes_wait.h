/* For whom a host of a job on several hosts waits, in words. */
#ifndef DT_LAUNCHER_NODES_WAIT_H
#define DT_LAUNCHER_NODES_WAIT_H

#include "launcher/member.h"
#include "launcher/options.h"

#define NODES_WAIT_REFUSALS 3 /* of so many the key is the cause */

struct nodes_wait {
    double since_s;    /* our node waits for a round; -1: it does not */
    char trouble[256]; /* why the endpoint cannot be reached, newest */
    char denied[256];  /* what cannot get better by itself, and has been said; or "" */
    int key_refusals;  /* by the endpoint, since another agent was met: that a key differs, or somebody who is ending or has too much to do */
};

/* Appends the line that a wait is told with every few seconds. free_s: when the witness lets another run begin; 0: nothing is known of that. */
void nodes_wait_line(const struct nodes_wait *w, const struct member *m, const struct options *o, double free_s, struct dt_text *out);
/* Appends why the job ends without having begun another round. */
void nodes_wait_too_few(const struct nodes_wait *w, const struct member *m, const struct options *o, struct dt_text *out);

#endif
