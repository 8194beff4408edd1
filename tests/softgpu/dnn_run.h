/* The work of the fake cuDNN: tensors of four dimensions and operations between them, as a test's
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

enum softgpu_dnn_kind {
    SOFTGPU_DNN_MATMUL,
    SOFTGPU_DNN_POINTWISE,
    SOFTGPU_DNN_REDUCTION,
    SOFTGPU_DNN_RESHAPE,
    SOFTGPU_DNN_CONVOLUTION
};

struct softgpu_dnn_op {
    enum softgpu_dnn_kind kind;
    int mode; /* enum dt_dnn_pointwise or dt_dnn_reduction; enum dt_dnn_pass */
    int64_t axis;
    int64_t strides[2], paddings[2]; /* of a convolution */
    bool adds;                       /* to what the result held */
    int inputs[3], output;           /* indices of tensors; -1: none. A selection has x, b and mask */
};

enum { SOFTGPU_DNN_TENSORS = 64, SOFTGPU_DNN_OPS = 32 };

/* A graph as a value, which a plan copies. */
struct softgpu_dnn_graph {
    struct softgpu_dnn_tensor tensors[SOFTGPU_DNN_TENSORS];
    struct softgpu_dnn_op ops[SOFTGPU_DNN_OPS];
    int tensor_count, op_count;
};

struct softgpu_dnn_job {
    struct softgpu_dnn_graph graph;
    void *memory[SOFTGPU_DNN_TENSORS]; /* for each tensor in memory */
    /* for each tensor that is a number: its value when the job was submitted */
    double numbers[SOFTGPU_DNN_TENSORS];
    void *work;
    size_t work_bytes;
    int slow_us;    /* extra time that the job takes */
    uint64_t noise; /* not 0: changes the bits of results, like sums in no fixed order */
};

/* Computes in double, operation by operation, and rounds each result to its tensor's type. Both are
 * host functions whose argument is a job; the second deletes it. */
void softgpu_dnn_run(void *job);
void softgpu_dnn_forget(void *job);

#endif
