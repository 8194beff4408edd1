#define _XOPEN_SOURCE 700
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

int dt_file_read(const char *path, size_t max_bytes, struct dt_text *out, struct dt_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return dt_fail_errno(err, "%s", path);
    }
    int result = -1;
    char buffer[65536];
    dt_text_reset(out);
    for (;;) {
        ssize_t n = read(fd, buffer, sizeof buffer);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            (void)dt_fail_errno(err, "%s", path);
            break;
        }
        if (n == 0) {
            result = 0;
            break;
        }
        if (out->size + (size_t)n > max_bytes) {
            (void)dt_fail(err, DT_INVALID, "%s: larger than the limit of %zu bytes", path, max_bytes);
            break;
        }
        dt_text_add(out, buffer, (size_t)n);
    }
    (void)close(fd);
    return result;
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

int dt_file_write(const char *path, const void *data, size_t size, struct dt_error *err)
{
    char *temporary = dt_format("%s.tmp-%ld", path, (long)getpid());
    char *copy = dt_strdup(path);
    int result = -1;
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        (void)dt_fail_errno(err, "%s", temporary);
        goto out;
    }
    bool written = dt_file_write_all(fd, data, size, temporary, err) == 0;
    if (written && fsync(fd) != 0) {
        (void)dt_fail_errno(err, "%s", temporary);
        written = false;
    }
    if (close(fd) != 0 && written) {
        (void)dt_fail_errno(err, "%s", temporary);
        written = false;
    }
    if (written && rename(temporary, path) != 0) {
        (void)dt_fail_errno(err, "%s", path);
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
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0) {
        return dt_fail_errno(err, "%s", path);
    }
    struct dt_text t;
    dt_text_init(&t);
    dt_text_add(&t, line, size);
    dt_text_add(&t, "\n", 1);
    int result = dt_file_write_all(fd, t.data, t.size, path, err);
    dt_text_clear(&t);
    (void)close(fd);
    return result;
}

int dt_file_mkdirs(const char *path, struct dt_error *err)
{
    char *copy = dt_strdup(path);
    int result = 0;
    for (char *p = copy + 1; result == 0; p++) {
        if (*p != '/' && *p != 0) {
            continue;
        }
        char kept = *p;
        *p = 0;
        struct stat st;
        if (mkdir(copy, 0777) != 0 && (errno != EEXIST || stat(copy, &st) != 0)) {
            result = dt_fail_errno(err, "%s: cannot make the folder", copy);
        } else if (stat(copy, &st) == 0 && !S_ISDIR(st.st_mode)) {
            result = dt_fail(err, DT_IO, "%s: is not a folder", copy);
        }
        *p = kept;
        if (kept == 0) {
            break;
        }
    }
    free(copy);
    return result;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *where)
{
    (void)st;
    (void)type;
    (void)where;
    return remove(path) == 0 || errno == ENOENT ? 0 : -1;
}

int dt_file_remove_tree(const char *path, struct dt_error *err)
{
    if (nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS) != 0 && errno != ENOENT) {
        return dt_fail_errno(err, "%s: cannot remove", path);
    }
    return 0;
}

void dt_file_remove_cut(const char *dir)
{
    DIR *d = opendir(dir);
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        const char *mark = strstr(e->d_name, ".tmp-");
        if (mark != NULL && mark[5] != 0 && strspn(mark + 5, "0123456789") == strlen(mark + 5)) {
            (void)unlinkat(dirfd(d), e->d_name, 0); /* a folder stays */
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
