/* Host memory that lives as long as its owner: many small allocations, freed together. Not
 * thread-safe. */
#ifndef DT_BASE_ARENA_H
#define DT_BASE_ARENA_H

#include <stddef.h>

struct dt_arena {
    struct dt_arena_chunk *chunks;
};

/* Zeroed memory, aligned to 16 bytes. Aborts if memory runs out. */
void *dt_arena_alloc(struct dt_arena *a, size_t size_bytes);
char *dt_arena_strdup(struct dt_arena *a, const char *s);
char *dt_arena_printf(struct dt_arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void dt_arena_init(struct dt_arena *a);
void dt_arena_clear(struct dt_arena *a);

#endif
