/* Hooks of the sanitizers; nothing in plain builds. */
#ifndef DT_TESTS_SOFTGPU_SANITIZE_H
#define DT_TESTS_SOFTGPU_SANITIZE_H

#include <stddef.h>

#ifndef __has_feature
#define __has_feature(x) 0
#endif

/* The thread sanitizer watches the kernels. Executor and runtime are compiled without it, so that
 * they order nothing by accident; so its functions are declared here. SOFTGPU_TSAN comes from the
 * Makefile. */
#ifdef SOFTGPU_TSAN
extern "C" {
void *__tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void *fiber);
void __tsan_switch_to_fiber(void *fiber, unsigned flags);
void *__tsan_get_current_fiber(void);
void __tsan_acquire(void *p);
void __tsan_release(void *p);
void __tsan_read_range(void *p, unsigned long size_bytes);
void __tsan_write_range(void *p, unsigned long size_bytes);
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreReadsEnd(const char *file, int line);
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);
}
#define tsan_acquire(p) __tsan_acquire(p)
#define tsan_release(p) __tsan_release(p)
/* Reads and writes of tensors by code that is not instrumented. */
#define tsan_reads(p, n) __tsan_read_range((void *)(p), n)
#define tsan_writes(p, n) __tsan_write_range((void *)(p), n)
static inline void tsan_ignore_begin(void)
{
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
}
static inline void tsan_ignore_end(void)
{
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
}
#else
#define tsan_acquire(p) ((void)(p))
#define tsan_release(p) ((void)(p))
#define tsan_reads(p, n) ((void)(p), (void)(n))
#define tsan_writes(p, n) ((void)(p), (void)(n))
#define tsan_ignore_begin() ((void)0)
#define tsan_ignore_end() ((void)0)
#endif

#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#define SOFTGPU_ASAN 1
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define asan_poison(p, n) __asan_poison_memory_region(p, n)
#define asan_unpoison(p, n) __asan_unpoison_memory_region(p, n)
#else
#define asan_poison(p, n) ((void)(p), (void)(n))
#define asan_unpoison(p, n) ((void)(p), (void)(n))
#endif

#if __has_feature(memory_sanitizer)
#define SOFTGPU_MSAN 1
#include <sanitizer/msan_interface.h>
#define msan_poison(p, n) __msan_poison(p, n)
#define msan_unpoison(p, n) __msan_unpoison(p, n)
#define msan_check(p, n) __msan_check_mem_is_initialized(p, n)
#else
#define msan_poison(p, n) ((void)(p), (void)(n))
#define msan_unpoison(p, n) ((void)(p), (void)(n))
#define msan_check(p, n) ((void)(p), (void)(n))
#endif

#endif
