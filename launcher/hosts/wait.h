/* Describes for people what a host of a job on several hosts waits for. */
#ifndef DT_LAUNCHER_HOSTS_WAIT_H
#define DT_LAUNCHER_HOSTS_WAIT_H

#include "launcher/rounds/member.h"
#include "launcher/options/options.h"

#define HOSTS_WAIT_REFUSALS 3 /* after so many refusals the key counts as the cause */
/* after refusals for so long, without another answer, the key is wrong for certain */
#define HOSTS_WAIT_KEY_S 15.0

struct hosts_wait {
    /* digests of the three texts, the same for every address in them (struct dt_error) */
    uint32_t trouble_digest, denied_digest, key_digest;
    double since_s;    /* when our node began to wait for a round; -1: it does not wait */
    char trouble[256]; /* the newest reason why the endpoint cannot be reached */
    char denied[256];  /* a reason that will not pass by itself and that people were told; or "" */
    char key[256];     /* the newest refusal that key_refusals counts */
    char holder[160];  /* process that holds the endpoint's port, if it is on this host; or "" */
    /* refusals by the endpoint since we last met another agent. The key may differ, or the endpoint
     * may be ending or overloaded. */
    int key_refusals;
    /* the newest refusals without a long pause between them, with the times of the first and the
     * newest */
    int row_refusals;
    double row_since_s, row_newest_s;
};

/* Notes that the endpoint refused our key. Returns true if it has done so for so long
 * (HOSTS_WAIT_KEY_S / time_scale) that nothing else can be the cause. */
bool hosts_wait_key_refused(struct hosts_wait *w, const char *why, uint32_t digest, double now_s, double time_scale);
/* Notes why the endpoint cannot be reached now; "": it can. digest: of the event, as in struct
 * dt_error; 0: unknown. */
void hosts_wait_trouble(struct hosts_wait *w, const char *text, uint32_t digest);
/* Notes that we met another agent. */
void hosts_wait_met(struct hosts_wait *w);
/* Appends the trouble at the endpoint. */
void hosts_wait_endpoint(const struct hosts_wait *w, const struct member *m, const struct options *o,
                         struct dt_text *out);
/* Whether the key is the reason why the job cannot begin. Then it ends with DT_EXIT_USAGE, because
 * another start would fail in the same way. */
bool hosts_wait_is_key(const struct hosts_wait *w, const struct member *m);
/* Appends the line that people get every few seconds during a wait. free_s: when the witness lets
 * another run begin; 0: unknown. */
void hosts_wait_line(const struct hosts_wait *w, const struct member *m, const struct options *o, double free_s,
                     struct dt_text *out);
/* Appends why the job ends without another round. */
void hosts_wait_too_few(const struct hosts_wait *w, const struct member *m, const struct options *o,
                        struct dt_text *out);

#endif
