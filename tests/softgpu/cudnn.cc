/* cuDNN for tests: the backend functions that kernels/cuda uses, under their own names, on the
 * software GPU's streams. It checks descriptors as the library does. It refuses attributes of the
 * wrong type or count, tensors that do not fit together, operations that read what no operation
 * wrote, and packs without an address. A mistake that can only be wrong use of memory ends the
 * process. Which graphs the real library supports is tested by unit_dnn.c. This one makes two
 * proposals for every graph, and runs it operation by operation (dnn_run.cc). Proposal i is engine
 * i / 2 with its one knob at i % 2.
 *
 * SOFTGPU_CUDNN holds one of: a version (91000); "work N" (an engine needs N MiB per sequence);
 * "engines N" (so many proposals for every graph instead of two); "WHERE N" (status N from WHERE,
 * one of create, graph, heuristics, plan (the plan of each graph's first proposal), last (the plan
 * of its last proposal) and execute). SOFTGPU_CUDNN_FAST=i makes all proposals but i slow,
 * -1 all of them slower than our own kernels; SOFTGPU_CUDNN_PART=n makes plans slow whose batch is
 * not n, SOFTGPU_CUDNN_SUMS=1 (0) backward passes that do not (do) add up in fp32. With one of them an execution takes some time at least, so few are faster than many.
 * SOFTGPU_CUDNN_TIMES=n makes the slow ones n times slower, for tests on a machine that others use.
 * SOFTGPU_CUDNN_SHAKY=i makes the results of proposal i differ each time. SOFTGPU_CUDNN_NOTED=i
 * makes its engine declare that. SOFTGPU_CUDNN_EXACT=i makes it not declare tensor cores, as all others do,
 * which round fp32 to TF32 in convolutions. */
#include "kernels/cuda/dnn_graph.h"
#include "tests/softgpu/dnn_run.h"
#include "tests/softgpu/executor.h"
#include "tests/softgpu/runtime.h"
#include "tests/softgpu/softgpu.h"

#include <cuda_runtime_api.h>
#include <new>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace
{

bool is_half(const softgpu_dnn_tensor *t)
{
    return t->type == DT_DNN_BFLOAT16 || t->type == DT_DNN_HALF;
}

bool is_real(const softgpu_dnn_tensor *t)
{
    return t->type == DT_DNN_FLOAT || is_half(t);
}

enum {
    BAD = DT_DNN_BAD_PARAM,
    NOT_FINALIZED = 2004,
    PROPOSALS = 2,
    PROPOSALS_MOST = 8,
    KNOB = 24,
    NO_NOTE = -1,
    KNOBS = 2,
    MAGIC = 0x646e6e
};
#if defined(SOFTGPU_TSAN) || defined(__SANITIZE_ADDRESS__) /* under sanitizers everything is slow */
enum { SLOW_US = 50000, FAST_US = 5000 };
#else
enum { SLOW_US = 5000, FAST_US = 500 };
#endif

struct descriptor;

/* An operation or a part of one, before it is checked as a whole. */
struct parts {
    int mode, type;
    int64_t axis;
    int64_t strides[2], paddings[2][2]; /* of a convolution: paddings before and after */
    unsigned set;                       /* which of its attributes */
    float alpha, beta;
    bool has_mode, has_axis;
    descriptor *how, *in[3], *out;
};

struct descriptor {
    int magic, type;
    bool final;
    unsigned set; /* for tensors: the attributes that were set */
    softgpu_dnn_tensor tensor;
    parts op;
    softgpu_dnn_graph *graph; /* of a graph, a configuration, a plan */
    descriptor *of;           /* the graph of a heuristics query; the configuration of a plan */
    void *handle;
    size_t work_bytes;
    int engine;                       /* the proposal of a configuration or plan */
    int64_t index, knob, value;       /* an engine's index; a knob choice's knob and value */
    descriptor *made_of, *choices[8]; /* a configuration built by hand: its engine and knobs */
    int64_t count;
    int64_t uids[SOFTGPU_DNN_TENSORS];
    void *addresses[SOFTGPU_DNN_TENSORS], *work;
};

struct handle {
    int magic;
    cudaStream_t stream;
    bool executed;
};

__thread char last_error[200];
int executions, adding, plans, late_plans; /* atomic */
int ran[PROPOSALS_MOST];                   /* atomic; executions by proposal */

int refuse(int status, const char *why)
{
    (void)snprintf(last_error, sizeof last_error, "%s", why);
    return status;
}

const char *wish(void)
{
    const char *text = getenv("SOFTGPU_CUDNN");
    return text != nullptr ? text : "";
}

/* The status requested for this function; 0: none. */
int wished_status(const char *where)
{
    char name[16];
    int status = 0;
    return sscanf(wish(), "%15s %d", name, &status) == 2 && strcmp(name, where) == 0 ? status : 0;
}

/* Whether the variable is this number. */
bool wished_number(const char *variable, int number)
{
    const char *text = getenv(variable);
    return text != nullptr && atoi(text) == number;
}

int proposals(void)
{
    int count = PROPOSALS;
    (void)sscanf(wish(), "engines %d", &count);
    return count < PROPOSALS_MOST ? count : PROPOSALS_MOST;
}

descriptor *known(void *p)
{
    descriptor *d = (descriptor *)p;
    if (d == nullptr || d->magic != MAGIC) {
        softgpu_die("cuDNN: %p is no descriptor", p);
    }
    return d;
}

/* ---- attributes ---- */

template <typename T> bool take(T *to, int kind, int wanted, int64_t count, const void *from)
{
    if (kind != wanted || count != 1 || from == nullptr) {
        return false;
    }
    memcpy(to, from, sizeof *to);
    return true;
}

bool take_descriptor(descriptor **to, int wanted, int kind, int64_t count, const void *from)
{
    void *p = nullptr;
    if (!take(&p, kind, DT_DNN_TYPE_DESCRIPTOR, count, from)) {
        return false;
    }
    *to = known(p);
    return (*to)->final && (*to)->type == wanted;
}

bool set_tensor(descriptor *d, int name, int kind, int64_t count, const void *values)
{
    softgpu_dnn_tensor *t = &d->tensor;
    switch (name) {
    case DT_DNN_TENSOR_UNIQUE_ID:
        d->set |= 1;
        return take(&t->uid, kind, DT_DNN_TYPE_INT64, count, values);
    case DT_DNN_TENSOR_DATA_TYPE:
        d->set |= 2;
        return take(&t->type, kind, DT_DNN_TYPE_DATA_TYPE, count, values) &&
               (is_real(t) || t->type == DT_DNN_INT32 || t->type == DT_DNN_BOOLEAN);
    case DT_DNN_TENSOR_BYTE_ALIGNMENT:
        d->set |= 4;
        return take(&t->alignment, kind, DT_DNN_TYPE_INT64, count, values) && t->alignment > 0 &&
               (t->alignment & (t->alignment - 1)) == 0;
    case DT_DNN_TENSOR_DIMENSIONS:
    case DT_DNN_TENSOR_STRIDES:
        d->set |= name == DT_DNN_TENSOR_DIMENSIONS ? 8 : 16;
        if (kind != DT_DNN_TYPE_INT64 || count != 4) {
            return false;
        }
        memcpy(name == DT_DNN_TENSOR_DIMENSIONS ? t->dims : t->strides, values, 4 * sizeof(int64_t));
        return true;
    case DT_DNN_TENSOR_IS_VIRTUAL:
        return take(&t->nowhere, kind, DT_DNN_TYPE_BOOLEAN, count, values);
    case DT_DNN_TENSOR_IS_BY_VALUE:
        return take(&t->by_value, kind, DT_DNN_TYPE_BOOLEAN, count, values);
    default:
        return false;
    }
}

bool take_two(int64_t *to, int kind, int64_t count, const void *from)
{
    if (kind != DT_DNN_TYPE_INT64 || count != 2 || from == nullptr) {
        return false;
    }
    memcpy(to, from, 2 * sizeof *to);
    return true;
}

bool set_convolution(descriptor *d, int name, int kind, int64_t count, const void *values)
{
    int64_t number = 0, two[2];
    if (name < DT_DNN_CONVOLUTION_COMP_TYPE || name > DT_DNN_CONVOLUTION_SPATIAL_DIMS) {
        return false;
    }
    d->op.set |= 1u << (name - DT_DNN_CONVOLUTION_COMP_TYPE);
    switch (name) {
    case DT_DNN_CONVOLUTION_COMP_TYPE:
        return take(&d->op.type, kind, DT_DNN_TYPE_DATA_TYPE, count, values) && d->op.type == DT_DNN_FLOAT;
    case DT_DNN_CONVOLUTION_CONV_MODE:
        return take(&d->op.mode, kind, DT_DNN_TYPE_CONVOLUTION_MODE, count, values) &&
               d->op.mode == DT_DNN_CROSS_CORRELATION;
    case DT_DNN_CONVOLUTION_SPATIAL_DIMS:
        return take(&number, kind, DT_DNN_TYPE_INT64, count, values) && number == 2;
    case DT_DNN_CONVOLUTION_DILATIONS:
        return take_two(two, kind, count, values) && two[0] == 1 && two[1] == 1;
    case DT_DNN_CONVOLUTION_FILTER_STRIDES:
        return take_two(d->op.strides, kind, count, values) && d->op.strides[0] > 0 && d->op.strides[1] > 0;
    default:
        return take_two(d->op.paddings[name == DT_DNN_CONVOLUTION_POST_PADDINGS], kind, count, values);
    }
}

/* The pass of a convolution; -1: another operation. */
int pass_of(int type)
{
    return type == DT_DNN_OPERATION_CONVOLUTION_FORWARD           ? (int)DT_DNN_FORWARD
           : type == DT_DNN_OPERATION_CONVOLUTION_BACKWARD_DATA   ? (int)DT_DNN_DATA
           : type == DT_DNN_OPERATION_CONVOLUTION_BACKWARD_FILTER ? (int)DT_DNN_FILTER
                                                                  : -1;
}

/* Descriptors of a method: a mode and a compute type. */
bool set_how(descriptor *d, int name, int kind, int64_t count, const void *values)
{
    switch (name) {
    case DT_DNN_POINTWISE_MODE:
        d->op.has_mode = true;
        return d->type == DT_DNN_POINTWISE && take(&d->op.mode, kind, DT_DNN_TYPE_POINTWISE_MODE, count, values);
    case DT_DNN_POINTWISE_AXIS:
        d->op.has_axis = true;
        return d->type == DT_DNN_POINTWISE && take(&d->op.axis, kind, DT_DNN_TYPE_INT64, count, values) &&
               d->op.axis >= 0 && d->op.axis < 4;
    case DT_DNN_REDUCTION_OPERATOR:
        d->op.has_mode = true;
        return d->type == DT_DNN_REDUCTION && take(&d->op.mode, kind, DT_DNN_TYPE_REDUCTION, count, values);
    case DT_DNN_POINTWISE_MATH_PREC:
        return d->type == DT_DNN_POINTWISE && take(&d->op.type, kind, DT_DNN_TYPE_DATA_TYPE, count, values);
    case DT_DNN_REDUCTION_COMP_TYPE:
        return d->type == DT_DNN_REDUCTION && take(&d->op.type, kind, DT_DNN_TYPE_DATA_TYPE, count, values) &&
               d->op.type == DT_DNN_FLOAT;
    case DT_DNN_MATMUL_COMP_TYPE:
        return d->type == DT_DNN_MATMUL && take(&d->op.type, kind, DT_DNN_TYPE_DATA_TYPE, count, values) &&
               d->op.type == DT_DNN_FLOAT;
    default:
        return false;
    }
}

/* An operation of a pass has x, w and y, of which it makes one. */
bool set_convolving(descriptor *d, int name, int kind, int64_t count, const void *values)
{
    int pass = pass_of(d->type), made = pass == DT_DNN_FORWARD ? 2 : pass == DT_DNN_DATA ? 0 : 1;
    switch (name - 6 * pass) {
    case DT_DNN_OPERATION_CONVOLUTION_FORWARD_ALPHA:
        return take(&d->op.alpha, kind, DT_DNN_TYPE_FLOAT, count, values) && d->op.alpha == 1;
    case DT_DNN_OPERATION_CONVOLUTION_FORWARD_BETA:
        return take(&d->op.beta, kind, DT_DNN_TYPE_FLOAT, count, values) && (d->op.beta == 0 || d->op.beta == 1);
    case DT_DNN_OPERATION_CONVOLUTION_FORWARD_CONV_DESC:
        return take_descriptor(&d->op.how, DT_DNN_CONVOLUTION, kind, count, values);
    case DT_DNN_OPERATION_CONVOLUTION_FORWARD_X:
        return take_descriptor(made == 0 ? &d->op.out : &d->op.in[0], DT_DNN_TENSOR, kind, count, values);
    case DT_DNN_OPERATION_CONVOLUTION_FORWARD_W:
        return take_descriptor(made == 1 ? &d->op.out : &d->op.in[1], DT_DNN_TENSOR, kind, count, values);
    case DT_DNN_OPERATION_CONVOLUTION_FORWARD_Y:
        return take_descriptor(made == 2 ? &d->op.out : &d->op.in[2], DT_DNN_TENSOR, kind, count, values);
    default:
        return false;
    }
}

bool set_operation(descriptor *d, int name, int kind, int64_t count, const void *values)
{
    if (pass_of(d->type) >= 0) {
        return set_convolving(d, name, kind, count, values);
    }
    static const struct {
        int name, type, place, refers; /* place: 0 to 2 inputs, 3 output, 4 method */
    } all[] = {
        {DT_DNN_OPERATION_MATMUL_ADESC, DT_DNN_OPERATION_MATMUL, 0, DT_DNN_TENSOR},
        {DT_DNN_OPERATION_MATMUL_BDESC, DT_DNN_OPERATION_MATMUL, 1, DT_DNN_TENSOR},
        {DT_DNN_OPERATION_MATMUL_CDESC, DT_DNN_OPERATION_MATMUL, 3, DT_DNN_TENSOR},
        {DT_DNN_OPERATION_MATMUL_DESC, DT_DNN_OPERATION_MATMUL, 4, DT_DNN_MATMUL},
        {DT_DNN_OPERATION_POINTWISE_XDESC, DT_DNN_OPERATION_POINTWISE, 0, DT_DNN_TENSOR},
        {DT_DNN_OPERATION_POINTWISE_BDESC, DT_DNN_OPERATION_POINTWISE, 1, DT_DNN_TENSOR},
        {DT_DNN_OPERATION_POINTWISE_TDESC, DT_DNN_OPERATION_POINTWISE, 2, DT_DNN_TENSOR},
        {DT_DNN_OPERATION_POINTWISE_YDESC, DT_DNN_OPERATION_POINTWISE, 3, DT_DNN_TENSOR},
        {DT_DNN_OPERATION_POINTWISE_PW_DESCRIPTOR, DT_DNN_OPERATION_POINTWISE, 4, DT_DNN_POINTWISE},
        {DT_DNN_OPERATION_REDUCTION_XDESC, DT_DNN_OPERATION_REDUCTION, 0, DT_DNN_TENSOR},
        {DT_DNN_OPERATION_REDUCTION_YDESC, DT_DNN_OPERATION_REDUCTION, 3, DT_DNN_TENSOR},
        {DT_DNN_OPERATION_REDUCTION_DESC, DT_DNN_OPERATION_REDUCTION, 4, DT_DNN_REDUCTION},
        {DT_DNN_OPERATION_RESHAPE_XDESC, DT_DNN_OPERATION_RESHAPE, 0, DT_DNN_TENSOR},
        {DT_DNN_OPERATION_RESHAPE_YDESC, DT_DNN_OPERATION_RESHAPE, 3, DT_DNN_TENSOR},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (all[i].name == name && all[i].type == d->type) {
            descriptor **to = all[i].place == 3 ? &d->op.out : all[i].place == 4 ? &d->op.how : &d->op.in[all[i].place];
            return take_descriptor(to, all[i].refers, kind, count, values);
        }
    }
    return false;
}

int number_of(softgpu_dnn_graph *g, const descriptor *t)
{
    for (int i = 0; i < g->tensor_count; i++) {
        if (g->tensors[i].uid == t->tensor.uid) {
            return memcmp(&g->tensors[i], &t->tensor, sizeof t->tensor) == 0 ? i : -1;
        }
    }
    if (g->tensor_count == SOFTGPU_DNN_TENSORS) {
        return -1;
    }
    g->tensors[g->tensor_count] = t->tensor;
    return g->tensor_count++;
}

bool add_operation(softgpu_dnn_graph *g, const descriptor *d)
{
    if (g->op_count == SOFTGPU_DNN_OPS) {
        return false;
    }
    softgpu_dnn_op *op = &g->ops[g->op_count];
    op->kind = d->type == DT_DNN_OPERATION_MATMUL      ? SOFTGPU_DNN_MATMUL
               : d->type == DT_DNN_OPERATION_POINTWISE ? SOFTGPU_DNN_POINTWISE
               : d->type == DT_DNN_OPERATION_REDUCTION ? SOFTGPU_DNN_REDUCTION
               : pass_of(d->type) >= 0                 ? SOFTGPU_DNN_CONVOLUTION
                                                       : SOFTGPU_DNN_RESHAPE;
    op->mode = op->kind == SOFTGPU_DNN_CONVOLUTION ? pass_of(d->type) : d->op.how != nullptr ? d->op.how->op.mode : 0;
    if (op->kind == SOFTGPU_DNN_CONVOLUTION) {
        memcpy(op->strides, d->op.how->op.strides, sizeof op->strides);
        memcpy(op->paddings, d->op.how->op.paddings[0], sizeof op->paddings);
        op->adds = d->op.beta != 0;
    }
    op->axis = d->op.how != nullptr ? d->op.how->op.axis : 0;
    for (int i = 0; i < 3; i++) {
        op->inputs[i] = d->op.in[i] != nullptr ? number_of(g, d->op.in[i]) : -1;
        if (d->op.in[i] != nullptr && op->inputs[i] < 0) {
            return false;
        }
        bool written = false;
        for (int k = 0; k < g->op_count; k++) {
            written = written || g->ops[k].output == op->inputs[i];
        }
        if (op->inputs[i] >= 0 && g->tensors[op->inputs[i]].nowhere && !written) {
            return false; /* it reads a tensor that no operation wrote */
        }
    }
    op->output = number_of(g, d->op.out);
    for (int k = 0; k < g->op_count; k++) {
        if (g->ops[k].output == op->output) {
            return false; /* two operations write the tensor */
        }
    }
    g->op_count++;
    return op->output >= 0 && !g->tensors[op->output].by_value;
}

int set_graph(descriptor *d, int name, int kind, int64_t count, const void *values)
{
    if (name == DT_DNN_OPERATIONGRAPH_HANDLE) {
        return take(&d->handle, kind, DT_DNN_TYPE_HANDLE, count, values) ? 0 : refuse(BAD, "a graph's handle");
    }
    if (name != DT_DNN_OPERATIONGRAPH_OPS || kind != DT_DNN_TYPE_DESCRIPTOR || d->graph != nullptr) {
        return refuse(BAD, "a graph has a handle and operations");
    }
    d->graph = new softgpu_dnn_graph();
    for (int64_t i = 0; i < count; i++) {
        descriptor *op = known(((void *const *)values)[i]);
        if (!op->final) {
            return refuse(NOT_FINALIZED, "an operation of a graph is not finalized");
        }
        if (!add_operation(d->graph, op)) {
            return refuse(BAD, "an operation of a graph reads what nothing wrote, or two tensors have one number");
        }
    }
    return 0;
}

int set_pack(descriptor *d, int name, int kind, int64_t count, const void *values)
{
    if (name == DT_DNN_VARIANT_PACK_WORKSPACE) {
        return take(&d->work, kind, DT_DNN_TYPE_VOID_PTR, count, values) ? 0 : refuse(BAD, "a pack's work memory");
    }
    bool uids = name == DT_DNN_VARIANT_PACK_UNIQUE_IDS;
    if ((!uids && name != DT_DNN_VARIANT_PACK_DATA_POINTERS) ||
        kind != (uids ? (int)DT_DNN_TYPE_INT64 : (int)DT_DNN_TYPE_VOID_PTR) || count > SOFTGPU_DNN_TENSORS ||
        (d->count != 0 && d->count != count)) {
        return refuse(BAD, "a pack's attribute");
    }
    d->count = count;
    memcpy(uids ? (void *)d->uids : (void *)d->addresses, values, (size_t)count * 8);
    return 0;
}

/* ---- finalizing ---- */

/* Sets the numbers of an engine or a knob, or the engine and knobs of a configuration. */
bool set_configuration(descriptor *d, int name, int kind, int64_t count, const void *values)
{
    int knob = 0;
    switch (name) {
    case DT_DNN_ENGINE_OPERATION_GRAPH:
        return d->type == DT_DNN_ENGINE && take_descriptor(&d->of, DT_DNN_OPERATIONGRAPH, kind, count, values);
    case DT_DNN_ENGINE_GLOBAL_INDEX:
        return d->type == DT_DNN_ENGINE && take(&d->index, kind, DT_DNN_TYPE_INT64, count, values);
    case DT_DNN_KNOB_CHOICE_KNOB_TYPE:
        if (d->type != DT_DNN_KNOB_CHOICE || !take(&knob, kind, DT_DNN_TYPE_KNOB_TYPE, count, values)) {
            return false;
        }
        d->knob = knob;
        return true;
    case DT_DNN_KNOB_CHOICE_KNOB_VALUE:
        return d->type == DT_DNN_KNOB_CHOICE && take(&d->value, kind, DT_DNN_TYPE_INT64, count, values);
    case DT_DNN_ENGINECFG_ENGINE:
        return d->type == DT_DNN_ENGINECFG && take_descriptor(&d->made_of, DT_DNN_ENGINE, kind, count, values);
    case DT_DNN_ENGINECFG_KNOB_CHOICES:
        d->count = count;
        for (int64_t i = 0; i < count && count <= 8; i++) {
            if (!take_descriptor(&d->choices[i], DT_DNN_KNOB_CHOICE, kind, 1, (void *const *)values + i)) {
                return false;
            }
        }
        return d->type == DT_DNN_ENGINECFG && count <= 8;
    default:
        return false;
    }
}

/* Finalizes a configuration built by hand. Only one that was proposed is valid. */
int finalize_configuration(descriptor *d)
{
    if (d->made_of == nullptr) {
        return refuse(BAD, "a configuration has an engine");
    }
    int64_t value = d->count == 1 && d->choices[0]->knob == KNOB ? d->choices[0]->value : -1,
            proposal = d->made_of->index * KNOBS + value;
    if (value < 0 || value >= KNOBS || d->made_of->index < 0 || proposal >= proposals()) {
        return refuse(DT_DNN_NOT_SUPPORTED, "no such engine, or not with these knobs");
    }
    d->graph = new softgpu_dnn_graph(*d->made_of->of->graph);
    d->engine = (int)proposal;
    return 0;
}

/* Returns the attributes of a configuration, its engine and its knob. The library fills in
 * descriptors that exist already. */
int tell_configuration(descriptor *d, int name, int kind, int64_t room, int64_t *count, void *values)
{
    int number = 0;
    if (d->type == DT_DNN_ENGINECFG && name == DT_DNN_ENGINECFG_ENGINE && kind == DT_DNN_TYPE_DESCRIPTOR && room == 1) {
        descriptor *to = known(*(void **)values);
        to->index = d->engine / KNOBS;
        to->engine = d->engine;
        to->final = true;
    } else if (d->type == DT_DNN_ENGINECFG && name == DT_DNN_ENGINECFG_KNOB_CHOICES && kind == DT_DNN_TYPE_DESCRIPTOR) {
        if (room > 0) {
            descriptor *to = known(*(void **)values);
            to->knob = KNOB;
            to->value = d->engine % KNOBS;
            to->final = true;
        }
        *count = room > 0 ? 1 : 0;
        return 0;
    } else if (d->type == DT_DNN_ENGINE && name == DT_DNN_ENGINE_GLOBAL_INDEX && kind == DT_DNN_TYPE_INT64 &&
               room == 1) {
        memcpy(values, &d->index, sizeof d->index);
    } else if (d->type == DT_DNN_ENGINE && name == DT_DNN_ENGINE_NUMERICAL_NOTE && kind == DT_DNN_TYPE_NUMERICAL_NOTE &&
               room > 0) {
        number = wished_number("SOFTGPU_CUDNN_NOTED", d->engine)   ? (int)DT_DNN_NONDETERMINISTIC
                 : wished_number("SOFTGPU_CUDNN_EXACT", d->engine) ? NO_NOTE
                                                                   : (int)DT_DNN_TENSOR_CORE;
        if (number == NO_NOTE) {
            *count = 0;
            return 0;
        }
        memcpy(values, &number, sizeof number);
    } else if (d->type == DT_DNN_KNOB_CHOICE && name == DT_DNN_KNOB_CHOICE_KNOB_TYPE && kind == DT_DNN_TYPE_KNOB_TYPE &&
               room == 1) {
        number = (int)d->knob;
        memcpy(values, &number, sizeof number);
    } else if (d->type == DT_DNN_KNOB_CHOICE && name == DT_DNN_KNOB_CHOICE_KNOB_VALUE && kind == DT_DNN_TYPE_INT64 &&
               room == 1) {
        memcpy(values, &d->value, sizeof d->value);
    } else {
        return refuse(BAD, "an attribute that cannot be asked for");
    }
    *count = 1;
    return 0;
}

bool same_or_one(const softgpu_dnn_tensor *x, const softgpu_dnn_tensor *y)
{
    for (int i = 0; i < 4; i++) {
        if (x->dims[i] != y->dims[i] && x->dims[i] != 1) {
            return false;
        }
    }
    return true;
}

bool fits_pointwise(const descriptor *d)
{
    const parts *p = &d->op;
    if (p->how == nullptr || p->in[0] == nullptr || p->out == nullptr) {
        return false;
    }
    const softgpu_dnn_tensor *x = &p->in[0]->tensor, *y = &p->out->tensor;
    int mode = p->how->op.mode;
    bool one = mode == DT_DNN_EXP || mode == DT_DNN_LOG || mode == DT_DNN_IDENTITY || mode == DT_DNN_GEN_INDEX,
         select = mode == DT_DNN_BINARY_SELECT;
    bool two = mode == DT_DNN_ADD || mode == DT_DNN_SUB || mode == DT_DNN_MUL || mode == DT_DNN_DIV ||
               mode == DT_DNN_CMP_GE || select;
    if (!(one || two) || (p->in[1] != nullptr) != two || (p->in[2] != nullptr) != select || !same_or_one(x, y) ||
        (two && !same_or_one(&p->in[1]->tensor, y))) {
        return false;
    }
    if (mode == DT_DNN_GEN_INDEX) {
        return p->how->op.has_axis && y->type == DT_DNN_INT32 && p->how->op.type == DT_DNN_INT32;
    }
    if (mode == DT_DNN_CMP_GE) {
        return x->type == DT_DNN_INT32 && p->in[1]->tensor.type == DT_DNN_INT32 && y->type == DT_DNN_BOOLEAN &&
               p->how->op.type == DT_DNN_BOOLEAN;
    }
    return is_real(x) && is_real(y) && (!two || is_real(&p->in[1]->tensor)) && p->how->op.type == DT_DNN_FLOAT &&
           (!select || (p->in[2]->tensor.type == DT_DNN_BOOLEAN && same_or_one(&p->in[2]->tensor, y)));
}

bool fits_matmul(const descriptor *d)
{
    const parts *p = &d->op;
    if (p->how == nullptr || p->in[0] == nullptr || p->in[1] == nullptr || p->out == nullptr) {
        return false;
    }
    const softgpu_dnn_tensor *a = &p->in[0]->tensor, *b = &p->in[1]->tensor, *c = &p->out->tensor;
    return a->dims[0] == c->dims[0] && b->dims[0] == c->dims[0] && a->dims[1] == c->dims[1] &&
           c->dims[1] % b->dims[1] == 0 && a->dims[2] == c->dims[2] && b->dims[3] == c->dims[3] &&
           a->dims[3] == b->dims[2] && is_real(a) && is_half(b) && (!is_half(a) || a->type == b->type) && is_real(c);
}

bool fits_reduction(const descriptor *d)
{
    const parts *p = &d->op;
    if (p->how == nullptr || !p->how->op.has_mode || (p->how->op.mode != DT_DNN_SUM && p->how->op.mode != DT_DNN_MAX) ||
        p->in[0] == nullptr || p->out == nullptr) {
        return false;
    }
    for (int i = 0; i < 4; i++) {
        if (p->in[0]->tensor.dims[i] % p->out->tensor.dims[i] != 0) {
            return false;
        }
    }
    return is_real(&p->in[0]->tensor) && is_real(&p->out->tensor);
}

/* Reshape always swaps the last two dimensions here. For a tensor in memory the strides must
 * agree. */
bool fits_reshape(const descriptor *d)
{
    if (d->op.in[0] == nullptr || d->op.out == nullptr) {
        return false;
    }
    const softgpu_dnn_tensor *x = &d->op.in[0]->tensor, *y = &d->op.out->tensor;
    return x->dims[0] == y->dims[0] && x->dims[1] == y->dims[1] && x->dims[2] == y->dims[3] &&
           x->dims[3] == y->dims[2] && x->strides[2] == y->strides[3] && x->strides[3] == y->strides[2] &&
           x->strides[0] == y->strides[0] && x->strides[1] == y->strides[1];
}

bool fits_convolution(const descriptor *d)
{
    const parts *p = &d->op;
    int pass = pass_of(d->type), made = pass == DT_DNN_FORWARD ? 2 : pass == DT_DNN_DATA ? 0 : 1;
    const softgpu_dnn_tensor *of[3];
    for (int i = 0; i < 3; i++) {
        const descriptor *t = i == made ? p->out : p->in[i];
        if (t == nullptr || p->how == nullptr) {
            return false;
        }
        of[i] = &t->tensor;
    }
    const parts *how = &p->how->op;
    for (int i = 0; i < 2; i++) {
        int64_t length = of[0]->dims[2 + i] + how->paddings[0][i] + how->paddings[1][i] - of[1]->dims[2 + i];
        if (how->paddings[0][i] != how->paddings[1][i] || of[2]->dims[2 + i] != length / how->strides[i] + 1) {
            return false;
        }
    }
    int type = of[made == 0 ? 1 : 0]->type;
    return how->set == 127 && of[0]->dims[0] == of[2]->dims[0] && of[0]->dims[1] == of[1]->dims[1] &&
           of[1]->dims[0] == of[2]->dims[1] && of[made == 2 ? 1 : 2]->type == type && is_real(of[0]) &&
           (of[made]->type == type || of[made]->type == DT_DNN_FLOAT);
}

bool fits_tensor(const descriptor *d)
{
    for (int i = 0; i < 4; i++) {
        if (d->tensor.dims[i] < 1 || d->tensor.strides[i] < 1) {
            return false;
        }
    }
    return d->set == 31 && (d->tensor.nowhere || is_real(&d->tensor));
}

/* Heads of attention have at most 128 elements, a multiple of 8; convolutions
 * have one type. */
bool is_supported(const softgpu_dnn_graph *g)
{
    const softgpu_dnn_op *op = &g->ops[0];
    if (op->kind == SOFTGPU_DNN_CONVOLUTION) {
        return g->tensors[op->output].type == g->tensors[op->inputs[op->mode == DT_DNN_DATA ? 1 : 0]].type;
    }
    const softgpu_dnn_tensor *q = &g->tensors[op->inputs[0]];
    return q->dims[3] % 8 == 0 && q->dims[3] <= 128;
}

/* The operation by which a backward pass writes dq, from transposed keys, in that type; or null. */
const softgpu_dnn_op *dq_of(const softgpu_dnn_graph *g, bool half)
{
    for (int i = 0; i < g->op_count; i++) {
        const softgpu_dnn_tensor *b = &g->tensors[g->ops[i].inputs[1] >= 0 ? g->ops[i].inputs[1] : 0],
                                 *y = &g->tensors[g->ops[i].output];
        if (g->ops[i].kind == SOFTGPU_DNN_MATMUL && b->nowhere && !y->nowhere && is_half(y) == half) {
            return &g->ops[i];
        }
    }
    return nullptr;
}

/* Work memory of an engine of the library: a backward pass that does not add up in fp32 keeps the
 * gradient of the scores. */
size_t work_of(const softgpu_dnn_graph *g)
{
    int each = 0;
    (void)sscanf(wish(), "work %d", &each);
    size_t bytes = 256 + ((size_t)each << 20) * (size_t)g->tensors[0].dims[0];
    const softgpu_dnn_op *dq = dq_of(g, true);
    if (dq != nullptr) {
        const softgpu_dnn_tensor *y = &g->tensors[dq->output];
        size_t t = (size_t)(y->dims[2] + 63) / 64 * 64;
        bytes += (size_t)(y->dims[0] * y->dims[1]) * t * t * 2;
    }
    return bytes;
}

/* How long an execution of a plan takes beside its work. */
int slow_us(const descriptor *plan)
{
    static const char *const all[] = {"SOFTGPU_CUDNN_FAST", "SOFTGPU_CUDNN_PART", "SOFTGPU_CUDNN_SUMS"};
    bool sums = dq_of(plan->graph, false) != nullptr, backward = sums || dq_of(plan->graph, true);
    int numbers[] = {plan->engine, (int)plan->graph->tensors[0].dims[0], sums}, us = 0;
    const char *times = getenv("SOFTGPU_CUDNN_TIMES");
    int slow = SLOW_US * (times != nullptr ? atoi(times) : 1);
    for (int i = 0; i < (backward ? 3 : 2); i++) {
        if (getenv(all[i]) != nullptr) {
            int now = wished_number(all[i], -1) ? 10 * SLOW_US : wished_number(all[i], numbers[i]) ? FAST_US : slow;
            us = now > us ? now : us;
        }
    }
    return us;
}

int finalize_plan(descriptor *d)
{
    if (d->of == nullptr || d->handle == nullptr) {
        return refuse(BAD, "a plan has a configuration and a handle");
    }
    if (d->of->engine == 0 && wished_status("plan") != 0) {
        return refuse(wished_status("plan"), "cuLibraryLoadData");
    }
    if (d->of->engine == proposals() - 1 && wished_status("last") != 0) {
        return refuse(wished_status("last"), "cuLibraryLoadData");
    }
    (void)__atomic_fetch_add(&plans, 1, __ATOMIC_RELAXED);
    (void)__atomic_fetch_add(&late_plans, ((handle *)d->handle)->executed ? 1 : 0, __ATOMIC_RELAXED);
    d->graph = new softgpu_dnn_graph(*d->of->graph);
    d->engine = d->of->engine;
    d->work_bytes = work_of(d->graph);
    return 0;
}

/* ---- execution ---- */

int look_at_tensor(softgpu_dnn_job *j, int i, void *address)
{
    const softgpu_dnn_tensor *t = &j->graph.tensors[i];
    cudaPointerAttributes kind;
    if (t->by_value) {
        if (cudaPointerGetAttributes(&kind, address) != cudaSuccess || kind.type == cudaMemoryTypeDevice) {
            softgpu_die("cuDNN: tensor %d is by value, and its address not the host's", (int)t->uid);
        }
        j->numbers[i] = (double)*(const float *)address;
        return 0;
    }
    softgpu_check_pointer("cuDNN", (int)t->uid, address);
    if ((uintptr_t)address % (uintptr_t)t->alignment != 0) {
        softgpu_die("cuDNN: tensor %d at %p is not aligned to %d bytes", (int)t->uid, address, (int)t->alignment);
    }
    j->memory[i] = address;
    return 0;
}

} // namespace

extern "C" {

int softgpu_dnn_executions(void)
{
    return __atomic_load_n(&executions, __ATOMIC_RELAXED);
}

/* Executions of backward passes that add up in fp32. */
int softgpu_dnn_adding(void)
{
    return __atomic_load_n(&adding, __ATOMIC_RELAXED);
}

int softgpu_dnn_ran(int proposal)
{
    return __atomic_load_n(&ran[proposal], __ATOMIC_RELAXED);
}

int softgpu_dnn_plans(void)
{
    return __atomic_load_n(&plans, __ATOMIC_RELAXED);
}

int softgpu_dnn_late_plans(void)
{
    return __atomic_load_n(&late_plans, __ATOMIC_RELAXED);
}

size_t cudnnGetCudartVersion(void)
{
    return 99000; /* no system has the NVRTC of this version */
}

size_t cudnnGetVersion(void)
{
    int version = atoi(wish());
    return version > 0 ? (size_t)version : 91900;
}

const char *cudnnGetErrorString(int status)
{
    return status == DT_DNN_SUCCESS                     ? "CUDNN_STATUS_SUCCESS"
           : status == DT_DNN_SUBLIBRARY_LOADING_FAILED ? "CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED"
           : status == DT_DNN_EXECUTION_FAILED          ? "CUDNN_STATUS_EXECUTION_FAILED"
                                                        : "CUDNN_STATUS_OTHER";
}

void cudnnGetLastErrorString(char *message, size_t size)
{
    (void)snprintf(message, size, "%s", last_error);
}

int cudnnCreate(void **out)
{
    if (wished_status("create") != 0) {
        return refuse(wished_status("create"), "libcudnn_graph.so.9");
    }
    *out = new handle{MAGIC, nullptr, false};
    return 0;
}

int cudnnDestroy(void *h)
{
    delete (handle *)h;
    return 0;
}

int cudnnSetStream(void *h, void *stream)
{
    ((handle *)h)->stream = (cudaStream_t)stream;
    return 0;
}

int cudnnBackendCreateDescriptor(int type, void **out)
{
    softgpu_setup("cudnnBackendCreateDescriptor");
    descriptor *d = new descriptor();
    d->magic = MAGIC;
    d->type = type;
    *out = d;
    return 0;
}

int cudnnBackendDestroyDescriptor(void *p)
{
    descriptor *d = known(p);
    delete d->graph;
    d->magic = 0;
    delete d;
    return 0;
}

int cudnnBackendSetAttribute(void *p, int name, int kind, int64_t count, const void *values)
{
    descriptor *d = known(p);
    bool good = false;
    if (d->final) {
        return refuse(BAD, "a descriptor is finalized already");
    }
    switch (d->type) {
    case DT_DNN_TENSOR:
        good = set_tensor(d, name, kind, count, values);
        break;
    case DT_DNN_POINTWISE:
    case DT_DNN_MATMUL:
    case DT_DNN_REDUCTION:
        good = set_how(d, name, kind, count, values);
        break;
    case DT_DNN_CONVOLUTION:
        good = set_convolution(d, name, kind, count, values);
        break;
    case DT_DNN_OPERATIONGRAPH:
        return set_graph(d, name, kind, count, values);
    case DT_DNN_VARIANT_PACK:
        return set_pack(d, name, kind, count, values);
    case DT_DNN_ENGINEHEUR:
        good = name == DT_DNN_ENGINEHEUR_OPERATION_GRAPH
                   ? take_descriptor(&d->of, DT_DNN_OPERATIONGRAPH, kind, count, values)
                   : name == DT_DNN_ENGINEHEUR_MODE && take(&d->op.mode, kind, DT_DNN_TYPE_HEUR_MODE, count, values);
        break;
    case DT_DNN_ENGINE:
    case DT_DNN_ENGINECFG:
    case DT_DNN_KNOB_CHOICE:
        good = set_configuration(d, name, kind, count, values);
        break;
    case DT_DNN_EXECUTION_PLAN:
        good = name == DT_DNN_EXECUTION_PLAN_HANDLE
                   ? take(&d->handle, kind, DT_DNN_TYPE_HANDLE, count, values)
                   : name == DT_DNN_EXECUTION_PLAN_ENGINE_CONFIG &&
                         take_descriptor(&d->of, DT_DNN_ENGINECFG, kind, count, values);
        break;
    default:
        good = set_operation(d, name, kind, count, values);
        break;
    }
    return good ? 0 : refuse(BAD, "an attribute is unknown to its descriptor, or of another type or count");
}

int cudnnBackendFinalize(void *p)
{
    descriptor *d = known(p);
    bool good = true;
    switch (d->type) {
    case DT_DNN_TENSOR:
        good = fits_tensor(d);
        break;
    case DT_DNN_OPERATION_POINTWISE:
        good = fits_pointwise(d);
        break;
    case DT_DNN_OPERATION_MATMUL:
        good = fits_matmul(d);
        break;
    case DT_DNN_OPERATION_REDUCTION:
        good = fits_reduction(d);
        break;
    case DT_DNN_OPERATION_RESHAPE:
        good = fits_reshape(d);
        break;
    case DT_DNN_OPERATION_CONVOLUTION_FORWARD:
    case DT_DNN_OPERATION_CONVOLUTION_BACKWARD_DATA:
    case DT_DNN_OPERATION_CONVOLUTION_BACKWARD_FILTER:
        good = fits_convolution(d);
        break;
    case DT_DNN_OPERATIONGRAPH:
        if (wished_status("graph") != 0) {
            return refuse(wished_status("graph"), "a graph");
        }
        good = d->graph != nullptr;
        break;
    case DT_DNN_ENGINEHEUR:
        good = d->of != nullptr && d->of->handle != nullptr; /* without a description of a device */
        break;
    case DT_DNN_ENGINE:
        good = d->of != nullptr;
        break;
    case DT_DNN_ENGINECFG:
        if (int status = finalize_configuration(d)) {
            return status;
        }
        break;
    case DT_DNN_EXECUTION_PLAN:
        if (int status = finalize_plan(d)) {
            return status;
        }
        break;
    case DT_DNN_VARIANT_PACK:
        good = d->count > 0;
        break;
    default:
        break;
    }
    d->final = good;
    return good ? 0 : refuse(BAD, "a descriptor is not whole, or its tensors do not fit together");
}

int cudnnBackendGetAttribute(const void *p, int name, int kind, int64_t room, int64_t *count, void *values)
{
    descriptor *d = known((void *)(uintptr_t)p);
    if (!d->final) {
        return refuse(NOT_FINALIZED, "asked before it is finalized");
    }
    if (d->type == DT_DNN_ENGINEHEUR && name == DT_DNN_ENGINEHEUR_RESULTS && kind == DT_DNN_TYPE_DESCRIPTOR) {
        /* Shapes that the library does not support have no engine. */
        if (wished_status("heuristics") != 0 && d->op.mode == DT_DNN_HEUR_A) {
            return refuse(wished_status("heuristics"), "no heuristics");
        }
        *count = is_supported(d->of->graph) && (d->op.mode == DT_DNN_HEUR_A || wished_status("heuristics") != 0)
                     ? proposals()
                     : 0;
        for (int64_t i = 0; i < *count && i < room; i++) {
            descriptor *to = known(((void **)values)[i]);
            to->graph = new softgpu_dnn_graph(*d->of->graph);
            to->engine = (int)i;
            to->final = true;
        }
        return 0;
    }
    if (d->type == DT_DNN_EXECUTION_PLAN && name == DT_DNN_EXECUTION_PLAN_WORKSPACE_SIZE && kind == DT_DNN_TYPE_INT64 &&
        room == 1) {
        *(int64_t *)values = (int64_t)d->work_bytes;
        *count = 1;
        return 0;
    }
    return tell_configuration(d, name, kind, room, count, values);
}

int cudnnBackendExecute(void *h, void *plan, void *pack)
{
    handle *owner = (handle *)h;
    descriptor *p = known(plan), *k = known(pack);
    if (!p->final || !k->final || owner->magic != MAGIC || p->type != DT_DNN_EXECUTION_PLAN ||
        k->type != DT_DNN_VARIANT_PACK) {
        return refuse(NOT_FINALIZED, "a plan or a pack is not finalized");
    }
    softgpu_dnn_job *j = new softgpu_dnn_job();
    j->graph = *p->graph;
    j->work = k->work;
    j->work_bytes = p->work_bytes;
    int64_t used = 0;
    for (int i = 0; i < j->graph.tensor_count; i++) {
        int64_t n = 0;
        while (n < k->count && k->uids[n] != j->graph.tensors[i].uid) {
            n++;
        }
        if (!j->graph.tensors[i].nowhere && n == k->count) {
            delete j;
            return refuse(BAD, "a pack lacks a tensor's address");
        }
        if (!j->graph.tensors[i].nowhere) {
            (void)look_at_tensor(j, i, k->addresses[n]);
            used++;
        }
    }
    if (used != k->count) {
        softgpu_die("cuDNN: a pack has %d addresses for %d tensors", (int)k->count, (int)used);
    }
    softgpu_check_pointer("cuDNN", 0, j->work);
    if ((uintptr_t)j->work % 256 != 0) {
        softgpu_die("cuDNN: work memory at %p is not aligned", j->work);
    }
    if (wished_status("execute") != 0) {
        delete j;
        return refuse(wished_status("execute"), "cuLaunchKernelEx");
    }
    owner->executed = true;
    int executed = __atomic_add_fetch(&executions, 1, __ATOMIC_RELAXED);
    (void)__atomic_fetch_add(&ran[p->engine], 1, __ATOMIC_RELAXED);
    (void)__atomic_fetch_add(&adding, dq_of(p->graph, DT_DNN_FLOAT) != nullptr ? 1 : 0, __ATOMIC_RELAXED);
    j->slow_us = slow_us(p);
    j->noise = wished_number("SOFTGPU_CUDNN_SHAKY", p->engine) ? 1 + (uint64_t)executed % 100 : 0;
    return softgpu_put_work(owner->stream, "cudnnBackendExecute", softgpu_dnn_run, j, softgpu_dnn_forget) == cudaSuccess
               ? 0
               : refuse(DT_DNN_EXECUTION_FAILED, "the stream takes nothing");
}

} /* extern "C" */
