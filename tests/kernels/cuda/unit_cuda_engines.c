/* covers: kernels/cuda/attention_plan.h */
/* How cuDNN's engines and kernels of our own are chosen at a start: measured once, kept in the plan
 * file, the same for all who share it. On the software GPU, one of whose proposals is made
 * fast.   run: timeout 120 */
#include "base/file.h"
#include "base/text.h"
#include "kernels/cuda/attention_plan.h"
#include "tests/lib/attention_shape.h"
#include "tests/lib/child.h"
#include "tests/lib/folder.h"
#include "tests/lib/plan_cache.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
// clang-format off: needs the headers above
#include <cmocka.h>
// clang-format on

int softgpu_dnn_plans(void), softgpu_dnn_executions(void), softgpu_dnn_late_plans(void);
int softgpu_dnn_ran(int proposal), softgpu_dnn_adding(void);

enum { PROPOSALS = 8, ADDRESS = 40 };

struct gpu {
    struct dt_device d;
    struct dt_stream *s;
    struct attention_shape n;
    void *block;
    size_t size_bytes, work_bytes;
    struct dt_attention_args forward;
    struct dt_attention_backward_args backward;
};

static const struct attention_shape common = {2, 33, 2, 16, 0, true, 0, 1};

static void open_gpu_of(struct gpu *g, const struct attention_shape *n, size_t work_bytes)
{
    struct dt_error err = {0};
    char *tensors[TENSORS];
    memset(g, 0, sizeof *g);
    g->n = *n;
    if (dt_device_open(&g->d, "cuda", NULL, &err) != 0 || dt_stream_open(&g->d, 0, &g->s, &err) != 0) {
        fail_msg("%s", err.text);
    }
    for (int i = 0; i < TENSORS; i++) {
        g->size_bytes += (attention_bytes(n, (enum attention_tensor)i) + 255) / 256 * 256;
    }
    assert_int_equal(dt_device_alloc(&g->d, DT_MEMORY_DEVICE, g->size_bytes + work_bytes, &g->block, &err), 0);
    char *at = g->block;
    for (int i = 0; i < TENSORS; i++) {
        tensors[i] = at;
        at += (attention_bytes(n, (enum attention_tensor)i) + 255) / 256 * 256;
    }
    g->forward = attention_args(n, tensors);
    g->backward = attention_backward_args(n, tensors);
    g->backward.work = work_bytes > 0 ? at : NULL;
    g->backward.work_bytes = work_bytes;
    g->work_bytes = work_bytes;
}

static void open_gpu(struct gpu *g)
{
    open_gpu_of(g, &common, 0);
}

static void close_gpu(struct gpu *g)
{
    dt_stream_close(g->s);
    dt_device_free(&g->d, DT_MEMORY_DEVICE, g->block, g->size_bytes + g->work_bytes);
    dt_device_close(&g->d);
}

/* As a run's start, where addresses are none. */
static struct dt_attention_list wanted(const struct gpu *g, struct dt_attention_args *forward,
                                       struct dt_attention_backward_args *backward)
{
    void *nowhere = (void *)((uintptr_t)1 << ADDRESS);
    *forward = g->forward;
    *backward = g->backward;
    forward->q = forward->k = forward->v = forward->out = nowhere;
    forward->lse = nowhere;
    backward->q = backward->k = backward->v = backward->out = backward->dout = nowhere;
    backward->dq = backward->dk = backward->dv = nowhere;
    backward->lse = nowhere;
    backward->work = backward->work != NULL ? nowhere : NULL;
    return (struct dt_attention_list){forward, 1, backward, 1};
}

static int choose(struct gpu *g, struct dt_error *why)
{
    struct dt_attention_args forward;
    struct dt_attention_backward_args backward;
    struct dt_attention_list all = wanted(g, &forward, &backward);
    struct dt_error err = {0};
    int measured = -1;
    if (g->d.ops->plans->choose_attention(g->s, &all, NULL, NULL, &measured, why, &err) != 0) {
        fail_msg("%s", err.text);
    }
    return measured;
}

static void tell(struct gpu *g, struct dt_text *out)
{
    struct dt_attention_args forward;
    struct dt_attention_backward_args backward;
    struct dt_attention_list all = wanted(g, &forward, &backward);
    g->d.ops->plans->tell_attention(&g->d, &all, out);
}

/* Both passes; the proposal that computed both, otherwise -1. */
static int compute(struct gpu *g)
{
    struct dt_error err = {0};
    int before[PROPOSALS], which = -1, count = 0;
    for (int i = 0; i < PROPOSALS; i++) {
        before[i] = softgpu_dnn_ran(i);
    }
    g->d.kernels->attention(g->s, &g->forward);
    g->d.kernels->attention_backward(g->s, &g->backward);
    if (dt_stream_finish(g->s, 60, &err) != 0) {
        fail_msg("%s", err.text);
    }
    for (int i = 0; i < PROPOSALS; i++) {
        int ran = softgpu_dnn_ran(i) - before[i];
        which = ran == 0 ? which : count == 0 && ran == 2 ? i : -1;
        count += ran;
    }
    return count == 2 ? which : -1;
}

static void set_number(const char *variable, int value)
{
    char text[12];
    (void)snprintf(text, sizeof text, "%d", value);
    (void)setenv(variable, text, 1);
}

static void the_fastest_is_kept(void **state)
{
    (void)state;
    (void)setenv("SOFTGPU_CUDNN", "engines 4", 1);
    for (int fast = 0; fast < 4; fast++) {
        struct gpu g;
        struct dt_error why;
        plan_cache_use("fastest", true);
        set_number("SOFTGPU_CUDNN_FAST", fast);
        open_gpu(&g);
        assert_int_equal(choose(&g, &why), 2);
        assert_int_equal(why.status, DT_OK);
        int plans = softgpu_dnn_plans(), late = softgpu_dnn_late_plans();
        assert_int_equal(choose(&g, &why), 0);
        assert_int_equal(softgpu_dnn_plans() - plans, 0);
        assert_int_equal(compute(&g), fast);
        assert_int_equal(compute(&g), fast);
        assert_int_equal(softgpu_dnn_plans() - plans, 2);
        assert_int_equal(softgpu_dnn_late_plans() - late, 1); /* backward's: nobody made it
                                                               * before forward ran */
        close_gpu(&g);
        /* another start, where another would be faster now: nothing is measured, nothing changes */
        set_number("SOFTGPU_CUDNN_FAST", (fast + 1) % 4);
        open_gpu(&g);
        int executions = softgpu_dnn_executions();
        assert_int_equal(choose(&g, &why), 0);
        assert_int_equal(softgpu_dnn_executions() - executions, 0);
        assert_int_equal(compute(&g), fast);
        close_gpu(&g);
    }
    (void)unsetenv("SOFTGPU_CUDNN_FAST");
    (void)unsetenv("SOFTGPU_CUDNN");
}

/* However many are proposed, four are compiled, and two of backward's by another part. */
static void few_are_looked_at(void **state)
{
    (void)state;
    struct gpu g;
    struct dt_error why;
    struct attention_shape two = common;
    two.positions = 32;
    (void)setenv("SOFTGPU_CUDNN", "engines 8", 1);
    set_number("SOFTGPU_CUDNN_FAST", 6);
    plan_cache_use("few", true);
    open_gpu_of(&g, &two, 0);
    int plans = softgpu_dnn_plans();
    assert_int_equal(choose(&g, &why), 2);
    assert_int_equal(softgpu_dnn_plans() - plans, 4 + 4 + 2);
    (void)compute(&g);
    for (int i = 4; i < PROPOSALS; i++) {
        assert_int_equal(softgpu_dnn_ran(i), 0);
    }
    close_gpu(&g);
    (void)unsetenv("SOFTGPU_CUDNN_FAST");
    (void)unsetenv("SOFTGPU_CUDNN");
}

/* One that has other bits each time is left out however fast it is, and so is one that says it
 * may; and one that cannot be had. */
static void what_has_no_order_is_left_out(void **state)
{
    (void)state;
    static const struct {
        const char *variable, *value, *said;
    } cases[] = {{"SOFTGPU_CUDNN_SHAKY", "1", "cuDNN: engine 0 has other bits each time for the same; left out\n"},
                 {"SOFTGPU_CUDNN_NOTED", "1", NULL},
                 {"SOFTGPU_CUDNN", "last 4001", NULL},
                 {"SOFTGPU_CUDNN", "last 3000", NULL}};
    struct dt_text said;
    dt_text_init(&said);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct gpu g;
        struct dt_error why;
        (void)setenv(cases[i].variable, cases[i].value, 1);
        set_number("SOFTGPU_CUDNN_FAST", 1);
        plan_cache_use("order", true);
        open_gpu(&g);
        int fd = plan_cache_log_begin();
        assert_int_equal(choose(&g, &why), 2);
        plan_cache_log_end(fd, &said);
        if (cases[i].said != NULL ? strstr(dt_text_str(&said), cases[i].said) == NULL : said.size > 0) {
            fail_msg("%s=%s: %s", cases[i].variable, cases[i].value, dt_text_str(&said));
        }
        assert_int_equal(compute(&g), 0);
        close_gpu(&g);
        (void)unsetenv(cases[i].variable);
    }
    (void)unsetenv("SOFTGPU_CUDNN_FAST");
    dt_text_clear(&said);
}

/* Backward in no order was asked for: then one without is as good as others. In a process of its
 * own, as what is asked for is read once. */
static int choose_without_order(void)
{
    struct gpu g;
    struct dt_error why;
    (void)setenv("DTRUN_ATTENTION", "fast", 1);
    (void)setenv("SOFTGPU_CUDNN_NOTED", "1", 1);
    (void)setenv("SOFTGPU_CUDNN_SHAKY", "1", 1);
    set_number("SOFTGPU_CUDNN_FAST", 1);
    plan_cache_use("fast", true);
    open_gpu(&g);
    int measured = choose(&g, &why), before = softgpu_dnn_ran(1);
    (void)compute(&g);
    int ran = softgpu_dnn_ran(1) - before;
    close_gpu(&g);
    return measured == 2 && ran == 1 ? 0 : 1; /* forward always has an order */
}

/* Both graphs of backward compete, and the file says which one won. */
static int choose_a_graph(void)
{
    struct dt_text text;
    dt_text_init(&text);
    (void)setenv("DTRUN_ATTENTION", "fast", 1);
    for (int sums = 0; sums < 2; sums++) {
        struct gpu g;
        struct dt_error why;
        int64_t row[12] = {0};
        plan_cache_use("graph", true);
        set_number("SOFTGPU_CUDNN_SUMS", sums);
        open_gpu(&g);
        CHECK(choose(&g, &why) == 2);
        dt_text_reset(&text);
        tell(&g, &text);
        /* head, device, forward, backward: the shape, room, causal, backward, sums, own, f16, scale, part, graph */
        char *line = text.data;
        for (int i = 0; i < 3; i++) {
            line = strchr(line, '\n') + 1;
        }
        CHECK(sscanf(line, "%ld %ld %ld %ld %ld %ld %ld %ld %ld %ld %*d %*x %ld %ld", &row[0], &row[1], &row[2],
                     &row[3], &row[4], &row[5], &row[6], &row[7], &row[8], &row[9], &row[10], &row[11]) == 12);
        CHECK(row[7] == 1 && row[8] == 1 && row[9] == 1 && row[10] == 2 && row[11] == sums);
        int executions = softgpu_dnn_executions(), adding = softgpu_dnn_adding();
        (void)compute(&g);
        CHECK(softgpu_dnn_executions() == executions + 2 && softgpu_dnn_adding() == adding + sums);
        close_gpu(&g);
    }
    dt_text_clear(&text);
    return 0;
}

/* cuDNN is left out: nothing is measured, no file is looked at. */
static int choose_without_library(void)
{
    struct gpu g;
    struct dt_error why;
    struct dt_text text;
    (void)setenv("DTRUN_ATTENTION", "own", 1);
    plan_cache_use("own", true);
    dt_text_init(&text);
    open_gpu(&g);
    int measured = choose(&g, &why);
    tell(&g, &text);
    bool none = text.size == 0 && measured == 0 && softgpu_dnn_plans() == 0 && access(getenv("DTRUN_CACHE"), F_OK) != 0;
    close_gpu(&g);
    dt_text_clear(&text);
    return none ? 0 : 1;
}

/* Both passes by kernels of our own, and none by the library. */
static bool computes_itself(struct gpu *g)
{
    int64_t forward = dt_cuda_attention_calls(DT_ATTENTION_BY_FLASH, false),
            backward = dt_cuda_attention_calls(DT_ATTENTION_BY_FLASH, true);
    int executions = softgpu_dnn_executions();
    (void)compute(g);
    return dt_cuda_attention_calls(DT_ATTENTION_BY_FLASH, false) == forward + 1 &&
           dt_cuda_attention_calls(DT_ATTENTION_BY_FLASH, true) == backward + 1 &&
           softgpu_dnn_executions() == executions;
}

/* Kernels of our own are kept where all of the library's are slower, for later starts and other
 * ranks too, and no plan is made. */
static int choose_kernels_of_our_own(void)
{
    struct attention_shape small = {1, 8, 1, 8, 0, true, 0, 1};
    struct gpu g;
    struct dt_error why, err = {0};
    struct dt_text text;
    const char *by = "";
    (void)setenv("DTRUN_ATTENTION", "", 1);
    set_number("SOFTGPU_CUDNN_FAST", -1);
    plan_cache_use("own-faster", true);
    dt_text_init(&text);
    for (int again = 0; again < 2; again++) {
        open_gpu_of(&g, &small, 0);
        CHECK(choose(&g, &why) == (again == 0 ? 2 : 0));
        int plans = softgpu_dnn_plans();
        CHECK(g.d.ops->plans->attention_backward(&g.d, &g.backward, &by, &err) == 0);
        CHECK(strcmp(by, "kernels of our own on tensor cores") == 0);
        CHECK(computes_itself(&g) && softgpu_dnn_plans() == plans);
        dt_text_reset(&text);
        tell(&g, &text);
        close_gpu(&g);
    }
    plan_cache_use("own-taken", true);
    open_gpu_of(&g, &small, 0);
    CHECK(!computes_itself(&g));
    CHECK(g.d.ops->plans->take_attention(&g.d, dt_text_str(&text), true));
    CHECK(computes_itself(&g));
    close_gpu(&g);
    dt_text_clear(&text);
    return 0;
}

/* And not where they are the slower ones, which they are on the software GPU. */
static int choose_the_library(void)
{
    struct gpu g;
    struct dt_error why;
    (void)setenv("DTRUN_ATTENTION", "ordered", 1);
    plan_cache_use("own-slower", true);
    open_gpu(&g);
    CHECK(choose(&g, &why) == 2);
    CHECK(!computes_itself(&g));
    close_gpu(&g);
    return 0;
}

static void wishes_are_heeded(void **state)
{
    (void)state;
    char text[CHILD_TEXT];
    assert_int_equal(child_run(choose_without_order, text), 0);
    assert_int_equal(child_run(choose_a_graph, text), 0);
    assert_int_equal(child_run(choose_without_library, text), 0);
    assert_int_equal(child_run(choose_kernels_of_our_own, text), 0);
    assert_int_equal(child_run(choose_the_library, text), 0);
}

/* Work memory counts: proposals want 40 MiB for a sequence. The caller has 90, so backward is
 * measured and computed by two sequences at a time; forward has the stream's 32 only, and
 * nothing to choose. */
static void parts_are_measured(void **state)
{
    (void)state;
    struct attention_shape four = common;
    struct gpu g;
    struct dt_error why;
    int parts[2], which = 0;
    four.batch = 4;
    four.positions = 32;
    (void)setenv("SOFTGPU_CUDNN", "work 40", 1);
    set_number("SOFTGPU_CUDNN_PART", 2);
    plan_cache_use("parts", true);
    for (int again = 0; again < 2; again++) {
        open_gpu_of(&g, &four, (size_t)90 << 20);
        assert_int_equal(choose(&g, &why), again == 0 ? 1 : 0);
        int before[2] = {softgpu_dnn_ran(0), softgpu_dnn_ran(1)};
        (void)compute(&g);
        for (int i = 0; i < 2; i++) {
            parts[i] = softgpu_dnn_ran(i) - before[i];
        }
        close_gpu(&g);
        which = again == 0 ? parts[1] > 0 : which;
        assert_true(parts[which] == 2 && parts[1 - which] == 0);
    }
    (void)unsetenv("SOFTGPU_CUDNN_PART");
    (void)unsetenv("SOFTGPU_CUDNN");
}

/* Backward's fastest part is kept, however many sequences would fit; forward has the whole batch. */
static void the_fastest_part_is_kept(void **state)
{
    (void)state;
    struct attention_shape four = common;
    four.batch = 4;
    four.positions = 4;
    static const int parts[] = {4, 2, 1};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        struct gpu g;
        struct dt_error why;
        plan_cache_use("part", true);
        set_number("SOFTGPU_CUDNN_PART", parts[i]);
        for (int again = 0; again < 2; again++) {
            open_gpu_of(&g, &four, 0);
            assert_int_equal(choose(&g, &why), again == 0 ? 2 : 0);
            int before = softgpu_dnn_executions();
            (void)compute(&g);
            assert_int_equal(softgpu_dnn_executions() - before, 1 + 4 / parts[i]);
            close_gpu(&g);
        }
    }
    (void)unsetenv("SOFTGPU_CUDNN_PART");
}

/* What another rank chose counts, here and for later starts; `none` goes back to the first
 * proposal. */
static void ranks_take_what_rank_0_chose(void **state)
{
    (void)state;
    struct gpu a, b;
    struct dt_error why;
    struct dt_text text, kept;
    char path[4096];
    dt_text_init(&text);
    dt_text_init(&kept);
    (void)setenv("SOFTGPU_CUDNN", "engines 4", 1);
    plan_cache_use("one", true);
    set_number("SOFTGPU_CUDNN_FAST", 3);
    open_gpu(&a);
    assert_int_equal(choose(&a, &why), 2);
    tell(&a, &text);
    plan_cache_use("two", true);
    set_number("SOFTGPU_CUDNN_FAST", 2);
    open_gpu(&b);
    assert_int_equal(choose(&b, &why), 2);
    assert_int_equal(compute(&b), 2);
    plan_cache_find("attention", path, sizeof path);
    plan_cache_read(path, &kept);
    assert_true(b.d.ops->plans->take_attention(&b.d, dt_text_str(&text), true));
    assert_int_equal(compute(&b), 3);
    close_gpu(&b);
    struct dt_text now;
    dt_text_init(&now);
    plan_cache_read(path, &now); /* the file had a choice, and keeps it */
    assert_string_equal(dt_text_str(&now), dt_text_str(&kept));
    plan_cache_use("three", true);
    open_gpu(&b);
    assert_true(b.d.ops->plans->take_attention(&b.d, dt_text_str(&text), true));
    plan_cache_find("attention", path, sizeof path);
    plan_cache_read(path, &now);
    assert_string_equal(dt_text_str(&now), dt_text_str(&text));
    assert_int_equal(compute(&b), 3);
    b.d.ops->plans->none(&b.d);
    assert_int_equal(compute(&b), 0);
    text.data[text.size / 2] ^= 1;
    assert_false(b.d.ops->plans->take_attention(&b.d, text.data, true));
    assert_int_equal(compute(&b), 0);
    close_gpu(&b);
    close_gpu(&a);
    (void)unsetenv("SOFTGPU_CUDNN_FAST");
    (void)unsetenv("SOFTGPU_CUDNN");
    dt_text_clear(&now);
    dt_text_clear(&kept);
    dt_text_clear(&text);
}

static void what_cannot_be_kept_is_not_measured(void **state)
{
    (void)state;
    struct gpu g;
    struct dt_error why, err;
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/file", folder);
    assert_int_equal(dt_file_write(path, "x", 1, &err), 0);
    plan_cache_use("file/below", false);
    set_number("SOFTGPU_CUDNN_FAST", 1);
    int executions = softgpu_dnn_executions();
    open_gpu(&g);
    assert_int_equal(choose(&g, &why), 0);
    assert_true(why.status != DT_OK);
    assert_int_equal(softgpu_dnn_executions() - executions, 0);
    assert_int_equal(compute(&g), 0);
    close_gpu(&g);
    (void)unsetenv("SOFTGPU_CUDNN_FAST");
}

/* A damaged file, or one of another device, is said once and made anew; an engine that the
 * library has no more is said, and its first proposal taken. */
static void what_a_file_should_not_say(void **state)
{
    (void)state;
    struct gpu g;
    struct dt_error why;
    struct dt_text text, said;
    char path[4096];
    dt_text_init(&text);
    dt_text_init(&said);
    (void)setenv("SOFTGPU_CUDNN", "engines 4", 1);
    set_number("SOFTGPU_CUDNN_FAST", 3);
    plan_cache_use("damaged", true);
    open_gpu(&g);
    assert_int_equal(choose(&g, &why), 2);
    close_gpu(&g);
    plan_cache_find("attention", path, sizeof path);
    plan_cache_read(path, &text);
    int head = (int)(strchr(strchr(text.data, '\n') + 1, '\n') + 1 - text.data);
    char *no_row = dt_format("%.*s2 33 2 2 16 33554432 1 0 0 0 2 1 17 24 1\n", head, text.data);
    for (int kind = 0; kind < 4; kind++) { /* the last two: of another device, a line that is
                                            * none */
        plan_cache_damage(path, &text, kind < 2 ? (enum plan_cache_damage)kind : PLAN_CACHE_INSTEAD,
                          kind == 2 ? "dtrun attention plans 3\nNVIDIA B200, driver 13000, cuDNN 91900\n" : no_row);
        int fd = plan_cache_log_begin();
        open_gpu(&g);
        assert_int_equal(compute(&g), 0);
        assert_int_equal(choose(&g, &why), 2);
        plan_cache_log_end(fd, &said);
        assert_non_null(strstr(dt_text_str(&said), "damaged, or of another device; not used\n"));
        assert_true(strchr(said.data, '\n') == said.data + said.size - 1);
        assert_int_equal(compute(&g), 3);
        close_gpu(&g);
        plan_cache_read(path, &said);
        assert_string_equal(dt_text_str(&said), dt_text_str(&text));
    }
    free(no_row);
    (void)setenv("SOFTGPU_CUDNN", "engines 2", 1);
    int fd = plan_cache_log_begin();
    open_gpu(&g);
    assert_int_equal(choose(&g, &why), 0);
    assert_int_equal(compute(&g), 0);
    close_gpu(&g);
    plan_cache_log_end(fd, &said);
    assert_non_null(
        strstr(dt_text_str(&said),
               "cuDNN refuses the engine that was measured for 2 x 33 positions, 2 heads of size 16; its first "
               "proposal is taken\n"));
    (void)unsetenv("SOFTGPU_CUDNN_FAST");
    (void)unsetenv("SOFTGPU_CUDNN");
    dt_text_clear(&text);
    dt_text_clear(&said);
}

/* Where the library breaks down at its first proposal nothing is chosen, and making the plan
 * fails as ever. */
static void a_breakdown_is_nothing_to_choose(void **state)
{
    (void)state;
    struct gpu g;
    struct dt_error why, err = {0};
    const char *by;
    (void)setenv("SOFTGPU_CUDNN", "plan 4001", 1);
    plan_cache_use("broken", true);
    open_gpu(&g);
    assert_int_equal(choose(&g, &why), 0);
    assert_int_equal(why.status, DT_OK);
    assert_int_equal(g.d.ops->plans->attention(&g.d, &g.forward, &by, &err), -1);
    assert_int_equal(err.status, DT_IO);
    close_gpu(&g);
    (void)unsetenv("SOFTGPU_CUDNN");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wishes_are_heeded), /* first: it forks */
        cmocka_unit_test(the_fastest_is_kept),
        cmocka_unit_test(few_are_looked_at),
        cmocka_unit_test(what_has_no_order_is_left_out),
        cmocka_unit_test(parts_are_measured),
        cmocka_unit_test(the_fastest_part_is_kept),
        cmocka_unit_test(ranks_take_what_rank_0_chose),
        cmocka_unit_test(what_cannot_be_kept_is_not_measured),
        cmocka_unit_test(what_a_file_should_not_say),
        cmocka_unit_test(a_breakdown_is_nothing_to_choose),
    };
    (void)setenv("DTRUN_ATTENTION", "cudnn", 1); /* engines compete with each other alone */
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
