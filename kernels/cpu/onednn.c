/* The only file that uses oneDNN, versions 2 and 3: products of BF16 matrices in the calling
 * thread. */
#include "kernels/cpu/cpu.h"

#include <dlfcn.h>
#include <dnnl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* oneDNN (as Debian builds it) runs on OpenMP, which keeps a thread count per calling thread. Set
 * it to one, since our own pool has the threads. */
static void use_one_thread(void)
{
    static __thread bool done;
    if (done) {
        return;
    }
    done = true;
    void *symbol = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
    void (*set)(int) = NULL;
    memcpy(&set, &symbol, sizeof set);
    if (set != NULL) {
        set(1);
    }
}

bool dt_onednn_has_amx(void)
{
    return (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_amx) == dnnl_cpu_isa_avx512_core_amx;
}

/* ---- BF16: a primitive per shape, compiled at its first use and kept ---- */

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t matrix; /* version 3: a pointer */
typedef const_dnnl_memory_desc_t matrix_in;
#define IN(m) (m)

static dnnl_status_t describe(matrix *to, dnnl_dims_t dims, dnnl_dims_t strides, dnnl_data_type_t type)
{
    return dnnl_memory_desc_create_with_strides(to, 2, dims, type, strides);
}

static dnnl_status_t add_to_c(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0F, 0, dnnl_data_type_undef);
}
#else
typedef dnnl_memory_desc_t matrix; /* version 2: the struct itself */
typedef const dnnl_memory_desc_t *matrix_in;
#define IN(m) (&(m))

static dnnl_status_t describe(matrix *to, dnnl_dims_t dims, dnnl_dims_t strides, dnnl_data_type_t type)
{
    return dnnl_memory_desc_init_by_strides(to, 2, dims, type, strides);
}

static dnnl_status_t add_to_c(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0F);
}
#endif

/* Everything by which primitives differ. */
struct key {
    int64_t m, n, k, a_row, a_col, b_row, b_col, ldc;
    int64_t bias, accumulate, c_is_f32;
};

struct product {
    struct key key;
    struct product *next;
    dnnl_primitive_t primitive; /* null: the library has no such product */
    dnnl_primitive_desc_t described;
    matrix a, b, bias, c;
    size_t scratch_bytes;
};

#define BUCKETS 64

static struct {
    pthread_mutex_t lock;
    dnnl_engine_t engine;
    /* a bucket's list only grows, at its head, so readers need no lock */
    struct product *products[BUCKETS];
} library = {.lock = PTHREAD_MUTEX_INITIALIZER};

static dnnl_status_t describe_matrices(struct product *p)
{
    const struct key *k = &p->key;
    dnnl_dims_t a = {k->m, k->k}, b = {k->k, k->n}, c = {k->m, k->n}, bias = {1, k->n};
    dnnl_dims_t a_steps = {k->a_row, k->a_col}, b_steps = {k->b_row, k->b_col}, c_steps = {k->ldc, 1},
                bias_steps = {k->n, 1};
    dnnl_status_t s = describe(&p->a, a, a_steps, dnnl_bf16);
    s = s != dnnl_success ? s : describe(&p->b, b, b_steps, dnnl_bf16);
    s = s != dnnl_success ? s : describe(&p->c, c, c_steps, k->c_is_f32 ? dnnl_f32 : dnnl_bf16);
    return s != dnnl_success ? s : describe(&p->bias, bias, bias_steps, dnnl_bf16);
}

static dnnl_status_t describe_product(struct product *p, dnnl_primitive_attr_t attr)
{
#if DNNL_VERSION_MAJOR >= 3
    return dnnl_matmul_primitive_desc_create(&p->described, library.engine, p->a, p->b, p->key.bias ? p->bias : NULL,
                                             p->c, attr);
#else
    dnnl_matmul_desc_t d;
    dnnl_status_t s = dnnl_matmul_desc_init(&d, &p->a, &p->b, p->key.bias ? &p->bias : NULL, &p->c);
    return s != dnnl_success ? s : dnnl_primitive_desc_create(&p->described, &d, attr, library.engine, NULL);
#endif
}

/* We pass scratch memory to the library, so that it allocates none in the training loop. */
static dnnl_status_t compile(struct product *p)
{
    dnnl_primitive_attr_t attr = NULL;
    dnnl_post_ops_t ops = NULL;
    dnnl_status_t s = library.engine != NULL ? dnnl_success : dnnl_engine_create(&library.engine, dnnl_cpu, 0);
    s = s != dnnl_success ? s : describe_matrices(p);
    s = s != dnnl_success ? s : dnnl_primitive_attr_create(&attr);
    s = s != dnnl_success ? s : dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    if (p->key.accumulate) {
        s = s != dnnl_success ? s : dnnl_post_ops_create(&ops);
        s = s != dnnl_success ? s : add_to_c(ops);
        s = s != dnnl_success ? s : dnnl_primitive_attr_set_post_ops(attr, ops);
    }
    s = s != dnnl_success ? s : describe_product(p, attr);
    s = s != dnnl_success ? s : dnnl_primitive_create(&p->primitive, p->described);
    if (s == dnnl_success) {
        p->scratch_bytes =
            dnnl_memory_desc_get_size(dnnl_primitive_desc_query_md(p->described, dnnl_query_scratchpad_md, 0));
    }
    dnnl_post_ops_destroy(ops);
    dnnl_primitive_attr_destroy(attr);
    return s;
}

static struct product *search(struct product *list, const struct key *key)
{
    while (list != NULL && memcmp(&list->key, key, sizeof *key) != 0) {
        list = list->next;
    }
    return list;
}

static const struct product *product_of(const struct dt_gemm_half *g)
{
    struct key key = {.m = g->m,
                      .n = g->n,
                      .k = g->k,
                      .a_row = g->a_row,
                      .a_col = g->a_col,
                      .b_row = g->b_row,
                      .b_col = g->b_col,
                      .ldc = g->ldc,
                      .bias = g->bias != NULL,
                      .accumulate = g->accumulate,
                      .c_is_f32 = g->c_is_f32};
    struct product **bucket =
        &library.products[(uint64_t)(key.m * 31 + key.n * 17 + key.k * 7 + key.a_col + key.b_col) % BUCKETS];
    struct product *p = search(__atomic_load_n(bucket, __ATOMIC_ACQUIRE), &key);
    if (p != NULL) {
        return p;
    }
    pthread_mutex_lock(&library.lock);
    p = search(*bucket, &key);
    if (p == NULL) {
        p = calloc(1, sizeof *p);
        if (p == NULL) {
            abort(); /* a few hundred bytes: without them nothing else would work either */
        }
        p->key = key;
        if (compile(p) != dnnl_success) {
            p->primitive = NULL;
        }
        p->next = *bucket;
        __atomic_store_n(bucket, p, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&library.lock);
    return p;
}

static dnnl_status_t run_product(const struct product *p, const struct dt_gemm_half *g)
{
    const struct {
        int what;
        matrix_in shape;
        const void *at;
    } tensors[] = {{DNNL_ARG_SRC, IN(p->a), g->a},
                   {DNNL_ARG_WEIGHTS, IN(p->b), g->b},
                   {DNNL_ARG_DST, IN(p->c), g->c},
                   {DNNL_ARG_SCRATCHPAD, dnnl_primitive_desc_query_md(p->described, dnnl_query_scratchpad_md, 0),
                    dt_cpu_work(DT_WORK_MATMUL, p->scratch_bytes + 64)},
                   {DNNL_ARG_BIAS, IN(p->bias), g->bias}};
    dnnl_exec_arg_t args[5] = {{0}};
    dnnl_stream_t stream = NULL;
    dnnl_status_t s = dnnl_stream_create(&stream, library.engine, dnnl_stream_default_flags);
    int count = 0;
    for (; count < (g->bias != NULL ? 5 : 4) && s == dnnl_success; count++) {
        void *at;
        /* the library takes pointers without const, also for what it only reads */
        memcpy(&at, &tensors[count].at, sizeof at);
        args[count].arg = tensors[count].what;
        s = dnnl_memory_create(&args[count].memory, tensors[count].shape, library.engine, at);
    }
    s = s != dnnl_success ? s : dnnl_primitive_execute(p->primitive, stream, count, args);
    s = s != dnnl_success ? s : dnnl_stream_wait(stream);
    for (int i = 0; i < count; i++) {
        dnnl_memory_destroy(args[i].memory);
    }
    dnnl_stream_destroy(stream);
    return s;
}

bool dt_onednn_gemm_bf16(const struct dt_gemm_half *g)
{
    use_one_thread();
    const struct product *p = product_of(g);
    return p->primitive != NULL && run_product(p, g) == dnnl_success;
}
