/* What the workers of all hosts do, for `dtrun --status`: asked over the links when somebody
 * wants to know, so that nothing travels while nobody does. Followers are linked with their
 * leader only, so it passes questions and answers on. A question is over when all hosts have
 * answered, or after a second: whoever was silent until then is shown so. Nothing here decides
 * anything about the job. */
#ifndef DT_LAUNCHER_QUERY_GATHER_H
#define DT_LAUNCHER_QUERY_GATHER_H

#include "launcher/rounds/member.h"

#include <uv.h>

struct gather;

struct gather_hooks {
    void *user;
    void (*send)(void *user, uint64_t peer, const struct message *m);
    /* Appends what this host's workers do: a JSON object per worker, each with a newline behind
     * it. May be null: there are none. */
    void (*rows)(void *user, struct dt_text *out);
    void (*done)(void *user); /* a question is over; may be null */
};

/* The member is borrowed, and only read. */
void gather_open(struct gather **out, uv_loop_t *loop, const struct member *member, const struct gather_hooks *hooks);
/* Asks all hosts, unless a question is under way. False: there is nobody to ask; else hooks.done
 * will be called. */
bool gather_begin(struct gather *g);
/* A message that came; false: it is none of ours. */
bool gather_message(struct gather *g, uint64_t peer, const struct message *in);
/* The hosts as JSON objects separated by commas, with "answered" as far as they were asked. */
void gather_members(const struct gather *g, double now_s, struct dt_text *out);
/* The rows of the other hosts, as they came: a JSON object per line. */
void gather_rows(const struct gather *g, struct dt_text *out);
/* Run the loop until its handle is closed, which frees g. */
void gather_close(struct gather *g);

#endif
