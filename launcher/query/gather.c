/* Each question has a number, so that late answers to an older question are recognized. Answers
 * come in parts of whole lines. Text from other agents must be strict JSON and harmless for a
 * terminal before any byte of it is shown. */
#include "launcher/query/gather.h"

#include "base/clock.h"
#include "base/scan.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_BYTES = 6 << 20, PASSED_PER_S = 20000 };
#define PATIENCE_MS 1000

struct gather {
    uv_timer_t timer;
    const struct member *member;
    struct gather_hooks hooks;
    uint64_t number; /* number of the newest question */
    bool asking;
    bool knows_members;           /* all parts of the leader's list have arrived */
    struct dt_text rows, members; /* lines from other hosts */
    uint64_t *answered;           /* agents that have answered completely */
    int answered_count, answered_capacity;
    size_t counted_size; /* size of `members` when its lines were counted */
    int member_count;
    /* limits what a leader passes on for others: messages in the second that began then */
    double passed_since_s;
    int passed_count;
};

static bool has_answered(const struct gather *g, uint64_t id)
{
    for (int i = 0; i < g->answered_count; i++) {
        if (g->answered[i] == id) {
            return true;
        }
    }
    return false;
}

static void add_answered(struct gather *g, uint64_t id)
{
    if (g->answered_count == g->answered_capacity) {
        g->answered_capacity = g->answered_capacity * 2 + 16;
        g->answered = dt_realloc(g->answered, (size_t)g->answered_capacity * sizeof *g->answered);
    }
    if (!has_answered(g, id)) {
        g->answered[g->answered_count++] = id;
    }
}

/* The id in a line of members; 0: the line has none. */
static uint64_t id_of(const char *line, size_t size)
{
    static const char before[] = "{\"id\":\"";
    return size > sizeof before - 1 && memcmp(line, before, sizeof before - 1) == 0
               ? strtoull(line + sizeof before - 1, NULL, 16)
               : 0;
}

/* Compares the ids only when enough agents have answered, because each of thousands of answers
 * calls this function. */
static bool all_answered(struct gather *g)
{
    const char *line = dt_text_str(&g->members);
    if (g->members.size != g->counted_size) {
        g->counted_size = g->members.size;
        g->member_count = 0;
        for (const char *p = line; *p != '\0'; p += strcspn(p, "\n"), p += *p == '\n') {
            g->member_count += id_of(p, strcspn(p, "\n")) != 0;
        }
    }
    if (g->answered_count < g->member_count) {
        return false;
    }
    for (size_t n; *line != '\0'; line += n + (line[n] == '\n')) {
        n = strcspn(line, "\n");
        uint64_t id = id_of(line, n);
        if (id != 0 && !has_answered(g, id)) {
            return false;
        }
    }
    return g->knows_members;
}

static void end(struct gather *g)
{
    g->asking = false;
    (void)uv_timer_stop(&g->timer);
    if (g->hooks.done != NULL) {
        g->hooks.done(g->hooks.user);
    }
}

static void on_timer(uv_timer_t *timer)
{
    end(timer->data);
}

static void ask_all(struct gather *g, const struct message *ask)
{
    const struct member *m = g->member;
    for (int i = 0; i < m->peer_count; i++) {
        if (m->peers[i].joined && m->peers[i].id != ask->status_ask.asker) {
            g->hooks.send(g->hooks.user, m->peers[i].id, ask);
        }
    }
}

bool gather_begin(struct gather *g)
{
    const struct member *m = g->member;
    bool leads = m->role == MEMBER_LEADING && m->leading.coordinator != NULL;
    if (g->asking) {
        return true;
    }
    dt_text_reset(&g->rows);
    dt_text_reset(&g->members);
    g->answered_count = 0;
    g->knows_members = leads;
    if (leads) {
        member_hosts(m, dt_now_s(), &g->members);
    }
    add_answered(g, m->options.self.id);
    if (!leads && m->role != MEMBER_FOLLOWING) {
        return false;
    }
    struct message ask = {.kind = MESSAGE_STATUS_ASK,
                          .status_ask = {.number = ++g->number, .asker = m->options.self.id}};
    g->asking = !all_answered(g);
    if (!g->asking) {
        return false;
    }
    if (leads) {
        ask_all(g, &ask);
    } else {
        g->hooks.send(g->hooks.user, m->following.leader, &ask);
    }
    uv_update_time(g->timer.loop);
    (void)uv_timer_start(&g->timer, on_timer, PATIENCE_MS, 0);
    return true;
}

/* ---- answers ---- */

/* Sends lines in as few messages as possible. */
static void send_lines(struct gather *g, uint64_t to, const struct message_status_ask *ask, bool members,
                       const struct dt_text *lines)
{
    const char *p = dt_text_str(lines);
    int part = 0;
    do {
        size_t size = 0;
        for (size_t n; p[size] != '\0'; size += n) {
            n = strcspn(p + size, "\n") + 1;
            if (size + n > MESSAGE_BODY_BYTES) {
                break;
            }
        }
        /* no line is so long; a line that does not fit is left out */
        if (size == 0 && *p != '\0') {
            p += strcspn(p, "\n") + 1;
            continue;
        }
        struct message out = {.kind = MESSAGE_STATUS,
                              .status = {.number = ask->number,
                                         .asker = ask->asker,
                                         .info = g->member->options.self,
                                         .of_hosts = members,
                                         .part = part,
                                         .last = p[size] == '\0',
                                         .lines = {p, size}}};
        g->hooks.send(g->hooks.user, to, &out);
        part++;
        p += size;
    } while (*p != '\0');
}

static void answer(struct gather *g, uint64_t to, const struct message_status_ask *ask)
{
    struct dt_text lines;
    dt_text_init(&lines);
    if (g->hooks.rows != NULL) {
        g->hooks.rows(g->hooks.user, &lines);
    }
    send_lines(g, to, ask, false, &lines);
    if (g->member->role == MEMBER_LEADING && g->member->leading.coordinator != NULL) {
        dt_text_reset(&lines);
        member_hosts(g->member, dt_now_s(), &lines);
        send_lines(g, to, ask, true, &lines);
    }
    dt_text_clear(&lines);
}

/* Whether so many more messages may be passed on in this second. */
static bool may_pass(struct gather *g, int count)
{
    double now_s = dt_now_s();
    if (now_s - g->passed_since_s >= 1) {
        g->passed_since_s = now_s;
        g->passed_count = 0;
    }
    g->passed_count += g->passed_count < PASSED_PER_S ? count : 0;
    return g->passed_count <= PASSED_PER_S;
}

static bool is_joined(const struct member *m, uint64_t id)
{
    const struct member_peer *p = member_find(m, id);
    return m->role == MEMBER_LEADING && p != NULL && p->joined;
}

static void on_ask(struct gather *g, uint64_t peer, const struct message *in)
{
    const struct member *m = g->member;
    if (m->role == MEMBER_FOLLOWING && peer == m->following.leader) {
        answer(g, peer, &in->status_ask);
    } else if (is_joined(m, peer) && in->status_ask.asker == peer) {
        answer(g, peer, &in->status_ask);
        if (may_pass(g, m->peer_count)) {
            ask_all(g, in);
        }
    }
}

/* Appends the lines that are JSON objects. Lines of our own agents escape control characters. */
static void take_lines(struct dt_text *to, const char *body, size_t size)
{
    for (const char *p = body, *stop = body + size, *next; p < stop; p = next) {
        const char *newline = memchr(p, '\n', (size_t)(stop - p));
        size_t n = newline != NULL ? (size_t)(newline - p) : (size_t)(stop - p);
        struct dt_error ignored;
        cJSON *row = to->size + n < ROWS_BYTES && dt_text_is_harmless(p, n, false)
                         ? dt_scan_parse(p, n, "row", NULL, &ignored)
                         : NULL;
        if (cJSON_IsObject(row) && p[0] == '{' && p[n - 1] == '}') {
            dt_text_add(to, p, n);
            dt_text_puts(to, "\n");
        }
        cJSON_Delete(row);
        next = p + n + 1;
    }
}

static void on_answer(struct gather *g, uint64_t peer, const struct message *in)
{
    const struct member *m = g->member;
    const struct message_status *status = &in->status;
    if (status->asker != m->options.self.id) {
        if (is_joined(m, peer) && is_joined(m, status->asker) && may_pass(g, 1)) {
            struct message out = *in;
            out.status.info = member_find(m, peer)->info; /* an agent may answer only for itself */
            out.status.of_hosts = false;
            g->hooks.send(g->hooks.user, status->asker, &out);
        }
        return;
    }
    if (!g->asking || status->number != g->number) {
        return;
    }
    bool by_leader = m->role == MEMBER_FOLLOWING && peer == m->following.leader;
    uint64_t who = by_leader ? status->info.id : peer;
    if (status->of_hosts && by_leader) {
        take_lines(&g->members, status->lines.bytes, status->lines.size);
        g->knows_members = g->knows_members || status->last;
    } else if (!status->of_hosts && !has_answered(g, who)) {
        take_lines(&g->rows, status->lines.bytes, status->lines.size);
        if (status->last) {
            add_answered(g, who);
        }
    }
    if (all_answered(g)) {
        end(g);
    }
}

bool gather_message(struct gather *g, uint64_t peer, const struct message *in)
{
    if (in->kind == MESSAGE_STATUS_ASK) {
        on_ask(g, peer, in);
    } else if (in->kind == MESSAGE_STATUS) {
        on_answer(g, peer, in);
    }
    return in->kind == MESSAGE_STATUS_ASK || in->kind == MESSAGE_STATUS;
}

/* ---- results ---- */

void gather_members(const struct gather *g, double now_s, struct dt_text *out)
{
    struct dt_text own;
    dt_text_init(&own);
    /* there is no leader, or it did not answer: show what this agent knows */
    if (!g->knows_members) {
        member_hosts(g->member, now_s, &own);
    }
    const char *line = g->knows_members ? dt_text_str(&g->members) : dt_text_str(&own), *comma = "";
    for (size_t n; *line != '\0'; line += n + (line[n] == '\n')) {
        n = strcspn(line, "\n");
        uint64_t id = id_of(line, n);
        dt_text_puts(out, comma);
        dt_text_add(out, line, n - 1); /* without the closing brace */
        dt_text_printf(out, ",\"answered\":%s}", id == 0 ? "null" : has_answered(g, id) ? "true" : "false");
        comma = ",";
    }
    dt_text_clear(&own);
}

void gather_rows(const struct gather *g, struct dt_text *out)
{
    dt_text_add(out, dt_text_str(&g->rows), g->rows.size);
}

/* ---- open, close ---- */

void gather_open(struct gather **out, uv_loop_t *loop, const struct member *member, const struct gather_hooks *hooks)
{
    struct gather *g = dt_alloc(sizeof *g);
    g->member = member;
    g->hooks = *hooks;
    dt_text_init(&g->rows);
    dt_text_init(&g->members);
    (void)uv_timer_init(loop, &g->timer);
    g->timer.data = g;
    *out = g;
}

static void on_closed(uv_handle_t *handle)
{
    struct gather *g = handle->data;
    dt_text_clear(&g->rows);
    dt_text_clear(&g->members);
    free(g->answered);
    free(g);
}

void gather_close(struct gather *g)
{
    uv_close((uv_handle_t *)&g->timer, on_closed);
}
