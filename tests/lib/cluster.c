/* Events in a heap by time; links in a hash table by pair, made when the protocol opens them, so
 * that ten thousand agents fit. Messages are encoded and decoded as on the wire. */
#include "tests/lib/cluster.h"

#include "base/error.h"
#include "base/text.h"
#include "launcher/rounds/witness.h"

#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* two runs of one name train at once no longer than so after the network was whole again */
#define RIVALS_S 16

enum { NONE = -1, FIRST_PORT = 10000, CUTS_MAX = 256, QUEUE = 64 };
#define KILL_S 0.3 /* workers that are told to leave are gone within this */
#define DETECT_EOF_S 0.05
#define AWAIT_S 5   /* how long who ends waits for the others of its run, and for the store */
#define SILENT_S 15 /* without an acknowledgement a link is given up after this */

enum happening {
    H_MESSAGE,
    H_UP,
    H_DOWN,
    H_TICK,
    H_WORKERS_DONE,
    H_WORKERS_GONE,
    H_WORKER_BAD,
    H_FAULT,
    H_START,
    H_AGENT,
    H_STORE,
    H_STORED,
    H_GUARD,
    H_KNOCK
};
struct store_call { /* on its way to the store, or back */
    struct witness_call call;
    struct witness_result result;
    struct dt_text state, beat; /* what is put; then what was read */
    bool busy;
    int node, generation;
    struct store_call *next; /* all of them */
};
struct happen {
    enum happening kind;
    int node, peer; /* agent indices */
    uint64_t peer_id;
    int generation, link;
    int value;
    bool local; /* it comes from no wire */
    struct dt_text bytes;
    struct store_call *call;
    struct happen *next; /* of those to be used again */
};
struct slot {
    double at_s;
    uint64_t order;
    struct happen *what;
};

struct link {
    uint64_t pair; /* smaller index << 32 | larger one */
    bool up;
    int token;                      /* of its newest connection: what belongs to another is late */
    int known[2];                   /* the connection that each side believes in: one that slept
                                     * may write into one that the other has closed */
    double last_s[2], stalled_s[2]; /* FIFO per direction */
    double urgent_s[2];             /* the same of beats, which may overtake all else that waits */
    bool flushed[2];                /* that side closed it in order: what it sent still comes */
};

struct sim_agent {
    uint64_t led_nonce[2], led_term; /* newest run and term that it led; 0: none */
    bool alive, finished, running;   /* running: workers exist */
    double ended_s, look_s;          /* it has its exit code, and may still have to say so; looks
                                      * again then. 0: not so */
    int jobs;                        /* that it was in before */
    int generation, code, run;       /* run: place in sim.runs that the workers belong to */
    struct place place;
    uint64_t placed_run; /* in which it has the order of its hosts `order`; 0: none yet */
    int64_t order;
    int workers_token; /* of the newest workers: older news is stale */
    struct member member;
    struct agent agent;
    struct {
        enum agent_event event;
        int value;
    } queue[QUEUE];
    int queued, taken;
    bool draining, isolated, store_cut, saving, killed;
    bool bereft;                     /* its worker ended because it lost its peers */
    double limit_s, stopped_until_s; /* what the guard knows of its workers; 0: no limit */
    struct witness_end witness;
    uint64_t id;
    int *links; /* places in sim.links */
    int link_count, link_capacity;
};

struct run { /* what all agents of a run must agree on. An agent without memory that reaches
              * nobody may begin a run beside another one */
    uint64_t nonce;
    int round;                  /* newest */
    int running, running_round; /* agents with workers */
    int restarts_used, world_size, group_world_size;
    unsigned char *seen; /* by group rank */
    int seen_count;
    long rank_sum, rank_squares; /* of first ranks and sizes: they cover 0..world_size-1 once */
    bool over;                   /* somebody heard the verdict, with this code */
    int code;
};

static struct {
    struct cluster_options o;
    struct cluster_totals totals;
    uint64_t random;
    double now_s;
    int count, unfinished;
    struct sim_agent *agents;
    struct link *links;
    int link_count, link_capacity, *pairs; /* hash table: place in `links` plus 1 */
    int pair_capacity;
    struct {
        int from, to;
    } cuts[CUTS_MAX]; /* packets from .. to .. do not arrive */
    int cut_count, isolated_count;
    bool halves;
    uint32_t side;
    struct slot *heap;
    size_t heap_count, heap_capacity;
    struct happen *unused;
    uint64_t next_order;
    double delay_s, work_s;
    struct store {
        bool down;
        int64_t revision, state_revision, beat_revision;
        struct dt_text state, beat;
        struct { /* an older copy; state_revision 0: none */
            int64_t revision, state_revision, beat_revision;
            struct dt_text state, beat;
        } copy;
        struct store_call *calls;
    } store;
    int running, running_run, running_round; /* agents with workers, of all runs */
    double stopped_until_s;                  /* the last of all agents' */
    double apart_s;                          /* some host could not be heard by another one, or
                                              * not in time; negative: never */
    int endpoint;                            /* index of the agent that holds it, or NONE; only
                                              * agent 0 may bind it */
    struct run *runs;
    int run_count;
    char broken[256];
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

static void complain(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void complain(const char *fmt, ...)
{
    if (sim.broken[0] == 0) {
        va_list args;
        int used = snprintf(sim.broken, sizeof sim.broken, "at %.3f s: ", sim.now_s);
        va_start(args, fmt);
        (void)vsnprintf(sim.broken + used, sizeof sim.broken - (size_t)used, fmt, args);
        va_end(args);
    }
}

/* ---- time ---- */

static bool before(const struct slot *a, const struct slot *b)
{
    return a->at_s != b->at_s ? a->at_s < b->at_s : a->order < b->order;
}

static void put(double at_s, struct happen *what)
{
    if (sim.heap_count == sim.heap_capacity) {
        sim.heap_capacity = sim.heap_capacity * 2 + 256;
        sim.heap = dt_realloc(sim.heap, sim.heap_capacity * sizeof *sim.heap);
    }
    struct slot s = {at_s, sim.next_order++, what};
    size_t i = sim.heap_count++;
    while (i > 0 && before(&s, &sim.heap[(i - 1) / 2])) {
        sim.heap[i] = sim.heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    sim.heap[i] = s;
}

static struct happen *plan(double at_s, enum happening kind, int node)
{
    struct happen *h = sim.unused;
    if (h != NULL) {
        sim.unused = h->next;
        struct dt_text bytes = h->bytes;
        dt_text_reset(&bytes);
        *h = (struct happen){.bytes = bytes};
    } else {
        h = dt_alloc(sizeof *h);
    }
    h->kind = kind;
    h->node = node;
    h->generation = node >= 0 ? sim.agents[node].generation : 0;
    put(at_s, h);
    return h;
}

static bool take(struct slot *out)
{
    if (sim.heap_count == 0) {
        return false;
    }
    *out = sim.heap[0];
    struct slot last = sim.heap[--sim.heap_count];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= sim.heap_count) {
            break;
        }
        child += child + 1 < sim.heap_count && before(&sim.heap[child + 1], &sim.heap[child]);
        if (!before(&sim.heap[child], &last)) {
            break;
        }
        sim.heap[i] = sim.heap[child];
        i = child;
    }
    if (sim.heap_count > 0) {
        sim.heap[i] = last;
    }
    return true;
}

/* ---- the network ---- */

static uint64_t pair_of(int a, int b)
{
    return a < b ? (uint64_t)a << 32 | (uint64_t)b : (uint64_t)b << 32 | (uint64_t)a;
}

/* Where the pair's link is, or the free entry where it belongs. */
static int *entry_of(uint64_t pair)
{
    uint64_t mask = (uint64_t)sim.pair_capacity - 1, at = (pair * 0x9e3779b97f4a7c15ull >> 32) & mask;
    while (sim.pairs[at] != 0 && sim.links[sim.pairs[at] - 1].pair != pair) {
        at = (at + 1) & mask;
    }
    return &sim.pairs[at];
}

/* Null: these two never had one. */
static struct link *link_of(int a, int b)
{
    int at = *entry_of(pair_of(a, b));
    return at > 0 ? &sim.links[at - 1] : NULL;
}

static void list_link(int agent, int link)
{
    struct sim_agent *a = &sim.agents[agent];
    if (a->link_count == a->link_capacity) {
        a->link_capacity = a->link_capacity * 2 + 8;
        a->links = dt_realloc(a->links, (size_t)a->link_capacity * sizeof *a->links);
    }
    a->links[a->link_count++] = link;
}

static struct link *make_link(int a, int b)
{
    struct link *l = link_of(a, b);
    if (l != NULL) {
        return l;
    }
    if (sim.link_count == sim.link_capacity) {
        sim.link_capacity *= 2;
        sim.links = dt_realloc(sim.links, (size_t)sim.link_capacity * sizeof *sim.links);
    }
    if (2 * (sim.link_count + 1) > sim.pair_capacity) {
        sim.pair_capacity *= 2;
        free(sim.pairs);
        sim.pairs = dt_alloc((size_t)sim.pair_capacity * sizeof *sim.pairs);
        for (int i = 0; i < sim.link_count; i++) {
            *entry_of(sim.links[i].pair) = i + 1;
        }
    }
    *entry_of(pair_of(a, b)) = sim.link_count + 1;
    list_link(a, sim.link_count);
    list_link(b, sim.link_count);
    l = &sim.links[sim.link_count++];
    *l = (struct link){.pair = pair_of(a, b)};
    return l;
}

static bool is_cut(int from, int to)
{
    bool cut = sim.agents[from].isolated || sim.agents[to].isolated ||
               (sim.halves && ((sim.side >> (from % 31) ^ sim.side >> (to % 31)) & 1) != 0);
    for (int i = 0; i < sim.cut_count && !cut; i++) {
        cut = sim.cuts[i].from == from && sim.cuts[i].to == to;
    }
    return cut;
}

static int index_of(uint64_t id)
{
    int i = (int)(id >> 32) - 1;
    return i >= 0 && i < sim.count && sim.agents[i].id == id ? i : NONE;
}

static void note_peer(struct happen *h, int peer, const struct link *l)
{
    h->peer = peer;
    h->peer_id = sim.agents[peer].id;
    h->link = l->token;
}

/* Closes a link from one side; the other learns of it, or never if the packets do not arrive.
 * flush: after all that was sent; otherwise that is lost, as with a reset. */
static void close_link(int from, int to, enum member_end end, bool flush)
{
    struct link *l = link_of(from, to);
    if (l == NULL || !l->up) {
        return;
    }
    double at_s = sim.now_s + DETECT_EOF_S;
    l->up = false;
    l->flushed[from < to] = flush;
    struct happen *h = plan(flush && l->last_s[from < to] > at_s ? l->last_s[from < to] : at_s, H_DOWN, to);
    note_peer(h, from, l);
    h->value = (int)end;
}

/* ---- hooks ---- */

static void post(struct sim_agent *a, enum agent_event event, int value)
{
    assert_true(a->queued - a->taken < QUEUE);
    a->queue[a->queued % QUEUE].event = event;
    a->queue[a->queued++ % QUEUE].value = value;
}

static void sim_send(void *user, uint64_t peer, const struct message *m)
{
    int from = (int)(intptr_t)user, to = index_of(peer);
    if (sim.agents[from].member.options.self.order < 0) {
        sim.agents[from].placed_run = 0; /* it gave its run up, and comes back as a new one at
                                          * most */
    }
    if (sim.o.witness && witness_is(&sim.agents[from].witness, peer)) {
        witness_send(&sim.agents[from].witness, m);
        return;
    }
    struct link *l = to != NONE ? link_of(from, to) : NULL;
    if (l == NULL || !l->up || l->known[from < to] != l->token) {
        return;
    }
    bool urgent = sim.o.overtakes && (m->kind == MESSAGE_BEAT || m->kind == MESSAGE_BEAT_ACK);
    double at_s = sim.now_s + uniform(0.1, 1) * sim.delay_s, *last_s = &l->last_s[from < to],
           *urgent_s = &l->urgent_s[from < to];
    at_s = urgent ? fmax(at_s, *urgent_s) : fmax(at_s, *last_s);
    *urgent_s = urgent ? at_s : *urgent_s;
    *last_s = fmax(at_s, *last_s);
    struct happen *h = plan(at_s, H_MESSAGE, to);
    note_peer(h, from, l);
    message_encode(m, &h->bytes);
    sim.totals.messages++;
    if (sim.o.trace) {
        (void)fprintf(stderr, "%8.3f send %d -> %d %s at %.3f\n", sim.now_s, from, to, message_name(m->kind), at_s);
    }
}

static void sim_connect(void *user, const struct peer_info *to)
{
    int from = (int)(intptr_t)user;
    if (sim.o.witness && (to == NULL || peer_is_witness(to))) {
        witness_ask(&sim.agents[from].witness);
        return;
    }
    int index = to != NULL ? to->port - FIRST_PORT : sim.endpoint; /* whoever listens there now */
    if (index == NONE || index == from || !sim.agents[index].alive || is_cut(from, index) || is_cut(index, from)) {
        return;
    }
    struct link *l = make_link(from, index);
    if (l->up) {
        return;
    }
    l->up = true;
    l->token++;
    double at_s = sim.now_s + uniform(0.1, 1) * (sim.o.link_s > 0 && rnd() % 4 == 0 ? sim.o.link_s : sim.delay_s);
    l->last_s[0] = l->last_s[1] = l->urgent_s[0] = l->urgent_s[1] = at_s;
    l->stalled_s[0] = l->stalled_s[1] = 0;
    l->flushed[0] = l->flushed[1] = false;
    note_peer(plan(at_s, H_UP, from), index, l);
    note_peer(plan(at_s, H_UP, index), from, l);
}

static void sim_drop(void *user, uint64_t peer)
{
    int to = index_of(peer);
    if (sim.o.witness && witness_is(&sim.agents[(intptr_t)user].witness, peer)) {
        witness_drop(&sim.agents[(intptr_t)user].witness);
    }
    if (to != NONE) {
        close_link((int)(intptr_t)user, to, MEMBER_LOST, true);
    }
}

static void sim_say(void *user, const char *line)
{
    if (sim.o.verbose) {
        (void)fprintf(stderr, "%8.3f agent %d: %s\n", sim.now_s, (int)(intptr_t)user, line);
    }
}

/* ---- the store ---- */

static bool store_is_cut(int node)
{
    return sim.store.down || sim.agents[node].isolated || sim.agents[node].store_cut;
}

static double store_delay(void)
{
    return uniform(0.1, 1) * sim.delay_s + (rnd() % 16 == 0 ? uniform(0, 2) : 0);
}

static void copy_text(struct dt_text *to, const struct dt_text *from)
{
    dt_text_reset(to);
    dt_text_add(to, from->size > 0 ? from->data : "", from->size);
}

static void sim_call(void *user, const struct witness_call *call)
{
    int node = (int)(intptr_t)user;
    struct store_call *c = sim.store.calls;
    for (const struct store_call *o = c; o != NULL; o = o->next) {
        /* one at a time */
        assert_false(o->busy && o->node == node && o->generation == sim.agents[node].generation);
    }
    while (c != NULL && c->busy) {
        c = c->next;
    }
    if (c == NULL) {
        c = dt_alloc(sizeof *c);
        c->next = sim.store.calls;
        sim.store.calls = c;
    }
    c->busy = true;
    c->node = node;
    c->generation = sim.agents[node].generation;
    c->call = *call;
    copy_text(&c->state, call->state);
    copy_text(&c->beat, call->beat);
    plan(sim.now_s + store_delay(), H_STORE, node)->call = c;
}

/* At the store, whatever became of who called. A lost answer comes as a timeout, and says
 * nothing about what was done. */
static void reach_store(const struct happen *h)
{
    struct store *s = &sim.store;
    struct store_call *c = h->call;
    c->result = (struct witness_result){.failed = store_is_cut(h->node), .state = &c->state, .beat = &c->beat};
    if (!c->result.failed) {
        bool puts = c->call.put_state || c->call.put_beat;
        c->result.put =
            puts && c->call.state_revision == s->state_revision && c->call.beat_revision == s->beat_revision;
        s->revision += c->result.put;
        if (c->result.put && c->call.put_state) {
            copy_text(&s->state, &c->state);
            s->state_revision = s->revision;
        }
        if (c->result.put && c->call.put_beat) {
            copy_text(&s->beat, &c->beat);
            s->beat_revision = s->revision;
        }
        c->result.revision = s->revision;
        c->result.state_revision = s->state_revision;
        c->result.beat_revision = s->beat_revision;
        copy_text(&c->state, &s->state);
        copy_text(&c->beat, &s->beat);
    }
    struct happen *back = plan(sim.now_s + (c->result.failed ? 3 : store_delay()), H_STORED, h->node);
    back->generation = h->generation;
    back->call = c;
}

void cluster_store_down(bool down)
{
    sim.store.down = down;
}

void cluster_store_cut(int i)
{
    sim.agents[i].store_cut = true;
}

void cluster_store_copy(void)
{
    struct store *s = &sim.store;
    copy_text(&s->copy.state, &s->state);
    copy_text(&s->copy.beat, &s->beat);
    s->copy.revision = s->revision;
    s->copy.state_revision = s->state_revision;
    s->copy.beat_revision = s->beat_revision;
}

void cluster_store_wipe(bool all)
{
    struct store *s = &sim.store;
    copy_text(&s->state, &s->copy.state);
    copy_text(&s->beat, &s->copy.beat);
    s->revision = all ? 1 : s->copy.revision;
    s->state_revision = all ? 0 : s->copy.state_revision;
    s->beat_revision = all ? 0 : s->copy.beat_revision;
}

static int run_of(const struct record *r)
{
    uint64_t nonce = r->nonce[0] * 31 + r->nonce[1];
    for (int i = sim.run_count - 1; i >= 0; i--) {
        if (sim.runs[i].nonce == nonce) {
            return i;
        }
    }
    sim.runs = dt_realloc(sim.runs, (size_t)(sim.run_count + 1) * sizeof *sim.runs);
    sim.runs[sim.run_count] = (struct run){.nonce = nonce};
    return sim.run_count++;
}

/* An agent is told its place in a round. All places of a round fit together, and what was used
 * of the budget is what failed. */
static void check_place(const struct place *p, struct run *run)
{
    if (p->round > run->round) {
        run->seen = dt_realloc(run->seen, (size_t)p->group_world_size);
        memset(run->seen, 0, (size_t)p->group_world_size);
        if (p->restarts_used < run->restarts_used) {
            complain("round %d: %d restarts used, and %d before", p->round, p->restarts_used, run->restarts_used);
        }
        run->round = p->round;
        run->restarts_used = p->restarts_used;
        run->world_size = p->world_size;
        run->group_world_size = p->group_world_size;
        run->seen_count = 0;
        run->rank_sum = run->rank_squares = 0;
        sim.totals.rounds++;
        /* who come in full number do not wait to hear of survivors */
        if (p->round == 1 && p->group_world_size == sim.o.max && sim.running > 0) {
            sim.apart_s = sim.now_s;
        }
    }
    if (p->restarts_used > sim.totals.failures || p->restarts_used > sim.o.restarts) {
        complain("round %d: %d restarts used, but %d workers failed, and %d are allowed", p->round, p->restarts_used,
                 sim.totals.failures, sim.o.restarts);
    }
    if (p->round < run->round) {
        return; /* late: it will hear that the round is over */
    }
    if (p->world_size != run->world_size || p->group_world_size != run->group_world_size || p->group_rank < 0 ||
        p->group_rank >= run->group_world_size || run->seen[p->group_rank] || p->group_world_size < sim.o.min ||
        p->group_world_size > sim.o.max || p->rank < 0 || p->rank + p->local_world_size > p->world_size) {
        complain("round %d: group rank %d of %d, rank %d of %d does not fit the others' places", p->round,
                 p->group_rank, p->group_world_size, p->rank, p->world_size);
        return;
    }
    run->seen[p->group_rank] = 1;
    run->seen_count++;
    long first = p->rank, end = p->rank + p->local_world_size;
    run->rank_sum += end - first;
    run->rank_squares += end * end - first * first;
    long all = run->world_size;
    if (run->seen_count == run->group_world_size && (run->rank_sum != all || run->rank_squares != all * all)) {
        complain("round %d: the ranks do not cover the world of %ld", p->round, all);
    }
}

/* Who was in a round keeps its order in all later ones of the run, so that ranks move up at
 * most. */
static void check_order(struct sim_agent *a, uint64_t nonce)
{
    int64_t order = a->member.options.self.order;
    if (order < 0 || (a->placed_run == nonce && a->order != order)) {
        complain("agent %d: round %d: its order is %lld, and was %lld before", (int)(a - sim.agents), a->place.round,
                 (long long)order, (long long)a->order);
    }
    a->placed_run = nonce;
    a->order = order;
}

/* Who hears that a run is over hears the same as everybody else, and no other round of it begins
 * any more. */
static void check_verdict(int i, int code, int ended)
{
    struct run *run = &sim.runs[ended];
    if (run->over && run->code != code) {
        complain("agent %d: the job ended with %d, and elsewhere with %d", i, code, run->code);
    }
    run->over = run->round > 0; /* who waited for a first round and was asked to stop ends for
                                 * those who were there */
    run->code = code;
}

static void sim_act(void *user, const struct action *a, const struct record *record, const char *why)
{
    static const enum agent_event events[] = {
        [ACTION_START] = AGENT_ON_START,   [ACTION_END] = AGENT_ON_END,     [ACTION_STOP] = AGENT_ON_STOP,
        [ACTION_PAUSE] = AGENT_ON_PAUSE,   [ACTION_LEAVE] = AGENT_ON_LEAVE, [ACTION_FINISH] = AGENT_ON_VERDICT,
        [ACTION_REFUSE] = AGENT_ON_VERDICT};
    struct sim_agent *agent = &sim.agents[(intptr_t)user];
    if (sim.o.verbose) {
        static const char *const names[] = {
            [ACTION_START] = "START", [ACTION_END] = "END",       [ACTION_STOP] = "STOP",    [ACTION_PAUSE] = "PAUSE",
            [ACTION_LEAVE] = "LEAVE", [ACTION_FINISH] = "FINISH", [ACTION_REFUSE] = "REFUSE"};
        (void)fprintf(stderr, "%8.3f agent %d: %s round %d code %d run %llx %s\n", sim.now_s, (int)(intptr_t)user,
                      names[a->kind], a->place.round, a->code, (unsigned long long)record->nonce[0],
                      why != NULL ? why : "");
    }
    if (a->kind == ACTION_START) {
        if (agent->running) {
            complain("agent %d: round %d begins while workers of round %d run", (int)(intptr_t)user, a->place.round,
                     agent->place.round);
        }
        agent->place = a->place;
        agent->run = run_of(record);
        /* a late START of the last one has the end behind it */
        if (sim.runs[agent->run].over && a->place.round > sim.runs[agent->run].round) {
            complain("agent %d: round %d begins after the job's end", (int)(intptr_t)user, a->place.round);
        }
        check_place(&a->place, &sim.runs[agent->run]);
        check_order(agent, sim.runs[agent->run].nonce);
    }
    if ((a->kind == ACTION_FINISH || a->kind == ACTION_REFUSE) && agent->member.verdict) {
        check_verdict((int)(intptr_t)user, a->code, run_of(record));
    }
    post(agent, events[a->kind], a->code);
    (void)plan(sim.now_s, H_AGENT, (int)(intptr_t)user);
}

/* ---- agents ---- */

static bool is_apart(void)
{
    bool apart = sim.halves || sim.cut_count > 0 || sim.isolated_count > 0;
    for (int i = 0; i < sim.count && !apart && sim.now_s < sim.stopped_until_s; i++) {
        apart = sim.now_s < sim.agents[i].stopped_until_s;
    }
    return apart;
}

static void set_isolated(int i, bool isolated)
{
    sim.isolated_count += (isolated ? 1 : 0) - (sim.agents[i].isolated ? 1 : 0);
    sim.agents[i].isolated = isolated;
}

/* And of one run at a time, unless hosts of the other one could not be heard, now or until just
 * now, or had no time to be. */
/* A term of a run has one leader, whoever of its voters has died since. */
static void check_term(int i)
{
    struct sim_agent *a = &sim.agents[i];
    const struct record *r = &a->member.record;
    if (a->member.role != MEMBER_LEADING ||
        (a->led_term == r->term && memcmp(a->led_nonce, r->nonce, sizeof r->nonce) == 0)) {
        return;
    }
    for (int k = 0; k < sim.count; k++) {
        if (k != i && sim.agents[k].led_term == r->term &&
            memcmp(sim.agents[k].led_nonce, r->nonce, sizeof r->nonce) == 0) {
            complain("agent %d leads in term %llu, as agent %d did", i, (unsigned long long)r->term, k);
        }
    }
    a->led_term = r->term;
    memcpy(a->led_nonce, r->nonce, sizeof r->nonce);
}
static void check_rivals(void)
{
    int training = 0;
    if (is_apart()) {
        sim.apart_s = sim.now_s;
    }
    for (int i = 0; i < sim.run_count; i++) {
        training += sim.runs[i].running > 0;
    }
    if (training > 1 && !sim.o.witness && (sim.apart_s < 0 || sim.now_s > sim.apart_s + RIVALS_S)) {
        complain("%d runs train at once, and %s", training,
                 sim.apart_s < 0 ? "all hosts could reach each other" : "all hosts can reach each other again");
    }
}

/* Workers of one round at a time, in each run. */
static void set_running(int i, bool running)
{
    struct sim_agent *a = &sim.agents[i];
    struct run *run = &sim.runs[a->run];
    if (a->running == running) {
        return;
    }
    a->running = running;
    run->running += running ? 1 : -1;
    if (running && run->running > 1 && run->running_round != a->place.round) {
        complain("two rounds train at once: %d (agent %d) and %d", a->place.round, i, run->running_round);
    }
    run->running_round = running ? a->place.round : run->running_round;
    sim.running += running ? 1 : -1;
    if (sim.o.witness && !sim.o.wipes && running && sim.running > 1 &&
        (sim.running_run != a->run || sim.running_round != a->place.round)) {
        complain("two rounds train at once: %d of run %d (agent %d) and %d of run %d", a->place.round, a->run, i,
                 sim.running_round, sim.running_run);
    }
    check_rivals();
    sim.running_run = running ? a->run : sim.running_run;
    sim.running_round = running ? a->place.round : sim.running_round;
}

static void workers_gone_soon(int i, double in_s)
{
    struct sim_agent *a = &sim.agents[i];
    in_s = sim.o.stubborn && rnd() % 3 == 0 ? uniform(0, 40) : in_s;
    plan(sim.now_s + (a->running ? in_s : 0), H_WORKERS_GONE, i)->value = a->workers_token;
}

static void do_one(int i, enum agent_do what)
{
    static const enum event_kind told[] = {[AGENT_DO_TELL_JOIN] = EVENT_JOIN, [AGENT_DO_TELL_FAILED] = EVENT_FAILED,
                                           [AGENT_DO_TELL_DONE] = EVENT_DONE, [AGENT_DO_TELL_STOPPED] = EVENT_STOPPED,
                                           [AGENT_DO_TELL_STOP] = EVENT_STOP, [AGENT_DO_TELL_KILL] = EVENT_STOP};
    struct sim_agent *a = &sim.agents[i];
    switch (what) {
    case AGENT_DO_SPAWN:
        a->saving = a->killed = a->bereft = false;
        set_running(i, true);
        a->workers_token++;
        plan(sim.now_s + sim.work_s * uniform(0.9, 1.1), H_WORKERS_DONE, i)->value = a->workers_token;
        if (sim.o.stubborn) {
            plan(sim.now_s, H_GUARD, i)->value = a->workers_token;
        }
        return;
    case AGENT_DO_ORDER_ABORT:
    case AGENT_DO_TERM:
    case AGENT_DO_KILL:
        a->saving = false;
        a->killed = a->killed || what == AGENT_DO_KILL;
        workers_gone_soon(i, uniform(0, KILL_S));
        return;
    case AGENT_DO_ORDER_STOP:
        a->saving = sim.o.save;
        workers_gone_soon(i, uniform(0, KILL_S));
        return;
    case AGENT_DO_GRACE:
        return;
    case AGENT_DO_EXIT:
        a->ended_s = sim.now_s;
        a->code = a->agent.code;
        return;
    case AGENT_DO_TELL_JOIN:
    case AGENT_DO_TELL_FAILED:
    case AGENT_DO_TELL_DONE:
    case AGENT_DO_TELL_STOPPED:
    case AGENT_DO_TELL_STOP:
    case AGENT_DO_TELL_KILL:
        break;
    }
    struct event e = {.kind = told[what],
                      .round = a->place.round,
                      .local_world_size = 1 + i % 3,
                      .order = -1,
                      .role = "default",
                      .failure = a->agent.failure,
                      .code = what == AGENT_DO_TELL_STOP   ? 128 + SIGTERM
                              : what == AGENT_DO_TELL_KILL ? COORDINATOR_KILL
                                                           : a->agent.failure_code,
                      .saved = agent_has_saved(&a->agent),
                      .weak = what == AGENT_DO_TELL_FAILED && a->bereft,
                      .step = (int64_t)(sim.now_s * 10),
                      .saved_step = -1};
    member_event(&a->member, &e, sim.now_s);
}

static void drain(int i)
{
    struct sim_agent *a = &sim.agents[i];
    if (a->draining) {
        return;
    }
    a->draining = true;
    while (a->taken < a->queued && a->ended_s == 0) {
        int at = a->taken++ % QUEUE;
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

/* Ends: its kernel closes its links. */
static void leave(int i, bool flush)
{
    struct sim_agent *a = &sim.agents[i];
    for (int k = 0; k < a->link_count; k++) {
        uint64_t pair = sim.links[a->links[k]].pair;
        int low = (int)(pair >> 32), high = (int)(uint32_t)pair;
        close_link(i, low == i ? high : low, flush ? MEMBER_ENDED : MEMBER_RESET, flush);
    }
    if (a->running) {
        set_running(i, false);
    }
    a->alive = false;
    sim.endpoint = sim.endpoint == i ? NONE : sim.endpoint;
}

/* It waits for the others of its run, and for the store, as nodes.c does. */
static void end_agent(int i)
{
    struct sim_agent *a = &sim.agents[i];
    bool wait = sim.o.witness && sim.now_s < a->ended_s + AWAIT_S && !member_end_run(&a->member, sim.now_s);
    wait = wait || (sim.o.witness && a->witness.busy && sim.now_s < a->ended_s + 2 * AWAIT_S);
    if (wait) {
        if (sim.now_s >= a->look_s) {
            a->look_s = sim.now_s + 0.1;
            (void)plan(a->look_s, H_AGENT, i);
        }
        return;
    }
    a->finished = ++a->jobs >= sim.o.jobs;
    member_leave(&a->member);
    leave(i, true);
    if (a->finished) {
        sim.unfinished--;
    } else {
        (void)plan(sim.now_s + uniform(0.1, 10), H_START, i);
    }
}

/* Nobody listens where an agent of this machine did. */
static void sim_knock(void *user, const struct peer_info *at)
{
    int from = (int)(intptr_t)user, to = at->port - FIRST_PORT;
    struct happen *h = plan(sim.now_s + DETECT_EOF_S, H_KNOCK, from);
    h->peer = to;
    h->peer_id = at->id;
}

static void start_agent(int i)
{
    struct sim_agent *a = &sim.agents[i];
    member_clear(&a->member);
    witness_clear(&a->witness);
    *a = (struct sim_agent){.generation = a->generation + 1,
                            .workers_token = a->workers_token + 1,
                            .alive = true,
                            .jobs = a->jobs,
                            .isolated = a->isolated,
                            .store_cut = a->store_cut,
                            .links = a->links,
                            .link_count = a->link_count,
                            .link_capacity = a->link_capacity};
    a->id = (uint64_t)(i + 1) << 32 | (uint64_t)a->generation;
    static struct member_options o;
    o = (struct member_options){.rounds = {.nodes_min = sim.o.min,
                                           .nodes_max = sim.o.max,
                                           .restarts_max = sim.o.restarts,
                                           .join_timeout_s = sim.o.join_timeout_s > 0 ? sim.o.join_timeout_s : 600,
                                           .last_call_s = sim.o.last_call_s,
                                           .leave = sim.o.signals,
                                           .save = sim.o.save},
                                .beat_s = 1,
                                .lease_s = 10,
                                .dead_s = 15,
                                .witness_s = sim.o.witness ? 15 * WITNESS_S : 0,
                                .retry_s = 0.5,
                                .preference = i % 3 == 0 ? -1 : i * 7 % 5,
                                .self = {.id = a->id,
                                         .order = -1,
                                         .pid = 1 + i,
                                         .port = FIRST_PORT + i,
                                         .machine = sim.o.filters || sim.o.machines ? 1 + (uint64_t)i : 1},
                                .nonce = {a->id, a->id * 0x9e3779b97f4a7c15ull}};
    (void)snprintf(o.self.host, sizeof o.self.host, "h%d", i);
    (void)snprintf(o.self.address, sizeof o.self.address, "10.0.%d.%d", i / 256, i % 256);
    struct member_hooks hooks = {.user = (void *)(intptr_t)i,
                                 .send = sim_send,
                                 .act = sim_act,
                                 .connect = sim_connect,
                                 .drop = sim_drop,
                                 .say = sim_say};
    member_init(&a->member, &o, &hooks);
    if (sim.o.verbose) {
        (void)fprintf(stderr, "%8.3f agent %d: started\n", sim.now_s, i);
    }
    agent_init(&a->agent, &(struct agent_options){.bundled = sim.o.save});
    if (sim.o.witness) {
        witness_open(&a->witness, &a->member,
                     &(struct witness_options){.dead_s = 15,
                                               .forsaken_s = 15 * WITNESS_FORSAKEN,
                                               .linger_s = sim.o.stubborn ? 40 : 1,
                                               .beat_every_s = 2.5,
                                               .user = (void *)(intptr_t)i,
                                               .call = sim_call,
                                               .say = sim_say,
                                               .knock = sim_knock});
        member_seek(&a->member, sim.now_s);
    } else if (i == 0 && sim.endpoint == NONE) {
        sim.endpoint = i;
        member_lead(&a->member, sim.now_s);
    } else {
        member_seek(&a->member, sim.now_s);
    }
    struct event e = {.kind = EVENT_JOIN, .local_world_size = 1 + i % 3, .order = -1, .role = "default"};
    member_event(&a->member, &e, sim.now_s);
    (void)plan(sim.now_s, H_TICK, i);
}

/* ---- faults ---- */

/* A process that dies takes its workers along (parent-death signal). */
void cluster_kill(int i, double again_s)
{
    struct sim_agent *a = &sim.agents[i];
    if (!a->alive || a->ended_s > 0) {
        return;
    }
    sim.totals.kills++;
    if (sim.o.verbose) {
        (void)fprintf(stderr, "%8.3f agent %d: killed\n", sim.now_s, i);
    }
    /* to another host a process seldom ends by a reset */
    leave(i, sim.o.filters ? sim.totals.kills % 8 != 3 : sim.totals.kills % 2 == 0);
    member_clear(&a->member);
    if (again_s >= 0) {
        (void)plan(sim.now_s + again_s, H_START, i);
    } else {
        a->finished = true;
        a->code = NONE;
        sim.unfinished--;
    }
}

void cluster_isolate(int i)
{
    set_isolated(i, true);
}

void cluster_cut(int a, int b)
{
    assert_true(sim.cut_count + 2 <= CUTS_MAX);
    sim.cuts[sim.cut_count].from = sim.cuts[sim.cut_count + 1].to = a;
    sim.cuts[sim.cut_count].to = sim.cuts[sim.cut_count + 1].from = b;
    sim.cut_count += 2;
}

void cluster_part(int a, int b)
{
    struct link *l = link_of(a, b);
    cluster_cut(a, b);
    if (l == NULL || !l->up) {
        return;
    }
    for (int side = 0; side < 2; side++) {
        struct happen *h = plan(sim.now_s, H_DOWN, side == 0 ? a : b);
        note_peer(h, side == 0 ? b : a, l);
        h->value = MEMBER_LOST;
        h->local = true;
    }
    l->up = l->flushed[0] = l->flushed[1] = false;
}

void cluster_split(uint32_t side)
{
    sim.halves = true;
    sim.side = side;
}

void cluster_heal(void)
{
    sim.apart_s = is_apart() ? sim.now_s : sim.apart_s;
    for (int i = 0; i < sim.count; i++) {
        set_isolated(i, false);
    }
    for (int i = 0; i < sim.count; i++) {
        sim.agents[i].store_cut = false;
    }
    sim.cut_count = 0;
    sim.halves = false;
    sim.store.down = false;
}

void cluster_fail_worker(int i)
{
    if (sim.agents[i].alive && sim.agents[i].running && (sim.o.failures || sim.totals.failures < sim.o.restarts)) {
        sim.totals.failures++;
        plan(sim.now_s, H_WORKER_BAD, i)->value = sim.agents[i].workers_token;
    }
}

void cluster_lose_peers(int i)
{
    if (sim.agents[i].alive && sim.agents[i].running) {
        sim.totals.failures++;
        sim.agents[i].bereft = true;
        plan(sim.now_s, H_WORKER_BAD, i)->value = sim.agents[i].workers_token;
    }
}

static void ask(int i, enum agent_event how)
{
    if (sim.agents[i].alive && sim.agents[i].ended_s == 0) {
        post(&sim.agents[i], how, SIGTERM);
        (void)plan(sim.now_s, H_AGENT, i);
    }
}

void cluster_signal(int i)
{
    ask(i, AGENT_ON_SIGNAL);
}

void cluster_insist(int i)
{
    ask(i, AGENT_ON_INSIST);
}

/* A filter at one host, or at both, answers with resets for the other one: links are reset,
 * ports refuse, and nobody is dead. Who is not told keeps an end that leads nowhere, until its
 * kernel gives it up. */
static void filter(int asked, int told, bool both)
{
    struct link *l = asked != told ? link_of(asked, told) : NULL;
    if (l == NULL || !l->up || sim.cut_count + 2 > CUTS_MAX) {
        return;
    }
    for (int side = 0; side < 2; side++) {
        int at = side == 0 ? told : asked, from = side == 0 ? asked : told;
        bool hears = side == 0 || both;
        if (hears) {
            sim.cuts[sim.cut_count].from = at;
            sim.cuts[sim.cut_count++].to = from;
        }
        struct happen *h = plan(sim.now_s + (hears ? DETECT_EOF_S : SILENT_S), H_DOWN, at);
        note_peer(h, from, l);
        h->value = hears ? MEMBER_RESET : MEMBER_LOST;
        h->local = true;
    }
    l->up = l->flushed[0] = l->flushed[1] = false;
}

static void filter_fault(int i, int k)
{
    bool both = rnd() % 2 == 0, all = rnd() % 2 == 0;
    if (sim.o.verbose) {
        (void)fprintf(stderr, "%8.3f fault: filter %s %d %d%s\n", sim.now_s, both ? "between" : "at", i, k,
                      all ? " and all others" : "");
    }
    for (int other = 0; other < sim.count; other++) {
        if (all || other == k) {
            filter(i, other, both);
        }
    }
}

static void plan_fault(void)
{
    if (sim.now_s < sim.o.faults_until_s) {
        (void)plan(sim.now_s + uniform(0.05, sim.o.fault_every_s), H_FAULT, NONE);
    } else {
        cluster_heal();
    }
}

/* What is wrong between agents and the store. */
static void store_fault(void)
{
    int i = (int)(rnd() % (uint32_t)sim.count), what = (int)(rnd() % (sim.o.wipes ? 5 : 4));
    if (sim.o.verbose) {
        static const char *const names[] = {"down", "cut from", "cut from", "up", "wiped"};
        (void)fprintf(stderr, "%8.3f fault: store %s %d\n", sim.now_s, names[what], i);
    }
    if (what == 1 || what == 2) {
        sim.agents[i].store_cut = true;
    } else if (what == 4) {
        cluster_store_wipe(true);
    } else {
        sim.store.down = what == 0;
    }
    plan_fault();
}

void cluster_stop(int i, double for_s)
{
    if (sim.now_s >= sim.agents[i].stopped_until_s) {
        sim.agents[i].stopped_until_s = sim.now_s + for_s;
        sim.stopped_until_s = sim.now_s + for_s > sim.stopped_until_s ? sim.now_s + for_s : sim.stopped_until_s;
    }
}

/* One host, and every other one of the ways between two, is whole again. */
static void heal_some(int i)
{
    int kept = 0;
    sim.apart_s = is_apart() ? sim.now_s : sim.apart_s;
    set_isolated(i, false);
    for (int k = 0; k < sim.cut_count; k++) {
        if (rnd() % 2 == 0) {
            sim.cuts[kept++] = sim.cuts[k];
        }
    }
    sim.cut_count = kept;
}

/* What is wrong with whole hosts: their agents sleep. */
static void sleep_fault(void)
{
    int i = (int)(rnd() % (uint32_t)sim.count), k = (int)(rnd() % (uint32_t)sim.count);
    uint32_t what = rnd() % 4;
    double for_s = rnd() % 2 == 0 ? uniform(1, 40) : uniform(20, 200);
    if (sim.o.verbose) {
        (void)fprintf(stderr, "%8.3f fault: %s %d %d\n", sim.now_s,
                      what == 0   ? "some heals"
                      : what == 1 ? "two sleep"
                                  : "sleeps",
                      i, k);
    }
    if (what == 0) {
        heal_some(i);
    } else {
        cluster_stop(i, for_s);
    }
    if (what == 1) {
        cluster_stop(k, for_s * uniform(0.9, 1.1));
    }
    plan_fault();
}

/* What is wrong between two hosts, and what workers make of it. Or theirs alone. */
static void peers_fault(void)
{
    int i = (int)(rnd() % (uint32_t)sim.count), k = (int)(rnd() % (uint32_t)sim.count);
    bool cut = rnd() % 4 != 0 && i != k && sim.cut_count + 2 <= CUTS_MAX;
    if (sim.o.verbose) {
        (void)fprintf(stderr, "%8.3f fault: %s %d %d\n", sim.now_s, cut ? "cut" : "loses its peers", i, k);
    }
    if (cut) {
        cluster_part(i, k);
    }
    cluster_lose_peers(i);
    plan_fault();
}

static void fault(void)
{
    if (sim.o.peers && rnd() % 2 == 0) {
        peers_fault();
        return;
    }
    if (sim.o.witness && rnd() % 3 == 0) {
        store_fault();
        return;
    }
    if (sim.o.sleeps && rnd() % 2 == 0) {
        sleep_fault();
        return;
    }
    int i = (int)(rnd() % (uint32_t)sim.count), k = (int)(rnd() % (uint32_t)sim.count),
        what = (int)(rnd() % (sim.o.stubborn  ? 11
                              : sim.o.signals ? 9
                                              : 8));
    if (sim.o.whole) {
        static const int harmless[] = {0, 4, 5};
        what = harmless[what % 3];
    }
    if (sim.o.verbose) {
        static const char *const names[] = {"kill", "isolate", "one direction", "halves", "worker fails", "reset",
                                            "heal", "heal",    "signal",        "stop",   "stop"};
        (void)fprintf(stderr, "%8.3f fault: %s %d %d\n", sim.now_s, names[what], i, k);
    }
    if (sim.o.filters && what == 6) {
        filter_fault(i, k);
        plan_fault();
        return;
    }
    switch (what) {
    case 0: /* the process is killed and comes back later */
        if (sim.agents[i].alive && sim.agents[i].ended_s == 0) {
            cluster_kill(i, uniform(0.1, 30));
        }
        break;
    case 1:
        cluster_isolate(i);
        break;
    case 2: /* one direction between two */
        if (i != k && sim.cut_count < CUTS_MAX) {
            sim.cuts[sim.cut_count].from = i;
            sim.cuts[sim.cut_count++].to = k;
        }
        break;
    case 3: /* two halves */
        cluster_heal();
        sim.side = rnd();
        sim.halves = true;
        break;
    case 4:
        cluster_fail_worker(i);
        break;
    case 5: /* a link is reset: both notice, nobody is dead */
        if (i != k && link_of(i, k) != NULL && link_of(i, k)->up) {
            close_link(i, k, MEMBER_LOST, false);
            note_peer(plan(sim.now_s + DETECT_EOF_S, H_DOWN, i), k, link_of(i, k));
        }
        break;
    case 8: /* the host is asked to stop */
        if (sim.o.signals) {
            cluster_signal(i);
        }
        break;
    case 9:
    case 10: /* the agent's process is stopped; its guard is not */
        cluster_stop(i, uniform(1, 40));
        break;
    default:
        cluster_heal();
    }
    plan_fault();
}

/* ---- what happens ---- */

/* True: h waits for TCP to try again until the link is given up; what comes behind it waits as
 * well. */
static bool stalls(struct happen *h, struct link *l)
{
    bool from_low = h->peer < h->node;
    double *stalled_s = &l->stalled_s[from_low], *last_s = &l->last_s[from_low];
    if (sim.now_s >= *stalled_s && is_cut(h->peer, h->node)) {
        *stalled_s = sim.now_s + 0.5;
    }
    if (sim.now_s >= *stalled_s) {
        return false;
    }
    *last_s = *stalled_s > *last_s ? *stalled_s : *last_s;
    put(*stalled_s, h);
    return true;
}

/* True: what matters most has come, and its agent is stopped before it reads it. */
static bool sleeps_on(const struct happen *h)
{
    enum message_kind kind = h->bytes.size > 1 ? (enum message_kind)h->bytes.data[1] : MESSAGE_BEAT;
    bool beat = kind == MESSAGE_BEAT && sim.agents[h->node].member.role == MEMBER_SEEKING;
    bool matters =
        beat || kind == MESSAGE_ACTION || kind == MESSAGE_PREPARE || kind == MESSAGE_ACK || kind == MESSAGE_VOTE;
    if (!sim.o.sleeps || sim.now_s >= sim.o.faults_until_s || !matters || rnd() % 64 != 0) {
        return false;
    }
    cluster_stop(h->node, uniform(5, 60));
    return true;
}

static void hear(struct sim_agent *a, const struct happen *h)
{
    static struct message m;
    struct dt_error err;
    if (message_decode(&m, h->bytes.data, h->bytes.size, &err) != 0 ||
        member_check(&a->member, &m, sim.now_s, &err) != 0) {
        fail_msg("%s", err.text);
    }
    if (sim.o.trace) {
        const struct record *r = &m.record;
        (void)fprintf(
            stderr,
            "%8.3f %d -> %d %s term %llu granted %d round %d; record: term %llu round %d committed %d finished %d\n",
            sim.now_s, h->peer, h->node, message_name(m.kind), (unsigned long long)m.term, m.granted, m.round,
            (unsigned long long)r->term, r->round, r->committed, r->finished);
    }
    member_message(&a->member, h->peer_id, &m, sim.now_s);
    check_term(h->node);
}

static void tick(int i)
{
    double next_s = member_tick(&sim.agents[i].member, sim.now_s);
    check_term(i);
    check_rivals();
    if (sim.o.witness) {
        witness_tick(&sim.agents[i].witness, sim.now_s);
    }
    next_s = next_s < sim.now_s + 0.01 ? sim.now_s + 0.01 : next_s > sim.now_s + 1 ? sim.now_s + 1 : next_s;
    (void)plan(next_s, H_TICK, i);
}

/* The guard: workers do not outlive what the agent said last. */
static bool guards(struct sim_agent *a, struct happen *h)
{
    if (h->value != a->workers_token || !a->running) {
        return false;
    }
    if (a->limit_s > sim.now_s || a->limit_s == 0) {
        put(a->limit_s > sim.now_s ? a->limit_s : sim.now_s + 1, h);
        return true;
    }
    if (sim.o.verbose) {
        (void)fprintf(stderr, "%8.3f agent %d: its guard ends the workers\n", sim.now_s, h->node);
    }
    set_running(h->node, false);
    sim.totals.failures++;
    plan(sim.now_s, H_WORKER_BAD, h->node)->value = a->workers_token;
    plan(sim.now_s, H_WORKERS_GONE, h->node)->value = a->workers_token;
    return false;
}

/* True: h is planned again. */
static bool handle(struct happen *h)
{
    struct sim_agent *a = h->node >= 0 ? &sim.agents[h->node] : NULL;
    if (a == NULL) {
        fault();
        return false;
    }
    if (h->kind == H_START) {
        if (!a->alive && !a->finished) {
            start_agent(h->node);
        }
        return false;
    }
    if (h->kind == H_STORE) {
        reach_store(h);
        return false;
    }
    bool gone = !a->alive || a->generation != h->generation;
    if (h->kind == H_STORED) {
        h->call->result.failed = h->call->result.failed || store_is_cut(h->node);
        h->call->busy = !gone;
    }
    if (gone) {
        return false;
    }
    if (h->kind == H_GUARD) {
        return guards(a, h);
    }
    if (sim.now_s < a->stopped_until_s) {
        put(a->stopped_until_s, h);
        return true;
    }
    if (h->kind == H_MESSAGE || h->kind == H_UP || h->kind == H_DOWN) {
        struct link *l = link_of(h->node, h->peer);
        if (l->token != h->link || (h->kind != H_DOWN && !l->up && !l->flushed[h->peer < h->node])) {
            return false;
        }
        if (!h->local && stalls(h, l)) {
            return true;
        }
        if (h->kind == H_MESSAGE && sleeps_on(h)) {
            put(a->stopped_until_s, h);
            return true;
        }
    }
    switch (h->kind) {
    case H_UP:
        link_of(h->node, h->peer)->known[h->node < h->peer] = h->link;
        /* of a link before, if its end was not seen yet */
        member_down(&a->member, h->peer_id, MEMBER_LOST, sim.now_s);
        member_up(&a->member, &sim.agents[h->peer].member.options.self, sim.now_s);
        break;
    case H_DOWN:
        member_down(&a->member, h->peer_id, (enum member_end)h->value, sim.now_s);
        break;
    case H_MESSAGE:
        hear(a, h);
        break;
    case H_TICK:
        tick(h->node);
        break;
    case H_WORKERS_DONE:
    case H_WORKERS_GONE:
    case H_WORKER_BAD:
        if (h->value != a->workers_token || (h->kind == H_WORKERS_DONE && !a->running)) {
            return false;
        }
        if (h->kind == H_WORKER_BAD) {
            post(a, AGENT_ON_WORKER_BAD, 1);
            break;
        }
        if (h->kind == H_WORKERS_DONE) {
            post(a, AGENT_ON_WORKER_OK, 0);
        } else if (a->saving && a->running) {
            post(a, AGENT_ON_WORKER_75, 0);
        } else if (a->killed && a->running) {
            post(a, AGENT_ON_WORKER_BAD, -9);
        }
        if (a->running) {
            set_running(h->node, false);
        }
        a->workers_token++;
        post(a, AGENT_ON_GONE, 0);
        break;
    case H_KNOCK:
        if (!sim.agents[h->peer].alive) {
            witness_refused(&a->witness, h->peer_id, sim.now_s);
        }
        break;
    case H_STORED:
        h->call->busy = false;
        witness_answered(&a->witness, &h->call->result, sim.now_s);
        break;
    case H_AGENT:
    case H_FAULT:
    case H_START:
    case H_STORE:
    case H_GUARD:
        break;
    }
    drain(h->node);
    a->limit_s = member_workers_until(&a->member, sim.now_s);
    if (a->ended_s > 0) {
        end_agent(h->node);
    }
    return false;
}

static bool run(double until_s, long steps)
{
    struct slot s;
    while (steps-- > 0 && sim.unfinished > 0 && sim.broken[0] == 0 && sim.now_s <= until_s && take(&s)) {
        sim.totals.now_s = sim.now_s = s.at_s;
        sim.totals.steps++;
        if (!handle(s.what)) {
            s.what->next = sim.unused;
            sim.unused = s.what;
        }
    }
    sim.totals.links = sim.link_count;
    return sim.unfinished == 0;
}

bool cluster_run(double until_s)
{
    return run(until_s, LONG_MAX);
}

bool cluster_run_steps(long count)
{
    return run(1e9, count);
}

/* ---- begin and end ---- */

void cluster_open(const struct cluster_options *options)
{
    memset(&sim, 0, sizeof sim);
    sim.o = *options;
    sim.o.fault_every_s = sim.o.fault_every_s > 0 ? sim.o.fault_every_s : 12;
    sim.o.last_call_s = sim.o.last_call_s > 0 ? sim.o.last_call_s : 8;
    sim.o.verbose = sim.o.verbose || getenv("DTRUN_VERBOSE") != NULL;
    sim.o.trace = sim.o.trace || getenv("DTRUN_TRACE") != NULL;
    sim.random = options->seed * 0x9e3779b97f4a7c15ull + 12345;
    (void)rnd();
    sim.count = sim.unfinished = options->count;
    sim.endpoint = NONE;
    sim.apart_s = -1;
    sim.agents = dt_alloc((size_t)sim.count * sizeof *sim.agents);
    sim.link_capacity = 16;
    sim.links = dt_alloc((size_t)sim.link_capacity * sizeof *sim.links);
    sim.pair_capacity = 64;
    sim.pairs = dt_alloc((size_t)sim.pair_capacity * sizeof *sim.pairs);
    sim.delay_s = uniform(0.001, 0.2);
    sim.work_s = uniform(2, 20);
    sim.work_s = options->work_s > 0 ? options->work_s : sim.work_s;
    for (int i = 0; i < sim.count; i++) {
        (void)plan(uniform(0, sim.o.start_s), H_START, i);
    }
    if (sim.o.faults_until_s > 0) {
        (void)plan(uniform(0, 20), H_FAULT, NONE);
    }
}

void cluster_close(void)
{
    struct slot s;
    while (take(&s)) {
        dt_text_clear(&s.what->bytes);
        free(s.what);
    }
    for (struct happen *h; (h = sim.unused) != NULL;) {
        sim.unused = h->next;
        dt_text_clear(&h->bytes);
        free(h);
    }
    for (int i = 0; i < sim.count; i++) {
        member_clear(&sim.agents[i].member);
        witness_clear(&sim.agents[i].witness);
        free(sim.agents[i].links);
    }
    for (int i = 0; i < sim.run_count; i++) {
        free(sim.runs[i].seen);
    }
    for (struct store_call *c; (c = sim.store.calls) != NULL;) {
        sim.store.calls = c->next;
        dt_text_clear(&c->state);
        dt_text_clear(&c->beat);
        free(c);
    }
    dt_text_clear(&sim.store.state);
    dt_text_clear(&sim.store.beat);
    dt_text_clear(&sim.store.copy.state);
    dt_text_clear(&sim.store.copy.beat);
    free(sim.runs);
    free(sim.agents);
    free(sim.links);
    free(sim.pairs);
    free(sim.heap);
    memset(&sim, 0, sizeof sim);
}

const char *cluster_broken(void)
{
    return sim.broken[0] != 0 ? sim.broken : NULL;
}

const struct cluster_totals *cluster_totals(void)
{
    return &sim.totals;
}

struct cluster_agent cluster_agent(int i)
{
    const struct sim_agent *a = &sim.agents[i];
    return (struct cluster_agent){a->alive, a->finished, a->running, a->code, &a->member, a->agent.state};
}

void cluster_show_leaders(void)
{
    for (int i = 0; i < sim.count; i++) {
        const struct member *m = &sim.agents[i].member;
        if (!sim.agents[i].alive || m->role != MEMBER_LEADING) {
            continue;
        }
        (void)fprintf(stderr,
                      "leader %d: term %llu round %d committed %d preparing %d fenced %d (%d) starts %d running %d "
                      "wake %.3f; nodes",
                      i, (unsigned long long)m->record.term, m->record.round, m->record.committed, m->preparing,
                      m->fenced, m->fence_count, m->start_count, m->coordinator->running, m->wake_s);
        for (int k = 0; k < m->coordinator->node_count && k < 16; k++) {
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
