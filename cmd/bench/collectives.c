/* Times collectives by size. Results are checked before anything is timed. Columns are those of
 * nccl-tests: `bytes` is the whole buffer, algbw = bytes / time, busbw = algbw scaled to what
 * each rank must move. `floor_us` is a vector add c = a + b of two threads over `bytes` each,
 * measured in the same run between the repetitions: the all-reduce's goal is twice that. With
 * --hosts it is a plain exchange over a socket of what an all-reduce must send
 * (bench_sockets.c); the goal is 1.25 times that. With --peer gloo and MPICH do the same sums
 * between the repetitions. */
#include "cmd/bench/collectives.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/page.h"
#include "base/text.h"
#include "cmd/bench/peers.h"
#include "cmd/bench/sockets.h"
#include "collectives/comm.h"
#include "collectives/store.h"
#include "collectives/tree.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REPEATS 7
#define RANKS_MAX 256

struct settings {
    int ranks, hosts;                    /* hosts: pretended ones, with consecutive ranks */
    size_t min_bytes, max_bytes, factor; /* factor 0: four sizes that have goals */
    double seconds;                      /* per repetition */
    const char *op;                      /* null: all */
    bool heap;                           /* buffers outside the arena */
    bool with_floor;
    struct bench_peers *peers; /* null: not asked for */
};

struct bench {
    const struct settings *set;
    int rank, size;
    struct dt_store *store;
    struct dt_page *page;
    pthread_t thread;
    struct dt_comm *c;
    float *in, *out;
    int failed;
};

static float value(int rank, int64_t i)
{
    /* sums of a few hundred stay exact */
    return (float)(((uint64_t)i * 2654435761u + (uint64_t)rank * 40503u) % 1024) * 0x1p-70f;
}

/* Fills the input, as large as it may be. */
static void fill(struct bench *b)
{
    int64_t n = (int64_t)(b->set->max_bytes / sizeof(float));
    for (int64_t i = 0; i < n; i++) {
        b->in[i] = value(b->rank, i);
    }
}

static struct dt_collective make(const struct bench *b, enum dt_coll kind, int64_t count)
{
    bool sliced = kind == DT_REDUCE_SCATTER || kind == DT_ALL_GATHER;
    return (struct dt_collective){kind,
                                  DT_SUM,
                                  "bench",
                                  b->in,
                                  kind == DT_ALL_REDUCE || kind == DT_BROADCAST ? b->in : b->out,
                                  sliced ? count / b->size : count,
                                  DT_F32,
                                  0};
}

static double sum_of(const struct bench *b, int64_t i)
{
    double sum = 0;
    for (int r = 0; r < b->size; r++) {
        sum += (double)value(r, i);
    }
    return sum;
}

/* Elements that are not what they should be; the sums are exact. */
static int64_t wrong(struct bench *b, enum dt_coll kind, int64_t count)
{
    struct dt_collective x = make(b, kind, count);
    int64_t bad = 0;
    fill(b);
    dt_comm_start(b->c, &x, NULL);
    int64_t n = kind == DT_BARRIER          ? 0
                : kind == DT_REDUCE_SCATTER ? x.count
                : kind == DT_ALL_GATHER     ? x.count * b->size
                                            : count;
    for (int64_t i = 0; i < n; i++) {
        double want = kind == DT_ALL_REDUCE       ? sum_of(b, i)
                      : kind == DT_REDUCE_SCATTER ? sum_of(b, b->rank * x.count + i)
                      : kind == DT_BROADCAST      ? (double)value(0, i)
                                                  : (double)value((int)(i / x.count), i % x.count);
        bad += (double)((float *)x.out)[i] != want;
    }
    return bad;
}

struct adder {
    pthread_t thread;
    const void *in[2];
    float *out;
    int64_t count, times;
};

static void *add(void *arg)
{
    struct adder *a = arg;
    for (int64_t i = 0; i < a->times; i++) {
        dt_tree_reduce(a->out, a->in, 2, DT_SUM, DT_F32, a->count);
    }
    return NULL;
}

/* Seconds of one vector add by two threads, each on its half. Memory of its own: a, b, c of
 * max_bytes. */
static double add_once(float *memory, size_t max_bytes, int64_t count, int64_t times)
{
    struct adder two[2];
    int64_t stride = (int64_t)(max_bytes / sizeof(float)), half = count / 2;
    for (int t = 0; t < 2; t++) {
        float *a = memory + t * half;
        two[t] = (struct adder){
            .in = {a, a + stride}, .out = a + 2 * stride, .count = t == 0 ? half : count - half, .times = times};
    }
    double start_s = dt_now_s();
    if (pthread_create(&two[1].thread, NULL, add, &two[1]) != 0) {
        return 0;
    }
    (void)add(&two[0]);
    (void)pthread_join(two[1].thread, NULL);
    return (dt_now_s() - start_s) / (double)times;
}

/* The least time that this machine takes for the traffic of an all-reduce. */
static double floor_once(const struct bench *b, float *memory, int64_t count, int64_t times)
{
    int hosts = b->set->hosts;
    if (hosts > 1) {
        return bench_sockets_once((char *)memory,
                                  (size_t)count * sizeof(float) * 2 * (size_t)(hosts - 1) / (size_t)hosts, times);
    }
    return add_once(memory, b->set->max_bytes, count, times);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int64_t times_for(double once_s, double seconds)
{
    double n = seconds / (once_s > 1e-8 ? once_s : 1e-8);
    return n < 1 ? 1 : n > 1e6 ? 1000000 : (int64_t)n;
}

/* Mean seconds of `times` collectives: of the slowest rank. */
static double time_once(struct bench *b, const struct dt_collective *x, int64_t times)
{
    dt_comm_start(b->c, &(struct dt_collective){.kind = DT_BARRIER, .name = "begin"}, NULL);
    double start_s = dt_now_s();
    for (int64_t i = 0; i < times; i++) {
        dt_comm_start(b->c, x, NULL);
    }
    double mean_s = (dt_now_s() - start_s) / (double)times;
    dt_comm_start(b->c, &(struct dt_collective){DT_ALL_REDUCE, DT_MAX, "slowest", &mean_s, &mean_s, 1, DT_F64, 0},
                  NULL);
    return mean_s;
}

static void measure(struct bench *b, enum dt_coll kind, size_t bytes, float *memory)
{
    int64_t count = (int64_t)(bytes / sizeof(float)) / b->size * b->size;
    struct dt_collective x = make(b, kind, count);
    int64_t bad = wrong(b, kind, count);
    dt_comm_start(b->c, &(struct dt_collective){DT_ALL_REDUCE, DT_SUM, "wrong", &bad, &bad, 1, DT_I64, 0}, NULL);
    fill(b);
    double once_s = time_once(b, &x, 10), all_s[REPEATS], floor_s[REPEATS] = {0},
           peer_s[BENCH_PEERS_MAX][REPEATS] = {{0}};
    int64_t times = times_for(once_s, b->set->seconds);
    int peer_count =
        b->set->peers != NULL && b->rank == 0 && kind == DT_ALL_REDUCE && b->size == 2 ? b->set->peers->count : 0;
    int64_t peer_times[BENCH_PEERS_MAX] = {0};
    for (int k = 0; k < peer_count; k++) {
        peer_times[k] = times_for(bench_peers_ask(b->set->peers, k, bytes, 3), b->set->seconds);
    }
    int64_t adds = memory != NULL ? times_for(floor_once(b, memory, count, 3), b->set->seconds) : 0;
    for (int i = 0; i < REPEATS; i++) { /* a b a b */
        fill(b);                        /* repeated sums in place grow */
        all_s[i] = time_once(b, &x, times);
        if (memory != NULL && b->rank == 0) {
            floor_s[i] = floor_once(b, memory, count, adds);
        }
        for (int k = 0; k < peer_count; k++) {
            peer_s[k][i] = bench_peers_ask(b->set->peers, k, bytes, (long)peer_times[k]);
        }
    }
    for (int k = 0; k < peer_count; k++) {
        qsort(peer_s[k], REPEATS, sizeof(double), by_size);
    }
    qsort(all_s, REPEATS, sizeof(double), by_size);
    qsort(floor_s, REPEATS, sizeof(double), by_size);
    b->failed = b->failed || bad != 0;
    if (b->rank != 0) {
        return;
    }
    /* 0: all travels once */
    static const double per_rank[DT_COLL_COUNT] = {[DT_ALL_REDUCE] = 2, [DT_REDUCE_SCATTER] = 1, [DT_ALL_GATHER] = 1};
    double n = b->size, s = all_s[REPEATS / 2], moved = (double)count * sizeof(float), algbw = moved / s / 1e9,
           load = 0;
    (void)getloadavg(&load, 1);
    printf("{\"bench\": \"collectives\", \"op\": \"%s\", \"backend\": \"%s\", \"ranks\": %d, \"hosts\": %d, \"bytes\": "
           "%.0f, \"count\": %lld, "
           "\"type\": \"F32\", "
           "\"redop\": \"sum\", \"buffers\": \"%s\", \"us\": %.3f, \"us_min\": %.3f, \"us_max\": %.3f, \"algbw\": "
           "%.3f, \"busbw\": %.3f, \"wrong\": "
           "%lld",
           dt_coll_name(kind), b->c->ops->name, b->size, b->set->hosts, moved, (long long)count,
           b->set->heap ? "heap" : "arena", s * 1e6, all_s[0] * 1e6, all_s[REPEATS - 1] * 1e6, algbw,
           algbw * (per_rank[kind] > 0 ? per_rank[kind] * (n - 1) / n : 1), (long long)bad);
    if (memory != NULL) {
        double f = floor_s[REPEATS / 2];
        printf(", \"floor_us\": %.3f, \"ratio\": %.3f", f * 1e6, s / f);
    }
    for (int k = 0; k < peer_count; k++) {
        const char *name = b->set->peers->names[k];
        double peer = peer_s[k][REPEATS / 2];
        if (peer_s[k][0] <= 0) { /* it ended, or hung */
            continue;
        }
        printf(", \"%s_us\": %.3f, \"%s_us_min\": %.3f, \"to_%s\": %.3f", name, peer * 1e6, name, peer_s[k][0] * 1e6,
               name, s / peer);
    }
    printf(", \"load\": %.2f}\n", load);
    (void)fflush(stdout);
}

static int sweep(struct bench *b, struct dt_error *err)
{
    const struct settings *set = b->set;
    size_t bytes = set->max_bytes;
    void *arena = NULL;
    float *memory = NULL, *heap = NULL;
    if (dt_comm_alloc(b->c, 2 * bytes, &arena, err) != 0) {
        return -1;
    }
    if (set->heap) {
        heap = dt_alloc(2 * bytes);
        arena = heap;
    }
    b->in = arena;
    b->out = b->in + bytes / sizeof(float);
    memset(arena, 1, 2 * bytes);
    if (b->rank == 0 && set->with_floor) {
        memory = dt_alloc(8 * bytes);
        memset(memory, 1, 8 * bytes);
    }
    for (int kind = 0; kind < DT_COLL_COUNT; kind++) {
        if (set->op != NULL && strcmp(set->op, dt_coll_name((enum dt_coll)kind)) != 0) {
            continue;
        }
        static const size_t sizes[] = {1024, 65536, 1048576, 26214400};
        for (size_t i = 0, n = set->min_bytes; n <= bytes; i++, n = set->factor > 0 ? n * set->factor
                                                                    : i < 4         ? sizes[i]
                                                                                    : SIZE_MAX) {
            size_t least = (size_t)b->size * sizeof(float);
            measure(b, (enum dt_coll)kind, n < least ? least : n, kind == DT_ALL_REDUCE ? memory : NULL);
            if (kind == DT_BARRIER) {
                break;
            }
        }
    }
    free(memory);
    int rc = dt_comm_poll(b->c, err);
    free(heap);
    return rc;
}

static void *rank_main(void *arg)
{
    struct bench *b = arg;
    struct dt_error err = {0};
    struct dt_comm_options o = {.name = "bench", .rank = b->rank, .size = b->size, .store = b->store, .page = b->page};
    char host[16];
    (void)snprintf(host, sizeof(host), "%d", b->rank * b->set->hosts / b->size);
    o.host = b->set->hosts > 1 ? host : NULL;
    if (dt_comm_open(&b->c, &o, &err) != 0 || sweep(b, &err) != 0) {
        (void)fprintf(stderr, "bench collectives: rank %d: %s\n", b->rank, err.text);
        b->failed = 1;
    }
    dt_comm_close(b->c);
    return NULL;
}

static int as_threads(const struct settings *set)
{
    struct dt_error err = {0};
    struct dt_store_local *local = dt_store_local_open();
    struct bench *all = dt_alloc((size_t)set->ranks * sizeof(*all));
    int failed = 0, started = 0;
    for (; started < set->ranks; started++) {
        struct bench *b = &all[started];
        *b = (struct bench){.set = set, .rank = started, .size = set->ranks};
        if (dt_store_open_local(&b->store, local, NULL, &err) != 0 ||
            pthread_create(&b->thread, NULL, rank_main, b) != 0) {
            (void)fprintf(stderr, "bench collectives: cannot start rank %d\n", started);
            exit(DT_EXIT_TEMPORARY); /* the others wait for it */
        }
    }
    for (int r = 0; r < started; r++) {
        (void)pthread_join(all[r].thread, NULL);
        failed = failed || all[r].failed;
        dt_store_close(all[r].store);
    }
    free(all);
    dt_store_local_close(local);
    return failed;
}

static long long number_of(const char *name)
{
    const char *s = getenv(name);
    long long n = -1;
    return s != NULL && dt_parse_int64(s, &n) ? n : -1;
}

/* One rank of those that dtrun started. */
static int as_process(const struct settings *set)
{
    struct dt_error err = {0};
    struct bench b = {.set = set, .rank = (int)number_of("RANK"), .size = (int)number_of("WORLD_SIZE")};
    const char *host = getenv("MASTER_ADDR");
    if (b.size < 1 || b.rank < 0 || b.rank >= b.size || host == NULL || number_of("MASTER_PORT") < 0) {
        (void)fprintf(stderr,
                      "bench collectives: RANK is set, but WORLD_SIZE, MASTER_ADDR or MASTER_PORT is not right\n");
        return DT_EXIT_USAGE;
    }
    if (dt_page_attach(&b.page, &err) != 0 ||
        dt_store_open(&b.store, host, (int)number_of("MASTER_PORT"), 60, b.page, &err) != 0) {
        (void)fprintf(stderr, "bench collectives: %s\n", err.text);
        return DT_EXIT_TEMPORARY;
    }
    (void)rank_main(&b);
    dt_store_close(b.store);
    dt_page_close(b.page, -1);
    return b.failed;
}

/* Under dtrun one rank of it, otherwise 2 threads; consecutive ranks are taken for hosts. Sizes
 * from min by factor to max, by default 1 KiB, 64 KiB,
 * 1 MiB, 25 MiB. */
int bench_collectives(int argc, char **argv)
{
    enum { RANKS = 1, OP, MIN, MAX, FACTOR, SECONDS, HEAP, NO_FLOOR, HOSTS, PEER, PEERS };
    static const struct option options[] = {
        {"ranks", required_argument, NULL, RANKS},   {"op", required_argument, NULL, OP},
        {"min", required_argument, NULL, MIN},       {"max", required_argument, NULL, MAX},
        {"factor", required_argument, NULL, FACTOR}, {"seconds", required_argument, NULL, SECONDS},
        {"heap", no_argument, NULL, HEAP},           {"no-floor", no_argument, NULL, NO_FLOOR},
        {"hosts", required_argument, NULL, HOSTS},   {"peer", no_argument, NULL, PEER},
        {"peers", required_argument, NULL, PEERS},   {0}};
    struct settings set = {.ranks = 2,
                           .hosts = 1,
                           .min_bytes = 1024,
                           .max_bytes = (size_t)25600 * 1024,
                           .factor = 0,
                           .seconds = 0.05,
                           .with_floor = true};
    const char *folder = "tests/peers";
    bool with_peers = false;
    struct bench_peers peers = {0};
    optind = 1;
    for (int o = 0; (o = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        long long n = 0;
        double d = 0;
        bool number = o == RANKS || o == MIN || o == MAX || o == FACTOR || o == HOSTS;
        if (o == '?' || (number && (!dt_parse_int64(optarg, &n) || n < 1)) ||
            (o == SECONDS && (!dt_parse_double(optarg, &d) || d <= 0))) {
            (void)fprintf(stderr, "bench: collectives: wrong option; see bench --help\n");
            return DT_EXIT_USAGE;
        }
        set.ranks = o == RANKS ? (int)(n < RANKS_MAX ? n : RANKS_MAX) : set.ranks;
        set.hosts = o == HOSTS ? (int)(n < RANKS_MAX ? n : RANKS_MAX) : set.hosts;
        set.op = o == OP ? optarg : set.op;
        set.min_bytes = o == MIN ? (size_t)n : set.min_bytes;
        set.max_bytes = o == MAX ? (size_t)n : set.max_bytes;
        set.factor = o == FACTOR ? (size_t)(n > 1 ? n : 2) : set.factor;
        set.seconds = o == SECONDS ? d : set.seconds;
        set.heap = set.heap || o == HEAP;
        set.with_floor = set.with_floor && o != NO_FLOOR;
        with_peers = with_peers || o == PEER;
        folder = o == PEERS ? optarg : folder;
    }
    bool known = set.op == NULL;
    for (int kind = 0; kind < DT_COLL_COUNT; kind++) {
        known = known || strcmp(set.op, dt_coll_name((enum dt_coll)kind)) == 0;
    }
    if (!known) {
        (void)fprintf(
            stderr,
            "bench: --op %s: unknown; there are all_reduce, reduce_scatter, all_gather, broadcast and barrier\n",
            set.op);
        return DT_EXIT_USAGE;
    }
    int ranks = getenv("RANK") != NULL ? (int)number_of("WORLD_SIZE") : set.ranks;
    set.hosts = set.hosts < ranks ? set.hosts : ranks;
    size_t least = (size_t)(ranks > 0 ? ranks : 1) * sizeof(float) * 1024;
    set.max_bytes = (set.max_bytes < least ? least : set.max_bytes) / 4096 * 4096 + 4096;
    if (getenv("RANK") != NULL) {
        return as_process(&set);
    }
    if (with_peers) {
        bench_peers_open(&peers, folder, set.hosts > 1);
        set.peers = &peers;
    }
    int failed = as_threads(&set);
    bench_peers_close(&peers);
    return failed;
}
