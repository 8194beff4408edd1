/* A lock and waits by system calls. Those of pthread would order everything for the thread
 * sanitizer, and would hide missing event waits. */
#ifndef DT_TESTS_SOFTGPU_LOCK_H
#define DT_TESTS_SOFTGPU_LOCK_H

#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Waits until *word is not `value`, or some time has passed. Words may lie in memory shared by
 * several processes. */
static inline void softgpu_word_wait(const uint32_t *word, uint32_t value)
{
    struct timespec limit = {0, 50000000};
    syscall(SYS_futex, word, FUTEX_WAIT, value, &limit, nullptr, 0);
}
static inline void softgpu_word_wake(const uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, 0x7fffffff, nullptr, nullptr, 0);
}

struct softgpu_lock {
    uint32_t word;
};
static inline void softgpu_lock(struct softgpu_lock *l)
{
    while (__atomic_exchange_n(&l->word, 1, __ATOMIC_ACQUIRE) != 0) {
        softgpu_word_wait(&l->word, 1);
    }
}
static inline void softgpu_unlock(struct softgpu_lock *l)
{
    __atomic_store_n(&l->word, 0, __ATOMIC_RELEASE);
    softgpu_word_wake(&l->word);
}

#endif
