/* safetensors files: a strict reader over a read-only mapping, and a writer that streams. A file is
 * 8 bytes header length n (little-endian, at most 100,000,000), n bytes of JSON {name: {"dtype",
 * "shape", "data_offsets"}}, then the data. The reader accepts a file only if the tensors, in
 * offset order, cover the data without holes or overlap, names are unique, and every size is that
 * of its shape. It does not look at values. */
#ifndef DT_WORKER_DATA_SAFETENSORS_H
#define DT_WORKER_DATA_SAFETENSORS_H

#include "base/dtype.h"
#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

enum { ST_DIMS_MAX = 8, ST_HEADER_MAX = 100000000 };

struct st_tensor {
    const char *name;
    char dtype[12];     /* spelled as in the file: "F32", "BOOL", "F8_E4M3" */
    enum dt_dtype type; /* DT_DTYPE_COUNT: a type that we cannot read */
    int dims;           /* 0: a single value */
    int64_t shape[ST_DIMS_MAX], numel;
    const void *data; /* in the mapping, perhaps unaligned; valid until st_close */
    size_t size_bytes;
};

struct st_file;
/* Opens and checks a file. Every problem is DT_INVALID (DT_NOT_FOUND or DT_IO for the file itself)
 * with the path. */
int st_open(struct st_file **out, const char *path, struct dt_error *err);
/* The same over bytes in memory, which must live until st_close; `path` is for messages. */
int st_open_memory(struct st_file **out, const void *bytes, size_t size, const char *path, struct dt_error *err);
/* Null is allowed. */
void st_close(struct st_file *f);
const char *st_path(const struct st_file *f);
int st_count(const struct st_file *f);
/* Tensor i in the order of the header. */
const struct st_tensor *st_at(const struct st_file *f, int i);
/* The tensor of that name; null: there is none. */
const struct st_tensor *st_find(const struct st_file *f, const char *name);
/* A value of __metadata__, or null. */
const char *st_metadata(const struct st_file *f, const char *key);
/* Reads elements [first, first + count) as float or double, from F32, F64, BF16 or F16. DT_INVALID
 * for another type or range. */
int st_read_f32(const struct st_file *f, const struct st_tensor *t, int64_t first, int64_t count, float *out,
                struct dt_error *err);
int st_read_f64(const struct st_file *f, const struct st_tensor *t, int64_t first, int64_t count, double *out,
                struct dt_error *err);

/* Tensors of the file will be read from begin to end: the kernel reads ahead, as it does for read(2). */
void st_in_order(const struct st_file *f);
/* So many bytes at `data`, a place in a tensor of the file, are not needed again soon: their pages no
 * longer count as memory of this process. They may be read again. */
void st_leave(const struct st_file *f, const void *data, size_t size_bytes);

/* A tensor to be written. Names are unique. st_writer_open copies strings and shapes. */
struct st_entry {
    const char *name;
    enum dt_dtype type;
    int dims;
    const int64_t *shape;
};

struct st_writer;
/* Begins PATH.tmp-PID with the header of `count` tensors; their data follows in this order.
 * `metadata`: key, value, key, value, ..., null; null means {"format": "pt"} alone. */
int st_writer_open(struct st_writer **out, const char *path, const struct st_entry *entries, int count,
                   const char *const *metadata, struct dt_error *err);
/* The same into an open file, from where it stands: nothing is synced, renamed or removed. The descriptor
 * stays the caller's. `name` is for messages. */
int st_writer_open_fd(struct st_writer **out, int fd, const char *name, const struct st_entry *entries, int count,
                      const char *const *metadata, struct dt_error *err);
/* Writes the next bytes of the data, in pieces of any size, all tensors one after the other. */
int st_writer_data(struct st_writer *w, const void *bytes, size_t size, struct dt_error *err);
/* Ends the file: checks that all data was written, syncs, renames to PATH, and syncs the folder.
 * Always frees w. After an error nothing is left. */
int st_writer_close(struct st_writer *w, struct dt_error *err);
/* Gives up: removes what was written, and frees w. Null is allowed. */
void st_writer_abort(struct st_writer *w);

#endif
