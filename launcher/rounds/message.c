/* Encoding: one byte version, one byte kind, then the fields of that kind, little-endian,
 * strings with a 16-bit length. One function walks the fields for both directions, so they
 * cannot disagree. Reading refuses every value that no agent of ours sends; member_check looks
 * at the few of them that only the receiver can judge. */
#include "launcher/rounds/message.h"

#include "launcher/rounds/protocol.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct walk {
    struct dt_text *out; /* writing when set */
    const uint8_t *p, *end;
    bool bad;
    char why[160]; /* the first field that was refused, and what it must be; "": the bytes ended
                    * too early, or late */
};

/* A field's value that nobody of us sends. */
static void refuse(struct walk *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void refuse(struct walk *w, const char *fmt, ...)
{
    va_list args;
    if (w->bad || w->out != NULL) {
        return;
    }
    w->bad = true;
    va_start(args, fmt);
    (void)vsnprintf(w->why, sizeof w->why, fmt, args);
    va_end(args);
}

static void walk_bytes(struct walk *w, void *field, size_t size)
{
    if (w->out != NULL) {
        dt_text_add(w->out, field, size);
    } else if ((size_t)(w->end - w->p) < size) {
        w->bad = true;
        w->p = w->end;
    } else {
        memcpy(field, w->p, size);
        w->p += size;
    }
}

static void walk_u64(struct walk *w, uint64_t *x)
{
    uint8_t b[8];
    for (int i = 0; i < 8; i++) {
        b[i] = (uint8_t)(*x >> (8 * i));
    }
    walk_bytes(w, b, 8);
    if (w->out == NULL) {
        *x = 0;
        for (int i = 0; i < 8 && !w->bad; i++) {
            *x |= (uint64_t)b[i] << (8 * i);
        }
    }
}

static void walk_term(struct walk *w, const char *name, uint64_t *x)
{
    walk_u64(w, x);
    if (*x > MESSAGE_TERM_MAX) {
        refuse(w, "%s %llu: more than there can be", name, (unsigned long long)*x);
    }
}

/* A number from low to high; low when it is refused. */
static void walk_i64(struct walk *w, const char *name, int64_t *x, int64_t low, int64_t high)
{
    uint64_t u = (uint64_t)*x;
    walk_u64(w, &u);
    int64_t v = (int64_t)u;
    if (w->out == NULL) {
        if (v < low || v > high) {
            refuse(w, "%s %lld: must be from %lld to %lld", name, (long long)v, (long long)low, (long long)high);
        }
        *x = w->bad ? low : v;
    }
}

static void walk_int(struct walk *w, const char *name, int *x, int low, int high)
{
    int64_t v = *x;
    walk_i64(w, name, &v, low, high);
    *x = (int)v;
}

static void walk_count(struct walk *w, const char *name, int *x)
{
    walk_int(w, name, x, 0, MESSAGE_COUNT_MAX);
}

static void walk_step(struct walk *w, const char *name, int64_t *x)
{
    walk_i64(w, name, x, -1, MESSAGE_STEP_MAX);
}

static void walk_bool(struct walk *w, const char *name, bool *x)
{
    int v = *x;
    walk_int(w, name, &v, 0, 1);
    *x = v != 0;
}

/* Seconds of a clock. */
static void walk_time(struct walk *w, const char *name, double *x)
{
    uint64_t u;
    memcpy(&u, x, sizeof u);
    walk_u64(w, &u);
    memcpy(x, &u, sizeof u);
    if (!(*x >= 0 && *x <= MESSAGE_TIME_MAX) || signbit(*x)) {
        refuse(w, "%s %g: no time of a clock", name, *x);
    }
}

static void walk_string(struct walk *w, const char *name, char *s, size_t capacity)
{
    uint8_t length[2];
    size_t size = w->out != NULL ? strnlen(s, capacity - 1) : 0;
    length[0] = (uint8_t)size;
    length[1] = (uint8_t)(size >> 8);
    walk_bytes(w, length, 2);
    if (w->out == NULL) {
        size = (size_t)length[0] | (size_t)length[1] << 8;
        if (!w->bad && size >= capacity) {
            refuse(w, "%s of %zu bytes: at most %zu", name, size, capacity - 1);
        }
        size = w->bad ? 0 : size;
    }
    walk_bytes(w, s, size);
    if (w->out == NULL) {
        s[w->bad ? 0 : size] = 0;
        if (strlen(s) != size) {
            refuse(w, "%s: a NUL inside", name);
        }
    }
}

static void check_words(struct walk *w, const char *name, const char *s, bool lines)
{
    if (!dt_text_is_harmless(s, strlen(s), lines)) {
        refuse(w, "%s: control characters, or no UTF-8", name);
    }
}

/* What peers write reaches terminals, files and the workers' environment: harmless characters
 * only. A name was looked at where we took it from. */
static void walk_name(struct walk *w, const char *name, char *s, size_t capacity)
{
    walk_string(w, name, s, capacity);
    check_words(w, name, s, false);
}

/* What we write may be a worker's, or cut within a character: it is made harmless. lines:
 * newlines are let through. */
static void walk_text(struct walk *w, char *s, size_t capacity, bool lines)
{
    if (w->out != NULL) {
        s[strnlen(s, capacity - 1)] = '\0';
        dt_text_make_harmless(s, lines);
    }
    walk_string(w, "text", s, capacity);
    check_words(w, "text", s, lines);
}

static void walk_body(struct walk *w, struct message *m)
{
    uint64_t size = m->body_size;
    walk_u64(w, &size);
    if (w->out != NULL) {
        if (m->body_size > 0) {
            dt_text_add(w->out, m->body, m->body_size);
        }
        return;
    }
    w->bad = w->bad || size > MESSAGE_BODY_BYTES || size > (size_t)(w->end - w->p);
    m->body = (const char *)w->p;
    m->body_size = w->bad ? 0 : (size_t)size;
    w->p += m->body_size;
}

/* A string of some characters only. */
static void walk_charset(struct walk *w, const char *name, char *s, size_t capacity, const char *characters)
{
    walk_string(w, name, s, capacity);
    if (s[strspn(s, characters)] != '\0') {
        refuse(w, "%s: none, by its characters", name);
    }
}

static void walk_info(struct walk *w, struct peer_info *p)
{
    walk_u64(w, &p->id);
    walk_i64(w, "order", &p->order, -1, MESSAGE_STEP_MAX);
    walk_int(w, "port", &p->port, 0, 65535);
    walk_int(w, "pid", &p->pid, 0, INT32_MAX);
    walk_u64(w, &p->machine);
    walk_name(w, "host", p->host, sizeof p->host);
    /* what MASTER_ADDR may hold */
    walk_charset(w, "address", p->address, sizeof p->address,
                 "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.:%_-");
}

/* Somebody to connect to: nobody, or one that listens nowhere, is none. */
static void walk_other(struct walk *w, struct peer_info *p)
{
    walk_info(w, p);
    if (p->id == 0 || p->port == 0) {
        refuse(w, "info: nobody that can be connected to");
    }
}

static void walk_council(struct walk *w, const char *name, struct peer_info *list, int *count)
{
    for (int i = 0; i < *count && !w->bad; i++) {
        walk_info(w, &list[i]);
        if (list[i].id == 0) {
            refuse(w, "%s %d: nobody", name, i);
        }
    }
}

static void walk_record(struct walk *w, struct record *r)
{
    walk_u64(w, &r->nonce[0]);
    walk_u64(w, &r->nonce[1]);
    walk_term(w, "record: term", &r->term);
    walk_u64(w, &r->leader);
    walk_count(w, "record: round", &r->round);
    walk_count(w, "record: restarts used", &r->restarts_used);
    walk_count(w, "record: restarts without progress", &r->no_progress);
    walk_step(w, "record: best step", &r->best_step);
    walk_step(w, "record: best saved step", &r->best_saved);
    walk_step(w, "record: step out of memory", &r->oom_step);
    walk_bool(w, "record: out of memory", &r->oom_seen);
    walk_i64(w, "record: next order", &r->next_order, 0, MESSAGE_STEP_MAX);
    walk_bool(w, "record: finished", &r->finished);
    walk_bool(w, "record: committed", &r->committed);
    walk_int(w, "record: code", &r->code, 0, 255);
    walk_int(w, "record: members", &r->members, 0, COORDINATOR_MAX_NODES);
    walk_bool(w, "record: leader in", &r->leader_in);
    walk_int(w, "record: council", &r->council_count, 0, MESSAGE_COUNCIL);
    walk_int(w, "record: council before", &r->before_count, 0, MESSAGE_COUNCIL);
    walk_council(w, "record: council", r->council, &r->council_count);
    walk_council(w, "record: council before", r->before, &r->before_count);
    walk_u64(w, &r->before_leader);
}

/* Why a round ended. least: CAUSE_NONE where there may be no cause. */
static void walk_cause(struct walk *w, struct cause *c, enum cause_kind least)
{
    struct dt_blame *b = &c->blame;
    int kind = c->kind, fault = b->fault, told = b->told, pid = c->pid;
    int64_t digest = c->digest;
    walk_int(w, "cause", &kind, (int)least, CAUSE_KIND_COUNT - 1);
    walk_name(w, "cause: host", c->host, sizeof c->host);
    walk_int(w, "cause: rank", &c->rank, -1, MESSAGE_COUNT_MAX);
    walk_int(w, "cause: local rank", &c->local_rank, 0, MESSAGE_COUNT_MAX);
    walk_int(w, "cause: pid", &pid, 0, INT32_MAX);
    walk_int(w, "cause: exit code", &c->exit_code, -255, 255);
    walk_bool(w, "cause: stopped", &c->stopped_by_us);
    walk_step(w, "cause: step", &c->step);
    walk_int(w, "cause: fault", &fault, 0, DT_FAULT_COUNT - 1);
    walk_int(w, "cause: blamed rank", &b->rank, 0, MESSAGE_COUNT_MAX);
    walk_int(w, "cause: told", &told, 0, DT_TOLD_COUNT - 1);
    walk_int(w, "cause: teller", &b->teller, 0, MESSAGE_COUNT_MAX);
    walk_int(w, "cause: teller's host", &b->host, 0, MESSAGE_COUNT_MAX);
    walk_i64(w, "cause: digest", &digest, 0, UINT32_MAX);
    walk_bool(w, "cause: whole", &c->whole);
    walk_text(w, c->words, sizeof c->words, false);
    walk_text(w, c->next, sizeof c->next, false);
    c->kind = (enum cause_kind)kind;
    b->fault = (enum dt_fault)fault;
    b->told = (enum dt_told)told;
    c->pid = pid;
    c->digest = (uint32_t)digest;
}

/* What an agent may say of its own node: the rest of the events is what its leader sees. */
static void walk_event(struct walk *w, struct message *m)
{
    struct event *e = &m->event;
    int kind = e->kind, failure = e->failure;
    walk_int(w, "event", &kind, 0, EVENT_STOP);
    walk_int(w, "failure", &failure, 0, FAILURE_START);
    e->kind = (enum event_kind)kind;
    e->failure = (enum failure_kind)failure;
    walk_count(w, "round of the event", &e->round);
    walk_int(w, "workers", &e->local_world_size, 0, MESSAGE_LOCAL_MAX);
    walk_i64(w, "order", &e->order, -1, MESSAGE_STEP_MAX);
    walk_int(w, "code", &e->code, 0, 255);
    walk_step(w, "step", &e->step);
    walk_step(w, "saved step", &e->saved_step);
    walk_name(w, "role", m->role, sizeof m->role);
    e->role = m->role;
    walk_bool(w, "weak", &e->weak);
    walk_bool(w, "saved", &e->saved);
    walk_bool(w, "out of memory", &e->out_of_memory);
    walk_step(w, "step out of memory", &e->at_step);
    walk_cause(w, &m->cause, CAUSE_NONE);
    e->cause = &m->cause;
}

/* Ranks and sizes of a node in a round must fit each other: they become the sizes of tables, and
 * the variables of workers. */
static void check_place(struct walk *w, const struct place *p)
{
    bool fits = p->round >= 1 && p->local_world_size >= 1 && p->local_world_size <= MESSAGE_LOCAL_MAX &&
                p->group_world_size <= COORDINATOR_MAX_NODES && p->group_rank < p->group_world_size &&
                p->group_world_size <= p->world_size && p->world_size <= MESSAGE_LOCAL_MAX * COORDINATOR_MAX_NODES &&
                p->rank >= p->group_rank && p->role_rank <= p->rank && p->rank <= p->world_size - p->local_world_size &&
                p->role_world_size <= p->world_size && p->role_rank <= p->role_world_size - p->local_world_size;
    if (!fits) {
        refuse(w,
               "place: round %d host %d of %d, rank %d of %d, rank %d of %d in its role, workers %d: no place of a "
               "host in a round",
               p->round, p->group_rank, p->group_world_size, p->rank, p->world_size, p->role_rank, p->role_world_size,
               p->local_world_size);
    }
}

static void walk_action(struct walk *w, struct action *a)
{
    static const char *const names[] = {"place: round",
                                        "place: restarts used",
                                        "place: host",
                                        "place: hosts",
                                        "place: rank",
                                        "place: world size",
                                        "place: rank in its role",
                                        "place: world size of its role",
                                        "place: workers"};
    int kind = a->kind;
    walk_int(w, "action", &kind, 0, ACTION_REFUSE);
    a->kind = (enum action_kind)kind;
    walk_int(w, "code", &a->code, 0, 255);
    struct place *p = &a->place;
    int *const fields[] = {&p->round,      &p->restarts_used, &p->group_rank,      &p->group_world_size, &p->rank,
                           &p->world_size, &p->role_rank,     &p->role_world_size, &p->local_world_size};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        walk_count(w, names[i], fields[i]);
    }
    if (a->kind == ACTION_START) {
        check_place(w, p);
    }
}

/* A START's record is that of its round, and names who leads it, which is where the workers'
 * store is. */
static void check_start(struct walk *w, const struct message *m)
{
    const struct record *r = &m->record;
    bool known = false;
    for (int i = 0; i < r->council_count; i++) {
        known = known || (r->council[i].id == r->leader && r->council[i].port != 0);
    }
    if (m->action.kind != ACTION_START) {
        return;
    }
    if (!known || r->round != m->action.place.round) {
        refuse(w, "start: its record is of round %d, and names %s leader; the round is %d", r->round,
               known ? "its" : "no", m->action.place.round);
    }
    if (m->info.order < 0) {
        refuse(w, "start: order %lld", (long long)m->info.order);
    }
}

static void walk(struct walk *w, struct message *m)
{
    walk_term(w, "term", &m->term);
    walk_count(w, "round", &m->round);
    switch (m->kind) {
    case MESSAGE_JOIN:
        walk_info(w, &m->info);
        walk_int(w, "workers", &m->local_world_size, 1, MESSAGE_LOCAL_MAX);
        walk_bool(w, "granted", &m->granted);
        walk_name(w, "role", m->role, sizeof m->role);
        walk_u64(w, &m->nonce[0]);
        walk_u64(w, &m->nonce[1]);
        walk_text(w, m->text, sizeof m->text, true); /* a line for each value */
        walk_time(w, "stamp", &m->stamp);
        walk_count(w, "count", &m->count);
        walk_int(w, "preference", &m->preference, -1, INT32_MAX);
        walk_time(w, "clock", &m->wall_s);
        break;
    case MESSAGE_REFUSE:
        walk_bool(w, "finished", &m->finished);
        walk_u64(w, &m->nonce[0]);
        walk_u64(w, &m->nonce[1]);
        walk_int(w, "code", &m->code, 0, 255);
        walk_text(w, m->text, sizeof m->text, false);
        break;
    case MESSAGE_REDIRECT:
    case MESSAGE_PROBE:
    case MESSAGE_YIELD:
        walk_other(w, &m->info);
        break;
    case MESSAGE_REACH:
        walk_info(w, &m->info);
        break;
    case MESSAGE_PREPARE:
        walk_record(w, &m->record);
        break;
    case MESSAGE_ACK:
        walk_bool(w, "finished", &m->finished);
        break;
    case MESSAGE_EVENT:
        walk_event(w, m);
        break;
    case MESSAGE_ACTION:
        walk_action(w, &m->action);
        walk_record(w, &m->record);
        walk_i64(w, "order", &m->info.order, -1, MESSAGE_STEP_MAX);
        walk_charset(w, "sizes", m->text, sizeof m->text, "0123456789,(x)");
        check_start(w, m);
        break;
    case MESSAGE_BEAT:
        walk_info(w, &m->info);
        walk_bool(w, "granted", &m->granted);
        walk_u64(w, &m->nonce[0]);
        walk_u64(w, &m->nonce[1]);
        walk_int(w, "count", &m->count, -1, 0);
        walk_int(w, "members", &m->members, 0, COORDINATOR_MAX_NODES);
        walk_text(w, m->text, sizeof m->text, false);
        walk_time(w, "stamp", &m->stamp);
        walk_time(w, "echo", &m->echo);
        break;
    case MESSAGE_BEAT_ACK:
        walk_time(w, "stamp", &m->stamp);
        walk_time(w, "echo", &m->echo);
        break;
    case MESSAGE_KEEP:
        walk_info(w, &m->info);
        walk_record(w, &m->record);
        break;
    case MESSAGE_VOTE_ASK:
        walk_bool(w, "granted", &m->granted);
        walk_record(w, &m->record);
        break;
    case MESSAGE_VOTE:
        walk_bool(w, "granted", &m->granted);
        walk_int(w, "count", &m->count, 0, 1);
        walk_record(w, &m->record);
        break;
    case MESSAGE_CAUSE:
        walk_cause(w, &m->cause, CAUSE_PEER);
        break;
    case MESSAGE_STATUS_ASK:
        walk_u64(w, &m->nonce[0]);
        walk_u64(w, &m->nonce[1]);
        break;
    case MESSAGE_STATUS:
        walk_u64(w, &m->nonce[0]);
        walk_u64(w, &m->nonce[1]);
        walk_info(w, &m->info);
        walk_bool(w, "granted", &m->granted);
        walk_count(w, "part", &m->count);
        walk_bool(w, "finished", &m->finished);
        walk_body(w, m);
        break;
    case MESSAGE_BYE:
    case MESSAGE_KIND_COUNT:
        break;
    }
}

void message_encode(const struct message *m, struct dt_text *out)
{
    struct message copy = *m; /* the walk takes a message that it may write */
    if (copy.kind == MESSAGE_EVENT && m->event.role != NULL && m->event.role != m->role) {
        memset(copy.role, 0, sizeof copy.role);
        memcpy(copy.role, m->event.role, strnlen(m->event.role, sizeof copy.role - 1));
    }
    if (copy.kind == MESSAGE_EVENT && m->event.cause != NULL && m->event.cause != &m->cause) {
        copy.cause = *m->event.cause;
    }
    struct walk w = {.out = out};
    uint8_t head[2] = {PROTOCOL_VERSION, (uint8_t)m->kind};
    walk_bytes(&w, head, 2);
    walk(&w, &copy);
}

int message_decode(struct message *m, const void *bytes, size_t size, struct dt_error *err)
{
    struct walk w = {.p = bytes, .end = (const uint8_t *)bytes + size};
    uint8_t head[2] = {0, 0};
    memset(m, 0, sizeof *m);
    walk_bytes(&w, head, 2);
    if (w.bad || size > MESSAGE_MAX_BYTES) {
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
    walk(&w, m);
    if (w.why[0] != '\0') {
        return dt_fail(err, DT_INVALID, "%s message: %s", message_name(m->kind), w.why);
    }
    if (w.bad || w.p != w.end) {
        return dt_fail(err, DT_INVALID, "%s message of %zu bytes: malformed", message_name(m->kind), size);
    }
    return 0;
}

const char *message_name(enum message_kind kind)
{
    switch (kind) {
    case MESSAGE_JOIN:
        return "join";
    case MESSAGE_REFUSE:
        return "refuse";
    case MESSAGE_REDIRECT:
        return "redirect";
    case MESSAGE_PREPARE:
        return "prepare";
    case MESSAGE_ACK:
        return "ack";
    case MESSAGE_EVENT:
        return "event";
    case MESSAGE_ACTION:
        return "action";
    case MESSAGE_BEAT:
        return "beat";
    case MESSAGE_BEAT_ACK:
        return "beat_ack";
    case MESSAGE_VOTE_ASK:
        return "vote_ask";
    case MESSAGE_VOTE:
        return "vote";
    case MESSAGE_KEEP:
        return "keep";
    case MESSAGE_BYE:
        return "bye";
    case MESSAGE_PROBE:
        return "probe";
    case MESSAGE_REACH:
        return "reach";
    case MESSAGE_CAUSE:
        return "cause";
    case MESSAGE_YIELD:
        return "yield";
    case MESSAGE_STATUS_ASK:
        return "status_ask";
    case MESSAGE_STATUS:
        return "status";
    case MESSAGE_KIND_COUNT:
        break;
    }
    return "unknown";
}

bool record_newer(const struct record *a, const struct record *b)
{
    return a->term != b->term     ? a->term > b->term
           : a->round != b->round ? a->round > b->round
                                  : a->finished > b->finished;
}

bool record_grants(uint64_t promised, const struct record *own, const struct message *ask)
{
    return ask->term > promised && ask->term > own->term && !record_newer(own, &ask->record);
}

bool peer_is_witness(const struct peer_info *p)
{
    return p->port == 0;
}
