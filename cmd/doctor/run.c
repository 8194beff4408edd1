/* The steps of one rank; what travels does so through the store.
 *
 *   every rank      looks at its host   ──▶ doctor/facts/RANK
 *   rank 0          collects them       ──▶ doctor/place/GROUP: which host is which, doctor/host/PLACE: where its first rank listens
 *   first ranks     call each other     ──▶ doctor/pairs/GROUP
 *   rank 0          collects them       ──▶ doctor/go: "sum" if all is well so far
 *   first ranks     store a large value ──▶ doctor/stored/GROUP
 *   every rank      all-reduces
 *   rank 0          judges, prints      ──▶ doctor/done
 *
 * On a way that loses large messages the store loses them, too: until the hosts have tried the
 * way, everything here is small, and its next piece follows when the one before was answered. */
#include "cmd/doctor/run.h"

#include "base/clock.h"
#include "base/page.h"
#include "cmd/doctor/pairs.h"
#include "cmd/doctor/sums.h"
#include "collectives/store.h"
#include "cmd/doctor/checks.h"
#include "cmd/doctor/look.h"
#include "launcher/options/options.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define LOOK_S 12.0   /* of one rank; a resolver may use 5 of them twice */
#define STORE_S 60.0  /* until it answers */
#define FACTS_S 30.0  /* until all ranks have looked */
#define PAIRS_S 120.0 /* until all hosts have called theirs */
#define SUMS_S 180.0  /* until rank 0 has judged */
#define STORED_S 30.0
#define LEAVE_S 5.0
#define ALL_PAIRS 16 /* of more hosts, each calls those 1, 2, 4, ... before it */
#define PINGS 51
#define PIECE_BYTES ((size_t)600)
#define PIECES_MAX 100000 /* 60 MB of lines */
#define VALUE_BYTES ((size_t)1 << 20)

struct doctor {
    bool json;
    char *const *env;
    int rank, size, group;
    bool leads; /* the first rank of its host */
    struct dt_page *page;
    struct dt_store *store;
    struct pair_server *server;
    struct facts facts;
};

/* -1 for what is no number of ranks. */
static int number_of(const char *name, int fallback)
{
    const char *text = getenv(name);
    long long value = fallback;
    return text != NULL && (!dt_parse_int64(text, &value) || value < 0 || value > 1 << 20) ? -1 : (int)value;
}

static void key_of(char *out, size_t out_bytes, const char *what, int number)
{
    (void)snprintf(out, out_bytes, "doctor/%s/%d", what, number);
}

static void print(const struct doctor_report *r)
{
    (void)fwrite(dt_text_str(&r->out), 1, r->out.size, stdout);
    (void)fflush(stdout);
}

/* The report of what is known. Returns whether something failed. */
static bool report(const struct doctor *d, const struct doctor_view *v)
{
    struct doctor_report r;
    doctor_report_init(&r, d->json);
    if (!d->json) {
        struct dt_text title;
        dt_text_init(&title);
        dt_text_puts(&title, "doctor " DT_VERSION ": ");
        doctor_view_describe(v, &title);
        dt_text_wrap(&r.out, dt_text_str(&title), 0);
        dt_text_clear(&title);
    }
    doctor_judge(v, &r);
    doctor_report_end(&r);
    print(&r);
    if (r.counts[DOCTOR_FAIL] > 0 && d->page != NULL) {
        (void)snprintf(d->page->note, sizeof d->page->note, "%d check%s failed; %s", r.counts[DOCTOR_FAIL],
                       r.counts[DOCTOR_FAIL] > 1 ? "s" : "", r.first_fail);
    }
    bool failed = r.counts[DOCTOR_FAIL] > 0;
    doctor_report_clear(&r);
    return failed;
}

static struct doctor_rank *new_ranks(int count)
{
    struct doctor_rank *ranks = dt_alloc((size_t)count * sizeof *ranks);
    for (int i = 0; i < count; i++) {
        facts_init(&ranks[i].facts);
    }
    return ranks;
}

static int run_alone(struct doctor *d)
{
    struct doctor_view view;
    struct doctor_rank *ranks = new_ranks(1);
    ranks[0].here = true;
    doctor_look(&ranks[0].facts, d->env, LOOK_S);
    doctor_view_init(&view, ranks, 1, true);
    bool failed = report(d, &view);
    doctor_view_clear(&view);
    return failed ? 1 : 0;
}

/* ---- facts through the store ---- */

/* In pieces; the number of them is under the key itself, which is set last. */
static int put(struct doctor *d, const char *what, int number, const struct facts *f, struct dt_error *err)
{
    char key[48], piece[64], count[16];
    int pieces = 0;
    key_of(key, sizeof key, what, number);
    for (size_t at = 0; at < f->lines.size; at += PIECE_BYTES, pieces++) {
        size_t left = f->lines.size - at;
        (void)snprintf(piece, sizeof piece, "%s/%d", key, pieces);
        if (dt_store_set(d->store, piece, f->lines.data + at, left < PIECE_BYTES ? left : PIECE_BYTES, err) != 0 ||
            dt_store_ping(d->store, err) != 0) {
            return -1;
        }
    }
    int n = snprintf(count, sizeof count, "%d", pieces);
    return dt_store_set(d->store, key, count, (size_t)n, err);
}

/* Collects facts from the store; those that have not come by the deadline are left out. -1: the
 * store is gone. */
static int collect(struct doctor *d, const char *what, int number, double end_s, struct facts *f, bool *there,
                   struct dt_error *err)
{
    char key[48], piece[64];
    struct dt_text text;
    dt_text_init(&text);
    key_of(key, sizeof key, what, number);
    int rc = dt_store_get(d->store, key, &text, fmax(end_s - dt_now_s(), 0.01), err);
    long long pieces = 0; /* one that is not there ends it, however many are said */
    (void)(rc == 0 && dt_parse_int64(dt_text_str(&text), &pieces));
    for (int i = 0; i < pieces && i < PIECES_MAX && rc == 0; i++) {
        (void)snprintf(piece, sizeof piece, "%s/%d", key, i);
        rc = dt_store_get(d->store, piece, &text, STORED_S, err);
        if (rc == 0) {
            facts_add(f, dt_text_str(&text));
        }
    }
    *there = rc == 0;
    dt_text_clear(&text);
    return rc != 0 && err->status != DT_TIMEOUT ? -1 : 0;
}

/* ---- what each rank finds ---- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int ping(struct doctor *d, struct dt_error *err)
{
    double all_s[PINGS];
    for (int i = 0; i < PINGS; i++) {
        double start_s = dt_now_s();
        if (dt_store_ping(d->store, err) != 0) {
            return -1;
        }
        all_s[i] = dt_now_s() - start_s;
    }
    qsort(all_s, PINGS, sizeof all_s[0], by_value);
    facts_set(&d->facts, "store_seconds", "%.9f", all_s[PINGS / 2]);
    return 0;
}

/* A large value must come back as it was; the verdict is a fact of this host. */
static int store_large(struct doctor *d, struct dt_error *err)
{
    char key[48];
    struct dt_text back;
    struct facts found;
    char *value = dt_alloc(VALUE_BYTES);
    for (size_t i = 0; i < VALUE_BYTES; i++) {
        value[i] = (char)(i * 31 + (i >> 8) + (size_t)d->rank);
    }
    key_of(key, sizeof key, "value", d->rank);
    dt_text_init(&back);
    facts_init(&found);
    int rc = dt_store_set(d->store, key, value, VALUE_BYTES, err) != 0 ||
                     dt_store_get(d->store, key, &back, STORED_S, err) != 0
                 ? -1
                 : 0;
    bool same = rc == 0 && back.size == VALUE_BYTES && memcmp(back.data, value, VALUE_BYTES) == 0;
    facts_set(&found, "stored", "%d", same);
    rc = rc == 0 ? dt_store_delete(d->store, key, NULL, err) : rc;
    rc = rc == 0 ? put(d, "stored", d->group, &found, err) : rc;
    dt_text_clear(&back);
    facts_clear(&found);
    free(value);
    return rc;
}

/* The first rank of a host lets others call it. */
static void serve(struct doctor *d)
{
    char address[64], range[32];
    int lo = 0, hi = 0, port = 0;
    uint64_t nonce = 0;
    struct dt_error err;
    if (getrandom(&nonce, sizeof nonce, 0) != (ssize_t)sizeof nonce) {
        nonce = (uint64_t)(dt_wall_s() * 1e9);
    }
    if (facts_get(&d->facts, "address", address, sizeof address) == NULL) {
        return;
    }
    if (facts_get(&d->facts, "port_range", range, sizeof range) != NULL) {
        (void)sscanf(range, "%d-%d", &lo, &hi);
    }
    if (pair_serve(&d->server, address, lo, hi, nonce, &port, &err) != 0) {
        facts_set(&d->facts, "serve_error", "%s", err.text);
        return;
    }
    facts_set(&d->facts, "serve_port", "%d", port);
    facts_set(&d->facts, "serve_nonce", "%" PRIu64, nonce);
}

static int publish(struct doctor *d, struct dt_error *err)
{
    doctor_look(&d->facts, d->env, LOOK_S);
    facts_set(&d->facts, "group", "%d", d->group);
    d->leads = number_of("LOCAL_RANK", 0) == 0;
    if (ping(d, err) != 0) {
        return -1;
    }
    if (d->leads && number_of("GROUP_WORLD_SIZE", 1) > 1) {
        serve(d);
    }
    return put(d, "facts", d->rank, &d->facts, err);
}

/* ---- between hosts ---- */

/* Tells every host its place in the order of calls, and where the others are. */
static int publish_places(struct doctor *d, const struct doctor_view *v, struct dt_error *err)
{
    for (int h = 0; h < v->host_count; h++) {
        const struct facts *f = view_host(v, h);
        char key[48], text[160], address[64] = "", nonce[32] = "";
        (void)facts_get(f, "address", address, sizeof address);
        (void)facts_get(f, "serve_nonce", nonce, sizeof nonce);
        int n = snprintf(text, sizeof text, "%d %.0f %s %s", v->hosts[h].group, facts_number(f, "serve_port", 0), nonce,
                         address);
        key_of(key, sizeof key, "host", h);
        if (dt_store_set(d->store, key, text, (size_t)n, err) != 0) {
            return -1;
        }
    }
    for (int h = 0; h < v->host_count; h++) {
        char key[48], text[32];
        int n = snprintf(text, sizeof text, "%d %d", h, v->host_count);
        key_of(key, sizeof key, "place", v->hosts[h].group);
        if (dt_store_set(d->store, key, text, (size_t)n, err) != 0) {
            return -1;
        }
    }
    return 0;
}

static const char *name_of_state(enum pair_state state)
{
    switch (state) {
    case PAIR_OK:
        return "ok";
    case PAIR_UNREACHABLE:
        return "unreachable";
    case PAIR_SILENT:
        return "silent";
    case PAIR_LOST:
        return "lost";
    case PAIR_LOSSY:
        return "lossy";
    case PAIR_SLOW:
        return "slow";
    }
    return "unknown";
}

static void note_pair(struct facts *f, int group, const struct pair_result *p)
{
    char name[48];
    const struct {
        const char *name;
        double value;
    } values[] = {{"latency", p->latency_s},       {"rate", p->bytes_per_s},        {"passed", (double)p->passed_bytes},
                  {"lost", (double)p->lost_bytes}, {"from_server", p->from_server}, {"clock_ahead", p->clock_ahead_s}};
    (void)snprintf(name, sizeof name, "%d.state", group);
    facts_set(f, name, "%s", name_of_state(p->state));
    (void)snprintf(name, sizeof name, "%d.cause", group);
    facts_set(f, name, "%s", p->cause);
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        bool timed =
            p->latency_s > 0 || (strcmp(values[i].name, "latency") != 0 && strcmp(values[i].name, "clock_ahead") != 0);
        (void)snprintf(name, sizeof name, "%d.%s", group, values[i].name);
        if (timed) {
            facts_set(f, name, "%.9f", values[i].value);
        }
    }
}

static int call_one(struct doctor *d, int place, struct facts *found, struct dt_error *err)
{
    char key[48], address[64];
    struct dt_text text;
    int group, port;
    uint64_t nonce;
    dt_text_init(&text);
    key_of(key, sizeof key, "host", place);
    int rc = dt_store_get(d->store, key, &text, STORED_S, err);
    /* else it does not listen */
    if (rc == 0 && sscanf(dt_text_str(&text), "%d %d %" SCNu64 " %63s", &group, &port, &nonce, address) == 4) {
        struct pair_result result;
        pair_call(address, port, nonce, d->page, &result);
        note_pair(found, group, &result);
    }
    dt_text_clear(&text);
    return rc;
}

/* Calls the hosts before this one: all of few, else those 1, 2, 4, ... places away. */
static int call_others(struct doctor *d, struct dt_error *err)
{
    struct facts found;
    struct dt_text text;
    char key[48];
    int own = 0, count = 0;
    facts_init(&found);
    dt_text_init(&text);
    key_of(key, sizeof key, "place", d->group);
    int rc = dt_store_get(d->store, key, &text, FACTS_S + LOOK_S + 10, err);
    if (rc == 0 && sscanf(dt_text_str(&text), "%d %d", &own, &count) != 2) {
        own = 0;
    }
    double end_s = dt_now_s() + PAIRS_S - 40;
    for (int away = 1; away <= own && rc == 0 && dt_now_s() < end_s; away = count <= ALL_PAIRS ? away + 1 : away * 2) {
        rc = call_one(d, own - away, &found, err);
    }
    facts_set(&found, "done", "1");
    rc = rc == 0 ? put(d, "pairs", d->group, &found, err) : rc;
    dt_text_clear(&text);
    facts_clear(&found);
    return rc;
}

/* ---- rank 0 ---- */

static int collect_facts(struct doctor *d, struct doctor_view *v, struct dt_error *err)
{
    struct doctor_rank *ranks = new_ranks(d->size);
    double end_s = dt_now_s() + FACTS_S;
    int rc = 0;
    ranks[0].here = true;
    facts_add(&ranks[0].facts, dt_text_str(&d->facts.lines));
    for (int i = 1; i < d->size && rc == 0; i++) {
        rc = collect(d, "facts", i, end_s, &ranks[i].facts, &ranks[i].here, err);
    }
    doctor_view_init(v, ranks, d->size, false);
    return rc;
}

/* Collects the facts that every host found: "pairs" or "stored". */
static int collect_hosts(struct doctor *d, struct doctor_view *v, const char *what, double seconds,
                         struct dt_error *err)
{
    double end_s = dt_now_s() + seconds;
    for (int h = 0; h < v->host_count; h++) {
        bool there;
        if (collect(d, what, v->hosts[h].group, end_s, &v->hosts[h].found, &there, err) != 0) {
            return -1;
        }
    }
    return 0;
}

static const char missing_ranks[] = "ranks are missing";

/* Why sums are not worth trying; null: they are. A missing rank, or a way that loses messages,
 * was said already. */
static const char *no_sums(const struct doctor_view *v)
{
    for (int r = 0; r < v->rank_count; r++) {
        if (!v->ranks[r].here) {
            return missing_ranks;
        }
    }
    for (int h = 0; h < v->host_count && v->host_count > 1; h++) {
        if (facts_number(&v->hosts[h].found, "done", 0) != 1) {
            return "a host did not come back from measuring";
        }
        for (int k = 0; k < v->host_count; k++) {
            char name[48], state[24];
            (void)snprintf(name, sizeof name, "%d.state", v->hosts[k].group);
            if (facts_get(&v->hosts[h].found, name, state, sizeof state) != NULL && strcmp(state, "ok") != 0 &&
                strcmp(state, "lossy") != 0) {
                return "messages between hosts come first";
            }
        }
    }
    return NULL;
}

/* All ranks; rank 0 keeps the result. */
static void sum(struct doctor *d, struct facts *out)
{
    struct sums_result results[SUMS_COUNT];
    struct dt_error err;
    char host[32];
    (void)snprintf(host, sizeof host, "%d", d->group);
    if (doctor_sums(d->store, d->page, d->rank, d->size, number_of("GROUP_WORLD_SIZE", 1) > 1 ? host : NULL, results,
                    &err) != 0) {
        facts_set(out, "error", "%s", err.text);
        return;
    }
    facts_set(out, "backend", "%s", results[0].backend);
    for (int i = 0; i < SUMS_COUNT; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "%d.bytes", i);
        facts_set(out, name, "%zu", results[i].bytes);
        (void)snprintf(name, sizeof name, "%d.seconds", i);
        facts_set(out, name, "%.9f", results[i].seconds);
        (void)snprintf(name, sizeof name, "%d.wrong", i);
        facts_set(out, name, "%lld", (long long)results[i].wrong);
    }
}

static int lead(struct doctor *d, struct dt_error *err)
{
    struct doctor_view view;
    int rc = collect_facts(d, &view, err);
    rc = rc == 0 ? publish_places(d, &view, err) : rc;
    rc = rc == 0 ? call_others(d, err) : rc;
    rc = rc == 0 ? collect_hosts(d, &view, "pairs", PAIRS_S, err) : rc;
    const char *why = no_sums(&view);
    rc = rc == 0 ? dt_store_set(d->store, "doctor/go", why == NULL ? "sum" : "end", 3, err) : rc;
    if (why != NULL) {
        facts_set(&view.sums, "left_out", "%s", why);
    } else if (rc == 0) {
        rc = store_large(d, err);
        rc = rc == 0 ? collect_hosts(d, &view, "stored", STORED_S, err) : rc;
        sum(d, &view.sums);
    }
    if (rc != 0) {
        doctor_view_clear(&view);
        return -1;
    }
    int code = report(d, &view) ? DT_EXIT_PERMANENT : 0;
    doctor_view_clear(&view);
    struct dt_error ignored;
    struct dt_text last;
    dt_text_init(&last);
    (void)dt_store_set(d->store, "doctor/done", "1", 1, &ignored);
    if (d->size > 1) { /* the others leave first, so that the launcher has nobody to stop when
                        * this rank says that something failed */
        (void)dt_store_get(d->store, "doctor/left", &last,
                           why != NULL && strcmp(why, missing_ranks) == 0 ? 0.5 : LEAVE_S, &ignored);
    }
    dt_text_clear(&last);
    return code;
}

static int follow(struct doctor *d, struct dt_error *err)
{
    struct dt_text text;
    struct facts ignored;
    dt_text_init(&text);
    facts_init(&ignored);
    int rc = d->leads ? call_others(d, err) : 0;
    rc = rc == 0 ? dt_store_get(d->store, "doctor/go", &text, FACTS_S + LOOK_S + PAIRS_S + 20, err) : rc;
    if (rc == 0 && strcmp(dt_text_str(&text), "sum") == 0) {
        rc = d->leads ? store_large(d, err) : 0;
        if (rc == 0) {
            sum(d, &ignored);
        }
    }
    rc = rc == 0 ? dt_store_get(d->store, "doctor/done", &text, SUMS_S, err) : rc;
    int64_t gone = 0;
    (void)signal(SIGTERM, SIG_IGN); /* this rank ends now, also where rank 0 ends before it and fails */
    if (rc == 0 && dt_store_add(d->store, "doctor/leaving", 1, &gone, err) == 0 && gone == d->size - 1) {
        (void)dt_store_set(d->store, "doctor/left", "1", 1, err);
    }
    facts_clear(&ignored);
    dt_text_clear(&text);
    return rc;
}

static int run_in_job(struct doctor *d, struct dt_error *err)
{
    const char *master = getenv("MASTER_ADDR");
    int port = number_of("MASTER_PORT", -1);
    d->size = number_of("WORLD_SIZE", -1);
    d->group = number_of("GROUP_RANK", 0);
    if (d->rank < 0 || d->size < 1 || d->rank >= d->size || d->group < 0 || master == NULL || port < 1) {
        (void)dt_fail(
            err, DT_INVALID,
            "RANK is set, but WORLD_SIZE, MASTER_ADDR or MASTER_PORT is not right; unset it, or start through dtrun");
        return DT_EXIT_USAGE;
    }
    if (dt_page_attach(&d->page, err) != 0 || dt_store_open(&d->store, master, port, STORE_S, d->page, err) != 0) {
        return -1;
    }
    if (publish(d, err) != 0) {
        return -1;
    }
    return d->rank == 0 ? lead(d, err) : follow(d, err);
}

int doctor_run(bool json, char *const *env)
{
    struct doctor d = {.json = json, .env = env, .rank = number_of("RANK", -1)};
    struct dt_error err = {0};
    if (getenv("RANK") == NULL) {
        return run_alone(&d);
    }
    facts_init(&d.facts);
    int code = run_in_job(&d, &err);
    if (code == -1 || code == DT_EXIT_USAGE) {
        (void)fprintf(stderr, "doctor: rank %d: %s\n", d.rank, err.text);
        if (d.page != NULL) {
            (void)snprintf(d.page->note, sizeof d.page->note, "%s", err.text);
        }
        code = code == -1 ? DT_EXIT_TEMPORARY : code;
    }
    pair_server_close(d.server);
    dt_store_close(d.store);
    if (d.page != NULL) {
        dt_page_close(d.page, -1);
    }
    facts_clear(&d.facts);
    return code;
}
