/* One table of messages: a row per kind with its name and its fields. Decoding refuses every value
 * that no agent sends. member_check judges the few values that only the receiver can judge.
 * Encoding: one byte of version, one byte of kind, then the fields (fields.h), beginning with the
 * term. */
#include "launcher/rounds/message.h"

#include "launcher/rounds/protocol.h"

#include <stdio.h>
#include <string.h>

#define COUNT(member, name) INT(member, name, 0, MESSAGE_COUNT_MAX)
#define STEP(member, name) I64(member, name, -1, MESSAGE_STEP_MAX)
#define CODE(member, name) INT(member, name, 0, 255)
#define NONCE(member) U64(member[0]), U64(member[1])
#define INFO(member) STRUCT(member, peer_info, "", info_fields)
#define RECORD(member) STRUCT(member, record, "record", record_fields)
#define CAUSE(member) STRUCT(member, cause, "cause", cause_fields)
/* an agent to connect to */
#define OTHER(member) INFO(member), CHECK(member, can_be_connected_to)

enum { HEAD_BYTES = 2 }; /* version and kind */

/* ---- structs of several messages ---- */

#define BASE struct peer_info
/* characters that MASTER_ADDR may have */
#define ADDRESS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.:%_-"
static const struct field info_fields[] = {
    U64(id),      STEP(order, "order"), INT(port, "port", 0, 65535),        INT(pid, "pid", 0, INT32_MAX),
    U64(machine), NAME(host, "host"),   CHARS(address, "address", ADDRESS), {.type = FIELD_END},
};

static bool can_be_connected_to(const void *value, char *why, size_t why_bytes)
{
    const struct peer_info *p = value;
    (void)snprintf(why, why_bytes, "info: nobody that can be connected to");
    return p->id != 0 && !peer_is_witness(p);
}

static bool is_somebody(const void *value, char *why, size_t why_bytes)
{
    const struct peer_info *p = value;
    (void)snprintf(why, why_bytes, "nobody");
    return p->id != 0;
}

static const struct field keeper_fields[] = {
    {.type = FIELD_STRUCT, .name = "", .of = info_fields},
    {.type = FIELD_CHECK, .name = "", .check = is_somebody},
    {.type = FIELD_END},
};
#undef BASE

#define BASE struct record
static const struct field record_fields[] = {
    NONCE(nonce),
    TERM(term, "term"),
    U64(leader),
    COUNT(round, "round"),
    COUNT(history.restarts_used, "restarts used"),
    COUNT(history.no_progress, "restarts without progress"),
    STEP(history.best_step, "best step"),
    STEP(history.best_saved, "best saved step"),
    STEP(history.oom_step, "step out of memory"),
    BOOL(history.oom_seen, "out of memory"),
    I64(next_order, "next order", 0, MESSAGE_STEP_MAX),
    BOOL(finished, "finished"),
    BOOL(committed, "committed"),
    CODE(code, "code"),
    INT(members, "members", 0, COORDINATOR_MAX_NODES),
    BOOL(leader_in, "leader in"),
    LIST(council, council_count, peer_info, "council", MESSAGE_COUNCIL, keeper_fields),
    LIST(before, before_count, peer_info, "council before", MESSAGE_COUNCIL, keeper_fields),
    U64(before_leader),
    {.type = FIELD_END},
};
#undef BASE

#define BASE struct event
/* An agent sends these events about its own node. Its leader observes all other events itself. */
static const struct field event_fields[] = {
    ENUM(kind, event_kind, "event", 0, EVENT_STOP),
    ENUM(failure, failure_kind, "failure", 0, FAILURE_START),
    COUNT(round, "round of the event"),
    INT(local_world_size, "workers", 0, MESSAGE_LOCAL_MAX),
    STEP(order, "order"),
    CODE(code, "code"),
    STEP(step, "step"),
    STEP(saved_step, "saved step"),
    BOOL(weak, "weak"),
    BOOL(saved, "saved"),
    BOOL(out_of_memory, "out of memory"),
    STEP(at_step, "step out of memory"),
    {.type = FIELD_END},
};
#undef BASE

#define BASE struct place
static const struct field place_fields[] = {
    COUNT(round, "round"),
    COUNT(restarts_used, "restarts used"),
    COUNT(group_rank, "host"),
    COUNT(group_world_size, "hosts"),
    COUNT(rank, "rank"),
    COUNT(world_size, "world size"),
    COUNT(role_rank, "rank in its role"),
    COUNT(role_world_size, "world size of its role"),
    COUNT(local_world_size, "workers"),
    {.type = FIELD_END},
};
#undef BASE

static bool says_what_happened(const void *value, char *why, size_t why_bytes)
{
    const struct cause *c = value;
    (void)snprintf(why, why_bytes, "neither a rank nor words");
    return c->kind == CAUSE_NONE || c->rank >= 0 || c->words[0] != '\0';
}

#define BASE struct cause
static const struct field cause_fields[] = {
    ENUM(kind, cause_kind, "kind", 0, CAUSE_KIND_COUNT - 1),
    NAME(host, "host"),
    INT(rank, "rank", -1, MESSAGE_COUNT_MAX),
    COUNT(local_rank, "local rank"),
    INT(pid, "pid", 0, INT32_MAX),
    INT(exit_code, "exit code", -255, 255),
    BOOL(stopped_by_us, "stopped"),
    STEP(step, "step"),
    ENUM(blame.fault, dt_fault, "fault", 0, DT_FAULT_COUNT - 1),
    COUNT(blame.rank, "blamed rank"),
    ENUM(blame.told, dt_told, "told", 0, DT_TOLD_COUNT - 1),
    COUNT(blame.teller, "teller"),
    COUNT(blame.host, "teller's host"),
    U64(digest),
    BOOL(whole, "whole"),
    LINE(words, "words"),
    LINE(next, "next"),
    {.type = FIELD_CHECK, .name = "", .check = says_what_happened},
    {.type = FIELD_END},
};
#undef BASE

static bool is_a_cause(const void *value, char *why, size_t why_bytes)
{
    (void)snprintf(why, why_bytes, "cause: none");
    return ((const struct cause *)value)->kind != CAUSE_NONE;
}

/* ---- START ---- */

/* The ranks and sizes of a node's place must fit each other, because they become the sizes of
 * tables and the variables of workers. */
static bool place_fits(const struct place *p, char *why, size_t why_bytes)
{
    (void)snprintf(why, why_bytes,
                   "place: round %d host %d of %d, rank %d of %d, rank %d of %d in its role, workers %d: no place of a "
                   "host in a round",
                   p->round, p->group_rank, p->group_world_size, p->rank, p->world_size, p->role_rank,
                   p->role_world_size, p->local_world_size);
    return p->round >= 1 && p->local_world_size >= 1 && p->local_world_size <= MESSAGE_LOCAL_MAX &&
           p->group_world_size <= COORDINATOR_MAX_NODES && p->group_rank < p->group_world_size &&
           p->group_world_size <= p->world_size && p->world_size <= MESSAGE_LOCAL_MAX * COORDINATOR_MAX_NODES &&
           p->rank >= p->group_rank && p->role_rank <= p->rank && p->rank <= p->world_size - p->local_world_size &&
           p->role_world_size <= p->world_size && p->role_rank <= p->role_world_size - p->local_world_size;
}

/* The record of a START belongs to its round and names the leader. The workers find their store on
 * the leader's host. */
static bool start_fits(const void *value, char *why, size_t why_bytes)
{
    const struct message_action *a = &((const struct message *)value)->action;
    const struct record *r = &a->record;
    bool known = false;
    for (int i = 0; i < r->council_count; i++) {
        known = known || (r->council[i].id == r->leader && !peer_is_witness(&r->council[i]));
    }
    if (a->action.kind != ACTION_START) {
        return true;
    }
    if (!place_fits(&a->action.place, why, why_bytes)) {
        return false;
    }
    if (!known || r->round != a->action.place.round) {
        (void)snprintf(why, why_bytes, "start: its record is of round %d, and names %s leader; the round is %d",
                       r->round, known ? "its" : "no", a->action.place.round);
        return false;
    }
    (void)snprintf(why, why_bytes, "start: order %lld", (long long)a->order);
    return a->order >= 0;
}

/* ---- the table ---- */

#define BASE struct message
#define ROW(name_, ...)                                                                                                \
    {                                                                                                                  \
        .name = name_, .fields = FIELDS(TERM(term, "term"), __VA_ARGS__)                                               \
    }
static const struct row {
    const char *name;
    const struct field *fields;
} rows[MESSAGE_KIND_COUNT] = {
    [MESSAGE_JOIN] = ROW("join", INFO(join.info), INT(join.local_world_size, "workers", 1, MESSAGE_LOCAL_MAX),
                         BOOL(join.order_binds, "order binds"), NAME(join.role, "role"), NONCE(join.nonce),
                         COUNT(join.last_round, "round"), LINES(join.digest, "digest"), SECONDS(join.stamp, "stamp"),
                         COUNT(join.seek_count, "count"), INT(join.preference, "preference", -1, INT32_MAX),
                         SECONDS(join.clock_s, "clock")),
    [MESSAGE_REFUSE] = ROW("refuse", BOOL(refuse.finished, "finished"), NONCE(refuse.nonce), CODE(refuse.code, "code"),
                           LINE(refuse.text, "text")),
    [MESSAGE_REDIRECT] = ROW("redirect", OTHER(redirect)),
    [MESSAGE_PREPARE] = ROW("prepare", RECORD(prepare.record), BOOL(prepare.clear, "clear")),
    [MESSAGE_ACK] = ROW("ack", COUNT(ack.round, "round"), BOOL(ack.finished, "finished")),
    [MESSAGE_EVENT] =
        ROW("event", STRUCT(event.event, event, "", event_fields), NAME(event.role, "role"), CAUSE(event.cause)),
    [MESSAGE_ACTION] = ROW("action", ENUM(action.action.kind, action_kind, "action", 0, ACTION_REFUSE),
                           CODE(action.action.code, "code"), STRUCT(action.action.place, place, "place", place_fields),
                           RECORD(action.record), STEP(action.order, "order"),
                           CHARS(action.sizes, "sizes", "0123456789,(x)"), CHECK(kind, start_fits)),
    [MESSAGE_BEAT] =
        ROW("beat", INFO(beat.info), NONCE(beat.nonce), COUNT(beat.round, "round"), BOOL(beat.committed, "committed"),
            BOOL(beat.spare, "spare"), INT(beat.hosts, "hosts", 0, COORDINATOR_MAX_NODES), LINE(beat.wait_text, "text"),
            SECONDS(beat.stamp, "stamp"), SECONDS(beat.echo, "echo")),
    [MESSAGE_BEAT_ACK] = ROW("beat_ack", SECONDS(beat_ack.stamp, "stamp"), SECONDS(beat_ack.echo, "echo")),
    [MESSAGE_VOTE_ASK] = ROW("vote_ask", RECORD(vote_ask.record), BOOL(vote_ask.decisive, "decisive")),
    [MESSAGE_VOTE] = ROW("vote", BOOL(vote.yes, "yes"), BOOL(vote.silent, "silent"), RECORD(vote.record)),
    [MESSAGE_KEEP] = ROW("keep", INFO(keep.info), RECORD(keep.record)),
    [MESSAGE_BYE] = {.name = "bye", .fields = FIELDS(TERM(term, "term"))},
    [MESSAGE_PROBE] = ROW("probe", OTHER(probe)),
    [MESSAGE_REACH] = ROW("reach", U64(reach.id)),
    [MESSAGE_CAUSE] = ROW("cause", COUNT(cause.round, "round"), CAUSE(cause.cause), CHECK(cause.cause, is_a_cause)),
    [MESSAGE_YIELD] = ROW("yield", OTHER(yield)),
    [MESSAGE_STATUS_ASK] = ROW("status_ask", U64(status_ask.number), U64(status_ask.asker)),
    [MESSAGE_STATUS] =
        ROW("status", U64(status.number), U64(status.asker), INFO(status.info), BOOL(status.of_hosts, "of hosts"),
            COUNT(status.part, "part"), BOOL(status.last, "last"), BODY(status.lines, "lines", MESSAGE_BODY_BYTES)),
    [MESSAGE_WITNESS] = ROW("witness", U64(witness.id), TERM(witness.promised, "promised term"), RECORD(witness.record),
                            BOOL(witness.clear, "clear")),
};

#undef BASE

void message_encode(const struct message *m, struct dt_text *out)
{
    const char head[HEAD_BYTES] = {PROTOCOL_VERSION, (char)m->kind};
    dt_text_add(out, head, sizeof head);
    fields_write(rows[m->kind].fields, m, out);
}

int message_decode(struct message *m, const void *bytes, size_t size, struct dt_error *err)
{
    const uint8_t *head = bytes;
    char why[320];
    memset(m, 0, sizeof *m);
    if (size < HEAD_BYTES || size > MESSAGE_MAX_BYTES) {
        return dt_fail(err, DT_INVALID, "message of %zu bytes: too short or too long", size);
    }
    if (head[0] != PROTOCOL_VERSION) {
        return dt_fail(err, DT_INVALID,
                       "message of version %d; this dtrun speaks version %d: run the same dtrun on all hosts", head[0],
                       PROTOCOL_VERSION);
    }
    if (head[1] < 1 || head[1] >= MESSAGE_KIND_COUNT) {
        return dt_fail(err, DT_INVALID, "message of unknown kind %d", head[1]);
    }
    m->kind = (enum message_kind)head[1];
    if (!fields_read(rows[m->kind].fields, m, head + HEAD_BYTES, size - HEAD_BYTES, why, sizeof why)) {
        return why[0] != '\0'
                   ? dt_fail(err, DT_INVALID, "%s message: %s", message_name(m->kind), why)
                   : dt_fail(err, DT_INVALID, "%s message of %zu bytes: malformed", message_name(m->kind), size);
    }
    return 0;
}

const char *message_name(enum message_kind kind)
{
    return kind >= MESSAGE_JOIN && kind < MESSAGE_KIND_COUNT ? rows[kind].name : "unknown";
}

const struct field *message_fields(enum message_kind kind)
{
    return rows[kind].fields;
}

/* ---- meaning ---- */

static void copy_string(char *out, size_t out_bytes, const char *s)
{
    (void)snprintf(out, out_bytes, "%s", s != NULL ? s : "");
}

void message_set_event(struct message *m, const struct event *e)
{
    memset(m, 0, sizeof *m);
    m->kind = MESSAGE_EVENT;
    m->event.event = *e;
    copy_string(m->event.role, sizeof m->event.role, e->role);
    m->event.cause = e->cause != NULL ? *e->cause : (struct cause){.rank = -1, .step = -1};
    m->event.event.role = m->event.event.host = NULL;
    m->event.event.cause = NULL;
}

struct event message_event_of(const struct message *m)
{
    struct event e = m->event.event;
    e.role = m->event.role;
    e.cause = &m->event.cause;
    return e;
}

bool record_newer(const struct record *a, const struct record *b)
{
    return a->term != b->term     ? a->term > b->term
           : a->round != b->round ? a->round > b->round
                                  : a->finished > b->finished;
}

bool record_grants(uint64_t promised, const struct record *own, const struct message *ask)
{
    return ask->term > promised && ask->term > own->term && !record_newer(own, &ask->vote_ask.record);
}

bool peer_is_witness(const struct peer_info *p)
{
    return p->port == 0;
}
