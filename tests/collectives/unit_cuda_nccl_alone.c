/* covers: collectives/nccl_load.c collectives/nccl.c */
/* NCCL's functions as the backend calls them, by a communicator of one rank: what one GPU can
 * show of the real library (its settings, states, memory, windows, children, ends) before two
 * meet. On the software GPU it is the fake (tests/softgpu/nccl). */
#include "base/clock.h"
#include "collectives/nccl_load.h"
#include "kernels/kernels.h"
#include "tests/lib/device_cases.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LONG_S DEVICE_CASE_LONG_S
enum { COUNT = 1 << 20, PIECE = COUNT / 4 };

extern uint64_t softgpu_graphs __attribute__((weak)); /* the software GPU has it */

static const struct dt_nccl *lib; /* null: NCCL is not here */
static struct dt_device device;
static struct dt_stream *stream;
static float *seen; /* pinned, COUNT */

static int open_all(void **state)
{
    (void)state;
    struct dt_error err = {0};
    device_case_open(&device, &(struct device_case){"cuda", DT_STREAMS_AUTO});
    assert_int_equal(dt_stream_open(&device, 0, &stream, NULL), 0);
    assert_int_equal(dt_device_alloc(&device, DT_MEMORY_PINNED, COUNT * sizeof *seen, (void **)&seen, NULL), 0);
    lib = dt_nccl_load(&err);
    (void)fprintf(stderr, "NCCL %s %s\n", lib != NULL ? lib->number : err.text, lib != NULL ? lib->path : "");
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    dt_device_free(&device, DT_MEMORY_PINNED, seen, COUNT * sizeof *seen);
    dt_stream_close(stream);
    dt_device_close(&device);
    return 0;
}

/* After a call: until it is through. */
static void settle(nccl_comm c, int rc, const char *what)
{
    double end_s = dt_now_s() + LONG_S;
    int state = NCCL_IN_PROGRESS;
    while ((rc == NCCL_SUCCESS || rc == NCCL_IN_PROGRESS) && state == NCCL_IN_PROGRESS && dt_now_s() < end_s) {
        rc = lib->async_error(c, &state);
        dt_sleep_s(1e-3);
    }
    if (rc != NCCL_SUCCESS || state != NCCL_SUCCESS) {
        fail_msg("%s gave %d, then %d: %s; %s", what, rc, state, lib->error_string(rc != NCCL_SUCCESS ? rc : state),
                 lib->last_error(NULL));
    }
}

static struct nccl_config make_config(void)
{
    struct nccl_config config = NCCL_CONFIG;
    config.blocking = 0;
    config.name = "alone"; /* NCCL keeps the pointer */
    config.least_ctas = 1;
    config.most_ctas = 16;
    if (dt_nccl_has_policies(lib)) {
        config.cta_policy = NCCL_CTA_EFFICIENCY;
    }
    return config;
}

static nccl_comm open_comm(void)
{
    struct nccl_id id;
    nccl_comm c = NULL;
    struct nccl_config config = make_config();
    dt_device_use(&device);
    assert_int_equal(lib->get_id(&id), NCCL_SUCCESS);
    int rc = lib->init(&c, 1, id, 0, &config);
    assert_non_null(c);
    settle(c, rc, "ncclCommInitRankConfig");
    return c;
}

/* Its children are gone. */
static void end_comm(nccl_comm c)
{
    settle(c, lib->finalize(c), "ncclCommFinalize");
    assert_int_equal(lib->destroy(c), NCCL_SUCCESS);
}

/* Memory as arenas have it: NCCL's own where the version has windows. */
static float *take_memory(void)
{
    void *p = NULL;
    int rc = (dt_nccl_features(lib) & DT_NCCL_WINDOWS) != 0
                 ? lib->mem_alloc(&p, COUNT * sizeof(float))
                 : dt_device_alloc(&device, DT_MEMORY_DEVICE, COUNT * sizeof(float), &p, NULL);
    assert_int_equal(rc, 0);
    return p;
}

static void give_memory(float *p)
{
    if ((dt_nccl_features(lib) & DT_NCCL_WINDOWS) != 0) {
        assert_int_equal(lib->mem_free(p), NCCL_SUCCESS);
    } else {
        dt_device_free(&device, DT_MEMORY_DEVICE, p, COUNT * sizeof(float));
    }
}

static nccl_window take_window(nccl_comm c, float *memory)
{
    nccl_window w = NULL;
    if ((dt_nccl_features(lib) & DT_NCCL_WINDOWS) != 0) {
        settle(c, lib->window(c, memory, COUNT * sizeof(float), &w, NCCL_SYMMETRIC), "ncclCommWindowRegister");
    }
    return w; /* null: this library or device has none */
}

static void give_window(nccl_comm c, nccl_window w)
{
    if (w != NULL) {
        assert_int_equal(lib->window_end(c, w), NCCL_SUCCESS);
    }
}

static void fill(float *p, int64_t count, double value)
{
    device.kernels->fill(stream, &(struct dt_fill_args){.x = p, .count = count, .value = value, .type = DT_F32});
}

/* Of one rank each collective is a copy: from `in`, filled anew, to `out`, or in place. */
static void check_collectives(nccl_comm c, float *memory)
{
    enum { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, KINDS };
    static const char *const names[KINDS] = {"ncclAllReduce", "ncclReduceScatter", "ncclAllGather", "ncclBroadcast"};
    static const struct {
        int type;
        size_t size;
    } types[] = {{NCCL_F32, 4}, {NCCL_BF16, 2}, {NCCL_I64, 8}, {NCCL_I32, 4}, {NCCL_F64, 8}, {NCCL_U8, 1}};
    void *native = dt_stream_native(stream);
    float *in = memory, *out = memory + PIECE;
    for (int kind = 0; kind < KINDS; kind++) {
        for (size_t i = 0; i < 2 * sizeof types / sizeof types[0]; i++) {
            bool in_place = i % 2 == 1;
            size_t count = PIECE * sizeof(float) / types[i / 2].size;
            int type = types[i / 2].type, rc = NCCL_SUCCESS;
            float *to = in_place ? in : out, value = 1.5f + (float)(kind * 16) + (float)i;
            if (type == NCCL_U8 && kind <= REDUCE_SCATTER) {
                continue; /* bytes are moved, never added */
            }
            fill(memory, COUNT, -1);
            fill(in, PIECE, (double)value);
            rc = kind == ALL_REDUCE       ? lib->all_reduce(in, to, count, type, NCCL_SUM, c, native)
                 : kind == REDUCE_SCATTER ? lib->reduce_scatter(in, to, count, type, NCCL_MAX, c, native)
                 : kind == ALL_GATHER     ? lib->all_gather(in, to, count, type, c, native)
                                          : lib->broadcast(in, to, count, type, 0, c, native);
            settle(c, rc, names[kind]);
            dt_stream_copy(stream, seen, memory, COUNT * sizeof *seen);
            assert_int_equal(dt_stream_finish(stream, LONG_S, NULL), 0);
            size_t first = in_place ? 0 : PIECE;
            for (size_t k = 0; k < COUNT; k++) {
                bool written = k < PIECE || (k >= first && k < first + PIECE);
                if (seen[k] != (written ? value : -1)) {
                    fail_msg("%s of type %d%s: element %zu is %g", names[kind], type, in_place ? " in place" : "", k,
                             (double)seen[k]);
                }
            }
        }
    }
}

static void test_all_that_is_called(void **state)
{
    (void)state;
    if (lib == NULL) {
        skip();
    }
    nccl_comm c = open_comm(), child = NULL, none = NULL;
    float *memory = take_memory();
    nccl_window window = take_window(c, memory), childs = NULL;
    check_collectives(c, memory);
    if (lib->split != NULL) {
        struct nccl_config config = make_config();
        settle(c, lib->split(c, 0, 0, &child, &config), "ncclCommSplit");
        assert_non_null(child);
        settle(child, NCCL_SUCCESS, "ncclCommSplit");
        settle(c, lib->split(c, NCCL_NO_COLOR, 0, &none, &config), "ncclCommSplit without a color");
        assert_null(none);
        childs = take_window(child, memory);
        check_collectives(child, memory);
        give_window(child, childs);
        end_comm(child);
    }
    check_collectives(c, memory);
    give_window(c, window);
    end_comm(c);
    give_memory(memory);
}

/* As after a lost rank: revoked where the version has that, then aborted, in both orders of what
 * may be under way. A new one is no worse for it. */
static void test_stopped(void **state)
{
    (void)state;
    if (lib == NULL) {
        skip();
    }
    for (int revoked = 0; revoked < (lib->revoke != NULL ? 2 : 1); revoked++) {
        nccl_comm c = open_comm();
        float *memory = take_memory();
        (void)take_window(c, memory);
        fill(memory, COUNT, 1);
        settle(c, lib->all_reduce(memory, memory, COUNT, NCCL_F32, NCCL_SUM, c, dt_stream_native(stream)),
               "ncclAllReduce");
        if (revoked) {
            settle(c, lib->revoke(c, 0), "ncclCommRevoke");
        }
        assert_int_equal(lib->abort(c), NCCL_SUCCESS);
        assert_int_equal(dt_stream_finish(stream, LONG_S, NULL), 0);
        give_memory(memory);
    }
    nccl_comm c = open_comm();
    float *memory = take_memory();
    check_collectives(c, memory);
    end_comm(c);
    give_memory(memory);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_that_is_called),
        cmocka_unit_test(test_stopped),
    };
    const char *slash = argc > 0 ? strrchr(argv[0], '/') : NULL;
    if (&softgpu_graphs != NULL) {
        char fake[500];
        (void)snprintf(fake, sizeof fake, "%.*s/../softgpu/nccl/22907/libnccl.so.2",
                       slash != NULL ? (int)(slash - argv[0]) : 1, slash != NULL ? argv[0] : ".");
        (void)setenv("DTRUN_NCCL", fake, 1);
    }
    return cmocka_run_group_tests(tests, open_all, close_all);
}
