#include "base/file.h"

#include "base/clock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#define WRITER_S 5.0
#define FILE_MODE 0644 /* fixed, not only by the umask: other users must never write */
#define FOLDER_MODE 0755
#define LOCK_MODE 0600 /* a user who may read a file may lock it */
#define PASSES 4       /* most passes over a folder that is being emptied */

/* Makes the error of a path. If only a person can remove the obstacle, the status is DT_INVALID,
 * since a retry fails the same way. */
static int fail_path(struct dt_error *err, const char *path)
{
    const char *why = errno == EISDIR    ? "is a folder"
                      : errno == ENOTDIR ? "a part of this path is a file"
                      : errno == ELOOP   ? "its symbolic links go round"
                                         : NULL;
    return why != NULL ? dt_fail(err, DT_INVALID, "%s: %s; remove it", path, why) : dt_fail_errno(err, "%s", path);
}

/* shown: the path that an error names */
static int create(const char *path, const char *shown, struct dt_error *err)
{
    enum { flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC };
    int fd = open(path, flags, FILE_MODE);
    /* left by a killed process with our pid, or planted by another user */
    if (fd < 0 && errno == EEXIST && unlink(path) == 0) {
        fd = open(path, flags, FILE_MODE);
    }
    return fd >= 0 ? fd : fail_path(err, shown);
}

int dt_file_create(const char *path, struct dt_error *err)
{
    return create(path, path, err);
}

static int open_own(const char *path, int flags, mode_t mode, struct dt_error *err)
{
    struct stat st;
    /* O_NONBLOCK: opening a FIFO would block */
    int fd = open(path, flags | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, mode);
    if (fd < 0 && errno != ELOOP && errno != ENXIO) {
        return fail_path(err, path);
    }
    if (fd < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        if (fd >= 0) {
            (void)close(fd);
        }
        return dt_fail(err, DT_INVALID, "%s: %s; remove it", path,
                       fd < 0 && errno == ELOOP ? "is a symbolic link" : "is not a regular file");
    }
    return fd;
}

int dt_file_open_own(const char *path, int flags, struct dt_error *err)
{
    return open_own(path, flags, FILE_MODE, err);
}

int dt_file_open_lock(const char *path, struct dt_error *err)
{
    struct stat st;
    int fd = open_own(path, O_RDWR, LOCK_MODE, err);
    if (fd >= 0 && fstat(fd, &st) == 0 && (st.st_mode & 077) != 0) {
        /* made by an older version; if it fails, the file system has no modes */
        (void)fchmod(fd, LOCK_MODE);
    }
    return fd;
}

void dt_file_strip(char *path)
{
    char *slash = strrchr(path, '/');
    if (slash == NULL) {
        strcpy(path, ".");
    } else {
        slash[slash == path] = '\0';
    }
}

int dt_file_read_fd(int fd, const char *path, size_t max_bytes, struct dt_text *out, struct dt_error *err)
{
    char buffer[65536];
    dt_text_reset(out);
    for (;;) {
        ssize_t n = read(fd, buffer, sizeof buffer);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return n == 0 ? 0 : dt_fail_errno(err, "%s", path);
        }
        if (out->size + (size_t)n > max_bytes) {
            return dt_fail(err, DT_INVALID, "%s: larger than the limit of %zu bytes", path, max_bytes);
        }
        dt_text_add(out, buffer, (size_t)n);
    }
}

/* True for a pipe with a name (mkfifo), which may never have a writer. A shell's pipe, <(...) or
 * /dev/stdin, ends with its writer. */
static bool is_named_pipe(int fd, mode_t mode)
{
    char link[64], target[16] = "";
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, target, sizeof target - 1);
    return S_ISFIFO(mode) && (size < 5 || memcmp(target, "pipe:", 5) != 0);
}

static int wait_for_writer(int fd, const char *path, struct dt_error *err)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    double until_s = dt_now_s() + WRITER_S, left_s;
    while ((left_s = until_s - dt_now_s()) > 0) {
        if (poll(&p, 1, (int)dt_milliseconds(left_s)) > 0) {
            return 0;
        }
    }
    return dt_fail(err, DT_INVALID, "%s: is a pipe, and nobody has written to it for %g s; give a file", path,
                   WRITER_S);
}

static int read_path(const char *path, bool pipes, size_t max_bytes, struct dt_text *out, struct dt_error *err)
{
    struct stat st;
    /* O_NONBLOCK: opening a pipe without a writer would block */
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC), result = 0;
    if (fd < 0 || fstat(fd, &st) != 0) {
        result = dt_fail_errno(err, "%s", path);
    } else if (S_ISDIR(st.st_mode) || (!pipes && !S_ISREG(st.st_mode))) {
        result = dt_fail(err, DT_INVALID, "%s: is %s", path, S_ISDIR(st.st_mode) ? "a folder" : "not a regular file");
    } else if (!S_ISREG(st.st_mode)) {
        result = is_named_pipe(fd, st.st_mode) ? wait_for_writer(fd, path, err) : 0;
        (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    }
    result = result == 0 ? dt_file_read_fd(fd, path, max_bytes, out, err) : result;
    if (fd >= 0) {
        (void)close(fd);
    }
    return result;
}

int dt_file_read(const char *path, size_t max_bytes, struct dt_text *out, struct dt_error *err)
{
    return read_path(path, true, max_bytes, out, err);
}

int dt_file_read_own(const char *path, size_t max_bytes, struct dt_text *out, struct dt_error *err)
{
    return read_path(path, false, max_bytes, out, err);
}

int dt_file_write_all(int fd, const void *data, size_t size, const char *path, struct dt_error *err)
{
    const char *p = data;
    while (size > 0) {
        ssize_t n = write(fd, p, size);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return dt_fail_errno(err, "%s", path);
        }
        p += n;
        size -= (size_t)n;
    }
    return 0;
}

int dt_file_pwrite_all(int fd, const void *data, size_t size, int64_t offset, const char *path, struct dt_error *err)
{
    const char *p = data;
    while (size > 0) {
        ssize_t n = pwrite(fd, p, size, offset);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return dt_fail_errno(err, "%s", path);
        }
        p += n;
        size -= (size_t)n;
        offset += n;
    }
    return 0;
}

int dt_file_sync_dir(const char *path, struct dt_error *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return dt_fail_errno(err, "%s", path);
    }
    int result = fsync(fd) == 0 || errno == EINVAL ? 0 : dt_fail_errno(err, "%s", path);
    (void)close(fd);
    return result;
}

bool dt_file_is_device(const char *path)
{
    struct stat is;
    return strcmp(path, "/dev/stdout") == 0 || strcmp(path, "/dev/stderr") == 0 || strncmp(path, "/dev/fd/", 8) == 0 ||
           (lstat(path, &is) == 0 && S_ISCHR(is.st_mode));
}

static int write_in_place(const char *path, const void *data, size_t size, struct dt_error *err)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) {
        return fail_path(err, path);
    }
    int result = dt_file_write_all(fd, data, size, path, err);
    return close(fd) == 0 || result != 0 ? result : fail_path(err, path);
}

int dt_file_write(const char *path, const void *data, size_t size, struct dt_error *err)
{
    if (dt_file_is_device(path)) {
        return write_in_place(path, data, size, err);
    }
    char *temporary = dt_format("%s.tmp-%ld", path, (long)getpid());
    char *copy = dt_strdup(path);
    int result = -1;
    int fd = create(temporary, path, err);
    if (fd < 0) {
        goto out;
    }
    bool written = dt_file_write_all(fd, data, size, path, err) == 0;
    if (written && fsync(fd) != 0) {
        (void)dt_fail_errno(err, "%s", path);
        written = false;
    }
    if (close(fd) != 0 && written) {
        (void)dt_fail_errno(err, "%s", path);
        written = false;
    }
    if (written && rename(temporary, path) != 0) {
        (void)fail_path(err, path);
        written = false;
    }
    if (!written) {
        (void)unlink(temporary);
        goto out;
    }
    result = dt_file_sync_dir(dirname(copy), err);
out:
    free(copy);
    free(temporary);
    return result;
}

int dt_file_append_line(const char *path, const char *line, size_t size, struct dt_error *err)
{
    int fd = dt_file_open_own(path, O_WRONLY | O_APPEND, err);
    if (fd < 0) {
        return -1;
    }
    /* One call for both parts, so that lines of several processes do not mix. No copy, because the
     * step loop calls this. */
    struct iovec parts[2] = {{(void *)(uintptr_t)line, size}, {(void *)(uintptr_t) "\n", 1}};
    ssize_t n;
    do {
        n = writev(fd, parts, 2);
    } while (n < 0 && errno == EINTR);
    int result = n >= 0 ? 0 : dt_fail_errno(err, "%s", path);
    if (result == 0 && (size_t)n < size) { /* a short write: write the rest */
        result = dt_file_write_all(fd, line + n, size - (size_t)n, path, err);
    }
    if (result == 0 && (size_t)n <= size) {
        result = dt_file_write_all(fd, "\n", 1, path, err);
    }
    if (close(fd) != 0 && result == 0) {
        result = dt_fail_errno(err, "%s", path);
    }
    return result;
}

int dt_file_mkdirs(const char *path, struct dt_error *err)
{
    if (*path == '\0') {
        return dt_fail(err, DT_INVALID, "the name of the folder is empty");
    }
    char *copy = dt_strdup(path);
    int result = dt_file_check_owner(path, err);
    for (char *p = copy + 1; result == 0; p++) {
        if (*p != '/' && *p != 0) {
            continue;
        }
        char kept = *p;
        *p = 0;
        struct stat st;
        if (mkdir(copy, FOLDER_MODE) != 0 && (errno != EEXIST || stat(copy, &st) != 0)) {
            bool never = errno == EPERM; /* mkdir(2): this file system does not allow new folders */
            result = dt_fail_errno(err, "%s: cannot make the folder", copy);
            if (never && err != NULL) {
                err->status = DT_INVALID;
            }
        } else if (stat(copy, &st) == 0 && !S_ISDIR(st.st_mode)) {
            result = dt_fail(err, DT_INVALID, "%s: is not a folder; remove it", copy);
        }
        *p = kept;
        if (kept == 0) {
            break;
        }
    }
    free(copy);
    return result;
}

/* Removal goes from one open folder to the next, never by a path. So replacing a part of a path
 * meanwhile, by a link for example, has no effect. */
struct removal {
    const char *path; /* for messages */
    bool (*keeps)(const void *context, const char *name);
    const void *context;
};

static int remove_at(int above, const char *name, const char *path, struct dt_error *err);

/* Removes the entries of an open folder, except those that `keeps` accepts. Closes fd. */
static int empty(int fd, const struct removal *r, struct dt_error *err)
{
    DIR *d = fdopendir(fd);
    int rc = d != NULL ? 0 : dt_fail_errno(err, "%s", r->path);
    bool removed = d != NULL;
    if (d == NULL) {
        (void)close(fd);
    }
    /* reading a folder while it shrinks may miss names */
    for (int pass = 0; removed && pass < PASSES; pass++) {
        removed = false;
        rewinddir(d);
        for (struct dirent *e; rc == 0 && (e = readdir(d)) != NULL;) {
            bool stays = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 ||
                         (r->keeps != NULL && r->keeps(r->context, e->d_name));
            rc = stays ? 0 : remove_at(dirfd(d), e->d_name, r->path, err);
            removed = removed || !stays;
        }
    }
    if (d != NULL) {
        (void)closedir(d);
    }
    return rc;
}

/* Opens a subfolder that belongs to this user; -1 with errno. Root may open all. */
static int open_ours(int above, const char *name)
{
    struct stat st;
    int fd = openat(above, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0 && (fstat(fd, &st) != 0 || (st.st_uid != geteuid() && geteuid() != 0))) {
        (void)close(fd);
        fd = -1;
        errno = EPERM;
    }
    return fd;
}

static int remove_at(int above, const char *name, const char *path, struct dt_error *err)
{
    struct stat st;
    if (fstatat(above, name, &st, AT_SYMLINK_NOFOLLOW) != 0) {
        return errno == ENOENT ? 0 : dt_fail_errno(err, "%s: cannot remove", path);
    }
    if (!S_ISDIR(st.st_mode)) {
        return unlinkat(above, name, 0) == 0 || errno == ENOENT ? 0 : dt_fail_errno(err, "%s: cannot remove", path);
    }
    int fd = open_ours(above, name);
    if (fd < 0) {
        return errno == ENOENT ? 0 : dt_fail_errno(err, "%s: cannot remove", path);
    }
    if (empty(fd, &(struct removal){.path = path}, err) != 0) {
        return -1;
    }
    return unlinkat(above, name, AT_REMOVEDIR) == 0 || errno == ENOENT ? 0
                                                                       : dt_fail_errno(err, "%s: cannot remove", path);
}

/* Opens the parent folder of an entry, and returns the entry's name; -1 with errno. */
static int open_above(const char *path, char **name)
{
    char *parent = dt_strdup(path);
    for (size_t n = strlen(parent); n > 1 && parent[n - 1] == '/'; n--) {
        parent[n - 1] = '\0';
    }
    const char *slash = strrchr(parent, '/');
    *name = dt_strdup(slash != NULL ? slash + 1 : parent);
    dt_file_strip(parent);
    int fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(parent);
    return fd;
}

int dt_file_remove_tree(const char *path, struct dt_error *err)
{
    char *name;
    int above = open_above(path, &name);
    int rc = above >= 0        ? remove_at(above, name, path, err)
             : errno == ENOENT ? 0
                               : dt_fail_errno(err, "%s: cannot remove", path);
    if (above >= 0) {
        (void)close(above);
    }
    free(name);
    return rc;
}

int dt_file_remove_others(const char *folder, bool (*keeps)(const void *context, const char *name), const void *context,
                          struct dt_error *err)
{
    char *name;
    int above = open_above(folder, &name), fd = above >= 0 ? open_ours(above, name) : -1;
    int rc = fd >= 0 ? empty(fd, &(struct removal){folder, keeps, context}, err) : dt_fail_errno(err, "%s", folder);
    if (above >= 0) {
        (void)close(above);
    }
    free(name);
    return rc;
}

/* The PID of a name NAME.tmp-PID, with NAME from the list; else 0. */
static long writer_of(const char *name, const char *const *names)
{
    for (size_t i = 0; names[i] != NULL; i++) {
        size_t n = strlen(names[i]);
        if (strncmp(name, names[i], n) == 0 && strncmp(name + n, ".tmp-", 5) == 0) {
            const char *digits = name + n + 5;
            bool number = *digits != '\0' && strspn(digits, "0123456789") == strlen(digits);
            return number ? strtol(digits, NULL, 10) : 0;
        }
    }
    return 0;
}

void dt_file_remove_cut(const char *dir, const char *const *names)
{
    DIR *d = opendir(dir);
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        long pid = writer_of(e->d_name, names);
        bool gone = pid > 0 && (pid > INT_MAX || pid == (long)getpid() || (kill((pid_t)pid, 0) != 0 && errno == ESRCH));
        if (gone) {
            (void)unlinkat(dirfd(d), e->d_name, 0); /* fails for a folder, which stays */
        }
    }
    if (d != NULL) {
        (void)closedir(d);
    }
}

bool dt_file_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

double dt_file_free_bytes(const char *path)
{
    struct statvfs st;
    return statvfs(path, &st) == 0 ? (double)st.f_bavail * (double)st.f_frsize : -1;
}

char *dt_file_program_dir(void)
{
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n <= 0) {
        return NULL;
    }
    path[n] = 0;
    char *slash = strrchr(path, '/');
    if (slash == NULL) {
        return NULL;
    }
    *slash = 0;
    return dt_strdup(path);
}

size_t dt_file_raise_limit(void)
{
    struct rlimit limit = {1024, 1024};
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
        (void)getrlimit(RLIMIT_NOFILE, &limit);
    }
    return (size_t)limit.rlim_cur;
}

bool dt_file_is_program(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}
