/* Between the files member*.c only. */
#ifndef DT_LAUNCHER_ROUNDS_MEMBER_PARTS_H
#define DT_LAUNCHER_ROUNDS_MEMBER_PARTS_H

#include "launcher/rounds/member.h"

enum { MEMBER_OWN_NODE = 0 }; /* our number at the coordinator, while we lead */

typedef bool member_has(const struct member *m, uint64_t id, const void *arg);

struct member_peer *member_add_peer(struct member *m, uint64_t id);
void member_remove_peer(struct member *m, struct member_peer *p);
void member_bury(struct member *m, uint64_t id, bool told);
bool member_same_machine(const struct peer_info *a, const struct peer_info *b);
void member_bury_predecessors(struct member *m, const struct peer_info *here);
void member_bury_all_predecessors(struct member *m);
void member_say(struct member *m, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void member_act(struct member *m, enum action_kind kind, int code, const char *why);
void member_change_run(struct member *m, const uint64_t *nonce);
void member_send(struct member *m, uint64_t peer, struct message *message);
bool member_quorum(const struct member *m, const struct record *r, member_has *has, const void *arg);
void member_lose_leader(struct member *m, bool dead, double now_s);
void member_begin_leading(struct member *m, double now_s);
void member_stop_leading(struct member *m);
void member_stand_down(struct member *m, const char *why, double seconds, double now_s);
void member_on_join(struct member *m, struct member_peer *p, const struct message *in, double now_s);
void member_refuse_spares(struct member *m, double now_s);
void member_on_leading(struct member *m, struct member_peer *p, const struct message *in, double now_s);
void member_own_event(struct member *m, const struct event *e, double now_s);
void member_lost_peer(struct member *m, const struct member_peer *gone, double now_s);
void member_beat(struct member *m, uint64_t peer);
bool member_has_begun(int round, bool committed);
double member_tick_leading(struct member *m, double now_s);
void member_refuse(struct member *m, struct member_peer *p, int code, const char *text);
void member_tell_end(struct member *m, const struct member_peer *p, bool of_this_run);
bool member_drop_start(struct member *m, int node);
void member_unfence(struct member *m, uint64_t id);
void member_begin_when_free(struct member *m);
void member_lead_step(struct member *m, const struct event *e, double now_s);
void member_note_loss(struct member *m, const struct peer_info *info);
void member_note_order(struct member *m, const struct member_peer *p);
double member_fenced_until(struct member *m);
const struct peer_info *member_info_of_node(struct member *m, int node);
void member_put_out(struct member *m, struct member_peer *p, double now_s);
/* What we kept of a run before, by its nonce; or null. */
struct member_past *member_find_past(struct member *m, const uint64_t *nonce);
/* Index of id in a council, or -1. */
int member_place_of(const struct peer_info *list, int count, uint64_t id);
/* `leader` leads in this term: our workers end if they are of another one's round, and our wish
 * to join goes to it. */
void member_follow(struct member *m, uint64_t leader, uint64_t term, double now_s);
/* member_seek.c */
/* Our wish to be in a round, if we have one. */
void member_send_join(struct member *m, uint64_t peer);
/* Whoever keeps no state needs its leader's link only: the others are closed. */
void member_let_others_go(struct member *m);
/* Nobody of our run can be reached for long, and it cannot go on anywhere beside a new one. */
bool member_hopeless(const struct member *m, double now_s);
double member_tick_seeking(struct member *m, double now_s);
/* member_elect.c */
/* Asks the council for votes, if we are of it, and sets when to try again. */
void member_campaign(struct member *m, double now_s);
/* Begins to lead when they are enough; to be called when one came, or when there is one less to
 * ask. */
void member_count_votes(struct member *m, double now_s);
void member_on_vote_ask(struct member *m, uint64_t peer, const struct message *in, double now_s);
void member_on_vote(struct member *m, uint64_t peer, const struct message *in, double now_s);
/* Our vote belongs to a newer term than the message's: tells its sender, and is true. */
bool member_refuse_old_term(struct member *m, uint64_t peer, const struct message *in);
/* A record that a peer keeps; one that a leader asks us to keep. */
void member_on_keep(struct member *m, struct member_peer *p, const struct message *in, double now_s);
void member_on_prepare(struct member *m, uint64_t peer, const struct message *in, double now_s);
/* From now on we keep *r, which `from` sent, instead of our record. Who counts us hears it
 * before. */
void member_keep(struct member *m, const struct record *r, uint64_t from);
/* Our record, which was *was and which we changed as the leader: tells those who keep that, or
 * count us, and are in none of its councils, which are asked to keep it anyway. */
void member_tell_others(struct member *m, const struct record *was);
/* member_lead.c: an action for one node, ours or another's; for one peer. */
void member_deliver(struct member *m, const struct action *a);
void member_send_action(struct member *m, struct member_peer *p, const struct action *a);
/* member_prepare.c */
/* Asks the council to keep the record, and goes on when it does. Again with each beat, to those
 * who have not answered: their link may be another one by now. */
void member_prepare(struct member *m);
void member_send_prepare(struct member *m);
/* To be called when somebody kept it, or when there is one less to ask. */
void member_check_prepared(struct member *m);
/* The verdict, to all and to ourselves. */
void member_finish_now(struct member *m);
/* No round before until_s: workers of that node may run until then. */
void member_fence(struct member *m, uint64_t id, double until_s);
void member_add_witness(const struct member *m, struct record *r);
/* member_reach.c */
bool member_all_reached(struct member *m);
void member_tick_reach(struct member *m, double now_s);
bool member_stays_apart(struct member *m, struct member_peer *p);
void member_on_reach(struct member *m, struct member_peer *p, const struct message *in);
void member_say_reached(struct member *m, uint64_t peer);
void member_on_probe(struct member *m, const struct message *in);
const char *member_apart_text(const struct member *m, char *text, size_t size);
/* member_rival.c */
/* A beat of another run's leader: whether we give up ours, which has begun, for that one. */
bool member_leaves_run(struct member *m, struct member_peer *p, const struct message *in, double now_s);
/* Our leader gave up our run. */
void member_on_yield(struct member *m, const struct message *in, double now_s);
/* Hosts with which our run could go on, as rivals are told; 0: it could not. */
int member_claim(const struct member *m);
/* No first round while somebody of another run is here, whose leader may be found soon. */
void member_hold_for_others(struct member *m, double now_s);
/* member_news.c */
double member_watch_silence(struct member *m, double now_s);
/* For how long this process slept, when that was so long, and is so new, that others may have
 * given it up; 0: it was not. */
double member_slept_s(const struct member *m, double now_s);
void member_heard(struct member *m, struct member_peer *p, double now_s);
bool member_heard_quorum(const struct member *m, double since_s);
/* How long workers may live after the last sign of a leader, or of those who make us one. */
double member_workers_s(const struct member *m);
void member_add_ghost(struct member *m, const struct member_peer *p);
/* A round of this run begins, or ends: why one of a run before ended need not be said any more. */
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
