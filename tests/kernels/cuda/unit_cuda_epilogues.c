/* covers: kernels/cuda/cuda.h kernels/cuda/matmul_plan.c */
/* Products with their epilogues on the GPU: what they compute, what is refused and done apart,
 * and that the faster way is chosen once for all. On the software
 * GPU, whose cublasLt is told which one is slow; on a real one what its library's proposals compute.   run: timeout 600 */
#include "base/log.h"
#include "base/text.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/matmul_plan.h"
#include "tests/lib/kernel_cases.h"
#include "tests/lib/plan_cache.h"
#include "tests/lib/ranks.h"

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

/* not on a real GPU */
extern uint64_t softgpu_lt_proposals __attribute__((weak)), softgpu_lt_epilogues __attribute__((weak)),
    softgpu_launch_count __attribute__((weak));

struct gpu {
    struct dt_device d;
    struct dt_stream *s;
};

static void open_gpu(struct gpu *g)
{
    case_open(&g->d, "cuda", 1, &g->s);
}

static void close_gpu(struct gpu *g)
{
    case_close(&g->d, g->s);
}

/* "fast" or "slow" products with epilogues, or null, and where the plan files are. */
static void use_cache(const char *name, bool fresh, const char *faster)
{
    plan_cache_use(name, fresh);
    (void)(faster != NULL ? setenv("SOFTGPU_LT_EPILOGUE", faster, 1) : unsetenv("SOFTGPU_LT_EPILOGUE"));
}

/* ---- a product's memory ---- */

enum { A, B, BIAS, AUX, C, GRADIENT, BUFFERS };

struct product {
    struct dt_matmul_args args; /* sizes and types; no pointers */
    int64_t counts[BUFFERS];
    double *values[BUFFERS]; /* as the types have them */
};

static enum dt_dtype type_of(const struct product *p, int buffer)
{
    return buffer == C ? p->args.c_type : buffer == GRADIENT ? p->args.grad_type : p->args.type;
}

static bool of_weights(enum dt_epilogue epilogue)
{
    return epilogue == DT_EPILOGUE_BIAS_BACKWARD || epilogue == DT_EPILOGUE_BIAS_BACKWARD_A;
}

/* As in an MLP: forward x W, the gradient of its input, that of its weights (in, out) or (out, in). */
static void make(struct product *p, enum dt_epilogue epilogue, int64_t m, int64_t n, int64_t k, enum dt_dtype type,
                 enum dt_dtype grad_type)
{
    memset(p, 0, sizeof *p);
    bool weights = of_weights(epilogue);
    p->args = (struct dt_matmul_args){
        .m = m, .n = n, .k = k, .type = type, .c_type = weights ? grad_type : type, .grad_type = grad_type};
    p->args.epilogue = epilogue;
    p->args.a_transposed = weights;
    p->args.b_transposed = epilogue == DT_EPILOGUE_GELU_BACKWARD;
    const int64_t counts[BUFFERS] = {m * k, k * n, n, m * n, m * n, epilogue == DT_EPILOGUE_BIAS_BACKWARD_A ? m : n};
    case_seed((uint64_t)(m * 1000 + n * 10 + k + (int64_t)epilogue));
    for (int b = 0; b < BUFFERS; b++) {
        p->counts[b] = counts[b];
        p->values[b] = dt_alloc((size_t)counts[b] * sizeof(double));
        char *typed = dt_alloc((size_t)counts[b] * sizeof(double));
        for (int64_t i = 0; i < counts[b]; i++) {
            p->values[b][i] = 2 * case_uniform();
        }
        dt_cpu_cast(&(struct dt_cast_args){typed, p->values[b], counts[b], type_of(p, b), DT_F64});
        dt_cpu_cast(&(struct dt_cast_args){p->values[b], typed, counts[b], DT_F64, type_of(p, b)});
        free(typed);
    }
}

static void drop(struct product *p)
{
    for (int b = 0; b < BUFFERS; b++) {
        free(p->values[b]);
    }
}

static struct dt_matmul_args with_pointers(const struct product *p, char *const *at)
{
    struct dt_matmul_args a = p->args;
    bool gelu = a.epilogue == DT_EPILOGUE_GELU;
    a.a = at[A];
    a.b = at[B];
    a.c = at[C];
    a.bias = gelu ? at[BIAS] : NULL;
    a.aux = !of_weights(a.epilogue) ? at[AUX] : NULL;
    a.bias_gradient = gelu ? NULL : at[GRADIENT];
    return a;
}

/* In double, in p's own values. */
static void compute_reference(struct product *p)
{
    struct dt_device d;
    struct dt_stream *s;
    struct dt_error err;
    case_open(&d, "twin64", 1, &s);
    struct dt_matmul_args a = with_pointers(p, (char *const *)p->values);
    a.type = a.c_type = a.grad_type = DT_F64;
    dt_matmul_parts(d.kernels, s, &a);
    assert_int_equal(dt_stream_finish(s, 60, &err), 0);
    case_close(&d, s);
}

/* p's memory on the device: behind each buffer's beginning `shift` bytes, which count for the
 * buffers of the mask. */
struct on_device {
    char *blocks[BUFFERS], *at[BUFFERS], *pinned;
    size_t bytes[BUFFERS], most;
};

static void put(struct gpu *g, const struct product *p, struct on_device *o, size_t shift, unsigned shifted)
{
    struct dt_error err = {0};
    o->most = 0;
    for (int b = 0; b < BUFFERS; b++) {
        o->bytes[b] = (size_t)p->counts[b] * 8 + 256;
        o->most = o->bytes[b] > o->most ? o->bytes[b] : o->most;
    }
    assert_int_equal(dt_device_alloc(&g->d, DT_MEMORY_PINNED, o->most, (void **)&o->pinned, &err), 0);
    for (int b = 0; b < BUFFERS; b++) {
        assert_int_equal(dt_device_alloc(&g->d, DT_MEMORY_DEVICE, o->bytes[b], (void **)&o->blocks[b], &err), 0);
        o->at[b] = o->blocks[b] + ((shifted >> b & 1) != 0 ? shift : 0);
        dt_cpu_cast(&(struct dt_cast_args){o->pinned, p->values[b], p->counts[b], type_of(p, b), DT_F64});
        dt_stream_copy(g->s, o->at[b], o->pinned, (size_t)p->counts[b] * dt_dtype_size(type_of(p, b)));
        assert_int_equal(dt_stream_finish(g->s, 60, &err), 0);
    }
}

static double *read_back(struct gpu *g, const struct product *p, const struct on_device *o, int buffer)
{
    struct dt_error err = {0};
    double *x = dt_alloc((size_t)p->counts[buffer] * sizeof(double));
    dt_stream_copy(g->s, o->pinned, o->at[buffer], (size_t)p->counts[buffer] * dt_dtype_size(type_of(p, buffer)));
    if (dt_stream_finish(g->s, 60, &err) != 0) {
        fail_msg("%s", err.text);
    }
    dt_cpu_cast(&(struct dt_cast_args){x, o->pinned, p->counts[buffer], DT_F64, type_of(p, buffer)});
    return x;
}

static void check(struct gpu *g, const struct product *p, const struct on_device *o, int buffer, double bound,
                  const char *who)
{
    double *x = read_back(g, p, o, buffer);
    for (int64_t i = 0; i < p->counts[buffer]; i++) {
        double expected = p->values[buffer][i];
        if (!(fabs(x[i] - expected) <= bound * (1 + fabs(expected)))) {
            fail_msg("%s: epilogue %d of (%lld, %lld, %lld): buffer %d [%lld]: %g, expected %g", who,
                     (int)p->args.epilogue, (long long)p->args.m, (long long)p->args.n, (long long)p->args.k, buffer,
                     (long long)i, x[i], expected);
        }
    }
    free(x);
}

/* c, and what else the epilogue writes. BF16 has 8 bits; `sum` bounds a sum of values that may
 * have been rounded before. */
static void check_all(struct gpu *g, const struct product *p, const struct on_device *o, double sum, const char *who)
{
    check(g, p, o, C, p->args.c_type == DT_F32 ? 1e-5 : 0.008, who);
    check(g, p, o, AUX, 0.008, who);
    check(g, p, o, GRADIENT, of_weights(p->args.epilogue) && p->args.grad_type == DT_F32 ? 1e-5 : sum, who);
}

/* As DT_MATMUL_GELU_ALONE_BACKWARD has it: expected becomes the sum of what is in c, after rounding. */
static void sum_of_rounded(struct gpu *g, const struct product *p, const struct on_device *o, double *expected)
{
    double *c = read_back(g, p, o, C);
    for (int64_t j = 0; j < p->args.n; j++) {
        expected[j] = p->args.accumulate ? p->values[GRADIENT][j] : 0;
        for (int64_t i = 0; i < p->args.m; i++) {
            expected[j] += c[i * p->args.n + j];
        }
    }
    free(c);
}

static void take_away(struct gpu *g, struct on_device *o)
{
    for (int b = 0; b < BUFFERS; b++) {
        dt_device_free(&g->d, DT_MEMORY_DEVICE, o->blocks[b], o->bytes[b]);
    }
    dt_device_free(&g->d, DT_MEMORY_PINNED, o->pinned, o->most);
}

/* Measures the product apart and with its epilogue. Returns how many were new. */
static int choose(struct gpu *g, const struct dt_matmul_args *a)
{
    struct dt_matmul_args each[2] = {*a, *a};
    struct dt_error why, err;
    int measured = -1;
    each[0].epilogue = DT_EPILOGUE_NONE;
    each[0].aux = each[0].bias_gradient = NULL;
    if (g->d.ops->plans->choose(g->s, each, 2, NULL, NULL, &measured, &why, &err) != 0 || why.status != DT_OK) {
        fail_msg("%s", why.status != DT_OK ? why.text : err.text);
    }
    return measured;
}

/* The same choice without measuring: the library's first algorithm for the product with its
 * epilogue. */
static void adopt(struct gpu *g, const struct dt_matmul_args *a)
{
    struct dt_matmul_key key = dt_matmul_key_of(a, false);
    struct dt_matmul_algo algo = {.words = {1, key.b_alignment, key.a_alignment, key.c_alignment, key.c_alignment,
                                            key.vector_alignment, key.vector_alignment}};
    struct dt_text text;
    dt_text_init(&text);
    g->d.ops->plans->tell(&g->d, a, 0, &text);
    char *of = strchr(text.data, '\n') + 1;
    *strchr(of, '\n') = '\0';
    struct dt_plan_file *f = dt_plan_file_open(&dt_matmul_plans, of);
    dt_plan_file_put(f, &key, &algo);
    dt_text_reset(&text);
    dt_plan_file_tell(f, &key, 1, &text);
    assert_true(g->d.ops->plans->take(&g->d, text.data, false));
    dt_plan_file_close(f);
    dt_text_clear(&text);
}

/* ---- what they compute ---- */

static const enum dt_epilogue epilogues[] = {DT_EPILOGUE_GELU, DT_EPILOGUE_GELU_BACKWARD, DT_EPILOGUE_BIAS_BACKWARD,
                                             DT_EPILOGUE_BIAS_BACKWARD_A};

/* Kinds of products: each epilogue in BF16, those of weights with gradients in F32, and GELU's gradient
 * with sums that the library cannot make: in F32, and added to. */
enum { KINDS = 8 };
static void make_kind(struct product *p, size_t kind, const int64_t *n)
{
    static const struct {
        enum dt_epilogue epilogue;
        enum dt_dtype grad_type;
        bool accumulate;
    } kinds[KINDS] = {{DT_EPILOGUE_GELU, DT_BF16, false},          {DT_EPILOGUE_GELU_BACKWARD, DT_BF16, false},
                      {DT_EPILOGUE_BIAS_BACKWARD, DT_BF16, false}, {DT_EPILOGUE_BIAS_BACKWARD_A, DT_BF16, false},
                      {DT_EPILOGUE_BIAS_BACKWARD, DT_F32, false},  {DT_EPILOGUE_BIAS_BACKWARD_A, DT_F32, false},
                      {DT_EPILOGUE_GELU_BACKWARD, DT_F32, false},  {DT_EPILOGUE_GELU_BACKWARD, DT_BF16, true}};
    make(p, kinds[kind].epilogue, n[0], n[1], n[2], DT_BF16, kinds[kind].grad_type);
    p->args.accumulate = kinds[kind].accumulate;
}

/* By cublasLt, with operands aligned and not; each plan twice, with other memory. */
static void they_agree_with_the_twin(void **unused)
{
    (void)unused;
    static const int64_t shapes[][3] = {{65, 48, 72}, {1, 8, 3}, {3, 56, 1}, {130, 24, 67}, {17, 264, 40}};
    struct gpu g;
    use_cache("agree", true, NULL);
    open_gpu(&g);
    for (size_t i = 0; i < KINDS * sizeof shapes / sizeof shapes[0]; i++) {
        struct product p;
        make_kind(&p, i % KINDS, shapes[i / KINDS]);
        for (int shift = 0; shift < 2; shift++) {
            struct on_device o[2];
            put(&g, &p, &o[0], 2, shift != 0 ? 1 << A | 1 << B : 0);
            put(&g, &p, &o[1], 2, shift != 0 ? 1 << A | 1 << B : 0);
            struct dt_matmul_args a[2] = {with_pointers(&p, o[0].at), with_pointers(&p, o[1].at)};
            /* nothing was chosen */
            assert_true(shift != 0 || !g.d.kernels->matmul_epilogue(g.s, &a[0]));
            adopt(&g, &a[0]);
            uint64_t before = softgpu_lt_epilogues;
            assert_true(g.d.kernels->matmul_epilogue(g.s, &a[0]));
            dt_matmul_epilogue(g.d.kernels, g.s, &a[1]);
            assert_int_equal(softgpu_lt_epilogues - before, 2);
            struct product expected = p;
            for (int b = 0; b < BUFFERS; b++) {
                expected.values[b] = dt_alloc((size_t)p.counts[b] * sizeof(double));
                memcpy(expected.values[b], p.values[b], (size_t)p.counts[b] * sizeof(double));
            }
            compute_reference(&expected);
            if (dt_matmul_key_of(&a[0], false).epilogue == DT_MATMUL_GELU_ALONE_BACKWARD) {
                sum_of_rounded(&g, &p, &o[0], expected.values[GRADIENT]);
            }
            check_all(&g, &expected, &o[0], 0.008, "first");
            check_all(&g, &expected, &o[1], 0.008, "again");
            drop(&expected);
            take_away(&g, &o[0]);
            take_away(&g, &o[1]);
        }
        drop(&p);
    }
    close_gpu(&g);
}

/* Every algorithm that the library proposes for a product with its epilogue; the choice between
 * them is one of speed alone. Its GELU may be of fewer bits than ours, but what is laid out
 * otherwise, added to or left out is further away. */
static int check_proposals(struct gpu *g, const struct matmul_cache *c, const struct product *p,
                           const struct product *expected)
{
    enum { MOST = 32 };
    cublasLtMatmulHeuristicResult_t found[MOST];
    struct on_device o;
    struct dt_cuda_launch l;
    put(g, p, &o, 0, 0);
    struct dt_matmul_args a = with_pointers(p, o.at);
    struct dt_matmul_key key = dt_matmul_key_of(&a, false);
    assert_true(matmul_epilogue_fits(&a) && matmul_fits(c, &key));
    struct matmul_plan *plan = matmul_plan_describe(c, &key);
    int count = plan != NULL ? matmul_plan_propose(c, plan, found, MOST) : 0, ran = 0;
    take_away(g, &o);
    for (int i = 0; i < count; i++) {
        char who[40];
        put(g, p, &o, 0, 0); /* an algorithm that writes nothing has nothing of the one before */
        a = with_pointers(p, o.at);
        plan->algo = found[i].algo;
        plan->workspace_bytes = found[i].workspaceSize;
        assert_true(dt_cuda_begin(g->s, &l));
        if (matmul_run(c, plan, &l, &a) == CUBLAS_STATUS_SUCCESS) {
            if (key.epilogue == DT_MATMUL_GELU_ALONE_BACKWARD) {
                matmul_sum_columns(g->s, &a);
                sum_of_rounded(g, p, &o, expected->values[GRADIENT]);
            }
            (void)snprintf(who, sizeof who, "proposal %d of %d", i, count);
            check(g, expected, &o, C, p->args.c_type == DT_F32 ? 1e-3 : 0.02, who);
            check(g, expected, &o, AUX, 0.01, who);
            check(g, expected, &o, GRADIENT,
                  p->args.epilogue == DT_EPILOGUE_GELU_BACKWARD ? 0.2
                  : p->args.grad_type == DT_F32                 ? 1e-3
                                                                : 0.05,
                  who);
            ran++;
        }
        take_away(g, &o);
    }
    if (plan != NULL) {
        matmul_plan_free(c, plan);
    }
    return ran;
}

static void proposals_agree_with_the_twin(void **unused)
{
    (void)unused;
    static const int64_t shapes[][3] = {{65, 48, 72}, {130, 24, 67}, {128, 256, 192}, {96, 768, 64}};
    int ran[KINDS] = {0};
    struct gpu g;
    use_cache("proposals", true, NULL);
    open_gpu(&g);
    const struct matmul_cache *c = matmul_cache_enter(&g.d);
    matmul_cache_leave();
    for (size_t i = 0; i < KINDS * sizeof shapes / sizeof shapes[0]; i++) {
        struct product p, expected;
        make_kind(&p, i % KINDS, shapes[i / KINDS]);
        make_kind(&expected, i % KINDS, shapes[i / KINDS]);
        compute_reference(&expected);
        ran[i % KINDS] += check_proposals(&g, c, &p, &expected);
        drop(&p);
        drop(&expected);
    }
    print_message("proposals: %d with GELU, %d with its gradient, %d with that alone; %d, %d and in F32 %d, %d with "
                  "sums for biases\n",
                  ran[0], ran[1], ran[7], ran[2], ran[3], ran[4], ran[5]);
    for (int i = 0; i < KINDS; i++) {
        assert_true(&softgpu_lt_epilogues == NULL || ran[i] > 0);
    }
    close_gpu(&g);
}

/* What cublasLt cannot do, or not exactly so, is done apart, though it was chosen for all that
 * can. */
static void what_is_refused_is_done_apart(void **unused)
{
    (void)unused;
    enum {
        BACKWARD = 1 << DT_EPILOGUE_GELU_BACKWARD | 1 << DT_EPILOGUE_BIAS_BACKWARD | 1 << DT_EPILOGUE_BIAS_BACKWARD_A
    };
    static const struct {
        const char *what;
        int64_t n;
        enum dt_dtype type, grad_type;
        unsigned epilogues, shifted; /* masks: of enum dt_epilogue; of buffers two bytes off */
        bool accumulate;
    } cases[] = {
        {"rows of aux that are no multiple of 8", 51, DT_BF16, DT_BF16,
         1 << DT_EPILOGUE_GELU | 1 << DT_EPILOGUE_GELU_BACKWARD, 0, false},
        {"aux off its alignment", 48, DT_BF16, DT_BF16, 1 << DT_EPILOGUE_GELU | 1 << DT_EPILOGUE_GELU_BACKWARD,
         1 << AUX, false},
        {"the bias off its alignment", 48, DT_BF16, DT_BF16, 1 << DT_EPILOGUE_GELU, 1 << BIAS, false},
        {"its gradient off", 48, DT_BF16, DT_BF16, BACKWARD, 1 << GRADIENT, false},
        {"F32", 48, DT_F32, DT_F32, BACKWARD | 1 << DT_EPILOGUE_GELU, 0, false},
        {"adding", 48, DT_BF16, DT_BF16, BACKWARD, 0, true},
        {"adding in F32", 48, DT_BF16, DT_F32, BACKWARD & ~(1 << DT_EPILOGUE_GELU_BACKWARD), 0, true},
    };
    struct gpu g;
    use_cache("refused", true, NULL);
    open_gpu(&g);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (size_t e = 0; e < sizeof epilogues / sizeof epilogues[0]; e++) {
            if ((cases[i].epilogues >> epilogues[e] & 1) == 0) {
                continue;
            }
            struct product p;
            struct on_device o;
            make(&p, epilogues[e], 65, cases[i].n, 72, cases[i].type, cases[i].grad_type);
            put(&g, &p, &o, 2, 0);
            struct dt_matmul_args a = with_pointers(&p, o.at);
            adopt(&g, &a);
            take_away(&g, &o);
            p.args.accumulate = cases[i].accumulate;
            put(&g, &p, &o, 2, cases[i].shifted);
            a = with_pointers(&p, o.at);
            uint64_t before = softgpu_lt_epilogues;
            if (g.d.kernels->matmul_epilogue(g.s, &a)) {
                fail_msg("%s: not refused", cases[i].what);
            }
            dt_matmul_epilogue(g.d.kernels, g.s, &a);
            assert_int_equal(softgpu_lt_epilogues - before, 0);
            compute_reference(&p);
            check_all(&g, &p, &o, p.args.epilogue == DT_EPILOGUE_GELU_BACKWARD ? 0.2 : 0.008, cases[i].what);
            take_away(&g, &o);
            drop(&p);
        }
    }
    close_gpu(&g);
}

/* With aux_only the product is made, and nothing else where that costs something. */
static void aux_alone(void **unused)
{
    (void)unused;
    for (int fast = 0; fast < 2; fast++) {
        struct gpu g;
        struct product p;
        struct on_device o;
        use_cache("alone", true, NULL);
        open_gpu(&g);
        make(&p, DT_EPILOGUE_GELU, 65, 48, 72, DT_BF16, DT_BF16);
        put(&g, &p, &o, 0, 0);
        struct dt_matmul_args a = with_pointers(&p, o.at);
        if (fast != 0) {
            adopt(&g, &a);
        }
        a.aux_only = true;
        dt_matmul_epilogue(g.d.kernels, g.s, &a);
        double *c = p.values[C];
        p.values[C] = dt_alloc((size_t)p.counts[C] * sizeof(double));
        compute_reference(&p);
        check(&g, &p, &o, AUX, 0.008, "aux");
        if (fast == 0) {
            memcpy(p.values[C], c, (size_t)p.counts[C] * sizeof(double));
            check(&g, &p, &o, C, 0, "what c was");
        }
        free(c);
        take_away(&g, &o);
        drop(&p);
        close_gpu(&g);
    }
}

/* ---- which way is chosen ---- */

static bool is_fused(struct gpu *g)
{
    struct product p;
    struct on_device o;
    make(&p, DT_EPILOGUE_GELU, 65, 48, 72, DT_BF16, DT_BF16);
    put(g, &p, &o, 0, 0);
    struct dt_matmul_args a = with_pointers(&p, o.at);
    bool fused = g->d.kernels->matmul_epilogue(g->s, &a);
    take_away(g, &o);
    drop(&p);
    return fused;
}

static void example(struct dt_matmul_args *a)
{
    struct product p;
    char *const nowhere = (char *)((uintptr_t)1 << 40);
    char *const at[BUFFERS] = {nowhere, nowhere, nowhere, nowhere, nowhere, nowhere};
    make(&p, DT_EPILOGUE_GELU, 65, 48, 72, DT_BF16, DT_BF16);
    *a = with_pointers(&p, at);
    drop(&p);
}

static void the_faster_way_stays(void **unused)
{
    (void)unused;
    for (int fast = 0; fast < 2; fast++) {
        struct gpu g;
        struct dt_matmul_args a;
        example(&a);
        use_cache("stays", true, fast != 0 ? "fast" : "slow");
        open_gpu(&g);
        assert_int_equal(choose(&g, &a), 2);
        assert_int_equal(choose(&g, &a), 0);
        assert_int_equal(is_fused(&g), fast);
        close_gpu(&g);
        use_cache("stays", false, fast != 0 ? "slow" : "fast"); /* a later start: nothing is
                                                                 * measured, nothing changes */
        open_gpu(&g);
        uint64_t proposals = softgpu_lt_proposals;
        assert_int_equal(choose(&g, &a), 0);
        assert_int_equal(is_fused(&g), fast);
        assert_int_equal(softgpu_lt_proposals - proposals, 0);
        g.d.ops->plans->none(&g.d); /* as `deterministic` has it */
        assert_false(is_fused(&g));
        assert_int_equal(softgpu_lt_proposals - proposals, 0);
        close_gpu(&g);
    }
}

/* Measures the product as training does (worker/engine/matmul_shapes.c), and with its sum added to. */
static int choose_with_sum(struct gpu *g, const struct dt_matmul_args *a)
{
    struct dt_matmul_args adding = *a;
    struct dt_error why, err;
    int measured = -1;
    adding.accumulate = true;
    assert_int_equal(
        g->d.ops->plans->choose(g->s, (struct dt_matmul_args[]){adding, *a}, 2, NULL, NULL, &measured, &why, &err), 0);
    return measured;
}

/* GELU's gradient and the sum of it: both by the library, one or none. */
static void one_of_three_ways_is_chosen(void **unused)
{
    (void)unused;
    static const struct {
        const char *faster;
        bool sum, alone; /* the library has the fastest way for both; for GELU's gradient */
    } cases[] = {{"slow", false, false}, {"alone", false, true}, {"sums", true, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct gpu g;
        struct product p;
        struct on_device o;
        use_cache("three", true, cases[i].faster);
        open_gpu(&g);
        make(&p, DT_EPILOGUE_GELU_BACKWARD, 65, 48, 72, DT_BF16, DT_BF16);
        put(&g, &p, &o, 0, 0);
        struct dt_matmul_args a = with_pointers(&p, o.at), adding = a;
        assert_int_equal(choose_with_sum(&g, &a), 2);
        assert_int_equal(choose_with_sum(&g, &a), 0);
        uint64_t before = softgpu_lt_epilogues, products = softgpu_launch_count;
        assert_true(g.d.kernels->matmul_epilogue(g.s, &a) == (cases[i].sum || cases[i].alone));
        assert_int_equal(softgpu_lt_epilogues - before, cases[i].sum || cases[i].alone ? 1 : 0);
        /* the sum is a kernel of our own */
        assert_true((softgpu_launch_count > products) == cases[i].alone);
        adding.accumulate = true;
        /* with the sum apart the other two ways are equally slow */
        assert_true(cases[i].sum || g.d.kernels->matmul_epilogue(g.s, &adding) == cases[i].alone);
        g.d.ops->plans->none(&g.d);
        assert_false(g.d.kernels->matmul_epilogue(g.s, &a));
        take_away(&g, &o);
        drop(&p);
        close_gpu(&g);
    }
}

static void ranks_take_what_rank_0_chose(void **unused)
{
    (void)unused;
    for (int fast = 0; fast < 2; fast++) {
        struct gpu first, other;
        struct dt_matmul_args a;
        struct dt_text text;
        example(&a);
        dt_text_init(&text);
        use_cache("rank 0", true, fast != 0 ? "fast" : "slow");
        open_gpu(&first);
        assert_int_equal(choose(&first, &a), 2);
        first.d.ops->plans->tell(&first.d, &a, 1, &text);
        use_cache("rank 1", true, fast != 0 ? "slow" : "fast");
        open_gpu(&other);
        assert_int_equal(choose(&other, &a), 2);
        assert_int_equal(is_fused(&other), !fast);
        assert_true(other.d.ops->plans->take(&other.d, dt_text_str(&text), true));
        assert_int_equal(is_fused(&other), fast);
        close_gpu(&other);
        close_gpu(&first);
        dt_text_clear(&text);
    }
}

/* Rows that the library does not take, or that nobody knows: then they are done apart. */
static void a_strange_row_does_no_harm(void **unused)
{
    (void)unused;
    struct gpu g;
    struct dt_matmul_args a;
    struct dt_error err;
    struct dt_text text;
    example(&a);
    struct dt_matmul_key key = dt_matmul_key_of(&a, false);
    for (int kind = 0; kind < 2; kind++) {
        use_cache("strange", true, "fast");
        open_gpu(&g);
        assert_int_equal(choose(&g, &a), 2);
        dt_text_init(&text);
        g.d.ops->plans->tell(&g.d, &a, 1, &text);
        char *of = strchr(text.data, '\n') + 1;
        *strchr(of, '\n') = '\0';
        struct dt_plan_file *f = dt_plan_file_open(&dt_matmul_plans, of);
        struct dt_matmul_algo bad = *(const struct dt_matmul_algo *)dt_plan_file_find(f, &key);
        struct dt_matmul_key beyond = key;
        bad.words[0] = 99;
        beyond.epilogue = 16;
        dt_plan_file_put(f, kind == 0 ? &key : &beyond, &bad);
        assert_int_equal(dt_plan_file_lock(f, NULL, NULL, &err), 0); /* which reads it anew */
        dt_plan_file_put(f, kind == 0 ? &key : &beyond, &bad);
        assert_int_equal(dt_plan_file_save(f, &err), 0);
        dt_plan_file_close(f);
        dt_text_clear(&text);
        close_gpu(&g);
        open_gpu(&g);
        assert_int_equal(is_fused(&g), kind == 0 ? 0 : 1);
        assert_int_equal(choose(&g, &a), 0);
        close_gpu(&g);
    }
}

/* ---- in training ---- */

static void train(const char *row, int micro_steps, enum recompute level, bool deterministic, struct ranks_outcome *out)
{
    struct job job;
    ranks_job(&job);
    job.training.strategy = row;
    job.training.precision = "bf16-mixed";
    job.precision.compute = job.precision.reduce = DT_BF16; /* as reading a job file sets it */
    job.training.max_steps = 3;
    job.training.gradient_accumulation_steps = micro_steps;
    job.recompute = (struct job_recompute){.enabled = true, .every_n_layers = 1, .level = level};
    job.training.deterministic = deterministic;
    job.text = NULL;
    ranks_train(&job, 1, &(struct ranks_options){.device = "cuda"}, out);
    if (out->rc[0] != 0) {
        fail_msg("%s: %s", row, out->err[0].text);
    }
    dt_arena_clear(&job.arena);
}

/* Losses stay near those of the parts; rows and recomputing do not show in the bits, but for the
 * level that keeps what the library made of GELU; `deterministic` takes none of it. */
static void runs_agree(void **unused)
{
    (void)unused;
    for (int micro_steps = 1; micro_steps <= 2; micro_steps++) {
        struct ranks_outcome apart, ddp, sharded, again, mlp, none, fixed, fixed_none;
        use_cache("run apart", micro_steps == 1, "slow");
        train("ddp", micro_steps, RECOMPUTE_CHEAP, false, &apart);
        use_cache("run", micro_steps == 1, "fast");
        uint64_t before = softgpu_lt_epilogues;
        train("ddp", micro_steps, RECOMPUTE_CHEAP, false, &ddp);
        assert_true(softgpu_lt_epilogues - before > 3 * 2 * 5); /* steps, layers, and some to
                                                                 * measure */
        use_cache("run", false, NULL);                          /* all is chosen */
        train("full_shard", micro_steps, RECOMPUTE_CHEAP, false, &sharded);
        train("full_shard", micro_steps, RECOMPUTE_BLOCK, false, &again);
        train("full_shard", micro_steps, RECOMPUTE_MLP, false, &mlp);
        train("full_shard", micro_steps, RECOMPUTE_NONE, false, &none);
        before = softgpu_lt_epilogues;
        train("ddp", micro_steps, RECOMPUTE_CHEAP, true, &fixed);
        train("ddp", micro_steps, RECOMPUTE_NONE, true, &fixed_none);
        assert_int_equal(softgpu_lt_epilogues - before, 0);
        assert_true(ddp.hash != apart.hash); /* or nothing of this could fail */
        assert_true(sharded.hash == again.hash && sharded.hash == mlp.hash && fixed.hash == fixed_none.hash);
        assert_true(none.hash != sharded.hash);
        if (micro_steps == 1) {
            assert_true(sharded.hash == ddp.hash);
        }
        for (int k = 0; k < 3; k++) {
            assert_true(fabs(ddp.loss[k] - apart.loss[k]) <= 5e-3 && fabs(sharded.loss[k] - apart.loss[k]) <= 5e-3 &&
                        fabs(none.loss[k] - apart.loss[k]) <= 5e-3);
            assert_true(fabs(ddp.norm[k] - apart.norm[k]) <= 0.02 * apart.norm[k] &&
                        fabs(sharded.norm[k] - apart.norm[k]) <= 0.02 * apart.norm[k]);
        }
        ranks_clear(&apart);
        ranks_clear(&ddp);
        ranks_clear(&sharded);
        ranks_clear(&again);
        ranks_clear(&mlp);
        ranks_clear(&none);
        ranks_clear(&fixed_none);
        ranks_clear(&fixed);
    }
}

int main(void)
{
    const struct CMUnitTest on_a_gpu[] = {cmocka_unit_test(proposals_agree_with_the_twin)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(they_agree_with_the_twin),
        cmocka_unit_test(proposals_agree_with_the_twin),
        cmocka_unit_test(what_is_refused_is_done_apart),
        cmocka_unit_test(aux_alone),
        cmocka_unit_test(the_faster_way_stays),
        cmocka_unit_test(one_of_three_ways_is_chosen),
        cmocka_unit_test(ranks_take_what_rank_0_chose),
        cmocka_unit_test(a_strange_row_does_no_harm),
        cmocka_unit_test(runs_agree),
    };
    return &softgpu_lt_epilogues == NULL ? cmocka_run_group_tests(on_a_gpu, ranks_setup, folder_teardown)
                                         : cmocka_run_group_tests(tests, ranks_setup, folder_teardown);
}
