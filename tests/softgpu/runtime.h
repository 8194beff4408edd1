/* What the files of the fake runtime share. */
#ifndef DT_TESTS_SOFTGPU_RUNTIME_H
#define DT_TESTS_SOFTGPU_RUNTIME_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "tests/softgpu/executor.h"

/* Keeps rc as the calling thread's last error and gives it back. */
cudaError_t softgpu_error(cudaError_t rc);
/* The same with a line on stderr that says why: for misuse of which the code alone says too
 * little. */
cudaError_t softgpu_refuse(cudaError_t rc, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
long softgpu_setting(const char *name, long fallback);
/* Names the function in the refusal where nothing of the runtime may be called: in host
 * functions of a stream. cudaSuccess if it may. */
cudaError_t softgpu_enter(const char *function);
/* The same for what may not be called while this thread captures a stream, or another one does
 * so for all: that capture is of no use any more. */
cudaError_t softgpu_enter_uncaptured(const char *function);
/* The error that SOFTGPU_FAIL=FUNCTION:ERROR[:AFTER[:LOCAL_RANK]] wants from it: after so many
 * calls that went well, of that rank only. An error of 200 and above is a broken device: then
 * every function gives it, for good. */
cudaError_t softgpu_fails(const char *function);

/* With SOFTGPU_SETUPS=FILE a line there, the function's name: it makes, ends, asks about or
 * waits for what a loop of steps should find made, and should not wait for. The second: when it
 * is one of those that softgpu_enter hears of. */
void softgpu_setup(const char *function);
void softgpu_setup_by_name(const char *function);

/* ---- memory ---- */

enum softgpu_place { SOFTGPU_PAGEABLE, SOFTGPU_DEVICE, SOFTGPU_PINNED };
struct softgpu_block { /* an allocation */
    char *begin;
    size_t size_bytes;
    enum softgpu_place place;
    int device, fd; /* fd: its memfd, -1 for pinned memory */
    bool imported;  /* of another process */
    char *map;      /* with the guard page */
    size_t map_bytes;
};
/* Where [p, p + size_bytes) lies; `out` (may be null) gets the allocation. -1: partly outside of
 * an allocation. */
int softgpu_find(const void *p, size_t size_bytes, struct softgpu_block *out);
/* How many allocations there are, and of how many bytes in all. */
int softgpu_blocks(enum softgpu_place place, bool imported, size_t *size_bytes);
int softgpu_regions(void); /* of registered host memory */
/* Maps another process's memory: see ipc.cc. */
cudaError_t softgpu_import(int fd, size_t size_bytes, int device, void **out);
cudaError_t softgpu_forget(void *p, bool imported);

/* ---- streams ---- */

struct softgpu_event_state {                /* where processes can share it */
    uint32_t recorded, done, used, waiting; /* waiting: threads, for done */
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
            cudaHostFn_t release; /* of the argument, once nobody can run it again; or null */
            bool once;            /* it may run once only: no graph takes it */
        } host;
        struct {
            struct softgpu_event_state *state;
            uint32_t count;
        } event;
        struct softgpu_nodes *graph;
    };
};
/* The stream behind the handle; null after softgpu_refuse for the default streams and for what
 * is none. */
struct softgpu_stream *softgpu_stream(cudaStream_t s, const char *function);
/* Puts the entry in, or into the graph that the stream captures; copies call_bytes of `call` for
 * a kernel. */
cudaError_t softgpu_put(struct softgpu_stream *s, const struct softgpu_entry *e, const void *call, size_t call_bytes);
/* For libraries: fn(argument) in stream order, as often as a graph runs that took it; then
 * release(argument), also when the stream refuses it. */
cudaError_t softgpu_put_work(cudaStream_t stream, const char *function, cudaHostFn_t fn, void *argument,
                             cudaHostFn_t release);
int softgpu_stream_device(const struct softgpu_stream *s);
int softgpu_streams(void); /* that are open */
int softgpu_events(void);
/* The host waits until all streams of this process have run dry. */
void softgpu_wait_all(void);

/* ---- graphs (graph.cc) ---- */

/* Where a stream keeps its capture; null: it has none. */
struct softgpu_capture **softgpu_stream_capture(struct softgpu_stream *s);
/* The number of the stream's capture, which no other one ever had; 0: it has none. */
uint64_t softgpu_capture_of(struct softgpu_stream *s);
/* Is the capture of that number still under way? */
bool softgpu_capture_lives(uint64_t number);
/* The capture is of no use any more. Gives back rc, as softgpu_error. */
cudaError_t softgpu_capture_break(uint64_t number, cudaError_t rc);
/* cudaErrorStreamCaptureInvalidated when the stream's capture is of no use any more, otherwise
 * cudaSuccess. */
cudaError_t softgpu_capture_state(struct softgpu_stream *s);
/* Takes the entry into the stream's capture, which it has. */
cudaError_t softgpu_capture_take(struct softgpu_stream *s, const struct softgpu_entry *e, const void *call,
                                 size_t call_bytes);
/* Runs what a graph holds, on a stream's thread; `each` runs a node. */
void softgpu_graph_run(struct softgpu_nodes *nodes,
                       void (*each)(const struct softgpu_entry *e, const void *call, void *context), void *context);
void softgpu_graph_drop(struct softgpu_nodes *nodes);

/* ---- instrumented loops (copies.cc) ---- */

void softgpu_copy_bytes(void *dst, const void *src, size_t size_bytes);
void softgpu_set_bytes(void *dst, int value, size_t size_bytes);

/* ---- the rest ---- */

bool softgpu_load(const void *kernel);           /* its code; true: it was not there yet */
size_t softgpu_shared_limit(const void *kernel); /* dynamic bytes that cudaFuncSetAttribute
                                                  * allowed, at least 48 KiB */
void softgpu_delay(uint64_t *random);            /* a third of the calls sleep, see
                                                  * SOFTGPU_DELAY_US */

#endif
