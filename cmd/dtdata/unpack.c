/* Plain, gzip and zstd files through one door. zlib's own reader (gzread) would do, but it drops what
 * follows the packed data without a word. */
#include "cmd/dtdata/unpack.h"

#include "base/text.h"
#include "cmd/dtdata/stop.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

enum { INPUT_BYTES = 1 << 18, GZIP_ONLY = 16 + MAX_WBITS, STOP_MS = 100 };

enum packing { PLAIN, GZIP, ZSTD };

struct unpack {
    char *path;
    int fd;
    bool may_wait; /* a pipe or terminal: reading may take for ever */
    bool looked;
    enum packing packing;
    bool inside; /* a gzip member or zstd frame, one of those that follow each other */
    bool ended;
    z_stream stream; /* its input is the buffer also of other files */
    ZSTD_DCtx *zstd;
    unsigned char input[INPUT_BYTES];
};

size_t unpack_end(const char *path)
{
    static const char *const ends[] = {".gz", ".zst"};
    for (size_t i = 0, size = strlen(path); i < 2; i++) {
        size_t n = strlen(ends[i]);
        if (size >= n && strcasecmp(path + size - n, ends[i]) == 0) {
            return n;
        }
    }
    return 0;
}

int unpack_open(struct unpack **out, const char *path, struct dt_error *err)
{
    int fd = strcmp(path, "-") == 0 ? fcntl(0, F_DUPFD_CLOEXEC, 3) : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return dt_fail_errno(err, "%s", path);
    }
    struct stat st;
    struct unpack *u = dt_alloc(sizeof *u);
    u->may_wait = fstat(fd, &st) == 0 && !S_ISREG(st.st_mode);
    u->path = dt_strdup(path);
    u->fd = fd;
    u->stream.next_in = u->input;
    *out = u;
    return 0;
}

/* Waits until a pipe or terminal has data, or has ended. */
static int wait_for_data(const struct unpack *u, struct dt_error *err)
{
    struct pollfd poll_fd = {.fd = u->fd, .events = POLLIN};
    int ready = 0;
    while (u->may_wait && ready == 0) {
        if (stop_check(err) != 0) {
            return -1;
        }
        ready = poll(&poll_fd, 1, STOP_MS);
        ready = ready < 0 && errno == EINTR ? 0 : ready;
    }
    return 0;
}

/* Reads the next bytes of the file, at most `size`; *got: 0 at its end. */
static int read_some(struct unpack *u, unsigned char *out, size_t size, size_t *got, struct dt_error *err)
{
    ssize_t n = 0;
    *got = 0;
    while (!u->ended && n <= 0) {
        if (wait_for_data(u, err) != 0) {
            return -1;
        }
        n = read(u->fd, out, size);
        if (n < 0 && errno != EINTR) {
            return dt_fail_errno(err, "%s", u->path);
        }
        u->ended = n == 0;
        *got = n > 0 ? (size_t)n : 0;
    }
    return 0;
}

/* Reads on until `least` bytes of input are there, or the file ends. */
static int fill(struct unpack *u, unsigned least, struct dt_error *err)
{
    if (u->stream.avail_in >= least || u->ended) {
        return 0;
    }
    memmove(u->input, u->stream.next_in, u->stream.avail_in);
    u->stream.next_in = u->input;
    while (u->stream.avail_in < least && !u->ended) {
        size_t got;
        if (read_some(u, u->input + u->stream.avail_in, INPUT_BYTES - u->stream.avail_in, &got, err) != 0) {
            return -1;
        }
        u->stream.avail_in += (unsigned)got;
    }
    return 0;
}

static uint32_t first_word(const struct unpack *u)
{
    const unsigned char *p = u->stream.next_in;
    return u->stream.avail_in < 4 ? 0
                                  : (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static bool begins_gzip(const struct unpack *u)
{
    return u->stream.avail_in >= 2 && u->stream.next_in[0] == 0x1f && u->stream.next_in[1] == 0x8b;
}

/* Also a frame that holds no data, which zstd passes over. */
static bool begins_zstd(const struct unpack *u)
{
    uint32_t word = first_word(u);
    return word == ZSTD_MAGICNUMBER || (word & ZSTD_MAGIC_SKIPPABLE_MASK) == ZSTD_MAGIC_SKIPPABLE_START;
}

/* Between two members or frames, or behind the last one: 1 when another one begins, 0 at the end. */
static int next_member(struct unpack *u, struct dt_error *err)
{
    for (;;) {
        if (fill(u, 4, err) != 0) {
            return -1;
        }
        if (u->packing == GZIP ? begins_gzip(u) : begins_zstd(u)) {
            u->inside = true;
            return u->packing == ZSTD || inflateReset(&u->stream) == Z_OK
                       ? 1
                       : dt_fail(err, DT_INTERNAL, "%s: zlib cannot begin", u->path);
        }
        if (u->stream.avail_in == 0) {
            return 0;
        }
        if (u->packing == ZSTD || u->stream.next_in[0] != 0) {
            return dt_fail(err, DT_INVALID,
                           "%s: what follows the packed data is no %s, and would be lost; unpack it, or cut it off",
                           u->path, u->packing == GZIP ? "gzip" : "zstd");
        }
        u->stream.next_in++;
        u->stream.avail_in--;
    }
}

/* As inflate_some for zstd. */
static int zstd_some(struct unpack *u, unsigned char *out, size_t size, size_t *got, struct dt_error *err)
{
    if (fill(u, 1, err) != 0) {
        return -1;
    }
    ZSTD_inBuffer in = {u->stream.next_in, u->stream.avail_in, 0};
    ZSTD_outBuffer to = {out, size, 0};
    size_t code = ZSTD_decompressStream(u->zstd, &to, &in);
    if (ZSTD_getErrorCode(code) == ZSTD_error_frameParameter_windowTooLarge) {
        return dt_fail(err, DT_INVALID,
                       "%s: packed with a window above 128 MiB (zstd --long), which would be held in memory; unpack it "
                       "with zstd -d --long=31",
                       u->path);
    }
    if (ZSTD_isError(code)) {
        return dt_fail(err, DT_INVALID, "%s: damaged or cut short (%s)", u->path, ZSTD_getErrorName(code));
    }
    if (in.size == 0 && to.pos == 0 && u->ended) {
        return dt_fail(err, DT_INVALID, "%s: damaged or cut short (unexpected end)", u->path);
    }
    u->stream.next_in += in.pos;
    u->stream.avail_in -= (unsigned)in.pos;
    u->inside = code != 0;
    *got = to.pos;
    return 0;
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

/* Finds out how the file is packed. */
static int look(struct unpack *u, struct dt_error *err)
{
    if (u->looked) {
        return 0;
    }
    if (fill(u, 4, err) != 0) {
        return -1;
    }
    u->looked = true;
    static const unsigned char magic[] = {0x28, 0xb5, 0x2f, 0xfd, 0x1f};
    const unsigned char *head = u->stream.next_in;
    const size_t n = u->stream.avail_in;
    bool cut = n > 0 && n < 4 && (memcmp(head, magic, n) == 0 || (n == 1 && *head == magic[4]));
    if (cut && unpack_end(u->path) > 0) { /* not even what tells the packing */
        return dt_fail(err, DT_INVALID, "%s: damaged or cut short (unexpected end)", u->path);
    }
    enum packing packing = begins_gzip(u) ? GZIP : begins_zstd(u) ? ZSTD : PLAIN;
    u->zstd = packing == ZSTD ? ZSTD_createDCtx() : NULL;
    if ((packing == ZSTD && u->zstd == NULL) || (packing == GZIP && inflateInit2(&u->stream, GZIP_ONLY) != Z_OK)) {
        return dt_fail(err, DT_NO_MEMORY, "%s: no memory to unpack it", u->path); /* plain: nothing to end */
    }
    u->packing = packing;
    u->inside = packing != PLAIN;
    return 0;
}

/* Bytes that are not in the input yet are read straight into `out`. */
static int read_plain(struct unpack *u, unsigned char *out, size_t size, size_t *got, struct dt_error *err)
{
    *got = u->stream.avail_in < size ? u->stream.avail_in : size;
    memcpy(out, u->stream.next_in, *got);
    u->stream.next_in += *got;
    u->stream.avail_in -= (unsigned)*got;
    return *got > 0 || size == 0 ? 0 : read_some(u, out, size, got, err);
}

int unpack_read(struct unpack *u, unsigned char *out, size_t size, size_t *got, struct dt_error *err)
{
    *got = 0;
    if (look(u, err) != 0) {
        return -1;
    }
    while (u->packing != PLAIN && *got == 0) {
        int more = u->inside ? 1 : next_member(u, err);
        if (more <= 0) {
            return more;
        }
        size_t room = size < UINT_MAX ? size : UINT_MAX;
        if ((u->packing == GZIP ? inflate_some : zstd_some)(u, out, room, got, err) != 0) {
            return -1;
        }
    }
    return u->packing == PLAIN ? read_plain(u, out, size, got, err) : 0;
}

int unpack_skip(struct unpack *u, int64_t offset, struct dt_error *err)
{
    if (look(u, err) != 0) {
        return -1;
    }
    struct stat st;
    if (u->packing == PLAIN && !u->may_wait && fstat(u->fd, &st) == 0 && st.st_size >= offset &&
        lseek(u->fd, offset, SEEK_SET) == offset) {
        u->stream.avail_in = 0;
        u->ended = false;
        return 0;
    }
    unsigned char *away = dt_alloc(INPUT_BYTES);
    int result = 0;
    for (size_t got = 1; result == 0 && offset > 0; offset -= (int64_t)got) {
        result = unpack_read(u, away, offset < INPUT_BYTES ? (size_t)offset : INPUT_BYTES, &got, err);
        if (result == 0 && got == 0) {
            result = dt_fail(err, DT_INVALID, "%s: shorter than it was", u->path);
        }
    }
    free(away);
    return result;
}

void unpack_close(struct unpack *u)
{
    if (u->packing == GZIP) {
        (void)inflateEnd(&u->stream);
    }
    (void)ZSTD_freeDCtx(u->zstd);
    (void)close(u->fd);
    free(u->path);
    free(u);
}
