#include "base/arena.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>

struct dt_arena_chunk {
    struct dt_arena_chunk *next;
    size_t used, size;
    _Alignas(16) char data[];
};

void dt_arena_init(struct dt_arena *a)
{
    a->chunks = NULL;
}

void *dt_arena_alloc(struct dt_arena *a, size_t size_bytes)
{
    enum { CHUNK = 16384 };
    size_t size = (size_bytes + 15) & ~(size_t)15;
    struct dt_arena_chunk *c = a->chunks;
    if (c == NULL || c->size - c->used < size) {
        size_t room = size > CHUNK ? size : CHUNK;
        c = dt_alloc(sizeof *c + room);
        c->size = room;
        c->next = a->chunks;
        a->chunks = c;
    }
    void *p = c->data + c->used;
    c->used += size;
    return p;
}

char *dt_arena_strdup(struct dt_arena *a, const char *s)
{
    size_t size = strlen(s) + 1;
    return memcpy(dt_arena_alloc(a, size), s, size);
}

char *dt_arena_printf(struct dt_arena *a, const char *fmt, ...)
{
    struct dt_text t;
    dt_text_init(&t);
    va_list args;
    va_start(args, fmt);
    dt_text_vprintf(&t, fmt, args);
    va_end(args);
    char *copy = dt_arena_strdup(a, dt_text_str(&t));
    dt_text_clear(&t);
    return copy;
}

void dt_arena_clear(struct dt_arena *a)
{
    for (struct dt_arena_chunk *c = a->chunks, *next; c != NULL; c = next) {
        next = c->next;
        free(c);
    }
    a->chunks = NULL;
}
