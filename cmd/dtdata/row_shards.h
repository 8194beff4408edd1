/* Labelled rows of different lengths, and the safetensors files that hold them (worker/data/README.md has their
 * tensors). */
#ifndef DT_CMD_DTDATA_ROW_SHARDS_H
#define DT_CMD_DTDATA_ROW_SHARDS_H

#include "cmd/dtdata/coder.h"
#include "cmd/dtdata/labels.h"

/* Rows one after the other. All zero is an empty list. */
struct row_list {
    struct token_ids ids; /* of all rows */
    uint8_t *types;       /* of each id; null: rows have none */
    size_t types_capacity;
    int64_t *ends; /* of each row in ids */
    double *labels;
    size_t count, capacity;
};
/* types: null: rows have none. */
void row_list_add(struct row_list *l, const int32_t *ids, const uint8_t *types, size_t count, double label);
void row_list_reset(struct row_list *l);
void row_list_clear(struct row_list *l);

struct row_writer;
/* Begins PREFIX-00000.safetensors, ... in `dir`, as shard_writer_open. Each file has whole rows, of about
 * shard_tokens ids. coder and labels must outlive the writer. pairs: rows have types. */
int row_writer_open(struct row_writer **out, const char *dir, const char *prefix, const struct coder *coder,
                    const struct labels *labels, bool pairs, int64_t shard_tokens, bool overwrite,
                    struct dt_error *err);
/* Takes over the first `count` files of an earlier run in `.unfinished`. DT_INVALID if one is damaged. */
int row_writer_resume(struct row_writer *w, int count, struct dt_error *err);
/* Appends row i of a list. */
int row_writer_add(struct row_writer *w, const struct row_list *l, size_t i, struct dt_error *err);
int row_writer_complete(const struct row_writer *w);
int row_writer_finish(struct row_writer *w, struct dt_error *err);
struct shard_set *row_writer_set(struct row_writer *w); /* whose files get their names then */
int64_t row_writer_rows(const struct row_writer *w);
int row_writer_files(const struct row_writer *w);
void row_writer_close(struct row_writer *w, bool keep);

#endif
