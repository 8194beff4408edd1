/* Lists the shapes of the products, of attention and of convolutions that a chain computes. run/trainer_plans.c
 * chooses how each is computed. */
#ifndef DT_WORKER_ENGINE_MATMUL_SHAPES_H
#define DT_WORKER_ENGINE_MATMUL_SHAPES_H

#include "worker/model/chain.h"

struct matmul_shapes {
    struct dt_matmul_args *each; /* different from each other; their pointers are no memory, but
                                  * aligned as in training */
    int count, capacity;
    struct dt_attention_args *attention; /* the same of these */
    int attention_count, attention_capacity;
    struct dt_attention_backward_args *attention_backward;
    int attention_backward_count, attention_backward_capacity;
    struct dt_convolution_args *convolution;
    int convolution_count, convolution_capacity;
    struct dt_convolution_input_args *convolution_input;
    int convolution_input_count, convolution_input_capacity;
    struct dt_convolution_weights_args *convolution_weights;
    int convolution_weights_count, convolution_weights_capacity;
};

/* busy_sms of each phase's passes: of all blocks, and of the last one. */
struct matmul_shapes_beside {
    int blocks[PASS_EVAL + 1], last[PASS_EVAL + 1];
};

/* Adds those of a chain's passes that are not there yet. to: zeros at first. grad_type: as in
 * struct pass. beside: null: nothing computes or talks meanwhile. */
void matmul_shapes_add(struct matmul_shapes *to, const struct chain *c, enum dt_dtype grad_type,
                       const struct matmul_shapes_beside *beside);
void matmul_shapes_clear(struct matmul_shapes *p);

#endif
