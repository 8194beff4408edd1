/* Gathers what the workers of all hosts do, for `dtrun --status`. Hosts are asked over the links,
 * only when a user asks. Followers have a link with their leader only, so the leader passes
 * questions and answers on. A question ends when all hosts have answered, or after a second; hosts
 * that were silent until then are shown as such. Nothing here takes decisions about the job. */
#ifndef DT_LAUNCHER_QUERY_GATHER_H
#define DT_LAUNCHER_QUERY_GATHER_H

#include "launcher/rounds/member.h"

#include <uv.h>

struct gather;

struct gather_hooks {
    void *user;
    void (*send)(void *user, uint64_t peer, const struct message *m);
    /* Appends what this host's workers do: one JSON object per worker and line. May be null: no
     * workers. */
    void (*rows)(void *user, struct dt_text *out);
    void (*done)(void *user); /* a question has ended; may be null */
};

/* The member is borrowed and only read. */
void gather_open(struct gather **out, uv_loop_t *loop, const struct member *member, const struct gather_hooks *hooks);
/* Asks all hosts unless a question is under way. Returns false if there is no host to ask.
 * Otherwise hooks.done will be called. */
bool gather_begin(struct gather *g);
/* Handles a message from a peer. Returns false for other kinds of messages. */
bool gather_message(struct gather *g, uint64_t peer, const struct message *in);
/* Appends the hosts as JSON objects, separated by commas. "answered" tells whether a host that was
 * asked has answered. */
void gather_members(const struct gather *g, double now_s, struct dt_text *out);
/* Appends the rows of the other hosts, one JSON object per line. */
void gather_rows(const struct gather *g, struct dt_text *out);
/* Frees g when its handle is closed; run the loop until then. */
void gather_close(struct gather *g);

#endif
