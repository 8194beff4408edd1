/* Files of an array, and the two ways to move blocks. A block ends where a stripe or a multiple of
 * offload.block_size does, so requests of one range never touch the same page of a file. */
#include "worker/engine/homes/transfer.h"

#include "base/file.h"
#include "base/text.h"
#include "kernels/cpu/pool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef DT_URING
#include <liburing.h>
#endif

enum { BATCH = 64, THREADS_MOST = 16 };

struct request {
    const struct striped_file *file;
    bool direct, write;
    char *memory;
    size_t size_bytes;
    int64_t offset;
    int error; /* errno of the failure; -1: the file ends before */
};

struct transfer {
    size_t block_bytes;
    int depth; /* requests at a time */
    bool single, overlap, ring_open;
    struct dt_pool *pool;
    struct request batch[BATCH];
#ifdef DT_URING
    struct io_uring ring;
#endif
};

/* ---- files ---- */

/* A file without a name. A file system without O_TMPFILE gets one with a name that is removed at once. */
static int open_nameless(const char *folder, int flags, struct dt_error *err)
{
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) {
        return fd;
    }
    char *name = dt_format("%s/.dtrun-offload-XXXXXX", folder);
    fd = mkostemp(name, O_CLOEXEC | flags);
    if (fd >= 0 && unlink(name) != 0) {
        (void)dt_fail_errno(err, "%s", name);
    }
    free(name);
    return fd;
}

static int open_file(struct striped_file *f, const char *what, size_t size_bytes, struct dt_error *err)
{
    char link[64], wanted[32], free_text[32];
    f->direct = open_nameless(f->path, O_DIRECT, err);
    if (f->direct < 0 && errno == EINVAL) { /* the file system has no O_DIRECT */
        f->direct = open_nameless(f->path, 0, err);
    }
    if (f->direct < 0) {
        (void)dt_fail_errno(err, "offload.nvme_path: %s", f->path);
        bool full = err != NULL && err->status == DT_FULL;
        if (err != NULL && !full) { /* a retry fails the same way */
            err->status = DT_INVALID;
        }
        return -1;
    }
    /* another description of the same file, so that both have flags of their own */
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", f->direct);
    f->plain = open(link, O_RDWR | O_CLOEXEC);
    if (f->plain < 0) {
        return dt_fail_errno(err, "offload.nvme_path: %s: %s", f->path, link);
    }
    int rc = size_bytes > 0 ? posix_fallocate(f->plain, 0, (off_t)size_bytes) : 0;
    if (rc != 0) {
        errno = rc;
        double left = dt_file_free_bytes(f->path);
        (void)dt_fail_errno(err, "offload.nvme_path: %s: no room for %s of the %s (%s are free)", f->path,
                            dt_text_bytes((double)size_bytes, wanted, sizeof wanted), what,
                            dt_text_bytes(left > 0 ? left : 0, free_text, sizeof free_text));
        return -1;
    }
    return 0;
}

size_t striped_share(const struct job_offload *settings, int i, size_t stripe_bytes, size_t size_bytes)
{
    size_t files = (size_t)settings->nvme_path.count, stripes = (size_bytes + stripe_bytes - 1) / stripe_bytes;
    size_t own = (stripes + files - 1 - (size_t)i) / files;
    size_t cut = stripes > 0 && (stripes - 1) % files == (size_t)i ? stripes * stripe_bytes - size_bytes : 0;
    return (own * stripe_bytes - cut + TRANSFER_PAGE_BYTES - 1) / TRANSFER_PAGE_BYTES * TRANSFER_PAGE_BYTES;
}

int striped_open(struct striped *f, const struct job_offload *settings, const char *what, size_t stripe_bytes,
                 size_t size_bytes, struct dt_error *err)
{
    *f = (struct striped){.what = what, .stripe_bytes = stripe_bytes};
    for (int i = 0; i < settings->nvme_path.count; i++) {
        f->file[f->count++] = (struct striped_file){.path = settings->nvme_path.of[i], .direct = -1, .plain = -1};
        if (open_file(&f->file[i], what, striped_share(settings, i, stripe_bytes, size_bytes), err) != 0) {
            return -1;
        }
    }
    return 0;
}

void striped_close(struct striped *f)
{
    for (int i = 0; i < f->count; i++) {
        if (f->file[i].direct >= 0) {
            (void)close(f->file[i].direct);
        }
        if (f->file[i].plain >= 0) {
            (void)close(f->file[i].plain);
        }
    }
    f->count = 0;
}

/* ---- one block ---- */

static int descriptor(const struct request *b)
{
    return b->direct ? b->file->direct : b->file->plain;
}

/* Moves what is left of a block. */
static void move_block(struct request *b)
{
    while (b->size_bytes > 0) {
        ssize_t n = b->write ? pwrite(descriptor(b), b->memory, b->size_bytes, b->offset)
                             : pread(descriptor(b), b->memory, b->size_bytes, b->offset);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0 && errno == EINVAL && b->direct) { /* an alignment that the disk wants and nobody told us */
            b->direct = false;
            continue;
        }
        if (n <= 0) {
            b->error = n < 0 ? errno : -1;
            return;
        }
        b->memory += n;
        b->offset += n;
        b->size_bytes -= (size_t)n;
        b->direct = b->direct && n % TRANSFER_PAGE_BYTES == 0;
    }
}

/* Cuts the next block off a range. */
static struct request next_block(const struct transfer *t, const struct striped *f, bool write, char **memory,
                                 size_t *at, size_t end)
{
    size_t stripe = *at / f->stripe_bytes, to = (stripe + 1) * f->stripe_bytes,
           edge = (*at / t->block_bytes + 1) * t->block_bytes, page = *at % TRANSFER_PAGE_BYTES;
    to = edge < to ? edge : to;
    to = end < to ? end : to;
    bool same = (uintptr_t)*memory % TRANSFER_PAGE_BYTES == page, direct = same && page == 0;
    if (same && page != 0) { /* up to the next page */
        size_t next = *at - page + TRANSFER_PAGE_BYTES;
        to = next < to ? next : to;
    } else if (direct && to - *at >= TRANSFER_PAGE_BYTES) {
        to -= to % TRANSFER_PAGE_BYTES;
    } else {
        direct = false;
    }
    struct request b = {.file = &f->file[stripe % (size_t)f->count],
                        .direct = direct,
                        .write = write,
                        .memory = *memory,
                        .size_bytes = to - *at,
                        .offset = (int64_t)(stripe / (size_t)f->count * f->stripe_bytes + *at % f->stripe_bytes)};
    *memory += b.size_bytes;
    *at = to;
    return b;
}

static int say(const struct striped *f, const struct request *b, struct dt_error *err)
{
    if (b->error < 0) {
        return dt_fail(err, DT_IO, "offload: %s: the file of the %s has become shorter", b->file->path, f->what);
    }
    errno = b->error;
    return dt_fail_errno(err, "offload: %s: the %s cannot be %s", b->file->path, f->what,
                         b->write ? "written" : "read");
}

/* ---- threads ---- */

static void move_part(void *context, int64_t part)
{
    struct transfer *t = context;
    move_block(&t->batch[part]);
}

static int run_threads(struct transfer *t, const struct striped *f, bool write, char *memory, size_t at, size_t end,
                       struct dt_error *err)
{
    while (at < end) {
        int count = 0;
        while (count < BATCH && at < end) {
            t->batch[count++] = next_block(t, f, write, &memory, &at, end);
        }
        dt_pool_run(t->pool, count, move_part, t);
        for (int i = 0; i < count; i++) {
            if (t->batch[i].error != 0) {
                return say(f, &t->batch[i], err);
            }
        }
    }
    return 0;
}

/* ---- io_uring ---- */

#ifdef DT_URING
/* Waits for one request and frees its place: returns which, or -1 with errno in *error. */
static int finish_one(struct transfer *t, int *error)
{
    struct io_uring_cqe *cqe;
    int rc;
    do {
        rc = io_uring_wait_cqe(&t->ring, &cqe);
    } while (rc == -EINTR);
    if (rc < 0) {
        *error = -rc;
        return -1;
    }
    int i = (int)(intptr_t)io_uring_cqe_get_data(cqe), moved = cqe->res;
    io_uring_cqe_seen(&t->ring, cqe);
    struct request *b = &t->batch[i];
    if (moved > 0) {
        b->memory += moved;
        b->offset += moved;
        b->size_bytes -= (size_t)moved;
        b->direct = b->direct && moved % TRANSFER_PAGE_BYTES == 0;
    }
    if (b->size_bytes > 0) { /* short or refused: once more, and then the cause is known */
        move_block(b);
    }
    return i;
}

static void put_request(struct transfer *t, int i)
{
    struct request *b = &t->batch[i];
    struct io_uring_sqe *sqe = io_uring_get_sqe(&t->ring); /* there is room: at most `depth` are under way */
    if (b->write) {
        io_uring_prep_write(sqe, descriptor(b), b->memory, (unsigned)b->size_bytes, (uint64_t)b->offset);
    } else {
        io_uring_prep_read(sqe, descriptor(b), b->memory, (unsigned)b->size_bytes, (uint64_t)b->offset);
    }
    io_uring_sqe_set_data(sqe, (void *)(intptr_t)i);
    if (t->single) {
        (void)io_uring_submit(&t->ring);
    }
}

static int run_ring(struct transfer *t, const struct striped *f, bool write, char *memory, size_t at, size_t end,
                    struct dt_error *err)
{
    int idle[BATCH], idle_count = 0, error = 0, rc = 0;
    for (int i = t->depth - 1; i >= 0; i--) {
        idle[idle_count++] = i;
    }
    while ((at < end && rc == 0) || idle_count < t->depth) {
        while (at < end && rc == 0 && idle_count > 0) {
            int i = idle[--idle_count];
            t->batch[i] = next_block(t, f, write, &memory, &at, end);
            put_request(t, i);
        }
        (void)io_uring_submit(&t->ring);
        do { /* without overlap_events all requests of a batch end before the next one begins */
            int i = finish_one(t, &error);
            if (i < 0) {
                errno = error;
                return dt_fail_errno(err, "offload: %s: io_uring", f->file[0].path);
            }
            idle[idle_count++] = i;
            if (t->batch[i].error != 0 && rc == 0) {
                rc = say(f, &t->batch[i], err);
            }
        } while (!t->overlap && idle_count < t->depth);
    }
    return rc;
}
#endif

int transfer_open(struct transfer **out, const struct job_offload *settings, struct dt_error *err)
{
    struct transfer *t = dt_alloc(sizeof *t);
    int64_t depth = settings->queue_depth * settings->intra_op_parallelism;
    t->block_bytes = (size_t)settings->block_size;
    t->depth = depth < BATCH ? (int)depth : BATCH;
    t->single = settings->single_submit;
    t->overlap = settings->overlap_events;
    int rc = settings->engine == OFFLOAD_ENGINE_RING ? -ENOSYS : -1;
#ifdef DT_URING
    if (settings->engine != OFFLOAD_ENGINE_THREADS) {
        rc = io_uring_queue_init((unsigned)t->depth, &t->ring, 0);
        t->ring_open = rc == 0;
    }
#endif
    if (!t->ring_open && settings->engine == OFFLOAD_ENGINE_RING) {
        errno = -rc;
        (void)dt_fail_errno(err, "offload.engine: io_uring is not to be had here; write threads, or auto");
        if (err != NULL) {
            err->status = DT_INVALID;
        }
        transfer_close(t);
        return -1;
    }
    if (!t->ring_open && dt_pool_open(&t->pool, t->depth < THREADS_MOST ? t->depth : THREADS_MOST, err) != 0) {
        transfer_close(t);
        return -1;
    }
    *out = t;
    return 0;
}

void transfer_close(struct transfer *t)
{
    if (t == NULL) {
        return;
    }
#ifdef DT_URING
    if (t->ring_open) {
        io_uring_queue_exit(&t->ring);
    }
#endif
    dt_pool_close(t->pool);
    free(t);
}

int transfer_run(struct transfer *t, const struct striped *f, bool write, void *memory, size_t at, size_t size_bytes,
                 struct dt_error *err)
{
#ifdef DT_URING
    if (t->ring_open) {
        return run_ring(t, f, write, memory, at, at + size_bytes, err);
    }
#endif
    return run_threads(t, f, write, memory, at, at + size_bytes, err);
}

const char *transfer_name(const struct transfer *t)
{
    return t->ring_open ? "io_uring" : "threads";
}
