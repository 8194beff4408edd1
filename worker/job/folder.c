/* Checks whether a path can be created, by the nearest existing folder above it: its kind, its
 * permissions, and the room on its disk. */
#include "worker/job/folder.h"

#include "base/file.h"
#include "base/text.h"

#include <errno.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define LINKS 40                  /* the kernel follows as many */
#define LEAST_BYTES (64.0 * 1024) /* job.json, env.json and the first lines of the logs */

/* True for /sys and /proc: root may write there, but cannot create a folder. */
static bool is_of_the_kernel(const char *path)
{
    struct statfs fs;
    return statfs(path, &fs) == 0 && (fs.f_type == SYSFS_MAGIC || fs.f_type == PROC_SUPER_MAGIC);
}

static int check_room(const char *key, const char *path, struct dt_error *err)
{
    struct statvfs fs;
    char text[32];
    if (statvfs(path, &fs) != 0 || fs.f_blocks == 0) {
        return 0; /* the file system does not tell */
    }
    double free_bytes = (double)fs.f_bavail * (double)fs.f_frsize;
    if (free_bytes < LEAST_BYTES) {
        return dt_fail(err, DT_INVALID, "%s: %s: its disk is full (%s free); make room there, or choose another folder",
                       key, path, dt_text_bytes(free_bytes, text, sizeof text));
    }
    if (fs.f_files > 0 && fs.f_favail == 0) {
        return dt_fail(
            err, DT_INVALID,
            "%s: %s: its disk has no room for another file (inodes); make room there, or choose another folder", key,
            path);
    }
    return 0;
}

int folder_check(const char *key, const char *path, struct dt_error *err)
{
    char *at = dt_format("%s", *path != '\0' ? path : ".");
    struct stat st;
    while (stat(at, &st) != 0 && (errno == ENOENT || errno == ENOTDIR) && strcmp(at, ".") != 0 &&
           strcmp(at, "/") != 0) {
        dt_file_strip(at);
    }
    int rc = 0;
    if (dt_file_check_owner(at, err) != 0) {
        rc = dt_wrap(err, "%s", key);
    } else if (stat(at, &st) == 0 && !S_ISDIR(st.st_mode)) {
        rc = dt_fail(err, DT_INVALID, "%s: %s: is not a folder; choose another name, or move the file away", key, at);
    } else if (access(at, W_OK | X_OK) != 0) {
        rc = dt_fail(err, DT_INVALID,
                     "%s: %s: cannot be written to: %s; choose another folder, or change who may write there", key, at,
                     strerror(errno));
    } else if (is_of_the_kernel(at)) {
        rc = dt_fail(err, DT_INVALID,
                     "%s: %s: belongs to the kernel, no folder can be made there; choose another folder", key, at);
    } else {
        rc = check_room(key, at, err);
    }
    free(at);
    return rc;
}

/* Fails if the name is taken by a folder where a file belongs, or by a file where a folder
 * belongs. */
static int check_kind(const char *dir, const char *name, bool folder, struct dt_error *err)
{
    struct stat st;
    char *path = dt_format("%s/%s", dir, name);
    bool wrong = stat(path, &st) == 0 && S_ISDIR(st.st_mode) != folder;
    int rc = wrong ? dt_fail(err, DT_INVALID,
                             "%s: is %s, and the run has a %s of that name; remove it, or choose another output_dir",
                             path, folder ? "no folder" : "a folder", folder ? "folder" : "file")
                   : 0;
    free(path);
    return rc;
}

int folder_check_names(const char *output_dir, const char *checkpoint_dir, bool anew, struct dt_error *err)
{
    static const char *const files[] = {"job.json", "env.json", "events.jsonl"}, *const kept[] = {"course.json",
                                                                                                  "owner.json",
                                                                                                  "owner.lock"};
    int rc = check_kind(output_dir, "logs", true, err);
    for (size_t i = 0; i < sizeof files / sizeof files[0] && rc == 0; i++) {
        rc = check_kind(output_dir, files[i], false, err);
    }
    rc = rc == 0 && !anew ? check_kind(output_dir, "metrics.jsonl", false, err) : rc;
    for (size_t i = 0; i < sizeof kept / sizeof kept[0] && rc == 0 && !anew; i++) {
        rc = check_kind(checkpoint_dir, kept[i], false, err);
    }
    return rc;
}

/* True if path.lock and path.old-1 can be created. */
static bool has_room_beside(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
    char *parent = dt_strdup(path);
    struct stat above, st;
    dt_file_strip(parent);
    bool has = name[0] != '\0' && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
    if (has && stat(parent, &above) == 0) {
        has = access(parent, W_OK | X_OK) == 0 && (stat(path, &st) != 0 || st.st_dev == above.st_dev);
    }
    free(parent);
    return has;
}

char *folder_follow(const char *path)
{
    char *at = dt_strdup(path), target[PATH_MAX];
    for (int i = 0; i < LINKS; i++) {
        ssize_t size = readlink(at, target, sizeof target);
        if (size <= 0 || size == (ssize_t)sizeof target || dt_file_check_owner(at, NULL) != 0) {
            break;
        }
        while (size > 1 && target[size - 1] == '/') {
            size--;
        }
        char *parent = dt_strdup(at);
        dt_file_strip(parent);
        char *next =
            target[0] == '/' ? dt_format("%.*s", (int)size, target) : dt_format("%s/%.*s", parent, (int)size, target);
        free(parent);
        if (!has_room_beside(next)) {
            free(next);
            break;
        }
        free(at);
        at = next;
    }
    return at;
}
