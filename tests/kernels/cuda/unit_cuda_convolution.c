/* covers: kernels/cuda/convolution.c kernels/cuda/convolution_dnn.c kernels/cuda/convolution_tune.c kernels/cuda/convolution_file.c kernels/cuda/dnn_packs.c */
/* Convolutions by cuDNN on the software GPU: each pass and type against plain loops in double, everything that makes
 * it step aside, and how its engines and kernels of our own are chosen at a start.   run: timeout 120 */
#include "base/file.h"
#include "base/text.h"
#include "kernels/convolution.h"
#include "kernels/cuda/convolution.h"
#include "tests/lib/child.h"
#include "tests/lib/folder.h"
#include "tests/lib/plan_cache.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
// clang-format off: needs the headers above
#include <cmocka.h>
// clang-format on

int softgpu_dnn_plans(void), softgpu_dnn_executions(void), softgpu_dnn_ran(int proposal);

enum operand { X, W, Y, OPERANDS };
enum pass { FORWARD, INPUT, WEIGHTS, PASSES };
static const enum operand result_of[PASSES] = {Y, X, W};

struct test {
    struct dt_windows w;
    int64_t out;
    enum dt_dtype type, grad_type;
    bool planar, adds, tf32;
    const char *word;
};

struct gpu {
    struct dt_device d;
    struct dt_stream *s;
    struct test t;
    int64_t count[OPERANDS];
    enum dt_dtype types[OPERANDS];
    char *host[OPERANDS], *device[OPERANDS], *work;
    size_t work_bytes;
    double *values[OPERANDS];
};

static struct dt_windows windows(int64_t batch, int64_t height, int64_t width, int64_t channels, int64_t size,
                                 int64_t stride)
{
    return (struct dt_windows){batch,
                               height,
                               width,
                               channels,
                               (height + 2 * (size / 2) - size) / stride + 1,
                               (width + 2 * (size / 2) - size) / stride + 1,
                               size,
                               stride,
                               size / 2};
}

static struct test common(void)
{
    return (struct test){
        .w = windows(2, 6, 7, 8, 3, 1), .out = 12, .type = DT_BF16, .grad_type = DT_BF16, .planar = false};
}

/* ---- operands ---- */

static double read_one(const char *at, int64_t i, enum dt_dtype type)
{
    float out;
    uint16_t half;
    if (type == DT_F32) {
        memcpy(&out, at + 4 * i, 4);
    } else {
        memcpy(&half, at + 2 * i, 2);
        dt_cpu_half(type)->widen(&out, &half, 1);
    }
    return (double)out;
}

static void write_one(char *at, int64_t i, enum dt_dtype type, float x)
{
    uint16_t half;
    if (type == DT_F32) {
        memcpy(at + 4 * i, &x, 4);
    } else {
        dt_cpu_half(type)->narrow(&half, &x, 1);
        memcpy(at + 2 * i, &half, 2);
    }
}

static void *allocate(struct gpu *g, enum dt_memory kind, size_t bytes)
{
    struct dt_error err;
    void *p = NULL;
    if (dt_device_alloc(&g->d, kind, bytes, &p, &err) != 0) {
        fail_msg("%s", err.text);
    }
    return p;
}

/* Fills the operands with multiples of 1/16, which every type has, and sends them. */
static void fill(struct gpu *g)
{
    for (int o = 0; o < OPERANDS; o++) {
        for (int64_t i = 0; i < g->count[o]; i++) {
            g->values[o][i] = (double)((i * 2654435761u + (unsigned)o * 977u) >> 7 & 31) / 16.0 - 1;
            write_one(g->host[o], i, g->types[o], (float)g->values[o][i]);
        }
        dt_stream_copy(g->s, g->device[o], g->host[o], (size_t)g->count[o] * dt_dtype_size(g->types[o]));
    }
}

static void open_gpu(struct gpu *g, const struct test *t, enum pass pass)
{
    struct dt_error err = {0};
    const struct dt_windows *w = &t->w;
    memset(g, 0, sizeof *g);
    g->t = *t;
    if (dt_device_open(&g->d, "cuda", &(struct dt_device_options){.convolution = t->word, .tf32 = t->tf32}, &err) !=
            0 ||
        dt_stream_open(&g->d, 0, &g->s, &err) != 0) {
        fail_msg("%s", err.text);
    }
    g->count[X] = w->batch * w->height * w->width * w->channels;
    g->count[W] = t->out * w->channels * w->size * w->size;
    g->count[Y] = w->batch * w->out_height * w->out_width * t->out;
    for (int o = 0; o < OPERANDS; o++) {
        g->types[o] = o == X && t->planar ? DT_F32 : o == W && pass == WEIGHTS ? t->grad_type : t->type;
        size_t bytes = (size_t)g->count[o] * dt_dtype_size(g->types[o]);
        g->host[o] = allocate(g, DT_MEMORY_PINNED, bytes);
        g->device[o] = allocate(g, DT_MEMORY_DEVICE, bytes);
        g->values[o] = calloc((size_t)g->count[o], sizeof *g->values[o]);
    }
    g->work_bytes = (size_t)dt_convolution_work(w, t->out, t->planar, t->type, true) + 1;
    g->work = allocate(g, DT_MEMORY_DEVICE, g->work_bytes);
    fill(g);
}

static void close_gpu(struct gpu *g)
{
    struct dt_error err;
    (void)dt_stream_finish(g->s, 60, &err);
    dt_stream_close(g->s);
    for (int o = 0; o < OPERANDS; o++) {
        size_t bytes = (size_t)g->count[o] * dt_dtype_size(g->types[o]);
        dt_device_free(&g->d, DT_MEMORY_PINNED, g->host[o], bytes);
        dt_device_free(&g->d, DT_MEMORY_DEVICE, g->device[o], bytes);
        free(g->values[o]);
    }
    dt_device_free(&g->d, DT_MEMORY_DEVICE, g->work, g->work_bytes);
    dt_device_close(&g->d);
}

static struct dt_convolution_args forward_args(const struct gpu *g)
{
    return (struct dt_convolution_args){.y = g->device[Y],
                                        .x = g->device[X],
                                        .weights = g->device[W],
                                        .work = g->work,
                                        .windows = g->t.w,
                                        .out = g->t.out,
                                        .at_once = dt_convolution_at_once(&g->t.w, g->t.planar, g->t.type, true),
                                        .planar = g->t.planar,
                                        .type = g->t.type,
                                        .x_type = g->types[X]};
}

static struct dt_convolution_input_args input_args(const struct gpu *g)
{
    return (struct dt_convolution_input_args){.dx = g->device[X],
                                              .dy = g->device[Y],
                                              .weights = g->device[W],
                                              .work = g->work,
                                              .windows = g->t.w,
                                              .out = g->t.out,
                                              .at_once = dt_convolution_at_once(&g->t.w, false, g->t.type, true),
                                              .accumulate = g->t.adds,
                                              .type = g->t.type};
}

static struct dt_convolution_weights_args weights_args(const struct gpu *g)
{
    return (struct dt_convolution_weights_args){.dweights = g->device[W],
                                                .dy = g->device[Y],
                                                .x = g->device[X],
                                                .work = g->work,
                                                .windows = g->t.w,
                                                .out = g->t.out,
                                                .at_once =
                                                    dt_convolution_at_once(&g->t.w, g->t.planar, g->t.type, true),
                                                .planar = g->t.planar,
                                                .accumulate = g->t.adds,
                                                .type = g->t.type,
                                                .x_type = g->types[X],
                                                .grad_type = g->t.grad_type};
}

/* Computes a pass. Returns the stream's failure. */
static int compute(struct gpu *g, enum pass pass, struct dt_error *err)
{
    const struct dt_convolution_args forward = forward_args(g);
    const struct dt_convolution_input_args input = input_args(g);
    const struct dt_convolution_weights_args weights = weights_args(g);
    enum operand o = result_of[pass];
    if (pass == FORWARD) {
        dt_convolution(g->d.kernels, g->s, &forward);
    } else if (pass == INPUT) {
        dt_convolution_input(g->d.kernels, g->s, &input);
    } else {
        dt_convolution_weights(g->d.kernels, g->s, &weights);
    }
    dt_stream_copy(g->s, g->host[o], g->device[o], (size_t)g->count[o] * dt_dtype_size(g->types[o]));
    return dt_stream_finish(g->s, 60, err);
}

/* ---- the same by plain loops ---- */

static int64_t pixel(const struct test *t, int64_t b, int64_t c, int64_t i, int64_t j)
{
    const struct dt_windows *w = &t->w;
    return t->planar ? ((b * w->channels + c) * w->height + i) * w->width + j
                     : ((b * w->height + i) * w->width + j) * w->channels + c;
}

static void reference(const struct gpu *g, enum pass pass, double *out)
{
    const struct test *t = &g->t;
    const struct dt_windows *w = &t->w;
    enum operand o = result_of[pass];
    bool adds = t->adds && pass != FORWARD;
    for (int64_t i = 0; i < g->count[o]; i++) {
        out[i] = adds ? g->values[o][i] : 0;
    }
    for (int64_t y = 0; y < g->count[Y]; y++) {
        int64_t k = y % t->out, q = y / t->out % w->out_width, line = y / t->out / w->out_width,
                p = line % w->out_height, b = line / w->out_height;
        for (int64_t e = 0; e < w->channels * w->size * w->size; e++) {
            int64_t c = e / (w->size * w->size), i = p * w->stride - w->padding + e / w->size % w->size,
                    j = q * w->stride - w->padding + e % w->size, at_w = k * w->channels * w->size * w->size + e;
            if (i < 0 || i >= w->height || j < 0 || j >= w->width) {
                continue;
            }
            int64_t at_x = pixel(t, b, c, i, j);
            double *to = pass == FORWARD ? &out[y] : pass == INPUT ? &out[at_x] : &out[at_w];
            *to += pass == FORWARD ? g->values[X][at_x] * g->values[W][at_w]
                   : pass == INPUT ? g->values[Y][y] * g->values[W][at_w]
                                   : g->values[Y][y] * g->values[X][at_x];
        }
    }
}

/* Twice, the second time by what was made for the first. executions: of cuDNN each time. */
static void check(const struct test *t, enum pass pass, int executions)
{
    struct gpu g;
    struct dt_error err = {0};
    enum operand o = result_of[pass];
    open_gpu(&g, t, pass);
    double *want = calloc((size_t)g.count[o], sizeof *want), most = 0;
    reference(&g, pass, want);
    for (int64_t i = 0; i < g.count[o]; i++) {
        most = fmax(most, fabs(want[i]));
    }
    for (int n = 0; n < 2; n++) {
        int before = softgpu_dnn_executions();
        int64_t calls = dt_cuda_convolution_calls();
        if (n > 0) { /* the first time open_gpu has sent them */
            fill(&g);
        }
        if (compute(&g, pass, &err) != 0) {
            fail_msg("%s", err.text);
        }
        assert_int_equal(softgpu_dnn_executions() - before, executions);
        assert_int_equal(dt_cuda_convolution_calls() - calls, executions);
        for (int64_t i = 0; i < g.count[o]; i++) {
            double got = read_one(g.host[o], i, g.types[o]);
            if (!(fabs(got - want[i]) <= (g.types[o] == DT_F32 ? 1e-5 : 8e-3) * most)) {
                fail_msg("pass %d, type %d, adds %d, planar %d: [%lld] %g instead of %g", pass, t->type, t->adds,
                         t->planar, (long long)i, got, want[i]);
            }
        }
    }
    free(want);
    close_gpu(&g);
}

/* ---- what it computes ---- */

static void test_passes(void **unused)
{
    (void)unused;
    const struct dt_windows shapes[] = {windows(2, 6, 7, 8, 3, 1), windows(3, 9, 8, 5, 3, 2),
                                        windows(2, 5, 6, 20, 1, 2), windows(1, 9, 11, 3, 7, 2),
                                        windows(4, 1, 3, 6, 3, 1)};
    static const enum dt_dtype types[] = {DT_F32, DT_BF16, DT_F16};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        for (int n = 0; n < 3 * 2 * PASSES; n++) {
            struct test t = {.w = shapes[i],
                             .out = 9,
                             .type = types[n % 3],
                             .grad_type = n / 3 % 2 == 0 ? types[n % 3] : DT_F32,
                             .adds = n / 3 % 2 != 0,
                             .tf32 = true};
            /* no engine makes F32 of 16 bits */
            check(&t, (enum pass)(n / 6), n / 6 == WEIGHTS && t.grad_type != t.type ? 0 : 1);
        }
    }
}

/* The first convolution of a model reads the batch's pixels, F32 and planar. */
static void test_pixels(void **unused)
{
    (void)unused;
    for (int n = 0; n < 4; n++) {
        struct test t = {.w = windows(2, 9, 10, 3, 7, 2),
                         .out = 8,
                         .type = n % 2 == 0 ? DT_BF16 : DT_F32,
                         .grad_type = n % 2 == 0 ? DT_BF16 : DT_F32,
                         .planar = true,
                         .adds = n / 2 != 0,
                         .tf32 = true};
        check(&t, FORWARD, 1);
        check(&t, WEIGHTS, 1);
    }
}

/* A gradient is the same whether it is added to zeros or overwrites what was there: strategies do both. */
static void test_adding_to_zeros(void **unused)
{
    (void)unused;
    struct test t = common();
    struct gpu g;
    struct dt_error err;
    open_gpu(&g, &t, WEIGHTS);
    size_t bytes = (size_t)g.count[W] * sizeof(uint16_t);
    assert_int_equal(compute(&g, WEIGHTS, &err), 0);
    char *first = malloc(bytes);
    memcpy(first, g.host[W], bytes);
    memset(g.host[W], 0, bytes);
    dt_stream_copy(g.s, g.device[W], g.host[W], bytes);
    g.t.adds = true;
    int plans = softgpu_dnn_plans();
    assert_int_equal(compute(&g, WEIGHTS, &err), 0);
    assert_int_equal(softgpu_dnn_plans(), plans);
    assert_memory_equal(first, g.host[W], bytes);
    free(first);
    close_gpu(&g);
}

/* ---- what it leaves to others ---- */

static void test_left_to_others(void **unused)
{
    (void)unused;
    struct test t = common();
    t.w = windows(2, 5, 6, 20, 1, 1); /* a product as it is */
    check(&t, FORWARD, 0);
    t = common();
    t.word = "own";
    check(&t, FORWARD, 0);
    t.word = "fast";
    check(&t, FORWARD, 1);
    t = common();
    t.type = t.grad_type = DT_F32; /* its engines round to TF32, which the job does not allow */
    check(&t, FORWARD, 0);
    check(&t, WEIGHTS, 0);
    struct gpu g; /* an address beside its alignment */
    struct dt_error err;
    t = common();
    open_gpu(&g, &t, FORWARD);
    struct dt_convolution_args a = forward_args(&g);
    a.windows.batch = 1;
    a.x = (const char *)a.x + 8;
    assert_false(g.d.kernels->convolution(g.s, &a));
    assert_int_equal(dt_stream_finish(g.s, 60, &err), 0);
    close_gpu(&g);
}

static struct variant {
    const char *name, *value;
    struct test t;
    int executions, proposal; /* proposal: which one, or -1 */
} variant;

static int run_variant(void)
{
    int ran = variant.proposal >= 0 ? softgpu_dnn_ran(variant.proposal) : 0;
    (void)setenv(variant.name, variant.value, 1);
    check(&variant.t, FORWARD, variant.executions);
    return variant.proposal < 0 || softgpu_dnn_ran(variant.proposal) == ran + 2 ? 0 : 1;
}

/* In a process of its own, as what is loaded is loaded for good. line: what is said, once; null: nothing. */
static void expect(struct variant v, const char *line)
{
    char text[CHILD_TEXT];
    variant = v;
    int code = child_run(run_variant, text);
    char *found = line != NULL ? strstr(text, line) : NULL;
    if (code != 0 ||
        (line != NULL ? found == NULL || strstr(found + 1, "cuDNN") != NULL : strstr(text, "cuDNN") != NULL)) {
        fail_msg("%s=%s: %d: %s", v.name, v.value, code, text);
    }
}

static int run_failing(void)
{
    struct gpu g;
    struct dt_error err = {0};
    (void)setenv(variant.name, variant.value, 1);
    open_gpu(&g, &variant.t, FORWARD);
    int rc = compute(&g, FORWARD, &err);
    (void)fprintf(stderr, "%s\n", err.text);
    close_gpu(&g);
    return rc != 0 ? 7 : 0;
}

static void test_steps_aside(void **unused)
{
    (void)unused;
    struct test t = common(), f32 = common();
    plan_cache_use("first", true);
    f32.type = f32.grad_type = DT_F32;
    expect((struct variant){"SOFTGPU_CUDNN", "91000", t, 0, -1}, "cuDNN: version 9.10.0 is here, 9.16 is the least; "
                                                                 "convolutions run on kernels of our own");
    expect((struct variant){"SOFTGPU_CUDNN", "heuristics 3000", t, 1, 0}, NULL);
    expect((struct variant){"SOFTGPU_CUDNN", "plan 3000", t, 1, 1}, NULL);
    expect((struct variant){"SOFTGPU_CUDNN", "graph 3000", t, 0, -1}, "runs on kernels of our own");
    expect((struct variant){"SOFTGPU_CUDNN", "work 40", t, 0, -1},
           "has no engine for it that is allowed; convolution, 2 images of 6 x 7 x 8, 12 windows of 3 x 3, runs on "
           "kernels "
           "of our own");
    expect((struct variant){"SOFTGPU_CUDNN_NOTED", "0", t, 1, 1}, NULL);
    expect((struct variant){"SOFTGPU_CUDNN_EXACT", "1", f32, 1, 1}, NULL);
    expect((struct variant){"DTRUN_CONVOLUTION", "own", t, 0, -1}, NULL);
    t.word = "fast";
    expect((struct variant){"SOFTGPU_CUDNN_NOTED", "0", t, 1, 0}, NULL);
}

/* A library that breaks down is no reason to compute otherwise. */
static void test_breaks_down(void **unused)
{
    (void)unused;
    static const char *const where[] = {"create 4000", "heuristics 5000", "plan 5000", "execute 5000"};
    for (size_t i = 0; i < sizeof where / sizeof where[0]; i++) {
        char text[CHILD_TEXT];
        variant = (struct variant){"SOFTGPU_CUDNN", where[i], common(), 0, -1};
        int code = child_run(run_failing, text);
        if (code != 7 || strstr(text, "convolution: cuDNN: ") == NULL ||
            strstr(text, "DTRUN_CONVOLUTION=own leaves it out") == NULL) {
            fail_msg("%s: %d: %s", where[i], code, text);
        }
    }
}

/* ---- the choice at a start ---- */

static struct dt_convolution_list list_of(const struct gpu *g, struct dt_convolution_args *forward,
                                          struct dt_convolution_input_args *input,
                                          struct dt_convolution_weights_args *weights)
{
    *forward = forward_args(g);
    *input = input_args(g);
    *weights = weights_args(g);
    return (struct dt_convolution_list){forward, 1, input, 1, weights, 1};
}

/* Chooses; the number of passes that were measured. */
static int choose(struct gpu *g)
{
    struct dt_convolution_args forward;
    struct dt_convolution_input_args input;
    struct dt_convolution_weights_args weights;
    const struct dt_convolution_list all = list_of(g, &forward, &input, &weights);
    struct dt_error why, err = {0};
    int measured = -1;
    if (g->d.ops->plans->choose_convolutions(g->s, &all, NULL, NULL, &measured, &why, &err) != 0) {
        fail_msg("%s", err.text);
    }
    return why.status == DT_OK ? measured : -1;
}

/* Computes all passes after making them ready. Returns the proposal that did, or -1: kernels of our own. */
static int ready_and_compute(struct gpu *g)
{
    struct dt_convolution_args forward;
    struct dt_convolution_input_args input;
    struct dt_convolution_weights_args weights;
    const struct dt_convolution_list all = list_of(g, &forward, &input, &weights);
    struct dt_error err;
    const char *by = "";
    int before[2] = {softgpu_dnn_ran(0), softgpu_dnn_ran(1)};
    assert_int_equal(g->d.ops->plans->convolutions(&g->d, &all, NULL, NULL, &by, &err), 0);
    int plans = softgpu_dnn_plans();
    for (int pass = 0; pass < PASSES; pass++) {
        assert_int_equal(compute(g, (enum pass)pass, &err), 0);
    }
    assert_int_equal(softgpu_dnn_plans(), plans); /* none is made late */
    int ran[2] = {softgpu_dnn_ran(0) - before[0], softgpu_dnn_ran(1) - before[1]};
    assert_string_equal(by, ran[0] + ran[1] == PASSES ? "cuDNN" : "kernels of our own");
    assert_true(ran[0] + ran[1] == 0 || ran[0] == PASSES || ran[1] == PASSES);
    return ran[0] > 0 ? 0 : ran[1] > 0 ? 1 : -1;
}

static void check_choice(const char *fast, int proposal)
{
    struct gpu g;
    struct test t = common();
    struct dt_text text;
    t.word = proposal >= 0 ? "cudnn" : NULL; /* without kernels of our own, which are faster on few pixels */
    (void)setenv("SOFTGPU_CUDNN_FAST", fast, 1);
    plan_cache_use(fast, true);
    open_gpu(&g, &t, FORWARD);
    assert_int_equal(choose(&g), PASSES);
    assert_int_equal(choose(&g), 0);
    assert_int_equal(ready_and_compute(&g), proposal);
    struct dt_convolution_args forward;
    struct dt_convolution_input_args input;
    struct dt_convolution_weights_args weights;
    const struct dt_convolution_list all = list_of(&g, &forward, &input, &weights);
    dt_text_init(&text);
    g.d.ops->plans->tell_convolutions(&g.d, &all, &text);
    close_gpu(&g);
    (void)setenv("SOFTGPU_CUDNN_FAST", "0", 1); /* a later start does not measure again */
    open_gpu(&g, &t, FORWARD);
    assert_int_equal(choose(&g), 0);
    assert_int_equal(ready_and_compute(&g), proposal);
    g.d.ops->plans->none(&g.d); /* of a run that is to be the same at each start: the first proposal */
    assert_int_equal(ready_and_compute(&g), 0);
    close_gpu(&g);
    plan_cache_use("another host", true); /* another rank computes by what it is told, and keeps it */
    open_gpu(&g, &t, FORWARD);
    assert_true(g.d.ops->plans->take_convolutions(&g.d, dt_text_str(&text), true));
    assert_int_equal(ready_and_compute(&g), proposal);
    assert_int_equal(choose(&g), 0);
    assert_false(g.d.ops->plans->take_convolutions(&g.d, "nonsense", true));
    close_gpu(&g);
    dt_text_clear(&text);
    (void)unsetenv("SOFTGPU_CUDNN_FAST");
}

static void test_choice(void **unused)
{
    (void)unused;
    (void)setenv("SOFTGPU_CUDNN_TIMES", "10", 1);
    check_choice("0", 0);
    check_choice("1", 1);
    check_choice("-1", -1); /* all of them are slower than kernels of our own */
}

/* A proposal with other bits each time is left out, whatever it says of itself. */
static void test_shaky(void **unused)
{
    (void)unused;
    struct gpu g;
    struct test t = common();
    struct dt_text said;
    (void)setenv("SOFTGPU_CUDNN_SHAKY", "0", 1);
    (void)setenv("SOFTGPU_CUDNN_FAST", "0", 1);
    plan_cache_use("shaky", true);
    t.word = "cudnn";
    open_gpu(&g, &t, FORWARD);
    dt_text_init(&said);
    int log = plan_cache_log_begin();
    assert_int_equal(choose(&g), PASSES);
    plan_cache_log_end(log, &said);
    (void)unsetenv("SOFTGPU_CUDNN_SHAKY");
    (void)unsetenv("SOFTGPU_CUDNN_FAST");
    assert_non_null(strstr(dt_text_str(&said), "has other bits each time for the same convolution; left out"));
    assert_int_equal(ready_and_compute(&g), 1);
    dt_text_clear(&said);
    close_gpu(&g);
}

/* A damaged file counts as none. */
static void test_damaged(void **unused)
{
    (void)unused;
    static const char *const instead[] = {"dtrun convolution plans 1\n1 2 3\n", "dtrun attention plans 3\n", ""};
    struct gpu g;
    struct test t = common();
    struct dt_text good, said;
    char path[4096];
    dt_text_init(&good);
    plan_cache_use("damaged", true);
    open_gpu(&g, &t, FORWARD);
    assert_int_equal(choose(&g), PASSES);
    close_gpu(&g);
    plan_cache_find("convolutions", path, sizeof path);
    plan_cache_read(path, &good);
    for (size_t i = 0; i < sizeof instead / sizeof instead[0]; i++) {
        dt_text_init(&said);
        plan_cache_damage(path, &good, i == 2 ? PLAN_CACHE_CHANGED : PLAN_CACHE_INSTEAD, instead[i]);
        int log = plan_cache_log_begin();
        open_gpu(&g, &t, FORWARD);
        assert_int_equal(choose(&g), PASSES);
        plan_cache_log_end(log, &said);
        assert_true(said.size > 0);
        close_gpu(&g);
        dt_text_clear(&said);
    }
    dt_text_clear(&good);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps_aside), /* before this process has loaded the library */
        cmocka_unit_test(test_breaks_down),     cmocka_unit_test(test_passes),         cmocka_unit_test(test_pixels),
        cmocka_unit_test(test_adding_to_zeros), cmocka_unit_test(test_left_to_others), cmocka_unit_test(test_choice),
        cmocka_unit_test(test_shaky),           cmocka_unit_test(test_damaged),
    };
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
