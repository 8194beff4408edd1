/* The executor runs a block's threads as fibers on the OS thread of its stream, one block after the
 * other. A warp operation or a barrier switches to another thread; without them the threads of a
 * block are a plain loop. A mistake of a kernel ends the process with one line that names the
 * kernel, the block and the mistake. */
#ifndef DT_TESTS_SOFTGPU_EXECUTOR_H
#define DT_TESTS_SOFTGPU_EXECUTOR_H

#include <driver_types.h>
#include <stddef.h>
#include <stdint.h>
#include <vector_types.h>

extern __thread uint3 softgpu_thread_index, softgpu_block_index;
extern __thread uint3 softgpu_block_size, softgpu_grid_size;

[[noreturn]] void softgpu_die(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* x + y * size.x + z * size.x * size.y of the running thread. */
int softgpu_linear_index(void);

/* Waits until all threads of the block have called it at the same line. Returns how many of them
 * passed true. */
int softgpu_barrier(const char *file, int line, int x);

/* Orders the thread's writes before its later accesses, as seen by all threads that pass a
 * fence. */
void softgpu_fence(void);

/* Lanes that meet in a warp operation. `in` and `out` point to the arguments of the waiting
 * lanes. */
struct softgpu_group {
    unsigned mask, arrived;
    const char *operation, *file;
    int line;
    const void *in[32];
    void *out[32];
    char *clock;
};
/* Waits until all lanes of the mask have called it with the same operation at the same line. The
 * last lane runs `compute`, which may be null. */
void softgpu_collect(unsigned mask, const char *operation, const char *file, int line, const void *in, void *out,
                     void (*compute)(struct softgpu_group *));

/* Shared memory of the running block. Threads that give the same key get the same memory. Memory
 * never written is 0xff. */
void *softgpu_shared(const void *key, size_t size_bytes);
void *softgpu_shared_dynamic(size_t align_bytes);
/* Ends the process unless all bytes lie in shared memory that was handed out, and p is aligned. */
void softgpu_check_shared(const void *p, size_t size_bytes, const char *operation);

/* Asynchronous copies of 16 bytes. They are only noted here; the caller does them when a wait that
 * covers them asks for the next one. src is 16-byte aligned; source_bytes are copied, and the rest
 * is 0. */
void softgpu_copy_begin(void *dst, const void *src, int source_bytes);
void softgpu_copy_commit(void);
struct softgpu_copy {
    void *dst;
    const void *src;
    int source_bytes, group;
};
/* Returns the next copy that must be done so that at most `pending` committed groups are left;
 * false: none. */
bool softgpu_copy_next(int pending, struct softgpu_copy *out);

/* Enqueues a launch. run(call) is the work of one thread; `call` is copied. */
void softgpu_launch(const char *name, const void *kernel, void (*run)(const void *call), const void *call,
                    size_t call_bytes, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream);
/* Ends the process unless p is null, device memory or pinned memory. */
void softgpu_check_pointer(const char *kernel, int index, const void *p);

/* A launch in the queue; softgpu_execute runs it on the calling thread. */
struct softgpu_work {
    const char *name;
    void (*run)(const void *call);
    const void *call;
    uint3 grid, block;
    size_t shared_bytes; /* dynamic shared memory */
};
void softgpu_execute(const struct softgpu_work *w);
/* The calling thread will run no more launches: frees its fibers. */
void softgpu_execute_no_more(void);

#endif
