/* Whole clusters on simulated time: agents (the real table), members, links with delays, cuts, deaths and restarts, from a seed. What must hold in every
 * schedule: one round trains at a time, a node is in at most one place, and once faults stop the job ends as it should.
 * DTRUN_SCHEDULES=N runs N schedules, DTRUN_SEED=S begins at seed S: each seed is one schedule, and fails or passes the same way every time.
 * DTRUN_VERBOSE=1 tells what happens, DTRUN_TRACE=1 every message as well; both for DTRUN_SCHEDULES=1. */
#include "base/error.h"
#include "base/text.h"
#include "launcher/agent.h"
#include "launcher/member.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { NONE = -1, FIRST_PORT = 10000 };
#ifdef DT_SANITIZED
#define SCHEDULES 200
#else
#define SCHEDULES 2000
#endif
#define KILL_S 0.3 /* workers that are told to leave are gone within this */
#define DETECT_EOF_S 0.05

enum happening { H_MESSAGE, H_UP, H_DOWN, H_TICK, H_WORKERS_DONE, H_WORKERS_GONE, H_WORKER_BAD, H_FAULT, H_START, H_AGENT };
struct happen {
    double at_s;
    uint64_t order;
    enum happening kind;
    int node, peer; /* agent indices */
    uint64_t peer_id;
    int generation, link;
    int value;
    struct dt_text bytes;
};

struct sim_agent {
    bool alive, finished, running; /* running: workers exist */
    int generation, code, round;
    int workers_token; /* of the newest workers: older news is stale */
    double seen_tick_s;
    struct member member;
    struct agent agent;
    struct {
        enum agent_event event;
        int value;
    } queue[64];
    int queued, taken;
    bool draining;
    uint64_t id, nonce; /* nonce: of the run that the workers belong to */
};

struct link {
    bool up, a_knows, b_knows;
    int token;
    double last_s[2], stalled_s[2]; /* FIFO per direction */
};

static struct {
    uint64_t random;
    double now_s;
    int count, min, max, restarts;
    struct sim_agent *agents;
    struct link *links; /* count * count, only a < b used */
    bool *cut;          /* count * count: packets from a to b do not arrive */
    struct happen **heap;
    size_t heap_count, heap_capacity;
    uint64_t next_order;
    double delay_s, work_s;
    double faults_until_s;
    int endpoint;      /* index of the agent that holds it, or NONE */
    int endpoint_host; /* agents of this index may bind it */
    int rounds_started, failures_injected, kills, steps;
    bool verbose, trace;
    const char *broken;
    char why[256];
} sim;

static uint32_t rnd(void)
{
    sim.random = sim.random * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(sim.random >> 33);
}

static double uniform(double low, double high)
{
    return low + (high - low) * (double)rnd() / 2147483648.0;
}

static bool before(const struct happen *a, const struct happen *b)
{
    return a->at_s != b->at_s ? a->at_s < b->at_s : a->order < b->order;
}

static void put(struct happen *h)
{
    if (sim.heap_count == sim.heap_capacity) {
        sim.heap_capacity = sim.heap_capacity * 2 + 256;
        sim.heap = dt_realloc(sim.heap, sim.heap_capacity * sizeof *sim.heap);
    }
    size_t i = sim.heap_count++;
    while (i > 0 && before(h, sim.heap[(i - 1) / 2])) {
        sim.heap[i] = sim.heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    sim.heap[i] = h;
}

static struct happen *plan(double at_s, enum happening kind, int node)
{
    struct happen *h = dt_alloc(sizeof *h);
    h->at_s = at_s;
    h->order = sim.next_order++;
    h->kind = kind;
    h->node = node;
    h->generation = node >= 0 ? sim.agents[node].generation : 0;
    put(h);
    return h;
}

static struct happen *take(void)
{
    if (sim.heap_count == 0) {
        return NULL;
    }
    struct happen *top = sim.heap[0], *last = sim.heap[--sim.heap_count];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= sim.heap_count) {
            break;
        }
        if (child + 1 < sim.heap_count && before(sim.heap[child + 1], sim.heap[child])) {
            child++;
        }
        if (!before(sim.heap[child], last)) {
            break;
        }
        sim.heap[i] = sim.heap[child];
        i = child;
    }
    if (sim.heap_count > 0) {
        sim.heap[i] = last;
    }
    return top;
}

static struct link *link_of(int a, int b)
{
    return &sim.links[a < b ? a * sim.count + b : b * sim.count + a];
}

static bool is_cut(int from, int to)
{
    return sim.cut[from * sim.count + to];
}

static int index_of(uint64_t id)
{
    for (int i = 0; i < sim.count; i++) {
        if (sim.agents[i].id == id) {
            return i;
        }
    }
    return NONE;
}

/* ---- hooks ---- */

static void post(struct sim_agent *a, enum agent_event event, int value);
static void drain(int i);

static void sim_send(void *user, uint64_t peer, const struct message *m)
{
    int from = (int)(intptr_t)user, to = index_of(peer);
    if (to == NONE || !link_of(from, to)->up) {
        return;
    }
    struct link *l = link_of(from, to);
    double at_s = sim.now_s + uniform(0.1, 1) * sim.delay_s, *last_s = &l->last_s[from < to];
    *last_s = at_s > *last_s ? at_s : *last_s;
    struct happen *h = plan(*last_s, H_MESSAGE, to);
    h->peer = from;
    h->peer_id = sim.agents[from].id;
    h->link = l->token;
    message_encode(m, &h->bytes);
    if (sim.trace) {
        (void)fprintf(stderr, "%8.3f send %d -> %d kind %d sub %d at %.3f\n", sim.now_s, from, to, m->kind, m->action.kind, h->at_s);
    }
}

static void sim_connect(void *user, const struct peer_info *to)
{
    int from = (int)(intptr_t)user, index = to != NULL ? to->port - FIRST_PORT : sim.endpoint; /* whoever listens there now */
    if (index == NONE || index == from || link_of(from, index)->up || !sim.agents[index].alive || is_cut(from, index) || is_cut(index, from)) {
        return;
    }
    struct link *l = link_of(from, index);
    l->up = true;
    l->token++;
    double at_s = sim.now_s + uniform(0.1, 1) * sim.delay_s;
    l->last_s[0] = l->last_s[1] = at_s;
    l->stalled_s[0] = l->stalled_s[1] = 0;
    for (int k = 0; k < 2; k++) {
        struct happen *h = plan(at_s, H_UP, k == 0 ? from : index);
        h->peer = k == 0 ? index : from;
        h->peer_id = sim.agents[h->peer].id;
        h->link = l->token;
    }
}

/* Closes a link from one side; the other learns of it (dead: our process is gone), or never if the packets do not arrive. */
static void close_link(int from, int to, bool dead)
{
    struct link *l = link_of(from, to);
    if (!l->up) {
        return;
    }
    l->up = false;
    struct happen *h = plan(sim.now_s + DETECT_EOF_S, H_DOWN, to);
    h->peer = from;
    h->peer_id = sim.agents[from].id;
    h->link = l->token;
    h->value = dead;
}

static void sim_drop(void *user, uint64_t peer)
{
    int from = (int)(intptr_t)user, to = index_of(peer);
    if (to != NONE) {
        close_link(from, to, false);
    }
}

static void sim_say(void *user, const char *line)
{
    if (sim.verbose) {
        (void)fprintf(stderr, "%8.3f agent %d: %s\n", sim.now_s, (int)(intptr_t)user, line);
    }
}

static void sim_act(void *user, const struct action *a, const struct record *record, const char *why)
{
    static const enum agent_event events[] = {[ACTION_START] = AGENT_ON_START,
                                              [ACTION_END] = AGENT_ON_END,
                                              [ACTION_STOP] = AGENT_ON_STOP,
                                              [ACTION_FINISH] = AGENT_ON_VERDICT,
                                              [ACTION_REFUSE] = AGENT_ON_VERDICT};
    struct sim_agent *agent = &sim.agents[(intptr_t)user];
    if (sim.verbose) {
        static const char *const names[] = {"START", "END", "STOP", "FINISH", "REFUSE"};
        (void)fprintf(stderr, "%8.3f agent %d: %s round %d code %d run %llx %s\n", sim.now_s, (int)(intptr_t)user, names[a->kind], a->place.round,
                      a->code, (unsigned long long)record->nonce[0], why != NULL ? why : "");
    }
    if (a->kind == ACTION_START) {
        agent->round = a->place.round;
        agent->nonce = record->nonce[0] * 31 + record->nonce[1];
        sim.rounds_started++;
    }
    post(agent, events[a->kind], a->code);
    (void)plan(sim.now_s, H_AGENT, (int)(intptr_t)user);
}

static const struct member_hooks hooks = {NULL, sim_send, sim_act, sim_connect, sim_drop, sim_say};

/* ---- agents ---- */

static void post(struct sim_agent *a, enum agent_event event, int value)
{
    assert_true(a->queued - a->taken < 64);
    a->queue[a->queued % 64].event = event;
    a->queue[a->queued++ % 64].value = value;
}

static void workers_gone_soon(int i, double in_s)
{
    struct sim_agent *a = &sim.agents[i];
    if (a->running) {
        plan(sim.now_s + in_s, H_WORKERS_GONE, i)->value = a->workers_token;
    } else {
        plan(sim.now_s, H_WORKERS_GONE, i)->value = a->workers_token;
    }
}

static void do_one(int i, enum agent_do what)
{
    struct sim_agent *a = &sim.agents[i];
    struct event e = {.round = a->round,
                      .local_world_size = 1 + i % 3,
                      .order = -1,
                      .role = "default",
                      .failure = a->agent.failure,
                      .code = a->agent.failure_code,
                      .step = (int64_t)(sim.now_s * 10),
                      .saved_step = -1};
    switch (what) {
    case AGENT_DO_SPAWN:
        a->running = true;
        a->workers_token++;
        plan(sim.now_s + sim.work_s * uniform(0.9, 1.1), H_WORKERS_DONE, i)->value = a->workers_token;
        return;
    case AGENT_DO_ORDER_ABORT:
    case AGENT_DO_TERM:
    case AGENT_DO_KILL:
    case AGENT_DO_ORDER_STOP:
        workers_gone_soon(i, uniform(0, KILL_S));
        return;
    case AGENT_DO_GRACE:
        return;
    case AGENT_DO_EXIT:
        a->finished = true;
        a->code = a->agent.code;
        member_leave(&a->member);
        return;
    case AGENT_DO_TELL_JOIN:
        e.kind = EVENT_JOIN;
        break;
    case AGENT_DO_TELL_FAILED:
        e.kind = EVENT_FAILED;
        break;
    case AGENT_DO_TELL_DONE:
        e.kind = EVENT_DONE;
        break;
    case AGENT_DO_TELL_STOPPED:
        e.kind = EVENT_STOPPED;
        break;
    case AGENT_DO_TELL_STOP:
        e.kind = EVENT_STOP;
        break;
    }
    member_event(&a->member, &e, sim.now_s);
}

static void drain(int i)
{
    struct sim_agent *a = &sim.agents[i];
    if (a->draining) {
        return;
    }
    a->draining = true;
    while (a->taken < a->queued && !a->finished) {
        int at = a->taken++ % 64;
        agent_step(&a->agent, a->queue[at].event, a->queue[at].value);
        int count = a->agent.do_count;
        enum agent_do todo[AGENT_MAX_DO];
        memcpy(todo, a->agent.todo, sizeof todo);
        for (int k = 0; k < count; k++) {
            do_one(i, todo[k]);
        }
    }
    a->draining = false;
}

/* Ends for good: its links are closed by its kernel once its goodbyes are out. */
static void leave(int i)
{
    struct sim_agent *a = &sim.agents[i];
    for (int k = 0; k < sim.count; k++) {
        if (k != i) {
            close_link(i, k, true);
        }
    }
    a->alive = a->running = false;
    if (sim.endpoint == i) {
        sim.endpoint = NONE;
    }
}

static void start_agent(int i)
{
    struct sim_agent *a = &sim.agents[i];
    int generation = a->generation + 1, token = a->workers_token + 1;
    member_clear(&a->member);
    memset(a, 0, sizeof *a);
    a->generation = generation;
    a->workers_token = token;
    a->alive = true;
    a->id = (uint64_t)(i + 1) << 32 | (uint64_t)generation;
    struct member_options o = {
        .rounds = {.nodes_min = sim.min, .nodes_max = sim.max, .restarts_max = sim.restarts, .join_timeout_s = 600, .last_call_s = 8},
        .beat_s = 1,
        .lease_s = 10,
        .dead_s = 15,
        .retry_s = 0.5,
        .self = {.id = a->id, .order = -1, .pid = i},
        .nonce = {a->id, 1}};
    (void)snprintf(o.self.host, sizeof o.self.host, "h%d", i);
    (void)snprintf(o.self.address, sizeof o.self.address, "10.0.%d.%d", i / 256, i % 256);
    o.self.port = FIRST_PORT + i;
    struct member_hooks h = hooks;
    h.user = (void *)(intptr_t)i;
    member_init(&a->member, &o, &h);
    if (sim.verbose) {
        (void)fprintf(stderr, "%8.3f agent %d: started\n", sim.now_s, i);
    }
    agent_init(&a->agent, &(struct agent_options){0});
    if (i == sim.endpoint_host && sim.endpoint == NONE) {
        sim.endpoint = i;
        member_lead(&a->member, sim.now_s);
    } else {
        member_seek(&a->member, sim.now_s);
    }
    struct event e = {.kind = EVENT_JOIN, .local_world_size = 1 + i % 3, .order = -1, .role = "default"};
    member_event(&a->member, &e, sim.now_s);
    (void)plan(sim.now_s, H_TICK, i);
}

/* A process that dies takes its workers along (parent-death signal). */
static void kill_agent(int i)
{
    sim.kills++;
    if (sim.verbose) {
        (void)fprintf(stderr, "%8.3f agent %d: killed\n", sim.now_s, i);
    }
    leave(i);
    member_clear(&sim.agents[i].member);
}

/* ---- what must hold ---- */

static void check(void)
{
    for (int i = 0; i < sim.count; i++) {
        const struct sim_agent *a = &sim.agents[i];
        for (int k = 0; k < i && a->alive && a->running; k++) {
            const struct sim_agent *b = &sim.agents[k];
            /* An agent that was killed, comes back to the endpoint and cannot reach the others begins a run of its own: it has no memory. */
            if (b->alive && b->running && a->round != b->round && a->nonce == b->nonce && sim.broken == NULL) {
                sim.broken = "two rounds train at once";
                (void)snprintf(sim.why, sizeof sim.why, "at %.3f s: round %d (agent %d) and %d (agent %d)", sim.now_s, a->round, i, b->round, k);
            }
        }
    }
}

static void fault(void)
{
    int i = (int)(rnd() % (uint32_t)sim.count), k = (int)(rnd() % (uint32_t)sim.count), what = (int)(rnd() % 8);
    if (sim.verbose) {
        static const char *const names[] = {"kill", "isolate", "one direction", "halves", "worker fails", "reset", "heal", "heal"};
        (void)fprintf(stderr, "%8.3f fault: %s %d %d\n", sim.now_s, names[what], i, k);
    }
    switch (what) {
    case 0: /* the process is killed and comes back later */
        if (sim.agents[i].alive && !sim.agents[i].finished) {
            kill_agent(i);
            (void)plan(sim.now_s + uniform(0.1, 30), H_START, i);
        }
        break;
    case 1: /* one host is cut off, both ways */
        for (int j = 0; j < sim.count; j++) {
            sim.cut[i * sim.count + j] = sim.cut[j * sim.count + i] = j != i;
        }
        break;
    case 2: /* one direction between two */
        sim.cut[i * sim.count + k] = i != k;
        break;
    case 3: { /* two halves */
        uint32_t side = rnd();
        for (int a = 0; a < sim.count; a++) {
            for (int b = 0; b < sim.count; b++) {
                sim.cut[a * sim.count + b] = ((side >> (a % 31)) & 1) != ((side >> (b % 31)) & 1);
            }
        }
        break;
    }
    case 4: /* a worker fails */
        if (sim.agents[i].alive && sim.agents[i].running && sim.failures_injected < sim.restarts) {
            sim.failures_injected++;
            plan(sim.now_s, H_WORKER_BAD, i)->value = sim.agents[i].workers_token;
        }
        break;
    case 5: /* a link is reset: both notice, nobody is dead */
        if (i != k && link_of(i, k)->up) {
            close_link(i, k, false);
            struct happen *h = plan(sim.now_s + DETECT_EOF_S, H_DOWN, i);
            h->peer = k;
            h->peer_id = sim.agents[k].id;
            h->link = link_of(i, k)->token;
        }
        break;
    default: /* the network heals */
        memset(sim.cut, 0, (size_t)(sim.count * sim.count) * sizeof *sim.cut);
    }
    if (sim.now_s < sim.faults_until_s) {
        (void)plan(sim.now_s + uniform(0.05, 12), H_FAULT, NONE);
    } else {
        memset(sim.cut, 0, (size_t)(sim.count * sim.count) * sizeof *sim.cut);
    }
}

/* True: h is planned again. */
static bool handle(struct happen *h)
{
    struct sim_agent *a = h->node >= 0 ? &sim.agents[h->node] : NULL;
    if (h->kind == H_FAULT) {
        fault();
        return false;
    }
    if (h->kind == H_START) {
        if (!a->alive && !a->finished) {
            start_agent(h->node);
        }
        return false;
    }
    if (!a->alive || a->generation != h->generation) {
        return false;
    }
    if (h->kind == H_MESSAGE || h->kind == H_UP || h->kind == H_DOWN) {
        struct link *l = link_of(h->node, h->peer);
        if (l->token != h->link || (h->kind != H_DOWN && !l->up)) {
            return false;
        }
        double *stalled_s = &l->stalled_s[h->peer < h->node];
        if (is_cut(h->peer, h->node) && sim.now_s >= *stalled_s) { /* TCP tries again until the link is given up; what comes behind waits */
            *stalled_s = sim.now_s + 0.5;
        }
        if (sim.now_s < *stalled_s) {
            double *last_s = &l->last_s[h->peer < h->node];
            h->at_s = *stalled_s;
            *last_s = h->at_s > *last_s ? h->at_s : *last_s;
            put(h);
            return true;
        }
    }
    uint64_t peer = h->peer_id;
    switch (h->kind) {
    case H_UP:
        member_down(&a->member, peer, false, sim.now_s); /* of a link before, if its end was not seen yet */
        member_up(&a->member, &sim.agents[h->peer].member.options.self, sim.now_s);
        break;
    case H_DOWN:
        member_down(&a->member, peer, h->value != 0, sim.now_s);
        break;
    case H_MESSAGE: {
        if (sim.trace) {
            (void)fprintf(stderr, "%8.3f %d -> %d kind %d sub %d\n", sim.now_s, h->peer, h->node, (uint8_t)h->bytes.data[1],
                          (uint8_t)h->bytes.data[18]);
        }
        static struct message m;
        struct dt_error err;
        if (message_decode(&m, h->bytes.data, h->bytes.size, &err) != 0) {
            fail_msg("%s", err.text);
        }
        if (true) {
            member_message(&a->member, peer, &m, sim.now_s);
        }
        break;
    }
    case H_TICK: {
        double next_s = member_tick(&a->member, sim.now_s);
        next_s = next_s < sim.now_s + 0.01 ? sim.now_s + 0.01 : next_s > sim.now_s + 1 ? sim.now_s + 1 : next_s;
        (void)plan(next_s, H_TICK, h->node);
        break;
    }
    case H_WORKERS_DONE:
    case H_WORKERS_GONE:
    case H_WORKER_BAD:
        if (h->value != a->workers_token || (h->kind == H_WORKERS_DONE && !a->running)) {
            return false;
        }
        if (h->kind == H_WORKER_BAD) {
            post(a, AGENT_ON_WORKER_BAD, 1);
        } else {
            if (h->kind == H_WORKERS_DONE) {
                post(a, AGENT_ON_WORKER_OK, 0);
            }
            a->running = false;
            a->workers_token++;
            post(a, AGENT_ON_GONE, 0);
        }
        break;
    case H_AGENT:
    case H_FAULT:
    case H_START:
        break;
    }
    drain(h->node);
    if (a->finished && a->alive) {
        leave(h->node);
    }
    return false;
}

/* What the leaders believe. */
static void show_leaders(void)
{
    for (int i = 0; i < sim.count; i++) {
        const struct member *m = &sim.agents[i].member;
        if (!sim.agents[i].alive || m->role != MEMBER_LEADING) {
            continue;
        }
        (void)fprintf(stderr, "leader %d: term %llu round %d committed %d preparing %d fenced %d (%d) starts %d running %d wake %.3f; nodes", i,
                      (unsigned long long)m->record.term, m->record.round, m->record.committed, m->preparing, m->fenced, m->fence_count,
                      m->start_count, m->coordinator->running, m->wake_s);
        for (int k = 0; k < m->coordinator->node_count; k++) {
            (void)fprintf(stderr, " %d:%d", m->coordinator->nodes[k].node, (int)m->coordinator->nodes[k].state);
        }
        (void)fprintf(stderr, "; council");
        for (int k = 0; k < m->record.council_count; k++) {
            (void)fprintf(stderr, " %llx", (unsigned long long)m->record.council[k].id);
        }
        (void)fprintf(stderr, " before");
        for (int k = 0; k < m->record.before_count; k++) {
            (void)fprintf(stderr, " %llx", (unsigned long long)m->record.before[k].id);
        }
        (void)fprintf(stderr, "\n");
    }
}

static void clear_sim(void)
{
    struct happen *h;
    while ((h = take()) != NULL) {
        dt_text_clear(&h->bytes);
        free(h);
    }
    for (int i = 0; i < sim.count; i++) {
        member_clear(&sim.agents[i].member);
    }
    free(sim.agents);
    free(sim.links);
    free(sim.cut);
    free(sim.heap);
}

static void open_sim(uint64_t seed, int count, int min, int max)
{
    memset(&sim, 0, sizeof sim);
    sim.random = seed * 0x9e3779b97f4a7c15ull + 12345;
    (void)rnd();
    sim.verbose = getenv("DTRUN_VERBOSE") != NULL;
    sim.trace = getenv("DTRUN_TRACE") != NULL;
    sim.count = count;
    sim.min = min;
    sim.max = max;
    sim.restarts = 3;
    sim.endpoint = NONE;
    sim.agents = dt_alloc((size_t)count * sizeof *sim.agents);
    sim.links = dt_alloc((size_t)count * (size_t)count * sizeof *sim.links);
    sim.cut = dt_alloc((size_t)count * (size_t)count * sizeof *sim.cut);
    sim.delay_s = uniform(0.001, 0.2);
    sim.work_s = uniform(2, 20);
}

/* Until everybody ended or the time is over. */
static bool run_sim(double until_s)
{
    for (struct happen *h; (h = take()) != NULL;) {
        sim.now_s = h->at_s;
        sim.steps++;
        if (!handle(h)) {
            dt_text_clear(&h->bytes);
            free(h);
        }
        if (sim.count <= 16 && sim.broken == NULL) {
            check();
        }
        int left = 0;
        for (int i = 0; i < sim.count && left == 0; i++) {
            left += !sim.agents[i].finished;
        }
        if (left == 0 || sim.now_s > until_s || sim.broken != NULL) {
            return left == 0;
        }
    }
    return false;
}

static long long setting(const char *name, long long fallback)
{
    long long value;
    return getenv(name) != NULL && dt_parse_int64(getenv(name), &value) ? value : fallback;
}

static int waited_in_vain;

/* What went wrong, or null. */
static const char *one_schedule(uint64_t seed)
{
    static char why[1024];
    int count = 1 + (int)(seed % 8), min = 1 + (int)(seed / 8 % (uint64_t)count), well = 0;
    open_sim(seed, count, min, count);
    sim.faults_until_s = uniform(0, 90);
    for (int i = 0; i < count; i++) {
        (void)plan(uniform(0, 2), H_START, i);
    }
    (void)plan(uniform(0, 20), H_FAULT, NONE);
    bool ended = run_sim(3000);
    for (int i = 0; i < count; i++) {
        well += sim.agents[i].code == 0;
    }
    why[0] = 0;
    if (sim.broken != NULL) {
        (void)snprintf(why, sizeof why, "%s: %s", sim.broken, sim.why);
    } else if (!ended) {
        (void)snprintf(why, sizeof why, "no end:");
        for (int i = 0; i < count; i++) {
            const struct sim_agent *a = &sim.agents[i];
            size_t used = strlen(why);
            (void)snprintf(why + used, sizeof why - used, " %d:%s/%d", i,
                           a->finished ? "done"
                           : !a->alive ? "dead"
                                       : agent_state_name(a->agent.state),
                           (int)a->member.role);
        }
    } else if (well == 0 && !(2 * min <= count && sim.kills > 0)) {
        /* Faults were free (lost nodes) or within the budget (failed workers). But where two halves could both go on, and an agent died that others could
         * not hear at its end, they cannot know whether it had gone on with somebody else: they wait for join_timeout, and end with 111. */
        (void)snprintf(why, sizeof why, "nobody ended with 0");
    } else if (well == 0) {
        waited_in_vain++;
        for (int i = 0; i < count; i++) {
            if (sim.agents[i].code != DT_EXIT_TEMPORARY) {
                (void)snprintf(why, sizeof why, "agent %d waited in vain, and ended with %d", i, sim.agents[i].code);
            }
        }
    }
    if (sim.verbose) {
        show_leaders();
    }
    clear_sim();
    return why[0] != 0 ? why : NULL;
}

static void schedules_hold_the_promises(void **state)
{
    (void)state;
    uint64_t first = (uint64_t)setting("DTRUN_SEED", 1), count = (uint64_t)setting("DTRUN_SCHEDULES", SCHEDULES);
    int failed = 0;
    print_message("schedules: seeds %llu to %llu\n", (unsigned long long)first, (unsigned long long)(first + count - 1));
    for (uint64_t seed = first; seed < first + count; seed++) {
        const char *why = one_schedule(seed);
        if (why != NULL && failed++ < 400) {
            print_error("seed %llu (%d agents, minimum %d): %s\n", (unsigned long long)seed, 1 + (int)(seed % 8),
                        1 + (int)(seed / 8 % (1 + seed % 8)), why);
        }
    }
    if (waited_in_vain > 2 + (int)count / 100) { /* less than one in a thousand, usually */
        fail_msg("%d of %llu schedules waited in vain", waited_in_vain, (unsigned long long)count);
    }
    if (failed > 0) {
        fail_msg("%d of %llu schedules", failed, (unsigned long long)count);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schedules_hold_the_promises),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
