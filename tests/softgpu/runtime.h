/* Shared by the files of the fake runtime. */
#ifndef DT_TESTS_SOFTGPU_RUNTIME_H
#define DT_TESTS_SOFTGPU_RUNTIME_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "tests/softgpu/executor.h"

/* Stores rc as the calling thread's last error and returns it. */
cudaError_t softgpu_error(cudaError_t rc);
/* Like softgpu_error, with a line on stderr about the misuse, if the code alone says too little. */
cudaError_t softgpu_refuse(cudaError_t rc, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
long softgpu_setting(const char *name, long fallback);
/* Refuses a call of `function` where no call of the runtime is allowed: in host functions of a
 * stream. cudaSuccess: the call is allowed. */
cudaError_t softgpu_enter(const char *function);
/* Also refuses calls that are not allowed while this thread captures a stream, or while another
 * thread captures in global mode. The refused call breaks that capture. */
cudaError_t softgpu_enter_uncaptured(const char *function);
/* The error that SOFTGPU_FAIL=FUNCTION:ERROR[:AFTER[:LOCAL_RANK]] requests for the function: after
 * so many successful calls, and on that rank only. An error of 200 and above means a broken device:
 * from then on every function returns it. */
cudaError_t softgpu_fails(const char *function);

/* With SOFTGPU_SETUPS=FILE, appends the function's name to the file. It is for calls that create,
 * destroy, query or wait: a loop of steps should find everything created and should not wait. The
 * second function is for calls that softgpu_enter sees. */
void softgpu_setup(const char *function);
void softgpu_setup_by_name(const char *function);

/* ---- memory ---- */

enum softgpu_place { SOFTGPU_PAGEABLE, SOFTGPU_DEVICE, SOFTGPU_PINNED };
struct softgpu_block { /* an allocation */
    char *begin;
    size_t size_bytes;
    enum softgpu_place place;
    int device, fd; /* fd: its memfd; -1: pinned memory */
    bool imported;  /* it belongs to another process */
    char *map;      /* with the guard page */
    size_t map_bytes;
};
/* Finds the allocation of [p, p + size_bytes); `out` may be null. Returns -1 if a part lies outside
 * of any allocation. */
int softgpu_find(const void *p, size_t size_bytes, struct softgpu_block *out);
/* The number of allocations, and their bytes in all. */
int softgpu_blocks(enum softgpu_place place, bool imported, size_t *size_bytes);
int softgpu_regions(void); /* number of registered host regions */
/* Maps memory of another process (ipc.cc). */
cudaError_t softgpu_import(int fd, size_t size_bytes, int device, void **out);
cudaError_t softgpu_forget(void *p, bool imported);

/* ---- streams ---- */

struct softgpu_event_state { /* in memory that processes can share */
    uint32_t recorded, done, used;
    int64_t time_ns;
    char clock[8];
};
enum softgpu_kind {
    SOFTGPU_KERNEL,
    SOFTGPU_COPY,
    SOFTGPU_SET,
    SOFTGPU_HOST,
    SOFTGPU_RECORD,
    SOFTGPU_WAIT,
    SOFTGPU_GRAPH
};
enum { SOFTGPU_CALL_MAX = 4352 };
struct softgpu_entry {
    enum softgpu_kind kind;
    const char *name;
    char clock[8];
    union {
        struct {
            void (*run)(const void *call);
            uint3 grid, block;
            size_t shared_bytes;
        } kernel;
        struct {
            void *dst;
            const void *src;
            size_t size_bytes;
        } copy;
        struct {
            void *dst;
            int value;
            size_t size_bytes;
        } set;
        struct {
            cudaHostFn_t fn;
            void *argument;
            cudaHostFn_t release; /* frees the argument when it cannot run again; or null */
            bool once;            /* it may run only once, so graphs refuse it */
        } host;
        struct {
            struct softgpu_event_state *state;
            uint32_t count;
        } event;
        struct softgpu_nodes *graph;
    };
};
/* The stream of a handle. Returns null after softgpu_refuse for the default streams and for an
 * invalid handle. */
struct softgpu_stream *softgpu_stream(cudaStream_t s, const char *function);
/* Enqueues the entry, or adds it to the graph that the stream captures. Copies call_bytes of `call`
 * for a kernel. */
cudaError_t softgpu_put(struct softgpu_stream *s, const struct softgpu_entry *e, const void *call, size_t call_bytes);
/* For libraries: runs fn(argument) in stream order, each time that a graph which contains it runs.
 * Then it calls release(argument), also if the stream refuses the work. */
cudaError_t softgpu_put_work(cudaStream_t stream, const char *function, cudaHostFn_t fn, void *argument,
                             cudaHostFn_t release);
int softgpu_stream_device(const struct softgpu_stream *s);
int softgpu_streams(void); /* number of open streams */
int softgpu_events(void);
/* Waits until all streams of this process are empty. */
void softgpu_wait_all(void);

/* ---- graphs (graph.cc) ---- */

/* Where a stream keeps its capture; null: no capture. */
struct softgpu_capture **softgpu_stream_capture(struct softgpu_stream *s);
/* The unique number of the stream's capture; 0: no capture. */
uint64_t softgpu_capture_of(struct softgpu_stream *s);
/* Whether the capture with that number is still under way. */
bool softgpu_capture_lives(uint64_t number);
/* Breaks the capture. Returns rc, as softgpu_error does. */
cudaError_t softgpu_capture_break(uint64_t number, cudaError_t rc);
/* cudaErrorStreamCaptureInvalidated if the stream's capture is broken, otherwise cudaSuccess. */
cudaError_t softgpu_capture_state(struct softgpu_stream *s);
/* Adds the entry to the stream's capture, which must exist. */
cudaError_t softgpu_capture_take(struct softgpu_stream *s, const struct softgpu_entry *e, const void *call,
                                 size_t call_bytes);
/* Runs a graph on a stream's thread; `each` runs one node. */
void softgpu_graph_run(struct softgpu_nodes *nodes,
                       void (*each)(const struct softgpu_entry *e, const void *call, void *context), void *context);
void softgpu_graph_drop(struct softgpu_nodes *nodes);

/* ---- instrumented loops (copies.cc) ---- */

void softgpu_copy_bytes(void *dst, const void *src, size_t size_bytes);
void softgpu_set_bytes(void *dst, int value, size_t size_bytes);

/* ---- the rest ---- */

/* loads its code; true: it was not loaded before */
bool softgpu_load(const void *kernel);
/* dynamic bytes that cudaFuncSetAttribute allowed, at least 48 KiB */
size_t softgpu_shared_limit(const void *kernel);
/* sleeps in a third of the calls, see SOFTGPU_DELAY_US */
void softgpu_delay(uint64_t *random);

#endif
