/* Files: reading whole files with a limit, atomic writes, folders. */
#ifndef DT_BASE_FILE_H
#define DT_BASE_FILE_H

#include "base/error.h"
#include "base/text.h"

#include <stdbool.h>
#include <stdint.h>

/* Reads a whole file (or pipe, or /dev/stdin) of at most max_bytes into out (initialised text).
 * Errors name the path. DT_INVALID for a folder, and for a named pipe that has no data for 5 s. */
int dt_file_read(const char *path, size_t max_bytes, struct dt_text *out, struct dt_error *err);
/* The same for a file that our own programs have written: anything but a regular file is DT_INVALID
 * at once. */
int dt_file_read_own(const char *path, size_t max_bytes, struct dt_text *out, struct dt_error *err);
/* The same from the current position of an open file; errors show `path`. */
int dt_file_read_fd(int fd, const char *path, size_t max_bytes, struct dt_text *out, struct dt_error *err);
/* Creates a new file, open for writing, under a name that other users could guess. An existing
 * entry of that name is removed, never opened, and links are not followed. Mode 0644 at most.
 * Returns the descriptor, or -1. */
int dt_file_create(const char *path, struct dt_error *err);
/* Opens a file that grows, and creates it if missing. flags: how to open it (O_RDWR, O_WRONLY |
 * O_APPEND). DT_INVALID for a symbolic link and for anything but a regular file. Returns the
 * descriptor, or -1. */
int dt_file_open_own(const char *path, int flags, struct dt_error *err);
/* Opens a file to lock, and creates it if missing. Its mode is 0600, also if an older version has
 * created it: a user who may read a file could lock it. Otherwise like dt_file_open_own with
 * O_RDWR. */
int dt_file_open_lock(const char *path, struct dt_error *err);
/* DT_INVALID if another user could change where path leads. Checks each existing part, through
 * links, up to the last folder itself. Refused are a folder that everybody may write to without the
 * sticky bit, and in a folder with it, a part that belongs to another user (except root): in /tmp
 * another user may have created it first. DTRUN_TRUST_FOLDERS=1 allows both. A folder that a group
 * may write to is trusted, and so is another user's folder where not everybody may write. */
int dt_file_check_owner(const char *path, struct dt_error *err);
/* Shortens a path to its parent. The parent of "a" is ".", that of "/a" is "/". */
void dt_file_strip(char *path);
/* True for a character device, and for the links in /dev to what this process has open, such as /dev/stdout: these are
 * written in place, since a file that is made elsewhere must not take their name. */
bool dt_file_is_device(const char *path);
/* Writes path.tmp-PID, syncs it, renames it to path, and syncs the folder. After an error nothing
 * is left, and path is unchanged. A device is written to in place. DT_INVALID if path is a folder, or if a file or a circular link
 * is in the way. */
int dt_file_write(const char *path, const void *data, size_t size, struct dt_error *err);
/* Writes the whole buffer to fd. Continues after EINTR and short writes. */
int dt_file_write_all(int fd, const void *data, size_t size, const char *path, struct dt_error *err);
/* The same by pwrite. */
int dt_file_pwrite_all(int fd, const void *data, size_t size, int64_t offset, const char *path, struct dt_error *err);
/* Appends one line (the newline is added) by a single O_APPEND write. Creates the file like
 * dt_file_open_own. Allocates no memory. */
int dt_file_append_line(const char *path, const char *line, size_t size, struct dt_error *err);
/* Like mkdir -p, after dt_file_check_owner. All folders that we write to are created or opened this
 * way. DT_INVALID for an empty name, a file in the place of a folder, or a file system that does
 * not allow new folders. */
int dt_file_mkdirs(const char *path, struct dt_error *err);
/* Syncs a folder. */
int dt_file_sync_dir(const char *path, struct dt_error *err);
/* Removes a file or a whole folder; 0 if it does not exist. Never follows links, also not one that
 * replaces a folder meanwhile, and enters no folder of another user (except for root). */
int dt_file_remove_tree(const char *path, struct dt_error *err);
/* The same for all entries in a folder of this user, except those that `keeps` accepts. */
int dt_file_remove_others(const char *folder, bool (*keeps)(const void *context, const char *name), const void *context,
                          struct dt_error *err);
/* Removes files NAME.tmp-PID that a killed dt_file_write has left in dir: those of `names` (ends
 * with null) whose process does not exist on this machine. A process of another machine looks dead,
 * so no other machine may be writing there. */
void dt_file_remove_cut(const char *dir, const char *const *names);
bool dt_file_exists(const char *path);
/* Bytes that this user may still write in the folder path; -1: unknown. */
double dt_file_free_bytes(const char *path);
/* Folder of the running executable, without a slash at its end; the caller frees it. Null:
 * unknown. */
char *dt_file_program_dir(void);
/* Raises the soft limit of open files to the hard one. Returns the new limit. */
size_t dt_file_raise_limit(void);

/* A regular file that we may execute. */
bool dt_file_is_program(const char *path);

#endif
