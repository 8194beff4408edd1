/* cuDNN's backend interface, loaded at the first attention or convolution. This file has the few names and numbers
 * that we use, so a build does not need the library's headers, which are not part of the toolkit.
 * They are its ABI since 9.0. If the headers are installed,
 * tests/kernels/cuda/unit_softgpu_dnn_abi.c compares all of it with them at compile time. */
#ifndef DT_KERNELS_CUDA_DNN_H
#define DT_KERNELS_CUDA_DNN_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* 9.15 and older compute a wrong backward for lengths that are no multiple of 128, unless a mask
 * pads them. */
#define DT_DNN_LEAST_VERSION 91600

enum { /* cudnnStatus_t; the thousands are categories */
       DT_DNN_SUCCESS = 0,
       DT_DNN_NOT_INITIALIZED = 1001,
       DT_DNN_SUBLIBRARY_LOADING_FAILED = 1008,
       DT_DNN_BAD_PARAM = 2000,
       DT_DNN_NOT_SUPPORTED = 3000,
       DT_DNN_INTERNAL_ERROR = 4000,
       DT_DNN_EXECUTION_FAILED = 5000
};

/* cudnnDataType_t */
enum dt_dnn_type { DT_DNN_FLOAT = 0, DT_DNN_HALF = 2, DT_DNN_INT32 = 4, DT_DNN_BFLOAT16 = 9, DT_DNN_BOOLEAN = 11 };

enum dt_dnn_descriptor { /* cudnnBackendDescriptorType_t */
                         DT_DNN_POINTWISE = 0,
                         DT_DNN_CONVOLUTION = 1,
                         DT_DNN_ENGINE = 2,
                         DT_DNN_ENGINECFG = 3,
                         DT_DNN_ENGINEHEUR = 4,
                         DT_DNN_EXECUTION_PLAN = 5,
                         DT_DNN_KNOB_CHOICE = 7,
                         DT_DNN_OPERATION_CONVOLUTION_FORWARD = 10,
                         DT_DNN_OPERATION_CONVOLUTION_BACKWARD_FILTER = 11,
                         DT_DNN_OPERATION_CONVOLUTION_BACKWARD_DATA = 12,
                         DT_DNN_OPERATION_POINTWISE = 13,
                         DT_DNN_OPERATIONGRAPH = 15,
                         DT_DNN_VARIANT_PACK = 16,
                         DT_DNN_TENSOR = 17,
                         DT_DNN_MATMUL = 18,
                         DT_DNN_OPERATION_MATMUL = 19,
                         DT_DNN_REDUCTION = 21,
                         DT_DNN_OPERATION_REDUCTION = 22,
                         DT_DNN_OPERATION_RESHAPE = 31,
                         DT_DNN_DEVICEPROP = 38,
};

enum dt_dnn_attribute { /* cudnnBackendAttributeName_t */
                        DT_DNN_POINTWISE_MODE = 0,
                        DT_DNN_POINTWISE_MATH_PREC = 1,
                        DT_DNN_POINTWISE_AXIS = 9,
                        DT_DNN_CONVOLUTION_COMP_TYPE = 100,
                        DT_DNN_CONVOLUTION_CONV_MODE = 101,
                        DT_DNN_CONVOLUTION_DILATIONS = 102,
                        DT_DNN_CONVOLUTION_FILTER_STRIDES = 103,
                        DT_DNN_CONVOLUTION_POST_PADDINGS = 104,
                        DT_DNN_CONVOLUTION_PRE_PADDINGS = 105,
                        DT_DNN_CONVOLUTION_SPATIAL_DIMS = 106,
                        DT_DNN_ENGINEHEUR_MODE = 200,
                        DT_DNN_ENGINEHEUR_OPERATION_GRAPH = 201,
                        DT_DNN_ENGINEHEUR_RESULTS = 202,
                        DT_DNN_ENGINEHEUR_DEVICEPROP = 204,
                        DT_DNN_ENGINECFG_ENGINE = 300,
                        DT_DNN_ENGINECFG_KNOB_CHOICES = 302,
                        DT_DNN_EXECUTION_PLAN_HANDLE = 400,
                        DT_DNN_EXECUTION_PLAN_ENGINE_CONFIG = 401,
                        DT_DNN_EXECUTION_PLAN_WORKSPACE_SIZE = 402,
                        DT_DNN_EXECUTION_PLAN_DEVICEPROP = 407,
                        DT_DNN_KNOB_CHOICE_KNOB_TYPE = 600,
                        DT_DNN_KNOB_CHOICE_KNOB_VALUE = 601,
                        /* of each pass six, in the order of the first six: by its number and 6 times the
                         * pass (dt_dnn_convolution) */
                        DT_DNN_OPERATION_CONVOLUTION_FORWARD_ALPHA = 700,
                        DT_DNN_OPERATION_CONVOLUTION_FORWARD_BETA = 701,
                        DT_DNN_OPERATION_CONVOLUTION_FORWARD_CONV_DESC = 702,
                        DT_DNN_OPERATION_CONVOLUTION_FORWARD_W = 703,
                        DT_DNN_OPERATION_CONVOLUTION_FORWARD_X = 704,
                        DT_DNN_OPERATION_CONVOLUTION_FORWARD_Y = 705,
                        DT_DNN_OPERATION_CONVOLUTION_BWD_DATA_ALPHA = 706,
                        DT_DNN_OPERATION_CONVOLUTION_BWD_DATA_BETA = 707,
                        DT_DNN_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC = 708,
                        DT_DNN_OPERATION_CONVOLUTION_BWD_DATA_W = 709,
                        DT_DNN_OPERATION_CONVOLUTION_BWD_DATA_DX = 710,
                        DT_DNN_OPERATION_CONVOLUTION_BWD_DATA_DY = 711,
                        DT_DNN_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA = 712,
                        DT_DNN_OPERATION_CONVOLUTION_BWD_FILTER_BETA = 713,
                        DT_DNN_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC = 714,
                        DT_DNN_OPERATION_CONVOLUTION_BWD_FILTER_DW = 715,
                        DT_DNN_OPERATION_CONVOLUTION_BWD_FILTER_X = 716,
                        DT_DNN_OPERATION_CONVOLUTION_BWD_FILTER_DY = 717,
                        DT_DNN_OPERATION_POINTWISE_PW_DESCRIPTOR = 750,
                        DT_DNN_OPERATION_POINTWISE_XDESC = 751,
                        DT_DNN_OPERATION_POINTWISE_BDESC = 752,
                        DT_DNN_OPERATION_POINTWISE_YDESC = 753,
                        DT_DNN_OPERATION_POINTWISE_TDESC = 758,
                        DT_DNN_OPERATIONGRAPH_HANDLE = 800,
                        DT_DNN_OPERATIONGRAPH_OPS = 801,
                        DT_DNN_TENSOR_BYTE_ALIGNMENT = 900,
                        DT_DNN_TENSOR_DATA_TYPE = 901,
                        DT_DNN_TENSOR_DIMENSIONS = 902,
                        DT_DNN_TENSOR_STRIDES = 903,
                        DT_DNN_TENSOR_UNIQUE_ID = 906,
                        DT_DNN_TENSOR_IS_VIRTUAL = 907,
                        DT_DNN_TENSOR_IS_BY_VALUE = 908,
                        DT_DNN_VARIANT_PACK_UNIQUE_IDS = 1000,
                        DT_DNN_VARIANT_PACK_DATA_POINTERS = 1001,
                        DT_DNN_VARIANT_PACK_WORKSPACE = 1003,
                        DT_DNN_ENGINE_OPERATION_GRAPH = 1300,
                        DT_DNN_ENGINE_GLOBAL_INDEX = 1301,
                        DT_DNN_ENGINE_NUMERICAL_NOTE = 1303,
                        DT_DNN_ENGINE_DEVICEPROP = 1307,
                        DT_DNN_MATMUL_COMP_TYPE = 1500,
                        DT_DNN_OPERATION_MATMUL_ADESC = 1520,
                        DT_DNN_OPERATION_MATMUL_BDESC = 1521,
                        DT_DNN_OPERATION_MATMUL_CDESC = 1522,
                        DT_DNN_OPERATION_MATMUL_DESC = 1523,
                        DT_DNN_REDUCTION_OPERATOR = 1600,
                        DT_DNN_REDUCTION_COMP_TYPE = 1601,
                        DT_DNN_OPERATION_REDUCTION_XDESC = 1610,
                        DT_DNN_OPERATION_REDUCTION_YDESC = 1611,
                        DT_DNN_OPERATION_REDUCTION_DESC = 1612,
                        DT_DNN_OPERATION_RESHAPE_XDESC = 2200,
                        DT_DNN_OPERATION_RESHAPE_YDESC = 2201,
                        DT_DNN_DEVICEPROP_JSON_REPRESENTATION = 2702,
};

enum dt_dnn_kind { /* cudnnBackendAttributeType_t */
                   DT_DNN_TYPE_HANDLE = 0,
                   DT_DNN_TYPE_DATA_TYPE = 1,
                   DT_DNN_TYPE_BOOLEAN = 2,
                   DT_DNN_TYPE_INT64 = 3,
                   DT_DNN_TYPE_FLOAT = 4,
                   DT_DNN_TYPE_VOID_PTR = 6,
                   DT_DNN_TYPE_CONVOLUTION_MODE = 7,
                   DT_DNN_TYPE_HEUR_MODE = 8,
                   DT_DNN_TYPE_KNOB_TYPE = 9,
                   DT_DNN_TYPE_NUMERICAL_NOTE = 11,
                   DT_DNN_TYPE_POINTWISE_MODE = 14,
                   DT_DNN_TYPE_DESCRIPTOR = 15,
                   DT_DNN_TYPE_REDUCTION = 18,
                   DT_DNN_TYPE_CHAR = 24,
};

enum dt_dnn_pointwise { /* cudnnPointwiseMode_t */
                        DT_DNN_ADD = 0,
                        DT_DNN_MUL = 1,
                        DT_DNN_DIV = 6,
                        DT_DNN_SUB = 9,
                        DT_DNN_EXP = 13,
                        DT_DNN_LOG = 15,
                        DT_DNN_IDENTITY = 21,
                        DT_DNN_CMP_GE = 303,
                        DT_DNN_GEN_INDEX = 501,
                        DT_DNN_BINARY_SELECT = 601,
};

enum dt_dnn_reduction { DT_DNN_SUM = 0, DT_DNN_MAX = 3 };      /* cudnnReduceTensorOp_t */
enum dt_dnn_convolution_mode { DT_DNN_CROSS_CORRELATION = 1 }; /* cudnnConvolutionMode_t */
enum dt_dnn_note {                                             /* cudnnBackendNumericalNote_t */
                   DT_DNN_TENSOR_CORE = 0,
                   DT_DNN_DOWN_CONVERT_INPUTS = 1,
                   DT_DNN_REDUCED_PRECISION_REDUCTION = 2,
                   DT_DNN_NONDETERMINISTIC = 4,
};
enum dt_dnn_heuristic { DT_DNN_HEUR_FALLBACK = 2, DT_DNN_HEUR_A = 3 }; /* cudnnBackendHeurMode_t */

/* The library's functions under their own names. A status is a cudnnStatus_t, a descriptor a
 * cudnnBackendDescriptor_t, a handle a cudnnHandle_t. */
struct dt_dnn {
    size_t (*cudnnGetVersion)(void);
    const char *(*cudnnGetErrorString)(int status);
    void (*cudnnGetLastErrorString)(char *message, size_t size);
    int (*cudnnCreate)(void **handle);
    int (*cudnnDestroy)(void *handle);
    int (*cudnnSetStream)(void *handle, void *stream);
    int (*cudnnBackendCreateDescriptor)(int type, void **out);
    int (*cudnnBackendDestroyDescriptor)(void *descriptor);
    int (*cudnnBackendSetAttribute)(void *descriptor, int name, int type, int64_t count, const void *values);
    int (*cudnnBackendGetAttribute)(const void *descriptor, int name, int type, int64_t room, int64_t *count,
                                    void *values);
    int (*cudnnBackendFinalize)(void *descriptor);
    int (*cudnnBackendExecute)(void *handle, void *plan, void *pack);
};

/* Returns the library, the same for all threads, valid until the process ends. Null with
 * DT_NOT_FOUND and the reason: not installed, too old, or a function is missing. DTRUN_CUDNN may
 * name its file. Symbols that the program already has (a test's stand-in) come first. The library
 * loads its parts at first use, so a missing part, or one of another version, shows when a handle
 * or a plan is made. */
const struct dt_dnn *dt_dnn_load(struct dt_error *err);
/* Loads the library and starts it on the calling thread's device. Null: `err` says why there is none; the
 * caller does without. *failed: the library's status if it broke down (dt_dnn_broke_down), which is no
 * reason to do without, and *handle is null. */
const struct dt_dnn *dt_dnn_start(void **handle, int *failed, struct dt_error *err);
/* NVRTC compiles kernels of cuDNN's engines; without it cuDNN proposes none of them. cuDNN finds it
 * only by name and near its own folder, so dt_dnn_load also looks in the toolkit's folder. Returns
 * the name of the missing library ("libnvrtc.so.13"), or null. */
const char *dt_dnn_compiler_missing(void);
/* True if the status says that memory, the driver or the library broke down, which may be so only
 * here and now. Other statuses say that something is not installed or does not fit, which is so on
 * each start and for each rank with such a GPU. (A failure while a handle is made is reported as
 * "not initialized".) */
bool dt_dnn_broke_down(int status);

#ifdef __cplusplus
}
#endif
#endif
