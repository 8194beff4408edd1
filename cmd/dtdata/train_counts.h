/* How often each piece occurs in a text: tables in memory, sorted runs on disk, and runs merged into
 * one. A run is a file of pieces in ascending order of their bytes, each once, with its count. */
#ifndef DT_CMD_DTDATA_TRAIN_COUNTS_H
#define DT_CMD_DTDATA_TRAIN_COUNTS_H

#include "base/error.h"
#include "base/text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- the table of one thread ---- */
struct piece_table;
/* Memory: at most limit_bytes (at least 64 KiB), but for one piece that is larger. */
struct piece_table *piece_table_open(size_t limit_bytes);
void piece_table_close(struct piece_table *t);
/* Counts a piece once more. False: the table is full, and must be written and cleared first. */
bool piece_table_add(struct piece_table *t, const char *piece, size_t size);
bool piece_table_empty(const struct piece_table *t);

/* ---- runs ---- */
struct run_info {
    int64_t bytes;
    uint64_t hash; /* XXH3 of the file */
};
/* Writes the table to a new file, synced, and clears the table. */
int piece_table_write(struct piece_table *t, const char *path, struct run_info *out, struct dt_error *err);

struct run_reader;
/* Refuses a file that has another size than `info` says; a wrong hash shows at the end. */
int run_open(struct run_reader **out, const char *path, const struct run_info *info, size_t buffer_bytes,
             struct dt_error *err);
/* 1: the next piece, valid until the next call; 0: the end; -1. */
int run_next(struct run_reader *r, const char **piece, size_t *size, uint64_t *count, struct dt_error *err);
void run_close(struct run_reader *r); /* null is allowed */
/* Merges runs into one new file, synced. The buffers of all of them take about buffer_bytes. */
int run_merge(const char *const *paths, const struct run_info *infos, size_t count, const char *path,
              size_t buffer_bytes, struct run_info *out, struct dt_error *err);

#endif
