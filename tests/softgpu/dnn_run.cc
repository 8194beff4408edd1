/* Runs a graph of the fake cuDNN. Compiled with all sanitizers, so that they see which tensors are
 * touched. */
#include "tests/softgpu/dnn_run.h"

#include "kernels/cuda/dnn_graph.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

namespace
{

typedef softgpu_dnn_tensor tensor;

int64_t count_of(const tensor *t)
{
    return t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3];
}

double rounded(double x, int type)
{
    return type == DT_DNN_BFLOAT16 ? (double)__bfloat162float(__float2bfloat16((float)x))
           : type == DT_DNN_HALF   ? (double)__half2float(__float2half((float)x))
           : type == DT_DNN_FLOAT  ? (double)(float)x
                                   : x;
}

struct values { /* values of a tensor, without gaps */
    double *at;
    int64_t step[4]; /* 0 if a dimension is 1, so that its value repeats */
};

void lay(values *v, const tensor *t)
{
    int64_t step = 1;
    for (int d = 3; d >= 0; d--) {
        v->step[d] = t->dims[d] > 1 ? step : 0;
        step *= t->dims[d];
    }
}

template <typename F> void each(const int64_t *dims, F f)
{
    for (int64_t a = 0; a < dims[0]; a++) {
        for (int64_t b = 0; b < dims[1]; b++) {
            for (int64_t c = 0; c < dims[2]; c++) {
                for (int64_t d = 0; d < dims[3]; d++) {
                    f(a, b, c, d);
                }
            }
        }
    }
}

void load(double *to, const tensor *t, const void *from)
{
    int64_t i = 0;
    each(t->dims, [&](int64_t a, int64_t b, int64_t c, int64_t d) {
        int64_t at = a * t->strides[0] + b * t->strides[1] + c * t->strides[2] + d * t->strides[3];
        to[i++] = t->type == DT_DNN_BFLOAT16 ? (double)__bfloat162float(((const __nv_bfloat16 *)from)[at])
                  : t->type == DT_DNN_HALF   ? (double)__half2float(((const __half *)from)[at])
                                             : (double)((const float *)from)[at];
    });
}

void store(void *to, const tensor *t, const double *from)
{
    int64_t i = 0;
    each(t->dims, [&](int64_t a, int64_t b, int64_t c, int64_t d) {
        int64_t at = a * t->strides[0] + b * t->strides[1] + c * t->strides[2] + d * t->strides[3];
        if (t->type == DT_DNN_BFLOAT16) {
            ((__nv_bfloat16 *)to)[at] = __float2bfloat16((float)from[i++]);
        } else if (t->type == DT_DNN_HALF) {
            ((__half *)to)[at] = __float2half((float)from[i++]);
        } else {
            ((float *)to)[at] = (float)from[i++];
        }
    });
}

double compute(int mode, double x, double b, double mask)
{
    switch (mode) {
    case DT_DNN_ADD:
        return x + b;
    case DT_DNN_SUB:
        return x - b;
    case DT_DNN_MUL:
        return x * b;
    case DT_DNN_DIV:
        return x / b;
    case DT_DNN_EXP:
        return exp(x);
    case DT_DNN_LOG:
        return log(x);
    case DT_DNN_CMP_GE:
        return x >= b ? 1 : 0;
    case DT_DNN_BINARY_SELECT:
        return mask != 0 ? x : b;
    default:
        return x; /* the identity */
    }
}

double get(const values *v, int64_t a, int64_t b, int64_t c, int64_t d)
{
    return v->at == nullptr ? 0 : v->at[a * v->step[0] + b * v->step[1] + c * v->step[2] + d * v->step[3]];
}

void pointwise(const softgpu_dnn_op *op, const tensor *y, const values *in, double *out)
{
    int64_t i = 0;
    each(y->dims, [&](int64_t a, int64_t b, int64_t c, int64_t d) {
        if (op->mode == DT_DNN_GEN_INDEX) {
            const int64_t index[] = {a, b, c, d};
            out[i++] = (double)index[op->axis];
        } else {
            out[i++] = compute(op->mode, get(&in[0], a, b, c, d), get(&in[1], a, b, c, d), get(&in[2], a, b, c, d));
        }
    });
}

/* If the first operand has more heads, each head of the second operand serves several of them. */
void matmul(const tensor *x, const tensor *w, const tensor *y, const values *in, double *out)
{
    int64_t i = 0, ratio = y->dims[1] / w->dims[1];
    each(y->dims, [&](int64_t a, int64_t b, int64_t c, int64_t d) {
        const double *row = in[0].at + a * in[0].step[0] + b * in[0].step[1] + c * in[0].step[2];
        const double *col = in[1].at + a * in[1].step[0] + b / ratio * in[1].step[1] + d * in[1].step[3];
        double sum = 0;
        for (int64_t k = 0; k < x->dims[3]; k++) {
            sum += row[k] * col[k * in[1].step[2]];
        }
        out[i++] = sum;
    });
}

/* Each element of y reduces a run of neighbouring elements of x in each dimension. */
void reduce(int mode, const tensor *x, const tensor *y, const values *in, double *out)
{
    int64_t to[4] = {y->dims[1] * y->dims[2] * y->dims[3], y->dims[2] * y->dims[3], y->dims[3], 1}, run[4];
    for (int64_t i = 0; i < count_of(y); i++) {
        out[i] = mode == DT_DNN_MAX ? -HUGE_VAL : 0;
    }
    for (int d = 0; d < 4; d++) {
        run[d] = x->dims[d] / y->dims[d];
    }
    each(x->dims, [&](int64_t a, int64_t b, int64_t c, int64_t d) {
        double *sum = &out[a / run[0] * to[0] + b / run[1] * to[1] + c / run[2] * to[2] + d / run[3]],
               one = get(in, a, b, c, d);
        *sum = mode == DT_DNN_MAX ? (one > *sum || one != one ? one : *sum) : *sum + one;
    });
}

void transpose(const tensor *y, const values *in, double *out)
{
    int64_t i = 0;
    each(y->dims, [&](int64_t a, int64_t b, int64_t c, int64_t d) { out[i++] = get(in, a, b, d, c); });
}

/* Visits each pair of an element of x and one of y with the weight between them: adds their product to the one
 * that the pass makes. */
void convolve(const softgpu_dnn_op *op, const tensor *w, const tensor *y, const tensor *x, const values *in,
              values *result)
{
    const values *of[3] = {&in[0], &in[1], &in[2]}; /* x, w, y */
    of[op->mode == DT_DNN_FORWARD ? 2 : op->mode == DT_DNN_DATA ? 0 : 1] = result;
    each(y->dims, [&](int64_t b, int64_t k, int64_t p, int64_t q) {
        double *out = &of[2]->at[b * of[2]->step[0] + k * of[2]->step[1] + p * of[2]->step[2] + q * of[2]->step[3]];
        for (int64_t c = 0; c < w->dims[1]; c++) {
            for (int64_t r = 0; r < w->dims[2]; r++) {
                for (int64_t s = 0; s < w->dims[3]; s++) {
                    int64_t i = p * op->strides[0] - op->paddings[0] + r, j = q * op->strides[1] - op->paddings[1] + s;
                    if (i < 0 || i >= x->dims[2] || j < 0 || j >= x->dims[3]) {
                        continue;
                    }
                    double *pixel =
                        &of[0]->at[b * of[0]->step[0] + c * of[0]->step[1] + i * of[0]->step[2] + j * of[0]->step[3]];
                    double *weight =
                        &of[1]->at[k * of[1]->step[0] + c * of[1]->step[1] + r * of[1]->step[2] + s * of[1]->step[3]];
                    if (op->mode == DT_DNN_FORWARD) {
                        *out += *pixel * *weight;
                    } else if (op->mode == DT_DNN_DATA) {
                        *pixel += *out * *weight;
                    } else {
                        *weight += *out * *pixel;
                    }
                }
            }
        }
    });
}

/* x, w and y of a convolution; the one that the pass makes is its output. */
int operand(const softgpu_dnn_op *op, int i)
{
    int made = op->mode == DT_DNN_FORWARD ? 2 : op->mode == DT_DNN_DATA ? 0 : 1;
    return i == made ? op->output : op->inputs[i];
}

} // namespace

void softgpu_dnn_run(void *argument)
{
    const softgpu_dnn_job *j = (const softgpu_dnn_job *)argument;
    const softgpu_dnn_graph *g = &j->graph;
    values all[SOFTGPU_DNN_TENSORS];
    if (j->slow_us > 0) {
        usleep((useconds_t)j->slow_us);
    }
    if (j->work_bytes > 0) {
        memset(j->work, 0xa5, j->work_bytes); /* destroys whatever a program kept there */
    }
    for (int i = 0; i < g->tensor_count; i++) {
        all[i].at = nullptr;
        lay(&all[i], &g->tensors[i]);
    }
    for (int o = 0; o < g->op_count; o++) {
        const softgpu_dnn_op *op = &g->ops[o];
        const tensor *y = &g->tensors[op->output];
        values in[3] = {};
        for (int k = 0; k < 3; k++) {
            int n = op->inputs[k];
            if (n < 0) {
                continue;
            }
            if (all[n].at == nullptr) {
                all[n].at = (double *)malloc((size_t)count_of(&g->tensors[n]) * sizeof(double));
                if (g->tensors[n].by_value) {
                    all[n].at[0] = j->numbers[n];
                } else {
                    load(all[n].at, &g->tensors[n], j->memory[n]);
                }
            }
            in[k] = all[n];
        }
        double *out = (double *)malloc((size_t)count_of(y) * sizeof(double));
        switch (op->kind) {
        case SOFTGPU_DNN_MATMUL:
            matmul(&g->tensors[op->inputs[0]], &g->tensors[op->inputs[1]], y, in, out);
            break;
        case SOFTGPU_DNN_POINTWISE:
            pointwise(op, y, in, out);
            break;
        case SOFTGPU_DNN_REDUCTION:
            reduce(op->mode, &g->tensors[op->inputs[0]], y, in, out);
            break;
        case SOFTGPU_DNN_RESHAPE:
            transpose(y, in, out);
            break;
        case SOFTGPU_DNN_CONVOLUTION:
            if (op->adds) {
                load(out, y, j->memory[op->output]);
            } else {
                memset(out, 0, (size_t)count_of(y) * sizeof *out);
            }
            all[op->output].at = out;
            convolve(op, &g->tensors[operand(op, 1)], &g->tensors[operand(op, 2)], &g->tensors[operand(op, 0)], in,
                     &all[op->output]);
            break;
        }
        for (int64_t i = 0; i < count_of(y); i++) {
            out[i] = rounded(out[i], y->type);
        }
        if (!y->nowhere && j->noise != 0) {
            out[0] = (double)j->noise;
        }
        if (!y->nowhere) {
            store(j->memory[op->output], y, out);
        }
        all[op->output].at = out;
    }
    for (int i = 0; i < g->tensor_count; i++) {
        free(all[i].at);
    }
}

void softgpu_dnn_forget(void *argument)
{
    delete (softgpu_dnn_job *)argument;
}
