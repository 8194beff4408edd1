/* For whom a host of a job on several hosts waits, in words. */
#ifndef DT_LAUNCHER_HOSTS_WAIT_H
#define DT_LAUNCHER_HOSTS_WAIT_H

#include "launcher/rounds/member.h"
#include "launcher/options/options.h"

#define HOSTS_WAIT_REFUSALS 3 /* of so many the key is the cause */
/* for so long refused, and by nobody else answered: the key will not get better */
#define HOSTS_WAIT_KEY_S 15.0

struct hosts_wait {
    /* of the three texts, whatever address they name: as struct dt_error has it */
    uint32_t trouble_digest, denied_digest, key_digest;
    double since_s;    /* our node waits for a round; -1: it does not */
    char trouble[256]; /* why the endpoint cannot be reached, newest */
    char denied[256];  /* what cannot get better by itself, and has been said; or "" */
    char key[256];     /* newest refusal that counts in key_refusals */
    char holder[160];  /* who has the endpoint's port, when that is on this host; or "" */
    int key_refusals;  /* by the endpoint, since another agent was met: that a key differs, or
                        * somebody who is ending or has too much to do */
    int row_refusals;  /* of these, in a row without a long pause; with the times of the first
                        * and the newest */
    double row_since_s, row_newest_s;
};

/* The endpoint refused our key. True when it has done so for long enough (HOSTS_WAIT_KEY_S /
 * time_scale) that nothing else can be the cause. */
bool hosts_wait_key_refused(struct hosts_wait *w, const char *why, uint32_t digest, double now_s, double time_scale);
/* Why the endpoint cannot be reached now, "" for none. digest: of what happened, as struct dt_error
 * has it; 0 where that is not known. */
void hosts_wait_trouble(struct hosts_wait *w, const char *text, uint32_t digest);
/* Another agent was met. */
void hosts_wait_met(struct hosts_wait *w);
/* Appends what is wrong at the endpoint. */
void hosts_wait_endpoint(const struct hosts_wait *w, const struct member *m, const struct options *o,
                         struct dt_text *out);
/* The job that cannot begin ends with DT_EXIT_USAGE: whoever starts the same again finds the
 * same. */
bool hosts_wait_is_key(const struct hosts_wait *w, const struct member *m);
/* Appends the line that a wait is told with every few seconds. free_s: when the witness lets
 * another run begin; 0: nothing is known of that. */
void hosts_wait_line(const struct hosts_wait *w, const struct member *m, const struct options *o, double free_s,
                     struct dt_text *out);
/* Appends why the job ends without having begun another round. */
void hosts_wait_too_few(const struct hosts_wait *w, const struct member *m, const struct options *o,
                        struct dt_text *out);

#endif
