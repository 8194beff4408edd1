/* The executor: runs a block's threads as fibers on the OS thread of its stream, one block after
 * the other. A warp operation or a barrier switches to another thread; without them the threads
 * of a block are a plain loop. A mistake of a kernel ends the process with one line that names
 * kernel, block and what is wrong. */
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

/* Waits until all threads of the block called it at the same line; gives the number of those
 * with a true x. */
int softgpu_barrier(const char *file, int line, int x);

/* Orders what the thread wrote before what it does after, for all who pass a fence, too. */
void softgpu_fence(void);

/* Lanes that meet in a warp operation. `in` and `out` point to where the lanes wait. */
struct softgpu_group {
    unsigned mask, arrived;
    const char *operation, *file;
    int line;
    const void *in[32];
    void *out[32];
    char *clock;
};
/* Waits until all lanes of the mask called it with the same operation at the same line; the last
 * one runs `compute`, which may be null. */
void softgpu_collect(unsigned mask, const char *operation, const char *file, int line, const void *in, void *out,
                     void (*compute)(struct softgpu_group *));

/* Shared memory of the running block: the same for all threads that give the same key; never
 * written memory is 0xff. */
void *softgpu_shared(const void *key, size_t size_bytes);
void *softgpu_shared_dynamic(size_t align_bytes);
/* Ends the process unless all bytes lie in shared memory that was handed out, and p is aligned. */
void softgpu_check_shared(const void *p, size_t size_bytes, const char *operation);

/* Copies of 16 bytes that come late: noted here, done by the caller when the wait that covers
 * them asks for the next. src is 16-byte aligned; source_bytes of it are copied, the rest is 0. */
void softgpu_copy_begin(void *dst, const void *src, int source_bytes);
void softgpu_copy_commit(void);
struct softgpu_copy {
    void *dst;
    const void *src;
    int source_bytes, group;
};
/* Gives the next copy that must be done so that at most `pending` committed groups are left;
 * false: no more. */
bool softgpu_copy_next(int pending, struct softgpu_copy *out);

/* Puts a launch into the stream. run(call) is one thread's work; `call` is copied. */
void softgpu_launch(const char *name, const void *kernel, void (*run)(const void *call), const void *call,
                    size_t call_bytes, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream);
/* Ends the process unless p is null, device memory or pinned memory. */
void softgpu_check_pointer(const char *kernel, int index, const void *p);

/* What a launch is in the queue; softgpu_execute runs it on the calling thread. */
struct softgpu_work {
    const char *name;
    void (*run)(const void *call);
    const void *call;
    uint3 grid, block;
    size_t shared_bytes; /* dynamic */
};
void softgpu_execute(const struct softgpu_work *w);
/* The calling thread runs no more of them: gives its fibers back. */
void softgpu_execute_no_more(void);

#endif
