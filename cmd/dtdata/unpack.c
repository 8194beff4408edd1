/* Plain and gzip files through one door. zlib's own reader (gzread) would do, but it drops what
 * follows the packed data without a word. */
#include "cmd/dtdata/unpack.h"

#include "base/text.h"

#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

enum { INPUT_BYTES = 65536, GZIP_ONLY = 16 + MAX_WBITS };

struct unpack {
    char *path;
    int fd;
    bool looked, packed;
    bool inside; /* a member of a gzip file, one of those that follow each other */
    bool ended;
    z_stream stream; /* its input is the buffer also of a plain file */
    unsigned char input[INPUT_BYTES];
};

int unpack_open(struct unpack **out, const char *path, struct dt_error *err)
{
    int fd = strcmp(path, "-") == 0 ? fcntl(0, F_DUPFD_CLOEXEC, 3) : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return dt_fail_errno(err, "%s", path);
    }
    struct unpack *u = dt_alloc(sizeof *u);
    u->path = dt_strdup(path);
    u->fd = fd;
    u->stream.next_in = u->input;
    *out = u;
    return 0;
}

/* Reads on until `least` bytes of input are there, or the file ends. A signal ends it: somebody
 * may wait at a terminal. */
static int fill(struct unpack *u, unsigned least, struct dt_error *err)
{
    if (u->stream.avail_in >= least || u->ended) {
        return 0;
    }
    memmove(u->input, u->stream.next_in, u->stream.avail_in);
    u->stream.next_in = u->input;
    while (u->stream.avail_in < least && !u->ended) {
        ssize_t n = read(u->fd, u->input + u->stream.avail_in, INPUT_BYTES - u->stream.avail_in);
        if (n < 0) {
            return dt_fail_errno(err, "%s", u->path);
        }
        u->ended = n == 0;
        u->stream.avail_in += (unsigned)n;
    }
    return 0;
}

static bool begins_member(const struct unpack *u)
{
    return u->stream.avail_in >= 2 && u->stream.next_in[0] == 0x1f && u->stream.next_in[1] == 0x8b;
}

/* Between two members, or behind the last one: 1 when another one begins, 0 at the end. */
static int next_member(struct unpack *u, struct dt_error *err)
{
    for (;;) {
        if (fill(u, 2, err) != 0) {
            return -1;
        }
        if (begins_member(u)) {
            u->inside = true;
            return inflateReset(&u->stream) == Z_OK ? 1 : dt_fail(err, DT_INTERNAL, "%s: zlib cannot begin", u->path);
        }
        if (u->stream.avail_in == 0) {
            return 0;
        }
        if (u->stream.next_in[0] != 0) {
            return dt_fail(err, DT_INVALID,
                           "%s: what follows the packed data is no gzip, and would be lost; unpack it, or cut it off",
                           u->path);
        }
        u->stream.next_in++;
        u->stream.avail_in--;
    }
}

/* As unpack_read; `got` may stay 0 although more follows. */
static int inflate_some(struct unpack *u, unsigned char *out, size_t size, size_t *got, struct dt_error *err)
{
    if (fill(u, 1, err) != 0) {
        return -1;
    }
    u->stream.next_out = out;
    u->stream.avail_out = (unsigned)size;
    int code = inflate(&u->stream, Z_NO_FLUSH);
    *got = size - u->stream.avail_out;
    if (code == Z_STREAM_END) {
        u->inside = false;
    } else if (code == Z_BUF_ERROR && u->stream.avail_in == 0 && u->ended) {
        return dt_fail(err, DT_INVALID, "%s: damaged or cut short (unexpected end)", u->path);
    } else if (code == Z_MEM_ERROR) {
        return dt_fail(err, DT_NO_MEMORY, "%s: no memory to unpack it", u->path);
    } else if (code != Z_OK && code != Z_BUF_ERROR) {
        return dt_fail(err, DT_INVALID, "%s: damaged or cut short (%s)", u->path,
                       u->stream.msg != NULL ? u->stream.msg : "needs a dictionary");
    }
    return 0;
}

int unpack_read(struct unpack *u, unsigned char *out, size_t size, size_t *got, struct dt_error *err)
{
    *got = 0;
    if (!u->looked) {
        if (fill(u, 2, err) != 0) {
            return -1;
        }
        u->looked = true;
        u->packed = u->inside = begins_member(u);
        if (u->packed && inflateInit2(&u->stream, GZIP_ONLY) != Z_OK) {
            u->packed = false; /* nothing to end */
            return dt_fail(err, DT_NO_MEMORY, "%s: no memory to unpack it", u->path);
        }
    }
    while (u->packed && *got == 0) {
        int more = u->inside ? 1 : next_member(u, err);
        if (more <= 0) {
            return more;
        }
        if (inflate_some(u, out, size < UINT_MAX ? size : UINT_MAX, got, err) != 0) {
            return -1;
        }
    }
    if (!u->packed) {
        if (fill(u, 1, err) != 0) {
            return -1;
        }
        *got = u->stream.avail_in < size ? u->stream.avail_in : size;
        memcpy(out, u->stream.next_in, *got);
        u->stream.next_in += *got;
        u->stream.avail_in -= (unsigned)*got;
    }
    return 0;
}

void unpack_close(struct unpack *u)
{
    if (u->packed) {
        (void)inflateEnd(&u->stream);
    }
    (void)close(u->fd);
    free(u->path);
    free(u);
}
