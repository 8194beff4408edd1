/* Shared memory of the block that runs on this OS thread. */
#ifndef DT_TESTS_SOFTGPU_SHARED_H
#define DT_TESTS_SOFTGPU_SHARED_H

#include <stddef.h>

#define SHARED_STATIC_MAX ((size_t)48 << 10)
#define SHARED_MAX ((size_t)227 << 10) /* limit of a block's shared memory in all */

void shared_open(void);
void shared_close(void);
bool shared_begin(size_t dynamic_bytes); /* begins a block; true: the arena was newly mapped */
void shared_end(void);                   /* checks that no thread wrote between the arrays */

#endif
