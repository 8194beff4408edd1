/* Between the files member*.c only. */
#ifndef DT_LAUNCHER_ROUNDS_MEMBER_PARTS_H
#define DT_LAUNCHER_ROUNDS_MEMBER_PARTS_H

#include "launcher/rounds/member.h"

enum { MEMBER_OWN_NODE = 0 }; /* our number at the coordinator, while we lead */

/* Handlers of messages, by the table in member.c. A handler may move or remove *p: then find it
 * again by its id. */
typedef void member_handler(struct member *m, struct member_peer *p, const struct message *in, double now_s);
member_handler member_on_join, member_on_reach, member_on_ack, member_on_event; /* while leading */
/* while following */
member_handler member_on_probe, member_on_yield;
member_handler member_on_vote_ask, member_on_vote, member_on_keep, member_on_prepare;

typedef bool member_has(const struct member *m, uint64_t id, const void *arg);

/* ---- member.c ---- */

void member_say(struct member *m, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* An action for our own node. */
void member_act(struct member *m, enum action_kind kind, int code, const char *why);
/* To the run with this nonce; {0, 0}: to none yet. */
void member_change_run(struct member *m, const uint64_t *nonce);
/* A message without a term gets that of our record. */
void member_send(struct member *m, uint64_t peer, struct message *message);
bool member_has_begun(int round, bool committed);
/* To a host that asks when the run is over: a host of this run hears the verdict, which it may have
 * missed with its leader; a newcomer hears that it is too late. */
void member_tell_end(struct member *m, const struct member_peer *p, bool of_this_run);
/* What we kept of a run before, by its nonce; or null. */
struct member_past *member_find_past(struct member *m, const uint64_t *nonce);
/* Index of id in a council, or -1. */
int member_place_of(const struct peer_info *list, int count, uint64_t id);

/* ---- member_peers.c ---- */

struct member_peer *member_add_peer(struct member *m, uint64_t id);
void member_remove_peer(struct member *m, struct member_peer *p);
/* The agent is gone for certain. told: we know every record that it kept. */
void member_bury(struct member *m, uint64_t id, bool told);
bool member_same_machine(const struct peer_info *a, const struct peer_info *b);
void member_bury_predecessors(struct member *m, const struct peer_info *here);
void member_bury_all_predecessors(struct member *m);
/* Whether the agents that `has` holds for are a quorum for *r. */
bool member_quorum(const struct member *m, const struct record *r, member_has *has, const void *arg);

/* ---- member_seek.c ---- */

/* We seek a leader again. dead: the old one does not lead any more; else it may, for a while. */
void member_lose_leader(struct member *m, bool dead, double now_s);
/* `leader` leads in this term. Our workers end if they are of another leader's round, and our JOIN
 * goes to it. */
void member_follow(struct member *m, uint64_t leader, uint64_t term, double now_s);
/* Our JOIN, if our node waits for a round. */
void member_send_join(struct member *m, uint64_t peer);
/* An agent that keeps no record needs the link with its leader only: closes the others. */
void member_let_others_go(struct member *m);
bool member_hopeless(const struct member *m, double now_s);
double member_tick_seeking(struct member *m, double now_s);

/* ---- member_elect.c ---- */

/* Asks the council for votes, if we are in it, and sets when to ask again. */
void member_campaign(struct member *m, double now_s);
/* Begins to lead when there are enough votes. Call it when a vote came, or when there is one agent
 * less to ask. */
void member_count_votes(struct member *m, double now_s);
/* True: this term of a message of `peer` is older than our vote, and `peer` is told so. */
bool member_refuse_old_term(struct member *m, uint64_t peer, uint64_t term);
/* Keeps *r, which `from` sent, instead of our record. Agents that count us hear of it before. */
void member_keep(struct member *m, const struct record *r, uint64_t from);
/* We changed our record, which was *was, as the leader. Tells the agents that keep *was or count
 * us; but not those of the new councils, which are asked to keep the record anyway. */
void member_tell_others(struct member *m, const struct record *was);

/* ---- member_term.c ---- */

void member_begin_leading(struct member *m, double now_s);
void member_stop_leading(struct member *m);
/* We may not be the leader any more. why: with a %f for `seconds`. */
void member_stand_down(struct member *m, const char *why, double seconds, double now_s);
void member_beat(struct member *m, uint64_t peer);
double member_tick_leading(struct member *m, double now_s);

/* ---- member_lead.c: while leading ---- */

/* An event for the coordinator; carries out its actions. */
void member_lead_step(struct member *m, const struct event *e, double now_s);
void member_own_event(struct member *m, const struct event *e, double now_s);
void member_lost_peer(struct member *m, const struct member_peer *gone, double now_s);
void member_put_out(struct member *m, struct member_peer *p, double now_s);
void member_refuse(struct member *m, struct member_peer *p, int code, const char *text);
/* Sends an action to its node, ours or another's; to one peer. */
void member_deliver(struct member *m, const struct action *a);
void member_send_action(struct member *m, struct member_peer *p, const struct action *a);
/* True: the node's START was held back, and is dropped. */
bool member_drop_start(struct member *m, int node);
/* Null: the node's agent is not here. */
const struct peer_info *member_info_of_node(struct member *m, int node);

/* ---- member_join.c: while leading ---- */

void member_refuse_spares(struct member *m, double now_s);
/* The host was lost, or left out: its return counts. */
void member_note_loss(struct member *m, const struct peer_info *info);
/* The peer has its order from now on. */
void member_note_order(struct member *m, const struct member_peer *p);

/* ---- member_prepare.c: while leading ---- */

/* Asks the council to keep the record, and goes on when it does. */
void member_prepare(struct member *m);
void member_send_prepare(struct member *m);
/* Call it when an agent kept the record, or when there is one agent less to ask. */
void member_check_prepared(struct member *m);
void member_begin_when_free(struct member *m);
/* Tells the verdict to all, and ends our node. */
void member_finish_now(struct member *m);
/* No round before until_s, because workers of that node may run until then; lifts that. */
void member_fence(struct member *m, uint64_t id, double until_s);
void member_unfence(struct member *m, uint64_t id);
double member_fenced_until(struct member *m);
/* The witness, if there is one, is in the record's council. */
void member_add_witness(const struct member *m, struct record *r);

/* ---- member_reach.c ---- */

/* Whether all hosts of the round have reached each other; begins to let them try. */
bool member_all_reached(struct member *m);
void member_tick_reach(struct member *m, double now_s);
/* True: this host was left out, because another one cannot reach it; it is told to try again. */
bool member_stays_apart(struct member *m, struct member_peer *p);
void member_say_reached(struct member *m, uint64_t peer);
/* Two hosts that cannot reach each other, for people; or null. */
const char *member_apart_text(const struct member *m, char *text, size_t size);

/* ---- member_rival.c ---- */

/* A beat of another run's leader. True: we give up our run, which has begun, for that run. */
bool member_leaves_run(struct member *m, struct member_peer *p, const struct message_beat *in, double now_s);
/* The hosts with which our run could go on, as other leaders are told; 0: it could not. */
int member_claim(const struct member *m);
/* Holds the first round back while an agent of another run is here: its leader may come soon. */
void member_hold_for_others(struct member *m, double now_s);

/* ---- member_news.c ---- */

double member_watch_silence(struct member *m, double now_s);
/* How long this process slept, if it slept so long and so lately that the others may have given it
 * up; else 0. */
double member_slept_s(const struct member *m, double now_s);
void member_heard(struct member *m, struct member_peer *p, double now_s);
bool member_heard_quorum(const struct member *m, double since_s);
/* How long workers may live after the last sign of their leader, or of its quorum. */
double member_workers_s(const struct member *m);
void member_add_ghost(struct member *m, const struct member_peer *p);
/* A round of this run begins or ends: forgets why a round of a run before ended. */
void member_forget_past_cause(struct member *m);
/* False: a better one is known. A leader tells the others. */
bool member_set_cause(struct member *m, int round, const struct cause *cause);
/* The same for the round of now, and for what happened to a host: words, and what comes of it or
 * "". */
bool member_set_host_cause(struct member *m, const char *words, const char *next);
/* Says to people now what may be the cause of a round's end. set: that is the cause, and nobody
 * says it again. */
void member_say_cause(struct member *m, const char *words, const char *next, bool set);
void member_wait_text(struct member *m, char *text, size_t size);

#endif
