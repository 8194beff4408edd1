/* Devices: memory, streams and events behind one interface: "cpu", and "cuda" where the build
 * found the toolkit.
 *
 * Kernels, copies and collectives enqueue work on a stream and return nothing. The first failure
 * stays with the stream, which then runs nothing more. An event recorded on it carries the
 * failure: a stream that waits for the event fails too, and `sync` reports it. A CPU stream is a
 * thread with a queue, or does its work at once in the caller ("inline"). One host thread drives
 * a stream at a time; different threads may drive different streams.
 *
 * Devices: "cpu" (production), "twin32" and "twin64": the same memory and streams with the
 * plain-C kernels for float and double. On "twin64" every floating-point buffer is double, so
 * whole models run in double (golden numbers, gradients). "separate" is the CPU with host_memory
 * false, as if its memory were separate from the host's: tests run the code for GPUs with it
 * where there is none. */
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
    int index;               /* which one of its kind; 0 on the CPU */
    int thread_count;        /* pool threads that kernels use, the caller's included; 0 means 1 */
    int local_rank_count;    /* ranks on this host, for DT_STREAMS_AUTO; 0 means 1 */
    enum dt_streams streams; /* AUTO: DTRUN_STREAMS=thread|inline, otherwise threads where cores
                              * are left over */
    bool deterministic;      /* attention by kernels of our own, whose bits no library's version
                              * changes */
};

/* What a backend puts first in its own structs. */
struct dt_stream {
    struct dt_device *device;
    double waited_s; /* dt_stream_waited_s */
};
struct dt_event {
    struct dt_device *device;
};
struct dt_graph {
    struct dt_stream *stream; /* the work was captured on it */
};

/* A function for dt_stream_call. It runs in stream order on a host thread. Non-zero: the stream
 * fails with `err`. */
typedef int dt_stream_fn(struct dt_stream *s, void *args, struct dt_error *err);

/* How ranks on one host reach each other's memory. Null: the device cannot. */
#define DT_DEVICE_HANDLE_BYTES 128
#define DT_DEVICE_OWN_BYTES 96 /* of a handle: what the device itself puts there */
struct dt_device_sharing {
    int (*export_memory)(struct dt_device *d, void *base, char own[DT_DEVICE_OWN_BYTES], struct dt_error *err);
    /* of another process */
    int (*import_memory)(struct dt_device *d, const char own[DT_DEVICE_OWN_BYTES], void **out, struct dt_error *err);
    void (*release)(struct dt_device *d, void *p);
    int (*pin)(struct dt_device *d, void *host, size_t size_bytes, struct dt_error *err);
    void (*unpin)(struct dt_device *d, void *host);
    void (*write_word)(struct dt_stream *s, uint32_t *at, uint32_t value);
    void (*wait_word)(struct dt_stream *s, uint32_t *at, uint32_t value);
};

/* The shapes of attention that a job computes; the pointers in the args do not matter. */
struct dt_attention_list {
    const struct dt_attention_args *forward;
    int forward_count;
    const struct dt_attention_backward_args *backward;
    int backward_count;
};

/* How products and attention are computed, chosen before the first ones of a run. Null: the device
 * has no choice. No product may run meanwhile. Of the pointers in `each` only the alignment
 * matters. */
struct dt_device_plans {
    /* Measures on s the products that have no plan yet, and keeps the plans for later runs. A
     * product with an epilogue comes after the same product without one. *measured: how many were
     * measured. Where nothing can be kept nothing is chosen, and `why` says the reason; otherwise
     * `why` has status DT_OK. tick (may be null) is called between measurements. */
    int (*choose)(struct dt_stream *s, const struct dt_matmul_args *each, int count, void (*tick)(void *context),
                  void *context, int *measured, struct dt_error *why, struct dt_error *err);
    /* tell writes the plans of these products as text. take puts the plans of another rank in the
     * place of our own; with `keep` it also keeps them for later runs of this host, where these
     * have none. False: the text is of another device or library, and nothing was changed. */
    void (*tell)(struct dt_device *d, const struct dt_matmul_args *each, int count, struct dt_text *out);
    bool (*take)(struct dt_device *d, const char *text, bool keep);
    /* Forgets all plans, those of attention included, and makes none, so that each start computes
     * alike. */
    void (*none)(struct dt_device *d);
    /* Computes each product once on s, with operands of its own, and waits. So no step waits until
     * a plan is made or a library's code is loaded. */
    int (*ready)(struct dt_stream *s, const struct dt_matmul_args *each, int count, void (*tick)(void *context),
                 void *context, struct dt_error *err);
    /* Prepares a pass of attention (a library compiles its kernel: a second), so that no step waits
     * for it. The pointers in `a` do not matter. *by: what will compute it, in words. */
    int (*attention)(struct dt_device *d, const struct dt_attention_args *a, const char **by, struct dt_error *err);
    int (*attention_backward)(struct dt_device *d, const struct dt_attention_backward_args *a, const char **by,
                              struct dt_error *err);
    /* As choose, tell and take, for attention: which of a library's algorithms computes a pass.
     * tell adds nothing where there is no choice. */
    int (*choose_attention)(struct dt_stream *s, const struct dt_attention_list *all, void (*tick)(void *context),
                            void *context, int *measured, struct dt_error *why, struct dt_error *err);
    void (*tell_attention)(struct dt_device *d, const struct dt_attention_list *all, struct dt_text *out);
    bool (*take_attention)(struct dt_device *d, const char *text, bool keep);
};

/* Work that is captured once and launched as a whole many times, at a fraction of the host's time.
 * Null: the device has no graphs. */
struct dt_device_graphs {
    int (*begin)(struct dt_stream *s, struct dt_error *err);
    int (*end)(struct dt_stream *s, struct dt_graph **out, struct dt_error *err);
    void (*launch)(struct dt_graph *g);
    void (*close)(struct dt_graph *g);
};

/* Which device of the machine it is, in the driver's words. */
struct dt_device_place {
    char bus[32];   /* as sysfs writes it, "0000:3b:00.0" */
    char uuid[64];  /* without "GPU-" or "MIG-" */
    char name[160]; /* as messages name it */
};

struct dt_device_ops {
    const char *name;
    int (*count)(int *out, struct dt_error *err);                     /* null: one */
    bool (*memory)(struct dt_device *d, size_t *free, size_t *total); /* null: the host's */
    double (*peak)(struct dt_device *d, enum dt_dtype type);          /* null: not known */
    bool (*place)(int index, struct dt_device_place *out);            /* null: none */
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
    /* for dt_guard where the host cannot write; null: it can */
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
    bool host_memory;                 /* device memory is the host's too: the host may read and
                                       * write it, and functions on a stream cost nothing */
    struct dt_device_options options; /* as opened, defaults filled in */
    void *impl;
};

/* Opens device "cpu", "cuda", "twin32", "twin64" or "separate" (options null: defaults).
 * DT_INVALID: the name is unknown, or the driver or GPU is too old. DT_NOT_FOUND: "cuda" has no
 * driver or no GPU. */
int dt_device_open(struct dt_device *d, const char *name, const struct dt_device_options *options,
                   struct dt_error *err);
/* Does this build know a device of that name? Its driver is not asked. */
bool dt_device_known(const char *name);
/* How many such devices this host has. Fails as dt_device_open does where there is none. */
int dt_device_count(const char *name, int *out, struct dt_error *err);
/* Bytes of the device's memory that are free now, and all of them; false where it is the host's
 * memory, or the device does not say. */
bool dt_device_memory(struct dt_device *d, size_t *free_bytes, size_t *total_bytes);
/* FLOP/s of products of this type (F32, BF16) that the maker states. 0: not known, as for CPUs. */
double dt_device_peak(struct dt_device *d, enum dt_dtype type);
/* Where the device sits and what it is called; it need not be open. False: it is the CPU, or the
 * driver does not say. */
bool dt_device_place(const char *name, int index, struct dt_device_place *out);
/* Its streams, events and memory must be closed before. Harmless on a zeroed struct and twice. */
void dt_device_close(struct dt_device *d);

/* Makes it the current device of the calling thread, for libraries that use the current device
 * (NCCL). */
void dt_device_use(struct dt_device *d);

/* Zeroed memory aligned to 64 bytes at least (large blocks: huge pages where given, touched).
 * dt_device_free takes the same size. */
int dt_device_alloc(struct dt_device *d, enum dt_memory kind, size_t size_bytes, void **out, struct dt_error *err);
void dt_device_free(struct dt_device *d, enum dt_memory kind, void *p, size_t size_bytes);

/* priority: 0 normal, higher runs first where a device knows priorities. close waits until the
 * queue has run; null is harmless. */
int dt_stream_open(struct dt_device *d, int priority, struct dt_stream **out, struct dt_error *err);
void dt_stream_close(struct dt_stream *s);
/* The library's own stream (cudaStream_t), or null. */
void *dt_stream_native(struct dt_stream *s);
/* Copies in stream order, between host and device memory in any combination. Host memory is
 * DT_MEMORY_PINNED where a GPU takes part. Ranks on the CPU share one memory and need no copies. */
void dt_stream_copy(struct dt_stream *s, void *dst, const void *src, size_t size_bytes);
/* Runs fn(s, copy of args) in stream order; args_bytes at most DT_CALL_ARGS_MAX. CPU collectives
 * are such calls. */
#define DT_CALL_ARGS_MAX 320
void dt_stream_call(struct dt_stream *s, dt_stream_fn *fn, const void *args, size_t args_bytes);
/* Makes the stream fail at once, from any thread. Work that already runs goes on to its end, and so
 * does the work in a GPU's queue. The first failure stays. */
void dt_stream_fail(struct dt_stream *s, enum dt_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The same with an error that is there, whoever is to blame for it. */
void dt_stream_fail_with(struct dt_stream *s, const struct dt_error *why);
/* True if the stream has failed so far; err (may be null) gets why. Does not wait. */
bool dt_stream_failed(struct dt_stream *s, struct dt_error *err);
/* Seconds that the stream's work has waited so far, in collectives and for other streams. Work
 * enqueued meanwhile may add to it. */
double dt_stream_waited_s(const struct dt_stream *s);
/* For backends and collectives; by one thread at a time. */
void dt_stream_add_wait(struct dt_stream *s, double seconds);
/* The host waits until everything enqueued so far has run: as an event recorded now and
 * dt_event_sync. */
int dt_stream_finish(struct dt_stream *s, double timeout_s, struct dt_error *err);

int dt_event_open(struct dt_device *d, struct dt_event **out, struct dt_error *err);
/* Waits for the last record; streams that wait for the event must have passed that. Null is
 * harmless. */
void dt_event_close(struct dt_event *e);
/* The event stands for everything enqueued on s so far; recording again replaces that. */
void dt_event_record(struct dt_event *e, struct dt_stream *s);
/* s waits for the last record (none: does not wait), the host goes on. */
void dt_event_wait(struct dt_event *e, struct dt_stream *s);
/* The host waits. 0 done; -1 DT_TIMEOUT after timeout_s (the caller polls its communicators and
 * calls again; < 0: no limit), or the failure of the stream recorded. */
int dt_event_sync(struct dt_event *e, double timeout_s, struct dt_error *err);

/* Graphs. Between begin and end the kernels and copies that the calling thread enqueues on s are
 * captured with their arguments of now, and nothing runs. No call, event or word may be among them.
 * Each kernel must have run before in the same shape, because a first use allocates and compiles.
 * Both fail (-1, nothing has run, and the caller enqueues the work without a graph) where the
 * device or one of the kernels refuses, and when the stream has failed. DT_NOT_FOUND: the device
 * has no graphs. */
int dt_graph_begin(struct dt_stream *s, struct dt_error *err);
int dt_graph_end(struct dt_stream *s, struct dt_graph **out, struct dt_error *err);
bool dt_device_has_graphs(const struct dt_device *d);
/* Enqueues the captured work on the stream on which it was captured. */
void dt_graph_launch(struct dt_graph *g);
/* Work that was launched still runs. Close a graph before its stream. Null is harmless. */
void dt_graph_close(struct dt_graph *g);

/* Ranks that share a device, or devices that reach each other. A handle names a whole allocation
 * of dt_device_alloc (no text; copied as bytes) and is good for as long as that lives; another
 * rank's import is device memory to all kernels and copies. On the CPU both must be threads of
 * one process. A handle of this process is taken only for memory that was exported here, with
 * that size, and was not freed: DT_INVALID otherwise. */
int dt_device_export(struct dt_device *d, void *base, size_t size_bytes, char handle[DT_DEVICE_HANDLE_BYTES],
                     struct dt_error *err);
int dt_device_import(struct dt_device *d, const char handle[DT_DEVICE_HANDLE_BYTES], size_t size_bytes, void **out,
                     struct dt_error *err);
void dt_device_release(struct dt_device *d, void *imported);
/* Host memory that ranks share, so that streams write words there and wait for them. size_bytes:
 * whole pages. */
int dt_device_pin(struct dt_device *d, void *host, size_t size_bytes, struct dt_error *err);
void dt_device_unpin(struct dt_device *d, void *host);
/* In stream order: *at = value, after all that came before on s can be seen by everybody. */
void dt_stream_write_word(struct dt_stream *s, uint32_t *at, uint32_t value);
/* s waits until *at has reached value, counting round: (int32_t)(*at - value) >= 0. Every writer of
 * the word, a host too, can end the wait. */
void dt_stream_wait_word(struct dt_stream *s, uint32_t *at, uint32_t value);

/* Fills bytes that are not valid until they are written again with NaN, when DTRUN_GUARD=1 is set
 * and in sanitizer builds; otherwise does nothing. It happens in stream order; s null: at once, and
 * p is the host's memory. */
void dt_guard(struct dt_stream *s, void *p, size_t size_bytes);

#endif
