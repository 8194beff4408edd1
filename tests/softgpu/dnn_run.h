/* What the fake cuDNN runs: tensors of four dimensions and operations between them, as a test's
 * graph describes them. */
#ifndef DT_TESTS_SOFTGPU_DNN_RUN_H
#define DT_TESTS_SOFTGPU_DNN_RUN_H

#include "kernels/cuda/dnn.h"

#include <stddef.h>
#include <stdint.h>

struct softgpu_dnn_tensor {
    int64_t uid, dims[4], strides[4], alignment;
    int type; /* enum dt_dnn_type */
    bool nowhere, by_value;
};

enum softgpu_dnn_kind { SOFTGPU_DNN_MATMUL, SOFTGPU_DNN_POINTWISE, SOFTGPU_DNN_REDUCTION, SOFTGPU_DNN_RESHAPE };

struct softgpu_dnn_op {
    enum softgpu_dnn_kind kind;
    int mode; /* enum dt_dnn_pointwise or dt_dnn_reduction */
    int64_t axis;
    int inputs[3], output; /* numbers of tensors; -1: none. Of a selection: x, b, mask */
};

enum { SOFTGPU_DNN_TENSORS = 64, SOFTGPU_DNN_OPS = 32 };

/* A graph by value, as a plan keeps it. */
struct softgpu_dnn_graph {
    struct softgpu_dnn_tensor tensors[SOFTGPU_DNN_TENSORS];
    struct softgpu_dnn_op ops[SOFTGPU_DNN_OPS];
    int tensor_count, op_count;
};

struct softgpu_dnn_job {
    struct softgpu_dnn_graph graph;
    void *memory[SOFTGPU_DNN_TENSORS];   /* of each tensor that lies somewhere */
    double numbers[SOFTGPU_DNN_TENSORS]; /* of each that is by value, as it was when the job was
                                          * given */
    void *work;
    size_t work_bytes;
    int slow_us;    /* it takes so much longer */
    uint64_t noise; /* not 0: added to a result's bits, as if its sums had no order */
};

/* Computes in double, operation by operation; each result is rounded to its tensor's type. Host
 * functions: the argument is a job; the second deletes it. */
void softgpu_dnn_run(void *job);
void softgpu_dnn_forget(void *job);

#endif
