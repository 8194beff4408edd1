/* The table of data formats, for data.c, and the list of files that a glob matches. */
#ifndef DT_WORKER_DATA_ROWS_H
#define DT_WORKER_DATA_ROWS_H

#include "worker/data/data.h"

/* Sources of which a mixture is made; not in the table. */
extern const struct data_ops data_mixed;
extern const struct data_ops data_tokens, data_nanogpt, data_labelled, data_tensors, data_choice_lines;

struct data_files {
    char **paths; /* sorted by bytes */
    size_t count;
};
/* Lists the files that a path or glob matches, without FILE.bin.json and FILE.idx beside FILE.bin. No match is
 * an error. tensors: token shards are no data for the model, so the error does not propose them. */
int data_files_open(struct data_files *f, const char *glob, bool tensors, struct dt_error *err);
void data_files_close(struct data_files *f);
/* Escapes the longest part of a pattern for glob(3), in whole names, that exists literally: in
 * "sets[1]/train-?.bin" the folder may have just that name. The caller frees the result. */
char *data_pattern(const char *pattern);
/* The name of the format that the file's first bytes tell; null: none. */
const char *data_format_of(const char *path);
/* The name of a field that the model reads and token shards cannot hold; null: there is none. */
const char *data_tokens_lack(const struct batch_layout *layout);
/* For `expect`: tells the kernel that bytes of a mapped file will be read soon. */
void data_expect_bytes(const void *at, size_t size);
/* For `open`: appends a file to s->files. */
void data_list_file(struct data_source *s, const char *path, int64_t count, uint64_t hash);
/* The same under a name that may have folders. */
void data_list_named(struct data_source *s, const char *name, int64_t count, uint64_t hash);
/* The name without folders. */
const char *data_base_name(const char *path);

#endif
