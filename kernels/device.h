/* Devices: memory, streams and events behind one interface: "cpu", and "cuda" where the build
 * found the toolkit.
 *
 * Kernels, copies and collectives enqueue on a stream and return nothing. The first failure
 * stays with the stream, which then runs nothing more; an event recorded on it carries the
 * failure to whoever waits (a stream that waits fails too), and `sync` reports it. A CPU stream
 * is a thread with a queue, or does its work at once in the caller ("inline"). One host thread
 * drives a stream at a time; different streams may be driven by different threads.
 *
 * Devices: "cpu" (production), "twin32" and "twin64": the same memory and streams with the
 * plain-C kernels for float and double. On "twin64" every floating-point buffer is double, so
 * whole models run in double (golden numbers, gradients). "apart" is the CPU that says its
 * memory is not the host's: with it, tests take the ways to a GPU and back where there is none. */
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
}; /* pinned: host memory that copies fast;
    * on the CPU both are the same */
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
    struct dt_stream *stream; /* that it was taken down on */
};

/* Work for dt_stream_call: runs in stream order on a host thread. Non-zero: the stream fails
 * with `err`. */
typedef int dt_stream_fn(struct dt_stream *s, void *args, struct dt_error *err);

/* What ranks that compute side by side on one host need to reach each other's memory; a device
 * that has none of it says null. */
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

/* Attention that a job asks for; what the args point to counts for nothing. */
struct dt_attention_list {
    const struct dt_attention_args *forward;
    int forward_count;
    const struct dt_attention_backward_args *backward;
    int backward_count;
};

/* Choosing how products and attention are computed, before a run's first ones; a device that has
 * no choice says null. Nothing of it may run beside products, and what `each` points to counts
 * by its alignment only. */
struct dt_device_plans {
    /* Measures on s those products that nothing was chosen for, and keeps the choice for later
     * runs; one with an epilogue comes after the same one without. *measured: how many. Where
     * nothing can be kept nothing is chosen, and `why`, otherwise of status DT_OK, says so. tick
     * (may be null) is called between measurements. */
    int (*choose)(struct dt_stream *s, const struct dt_matmul_args *each, int count, void (*tick)(void *context),
                  void *context, int *measured, struct dt_error *why, struct dt_error *err);
    /* The choice for these products as text; another rank takes it in place of its own, and with
     * `keep` for later runs of this host where these have none. False: it is of another device
     * or library, and nothing was changed. */
    void (*tell)(struct dt_device *d, const struct dt_matmul_args *each, int count, struct dt_text *out);
    bool (*take)(struct dt_device *d, const char *text, bool keep);
    /* Chooses nothing, attention included, and forgets what was chosen earlier: the same on each
     * start. */
    void (*none)(struct dt_device *d);
    /* Computes each product once on s, with operands of its own, so that no step waits for its
     * plan or for a library's code; waits for them. */
    int (*ready)(struct dt_stream *s, const struct dt_matmul_args *each, int count, void (*tick)(void *context),
                 void *context, struct dt_error *err);
    /* Makes what a pass of attention needs (a library compiles its kernel: a second), so that no
     * step waits for it; what `a` points to counts for nothing. *by: what will compute it, in
     * words. */
    int (*attention)(struct dt_device *d, const struct dt_attention_args *a, const char **by, struct dt_error *err);
    int (*attention_backward)(struct dt_device *d, const struct dt_attention_backward_args *a, const char **by,
                              struct dt_error *err);
    /* As choose, tell and take do it for products: which of a library's ways computes a pass.
     * tell adds nothing where there is no choice. */
    int (*choose_attention)(struct dt_stream *s, const struct dt_attention_list *all, void (*tick)(void *context),
                            void *context, int *measured, struct dt_error *why, struct dt_error *err);
    void (*tell_attention)(struct dt_device *d, const struct dt_attention_list *all, struct dt_text *out);
    bool (*take_attention)(struct dt_device *d, const char *text, bool keep);
};

/* Work that is taken down once and put in as a whole again and again, at a fraction of the
 * host's time; a device that has none of it says null. */
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
    const struct dt_kernels *kernels; /* k->gelu_forward(stream, &args) */
    enum dt_dtype real;               /* type of weights and activations made here: F32, or F64
                                       * on twin64 */
    bool host_memory;                 /* device memory is the host's too: the host may read and
                                       * write it, and functions on a stream cost nothing */
    struct dt_device_options options; /* as opened, defaults filled in */
    void *impl;
};

/* Opens device "cpu", "cuda", "twin32", "twin64" or "apart" (options null: defaults). DT_INVALID
 * for an unknown name; "cuda" may have no driver or GPU (DT_NOT_FOUND), or a driver or GPU that
 * is too old (DT_INVALID). */
int dt_device_open(struct dt_device *d, const char *name, const struct dt_device_options *options,
                   struct dt_error *err);
/* Does this build know a device of that name? Its driver is not asked. */
bool dt_device_known(const char *name);
/* How many of them there are here; fails as dt_device_open does where there is none. */
int dt_device_count(const char *name, int *out, struct dt_error *err);
/* Bytes of the device's memory that are free now, and all of them; false where it is the host's
 * memory, or the device does not say. */
bool dt_device_memory(struct dt_device *d, size_t *free_bytes, size_t *total_bytes);
/* FLOP/s of products of this type (F32, BF16) that its maker states at most; 0: not known, as of
 * CPUs. */
double dt_device_peak(struct dt_device *d, enum dt_dtype type);
/* Which one of the machine's it is, before it is open, too. False where it is the CPU, or the
 * driver does not say. */
bool dt_device_place(const char *name, int index, struct dt_device_place *out);
/* Streams, events and memory of it must be closed before. Harmless on a zeroed struct and twice. */
void dt_device_close(struct dt_device *d);

/* Makes it the calling thread's device, for a library that is called beside (NCCL). */
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
/* Copies in stream order; any of host and device memory. Ranks on the CPU share one memory and
 * have no use for it; what lies on a device gets in and out by it. Host memory is
 * DT_MEMORY_PINNED where a GPU takes part. */
void dt_stream_copy(struct dt_stream *s, void *dst, const void *src, size_t size_bytes);
/* Runs fn(s, copy of args) in stream order; args_bytes at most DT_CALL_ARGS_MAX. CPU collectives
 * are such calls. */
#define DT_CALL_ARGS_MAX 320
void dt_stream_call(struct dt_stream *s, dt_stream_fn *fn, const void *args, size_t args_bytes);
/* Makes the stream fail, at once (from any thread; work that already runs goes on to its end,
 * and so does what a GPU's queue holds). The first failure stays. */
void dt_stream_fail(struct dt_stream *s, enum dt_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The same with an error that is there, whoever is to blame for it. */
void dt_stream_fail_with(struct dt_stream *s, const struct dt_error *why);
/* True if the stream has failed so far; err (may be null) gets why. Does not wait. */
bool dt_stream_failed(struct dt_stream *s, struct dt_error *err);
/* Seconds that its work has waited so far: in collectives, and for other streams. What is put in
 * may add to it meanwhile. */
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

/* Graphs. Between begin and end the kernels and copies that the calling thread puts into s are
 * taken down with the arguments that they have now, and nothing runs; no call, event or word may
 * be among them, and each kernel must have run before in the same shape: what a first use needs
 * cannot be had meanwhile. Both fail (-1, and nothing of it has run: the caller puts the work in
 * directly) where the device or one of the kernels refuses, and when the stream has failed.
 * DT_NOT_FOUND: the device has no graphs. */
int dt_graph_begin(struct dt_stream *s, struct dt_error *err);
int dt_graph_end(struct dt_stream *s, struct dt_graph **out, struct dt_error *err);
bool dt_device_has_graphs(const struct dt_device *d);
/* Puts the work into the stream that it was taken down on. */
void dt_graph_launch(struct dt_graph *g);
/* What was launched still runs; before its stream is closed. Null is harmless. */
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
/* s waits until *at has reached value, counting round: (int32_t)(*at - value) >= 0. Whoever may
 * write there, a host too, can let it go on. */
void dt_stream_wait_word(struct dt_stream *s, uint32_t *at, uint32_t value);

/* Marks bytes nobody may use until they are written again: in stream order, filled with NaN,
 * when DTRUN_GUARD=1 is set or in sanitizer builds; s null: at once, and p is the host's memory.
 * Otherwise nothing. */
void dt_guard(struct dt_stream *s, void *p, size_t size_bytes);

#endif
