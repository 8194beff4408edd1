/* The cases that every kernel of the table goes through, on each backend: inputs from a seed,
 * the call, the reference (the double twin; for BF16 its own twin, once that has been compared
 * with the double one), and the comparison, in which a nan is an error.
 *
 *   case_reference(c, n, m);                  makes inputs and, in double, what is expected
 *   case_reset_typed(m);                      inputs in the types of the mode
 *   case_run_host(...), or a device's own way with case_run.on and .side
 *   case_compare(c, n, m, "avx2", 1);
 *   case_clear(); */
#ifndef DT_TESTS_LIB_KERNEL_CASES_H
#define DT_TESTS_LIB_KERNEL_CASES_H

#include "kernels/device.h"
#include "kernels/kernels.h"

enum { CASE_BUFFERS = 10, CASE_SHAPE = 6, CASE_SHAPES = 9, CASE_MODES = 3, CASE_ROWS = 8192 };

/* What an element is for decides its type: what flows has the run's type, sums that live on the
 * run's grad type, statistics and masters are F32 and the copies of masters BF16. In a run in
 * double all are F64. */
enum case_kind { FLOWS, GRAD, STAT, COPY };

/* One buffer in three copies: as it was made, in the types of a run, in double. */
struct case_buffer {
    double *made, *d;
    void *x;
    int64_t count;
    enum case_kind kind;
};
extern struct case_buffer case_buf[CASE_BUFFERS];

/* What is no buffer of elements: ids, and what kernels read and write beside them. */
struct case_side {
    double half, clip, loss_sum, losses[CASE_ROWS];
    int64_t valid, correct;
    int32_t ids[CASE_ROWS];
};
extern struct case_side case_side;

/* The types of a run. */
struct case_mode {
    const char *name;
    enum dt_dtype type, grad;
};
extern const struct case_mode case_modes[CASE_MODES];
enum dt_dtype case_type_in(const struct case_mode *m, const struct case_buffer *b);

/* What a case's run works with: the typed or the double copies; or, where they are given, copies
 * on a device. */
struct case_run {
    struct dt_stream *s;
    const struct dt_kernels *k;
    enum dt_dtype type;
    const int64_t *n;
    enum dt_dtype grad;
    void *const *on;        /* the buffers on the device, or null */
    struct case_side *side; /* case_side there */
};

struct kernel_case {
    const char *name;
    void (*make)(const int64_t *n);
    void (*run)(const struct case_run *r);
    void (*after)(const struct case_run *r); /* when the run is over and its results are in the
                                              * host's copies; may be null */
    double bound;                            /* of |float - double| / (1 + |double|) */
    double half;                             /* the same of BF16 elements */
    int64_t shapes[CASE_SHAPES][CASE_SHAPE];
};
extern const struct kernel_case kernel_cases[];
extern const size_t kernel_case_count;

void case_seed(uint64_t seed);
double case_uniform(void); /* in (-1, 1), exact in a float */
void case_make(int at, int64_t count, double scale, double shift);
void case_clear(void);
/* The typed copies (and the side) as made, rounded to the mode's types; the double ones as
 * these. */
void case_reset_typed(const struct case_mode *m);
void case_reset_double(const struct case_mode *m);
void case_open(struct dt_device *d, const char *name, int threads, struct dt_stream **s);
void case_close(struct dt_device *d, struct dt_stream *s);
/* Runs a case on a device of the host, with its kernels or with k. */
void case_run_host(const struct kernel_case *c, const int64_t *n, const struct case_mode *m, const char *device,
                   int threads, const struct dt_kernels *k);
/* Makes the inputs, and in the double copies what is expected. */
void case_reference(const struct kernel_case *c, const int64_t *n, const struct case_mode *m);
double case_element(const struct case_buffer *b, const struct case_mode *m, int64_t i);
/* Compares the typed copies with the double ones: floats to c->bound, BF16 to c->half, both
 * times `slack`. */
void case_compare(const struct kernel_case *c, const int64_t *n, const struct case_mode *m, const char *who,
                  double slack);

/* The cases one by one, for tests that need one of them. */
void case_make_elements(const int64_t *n);
void case_make_matmul(const int64_t *n);
void case_make_column_sum(const int64_t *n);
void case_make_layernorm(const int64_t *n);
void case_make_attention(const int64_t *n);
void case_make_embedding(const int64_t *n);
void case_make_entropy(const int64_t *n);
void case_make_optimizer(const int64_t *n);
void case_run_elements(const struct case_run *r);
void case_run_activation(const struct case_run *r);
void case_run_matmul(const struct case_run *r);
void case_run_column_sum(const struct case_run *r);
void case_run_layernorm(const struct case_run *r);
void case_run_layernorm_backward(const struct case_run *r);
void case_run_attention(const struct case_run *r);
void case_run_embedding(const struct case_run *r);
void case_run_entropy(const struct case_run *r);
void case_run_optimizer(const struct case_run *r);

#endif
