/* The cases that every kernel of the table passes on each backend: inputs from a seed, the call,
 * the reference, and the comparison, in which a NaN is an error. The reference is the double twin.
 * For 16 bits it is the twin of that type, after that was compared with the double twin.
 *
 *   case_reference(c, n, m);                  makes inputs and, in double, the expected results
 *   case_reset_typed(m);                      inputs in the types of the mode
 *   case_run_host(...), or a device's own way with case_run.on and .side
 *   case_compare(c, n, m, "avx2", 1);
 *   case_clear(); */
#ifndef DT_TESTS_LIB_KERNEL_CASES_H
#define DT_TESTS_LIB_KERNEL_CASES_H

#include "kernels/device.h"
#include "kernels/kernels.h"

enum { CASE_BUFFERS = 10, CASE_SHAPE = 6, CASE_SHAPES = 31, CASE_MODES = 5, CASE_ROWS = 8192 };

/* The role of an element decides its type: values in the flow have the run's type, gradient sums
 * have the grad type, statistics and masters are F32, an optimizer's state may be BF16 (COPY), and
 * copies of masters are BF16 or, where values flow as F16, F16 (LOW). In a run in double all are
 * F64. */
enum case_kind { FLOWS, GRAD, STAT, COPY, LOW };

/* One buffer in three copies: as made, in the types of a run, and in double. */
struct case_buffer {
    double *made, *d;
    void *x;
    int64_t count;
    enum case_kind kind;
};
extern struct case_buffer case_buf[CASE_BUFFERS];

/* Values outside of the buffers: ids, and scalars that kernels read and write. */
struct case_side {
    int32_t skips, goes; /* 1; 0 */
    double half, clip, loss_sum, losses[CASE_ROWS];
    int64_t valid, correct;
    int32_t ids[CASE_ROWS], positions[CASE_ROWS], kinds[CASE_ROWS];
    int64_t samples[CASE_ROWS];
    float labels[CASE_ROWS];
};
extern struct case_side case_side;

/* The types of a run. */
struct case_mode {
    const char *name;
    enum dt_dtype type, grad;
};
extern const struct case_mode case_modes[CASE_MODES];
enum dt_dtype case_type_in(const struct case_mode *m, const struct case_buffer *b);

/* Where a run of a case works: on the typed or the double copies, or on copies on a device if they
 * are given. */
struct case_run {
    struct dt_stream *s;
    const struct dt_kernels *k;
    enum dt_dtype type;
    const int64_t *n;
    enum dt_dtype grad;
    void *const *on;        /* buffers on the device, or null */
    struct case_side *side; /* case_side on the device */
};

struct kernel_case {
    const char *name;
    void (*make)(const int64_t *n);
    void (*run)(const struct case_run *r);
    /* called after the run, with its results in the host's copies; may be null */
    void (*after)(const struct case_run *r);
    double bound; /* bound of |float - double| / (1 + |double|) */
    double half;  /* the same for BF16 elements; F16 has an eighth of it */
    int64_t shapes[CASE_SHAPES][CASE_SHAPE];
};
extern const struct kernel_case kernel_cases[];
extern const size_t kernel_case_count;

void case_seed(uint64_t seed);
double case_uniform(void); /* in (-1, 1), exact in a float */
void case_make(int at, int64_t count, double scale, double shift);
void case_make_of(enum case_kind kind, int at, int64_t count, double scale, double shift);
/* count numbers in [0, limit), as in case_side.ids */
void case_make_ids(int32_t *ids, int64_t count, int64_t limit);
/* The address of a run's buffer, and the values beside the buffers. */
void *case_at(const struct case_run *r, int b);
struct case_side *case_side_of(const struct case_run *r);
void case_clear(void);
/* Resets the typed copies (and the side) to the values as made, rounded to the mode's types, and
 * the double copies to the same values. */
void case_reset_typed(const struct case_mode *m);
void case_reset_double(const struct case_mode *m);
void case_open(struct dt_device *d, const char *name, int threads, struct dt_stream **s);
void case_close(struct dt_device *d, struct dt_stream *s);
/* Runs a case on a device of the host, with the device's kernels or with k. */
void case_run_host(const struct kernel_case *c, const int64_t *n, const struct case_mode *m, const char *device,
                   int threads, const struct dt_kernels *k);
/* Makes the inputs, and the expected results in the double copies. */
void case_reference(const struct kernel_case *c, const int64_t *n, const struct case_mode *m);
double case_element(const struct case_buffer *b, const struct case_mode *m, int64_t i);
/* Compares the typed copies with the double copies: floats within c->bound, BF16 within c->half,
 * F16 within an eighth of that, all times `slack`. */
void case_compare(const struct kernel_case *c, const int64_t *n, const struct case_mode *m, const char *who,
                  double slack);

/* Single cases, for tests that need only one. */
void case_make_elements(const int64_t *n);
void case_make_matmul(const int64_t *n);
void case_make_column_sum(const int64_t *n);
void case_make_layernorm(const int64_t *n);
void case_make_rmsnorm(const int64_t *n);
void case_make_gate(const int64_t *n);
void case_make_rope(const int64_t *n);
/* Features of a shape of attention, beside its sizes. Segments: see make_segments. Queries:
 * fewer than keys, forward only. */
enum { CASE_CAUSAL = 1, CASE_SOFTCAP = 2, CASE_DROPOUT = 4, CASE_STRIDES = 8, CASE_EVERYTHING = 15 };
#define CASE_SEGMENTS(kind) ((kind) << 4)
#define CASE_WINDOW(size) ((size) << 8)
#define CASE_QUERIES(count) ((count) << 24)
void case_make_attention(const int64_t *n);
void case_make_embedding(const int64_t *n);
void case_make_entropy(const int64_t *n);
void case_make_optimizer(const int64_t *n);
void case_make_dropout(const int64_t *n);
void case_make_tables(const int64_t *n);
void case_make_mean(const int64_t *n);
void case_make_take(const int64_t *n);
void case_make_windows(const int64_t *n);
void case_make_convolution(const int64_t *n);
void case_make_pool(const int64_t *n);
void case_make_batch_norm(const int64_t *n);
void case_run_elements(const struct case_run *r);
void case_run_activation(const struct case_run *r);
void case_run_matmul(const struct case_run *r);
void case_run_column_sum(const struct case_run *r);
void case_run_layernorm(const struct case_run *r);
void case_run_layernorm_backward(const struct case_run *r);
void case_run_rmsnorm(const struct case_run *r);
void case_run_rmsnorm_backward(const struct case_run *r);
void case_run_gate(const struct case_run *r);
void case_run_rope(const struct case_run *r);
void case_run_attention(const struct case_run *r);
void case_after_attention(const struct case_run *r);
struct dt_attention_args case_attention(const struct case_run *r); /* of the forward call */
void case_run_embedding(const struct case_run *r);
void case_run_entropy(const struct case_run *r);
void case_run_optimizer(const struct case_run *r);
void case_run_dropout(const struct case_run *r);
void case_run_tables(const struct case_run *r);
void case_run_mean(const struct case_run *r);
void case_run_take(const struct case_run *r);
void case_run_windows(const struct case_run *r);
void case_run_convolution(const struct case_run *r);
void case_run_pool(const struct case_run *r);
void case_run_batch_norm(const struct case_run *r);
void case_make_labels(const int64_t *n);
void case_run_labels(const struct case_run *r);

#endif
