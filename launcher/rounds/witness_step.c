/* The decisions of the witness, without its store. A follower would decide the same. */
#include "launcher/rounds/witness.h"

#include "base/error.h"

#include <stdio.h>
#include <string.h>

static struct message *reply(struct witness_answer *out, enum message_kind kind, uint64_t term)
{
    struct message *m = &out->replies[out->reply_count++];
    memset(m, 0, sizeof *m);
    m->kind = kind;
    m->term = term;
    return m;
}

static uint64_t newest_term(const struct message_witness *w)
{
    return w->promised > w->record.term ? w->promised : w->record.term;
}

/* Another agent was elected. Refuses an old term as member.c does. */
static void refuse(const struct message_witness *w, struct witness_answer *out)
{
    reply(out, MESSAGE_VOTE, newest_term(w))->vote.record = w->record;
}

static void on_prepare(const struct message_witness *w, const struct message *in, struct witness_answer *out)
{
    const struct record *r = &in->prepare.record;
    if (in->term < w->promised) {
        refuse(w, out);
    } else if (r->term == in->term && !record_newer(&w->record, r)) {
        out->next.record = *r;
        out->next.promised = in->term;
        out->next.clear = r->finished && (in->prepare.clear || w->clear);
        out->put_state = out->put_beat = true;
        reply(out, MESSAGE_ACK, in->term)->ack = (struct message_ack){.round = r->round, .finished = r->finished};
    }
}

static void on_beat(const struct message_witness *w, const struct message *in, struct witness_answer *out)
{
    const struct message_beat *beat = &in->beat;
    if (in->term < newest_term(w)) {
        refuse(w, out);
        return;
    }
    out->put_beat = true;
    if (in->term > w->promised) { /* the witness votes for the leader that it follows, too */
        out->next.promised = in->term;
        out->put_state = true;
    }
    if (beat->committed && in->term == w->record.term && beat->round == w->record.round && !w->record.committed) {
        out->next.record.committed = true;
        out->put_state = true;
    }
    /* the witness has no clock, so it echoes the leader's stamp */
    reply(out, MESSAGE_BEAT_ACK, in->term)->beat_ack = (struct message_beat_ack){beat->stamp, beat->stamp};
}

static void on_vote_ask(const struct message_witness *w, bool leaderless, const struct message *in,
                        struct witness_answer *out)
{
    bool yes = in->vote_ask.decisive && leaderless && record_grants(w->promised, &w->record, in);
    if (yes) {
        out->next.promised = in->term;
        out->put_state = true;
    }
    struct message_vote *vote = &reply(out, MESSAGE_VOTE, in->term)->vote;
    vote->yes = yes;
    vote->record = w->record;
}

static void refuse_run(const struct message_witness *w, struct witness_answer *out)
{
    struct message_refuse *no = &reply(out, MESSAGE_REFUSE, w->record.term)->refuse;
    no->code = DT_EXIT_TEMPORARY;
    if (!w->record.finished) { /* a finished run cannot be joined */
        memcpy(no->nonce, w->record.nonce, sizeof no->nonce);
    }
    (void)snprintf(no->text, sizeof no->text, "this run ended; another one of the same name has begun");
}

/* Tells a newcomer to ask the leader, or the agents that know the next leader. */
static void redirect(const struct record *r, uint64_t from, struct witness_answer *out)
{
    for (int leaders = 1; leaders >= 0; leaders--) {
        for (int i = 0; i < r->council_count; i++) {
            const struct peer_info *p = &r->council[i];
            if (p->id != from && !peer_is_witness(p) && (p->id == r->leader) == (leaders == 1)) {
                reply(out, MESSAGE_REDIRECT, r->term)->redirect = *p;
            }
        }
    }
}

static void on_join(const struct message_witness *w, uint64_t from, const struct message_join *in,
                    struct witness_answer *out)
{
    const struct record *r = &w->record;
    bool returns = in->nonce[0] != 0 || in->nonce[1] != 0, same = memcmp(in->nonce, r->nonce, sizeof r->nonce) == 0;
    if (returns && !same) {
        /* a host that was never in a round may join before this run has begun */
        if (r->round > 0 || in->last_round == 0) {
            refuse_run(w, out);
        }
    } else if (!r->finished) {
        redirect(r, from, out);
    } else if (returns) {
        struct message_refuse *end = &reply(out, MESSAGE_REFUSE, r->term)->refuse;
        end->finished = true;
        end->code = r->code;
        memcpy(end->nonce, r->nonce, sizeof end->nonce);
    }
}

void witness_step(const struct message_witness *w, bool leaderless, uint64_t from, const struct message *in,
                  struct witness_answer *out)
{
    const uint64_t *nonce = in->kind == MESSAGE_BEAT      ? in->beat.nonce
                            : in->kind == MESSAGE_PREPARE ? in->prepare.record.nonce
                                                          : in->vote_ask.record.nonce;
    out->put_state = out->put_beat = false;
    out->next = *w;
    out->reply_count = 0;
    if (in->kind == MESSAGE_JOIN) {
        on_join(w, from, &in->join, out);
        return;
    }
    bool same = memcmp(nonce, w->record.nonce, sizeof w->record.nonce) == 0;
    if (in->kind == MESSAGE_PREPARE && same) {
        on_prepare(w, in, out);
    } else if (in->kind == MESSAGE_BEAT && same) {
        on_beat(w, in, out);
    } else if (in->kind == MESSAGE_VOTE_ASK && same) {
        on_vote_ask(w, leaderless, in, out);
    } else if (in->kind == MESSAGE_BEAT || in->kind == MESSAGE_PREPARE) {
        /* every run begins at the witness, so the run that it keeps is the newest */
        refuse_run(w, out);
    }
}

struct peer_info witness_info(uint64_t id)
{
    return (struct peer_info){.id = id, .order = -1, .host = "etcd"};
}

void witness_encode(const struct message_witness *w, struct dt_text *out)
{
    message_encode(&(struct message){.kind = MESSAGE_WITNESS, .witness = *w}, out);
}

int witness_decode(struct message_witness *w, const void *bytes, size_t size, struct dt_error *err)
{
    struct message m;
    int result = message_decode(&m, bytes, size, err);
    if (result == 0 && m.kind != MESSAGE_WITNESS) {
        result = dt_fail(err, DT_INVALID, "a %s message", message_name(m.kind));
    }
    if (result == 0) {
        *w = m.witness;
    }
    return result;
}
