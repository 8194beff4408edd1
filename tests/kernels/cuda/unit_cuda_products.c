/* covers: kernels/cuda/matmul.c kernels/cuda/matmul_plan.c worker/engine/matmul_shapes.c kernels/timer.c */
/* How products are chosen at a start: measured once, kept in the plan file, the same for all who
 * share it. On the software GPU, whose three algorithms have bits
 * of their own, and one of which is made fast.   run: timeout 120 */
#include "base/file.h"
#include "base/text.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/matmul.h"
#include "tests/lib/plan_cache.h"
#include "tests/lib/ranks.h"
#include "worker/engine/matmul_shapes.h"
#include "worker/model/models/gpt2.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
// clang-format off: needs the headers above
#include <cmocka.h>
// clang-format on

extern uint64_t softgpu_lt_products, softgpu_lt_proposals;
extern uint64_t softgpu_lt_described_at;
extern uint64_t softgpu_launch_count, softgpu_late_loads; /* kernels that were launched; of
                                                           * these, whose code was not there yet */
int softgpu_dnn_plans(void);
int softgpu_dnn_ran(int proposal); /* executions, by proposal */
int softgpu_dnn_late_plans(void);  /* those made after something had been executed on their
                                    * device */

enum { M = 65, N = 48, K = 72, COUNT = 3 };

struct gpu {
    struct dt_device d;
    struct dt_stream *s;
};

static void open_gpu(struct gpu *g)
{
    struct dt_error err = {0};
    if (dt_device_open(&g->d, "cuda", NULL, &err) != 0 || dt_stream_open(&g->d, 0, &g->s, &err) != 0) {
        fail_msg("%s", err.text);
    }
}

static void close_gpu(struct gpu *g)
{
    dt_stream_close(g->s);
    dt_device_close(&g->d);
}

/* Three products: with bias, turned, adding to c; FP32 and BF16 take turns. */
static void make_products(struct dt_matmul_args *out, void *at)
{
    memset(out, 0, COUNT * sizeof *out);
    for (int i = 0; i < COUNT; i++) {
        out[i] = (struct dt_matmul_args){.c = at,
                                         .a = at,
                                         .b = at,
                                         .m = M,
                                         .n = N,
                                         .k = K + 8 * i,
                                         .type = i % 2 ? DT_BF16 : DT_F32,
                                         .c_type = i % 2 ? DT_BF16 : DT_F32};
    }
    out[0].bias = at;
    out[1].a_transposed = true;
    out[1].lda = M + 7;
    out[2].accumulate = true;
}

static int choose_beside(struct gpu *g, int busy_sms, struct dt_error *why)
{
    struct dt_matmul_args each[COUNT];
    struct dt_error err = {0};
    int measured = -1;
    make_products(each, (void *)((uintptr_t)1 << 40));
    for (int i = 0; i < COUNT; i++) {
        each[i].busy_sms = busy_sms;
    }
    if (g->d.ops->plans->choose(g->s, each, COUNT, NULL, NULL, &measured, why, &err) != 0) {
        fail_msg("%s", err.text);
    }
    return measured;
}

static int choose(struct gpu *g, struct dt_error *why)
{
    return choose_beside(g, 0, why);
}

/* The algorithms that the file names, in the order of its lines: "2 2 2 ". */
static void read_choice(char *out, size_t size)
{
    char path[4096], line[1024];
    size_t used = 0;
    plan_cache_find("matmul", path, sizeof path);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    out[0] = '\0';
    for (int i = 0; fgets(line, sizeof line, f) != NULL; i++) {
        char *at = line;
        for (int field = 0; field < 17 && at != NULL; field++) {
            at = strchr(at, ' ');
            at = at != NULL ? at + 1 : NULL;
        }
        if (i >= 2 && at != NULL) {
            used += (size_t)snprintf(out + used, size - used, "%.*s ", (int)strcspn(at, " "), at);
        }
    }
    (void)fclose(f);
}

/* A product whose bits tell by which algorithm it was made: large values that cancel. */
static float compute_beside(struct gpu *g, bool half, int busy_sms)
{
    struct dt_error err = {0};
    struct dt_matmul_args each[COUNT];
    void *device, *pinned;
    enum { BYTES = 1 << 16 };
    assert_int_equal(dt_device_alloc(&g->d, DT_MEMORY_DEVICE, 4 * BYTES, &device, &err), 0);
    assert_int_equal(dt_device_alloc(&g->d, DT_MEMORY_PINNED, 4 * BYTES, &pinned, &err), 0);
    make_products(each, device);
    struct dt_matmul_args a = each[half ? 1 : 0];
    uint32_t state = 1;
    for (int i = 0; i < 4 * BYTES / 4; i++) {
        state = state * 1664525U + 1013904223U;
        ((float *)pinned)[i] = (float)(int32_t)state * 0x1p-31F * (i % 5 == 0 ? 1000.0F : 1.0F);
    }
    a.a = (char *)device + BYTES;
    a.b = (char *)device + 2 * BYTES;
    a.bias = a.bias != NULL ? (char *)device + 3 * BYTES : NULL;
    a.type = DT_F32;
    a.c_type = DT_F32;
    a.busy_sms = busy_sms;
    dt_stream_copy(g->s, device, pinned, 4 * BYTES);
    g->d.kernels->matmul(g->s, &a);
    dt_stream_copy(g->s, pinned, device, 4 * BYTES);
    assert_int_equal(dt_stream_finish(g->s, 60, &err), 0);
    float sum = 0;
    for (int i = 0; i < M * N; i++) {
        sum += ((float *)pinned)[i] * (float)(i % 7);
    }
    dt_device_free(&g->d, DT_MEMORY_DEVICE, device, 4 * BYTES);
    dt_device_free(&g->d, DT_MEMORY_PINNED, pinned, 4 * BYTES);
    return sum;
}

static float compute(struct gpu *g, bool half)
{
    return compute_beside(g, half, 0);
}

static void the_fastest_is_kept(void **state)
{
    (void)state;
    float sums[4];
    for (int fast = 1; fast <= 3; fast++) {
        char text[8], choice[64], expected[64];
        struct gpu g;
        struct dt_error why;
        plan_cache_use("fastest", true);
        (void)snprintf(text, sizeof text, "%d", fast);
        (void)snprintf(expected, sizeof expected, "%d %d %d ", fast, fast, fast);
        (void)setenv("SOFTGPU_LT_FAST", text, 1);
        open_gpu(&g);
        assert_int_equal(choose(&g, &why), COUNT);
        assert_int_equal(why.status, DT_OK);
        read_choice(choice, sizeof choice);
        assert_string_equal(choice, expected);
        assert_int_equal(choose(&g, &why), 0);
        sums[fast] = compute(&g, false);
        close_gpu(&g);
        /* another start, on a machine where another would be faster now: nothing is measured,
         * nothing changes */
        (void)setenv("SOFTGPU_LT_FAST", fast == 1 ? "2" : "1", 1);
        open_gpu(&g);
        uint64_t products = softgpu_lt_products, proposals = softgpu_lt_proposals;
        assert_int_equal(choose(&g, &why), 0);
        assert_int_equal(softgpu_lt_products - products, 0);
        assert_true(compute(&g, false) == sums[fast]);
        assert_int_equal(softgpu_lt_proposals - proposals, 0);
        close_gpu(&g);
    }
    (void)unsetenv("SOFTGPU_LT_FAST");
    /* or this test could not fail */
    assert_true(sums[1] != sums[2] && sums[2] != sums[3] && sums[1] != sums[3]);
}

/* Lines of the log of products that end so. */
static int logged(const char *path, const char *end)
{
    char line[200];
    int count = 0;
    FILE *f = fopen(path, "re");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        const char *at = strstr(line, " sms ");
        count += at != NULL && strcmp(at + 1, end) == 0;
    }
    if (f != NULL) {
        (void)fclose(f);
    }
    return count;
}

/* A product that leaves multiprocessors to others is told how many are left to it, when it is
 * measured and when it runs, and has a line of its own in the file. */
static void beside_others_there_are_other_plans(void **state)
{
    (void)state;
    struct gpu g;
    struct dt_error why;
    char choice[64], log[4096];
    (void)snprintf(log, sizeof log, "%s/products", folder);
    (void)setenv("SOFTGPU_SM", "6", 1);
    (void)setenv("SOFTGPU_LT_LOG", log, 1);
    plan_cache_use("beside", true);
    (void)setenv("SOFTGPU_LT_FAST", "1", 1);
    open_gpu(&g);
    assert_int_equal(choose(&g, &why), COUNT);
    assert_true(logged(log, "sms 0\n") > 0);
    assert_int_equal(logged(log, "sms 4\n"), 0);
    assert_int_equal(unlink(log), 0);
    (void)setenv("SOFTGPU_LT_FAST", "2", 1);
    assert_int_equal(choose_beside(&g, 2, &why), COUNT);
    assert_true(logged(log, "sms 4\n") > 0);
    assert_int_equal(logged(log, "sms 0\n"), 0);
    read_choice(choice, sizeof choice);
    assert_string_equal(choice, "1 1 1 2 2 2 ");
    float sums[2] = {compute(&g, false), compute_beside(&g, false, 2)};
    close_gpu(&g);
    assert_true(sums[0] != sums[1]);
    for (int again = 0; again < 2; again++) { /* another start has both */
        open_gpu(&g);
        assert_int_equal(choose(&g, &why) + choose_beside(&g, 2, &why), 0);
        assert_int_equal(unlink(log), 0);
        for (int i = 0; i < 2; i++) {
            assert_true(compute_beside(&g, false, again == i ? 0 : 2) == sums[again == i ? 0 : 1]);
        }
        assert_int_equal(logged(log, "sms 0\n"), 1);
        assert_int_equal(logged(log, "sms 4\n"), 1);
        close_gpu(&g);
    }
    /* where nothing is left, and by the first proposal */
    static const struct {
        int busy_sms;
        const char *told;
    } cases[] = {{1, "sms 5\n"}, {5, "sms 1\n"}, {6, "sms 0\n"}, {64, "sms 0\n"}};
    open_gpu(&g);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(unlink(log), 0);
        (void)compute_beside(&g, false, cases[i].busy_sms);
        assert_int_equal(logged(log, cases[i].told), 1);
    }
    close_gpu(&g);
    (void)unsetenv("SOFTGPU_LT_FAST");
    (void)unsetenv("SOFTGPU_LT_LOG");
    (void)unsetenv("SOFTGPU_SM");
}

/* What another rank chose counts, here and for later starts; `none` goes back to the first
 * proposal. */
static void ranks_take_what_rank_0_chose(void **state)
{
    (void)state;
    struct gpu a, b;
    struct dt_error why;
    struct dt_text text;
    struct dt_matmul_args each[COUNT];
    char choice[64];
    dt_text_init(&text);
    make_products(each, (void *)((uintptr_t)1 << 40));
    plan_cache_use("one", true);
    (void)setenv("SOFTGPU_LT_FAST", "1", 1);
    open_gpu(&a);
    assert_int_equal(choose(&a, &why), COUNT);
    a.d.ops->plans->tell(&a.d, each, 2, &text); /* two of three */
    float expected = compute(&a, false);
    plan_cache_use("two", true);
    (void)setenv("SOFTGPU_LT_FAST", "2", 1);
    open_gpu(&b);
    assert_int_equal(choose(&b, &why), COUNT);
    float own = compute(&b, false);
    assert_true(own != expected);
    assert_true(b.d.ops->plans->take(&b.d, text.data, true));
    assert_true(compute(&b, false) == expected);
    read_choice(choice, sizeof choice); /* the file had a choice for all of them, and keeps it */
    assert_string_equal(choice, "2 2 2 ");
    close_gpu(&b);
    plan_cache_use("three", true);
    open_gpu(&b);
    assert_true(b.d.ops->plans->take(&b.d, text.data, true));
    read_choice(choice, sizeof choice);
    assert_string_equal(choice, "1 1 ");
    assert_true(compute(&b, false) == expected);
    b.d.ops->plans->none(&b.d);
    float first = compute(&b, false);
    assert_true(first != expected && first != own); /* the third algorithm is proposed first */
    text.data[text.size / 2] ^= 1;
    assert_false(b.d.ops->plans->take(&b.d, text.data, true));
    dt_text_reset(&text);
    dt_text_puts(&text, "dtrun matmul plans 3\nanother\n");
    assert_false(b.d.ops->plans->take(&b.d, text.data, true));
    assert_true(compute(&b, false) == first);
    close_gpu(&b);
    close_gpu(&a);
    (void)unsetenv("SOFTGPU_LT_FAST");
    dt_text_clear(&text);
}

/* Two processes at once: one measures, the other waits and takes its choice. */
static void processes_share_one_choice(void **state)
{
    (void)state;
    pid_t pids[2];
    int ready[2], measured[2] = {0, 0};
    plan_cache_use("shared", true);
    assert_int_equal(pipe(ready), 0);
    for (int i = 0; i < 2; i++) {
        pids[i] = fork();
        assert_true(pids[i] >= 0);
        if (pids[i] == 0) { /* the first thing here that starts the GPU */
            struct gpu g;
            struct dt_error why;
            char byte;
            (void)close(ready[1]);
            (void)setenv("SOFTGPU_LT_FAST", i == 0 ? "1" : "2", 1);
            open_gpu(&g);
            (void)read(ready[0], &byte, 1); /* both go at once */
            int n = choose(&g, &why);
            float sum = compute(&g, false);
            close_gpu(&g);
            char choice[64];
            read_choice(choice, sizeof choice);
            plan_cache_use("alone", true);
            _exit(n | (choice[0] - '0') << 2 | (sum != sum) << 6);
        }
    }
    (void)close(ready[0]);
    (void)close(ready[1]);
    int choice[2];
    for (int i = 0; i < 2; i++) {
        int status;
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        assert_true(WIFEXITED(status));
        measured[i] = WEXITSTATUS(status) & 3;
        choice[i] = WEXITSTATUS(status) >> 2;
    }
    assert_int_equal(measured[0] + measured[1], COUNT);
    assert_true(measured[0] == 0 || measured[1] == 0);
    assert_int_equal(choice[0], choice[1]);
    assert_int_equal(choice[0], measured[0] != 0 ? 1 : 2);
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
    uint64_t products = softgpu_lt_products;
    open_gpu(&g);
    assert_int_equal(choose(&g, &why), 0);
    assert_true(why.status != DT_OK);
    assert_int_equal(softgpu_lt_products - products, 0);
    close_gpu(&g);
}

/* One line, and the plans are measured again. */
static void a_damaged_file_is_said_in_one_line(void **state)
{
    (void)state;
    struct gpu g;
    struct dt_error why;
    struct dt_text text, said;
    char path[4096];
    dt_text_init(&text);
    dt_text_init(&said);
    plan_cache_use("damaged", true);
    (void)setenv("SOFTGPU_LT_FAST", "1", 1); /* so that both files have the same size */
    open_gpu(&g);
    assert_int_equal(choose(&g, &why), COUNT);
    close_gpu(&g);
    plan_cache_find("matmul", path, sizeof path);
    plan_cache_read(path, &text);
    for (int kind = 0; kind < 3; kind++) { /* the last: of another device */
        plan_cache_damage(path, &text, (enum plan_cache_damage)kind,
                          "dtrun matmul plans 3\nNVIDIA B200, driver 13000, cublasLt 130000\n");
        int fd = plan_cache_log_begin();
        open_gpu(&g);
        (void)compute(&g, false);                  /* a product before anything is chosen: the
                                                    * file is read */
        assert_int_equal(choose(&g, &why), COUNT); /* it is read once more, under its lock */
        plan_cache_log_end(fd, &said);
        assert_non_null(strstr(dt_text_str(&said), "damaged, or of another device"));
        assert_true(strchr(said.data, '\n') == said.data + said.size - 1);
        close_gpu(&g);
        plan_cache_read(path, &said);
        assert_int_equal(said.size, text.size);
    }
    (void)unsetenv("SOFTGPU_LT_FAST");
    dt_text_clear(&said);
    dt_text_clear(&text);
}

/* A library that is here and has nothing for a shape costs a line per shape, not per product. */
static void what_the_library_lacks_is_said(void **state)
{
    (void)state;
    struct gpu g;
    struct dt_text said;
    plan_cache_use("lacking", true);
    (void)setenv("SOFTGPU_LT_NONE", "1", 1);
    int fd = plan_cache_log_begin();
    open_gpu(&g);
    float first = compute(&g, false);
    assert_true(compute(&g, false) == first);
    (void)compute(&g, true);
    close_gpu(&g);
    (void)unsetenv("SOFTGPU_LT_NONE");
    dt_text_init(&said);
    plan_cache_log_end(fd, &said);
    int lines = 0;
    for (const char *at = dt_text_str(&said); (at = strchr(at, '\n')) != NULL; at++) {
        lines++;
    }
    if (lines != 2 ||
        strstr(said.data, "cublasLt takes no product of F32 of 65 x 48 x 72; it runs on a slower kernel of our own") ==
            NULL) {
        fail_msg("%s", dt_text_str(&said));
    }
    dt_text_clear(&said);
}

static void train(const struct job *job, struct ranks_outcome *out)
{
    ranks_train(job, 1, &(struct ranks_options){.device = "cuda"}, out);
    if (out->rc[0] != 0) {
        fail_msg("%s", out->err[0].text);
    }
}

/* Kernels that a run of so many steps launches after its last product was described. */
static uint64_t launches_after_plans(struct job *job, int steps)
{
    struct ranks_outcome out;
    job->training.max_steps = steps;
    train(job, &out);
    ranks_clear(&out);
    return softgpu_launch_count - softgpu_lt_described_at;
}

/* No step waits for a plan: what a run of two more steps launches more, one of two steps has
 * launched at least, since all was described. */
static void no_step_makes_a_plan(void **state)
{
    (void)state;
    for (int deterministic = 0; deterministic < 2; deterministic++) {
        struct job job;
        ranks_job(&job);
        job.training.strategy = "single_device";
        job.training.precision = "bf16-mixed";
        job.precision.compute = job.precision.reduce = DT_BF16;
        job.training.deterministic = deterministic == 1;
        job.training.eval_every_n_steps = 0;
        job.text = NULL;
        plan_cache_use("steps", true);
        (void)launches_after_plans(&job, 2); /* measures */
        uint64_t two = launches_after_plans(&job, 2), four = launches_after_plans(&job, 4);
        assert_true(four > two && two >= four - two);
        dt_arena_clear(&job.arena);
    }
}

/* All products of a run are measured before it begins: with the plans at hand the library is
 * asked for no proposal. So are attention's engines measured and its plans made, one for each
 * pass, except in F32, which cuDNN does not take, and where kernels of our own are wanted; later
 * runs have the engines that were chosen. Runs repeat the bits of the measured plans; a
 * deterministic one those of the first proposals, whatever the file says. */
static void a_run_has_all_its_plans(void **state)
{
    (void)state;
    static const char *const precisions[] = {"32-true", "bf16-mixed"};
    for (int p = 0; p < 2; p++) {
        struct job job;
        struct ranks_outcome cold, warm, other, fixed, again;
        ranks_job(&job);
        job.training.strategy = "single_device";
        job.training.precision = precisions[p];
        /* as reading a job file sets it */
        job.precision.compute = job.precision.reduce = p == 1 ? DT_BF16 : DT_F32;
        job.training.max_steps = 2;
        job.text = NULL;
        plan_cache_use("run", true);
        (void)setenv("SOFTGPU_LT_FAST", "1", 1);
        (void)setenv("SOFTGPU_CUDNN_FAST", "1", 1);
        int plans = softgpu_dnn_plans(), late = softgpu_dnn_late_plans();
        train(&job, &cold);
        /* of forward two are measured, of backward two by each of two parts; the best are made */
        assert_int_equal(softgpu_dnn_plans() - plans, p == 1 ? 8 : 0);
        assert_int_equal(softgpu_dnn_late_plans() - late, 0);
        (void)setenv("SOFTGPU_LT_FAST", "2", 1);
        uint64_t proposals = softgpu_lt_proposals;
        plans = softgpu_dnn_plans();
        (void)setenv("SOFTGPU_CUDNN_FAST", "0", 1);
        int ran[2] = {softgpu_dnn_ran(0), softgpu_dnn_ran(1)};
        train(&job, &warm);
        assert_int_equal(softgpu_dnn_plans() - plans, p == 1 ? 2 : 0);
        assert_int_equal(softgpu_dnn_ran(0) - ran[0], 0);
        assert_true((softgpu_dnn_ran(1) - ran[1] > 0) == (p == 1));
        (void)unsetenv("SOFTGPU_CUDNN_FAST");
        assert_int_equal(softgpu_lt_proposals - proposals, 0);
        assert_true(warm.hash == cold.hash);
        job.training.deterministic = true;
        plans = softgpu_dnn_plans();
        train(&job, &fixed);
        assert_int_equal(softgpu_dnn_plans() - plans, 0);
        plan_cache_use("fixed", true);
        train(&job, &again);
        assert_true(fixed.hash == again.hash);
        job.training.deterministic = false;
        train(&job, &other);
        if (p == 0) { /* or equal hashes would say nothing; in bf16 another order of a sum may be
                       * rounded away */
            assert_true(fixed.hash != cold.hash && other.hash != cold.hash);
        }
        (void)unsetenv("SOFTGPU_LT_FAST");
        ranks_clear(&cold);
        ranks_clear(&warm);
        ranks_clear(&other);
        ranks_clear(&fixed);
        ranks_clear(&again);
        dt_arena_clear(&job.arena);
    }
}

/* No launch of a run loads a kernel's code: it is there since the device was opened, whatever
 * the run computes. */
static void kernels_are_loaded_before(void **state)
{
    (void)state;
    static const char *const precisions[] = {"32-true", "bf16-mixed"};
    plan_cache_use("loaded", true);
    for (int p = 0; p < 2; p++) {
        struct job job;
        struct ranks_outcome out;
        ranks_job(&job);
        job.training.strategy = "single_device";
        job.training.precision = precisions[p];
        job.precision.compute = job.precision.reduce = p == 1 ? DT_BF16 : DT_F32;
        job.training.max_steps = 2;
        job.text = NULL;
        uint64_t launches = softgpu_launch_count;
        train(&job, &out);
        assert_true(softgpu_launch_count - launches > 50);
        assert_int_equal(softgpu_late_loads, 0); /* nor in any test before */
        ranks_clear(&out);
        dt_arena_clear(&job.arena);
    }
}

/* With a vocabulary that is no multiple of anything, all rows of products of GPT-2 124M begin at
 * multiples of 128 bytes on a device with memory of its own, and the head goes by 16384 rows; the
 * host's memory holds what it always did. */
static void the_head_is_aligned(void **state)
{
    (void)state;
    struct model_spec spec = {.name = "gpt2",
                              .sizes = &(struct gpt2){.tie_word_embeddings = true,
                                                      .n_layer = 1,
                                                      .n_head = 12,
                                                      .n_embd = 768,
                                                      .head.num_labels = 2,
                                                      .n_positions = 1024,
                                                      .vocab_size = 50257,
                                                      .n_inner = 3072,
                                                      .layer_norm_epsilon = 1e-5,
                                                      .initializer_range = 0.02},
                              .batch_size = 64,
                              .sequence_length = 1024};
    static const struct {
        enum dt_dtype type;
        bool own_memory;
        int64_t rows, pitch;
    } cases[] = {{DT_BF16, true, 16384, 50304},
                 {DT_F32, true, 16384, 50304},
                 {DT_BF16, false, 1280, 50257},
                 {DT_F32, false, 640, 50257}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct chain chain;
        struct matmul_shapes all = {0};
        struct dt_error err;
        int heads = 0, logits = 0;
        spec.type = cases[i].type;
        spec.own_memory = cases[i].own_memory;
        assert_int_equal(chain_open(&chain, &spec, 1, &err), 0);
        matmul_shapes_add(&all, &chain, DT_F32, NULL);
        for (int p = 0; p < all.count; p++) {
            const struct dt_matmul_args *a = &all.each[p];
            struct dt_matmul_key key = dt_matmul_key_of(a, false);
            if (a->n == 50257 && a->m == cases[i].rows) {
                assert_int_equal(key.ldc, cases[i].pitch);
                logits++;
            }
            if (a->m == 50257 || a->k == 50257) {
                assert_int_equal(key.lda, cases[i].pitch);
                heads++;
            }
            if (cases[i].own_memory) {
                int64_t size = (int64_t)dt_dtype_size(a->type);
                assert_true(key.a_alignment == 128 && key.b_alignment == 128 && key.c_alignment == 128 &&
                            key.vector_alignment == 128);
                assert_true(key.lda * size % 128 == 0 && key.ldb * size % 128 == 0 && key.ldc * size % 128 == 0);
            }
        }
        assert_true(logits == 1 && heads >= 2); /* and the gradients of what they are made of; a
                                                 * last chunk may be shorter */
        matmul_shapes_clear(&all);
        chain_close(&chain);
    }
}

/* Products of F32 by the job's word: with TF32 operands lose what is behind 10 bits, plans are others,
 * and the device's rate is half that of BF16. BF16 is as ever. */
static void operands_are_rounded_if_asked(void **state)
{
    (void)state;
    float sums[2][2];
    char path[4096];
    struct dt_text text;
    dt_text_init(&text);
    plan_cache_use("tf32", true);
    for (int high = 0; high < 2; high++) {
        struct gpu g;
        struct dt_error why, err = {0};
        assert_int_equal(dt_device_open(&g.d, "cuda", &(struct dt_device_options){.tf32 = high == 1}, &err), 0);
        assert_int_equal(dt_stream_open(&g.d, 0, &g.s, &err), 0);
        sums[high][0] = compute(&g, false);
        /* a product of BF16 has the plan that it had */
        assert_int_equal(choose(&g, &why), high == 0 ? COUNT : COUNT - 1);
        assert_int_equal(choose(&g, &why), 0);
        sums[high][1] = (float)(dt_device_peak(&g.d, DT_F32) / dt_device_peak(&g.d, DT_BF16));
        assert_true((sums[high][1] == 0.5F) == (high == 1));
        close_gpu(&g);
    }
    float difference = fabsf(sums[1][0] - sums[0][0]) / fabsf(sums[0][0]);
    assert_true(difference > 1e-6F && difference < 1e-2F);
    plan_cache_find("matmul", path, sizeof path);
    plan_cache_read(path, &text);
    assert_non_null(strstr(text.data, " 0 0 0 0 0 1 ")); /* F32, rounded */
    dt_text_clear(&text);
}

/* The alignment of each pointer is in the key, up to that of all memory of a run, or up to what the
 * environment says; that of a bias, a gradient and aux together. */
static void alignment_is_in_the_key(void **state)
{
    (void)state;
    static const struct {
        const char *most;
        unsigned at, expected;
    } cases[] = {{NULL, 4096, 128}, {NULL, 256, 128},   {NULL, 128, 128},  {NULL, 64, 64},  {NULL, 16, 16},
                 {NULL, 2, 2},      {"256", 4096, 256}, {"256", 128, 128}, {"16", 128, 16}, {"96", 4096, 128}};
    plan_cache_use("alignment", true);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct gpu g;
        char *const far = (char *)((uintptr_t)1 << 40), *const at = far + cases[i].at;
        struct dt_matmul_args a = {.a = at, .b = far, .c = far, .m = M, .n = N, .k = K, .type = DT_BF16};
        (void)(cases[i].most != NULL ? setenv("DTRUN_MATMUL_ALIGNMENT", cases[i].most, 1)
                                     : unsetenv("DTRUN_MATMUL_ALIGNMENT"));
        open_gpu(&g);
        (void)compute(&g, false);
        unsigned most = cases[i].most != NULL && strcmp(cases[i].most, "96") != 0 ? (unsigned)atoi(cases[i].most) : 128;
        struct dt_matmul_key key = dt_matmul_key_of(&a, false);
        assert_true(key.a_alignment == cases[i].expected && key.b_alignment == most && key.c_alignment == most &&
                    key.vector_alignment == most);
        a = (struct dt_matmul_args){.a = far, .b = at, .c = far, .aux = at, .m = M, .n = N, .k = K, .type = DT_BF16};
        key = dt_matmul_key_of(&a, false);
        assert_true(key.a_alignment == most && key.b_alignment == cases[i].expected && key.c_alignment == most &&
                    key.vector_alignment == cases[i].expected);
        a = (struct dt_matmul_args){
            .a = far, .b = far, .c = at, .bias = at, .bias_gradient = far, .m = M, .n = N, .k = K, .type = DT_BF16};
        key = dt_matmul_key_of(&a, false);
        assert_true(key.a_alignment == most && key.b_alignment == most && key.c_alignment == cases[i].expected &&
                    key.vector_alignment == cases[i].expected);
        close_gpu(&g);
    }
    (void)unsetenv("DTRUN_MATMUL_ALIGNMENT");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_share_one_choice), /* first: it forks */
        cmocka_unit_test(the_fastest_is_kept),
        cmocka_unit_test(beside_others_there_are_other_plans),
        cmocka_unit_test(ranks_take_what_rank_0_chose),
        cmocka_unit_test(what_cannot_be_kept_is_not_measured),
        cmocka_unit_test(a_damaged_file_is_said_in_one_line),
        cmocka_unit_test(what_the_library_lacks_is_said),
        cmocka_unit_test(a_run_has_all_its_plans),
        cmocka_unit_test(no_step_makes_a_plan),
        cmocka_unit_test(kernels_are_loaded_before),
        cmocka_unit_test(the_head_is_aligned),
        cmocka_unit_test(operands_are_rounded_if_asked),
        cmocka_unit_test(alignment_is_in_the_key),
    };
    return cmocka_run_group_tests(tests, ranks_setup, folder_teardown);
}
