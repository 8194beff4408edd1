/* The writer of safetensors files: writes the header, then the data as it comes, into PATH.tmp-PID.
 * PATH appears only when the file is complete and on disk. */
#include "worker/data/safetensors.h"

#include "base/file.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct st_writer {
    char *path, *temporary;
    int fd;
    bool given;             /* the file is the caller's; both names are its own */
    int64_t written, total; /* bytes of data, without the header */
};

/* Writes the JSON header. *total: bytes of data. */
static int put_header(struct dt_text *out, const char *path, const struct st_entry *entries, int count,
                      const char *const *metadata, int64_t *total, struct dt_error *err)
{
    static const char *const plain[] = {"format", "pt", NULL};
    dt_text_puts(out, "{\"__metadata__\":{");
    const char *const *pair = metadata != NULL ? metadata : plain;
    for (int i = 0; pair[i] != NULL; i += 2) {
        dt_text_puts(out, i > 0 ? "," : "");
        dt_text_json(out, pair[i], strlen(pair[i]));
        dt_text_puts(out, ":");
        dt_text_json(out, pair[i + 1], strlen(pair[i + 1]));
    }
    dt_text_puts(out, "}");
    int64_t at = 0;
    for (int i = 0; i < count; i++) {
        const struct st_entry *e = &entries[i];
        int64_t bytes = (int64_t)dt_dtype_size(e->type), end;
        if (e->dims < 0 || e->dims > ST_DIMS_MAX) {
            return dt_fail(err, DT_INTERNAL, "%s: tensor %s: %d dimensions", path, e->name, e->dims);
        }
        dt_text_puts(out, ",");
        dt_text_json(out, e->name, strlen(e->name));
        dt_text_printf(out, ":{\"dtype\":\"%s\",\"shape\":[", dt_dtype_name(e->type));
        for (int d = 0; d < e->dims; d++) {
            if (e->shape[d] < 0 || __builtin_mul_overflow(bytes, e->shape[d], &bytes)) {
                return dt_fail(err, DT_INTERNAL, "%s: tensor %s: shape out of range", path, e->name);
            }
            dt_text_printf(out, "%s%lld", d > 0 ? "," : "", (long long)e->shape[d]);
        }
        if (__builtin_add_overflow(at, bytes, &end)) {
            return dt_fail(err, DT_INTERNAL, "%s: too large", path);
        }
        dt_text_printf(out, "],\"data_offsets\":[%lld,%lld]}", (long long)at, (long long)end);
        at = end;
    }
    dt_text_puts(out, "}");
    while (out->size % 8 != 0) {
        dt_text_puts(out, " ");
    }
    *total = at;
    return out->size <= ST_HEADER_MAX
               ? 0
               : dt_fail(err, DT_INVALID, "%s: header of %zu bytes is above the format's limit", path, out->size);
}

int st_writer_open_fd(struct st_writer **out, int fd, const char *path, const struct st_entry *entries, int count,
                      const char *const *metadata, struct dt_error *err)
{
    struct st_writer *w = dt_alloc(sizeof *w);
    w->given = fd >= 0;
    w->path = dt_strdup(path);
    w->temporary = w->given ? dt_strdup(path) : dt_format("%s.tmp-%ld", path, (long)getpid());
    w->fd = fd;
    struct dt_text text;
    dt_text_init(&text);
    int rc = put_header(&text, path, entries, count, metadata, &w->total, err);
    if (rc == 0 && !w->given) {
        w->fd = dt_file_create(w->temporary, err);
        rc = w->fd < 0 ? -1 : 0;
    }
    if (rc == 0) {
        unsigned char length[8];
        for (int i = 0; i < 8; i++) {
            length[i] = (unsigned char)(text.size >> (8 * i));
        }
        rc = dt_file_write_all(w->fd, length, sizeof length, w->temporary, err);
    }
    if (rc == 0) {
        rc = dt_file_write_all(w->fd, text.data, text.size, w->temporary, err);
    }
    dt_text_clear(&text);
    if (rc != 0) {
        st_writer_abort(w);
        return -1;
    }
    *out = w;
    return 0;
}

int st_writer_open(struct st_writer **out, const char *path, const struct st_entry *entries, int count,
                   const char *const *metadata, struct dt_error *err)
{
    return st_writer_open_fd(out, -1, path, entries, count, metadata, err);
}

int st_writer_data(struct st_writer *w, const void *bytes, size_t size, struct dt_error *err)
{
    if ((int64_t)size > w->total - w->written) {
        return dt_fail(err, DT_INTERNAL, "%s: more data than the tensors take", w->path);
    }
    if (size > 0 && dt_file_write_all(w->fd, bytes, size, w->temporary, err) != 0) {
        return -1;
    }
    w->written += (int64_t)size;
    return 0;
}

/* Folder of a path; the caller frees. */
static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL   ? dt_strdup(".")
           : slash == path ? dt_strdup("/")
                           : dt_format("%.*s", (int)(slash - path), path);
}

/* Makes the file complete under its name, and both durable. */
static int put_in_place(struct st_writer *w, struct dt_error *err)
{
    int rc = fsync(w->fd) == 0 ? 0 : dt_fail_errno(err, "%s: fsync", w->temporary);
    if (rc == 0) {
        int fd = w->fd;
        w->fd = -1;
        rc = close(fd) != 0 ? dt_fail_errno(err, "%s: close", w->temporary) : 0;
    }
    if (rc == 0 && rename(w->temporary, w->path) != 0) {
        rc = dt_fail_errno(err, "%s: rename to %s", w->temporary, w->path);
    }
    if (rc == 0) {
        char *folder = folder_of(w->path);
        rc = dt_file_sync_dir(folder, err);
        free(folder);
    }
    return rc;
}

int st_writer_close(struct st_writer *w, struct dt_error *err)
{
    int rc = 0;
    if (w->written != w->total) {
        rc = dt_fail(err, DT_INTERNAL, "%s: %lld of %lld bytes of data written", w->path, (long long)w->written,
                     (long long)w->total);
    } else if (!w->given) {
        rc = put_in_place(w, err);
    }
    st_writer_abort(w); /* after the rename there is nothing to remove */
    return rc;
}

void st_writer_abort(struct st_writer *w)
{
    if (w == NULL) {
        return;
    }
    if (w->fd >= 0 && !w->given) {
        (void)close(w->fd);
    }
    if (!w->given) {
        (void)unlink(w->temporary);
    }
    free(w->temporary);
    free(w->path);
    free(w);
}
