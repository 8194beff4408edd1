/* Files: whole reads with a limit, atomic writes, folders. */
#ifndef DT_BASE_FILE_H
#define DT_BASE_FILE_H

#include "base/error.h"
#include "base/text.h"

#include <stdbool.h>
#include <stdint.h>

/* Reads a whole regular file (or pipe) of at most max_bytes into out (initialised text). Errors name the path. */
int dt_file_read(const char *path, size_t max_bytes, struct dt_text *out, struct dt_error *err);
/* Writes path.tmp-PID, fsyncs it, renames it over path, fsyncs the folder. On error nothing is left and path is as it was. */
int dt_file_write(const char *path, const void *data, size_t size, struct dt_error *err);
/* One write() of the whole buffer to fd, going on after EINTR and short writes. */
int dt_file_write_all(int fd, const void *data, size_t size, const char *path, struct dt_error *err);
/* pwrite of all bytes. */
int dt_file_pwrite_all(int fd, const void *data, size_t size, int64_t offset, const char *path, struct dt_error *err);
/* Appends one line (newline added) by a single O_APPEND write; makes the file. */
int dt_file_append_line(const char *path, const char *line, size_t size, struct dt_error *err);
/* mkdir -p. */
int dt_file_mkdirs(const char *path, struct dt_error *err);
/* fsync of a folder. */
int dt_file_sync_dir(const char *path, struct dt_error *err);
/* Removes a file or a whole folder; 0 when it is not there. Does not follow links. */
int dt_file_remove_tree(const char *path, struct dt_error *err);
/* Removes the NAME.tmp-PID files in dir that a dt_file_write left when it was killed. Only where nobody else is writing. */
void dt_file_remove_cut(const char *dir);
bool dt_file_exists(const char *path);
/* Bytes that this user may still write where path (a folder) is; -1 when unknown. */
double dt_file_free_bytes(const char *path);
/* Folder of the running executable, without a closing slash; the caller frees. Null when unknown. */
char *dt_file_program_dir(void);
/* Raises the soft limit of open files to the hard one. Returns how many there may be. */
size_t dt_file_raise_limit(void);

#endif
