/* covers: kernels/cuda/cuda.h */
/* Graphs of the device "cuda", on the software GPU or a real one: what was taken down has the
 * bits of the same work put in directly, as often as it is launched; what cannot be taken down
 * leaves the stream as it was, and the work can be put in directly. */
#include "kernels/attention.h"
#include "kernels/cuda/cuda.h"
#include "tests/lib/device_cases.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LONG_S DEVICE_CASE_LONG_S
enum { BATCH = 2, POSITIONS = 16, HEADS = 2, HEAD = 8, WIDTH = HEADS * HEAD, ROWS = BATCH * POSITIONS };

struct place {
    struct dt_device d;
    struct dt_stream *s;
    uint16_t *x, *norm, *qkv, *att, *weight, *out; /* device, bf16 */
    float *lse, *mean, *rstd, *sums;
    char *memory, *seen; /* all of the device's; pinned, as large */
    size_t size_bytes;
};

static const struct device_case gpu = {"cuda", DT_STREAMS_AUTO};

static void open_place(struct place *p)
{
    memset(p, 0, sizeof *p);
    device_case_open(&p->d, &gpu);
    p->size_bytes = 64 << 10;
    assert_int_equal(dt_stream_open(&p->d, 0, &p->s, NULL), 0);
    assert_int_equal(dt_device_alloc(&p->d, DT_MEMORY_DEVICE, p->size_bytes, (void **)&p->memory, NULL), 0);
    assert_int_equal(dt_device_alloc(&p->d, DT_MEMORY_PINNED, p->size_bytes, (void **)&p->seen, NULL), 0);
    char *at = p->memory;
    void **const pieces[] = {(void **)&p->x,      (void **)&p->norm, (void **)&p->qkv, (void **)&p->att,
                             (void **)&p->weight, (void **)&p->out,  (void **)&p->lse, (void **)&p->mean,
                             (void **)&p->rstd,   (void **)&p->sums};
    for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
        *pieces[i] = at;
        at += 6 << 10;
    }
}

static void close_place(struct place *p)
{
    dt_stream_close(p->s);
    dt_device_free(&p->d, DT_MEMORY_DEVICE, p->memory, p->size_bytes);
    dt_device_free(&p->d, DT_MEMORY_PINNED, p->seen, p->size_bytes);
    dt_device_close(&p->d);
}

/* New numbers in all of the memory. */
static void put_numbers(struct place *p, unsigned seed)
{
    assert_int_equal(dt_stream_finish(p->s, LONG_S, NULL), 0);
    uint16_t *numbers = (uint16_t *)(void *)p->seen;
    for (size_t i = 0; i < p->size_bytes / 2; i++) {
        seed = seed * 1664525u + 1013904223u;
        /* about one, as bf16 and as float */
        numbers[i] = (uint16_t)(0x3f00 + (seed >> 24) - 0x80 * (seed >> 31));
    }
    dt_stream_copy(p->s, p->memory, p->seen, p->size_bytes);
}

static uint16_t *get_numbers(struct place *p)
{
    dt_stream_copy(p->s, p->seen, p->memory, p->size_bytes);
    assert_int_equal(dt_stream_finish(p->s, LONG_S, NULL), 0);
    uint16_t *copy = malloc(p->size_bytes);
    memcpy(copy, p->seen, p->size_bytes);
    return copy;
}

/* A part of a layer: a norm, a product with bias, attention, a product that adds, a sum; kernels
 * of ours and both libraries. */
static void work(struct place *p)
{
    const struct dt_kernels *k = p->d.kernels;
    k->layernorm(p->s, &(struct dt_layernorm_args){.y = p->norm,
                                                   .mean = p->mean,
                                                   .rstd = p->rstd,
                                                   .residual = p->x,
                                                   .gamma = p->weight,
                                                   .beta = p->weight + WIDTH,
                                                   .row_count = ROWS,
                                                   .col_count = WIDTH,
                                                   .eps = 1e-5,
                                                   .type = DT_BF16});
    k->matmul(p->s, &(struct dt_matmul_args){.c = p->qkv,
                                             .a = p->norm,
                                             .b = p->weight,
                                             .bias = p->weight,
                                             .m = ROWS,
                                             .n = 3 * WIDTH,
                                             .k = WIDTH,
                                             .type = DT_BF16,
                                             .c_type = DT_BF16});
    struct dt_attention_args attention = {.out = p->att, .lse = p->lse, .q = p->qkv};
    attention.shape = (struct dt_attention_shape){.batch = BATCH,
                                                  .queries = POSITIONS,
                                                  .keys = POSITIONS,
                                                  .heads = HEADS,
                                                  .head_size = HEAD,
                                                  .causal = true,
                                                  .type = DT_BF16};
    attention.k = dt_attention_part(&attention.shape, p->qkv, 1);
    attention.v = dt_attention_part(&attention.shape, p->qkv, 2);
    k->attention(p->s, &attention);
    k->matmul(p->s, &(struct dt_matmul_args){.c = p->out,
                                             .a = p->att,
                                             .b = p->x,
                                             .m = WIDTH,
                                             .n = WIDTH,
                                             .k = ROWS,
                                             .a_transposed = true,
                                             .accumulate = true,
                                             .type = DT_BF16,
                                             .c_type = DT_F32});
    k->column_sum(p->s, &(struct dt_column_sum_args){.out = p->sums,
                                                     .x = p->att,
                                                     .row_count = ROWS,
                                                     .col_count = WIDTH,
                                                     .accumulate = true,
                                                     .type = DT_BF16,
                                                     .grad_type = DT_F32});
    dt_stream_copy(p->s, p->norm, p->att, ROWS * WIDTH * sizeof *p->att);
}

static struct dt_graph *take_down(struct place *p)
{
    struct dt_graph *g = NULL;
    struct dt_error err = {0};
    assert_int_equal(dt_graph_begin(p->s, &err), 0);
    work(p);
    if (dt_graph_end(p->s, &g, &err) != 0) {
        fail_msg("%s", err.text);
    }
    return g;
}

static void test_same_bits(void **unused)
{
    (void)unused;
    struct place p;
    open_place(&p);
    assert_true(dt_device_has_graphs(&p.d));
    put_numbers(&p, 1);
    work(&p); /* plans are made */
    put_numbers(&p, 2);
    uint16_t *before = get_numbers(&p);
    struct dt_graph *g = take_down(&p);
    uint16_t *after = get_numbers(&p);
    assert_memory_equal(before, after, p.size_bytes); /* nothing has run */
    free(before);
    free(after);
    for (unsigned seed = 3; seed < 6; seed++) {
        put_numbers(&p, seed);
        work(&p);
        work(&p);
        uint16_t *direct = get_numbers(&p);
        put_numbers(&p, seed);
        dt_graph_launch(g);
        dt_graph_launch(g);
        if (seed == 5) { /* what is under way still runs */
            dt_graph_close(g);
        }
        uint16_t *graph = get_numbers(&p);
        assert_memory_equal(direct, graph, p.size_bytes);
        free(direct);
        free(graph);
    }
    close_place(&p);
}

/* What cannot be taken down: memory is wanted, a kernel refuses its arguments. */
static void want_memory(struct place *p)
{
    void *memory;
    struct dt_error err = {0};
    assert_int_equal(dt_device_alloc(&p->d, DT_MEMORY_DEVICE, 4096, &memory, &err), -1);
}

static void compute_double(struct place *p)
{
    p->d.kernels->matmul(
        p->s, &(struct dt_matmul_args){.c = p->out, .a = p->x, .b = p->x, .m = 4, .n = 4, .k = 4, .type = DT_F64});
}

static void test_refusals(void **unused)
{
    (void)unused;
    void (*const rows[])(struct place *) = {want_memory, compute_double};
    struct place p;
    open_place(&p);
    put_numbers(&p, 1);
    work(&p);
    put_numbers(&p, 2);
    work(&p);
    uint16_t *expected = get_numbers(&p);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct dt_graph *g = NULL;
        struct dt_error err = {0};
        put_numbers(&p, 2);
        assert_int_equal(dt_graph_begin(p.s, &err), 0);
        work(&p);
        rows[i](&p);
        work(&p);
        assert_int_equal(dt_graph_end(p.s, &g, &err), -1);
        assert_true(g == NULL && err.status != DT_OK && err.text[0] != '\0');
        assert_false(dt_stream_failed(p.s, NULL));
        work(&p);
        uint16_t *direct = get_numbers(&p);
        assert_memory_equal(direct, expected, p.size_bytes);
        free(direct);
    }
    dt_graph_close(take_down(&p)); /* the next one is no worse for it */
    free(expected);
    close_place(&p);
}

static void *fail_stream(void *stream)
{
    dt_stream_fail(stream, DT_PEER, "rank 1: gone");
    return NULL;
}

/* Another thread fails the stream meanwhile: that is no refusal, and a graph that lacks kernels
 * is none. */
static void test_failure_meanwhile(void **unused)
{
    (void)unused;
    struct place p;
    struct dt_graph *g = NULL;
    struct dt_error err = {0};
    pthread_t thread;
    open_place(&p);
    work(&p);
    struct dt_graph *earlier = take_down(&p);
    assert_int_equal(dt_graph_begin(p.s, &err), 0);
    work(&p);
    assert_int_equal(pthread_create(&thread, NULL, fail_stream, p.s), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    work(&p);
    assert_int_equal(dt_graph_end(p.s, &g, &err), -1);
    assert_int_equal(err.status, DT_PEER);
    assert_string_equal(err.text, "rank 1: gone");
    assert_true(dt_stream_failed(p.s, NULL));
    assert_int_equal(dt_graph_begin(p.s, &err), -1);
    dt_graph_launch(earlier); /* puts nothing in */
    assert_int_equal(dt_stream_finish(p.s, LONG_S, &err), -1);
    dt_graph_close(earlier);
    close_place(&p);
}

static void test_cpu_has_none(void **unused)
{
    (void)unused;
    struct dt_device d;
    struct dt_stream *s = NULL;
    struct dt_error err = {0};
    device_case_open(&d, &(struct device_case){"cpu", DT_STREAMS_INLINE});
    assert_int_equal(dt_stream_open(&d, 0, &s, NULL), 0);
    assert_false(dt_device_has_graphs(&d));
    assert_int_equal(dt_graph_begin(s, &err), -1);
    assert_int_equal(err.status, DT_NOT_FOUND);
    dt_graph_close(NULL);
    dt_stream_close(s);
    dt_device_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_failure_meanwhile),
        cmocka_unit_test(test_cpu_has_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
