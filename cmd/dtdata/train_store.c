/* See the header. */
#include "cmd/dtdata/train_store.h"

#include "base/file.h"
#include "base/proc.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    ARRAYS_MAX = 64,
    COPY_BYTES = 1 << 20,
    FAR_CALLS = 64, /* of store_breathe, of which one looks while the limit is far */
};
#define LEAST_BYTES ((int64_t)2 << 20)

struct array {
    void *at; /* null: a free row */
    size_t size;
    int fd; /* -1: plain memory */
};

struct store {
    char *dir;
    int64_t limit;
    bool in_files;
    int64_t base, mapped; /* resident before there were arrays; bytes of all arrays */
    int64_t looks;        /* at the resident memory */
    int unlooked;         /* calls of store_breathe since the last look */
    struct array arrays[ARRAYS_MAX];
};

int64_t store_resident(void)
{
    struct dt_proc_look look;
    return dt_proc_look(getpid(), &look) ? (int64_t)look.resident_bytes : 0;
}

struct store *store_open(const char *dir, int64_t limit_bytes)
{
    struct store *s = dt_alloc(sizeof *s);
    int64_t room = limit_bytes / 8; /* for what comes in between two calls of store_breathe */
    s->dir = dt_strdup(dir);
    s->base = store_resident();
    s->limit = limit_bytes - (room < 6 * LEAST_BYTES   ? 6 * LEAST_BYTES
                              : room > 8 * LEAST_BYTES ? 8 * LEAST_BYTES
                                                       : room);
    for (int i = 0; i < ARRAYS_MAX; i++) {
        s->arrays[i].fd = -1;
    }
    return s;
}

/* A file without a name that has its blocks: a full disk is found here, not at a later access. */
static int open_file(const struct store *s, size_t size, struct dt_error *err)
{
    char *path = dt_format("%s/array-XXXXXX", s->dir);
    int fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0) {
        (void)dt_fail_errno(err, "%s", path);
    } else {
        (void)unlink(path);
        errno = posix_fallocate(fd, 0, (off_t)size);
        if (errno != 0) {
            (void)dt_fail_errno(err, "%s: %zu bytes for what does not fit into --memory", s->dir, size);
            (void)close(fd);
            fd = -1;
        }
    }
    free(path);
    return fd;
}

static struct array *row_of(struct store *s, const void *at)
{
    int i = 0;
    while (i < ARRAYS_MAX && s->arrays[i].at != at) {
        i++;
    }
    return i < ARRAYS_MAX ? &s->arrays[i] : NULL;
}

int store_alloc(struct store *s, void **out, size_t size_bytes, struct dt_error *err)
{
    struct array *a = row_of(s, NULL);
    if (a == NULL) {
        return dt_fail(err, DT_INTERNAL, "more than %d arrays", ARRAYS_MAX);
    }
    size_t size = size_bytes > 0 ? size_bytes : 1;
    int fd = s->in_files ? open_file(s, size, err) : -1;
    if (s->in_files && fd < 0) {
        return -1;
    }
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE,
                    s->in_files ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, fd, 0);
    if (at == MAP_FAILED) {
        (void)dt_fail_errno(err, "%zu bytes of memory", size);
        if (fd >= 0) {
            (void)close(fd);
        }
        return -1;
    }
    *a = (struct array){at, size, fd};
    s->mapped += (int64_t)size;
    *out = at;
    return 0;
}

int store_grow(struct store *s, void **at, size_t size_bytes, struct dt_error *err)
{
    if (*at == NULL) {
        return store_alloc(s, at, size_bytes, err);
    }
    struct array *a = row_of(s, *at);
    if (a->fd >= 0 && (errno = posix_fallocate(a->fd, 0, (off_t)size_bytes)) != 0) {
        return dt_fail_errno(err, "%s: %zu bytes for what does not fit into --memory", s->dir, size_bytes);
    }
    void *moved = mremap(a->at, a->size, size_bytes, MREMAP_MAYMOVE);
    if (moved == MAP_FAILED) {
        return dt_fail_errno(err, "%zu bytes of memory", size_bytes);
    }
    a->at = *at = moved;
    s->mapped += (int64_t)size_bytes - (int64_t)a->size;
    a->size = size_bytes;
    return 0;
}

void store_free(struct store *s, void *at)
{
    struct array *a = at != NULL ? row_of(s, at) : NULL;
    if (a != NULL) {
        (void)munmap(a->at, a->size);
        s->mapped -= (int64_t)a->size;
        if (a->fd >= 0) {
            (void)close(a->fd);
        }
        *a = (struct array){.fd = -1};
    }
}

/* Copies an array into a file, and maps the file in its place. */
static int move_to_file(struct store *s, struct array *a, struct dt_error *err)
{
    int fd = open_file(s, a->size, err);
    if (fd < 0) {
        return -1;
    }
    int result = 0;
    for (size_t at = 0; result == 0 && at < a->size; at += COPY_BYTES) {
        size_t n = a->size - at < COPY_BYTES ? a->size - at : COPY_BYTES;
        result = dt_file_pwrite_all(fd, (char *)a->at + at, n, (int64_t)at, s->dir, err);
    }
    if (result == 0 && mmap(a->at, a->size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
        result = dt_fail_errno(err, "%s: mapping %zu bytes", s->dir, a->size);
    }
    if (result != 0) {
        (void)close(fd);
        return -1;
    }
    a->fd = fd;
    return 0;
}

/* Even with all pages of the arrays, a quarter of the limit is left for whatever else the process has grown by. */
static bool is_far(const struct store *s)
{
    return !s->in_files && s->base + s->mapped <= s->limit - s->limit / 4;
}

int store_breathe(struct store *s, struct dt_error *err)
{
    if (is_far(s) && ++s->unlooked < FAR_CALLS) {
        return 0; /* a look is three calls of the system */
    }
    s->unlooked = 0;
    s->looks++;
    if (store_resident() <= s->limit) {
        return 0;
    }
    for (int i = 0; i < ARRAYS_MAX; i++) {
        struct array *a = &s->arrays[i];
        if (a->at != NULL && a->fd < 0 && move_to_file(s, a, err) != 0) {
            return -1;
        }
        if (a->at != NULL) {
            (void)madvise(a->at, a->size, MADV_DONTNEED); /* the file keeps what they hold */
        }
    }
    s->in_files = true;
    int64_t least = store_resident() + LEAST_BYTES; /* else each access would bring a page anew */
    s->limit = s->limit > least ? s->limit : least;
    return 0;
}

bool store_in_files(const struct store *s)
{
    return s->in_files;
}

int64_t store_looks(const struct store *s)
{
    return s->looks;
}

void store_close(struct store *s)
{
    if (s != NULL) {
        for (int i = 0; i < ARRAYS_MAX; i++) {
            store_free(s, s->arrays[i].at);
        }
        free(s->dir);
        free(s);
    }
}
