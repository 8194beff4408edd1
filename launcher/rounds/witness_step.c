/* What the witness decides, alone and without a store: as a follower would. */
#include "launcher/rounds/witness.h"

#include "base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct message *reply(struct witness_answer *out, enum message_kind kind, uint64_t term)
{
    struct message *m = &out->replies[out->reply_count++];
    memset(m, 0, sizeof *m);
    m->kind = kind;
    m->term = term;
    return m;
}

static uint64_t newest_term(const struct witness *w)
{
    return w->promised > w->record.term ? w->promised : w->record.term;
}

/* Somebody else was elected: as member.c refuses an old term. */
static void refuse(const struct witness *w, struct witness_answer *out)
{
    reply(out, MESSAGE_VOTE, newest_term(w))->record = w->record;
}

static void on_prepare(const struct witness *w, const struct message *in, struct witness_answer *out)
{
    if (in->term < w->promised) {
        refuse(w, out);
    } else if (in->record.term == in->term && !record_newer(&w->record, &in->record)) {
        out->next.record = in->record;
        out->next.promised = in->term;
        out->next.clear = in->record.finished && (in->granted || w->clear);
        out->put_state = out->put_beat = true;
        struct message *ack = reply(out, MESSAGE_ACK, in->term);
        ack->round = in->record.round;
        ack->finished = in->record.finished;
    }
}

static void on_beat(const struct witness *w, const struct message *in, struct witness_answer *out)
{
    if (in->term < newest_term(w)) {
        refuse(w, out);
        return;
    }
    out->put_beat = true;
    if (in->term > w->promised) { /* whoever it follows has its vote, too */
        out->next.promised = in->term;
        out->put_state = true;
    }
    if (in->granted && in->term == w->record.term && in->round == w->record.round && !w->record.committed) {
        out->next.record.committed = true;
        out->put_state = true;
    }
    struct message *ack = reply(out, MESSAGE_BEAT_ACK, in->term);
    ack->stamp = ack->echo = in->stamp; /* it has no clock of its own */
}

static void on_vote_ask(const struct witness *w, bool unled, const struct message *in, struct witness_answer *out)
{
    bool granted = in->granted && unled && record_grants(w->promised, &w->record, in);
    if (granted) {
        out->next.promised = in->term;
        out->put_state = true;
    }
    struct message *vote = reply(out, MESSAGE_VOTE, in->term);
    vote->granted = granted;
    vote->record = w->record;
}

static void refuse_run(const struct witness *w, struct witness_answer *out)
{
    struct message *no = reply(out, MESSAGE_REFUSE, w->record.term);
    no->code = DT_EXIT_TEMPORARY;
    if (!w->record.finished) { /* else there is nothing to join */
        memcpy(no->nonce, w->record.nonce, sizeof no->nonce);
    }
    (void)snprintf(no->text, sizeof no->text, "this run ended; another one of the same name has begun");
}

/* Who asks is told where to go: to the leader, or to whoever knows the next one. */
static void on_join(const struct witness *w, uint64_t from, const struct message *in, struct witness_answer *out)
{
    const struct record *r = &w->record;
    bool returns = in->nonce[0] != 0 || in->nonce[1] != 0, same = memcmp(in->nonce, r->nonce, sizeof r->nonce) == 0;
    if (returns && !same) {
        if (r->round > 0 || in->round == 0) { /* who never was in a round may come over before
                                               * this run has begun */
            refuse_run(w, out);
        }
    } else if (r->finished) {
        if (returns) {
            struct message *end = reply(out, MESSAGE_REFUSE, r->term);
            end->finished = true;
            end->code = r->code;
            memcpy(end->nonce, r->nonce, sizeof end->nonce);
        }
    } else {
        for (int leaders = 1; leaders >= 0; leaders--) {
            for (int i = 0; i < r->council_count; i++) {
                const struct peer_info *p = &r->council[i];
                if (p->id != from && !peer_is_witness(p) && (p->id == r->leader) == (leaders == 1)) {
                    reply(out, MESSAGE_REDIRECT, r->term)->info = *p;
                }
            }
        }
    }
}

void witness_step(const struct witness *w, bool unled, uint64_t from, const struct message *in,
                  struct witness_answer *out)
{
    const struct record *asked = in->kind == MESSAGE_BEAT ? NULL : &in->record;
    bool same = memcmp(asked != NULL ? asked->nonce : in->nonce, w->record.nonce, sizeof w->record.nonce) == 0;
    out->put_state = out->put_beat = false;
    out->next = *w;
    out->reply_count = 0;
    if (in->kind == MESSAGE_JOIN) {
        on_join(w, from, in, out);
    } else if (in->kind == MESSAGE_PREPARE && same) {
        on_prepare(w, in, out);
    } else if (in->kind == MESSAGE_BEAT && same) {
        on_beat(w, in, out);
    } else if (in->kind == MESSAGE_VOTE_ASK && same) {
        on_vote_ask(w, unled, in, out);
    } else if (in->kind == MESSAGE_BEAT ||
               in->kind == MESSAGE_PREPARE) { /* every run begins here, so the one that is kept
                                               * is the newest */
        refuse_run(w, out);
    }
}

struct peer_info witness_info(uint64_t id)
{
    return (struct peer_info){.id = id, .order = -1, .host = "etcd"};
}

void witness_encode(const struct witness *w, struct dt_text *out)
{
    uint8_t id[8];
    for (int i = 0; i < 8; i++) {
        id[i] = (uint8_t)(w->id >> (8 * i));
    }
    dt_text_add(out, id, sizeof id);
    struct message m = {.kind = MESSAGE_VOTE, .term = w->promised, .granted = w->clear, .record = w->record};
    message_encode(&m, out);
}

int witness_decode(struct witness *w, const void *bytes, size_t size, struct dt_error *err)
{
    const uint8_t *p = bytes;
    struct message *m = dt_alloc(sizeof *m);
    int result = size < 8 ? dt_fail(err, DT_INVALID, "%zu bytes", size) : message_decode(m, p + 8, size - 8, err);
    if (result == 0 && m->kind != MESSAGE_VOTE) {
        result = dt_fail(err, DT_INVALID, "a %s message", message_name(m->kind));
    }
    if (result == 0) {
        *w = (struct witness){.promised = m->term, .record = m->record, .clear = m->granted};
        for (int i = 0; i < 8; i++) {
            w->id |= (uint64_t)p[i] << (8 * i);
        }
    }
    free(m);
    return result;
}
