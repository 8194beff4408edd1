/* manifest.json of a checkpoint: what was saved, in which file each slice lies, and checksums
 * over every block of it. Its last member is a hash of all the text before, so a manifest cut
 * short or changed is never taken for a whole one.
 *
 *   {"format": "dtrun-checkpoint", "version": 1, "step": 300, ...,
 *    "horizon": {"micro_batch": 16, "micro_steps": 1, "samples": 4800, "base": 0, "rows": 3700, "max_steps": 400, "end": 6400},
 *    "data": [{"name": "train-00000.bin", "count": 59216, "hash": "0123456789abcdef"}, ...], "job": {...}, "model_config": {...},
 *    "tensors": [{"name": "transformer.wte.weight", "shape": [256, 192]}, ...],
 *    "files": [{"name": "slices-00000-of-00002.safetensors", "size": 123,
 *               "slices": [{"purpose": "weight", "name": ..., "shape": [...], "first": 0, "count": 24576, "sums": ["91ab03c4...", ...]}, ...]}],
 *    "hash": "0123456789abcdef"} */
#ifndef DT_WORKER_CHECKPOINTS_MANIFEST_H
#define DT_WORKER_CHECKPOINTS_MANIFEST_H

#include "base/arena.h"
#include "worker/checkpoints/checkpoint.h"

enum { MANIFEST_BLOCK_BYTES = 1 << 20 }; /* of a slice's data, per checksum (XXH3, 64 bits) */

struct manifest_slice {
    int tensor, file; /* indices */
    const char *purpose;
    int64_t first, count;
    int64_t sum_count;
    const uint64_t *sums;
};

struct manifest_tensor {
    const char *name;
    int dims;
    int64_t shape[4], numel;
    bool stateless; /* frozen, or a buffer: no optimizer has state of it */
};

struct manifest_file {
    const char *name;
    int64_t size_bytes;
};

struct manifest {
    struct checkpoint_state state;
    struct manifest_tensor *tensors;
    const struct manifest_tensor **by_name; /* sorted */
    int tensor_count;
    struct manifest_file *files;
    int file_count;
    struct manifest_slice *slices; /* sorted by purpose, tensor, first */
    int slice_count;
    struct dt_arena arena;
};

/* Checksum of one block of at most MANIFEST_BLOCK_BYTES. */
uint64_t manifest_sum(const void *bytes, size_t size);
/* Blocks of a slice of so many elements. */
int64_t manifest_block_count(int64_t count);
/* One rank's entry: a JSON object of its file (see above). sums: of the blocks of all slices,
 * one after the other. */
void manifest_entry(struct dt_text *out, const char *file_name, int64_t size_bytes,
                    const struct checkpoint_slice *slices, int slice_count, const uint64_t *sums);
/* Name of the file of a rank. */
#define MANIFEST_FILE_NAME_BYTES 64
void manifest_file_name(char out[MANIFEST_FILE_NAME_BYTES], int rank, int ranks);
/* An entry comes from another rank: DT_INTERNAL unless it is one JSON object, of that rank's
 * file. size_bytes: what it says of that. */
int manifest_entry_check(const char *entry, int rank, int ranks, int64_t *size_bytes, struct dt_error *err);
/* The whole text from the entries of all ranks, each of them checked. */
void manifest_text(struct dt_text *out, const struct checkpoint_state *state, const char *const *entries,
                   int entry_count);
/* Whether a manifest is still read with this text as its model_config: short values in any
 * number would cost too much. */
bool manifest_takes_config(const char *text, size_t size);
/* Reads and checks PATH/manifest.json: hash, names that stay in the folder, slices that cover
 * every tensor exactly once per purpose. */
int manifest_read(struct manifest *m, const char *path, struct dt_error *err);
/* The same of a text; errors do not say which. Time and memory grow with the text: at most some
 * 20 bytes for each of it. */
int manifest_parse(struct manifest *m, const struct dt_text *text, struct dt_error *err);
void manifest_clear(struct manifest *m);
/* Index of a tensor; -1: there is none of that name. */
int manifest_find(const struct manifest *m, const char *name);
/* Slices of one tensor for one purpose lie side by side: index of the one that holds `element`,
 * or where it would be; it may be slice_count. */
int manifest_slice_at(const struct manifest *m, const char *purpose, int tensor, int64_t element);
/* Is slice number `slice` there, and one of these? */
bool manifest_slice_is(const struct manifest *m, int slice, const char *purpose, int tensor);
/* Name of a slice in its safetensors file: "weight/NAME@FIRST". */
void manifest_slice_name(char *out, size_t out_bytes, const char *purpose, const char *name, int64_t first);

#endif
