/* The formats of training data, as rows for data.c, and the list of files behind a glob. */
#ifndef DT_WORKER_DATA_ROWS_H
#define DT_WORKER_DATA_ROWS_H

#include "worker/data/data.h"

extern const struct data_ops data_tokens, data_tensors;

struct data_files {
    char **paths; /* sorted bytewise */
    size_t count;
};
/* The files that a path or glob means; FILE.bin.json beside FILE.bin is left out. No match is an
 * error. */
int data_files_open(struct data_files *f, const char *glob, struct dt_error *err);
void data_files_close(struct data_files *f);
/* For `expect`: bytes of a mapped file. */
void data_expect_bytes(const void *at, size_t size);
/* For `open`: lists a file in s->files. */
void data_list_file(struct data_source *s, const char *path, int64_t count, uint64_t hash);
/* Name without folders. */
const char *data_base_name(const char *path);

#endif
