/* What we use of NCCL's interface, by its documented ABI (nccl.h of 2.14 to 2.30): a build needs
 * no NCCL, and one binary runs with any of these versions and without. Results, types and
 * operations are the library's numbers; a comm is a pointer to something of its own.
 * tests/collectives/unit_softgpu_nccl_abi.c compares all of this with the header where one is installed. */
#ifndef DT_COLLECTIVES_NCCL_ABI_H
#define DT_COLLECTIVES_NCCL_ABI_H

#include <limits.h>
#include <stddef.h>

typedef void *nccl_comm;
typedef void *nccl_window;
typedef void *nccl_stream; /* cudaStream_t */

struct nccl_id {
    char bytes[128];
};

enum {
    NCCL_SUCCESS = 0,
    NCCL_UNHANDLED_CUDA_ERROR = 1,
    NCCL_SYSTEM_ERROR = 2,
    NCCL_INTERNAL_ERROR = 3,
    NCCL_INVALID_ARGUMENT = 4,
    NCCL_INVALID_USAGE = 5,
    NCCL_REMOTE_ERROR = 6,
    NCCL_IN_PROGRESS = 7
};

enum { NCCL_U8 = 1, NCCL_I32 = 2, NCCL_I64 = 4, NCCL_F16 = 6, NCCL_F32 = 7, NCCL_F64 = 8, NCCL_BF16 = 9 };
enum { NCCL_SUM = 0, NCCL_MAX = 2, NCCL_MIN = 3 };

#define NCCL_UNDEFINED INT_MIN
#define NCCL_NO_COLOR (-1)
#define NCCL_SYMMETRIC 0x01 /* window flag */
enum { NCCL_CTA_EFFICIENCY = 1, NCCL_CTA_ZERO = 2 };

/* As of 2.28; an older library reads the members that it knows, by `size` and `version`. */
#define NCCL_CONFIG_VERSION 22800
struct nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking, cluster_size, least_ctas, most_ctas;
    const char *net_name;
    int split_share, traffic_class;
    const char *name;
    int collnet, cta_policy, shrink_share, nvls_ctas, channels_per_net_peer, nvlink_centric;
};
#define NCCL_CONFIG                                                                                                    \
    {                                                                                                                  \
        sizeof(struct nccl_config), 0xcafebeef, NCCL_CONFIG_VERSION, NCCL_UNDEFINED, NCCL_UNDEFINED, NCCL_UNDEFINED,   \
            NCCL_UNDEFINED, NULL, NCCL_UNDEFINED, NCCL_UNDEFINED, NULL, NCCL_UNDEFINED, NCCL_UNDEFINED,                \
            NCCL_UNDEFINED, NCCL_UNDEFINED, NCCL_UNDEFINED, NCCL_UNDEFINED                                             \
    }

/* One row per function: result, name in the table, symbol, arguments; those of the second list
 * came later and may be missing. */
#define NCCL_FUNCTIONS(row)                                                                                            \
    row(int, get_version, ncclGetVersion, (int *version)) row(int, get_id, ncclGetUniqueId, (struct nccl_id * id))     \
        row(int, init, ncclCommInitRankConfig,                                                                         \
            (nccl_comm * out, int size, struct nccl_id id, int rank, struct nccl_config *config))                      \
            row(int, finalize, ncclCommFinalize, (nccl_comm c)) row(int, destroy, ncclCommDestroy, (nccl_comm c)) row( \
                int, abort, ncclCommAbort, (nccl_comm c)) row(int, async_error, ncclCommGetAsyncError,                 \
                                                              (nccl_comm c, int *out))                                 \
                row(const char *, error_string, ncclGetErrorString, (int result)) row(const char *, last_error,        \
                                                                                      ncclGetLastError, (nccl_comm c)) \
                    row(int, all_reduce, ncclAllReduce,                                                                \
                        (const void *in, void *out, size_t count, int type, int op, nccl_comm c, nccl_stream s))       \
                        row(int, reduce_scatter, ncclReduceScatter,                                                    \
                            (const void *in, void *out, size_t count, int type, int op, nccl_comm c, nccl_stream s))   \
                            row(int, all_gather, ncclAllGather,                                                        \
                                (const void *in, void *out, size_t count, int type, nccl_comm c, nccl_stream s))       \
                                row(int, broadcast, ncclBroadcast,                                                     \
                                    (const void *in, void *out, size_t count, int type, int root, nccl_comm c,         \
                                     nccl_stream s))
#define NCCL_LATER_FUNCTIONS(row)                                                                                      \
    row(int, split, ncclCommSplit,                                                                                     \
        (nccl_comm c, int color, int key, nccl_comm *out, struct nccl_config *config)) /* 2.18 */                      \
        row(int, mem_alloc, ncclMemAlloc, (void **out, size_t size_bytes))             /* 2.19 */                      \
        row(int, mem_free, ncclMemFree, (void *p))                                     /* 2.19 */                      \
        row(int, window, ncclCommWindowRegister,                                                                       \
            (nccl_comm c, void *p, size_t size_bytes, nccl_window *out, int flags))  /* 2.27 */                        \
        row(int, window_end, ncclCommWindowDeregister, (nccl_comm c, nccl_window w)) /* 2.27 */                        \
        row(int, revoke, ncclCommRevoke, (nccl_comm c, int flags))                   /* 2.28.7 */

#endif
