/* Interfaces between the files member*.c. */
#ifndef DT_LAUNCHER_ROUNDS_MEMBER_PARTS_H
#define DT_LAUNCHER_ROUNDS_MEMBER_PARTS_H

#include "launcher/rounds/member.h"

enum { MEMBER_OWN_NODE = 0 }; /* our own node's number at the coordinator, while we lead */

/* Handlers of messages, in the table of member.c. A handler may move or remove *p; find the peer
 * again by its id. */
typedef void member_handler(struct member *m, struct member_peer *p, const struct message *in, double now_s);
member_handler member_on_join, member_on_reach, member_on_ack, member_on_event; /* while leading */
/* while following */
member_handler member_on_probe, member_on_yield;
member_handler member_on_vote_ask, member_on_vote, member_on_keep, member_on_prepare;

typedef bool member_has(const struct member *m, uint64_t id, const void *arg);

/* ---- member.c ---- */

void member_say(struct member *m, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Carries out an action on our own node. */
void member_act(struct member *m, enum action_kind kind, int code, const char *why);
/* Changes to the run with this nonce. {0, 0}: we are in no run yet. */
void member_change_run(struct member *m, const uint64_t *nonce);
/* Sends a message. A message without a term gets the term of our record. */
void member_send(struct member *m, uint64_t peer, struct message *message);
bool member_has_begun(int round, bool committed);
/* Answers a host that asks when the run is over. A host of this run gets the verdict, which it may
 * have missed with its leader. A newcomer learns that it is too late. */
void member_tell_end(struct member *m, const struct member_peer *p, bool of_this_run);
/* What we kept of an earlier run, by its nonce; null: nothing. */
struct member_past *member_find_past(struct member *m, const uint64_t *nonce);
/* Index of id in a council, or -1. */
int member_place_of(const struct peer_info *list, int count, uint64_t id);

/* ---- member_peers.c ---- */

struct member_peer *member_add_peer(struct member *m, uint64_t id);
void member_remove_peer(struct member *m, struct member_peer *p);
/* Notes that the agent is gone for certain. told: we know every record that it kept. */
void member_mark_dead(struct member *m, uint64_t id, bool told);
bool member_same_machine(const struct peer_info *a, const struct peer_info *b);
void member_mark_predecessors_dead(struct member *m, const struct peer_info *here);
void member_mark_all_predecessors_dead(struct member *m);
/* Whether the agents for which `has` is true are a quorum for *r. */
bool member_quorum(const struct member *m, const struct record *r, member_has *has, const void *arg);

/* ---- member_seek.c ---- */

/* Begins to seek a leader again. dead: the old leader does not lead any more. Otherwise it may lead
 * for a while. */
void member_lose_leader(struct member *m, bool dead, double now_s);
/* Follows `leader`, which leads in this term. Ends our workers if they belong to another leader's
 * round, and sends our JOIN. */
void member_follow(struct member *m, uint64_t leader, uint64_t term, double now_s);
/* Sends our JOIN if our node waits for a round. */
void member_send_join(struct member *m, uint64_t peer);
/* Closes all links but the leader's if we keep no record: we need no others. */
void member_drop_other_links(struct member *m);
bool member_hopeless(const struct member *m, double now_s);
double member_tick_seeking(struct member *m, double now_s);

/* ---- member_elect.c ---- */

/* Asks the council for votes if we are in it, and sets the time to ask again. */
void member_campaign(struct member *m, double now_s);
/* Begins to lead when there are enough votes. Call it after each vote, and when there is one agent
 * less to ask. */
void member_count_votes(struct member *m, double now_s);
/* Returns true if this term, of a message from the peer, is older than our vote. The peer is told
 * so. */
bool member_refuse_old_term(struct member *m, uint64_t peer, uint64_t term);
/* Keeps *r, which `from` sent, instead of our record. Agents that count our vote get *r before. */
void member_keep(struct member *m, const struct record *r, uint64_t from);
/* As the leader we changed our record, which was *was. Sends the new record to the agents that
 * keep *was or count our vote. The new councils are left out, because member_prepare asks them
 * anyway. */
void member_tell_others(struct member *m, const struct record *was);

/* ---- member_term.c ---- */

void member_begin_leading(struct member *m, double now_s);
void member_stop_leading(struct member *m);
/* Gives up leading, because we may not be the leader any more. why: a format with one %f, for
 * `seconds`. */
void member_stand_down(struct member *m, const char *why, double seconds, double now_s);
void member_beat(struct member *m, uint64_t peer);
double member_tick_leading(struct member *m, double now_s);

/* ---- member_lead.c: while leading ---- */

/* Gives the coordinator an event and carries out its actions. */
void member_lead_step(struct member *m, const struct event *e, double now_s);
void member_own_event(struct member *m, const struct event *e, double now_s);
void member_lost_peer(struct member *m, const struct member_peer *gone, double now_s);
void member_exclude(struct member *m, struct member_peer *p, double now_s);
void member_refuse(struct member *m, struct member_peer *p, int code, const char *text);
/* Sends an action to its node, ours or another's; sends an action to one peer. */
void member_deliver(struct member *m, const struct action *a);
void member_send_action(struct member *m, struct member_peer *p, const struct action *a);
/* Returns true if the node's START was held back. It is dropped. */
bool member_drop_start(struct member *m, int node);
/* Returns null if the node's agent is not here. */
const struct peer_info *member_info_of_node(struct member *m, int node);

/* ---- member_join.c: while leading ---- */

void member_refuse_spares(struct member *m, double now_s);
/* The host was lost or excluded. Its next JOIN counts as a return. */
void member_note_loss(struct member *m, const struct peer_info *info);
/* Notes that the peer has its order from now on. */
void member_note_order(struct member *m, const struct member_peer *p);

/* ---- member_prepare.c: while leading ---- */

/* Asks the council to keep the record, and goes on when the council keeps it. */
void member_prepare(struct member *m);
void member_send_prepare(struct member *m);
/* Goes on if enough agents keep the record. Call it after each acknowledgement, and when there is
 * one agent less to ask. */
void member_check_prepared(struct member *m);
void member_begin_when_free(struct member *m);
/* Sends the verdict to all, and ends our node. */
void member_finish_now(struct member *m);
/* Lets no round begin before until_s, because workers of that node may run until then; lifts that
 * limit. */
void member_fence(struct member *m, uint64_t id, double until_s);
void member_unfence(struct member *m, uint64_t id);
double member_fenced_until(struct member *m);
/* Adds the witness, if there is one, to the record's council. */
void member_add_witness(const struct member *m, struct record *r);

/* ---- member_reach.c ---- */

/* Whether all hosts of the next round have reached each other. The first call makes them try. */
bool member_all_reached(struct member *m);
void member_tick_reach(struct member *m, double now_s);
/* Returns true if this host is excluded because it cannot reach another host. It is told to try
 * again. */
bool member_stays_excluded(struct member *m, struct member_peer *p);
void member_say_reached(struct member *m, uint64_t peer);
/* Text for people about two hosts that cannot reach each other; null: there are none. */
const char *member_unreachable_text(const struct member *m, char *text, size_t size);

/* ---- member_rival.c ---- */

/* Handles a beat from the leader of another run. Returns true if we give up our run, which has
 * begun, for that run. */
bool member_leaves_run(struct member *m, struct member_peer *p, const struct message_beat *in, double now_s);
/* The number of hosts with which our run could go on, as other leaders are told; 0: it could
 * not. */
int member_hosts_led(const struct member *m);
/* Holds the first round back while an agent of another run is here, because the leader of that run
 * may come soon. */
void member_hold_for_others(struct member *m, double now_s);

/* ---- member_news.c ---- */

double member_watch_silence(struct member *m, double now_s);
/* How long this process slept, if it slept recently and so long that the others may have given it
 * up; otherwise 0. */
double member_slept_s(const struct member *m, double now_s);
void member_heard(struct member *m, struct member_peer *p, double now_s);
bool member_heard_quorum(const struct member *m, double since_s);
/* How long workers may live after the last message from their leader, or from the leader's
 * quorum. */
double member_workers_s(const struct member *m);
void member_add_ghost(struct member *m, const struct member_peer *p);
/* Forgets why a round of an earlier run ended. Called when a round of this run begins or ends. */
void member_forget_past_cause(struct member *m);
/* Sets the cause of the round's end. Returns false if a better cause is known. A leader sends it to
 * the others. */
bool member_set_cause(struct member *m, int round, const struct cause *cause);
/* The same for the current round and a cause that concerns a host. words: what happened. next: the
 * consequences, or "". */
bool member_set_host_cause(struct member *m, const char *words, const char *next);
/* Tells people now of a possible cause of a round's end. set: this is the cause, and the job does
 * not print it again. */
void member_say_cause(struct member *m, const char *words, const char *next, bool set);
void member_wait_text(struct member *m, char *text, size_t size);

#endif
