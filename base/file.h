/* Files: whole reads with a limit, atomic writes, folders. */
#ifndef DT_BASE_FILE_H
#define DT_BASE_FILE_H

#include "base/error.h"
#include "base/text.h"

#include <stdbool.h>
#include <stdint.h>

/* Reads a whole file (or pipe, or /dev/stdin) of at most max_bytes into out (initialised text).
 * Errors name the path. DT_INVALID for a folder, and for a named pipe that nobody writes to for
 * 5 s. */
int dt_file_read(const char *path, size_t max_bytes, struct dt_text *out, struct dt_error *err);
/* The same of a file that a program of ours has written: DT_INVALID, at once, for whatever is
 * not a regular file. */
int dt_file_read_own(const char *path, size_t max_bytes, struct dt_text *out, struct dt_error *err);
/* The same from where an open file stands; path: what errors say. */
int dt_file_read_fd(int fd, const char *path, size_t max_bytes, struct dt_text *out, struct dt_error *err);
/* A new file of our own under a name that others could guess, open for writing: whatever has
 * that name is removed, never opened, and links are not followed. Mode 0644 at most. Returns the
 * descriptor, or -1. */
int dt_file_create(const char *path, struct dt_error *err);
/* A file that stays and grows, made if it is not there; flags: how to open it (O_RDWR, O_WRONLY
 * | O_APPEND). DT_INVALID for a symbolic link and for whatever is not a regular file. Returns
 * the descriptor, or -1. */
int dt_file_open_own(const char *path, int flags, struct dt_error *err);
/* A file to lock, made if it is not there. Nobody else may open it (mode 0600, also when an
 * older version has made it), since whoever reads a file may lock it. Otherwise as
 * dt_file_open_own with O_RDWR. */
int dt_file_open_lock(const char *path, struct dt_error *err);
/* DT_INVALID when somebody else may change where path leads: each part of it that is there,
 * links followed, up to the last folder itself. Refused is a folder that all may write to
 * without the sticky bit, and, in one with it, a part of another user (root aside): in /tmp,
 * say, he may have put it there first. DTRUN_TRUST_FOLDERS=1 allows both. A folder that a group
 * may write to, or that belongs to somebody else where not all may write, is trusted. */
int dt_file_check_owner(const char *path, struct dt_error *err);
/* Shortens a path to its parent; what is left of "a" is ".", of "/a" "/". */
void dt_file_strip(char *path);
/* Writes path.tmp-PID, fsyncs it, renames it over path, fsyncs the folder. On error nothing is
 * left and path is as it was. DT_INVALID for a folder of that name, and a path that a file or a
 * link cuts off. */
int dt_file_write(const char *path, const void *data, size_t size, struct dt_error *err);
/* One write() of the whole buffer to fd, going on after EINTR and short writes. */
int dt_file_write_all(int fd, const void *data, size_t size, const char *path, struct dt_error *err);
/* pwrite of all bytes. */
int dt_file_pwrite_all(int fd, const void *data, size_t size, int64_t offset, const char *path, struct dt_error *err);
/* Appends one line (newline added) by a single O_APPEND write; makes the file
 * (dt_file_open_own). Allocates nothing. */
int dt_file_append_line(const char *path, const char *line, size_t size, struct dt_error *err);
/* mkdir -p, after dt_file_check_owner: all folders that we write to are made, or found, by this.
 * DT_INVALID for an empty name, a file in the place of a folder, or a file system without
 * folders that people make. */
int dt_file_mkdirs(const char *path, struct dt_error *err);
/* fsync of a folder. */
int dt_file_sync_dir(const char *path, struct dt_error *err);
/* Removes a file or a whole folder; 0 when it is not there. Follows no link, nor one that takes
 * a folder's place meanwhile, and enters no folder of another user (unless this is root). */
int dt_file_remove_tree(const char *path, struct dt_error *err);
/* The same of all that is in a folder of this user, but what `keeps` says. */
int dt_file_remove_others(const char *folder, bool (*keeps)(const void *context, const char *name), const void *context,
                          struct dt_error *err);
/* Removes the NAME.tmp-PID files in dir that a dt_file_write left when it was killed: those of
 * `names` (ends with null) whose process this machine does not have. A process of another
 * machine looks gone: only where none writes. */
void dt_file_remove_cut(const char *dir, const char *const *names);
bool dt_file_exists(const char *path);
/* Bytes that this user may still write where path (a folder) is; -1 when unknown. */
double dt_file_free_bytes(const char *path);
/* Folder of the running executable, without a closing slash; the caller frees. Null when
 * unknown. */
char *dt_file_program_dir(void);
/* Raises the soft limit of open files to the hard one. Returns how many there may be. */
size_t dt_file_raise_limit(void);

/* A regular file that we may execute. */
bool dt_file_is_program(const char *path);

#endif
