/* Encoding: one byte version, one byte kind, then the fields of that kind, little-endian, strings with a 16-bit length. One function walks the
 * fields for both directions, so they cannot disagree. */
#include "launcher/message.h"

#include "launcher/protocol.h"

#include <math.h>
#include <string.h>

struct walk {
    struct dt_text *out; /* writing when set */
    const uint8_t *p, *end;
    bool bad;
};

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

static void walk_i64(struct walk *w, int64_t *x)
{
    uint64_t u = (uint64_t)*x;
    walk_u64(w, &u);
    *x = (int64_t)u;
}

/* A number from low to high. */
static void walk_int(struct walk *w, int *x, int low, int high)
{
    int64_t v = *x;
    walk_i64(w, &v);
    if (w->out == NULL) {
        w->bad = w->bad || v < low || v > high;
        *x = w->bad ? low : (int)v;
    }
}

static void walk_bool(struct walk *w, bool *x)
{
    int v = *x;
    walk_int(w, &v, 0, 1);
    *x = v != 0;
}

static void walk_real(struct walk *w, double *x)
{
    uint64_t u;
    memcpy(&u, x, sizeof u);
    walk_u64(w, &u);
    memcpy(x, &u, sizeof u);
    w->bad = w->bad || (w->out == NULL && !isfinite(*x));
}

static void walk_string(struct walk *w, char *s, size_t capacity)
{
    uint8_t length[2];
    size_t size = w->out != NULL ? strnlen(s, capacity - 1) : 0;
    length[0] = (uint8_t)size;
    length[1] = (uint8_t)(size >> 8);
    walk_bytes(w, length, 2);
    if (w->out == NULL) {
        size = w->bad ? 0 : (size_t)length[0] | (size_t)length[1] << 8;
        if (size >= capacity) {
            w->bad = true;
            size = 0;
        }
    }
    walk_bytes(w, s, size);
    if (w->out == NULL) {
        s[w->bad ? 0 : size] = 0;
        w->bad = w->bad || strlen(s) != size; /* no NUL inside */
    }
}

/* What peers write reaches terminals, files and the workers' environment: no control characters; `lines`: but newlines. */
static void walk_words(struct walk *w, char *s, size_t capacity, bool lines)
{
    walk_string(w, s, capacity);
    for (const char *c = s; w->out == NULL && *c != '\0'; c++) {
        w->bad = w->bad || *c == 127 || ((unsigned char)*c < 32 && !(lines && *c == '\n'));
    }
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

/* An address or a name: what MASTER_ADDR may hold. */
static void walk_address(struct walk *w, char *s, size_t capacity)
{
    walk_string(w, s, capacity);
    if (w->out == NULL) {
        w->bad = w->bad || s[strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.:%_-")] != '\0';
    }
}

static void walk_info(struct walk *w, struct peer_info *p)
{
    walk_u64(w, &p->id);
    walk_i64(w, &p->order);
    walk_int(w, &p->port, 0, 65535);
    walk_int(w, &p->pid, 0, INT32_MAX);
    walk_u64(w, &p->machine);
    walk_words(w, p->host, sizeof p->host, false);
    walk_address(w, p->address, sizeof p->address);
}

static void walk_record(struct walk *w, struct record *r)
{
    walk_u64(w, &r->nonce[0]);
    walk_u64(w, &r->nonce[1]);
    walk_u64(w, &r->term);
    walk_u64(w, &r->leader);
    walk_int(w, &r->round, 0, INT32_MAX);
    walk_int(w, &r->restarts_used, 0, INT32_MAX);
    walk_int(w, &r->no_progress, 0, INT32_MAX);
    walk_i64(w, &r->best_step);
    walk_i64(w, &r->best_saved);
    walk_i64(w, &r->oom_step);
    walk_bool(w, &r->oom_seen);
    walk_i64(w, &r->next_order);
    walk_bool(w, &r->finished);
    walk_bool(w, &r->committed);
    walk_int(w, &r->code, 0, 255);
    walk_int(w, &r->members, 0, INT32_MAX);
    walk_bool(w, &r->leader_in);
    walk_int(w, &r->council_count, 0, MESSAGE_COUNCIL);
    walk_int(w, &r->before_count, 0, MESSAGE_COUNCIL);
    for (int i = 0; i < r->council_count; i++) {
        walk_info(w, &r->council[i]);
    }
    for (int i = 0; i < r->before_count; i++) {
        walk_info(w, &r->before[i]);
    }
    walk_u64(w, &r->before_leader);
}

static void walk_event(struct walk *w, struct message *m)
{
    struct event *e = &m->event;
    int kind = e->kind, failure = e->failure;
    walk_int(w, &kind, 0, EVENT_TICK);
    walk_int(w, &failure, 0, FAILURE_START);
    e->kind = (enum event_kind)kind;
    e->failure = (enum failure_kind)failure;
    walk_int(w, &e->round, 0, INT32_MAX);
    walk_int(w, &e->local_world_size, 0, 65536);
    walk_i64(w, &e->order);
    walk_int(w, &e->code, 0, 255);
    walk_i64(w, &e->step);
    walk_i64(w, &e->saved_step);
    walk_words(w, m->role, sizeof m->role, false);
    e->role = m->role;
    walk_bool(w, &e->weak);
    walk_bool(w, &e->saved);
    walk_bool(w, &e->out_of_memory);
    walk_i64(w, &e->at_step);
    walk_words(w, m->text, sizeof m->text, true);
    e->why = m->text;
}

static void walk_action(struct walk *w, struct action *a)
{
    int kind = a->kind;
    walk_int(w, &kind, 0, ACTION_REFUSE);
    a->kind = (enum action_kind)kind;
    walk_int(w, &a->code, 0, 255);
    struct place *p = &a->place;
    int *const fields[] = {&p->round,      &p->restarts_used, &p->group_rank,      &p->group_world_size, &p->rank,
                           &p->world_size, &p->role_rank,     &p->role_world_size, &p->local_world_size};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        walk_int(w, fields[i], 0, INT32_MAX);
    }
}

static void walk(struct walk *w, struct message *m)
{
    walk_u64(w, &m->term);
    walk_int(w, &m->round, 0, INT32_MAX);
    switch (m->kind) {
    case MESSAGE_JOIN:
        walk_info(w, &m->info);
        walk_int(w, &m->local_world_size, 1, 65536);
        walk_bool(w, &m->granted);
        walk_words(w, m->role, sizeof m->role, false);
        walk_u64(w, &m->nonce[0]);
        walk_u64(w, &m->nonce[1]);
        walk_words(w, m->text, sizeof m->text, true);
        walk_real(w, &m->stamp);
        walk_int(w, &m->count, 0, INT32_MAX);
        walk_int(w, &m->preference, -1, INT32_MAX);
        walk_real(w, &m->wall_s);
        break;
    case MESSAGE_REFUSE:
        walk_bool(w, &m->finished);
        walk_u64(w, &m->nonce[0]);
        walk_u64(w, &m->nonce[1]);
        walk_int(w, &m->code, 0, 255);
        walk_words(w, m->text, sizeof m->text, true);
        break;
    case MESSAGE_REDIRECT:
    case MESSAGE_PROBE:
    case MESSAGE_REACH:
    case MESSAGE_YIELD:
        walk_info(w, &m->info);
        break;
    case MESSAGE_PREPARE:
        walk_record(w, &m->record);
        break;
    case MESSAGE_ACK:
        walk_bool(w, &m->finished);
        break;
    case MESSAGE_EVENT:
        walk_event(w, m);
        break;
    case MESSAGE_ACTION:
        walk_action(w, &m->action);
        walk_record(w, &m->record);
        walk_i64(w, &m->info.order);
        walk_words(w, m->text, sizeof m->text, false);
        break;
    case MESSAGE_BEAT:
        walk_info(w, &m->info);
        walk_bool(w, &m->granted);
        walk_u64(w, &m->nonce[0]);
        walk_u64(w, &m->nonce[1]);
        walk_int(w, &m->count, -1, 0);
        walk_int(w, &m->members, 0, INT32_MAX);
        walk_words(w, m->text, sizeof m->text, true);
        walk_real(w, &m->stamp);
        walk_real(w, &m->echo);
        break;
    case MESSAGE_BEAT_ACK:
        walk_real(w, &m->stamp);
        walk_real(w, &m->echo);
        break;
    case MESSAGE_KEEP:
        walk_info(w, &m->info);
        walk_record(w, &m->record);
        break;
    case MESSAGE_VOTE_ASK:
        walk_bool(w, &m->granted);
        walk_record(w, &m->record);
        break;
    case MESSAGE_VOTE:
        walk_bool(w, &m->granted);
        walk_int(w, &m->count, 0, 1);
        walk_record(w, &m->record);
        break;
    case MESSAGE_CAUSE:
        walk_int(w, &m->count, CAUSE_PEER, CAUSE_KIND_COUNT - 1);
        walk_words(w, m->text, sizeof m->text, true);
        break;
    case MESSAGE_STATUS_ASK:
        walk_u64(w, &m->nonce[0]);
        walk_u64(w, &m->nonce[1]);
        break;
    case MESSAGE_STATUS:
        walk_u64(w, &m->nonce[0]);
        walk_u64(w, &m->nonce[1]);
        walk_info(w, &m->info);
        walk_bool(w, &m->granted);
        walk_int(w, &m->count, 0, INT32_MAX);
        walk_bool(w, &m->finished);
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
    if (copy.kind == MESSAGE_EVENT && m->event.why != NULL && m->event.why != m->text) {
        memset(copy.text, 0, sizeof copy.text);
        memcpy(copy.text, m->event.why, strnlen(m->event.why, sizeof copy.text - 1));
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
        return dt_fail(err, DT_INVALID, "message of version %d; this dtrun speaks version %d: run the same dtrun on all hosts", head[0],
                       PROTOCOL_VERSION);
    }
    if (head[1] < 1 || head[1] >= MESSAGE_KIND_COUNT) {
        return dt_fail(err, DT_INVALID, "message of unknown kind %d", head[1]);
    }
    m->kind = (enum message_kind)head[1];
    walk(&w, m);
    if (w.bad || w.p != w.end) {
        return dt_fail(err, DT_INVALID, "%s message of %zu bytes: malformed", message_name(m->kind), size);
    }
    return 0;
}

const char *message_name(enum message_kind kind)
{
    static const char *const names[MESSAGE_KIND_COUNT] = {"none",   "join",  "refuse",   "redirect", "prepare",    "ack",   "event",
                                                          "action", "beat",  "beat_ack", "vote_ask", "vote",       "keep",  "bye",
                                                          "probe",  "reach", "cause",    "yield",    "status_ask", "status"};
    return (unsigned)kind < MESSAGE_KIND_COUNT ? names[kind] : "unknown";
}

bool record_newer(const struct record *a, const struct record *b)
{
    return a->term != b->term ? a->term > b->term : a->round != b->round ? a->round > b->round : a->finished > b->finished;
}

bool record_grants(uint64_t promised, const struct record *own, const struct message *ask)
{
    return ask->term > promised && ask->term > own->term && !record_newer(own, &ask->record);
}

bool peer_is_witness(const struct peer_info *p)
{
    return p->port == 0;
}
