/* Devices: memory, streams and events behind one interface: "cpu", and "cuda" if the build found
 * the toolkit. Kernels, copies and collectives enqueue work on a stream and return nothing. A
 * stream keeps its first failure, and runs nothing more. An event recorded on it carries the
 * failure: a stream that waits for the event fails too, and `sync` reports it. A CPU stream is a
 * thread with a queue, or does its work at once in the caller ("inline"). One host thread drives a
 * stream at a time; different threads may drive different streams.
 *
 * Devices: "cpu" (production), "twin32" and "twin64": the same memory and streams with the plain-C
 * kernels for float and double. On "twin64" every floating-point buffer is double, so whole models
 * run in double (golden numbers, gradients). "separate" is the CPU with host_memory false, as if
 * its memory were not the host's: tests use it to run the code for GPUs without one. */
#ifndef DT_KERNELS_DEVICE_H
#define DT_KERNELS_DEVICE_H

#include "base/dtype.h"
#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dt_kernels; /* kernels/kernels.h */
struct dt_matmul_args;
struct dt_attention_args;
struct dt_attention_backward_args;
struct dt_text;
struct dt_device;

enum dt_memory {
    DT_MEMORY_DEVICE,
    DT_MEMORY_PINNED
}; /* pinned: host memory that a GPU copies fast; on the CPU both kinds are the same */
enum dt_streams { DT_STREAMS_AUTO, DT_STREAMS_INLINE, DT_STREAMS_THREAD };

struct dt_device_options {
    int index;            /* number among the devices of this kind; 0 on the CPU */
    int thread_count;     /* threads that kernels use, with the caller's; 0 means 1 */
    int local_rank_count; /* ranks on this host, for DT_STREAMS_AUTO; 0 means 1 */
    /* AUTO: DTRUN_STREAMS=thread|inline, otherwise threads if cores are free */
    enum dt_streams streams;
    /* GPUs: "fast": attention's backward may add up in no order; "own": by kernels of our own, whose
     * bits do not depend on a library's version; others, and null: in an order, by a library or not */
    const char *attention;
    const char *convolution; /* the same words, for sums of each pass */
    /* products of F32 may round their operands to TF32, where the device computes those faster */
    bool tf32;
};

/* The first member of a backend's own structs. */
struct dt_stream {
    struct dt_device *device;
    double waited_s; /* dt_stream_waited_s */
};
struct dt_event {
    struct dt_device *device;
};
struct dt_graph {
    struct dt_stream *stream; /* the stream on which the work was captured */
};

/* A function for dt_stream_call. It runs in stream order on a host thread. Non-zero: the stream
 * fails with `err`. */
typedef int dt_stream_fn(struct dt_stream *s, void *args, struct dt_error *err);

/* How ranks of one host reach each other's memory. Null: the device cannot. */
#define DT_DEVICE_HANDLE_BYTES 128
#define DT_DEVICE_OWN_BYTES 96 /* bytes of a handle that the device itself fills */
struct dt_device_sharing {
    int (*export_memory)(struct dt_device *d, void *base, char own[DT_DEVICE_OWN_BYTES], struct dt_error *err);
    /* imports memory of another process */
    int (*import_memory)(struct dt_device *d, const char own[DT_DEVICE_OWN_BYTES], void **out, struct dt_error *err);
    void (*release)(struct dt_device *d, void *p);
    int (*pin)(struct dt_device *d, void *host, size_t size_bytes, struct dt_error *err);
    void (*unpin)(struct dt_device *d, void *host);
    void (*write_word)(struct dt_stream *s, uint32_t *at, uint32_t value);
    void (*wait_word)(struct dt_stream *s, uint32_t *at, uint32_t value);
};

/* The shapes of attention that a job computes. The pointers in the args are not used. */
struct dt_attention_list {
    const struct dt_attention_args *forward;
    int forward_count;
    const struct dt_attention_backward_args *backward;
    int backward_count;
};

/* The same of convolutions; tensors are aligned. */
struct dt_convolution_list {
    const struct dt_convolution_args *forward;
    int forward_count;
    const struct dt_convolution_input_args *input;
    int input_count;
    const struct dt_convolution_weights_args *weights;
    int weights_count;
};

/* How products and attention are computed, chosen before the first of them in a run. Null: the
 * device has no choice. No product may run meanwhile. Pointers in `each` matter only for their
 * alignment. */
struct dt_device_plans {
    /* Measures on s the products that have no plan yet, and keeps the plans for later runs. A
     * product with an epilogue comes after the same product without one. *measured: number of
     * products measured. If plans cannot be kept, nothing is chosen and `why` says the reason;
     * otherwise `why` has status DT_OK. tick (may be null) is called between measurements. */
    int (*choose)(struct dt_stream *s, const struct dt_matmul_args *each, int count, void (*tick)(void *context),
                  void *context, int *measured, struct dt_error *why, struct dt_error *err);
    /* tell writes the plans of these products as text. take replaces our own plans by those of
     * another rank's text; with `keep` it also stores plans for shapes that this host's file lacks.
     * False: the text is of another device or library, and nothing was changed. */
    void (*tell)(struct dt_device *d, const struct dt_matmul_args *each, int count, struct dt_text *out);
    bool (*take)(struct dt_device *d, const char *text, bool keep);
    /* Forgets all plans, those of attention and of convolutions included, and makes no others, so that each start
     * computes the same. */
    void (*none)(struct dt_device *d);
    /* Computes each product once on s, with operands of its own, and waits. So no later step has to
     * make a plan or load a library's code. */
    int (*ready)(struct dt_stream *s, const struct dt_matmul_args *each, int count, void (*tick)(void *context),
                 void *context, struct dt_error *err);
    /* Prepares a pass of attention, so that no step waits for it: a library may compile its kernel
     * for a second. The pointers in `a` are not used. *by: the implementation that will compute it,
     * in words. */
    int (*attention)(struct dt_device *d, const struct dt_attention_args *a, const char **by, struct dt_error *err);
    int (*attention_backward)(struct dt_device *d, const struct dt_attention_backward_args *a, const char **by,
                              struct dt_error *err);
    /* Like choose, tell and take, for attention: which of a library's algorithms computes a pass.
     * tell writes nothing if there is no choice. */
    int (*choose_attention)(struct dt_stream *s, const struct dt_attention_list *all, void (*tick)(void *context),
                            void *context, int *measured, struct dt_error *why, struct dt_error *err);
    void (*tell_attention)(struct dt_device *d, const struct dt_attention_list *all, struct dt_text *out);
    bool (*take_attention)(struct dt_device *d, const char *text, bool keep);
    /* The same for convolutions. *by: what will compute them, in words. */
    int (*convolutions)(struct dt_device *d, const struct dt_convolution_list *all, void (*tick)(void *context),
                        void *context, const char **by, struct dt_error *err);
    int (*choose_convolutions)(struct dt_stream *s, const struct dt_convolution_list *all, void (*tick)(void *context),
                               void *context, int *measured, struct dt_error *why, struct dt_error *err);
    void (*tell_convolutions)(struct dt_device *d, const struct dt_convolution_list *all, struct dt_text *out);
    bool (*take_convolutions)(struct dt_device *d, const char *text, bool keep);
};

/* Graphs: work that is captured once and launched many times as a whole, at a fraction of the
 * host's time. Null: the device has none. */
struct dt_device_graphs {
    int (*begin)(struct dt_stream *s, struct dt_error *err);
    int (*end)(struct dt_stream *s, struct dt_graph **out, struct dt_error *err);
    void (*launch)(struct dt_graph *g);
    void (*close)(struct dt_graph *g);
};

/* Identifies a device of the machine, in the driver's words. */
struct dt_device_place {
    char bus[32];   /* as sysfs writes it, "0000:3b:00.0" */
    char uuid[64];  /* without "GPU-" or "MIG-" */
    char name[160]; /* for messages */
};

struct dt_device_ops {
    const char *name;
    int (*count)(int *out, struct dt_error *err); /* null: one */
    /* null: memory is the host's */
    bool (*memory)(struct dt_device *d, size_t *free, size_t *total);
    double (*peak)(struct dt_device *d, enum dt_dtype type); /* null: unknown */
    bool (*place)(int index, struct dt_device_place *out);   /* null: unknown */
    int (*open)(struct dt_device *d, const struct dt_device_options *o, struct dt_error *err);
    void (*close)(struct dt_device *d);
    int (*alloc)(struct dt_device *d, enum dt_memory kind, size_t size_bytes, void **out, struct dt_error *err);
    void (*free)(struct dt_device *d, enum dt_memory kind, void *p, size_t size_bytes);
    int (*stream_open)(struct dt_device *d, int priority, struct dt_stream **out, struct dt_error *err);
    void (*stream_close)(struct dt_stream *s);
    int (*event_open)(struct dt_device *d, struct dt_event **out, struct dt_error *err);
    void (*event_close)(struct dt_event *e);
    void (*use)(struct dt_device *d); /* null: there is nothing to do */
    void *(*native)(struct dt_stream *s);
    void (*copy)(struct dt_stream *s, void *dst, const void *src, size_t size_bytes);
    /* for dt_guard, if the host cannot write the memory; null: the host can */
    void (*guard)(struct dt_stream *s, void *p, size_t size_bytes);
    void (*call)(struct dt_stream *s, dt_stream_fn *fn, const void *args, size_t args_bytes);
    void (*fail)(struct dt_stream *s, const struct dt_error *why);
    bool (*failed)(struct dt_stream *s, struct dt_error *err);
    void (*record)(struct dt_event *e, struct dt_stream *s);
    void (*wait)(struct dt_event *e, struct dt_stream *s);
    int (*sync)(struct dt_event *e, double timeout_s, struct dt_error *err);
    const struct dt_device_sharing *sharing;
    const struct dt_device_plans *plans;
    const struct dt_device_graphs *graphs;
};

struct dt_device {
    const struct dt_device_ops *ops;
    const struct dt_kernels *kernels; /* kernels->activation(stream, &args) */
    enum dt_dtype real;               /* type of weights and activations made here: F32, or F64
                                       * on twin64 */
    /* the host may read and write device memory, and functions on a stream cost nothing */
    bool host_memory;
    struct dt_device_options options; /* as opened, with defaults filled in */
    void *impl;
};

/* Opens device "cpu", "cuda", "twin32", "twin64" or "separate" (options null: defaults).
 * DT_INVALID: the name is unknown, or the driver or GPU is too old. DT_NOT_FOUND: "cuda" has no
 * driver or no GPU. */
int dt_device_open(struct dt_device *d, const char *name, const struct dt_device_options *options,
                   struct dt_error *err);
/* True if this build has a device of that name. Does not ask its driver. */
bool dt_device_known(const char *name);
/* The number of such devices on this host. Fails like dt_device_open if there is none. */
int dt_device_count(const char *name, int *out, struct dt_error *err);
/* Free and total bytes of the device's memory. False: it is the host's memory, or the device does
 * not say. */
bool dt_device_memory(struct dt_device *d, size_t *free_bytes, size_t *total_bytes);
/* The maker's figure in FLOP/s for products of this type (F32, BF16). 0: unknown, as for CPUs. */
double dt_device_peak(struct dt_device *d, enum dt_dtype type);
/* Where the device is and its name; it need not be open. False: it is the CPU, or the driver does
 * not say. */
bool dt_device_place(const char *name, int index, struct dt_device_place *out);
/* Close its streams and events and free its memory first. Allowed on a zeroed struct, and twice. */
void dt_device_close(struct dt_device *d);

/* Makes the device the calling thread's current one, for libraries that use the current device
 * (NCCL). */
void dt_device_use(struct dt_device *d);

/* Zeroed memory, aligned to at least 64 bytes. Large blocks use huge pages where available, and are
 * touched. dt_device_free takes the same size. */
int dt_device_alloc(struct dt_device *d, enum dt_memory kind, size_t size_bytes, void **out, struct dt_error *err);
void dt_device_free(struct dt_device *d, enum dt_memory kind, void *p, size_t size_bytes);

/* priority: 0 normal; higher runs first if the device supports priorities. close waits until the
 * queue is empty; null is allowed. */
int dt_stream_open(struct dt_device *d, int priority, struct dt_stream **out, struct dt_error *err);
void dt_stream_close(struct dt_stream *s);
/* The library's own stream (cudaStream_t), or null. */
void *dt_stream_native(struct dt_stream *s);
/* Copies in stream order, between host and device memory in any combination. With a GPU, host
 * memory must be DT_MEMORY_PINNED. Ranks on the CPU share one memory and need no copies. */
void dt_stream_copy(struct dt_stream *s, void *dst, const void *src, size_t size_bytes);
/* Runs fn(s, copy of args) in stream order; args_bytes at most DT_CALL_ARGS_MAX. CPU collectives
 * are such calls. */
#define DT_CALL_ARGS_MAX 320
void dt_stream_call(struct dt_stream *s, dt_stream_fn *fn, const void *args, size_t args_bytes);
/* Makes the stream fail at once; any thread may call it. Work that already runs, or is in a GPU's
 * queue, still runs to its end. The first failure is kept. */
void dt_stream_fail(struct dt_stream *s, enum dt_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The same with an existing error, which keeps its blame. */
void dt_stream_fail_with(struct dt_stream *s, const struct dt_error *why);
/* True if the stream has failed so far; err (may be null) becomes the cause. Does not wait. */
bool dt_stream_failed(struct dt_stream *s, struct dt_error *err);
/* Seconds that the stream's work has waited so far, in collectives and for other streams. Work that
 * is still enqueued may add to it. */
double dt_stream_waited_s(const struct dt_stream *s);
/* For backends and collectives, from one thread at a time. */
void dt_stream_add_wait(struct dt_stream *s, double seconds);
/* Waits on the host until everything enqueued so far has run, like dt_event_sync of an event
 * recorded now. */
int dt_stream_finish(struct dt_stream *s, double timeout_s, struct dt_error *err);

int dt_event_open(struct dt_device *d, struct dt_event **out, struct dt_error *err);
/* Waits for the last record. Streams that wait for the event must have passed that record. Null is
 * allowed. */
void dt_event_close(struct dt_event *e);
/* The event now stands for everything enqueued on s so far, in place of its earlier record. */
void dt_event_record(struct dt_event *e, struct dt_stream *s);
/* s waits for the last record, if there is one. The host does not wait. */
void dt_event_wait(struct dt_event *e, struct dt_stream *s);
/* The host waits. 0: done. -1: DT_TIMEOUT after timeout_s (the caller polls its communicators and
 * calls again; < 0: no limit), or the failure of the recorded stream. */
int dt_event_sync(struct dt_event *e, double timeout_s, struct dt_error *err);

/* Graphs. Between begin and end, the kernels and copies that the calling thread enqueues on s are
 * captured with their current arguments, and nothing runs. Calls, events and words cannot be
 * captured. Each kernel must have run before in the same shape, because a first use allocates and
 * compiles. begin and end return -1 if the device or a kernel refuses, or the stream has failed.
 * Then nothing has run, and the caller enqueues the work without a graph. DT_NOT_FOUND: the device
 * has no graphs. */
int dt_graph_begin(struct dt_stream *s, struct dt_error *err);
int dt_graph_end(struct dt_stream *s, struct dt_graph **out, struct dt_error *err);
bool dt_device_has_graphs(const struct dt_device *d);
/* Enqueues the captured work on the stream it was captured on. */
void dt_graph_launch(struct dt_graph *g);
/* Work that was launched still runs. Close a graph before its stream. Null is allowed. */
void dt_graph_close(struct dt_graph *g);

/* For ranks that share a device, or whose devices reach each other. A handle (bytes, no text) names
 * a whole allocation of dt_device_alloc, and is valid as long as that allocation. Imported memory
 * is device memory to all kernels and copies. On the CPU both ranks must be threads of one process.
 * A handle of this process is accepted only for memory that was exported here, with that size, and
 * is not freed; otherwise DT_INVALID. */
int dt_device_export(struct dt_device *d, void *base, size_t size_bytes, char handle[DT_DEVICE_HANDLE_BYTES],
                     struct dt_error *err);
int dt_device_import(struct dt_device *d, const char handle[DT_DEVICE_HANDLE_BYTES], size_t size_bytes, void **out,
                     struct dt_error *err);
void dt_device_release(struct dt_device *d, void *imported);
/* Prepares host memory that ranks share, so that streams can write words there and wait for them.
 * size_bytes: whole pages. */
int dt_device_pin(struct dt_device *d, void *host, size_t size_bytes, struct dt_error *err);
void dt_device_unpin(struct dt_device *d, void *host);
/* In stream order: *at = value, after all earlier work on s has become visible everywhere. */
void dt_stream_write_word(struct dt_stream *s, uint32_t *at, uint32_t value);
/* s waits until *at has reached value, with wrap-around: (int32_t)(*at - value) >= 0. Any writer of
 * the word, a host too, can end the wait. */
void dt_stream_wait_word(struct dt_stream *s, uint32_t *at, uint32_t value);

/* Fills bytes that are invalid until they are written again with NaN, if DTRUN_GUARD=1 is set and
 * in sanitizer builds; otherwise does nothing. In stream order; with s null at once, and then p is
 * host memory. */
void dt_guard(struct dt_stream *s, void *p, size_t size_bytes);

#endif
