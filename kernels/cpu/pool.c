/* The thread pool. One word holds the number of the region and the next part. A thread takes a part
 * by advancing that word, so a thread that wakes up late, for a region that is over, takes nothing.
 * A thread reads the region's fields before it advances the word, and uses them only if the word
 * has not changed. */
#include "kernels/cpu/pool.h"

#include "base/clock.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SPIN_S 20e-6

struct dt_pool {
    _Atomic uint64_t word;   /* region << 32 | next part */
    _Atomic uint32_t signal; /* futex word, changed for each region */
    _Atomic uint32_t asleep; /* number of threads that sleep on the futex */
    _Atomic(dt_pool_fn *) fn;
    _Atomic(void *) context;
    _Atomic int64_t part_count, done_count;
    _Atomic bool closing;
    pthread_mutex_t in_use; /* held by the thread that runs a region: one region at a time */
    int thread_count;
    pthread_t threads[];
};

static void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Takes and does parts of the current region until none is left. */
static void work(struct dt_pool *p)
{
    uint64_t word = atomic_load_explicit(&p->word, memory_order_acquire);
    for (;;) {
        dt_pool_fn *fn = atomic_load_explicit(&p->fn, memory_order_relaxed);
        void *context = atomic_load_explicit(&p->context, memory_order_relaxed);
        int64_t count = atomic_load_explicit(&p->part_count, memory_order_relaxed);
        int64_t part = (int64_t)(word & UINT32_MAX);
        if (part >= count) {
            return;
        }
        if (!atomic_compare_exchange_weak_explicit(&p->word, &word, word + 1, memory_order_acq_rel,
                                                   memory_order_acquire)) {
            continue; /* the exchange failed and has read the word again */
        }
        fn(context, part);
        atomic_fetch_add_explicit(&p->done_count, 1, memory_order_acq_rel);
        word = atomic_load_explicit(&p->word, memory_order_acquire);
    }
}

static void wait_for_signal(struct dt_pool *p, uint32_t seen)
{
    double until = dt_now_s() + SPIN_S;
    while (dt_now_s() < until) {
        for (int i = 0; i < 32; i++) {
            if (atomic_load_explicit(&p->signal, memory_order_acquire) != seen) {
                return;
            }
            pause_cpu();
        }
    }
    atomic_fetch_add(&p->asleep, 1);
    while (atomic_load(&p->signal) == seen) {
        syscall(SYS_futex, &p->signal, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    }
    atomic_fetch_sub(&p->asleep, 1);
}

static void *thread_main(void *arg)
{
    struct dt_pool *p = arg;
    uint32_t seen = 0;
    for (;;) {
        wait_for_signal(p, seen);
        seen = atomic_load(&p->signal);
        if (atomic_load(&p->closing)) {
            return NULL;
        }
        work(p);
    }
}

static void raise_signal(struct dt_pool *p)
{
    atomic_fetch_add(&p->signal, 1);
    if (atomic_load(&p->asleep) > 0) {
        syscall(SYS_futex, &p->signal, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    }
}

int dt_pool_open(struct dt_pool **out, int thread_count, struct dt_error *err)
{
    if (thread_count < 2) {
        *out = NULL;
        return 0;
    }
    struct dt_pool *p = calloc(1, sizeof *p + (size_t)thread_count * sizeof p->threads[0]);
    if (p == NULL) {
        return dt_fail_errno(err, "pool of %d threads", thread_count);
    }
    pthread_mutex_init(&p->in_use, NULL);
    for (p->thread_count = 1; p->thread_count < thread_count; p->thread_count++) {
        int rc = pthread_create(&p->threads[p->thread_count], NULL, thread_main, p);
        if (rc != 0) {
            dt_fail(err, DT_IO, "pool: cannot start thread %d of %d", p->thread_count, thread_count);
            dt_pool_close(p);
            return -1;
        }
    }
    *out = p;
    return 0;
}

void dt_pool_close(struct dt_pool *p)
{
    if (p == NULL) {
        return;
    }
    atomic_store(&p->closing, true);
    raise_signal(p);
    for (int i = 1; i < p->thread_count; i++) {
        pthread_join(p->threads[i], NULL);
    }
    pthread_mutex_destroy(&p->in_use);
    free(p);
}

int dt_pool_size(const struct dt_pool *p)
{
    return p != NULL ? p->thread_count : 1;
}

/* Waits for parts that other threads have taken. They are running, so this is short unless a thread
 * lost its core. */
static void wait_for_parts(struct dt_pool *p, int64_t part_count)
{
    double sleep_from = dt_now_s() + SPIN_S;
    while (atomic_load_explicit(&p->done_count, memory_order_acquire) < part_count) {
        for (int i = 0; i < 32; i++) {
            pause_cpu();
        }
        if (dt_now_s() > sleep_from) {
            sched_yield();
        }
    }
}

void dt_pool_run(struct dt_pool *p, int64_t part_count, dt_pool_fn *fn, void *context)
{
    if (p == NULL || part_count < 2 || part_count >= UINT32_MAX || pthread_mutex_trylock(&p->in_use) != 0) {
        for (int64_t part = 0; part < part_count; part++) {
            fn(context, part);
        }
        return;
    }
    uint64_t region = (atomic_load(&p->word) >> 32) + 1;
    /* Close the old region first: its next part becomes larger than any count. Then change the
     * fields and open the new region. */
    atomic_store(&p->word, (region << 32) | UINT32_MAX);
    atomic_store(&p->fn, fn);
    atomic_store(&p->context, context);
    atomic_store(&p->part_count, part_count);
    atomic_store(&p->done_count, 0);
    atomic_store_explicit(&p->word, (region + 1) << 32, memory_order_release);
    raise_signal(p);
    work(p);
    wait_for_parts(p, part_count);
    pthread_mutex_unlock(&p->in_use);
}
