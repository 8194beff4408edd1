/* covers: collectives */
/* The backend "nccl" over a fake NCCL (tests/softgpu/nccl) with ranks as processes, a software
 * GPU each: every collective with ragged sizes, in groups, with an old library; what becomes of
 * a rank that is killed, hangs, never comes or differs, and of a library that hangs, fails, is
 * too old, another one or absent. run: timeout 300 */
#include "tests/lib/comm_processes.h"

#include "base/clock.h"
#include "base/page.h"
#include "base/text.h"
#include "collectives/store.h"
#include "collectives/tree.h"
#include "kernels/device.h"

#include <math.h>
#include <string.h>
#include <sys/wait.h>

struct scene {
    const char *library;  /* version of the fake; null: the newest */
    const char *versions; /* what it says it is, by rank */
    const char *fault;
    double timeout_s, open_timeout_s;
    int sm_limit;
    const char *queue; /* collectives that find room in the driver's queue; null: any number */
    int per_host;      /* ranks of one host; 0: all are on one */
    int zero_ctas;     /* so many ranks ask for gathers without multiprocessors */
    int unordered;     /* so many ranks are told not to begin kernels in the host's order */
    int poor;          /* so many ranks, the last ones, have a library of the same version that
                        * was built with less */
};

static char folder[400]; /* build/ */
static char log_path[420];
static struct dt_device device;
static struct dt_stream *stream;
static struct dt_page *page;
static int limit_told;    /* the scene's limit, where NCCL's version has one */
static bool gathers_copy; /* all ranks ask for gathers without multiprocessors, and have them */

static void set(const char *name, const char *value)
{
    if (value != NULL) {
        (void)setenv(name, value, 1);
    } else {
        (void)unsetenv(name);
    }
}

/* In the rank's process: its GPU, and the communicator of all; null when that fails, told[rank]
 * says why. */
static struct dt_comm *try_open(int rank, int size, const struct scene *x)
{
    struct dt_error err = {0};
    struct dt_store *store = NULL;
    struct dt_comm *c = NULL;
    char text[500], host[8];
    (void)snprintf(text, sizeof text, "%d", rank);
    set("RANK", text);
    (void)snprintf(text, sizeof text, "%d", size);
    set("SOFTGPU_DEVICES", text);
    set("SOFTGPU_NCCL_VERSION", x->versions);
    set("SOFTGPU_NCCL_FAULT", x->fault);
    set("SOFTGPU_NCCL_LOG", log_path);
    set("SOFTGPU_NCCL_QUEUE", x->queue);
    set("DTRUN_NCCL_ZERO_CTA", rank < x->zero_ctas ? "1" : NULL);
    set("NCCL_LAUNCH_ORDER_IMPLICIT", rank < x->unordered ? "0" : NULL);
    set("DTRUN_LOCAL_ADDR", "127.0.0.1");
    set("NCCL_COMM_BLOCKING", "1"); /* a user's: it must not bind us */
    const char *library = rank >= size - x->poor ? "21700" : x->library != NULL ? x->library : "22907";
    if (x->poor > 0) {
        set("SOFTGPU_NCCL_VERSION", "22907");
    }
    (void)snprintf(text, sizeof text, "%s/softgpu/nccl/%s/libnccl.so.2", folder, library);
    set("DTRUN_NCCL", strcmp(library, "none") == 0 ? "/nonexistent/libnccl.so.2" : text);
    NEED(dt_page_attach(&page, &err) == 0);
    NEED(dt_device_open(&device, "cuda", &(struct dt_device_options){.index = rank}, &err) == 0);
    NEED(dt_stream_open(&device, 0, &stream, &err) == 0);
    NEED(dt_store_open(&store, "127.0.0.1", port, PATIENCE_S, NULL, &err) == 0);
    (void)snprintf(host, sizeof host, "h%d", x->per_host > 0 ? rank / x->per_host : 0);
    struct dt_comm_options o = {.backend = "nccl",
                                .rank = rank,
                                .size = size,
                                .store = store,
                                .page = page,
                                .device = &device,
                                .timeout_s = x->timeout_s,
                                .open_timeout_s = x->open_timeout_s > 0 ? x->open_timeout_s : PATIENCE_S,
                                .sm_limit = x->sm_limit,
                                .host = x->per_host > 0 ? host : NULL};
    limit_told = x->versions == NULL ? x->sm_limit : 0;
    gathers_copy = x->zero_ctas == size && x->per_host == 0 && x->poor == 0 && strcmp(library, "22907") == 0;
    int rc = dt_comm_open(&c, &o, &told[rank].error);
    dt_store_close(store);
    return rc == 0 ? c : NULL;
}

static struct dt_comm *enter(int rank, int size, const void *arg)
{
    struct dt_comm *c = try_open(rank, size, arg);
    if (c == NULL) {
        (void)fprintf(stderr, "rank %d: %s\n", rank, told[rank].error.text);
        _exit(4);
    }
    return c;
}

static void leave(struct dt_comm *c)
{
    dt_stream_close(stream);
    dt_comm_close(c);
    dt_device_close(&device);
}

static void begin(int size, const struct scene *x, void (*body)(struct dt_comm *c))
{
    (void)unlink(log_path);
    processes_begin(size, enter, x, body, leave);
}

static void all_end_well(int size)
{
    for (int r = 0; r < size; r++) {
        int status = end(r);
        if (status != 0) {
            fail_msg("rank %d of %d: status %x, %s", r, size, (unsigned)status, told[r].error.text);
        }
    }
}

/* Runs size ranks whose communicator must not open; each one's text holds `part`. */
static void none_opens(int size, const struct scene *x, enum dt_status status, const char *part)
{
    for (int r = 0; r < size; r++) {
        pids[r] = fork_child();
        if (pids[r] == 0) {
            struct dt_comm *c = try_open(r, size, x);
            _exit(c != NULL ? 7 : 0);
        }
    }
    all_end_well(size);
    for (int r = 0; r < size; r++) {
        if (told[r].error.status != status || strstr(told[r].error.text, part) == NULL) {
            fail_msg("rank %d: status %d, %s", r, (int)told[r].error.status, told[r].error.text);
        }
    }
    processes_renew();
}

/* ---- memory ---- */

static void *device_bytes(size_t size_bytes)
{
    void *p = NULL;
    struct dt_error err;
    NEED(dt_device_alloc(&device, DT_MEMORY_DEVICE, size_bytes, &p, &err) == 0);
    return p;
}

static char *pinned_bytes(size_t size_bytes)
{
    void *p = NULL;
    struct dt_error err;
    NEED(dt_device_alloc(&device, DT_MEMORY_PINNED, size_bytes, &p, &err) == 0);
    return p;
}

static void finish(struct dt_comm *c)
{
    struct dt_error err = {0};
    if (dt_stream_finish(stream, PATIENCE_S, &err) != 0 || dt_comm_poll(c, &err) != 0) {
        (void)fprintf(stderr, "rank %d: %s\n", c->rank, err.text);
        _exit(5);
    }
}

/* ---- sums ---- */

static double value_of(int rank, int64_t i)
{
    uint64_t h = ((uint64_t)rank + 1) * 0x9e3779b97f4a7c15ull + (uint64_t)i * 0xd1b54a32d192ed03ull;
    h = (h ^ (h >> 31)) * 0xbf58476d1ce4e5b9ull;
    static const double scales[] = {1e-2, 1, 30};
    return ((double)(h >> 40) / 8388608.0 - 1.0) * scales[h % 3];
}

static void put(void *p, enum dt_dtype type, int64_t i, double v)
{
    float f = (float)v;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if (type == DT_F32) {
        ((float *)p)[i] = f;
    } else if (type == DT_F64) {
        ((double *)p)[i] = v;
    } else if (type == DT_I64) {
        ((int64_t *)p)[i] = (int64_t)(v * 1e6);
    } else {
        ((uint16_t *)p)[i] = (uint16_t)(bits >> 16);
    }
}

static double get(const void *p, enum dt_dtype type, int64_t i)
{
    if (type == DT_F32) {
        return (double)((const float *)p)[i];
    }
    if (type == DT_F64) {
        return ((const double *)p)[i];
    }
    if (type == DT_I64) {
        return (double)((const int64_t *)p)[i];
    }
    uint32_t bits = (uint32_t)((const uint16_t *)p)[i] << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return (double)f;
}

/* What may lie between two orders of a sum: half an ulp of the largest partial sum for each
 * addition; nothing for two ranks, integers, and the largest of all. */
static double slack_of(enum dt_dtype type, enum dt_reduction op, int size, double absolute)
{
    double ulp = type == DT_F32 ? 0x1p-23 : type == DT_F64 ? 0x1p-52 : type == DT_BF16 ? 0x1p-7 : 0;
    return op != DT_SUM || size <= 2 ? 0 : ulp * absolute * (double)size;
}

static struct {
    char *in, *out, *want, *host; /* pinned, but for `want` */
    void *device[2];              /* not in an arena */
    void *arena[2];
} room;

static void one_case(struct dt_comm *c, enum dt_coll kind, enum dt_reduction op, enum dt_dtype type, int64_t count,
                     bool arena, bool in_place)
{
    size_t width = dt_dtype_size(type);
    int64_t in_count = kind == DT_REDUCE_SCATTER ? count * c->size : count,
            out_count = kind == DT_ALL_GATHER ? count * c->size : count;
    int root = (int)(count % c->size);
    char *base = arena ? room.arena[0] : room.device[0], *in = base, *out = arena ? room.arena[1] : room.device[1];
    if (in_place) {
        out = kind == DT_REDUCE_SCATTER ? base + (size_t)(c->rank * count) * width : base;
        in = kind == DT_ALL_GATHER ? base + (size_t)(c->rank * count) * width : base;
    }
    for (int64_t i = 0; i < in_count; i++) {
        put(room.in, type, i, value_of(c->rank, i));
    }
    dt_stream_copy(stream, in, room.in, (size_t)in_count * width);
    dt_comm_start(c, &(struct dt_collective){kind, op, "case", in, out, count, type, root}, stream);
    /* behind it, with no wait between */
    dt_stream_copy(stream, room.out, out, (size_t)out_count * width);
    finish(c);
    const void *all[4];
    int64_t first = kind == DT_REDUCE_SCATTER ? count * c->rank : 0;
    size_t each = (size_t)(count > 0 ? count : 1) * width;
    for (int r = 0; r < c->size; r++) {
        all[r] = room.host + (size_t)r * each;
        for (int64_t i = 0; i < count; i++) {
            put(room.host + (size_t)r * each, type, i, value_of(r, first + i));
        }
    }
    if (kind == DT_ALL_GATHER) {
        NEED(memcmp(room.out, room.host, (size_t)out_count * width) == 0);
    } else if (kind == DT_BROADCAST) {
        NEED(memcmp(room.out, all[root], (size_t)count * width) == 0);
    } else {
        dt_tree_reduce(room.want, all, c->size, op, type, count);
        for (int64_t i = 0; i < count; i++) {
            double absolute = 0, got = get(room.out, type, i), want = get(room.want, type, i);
            for (int r = 0; r < c->size; r++) {
                absolute += fabs(get(all[r], type, i));
            }
            if (!(fabs(got - want) <= slack_of(type, op, c->size, absolute))) {
                (void)fprintf(stderr, "%s of %d ranks, %s %s, element %lld of %lld: %.17g instead of %.17g\n",
                              dt_coll_name(kind), c->size, dt_dtype_name(type), dt_reduction_name(op), (long long)i,
                              (long long)count, got, want);
                _exit(6);
            }
        }
    }
}

/* 70001 doubles take several chunks */
static const int64_t counts[] = {0, 1, 3, 64, 1023, 4097, 70001};
#define COUNT_MAX 70001

static void all_kinds(struct dt_comm *c)
{
    struct dt_error err;
    size_t bytes = (size_t)COUNT_MAX * 8 * (size_t)c->size;
    for (int i = 0; i < 2; i++) {
        room.device[i] = device_bytes(bytes);
        NEED(dt_comm_alloc(c, bytes, &room.arena[i], &err) == 0);
    }
    room.in = pinned_bytes(bytes);
    room.out = pinned_bytes(bytes);
    dt_stream_copy(stream, room.out, room.arena[1], bytes);
    finish(c);
    for (size_t i = 0; i < bytes; i++) {
        NEED(room.out[i] == 0); /* as dt_comm_alloc promises */
    }
    room.want = dt_alloc(bytes);
    room.host = dt_alloc(bytes);
    static const enum dt_dtype types[] = {DT_F32, DT_BF16, DT_I64, DT_F64};
    int turn = 0;
    for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
        for (int kind = DT_ALL_REDUCE; kind <= DT_BROADCAST; kind++) {
            for (size_t t = 0; t < 4; t++, turn++) {
                if (counts[k] < 70000 || t < 2) {
                    one_case(c, (enum dt_coll)kind,
                             kind <= DT_REDUCE_SCATTER ? (enum dt_reduction)(turn / 4 % 3) : DT_SUM, types[t],
                             counts[k], turn % 3 != 0, turn % 5 < 2);
                }
            }
        }
    }
    dt_comm_start(c, &(struct dt_collective){.kind = DT_BARRIER}, stream);
    finish(c);
    NEED(c->size == 1 || strcmp(c->ops->name, "nccl") == 0);
    for (int i = 0; i < 2; i++) {
        dt_device_free(&device, DT_MEMORY_DEVICE, room.device[i], bytes);
    }
    free(room.want);
    free(room.host);
}

static void collectives_are_right(void **unused)
{
    (void)unused;
    for (int size = 1; size <= 4; size++) {
        begin(size, &(struct scene){0}, all_kinds);
        all_end_well(size);
        processes_renew();
    }
    begin(3, &(struct scene){.zero_ctas = 3}, all_kinds);
    all_end_well(3);
}

static void an_old_library_does(void **unused)
{
    (void)unused;
    begin(3, &(struct scene){.library = "21700"}, all_kinds);
    all_end_well(3);
}

static void ranks_of_several_hosts(void **unused)
{
    (void)unused;
    begin(3, &(struct scene){.per_host = 1}, all_kinds);
    all_end_well(3);
}

/* ---- groups ---- */

static void groups(struct dt_comm *c)
{
    struct dt_error err;
    struct dt_comm *row = NULL, *column = NULL, *late = NULL;
    enum { COUNT = 5000 };
    void *arena = NULL;
    int64_t *host = (int64_t *)(void *)pinned_bytes(COUNT * 8);
    NEED(dt_comm_split(c, c->rank / 2, "row", &row, &err) == 0);
    NEED(dt_comm_split(c, c->rank % 2, "column", &column, &err) == 0);
    NEED(dt_comm_alloc(c, COUNT * 8, &arena, &err) == 0);
    /* Only ranks 1 and 2 are in it, rank 3 is alone. */
    NEED(dt_comm_split(c, c->rank == 0 ? -1 : c->rank == 3 ? 7 : 2, "late", &late, &err) == 0);
    NEED((late == NULL) == (c->rank == 0) && (late == NULL || late->size == (c->rank == 3 ? 1 : 2)));
    for (int i = 0; i < COUNT; i++) {
        host[i] = (1 << c->rank) * (int64_t)(i + 1);
    }
    struct dt_comm *all[] = {row, column, c, late};
    for (size_t k = 0; k < 4; k++) {
        if (all[k] == NULL) {
            continue;
        }
        NEED(dt_comm_sms(all[k], DT_ALL_REDUCE) == (all[k]->size > 1 ? limit_told : 0));
        NEED(dt_comm_sms(all[k], DT_REDUCE_SCATTER) == dt_comm_sms(all[k], DT_ALL_REDUCE));
        NEED(dt_comm_sms(all[k], DT_ALL_GATHER) == (gathers_copy ? 0 : dt_comm_sms(all[k], DT_ALL_REDUCE)));
        int64_t factor = k == 0         ? (c->rank / 2 == 0 ? 3 : 12)
                         : k == 1       ? (c->rank % 2 == 0 ? 5 : 10)
                         : k == 2       ? 15
                         : c->rank == 3 ? 8
                                        : 6;
        int64_t *back = (int64_t *)(void *)pinned_bytes(COUNT * 8);
        dt_stream_copy(stream, arena, host, COUNT * 8);
        dt_comm_start(all[k], &(struct dt_collective){DT_ALL_REDUCE, DT_SUM, "group", arena, arena, COUNT, DT_I64, 0},
                      stream);
        dt_stream_copy(stream, back, arena, COUNT * 8);
        finish(all[k]);
        for (int i = 0; i < COUNT; i++) {
            NEED(back[i] == factor * (i + 1));
        }
    }
    dt_comm_close(late);
    dt_comm_close(column);
    dt_comm_close(row);
}

/* Lines of the fake's log that hold all of the words. */
static int log_lines(const char *one, const char *two)
{
    char line[400];
    int count = 0;
    FILE *f = fopen(log_path, "re");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        count += strstr(line, one) != NULL && strstr(line, two) != NULL;
    }
    if (f != NULL) {
        (void)fclose(f);
    }
    return count;
}

static void gathers(struct dt_comm *c)
{
    struct dt_error err;
    void *arena = NULL;
    NEED(dt_comm_alloc(c, 4096, &arena, &err) == 0);
    dt_comm_start(
        c, &(struct dt_collective){DT_ALL_GATHER, DT_SUM, "g", (char *)arena + 256 * c->rank, arena, 64, DT_F32, 0},
        stream);
    finish(c);
}

static void groups_are_split_off(void **unused)
{
    (void)unused;
    begin(4, &(struct scene){.sm_limit = 12}, groups);
    all_end_well(4);
    /* the world; all groups are children of it */
    assert_int_equal(log_lines("ncclCommInitRankConfig", "ctas 1..12 policy 1"), 4);
    assert_int_equal(log_lines("ncclCommInitRankConfig", ""), 4);
    assert_int_equal(log_lines("ncclCommSplit", "policy 2"), 0);
    assert_int_equal(log_lines("ncclCommWindowRegister", "comm world bytes 40960"), 4);
    assert_int_equal(log_lines("ncclCommWindowRegister", "comm row bytes 40960"), 4);
    assert_int_equal(log_lines("ncclCommWindowRegister", "comm late bytes 40960"), 2);
    processes_renew();
    begin(4, &(struct scene){.fault = "split-late@0,split-late@1,split-late@2,split-late@3"}, groups);
    all_end_well(4);
    processes_renew();
    begin(4, &(struct scene){.zero_ctas = 4, .sm_limit = 12}, groups);
    all_end_well(4);
    /* one for gathers of each communicator */
    assert_int_equal(log_lines("ncclCommSplit", "policy 2"), 4 + 4 + 4 + 2);
    /* with both of each rank */
    assert_int_equal(log_lines("ncclCommWindowRegister", "comm world bytes 40960"), 8);
    assert_int_equal(log_lines("ncclCommWindowRegister", "comm row bytes 40960"), 8);
    assert_int_equal(log_lines("ncclCommWindowRegister", "comm late bytes 40960"), 4);
    processes_renew();
    begin(2, &(struct scene){.zero_ctas = 1}, gathers);
    all_end_well(2);
    assert_int_equal(log_lines("ncclCommSplit", ""), 0); /* not all ask for it */
    processes_renew();
    begin(4, &(struct scene){.library = "21700", .sm_limit = 12}, groups);
    all_end_well(4);
    assert_int_equal(log_lines("ncclCommInitRankConfig", "policy -1"), 4 + 4 + 4 + 2);
    assert_int_equal(log_lines("ncclCommSplit", ""), 0);
    processes_renew();
    /* it has no such limit yet */
    begin(4, &(struct scene){.library = "21700", .versions = "21605,21605,21605,21605", .sm_limit = 12}, groups);
    all_end_well(4);
    assert_int_equal(log_lines("ncclCommInitRankConfig", "ctas 0..0"), 4 + 4 + 4 + 2);
    processes_renew();
    begin(4, &(struct scene){.per_host = 1, .zero_ctas = 4, .sm_limit = 12}, groups);
    all_end_well(4);
    /* gathers without multiprocessors stay within a host */
    assert_int_equal(log_lines("ncclCommSplit", "policy 2"), 0);
}

/* ---- two streams ---- */

static void one_stream_only(struct dt_comm *c)
{
    NEED(!dt_comm_beside(c));
}

/* Rank 1's first collective, a sum, never ends; gathers by a group of the same ranks go by it on
 * a second stream, until the sum is overdue. Then both streams run dry, and what comes later
 * fails. */
static void gathers_go_by(struct dt_comm *c)
{
    struct dt_error err = {0}, *why = &told[c->rank].error;
    struct dt_comm *gather = NULL;
    struct dt_stream *second = NULL;
    void *arena = NULL, *sums = device_bytes(400);
    NEED(dt_comm_beside(c));
    NEED(dt_comm_split(c, 0, "gather", &gather, &err) == 0 && dt_comm_alloc(c, 4096, &arena, &err) == 0);
    NEED(dt_stream_open(&device, 1, &second, &err) == 0);
    struct dt_event *summed = NULL, *gathered = NULL; /* made and closed while nothing runs: some
                                                       * of that waits for the whole device */
    NEED(dt_event_open(&device, &summed, &err) == 0 && dt_event_open(&device, &gathered, &err) == 0);
    const struct dt_collective sum = {DT_ALL_REDUCE, DT_SUM, "late", sums, sums, 100, DT_F32, 0};
    const struct dt_collective all = {DT_ALL_GATHER, DT_SUM, "g", (char *)arena + 256 * c->rank, arena, 64, DT_F32, 0};
    dt_comm_start(c, &sum, stream);
    for (int i = 0; i < 5; i++) {
        dt_comm_start(gather, &all, second);
    }
    dt_event_record(summed, stream);
    dt_event_record(gathered, second);
    NEED(dt_event_sync(gathered, PATIENCE_S, &err) == 0);
    NEED(dt_event_sync(summed, 0.02, &err) != 0 && err.status == DT_TIMEOUT);
    double end_s = dt_now_s() + PATIENCE_S;
    while (dt_comm_poll(c, why) == 0) {
        NEED(dt_now_s() < end_s);
        dt_sleep_s(0.002);
    }
    while (dt_comm_poll(gather, &err) == 0) {
        NEED(dt_now_s() < end_s);
        dt_sleep_s(0.002);
    }
    dt_comm_start(gather, &all, second);
    /* it stands there no more */
    NEED(dt_stream_finish(stream, 20, &err) == 0 || dt_stream_failed(stream, NULL));
    NEED(dt_stream_finish(second, 20, &err) != 0 && dt_stream_failed(second, &err) && err.status == why->status);
    dt_event_close(summed);
    dt_event_close(gathered);
    dt_stream_close(second);
    dt_comm_close(gather);
}

static void a_late_sum_holds_up_no_gather(void **unused)
{
    (void)unused;
    for (int zero_ctas = 0; zero_ctas <= 2; zero_ctas += 2) {
        begin(2, &(struct scene){.fault = "hang@1:1", .timeout_s = 4, .zero_ctas = zero_ctas}, gathers_go_by);
        all_end_well(2);
        for (int r = 0; r < 2; r++) {
            assert_int_equal(told[r].error.status, DT_TIMEOUT);
            assert_non_null(strstr(told[r].error.text, "all_reduce late of 100 F32 (number 1): no end in 4 s"));
        }
        processes_renew();
    }
}

/* Where not all ranks have such an order, or no children of communicators. */
static void nothing_goes_by_without_an_order(void **unused)
{
    (void)unused;
    static const struct scene scenes[] = {
        {.unordered = 1}, {.versions = "22509,22509,22509"}, {.library = "21700"}, {.poor = 1}};
    for (size_t i = 0; i < sizeof scenes / sizeof scenes[0]; i++) {
        begin(3, &scenes[i], one_stream_only);
        all_end_well(3);
        processes_renew();
    }
}

static void a_refused_window_costs_nothing_else(void **unused)
{
    (void)unused;
    begin(2, &(struct scene){.fault = "window@0,window@1"}, gathers);
    all_end_well(2);
    assert_int_equal(log_lines("ncclCommWindowRegister", ""), 0);
    assert_int_equal(log_lines("ncclAllGather", ""), 2);
}

/* ---- what goes wrong ---- */

static void work_on_device(struct dt_comm *c)
{
    struct told *mine = &told[c->rank];
    void *arena = NULL;
    const int64_t n = 50000;
    struct dt_event *done = NULL;
    NEED(dt_event_open(&device, &done, &mine->error) == 0 &&
         dt_comm_alloc(c, (size_t)n * 4, &arena, &mine->error) == 0);
    for (int64_t i = 1; dt_comm_poll(c, &mine->error) == 0; i++) {
        atomic_store(&mine->count, i);
        dt_comm_start(
            c, &(struct dt_collective){DT_ALL_REDUCE, DT_SUM, "work", arena, arena, i % 2 == 0 ? 100 : n, DT_F32, 0},
            stream);
        dt_event_record(done, stream);
        while (dt_event_sync(done, 0.02, &mine->error) != 0 && dt_comm_poll(c, &mine->error) == 0) {
        }
    }
    NEED(dt_comm_poll(c, &mine->error) != 0); /* it stays so */
}

static void killed_rank_is_named(void **unused)
{
    (void)unused;
    for (int victim = 0; victim < 3; victim += 2) {
        for (int hosts = 0; hosts < 2; hosts++) {
            char who[32];
            (void)snprintf(who, sizeof who, hosts != 0 ? "host h%d" : "rank %d", victim);
            begin(3, &(struct scene){.timeout_s = 60, .per_host = hosts}, work_on_device);
            wait_for_count(victim, 20);
            double begin_s = dt_now_s();
            if (hosts != 0) {
                assert_int_equal(kill(pids[victim], SIGKILL), 0);
                for (int r = 0; r < 3; r++) {
                    if (r != victim) {
                        assert_int_equal(end(r), 0);
                        assert_int_equal(told[r].error.status, DT_PEER);
                    }
                }
                assert_true(WIFSIGNALED(end(victim)));
            } else {
                kill_and_check(victim, 3, who);
            }
            assert_true(dt_now_s() - begin_s < 10);
            processes_renew();
        }
    }
}

/* Before 2.29.7 nothing ends a kernel over windows that waits for a lost rank, so there are
 * none, unless all ask for gathers that nothing ends either. */
static void nothing_runs_that_no_abort_ends(void **unused)
{
    (void)unused;
    begin(3, &(struct scene){.timeout_s = 60, .versions = "22809,22809,22809"}, work_on_device);
    wait_for_count(2, 20);
    double begin_s = dt_now_s();
    kill_and_check(2, 3, "rank 2");
    assert_true(dt_now_s() - begin_s < 10);
    assert_int_equal(log_lines("ncclCommWindowRegister", ""), 0);
    processes_renew();
    begin(3, &(struct scene){.versions = "22809,22809,22809", .zero_ctas = 3}, gathers);
    all_end_well(3);
    assert_int_equal(log_lines("ncclCommWindowRegister", ""), 6);
    processes_renew();
    begin(3, &(struct scene){.versions = "22809,22809,22809", .zero_ctas = 2}, gathers);
    all_end_well(3);
    assert_int_equal(log_lines("ncclCommWindowRegister", ""), 0);
}

/* Rank 1 sits in a launch when rank 2 is lost. */
static void a_launch_that_sits_hides_nobody(void **unused)
{
    (void)unused;
    static const char *const libraries[] = {"21700", "22907"};
    for (size_t i = 0; i < 2; i++) {
        begin(3, &(struct scene){.timeout_s = 60, .fault = "launch-hang@1:7", .library = libraries[i]}, work_on_device);
        wait_for_count(1, 7);
        dt_sleep_s(0.2);
        double begin_s = dt_now_s();
        kill_and_check(2, 3, "rank 2");
        assert_true(dt_now_s() - begin_s < 10);
        processes_renew();
    }
}

/* Many collectives with no wait between, of which few find room in the driver's queue; each
 * doubles or trebles what the one before left. */
static void ahead(struct dt_comm *c)
{
    struct told *mine = &told[c->rank];
    enum { TIMES = 100 };
    int64_t *x = device_bytes(8), *host = (int64_t *)(void *)pinned_bytes(8);
    uint64_t want = 1;
    host[0] = 1;
    dt_stream_copy(stream, x, host, 8);
    for (int64_t i = 1; i <= TIMES; i++, want *= (uint64_t)c->size) {
        atomic_store(&mine->count, i);
        if (i == TIMES / 2 && c->size == 3 && c->rank == 2) {
            (void)kill(getpid(), SIGKILL);
        }
        dt_comm_start(c, &(struct dt_collective){DT_ALL_REDUCE, DT_SUM, "ahead", x, x, 1, DT_I64, 0}, stream);
    }
    if (c->size == 3) {
        NEED(dt_comm_poll(c, &mine->error) != 0);
        struct dt_error late = {0};
        NEED(dt_stream_finish(stream, 20, &late) == 0 || late.status != DT_TIMEOUT);
        return;
    }
    dt_stream_copy(stream, host, x, 8);
    finish(c);
    NEED((uint64_t)host[0] == want);
}

static void a_full_queue_hides_nobody(void **unused)
{
    (void)unused;
    static const char *const libraries[] = {"21700", "22907"};
    for (size_t i = 0; i < 2; i++) {
        struct scene x = {.timeout_s = 60, .queue = "4", .library = libraries[i]};
        begin(2, &x, ahead);
        all_end_well(2);
        processes_renew();
        begin(3, &x, ahead);
        assert_true(WIFSIGNALED(end(2)));
        double begin_s = dt_now_s();
        for (int r = 0; r < 2; r++) {
            assert_int_equal(end(r), 0);
            assert_int_equal(told[r].error.status, DT_PEER);
            assert_non_null(strstr(told[r].error.text, "rank 2"));
        }
        assert_true(dt_now_s() - begin_s < 10);
        processes_renew();
    }
}

/* NCCL of rank 1 fails because rank 2 is dying, and says so before anybody else knows. */
static void the_cause_is_told_not_its_echo(void **unused)
{
    (void)unused;
    for (int hosts = 0; hosts < 2; hosts++) {
        begin(3, &(struct scene){.timeout_s = 60, .fault = "echo@1:7", .per_host = hosts}, work_on_device);
        assert_true(WIFSIGNALED(end(2)));
        for (int r = 0; r < 2; r++) {
            assert_int_equal(end(r), 0);
            if (told[r].error.status != DT_PEER || strstr(told[r].error.text, "rank 2") == NULL ||
                strstr(told[r].error.text, "is gone") == NULL) {
                fail_msg("rank %d: status %d, %s", r, (int)told[r].error.status, told[r].error.text);
            }
        }
        processes_renew();
    }
}

/* The text each of `size` ranks ends with, when one of them has a fault in a collective. */
static void ends_with(int size, const struct scene *x, enum dt_status status, const char *part)
{
    begin(size, x, work_on_device);
    all_end_well(size);
    for (int r = 0; r < size; r++) {
        if (told[r].error.status != status || strstr(told[r].error.text, part) == NULL) {
            fail_msg("%s: rank %d: status %d, %s", x->fault, r, (int)told[r].error.status, told[r].error.text);
        }
    }
    processes_renew();
}

static void what_nccl_says_ends_it(void **unused)
{
    (void)unused;
    ends_with(3, &(struct scene){.fault = "error@1:7", .timeout_s = 60}, DT_PEER,
              "rank 1, in all_reduce work of 50000 F32 (number 7): NCCL 2.29.7: ");
    ends_with(2, &(struct scene){.fault = "error@0:4", .timeout_s = 60, .library = "21700"}, DT_PEER,
              "remote process exited or there was a network error");
    /* Without a library that can revoke, and with one that cannot stop it, it is aborted. */
    ends_with(2, &(struct scene){.fault = "error@0:4,revoke-hang@1", .timeout_s = 60}, DT_PEER,
              "rank 0, in all_reduce work of 100 F32 (number 4)");
    assert_int_equal(log_lines("ncclCommAbort", "rank 1 of 2"), 1);
}

/* A gather of the communicator for gathers stands behind a sum of the other one, which fails. */
static void sum_then_gather(struct dt_comm *c)
{
    struct dt_error *err = &told[c->rank].error, late = {0};
    char *x = device_bytes(256);
    dt_comm_start(c, &(struct dt_collective){DT_ALL_REDUCE, DT_SUM, "s", x, x, 4, DT_F32, 0}, stream);
    dt_comm_start(c, &(struct dt_collective){DT_ALL_GATHER, DT_SUM, "g", x + 16 * c->rank, x, 4, DT_F32, 0}, stream);
    double end_s = dt_now_s() + PATIENCE_S;
    while (dt_comm_poll(c, err) == 0) {
        NEED(dt_now_s() < end_s);
        dt_sleep_s(0.002);
    }
    NEED(dt_stream_finish(stream, 8, &late) == 0 || late.status != DT_TIMEOUT);
}

static void what_stands_behind_a_failure_is_let_go(void **unused)
{
    (void)unused;
    begin(2, &(struct scene){.fault = "late-error@1:1", .timeout_s = 60, .zero_ctas = 2}, sum_then_gather);
    all_end_well(2);
}

static void a_hang_ends_by_the_clock(void **unused)
{
    (void)unused;
    ends_with(3, &(struct scene){.fault = "hang@1:6", .timeout_s = 1}, DT_TIMEOUT,
              "in all_reduce work of 100 F32 (number 6): no end in 1 s; missing: nobody, all ranks are in it and NCCL "
              "does not end");
}

/* Rank 1 stays away from the third. */
static void away(struct dt_comm *c)
{
    struct dt_error *err = &told[c->rank].error;
    void *x = device_bytes(64);
    for (int i = 0; i < (c->rank == 1 ? 2 : 3); i++) {
        dt_comm_start(c, &(struct dt_collective){DT_ALL_REDUCE, DT_SUM, i == 2 ? "last" : "first", x, x, 4, DT_F32, 0},
                      stream);
    }
    double end_s = dt_now_s() + PATIENCE_S;
    while (dt_comm_poll(c, err) == 0) {
        NEED(dt_now_s() < end_s);
        dt_sleep_s(0.002);
    }
    struct dt_error late = {0};
    /* the stream is let go */
    NEED(dt_stream_finish(stream, 20, &late) == 0 || late.status != DT_TIMEOUT);
}

static void expect_late(int size, int per_host, const char *words)
{
    begin(size, &(struct scene){.timeout_s = 1, .per_host = per_host}, away);
    all_end_well(size);
    for (int r = 0; r < size; r++) {
        assert_int_equal(told[r].error.status, DT_TIMEOUT);
        if (strstr(told[r].error.text, "in all_reduce last of 4 F32 (number 3): no end in 1 s; missing: ") == NULL ||
            strstr(told[r].error.text, words) == NULL) {
            fail_msg("rank %d: %s", r, told[r].error.text);
        }
    }
    processes_renew();
}

/* By a rank of its host; where it has none, those of others say as much. */
static void who_stays_away_is_named(void **unused)
{
    (void)unused;
    static const char named[] = "missing: rank 1, last in all_reduce first of 4 F32 (number 2)";
    expect_late(3, 0, named);
    expect_late(4, 2, named);
    expect_late(3, 1, "missing: nobody of this host, so a rank of another one is late, or NCCL does not end");
}

/* Rank 1 dies before its gather; the others' streams are let go. */
static void gathers_alone(struct dt_comm *c)
{
    struct dt_error *err = &told[c->rank].error;
    char *x = device_bytes(256);
    if (c->rank == 1) {
        (void)kill(getpid(), SIGKILL);
    }
    dt_comm_start(c, &(struct dt_collective){DT_ALL_GATHER, DT_SUM, "g", x + 16 * c->rank, x, 4, DT_F32, 0}, stream);
    double end_s = dt_now_s() + PATIENCE_S;
    while (dt_comm_poll(c, err) == 0) {
        NEED(dt_now_s() < end_s);
        dt_sleep_s(0.002);
    }
    struct dt_error late = {0};
    NEED(dt_stream_finish(stream, 20, &late) == 0 || late.status != DT_TIMEOUT);
}

static void a_gather_of_a_lost_rank_is_let_go(void **unused)
{
    (void)unused;
    begin(3, &(struct scene){.timeout_s = 60}, gathers_alone);
    for (int r = 0; r < 3; r += 2) {
        assert_int_equal(end(r), 0);
        assert_int_equal(told[r].error.status, DT_PEER);
        assert_non_null(strstr(told[r].error.text, "rank 1"));
    }
    assert_true(WIFSIGNALED(end(1)));
}

static void different(struct dt_comm *c)
{
    struct dt_error *err = &told[c->rank].error;
    void *x = device_bytes(40000);
    dt_comm_start(
        c, &(struct dt_collective){DT_ALL_REDUCE, DT_SUM, "grads 3", x, x, c->rank == 1 ? 9000 : 8000, DT_F32, 0},
        stream);
    double end_s = dt_now_s() + PATIENCE_S;
    while (dt_comm_poll(c, err) == 0) {
        NEED(dt_now_s() < end_s);
        dt_sleep_s(0.002);
    }
}

static void ranks_that_differ_are_named(void **unused)
{
    (void)unused;
    begin(2, &(struct scene){.timeout_s = 60}, different);
    all_end_well(2);
    for (int r = 0; r < 2; r++) {
        const char *text = told[r].error.text;
        if (told[r].error.status != DT_INVALID || strstr(text, "disagree") == NULL ||
            strstr(text, "grads 3 of 9000 F32") == NULL || strstr(text, "grads 3 of 8000 F32") == NULL) {
            fail_msg("rank %d: %s", r, text);
        }
    }
}

static void ordered(struct dt_comm *c)
{
    struct dt_error *err = &told[c->rank].error;
    void *x = device_bytes(64);
    dt_comm_start(c, &(struct dt_collective){DT_ALL_REDUCE, DT_SUM, "sum", x, x, 4, DT_F32, 0}, stream);
    struct dt_event *done = NULL;
    NEED(dt_event_open(&device, &done, err) == 0);
    dt_event_record(done, stream);
    NEED(dt_event_sync(done, 0.2, err) != 0 && err->status == DT_TIMEOUT);
    atomic_store(&told[c->rank].count, 1);
    while (atomic_load(&told[1 - c->rank].count) == 0) { /* the first to obey lets the other go */
        dt_sleep_s(0.001);
    }
    atomic_store(&page->order, DT_ORDER_ABORT);
    NEED(dt_comm_poll(c, err) != 0);
    dt_comm_abort(c);
    struct dt_error late = {0};
    NEED(dt_stream_finish(stream, 20, &late) == 0 || late.status != DT_TIMEOUT);
}

static void an_order_is_obeyed_inside(void **unused)
{
    (void)unused;
    begin(2, &(struct scene){.fault = "hang@0,hang@1", .timeout_s = 600}, ordered);
    all_end_well(2);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(told[r].error.status, DT_STOPPED);
    }
}

static void an_abort_that_hangs_holds_nobody(void **unused)
{
    (void)unused;
    double begin_s = dt_now_s();
    ends_with(2, &(struct scene){.fault = "hang@1:3,revoke-hang@1,abort-hang@1", .timeout_s = 1, .zero_ctas = 2},
              DT_TIMEOUT, "no end in 1 s");
    assert_true(dt_now_s() - begin_s < 30);
}

static void an_end_that_hangs_holds_nobody(void **unused)
{
    (void)unused;
    double begin_s = dt_now_s();
    begin(2, &(struct scene){.fault = "destroy-hang@1"}, gathers);
    all_end_well(2);
    assert_true(dt_now_s() - begin_s < 30);
}

static void opening_has_a_deadline_and_reasons(void **unused)
{
    (void)unused;
    none_opens(3, &(struct scene){.fault = "init-hang@1", .open_timeout_s = 2}, DT_TIMEOUT,
               "NCCL 2.29.7: ncclCommInitRankConfig: no end in 2 s");
    none_opens(3, &(struct scene){.fault = "init-hang@1", .open_timeout_s = 2, .library = "21700"}, DT_TIMEOUT,
               "no end in 2 s");
    none_opens(2, &(struct scene){.fault = "init-error@1"}, DT_IO,
               "rank 1: NCCL 2.29.7: ncclCommInitRankConfig: unhandled system error: a test wants it so");
    none_opens(2, &(struct scene){.fault = "init-full@1"}, DT_NO_MEMORY,
               "unhandled cuda error of GPU 1 (software GPU, bus 0000:02:00.0): Failed to CUDA calloc 536870912 bytes; "
               "leave it more of the GPU");
    none_opens(2, &(struct scene){.versions = "22907,22703"}, DT_INVALID, "rank 0 has NCCL 2.29.7 (");
    none_opens(3, &(struct scene){.versions = "22907,22907,22703", .per_host = 1}, DT_INVALID, "rank 0 on host ");
    none_opens(3, &(struct scene){.versions = "22907,22907,22703", .per_host = 1}, DT_INVALID, "rank 2 on host ");
    none_opens(2, &(struct scene){.library = "21200"}, DT_INVALID, "too old, 2.14 is the least");
    none_opens(2, &(struct scene){.library = "none"}, DT_NOT_FOUND,
               "rank 0: NCCL: DTRUN_NCCL=/nonexistent/libnccl.so.2: ");
}

static void no_room(struct dt_comm *c)
{
    void *arena = NULL;
    NEED(dt_comm_alloc(c, 4096, &arena, &told[c->rank].error) != 0);
}

/* Where only some could call a function, none does: the others would wait for them there. */
static void what_one_library_lacks_nobody_uses(void **unused)
{
    (void)unused;
    for (int hosts = 0; hosts < 2; hosts++) {
        begin(4, &(struct scene){.poor = 1 + hosts, .per_host = hosts, .open_timeout_s = 20, .zero_ctas = 4}, groups);
        all_end_well(4);
        assert_int_equal(log_lines("ncclCommInitRankConfig", "comm world"), 4);
        assert_int_equal(log_lines("ncclCommInitRankConfig", "comm row"), 4);
        assert_int_equal(log_lines("ncclCommSplit", ""), 0);
        assert_int_equal(log_lines("ncclCommWindowRegister", ""), 0);
        processes_renew();
    }
}

static void memory_that_one_rank_lacks_is_everybodys(void **unused)
{
    (void)unused;
    begin(2, &(struct scene){.fault = "no-memory@1"}, no_room);
    all_end_well(2);
    for (int r = 0; r < 2; r++) {
        assert_non_null(strstr(told[r].error.text, "rank 1: NCCL 2.29.7: ncclMemAlloc of 4096 bytes"));
    }
}

/* What is registered when that fails is freed when NCCL has ended, not before. */
static void a_window_that_fails_is_everybodys(void **unused)
{
    (void)unused;
    begin(3, &(struct scene){.fault = "window-error@1"}, no_room);
    all_end_well(3);
    for (int r = 0; r < 3; r++) {
        if (strstr(told[r].error.text, "rank 1: NCCL 2.29.7: ") == NULL ||
            strstr(told[r].error.text, "unhandled system error: a test wants") == NULL) {
            fail_msg("rank %d: %s", r, told[r].error.text);
        }
    }
}

int main(int argc, char **argv)
{
    (void)snprintf(folder, sizeof folder, "%.*s/..",
                   (int)(strrchr(argv[0], '/') != NULL ? strrchr(argv[0], '/') - argv[0] : 0), argv[0]);
    (void)snprintf(log_path, sizeof log_path, "/tmp/test_cuda_nccl.%d", (int)getpid());
#define TEST(name) cmocka_unit_test_setup_teardown(name, processes_setup, processes_teardown)
    const struct CMUnitTest tests[] = {
        TEST(collectives_are_right),
        TEST(an_old_library_does),
        TEST(ranks_of_several_hosts),
        TEST(groups_are_split_off),
        TEST(a_late_sum_holds_up_no_gather),
        TEST(nothing_goes_by_without_an_order),
        TEST(a_refused_window_costs_nothing_else),
        TEST(killed_rank_is_named),
        TEST(nothing_runs_that_no_abort_ends),
        TEST(a_launch_that_sits_hides_nobody),
        TEST(a_full_queue_hides_nobody),
        TEST(the_cause_is_told_not_its_echo),
        TEST(what_nccl_says_ends_it),
        TEST(what_stands_behind_a_failure_is_let_go),
        TEST(a_hang_ends_by_the_clock),
        TEST(who_stays_away_is_named),
        TEST(a_gather_of_a_lost_rank_is_let_go),
        TEST(ranks_that_differ_are_named),
        TEST(an_order_is_obeyed_inside),
        TEST(an_abort_that_hangs_holds_nobody),
        TEST(an_end_that_hangs_holds_nobody),
        TEST(opening_has_a_deadline_and_reasons),
        TEST(what_one_library_lacks_nobody_uses),
        TEST(memory_that_one_rank_lacks_is_everybodys),
        TEST(a_window_that_fails_is_everybodys),
    };
    if (argc > 1) {
        cmocka_set_test_filter(argv[1]);
    }
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    (void)unlink(log_path);
    return rc;
}
