/* A lock and waits by system calls. Those of pthread would order everything for the thread
 * sanitizer, and would hide missing event waits. */
#ifndef DT_TESTS_SOFTGPU_LOCK_H
#define DT_TESTS_SOFTGPU_LOCK_H

#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Waits until *word is not `value`, or limit_ns have passed. Words may lie in memory shared by
 * several processes. */
static inline void softgpu_word_wait_for(const uint32_t *word, uint32_t value, long limit_ns)
{
    struct timespec limit = {0, limit_ns};
    syscall(SYS_futex, word, FUTEX_WAIT, value, &limit, nullptr, 0);
}

static inline void softgpu_word_wait(const uint32_t *word, uint32_t value)
{
    softgpu_word_wait_for(word, value, 50000000);
}
static inline void softgpu_word_wake(const uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, 0x7fffffff, nullptr, nullptr, 0);
}

/* The same for a word whose waiting threads are counted: a wake makes no system call while
 * nobody waits, as is so for most of them. */
static inline void softgpu_counted_wait(const uint32_t *word, uint32_t value, uint32_t *waiting)
{
    (void)__atomic_add_fetch(waiting, 1, __ATOMIC_SEQ_CST);
    softgpu_word_wait(word, value);
    (void)__atomic_sub_fetch(waiting, 1, __ATOMIC_SEQ_CST);
}
/* After the word was changed. */
static inline void softgpu_counted_wake(const uint32_t *word, const uint32_t *waiting)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (__atomic_load_n(waiting, __ATOMIC_SEQ_CST) != 0) {
        softgpu_word_wake(word);
    }
}

/* For threads of one process. */
struct softgpu_lock {
    uint32_t word; /* 0: free; 1: held; 2: held, and somebody may wait for it */
};
static inline void softgpu_lock(struct softgpu_lock *l)
{
    uint32_t seen = 0;
    if (!__atomic_compare_exchange_n(&l->word, &seen, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
        while (__atomic_exchange_n(&l->word, 2, __ATOMIC_ACQUIRE) != 0) {
            softgpu_word_wait(&l->word, 2);
        }
    }
}
static inline void softgpu_unlock(struct softgpu_lock *l)
{
    if (__atomic_exchange_n(&l->word, 0, __ATOMIC_RELEASE) == 2) {
        softgpu_word_wake(&l->word);
    }
}

#endif
