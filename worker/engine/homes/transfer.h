/* Reads and writes of ranges of a striped file, a block at a time and several at once: by io_uring
 * where this build and the kernel have it, otherwise by threads with pread and pwrite. Whole pages go
 * past the page cache where the file system can do that; what is not a whole page goes through it. */
#ifndef DT_WORKER_ENGINE_HOMES_TRANSFER_H
#define DT_WORKER_ENGINE_HOMES_TRANSFER_H

#include "base/error.h"
#include "worker/job/job.h"

#include <stdbool.h>
#include <stddef.h>

enum { TRANSFER_PAGE_BYTES = 4096, TRANSFER_FILES_MOST = 8 };

/* An array of bytes: stripe number i is stripe number i / count of file i % count. */
struct striped {
    const char *what;    /* the array, for messages; borrowed */
    size_t stripe_bytes; /* a multiple of TRANSFER_PAGE_BYTES */
    int count;
    struct striped_file {
        const char *path;  /* its folder, for messages; borrowed */
        int direct, plain; /* two descriptors of one file; -1: none. direct is past the page cache, or as plain */
    } file[TRANSFER_FILES_MOST];
};

/* Creates the files, one in each folder of offload.nvme_path, with room for size_bytes together, all
 * zeros. They have no names, so nothing is left of them however the process ends. DT_FULL: there is
 * no room; DT_INVALID: the folder cannot be used. Close follows in either case. */
int striped_open(struct striped *f, const struct job_offload *settings, const char *what, size_t stripe_bytes,
                 size_t size_bytes, struct dt_error *err);
/* Harmless on a struct whose count is 0, and twice. */
void striped_close(struct striped *f);
/* Bytes of the file in folder number i of an array. */
size_t striped_share(const struct job_offload *settings, int i, size_t stripe_bytes, size_t size_bytes);

/* What moves the blocks; one thread uses it at a time. */
struct transfer;
int transfer_open(struct transfer **out, const struct job_offload *settings, struct dt_error *err);
/* Null is allowed. */
void transfer_close(struct transfer *t);
/* Moves bytes [at, at + size_bytes) of the array to `memory`, or from there. memory % TRANSFER_PAGE_BYTES
 * should be at % TRANSFER_PAGE_BYTES: otherwise all of it goes through the page cache. Waits. The error names
 * the folder. */
int transfer_run(struct transfer *t, const struct striped *f, bool write, void *memory, size_t at, size_t size_bytes,
                 struct dt_error *err);
/* "io_uring" or "threads". */
const char *transfer_name(const struct transfer *t);

#endif
