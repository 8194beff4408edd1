/* manifest.json of a checkpoint: what was saved, the file of each slice, and checksums over every
 * block of a slice. The last member is a hash of all the text before it, so a manifest that was cut
 * short or changed is never accepted.
 *
 *   {"format": "dtrun-checkpoint", "version": 1, "step": 300, ..., "run_id": "...",
 *    "horizon": {"micro_batch": 16, "micro_steps": 1, "samples": 4800, "base": 0, "rows": 3700,
 *                "max_steps": 400, "end": 6400},
 *    "plateau": {"checks": 3, "step": 300, "bad": 1, "cooldown": 0, "share": 0.1, "best": 4.25},
 *    "data": [{"name": "train-00000.bin", "count": 59216, "hash": "0123456789abcdef"}, ...],
 *    "job": {...}, "model_config": {...},
 *    "files": [{"name": "slices-00000-of-00002.safetensors", "size": 123,
 *               "slices": [{"purpose": "weight", "name": "transformer.wte.weight",
 *                           "shape": [256, 192], "first": 0, "count": 24576,
 *                           "sums": ["91ab03c4...", ...]}, ...]}],
 *    "hash": "0123456789abcdef"} */
#ifndef DT_WORKER_CHECKPOINTS_MANIFEST_H
#define DT_WORKER_CHECKPOINTS_MANIFEST_H

#include "base/arena.h"
#include "worker/checkpoints/checkpoint.h"

enum { MANIFEST_NAME_MAX_BYTES = 512 };  /* of a tensor, a file or a purpose */
enum { MANIFEST_BLOCK_BYTES = 1 << 20 }; /* bytes of a slice's data per checksum (XXH3, 64 bits) */

struct manifest_slice {
    int tensor, file; /* indices of tensors and files */
    const char *purpose;
    int64_t first, count;
    int64_t sum_count;
    const uint64_t *sums;
};

struct manifest_tensor {
    const char *name;
    int dims;
    int64_t shape[4], numel;
    bool stateless;     /* frozen or a buffer: there is no optimizer state of it */
    const char *states; /* those that it has, "exp_avg,exp_avg_sq"; null: all that the checkpoint has */
};

struct manifest_file {
    const char *name;
    int64_t size_bytes;
};

struct manifest {
    struct checkpoint_state state;
    struct manifest_tensor *tensors;
    const struct manifest_tensor **by_name; /* sorted by name */
    int tensor_count;
    struct manifest_file *files;
    int file_count;
    struct manifest_slice *slices; /* sorted by purpose, tensor, first */
    int slice_count;
    struct dt_arena arena;
};

/* Checksum of one block of at most MANIFEST_BLOCK_BYTES. */
uint64_t manifest_sum(const void *bytes, size_t size);
/* Number of blocks of a slice of `count` elements. */
int64_t manifest_block_count(int64_t count);
/* Writes one rank's entry: a JSON object of its file (see above). sums: checksums of the blocks of
 * all slices, one after the other. */
void manifest_entry(struct dt_text *out, const char *file_name, int64_t size_bytes,
                    const struct checkpoint_slice *slices, int slice_count, const uint64_t *sums);
/* Size of the name of a rank's file. */
#define MANIFEST_FILE_NAME_BYTES 64
void manifest_file_name(char out[MANIFEST_FILE_NAME_BYTES], int rank, int ranks);
/* Checks an entry, which comes from another rank. DT_INTERNAL unless it is one JSON object, of that
 * rank's file. *size_bytes: the size of the file by the entry. */
int manifest_entry_check(const char *entry, int rank, int ranks, int64_t *size_bytes, struct dt_error *err);
/* The text of a state up to its files, and what follows behind it: head and end are the whole text. */
void manifest_head(struct dt_text *out, const struct checkpoint_state *state);
void manifest_end(struct dt_text *out, const char *const *entries, int entry_count);
/* The parts of a text for those who read it. count: a whole number of at least 0, as a double holds it. A string
 * that is not there is null. A hash is 16 hexadecimal digits. */
struct cJSON;
int manifest_read_count(const struct cJSON *object, const char *key, int64_t *out, struct dt_error *err);
const char *manifest_read_string(const struct cJSON *object, const char *key);
bool manifest_is_hash(const char *text);
/* All of m->state but model_config. */
int manifest_read_state(struct manifest *m, const struct cJSON *root, struct dt_error *err);
/* Writes the whole text. The entries of all ranks must be checked. */
void manifest_text(struct dt_text *out, const struct checkpoint_state *state, const char *const *entries,
                   int entry_count);
/* Reads and checks PATH/manifest.json: its hash, file names that stay in the folder, and slices
 * that cover every tensor exactly once per purpose. */
int manifest_read(struct manifest *m, const char *path, struct dt_error *err);
/* The same for a text; errors do not name the file. Time and memory grow with the text, by at most
 * some 20 bytes per byte. */
int manifest_parse(struct manifest *m, const struct dt_text *text, struct dt_error *err);
/* The same for a text of some of the files, or of none: slices may leave gaps. */
int manifest_parse_part(struct manifest *m, const struct dt_text *text, struct dt_error *err);
void manifest_clear(struct manifest *m);
/* Index of a tensor; -1: there is none of that name. */
int manifest_find(const struct manifest *m, const char *name);
/* The slices of one tensor for one purpose are neighbours. Returns the index of the one that holds
 * `element`, or the index where it would be, which may be slice_count. */
int manifest_slice_at(const struct manifest *m, const char *purpose, int tensor, int64_t element);
/* True if slice number `slice` exists and belongs to this purpose and tensor. */
bool manifest_slice_is(const struct manifest *m, int slice, const char *purpose, int tensor);
/* Name of a slice in its safetensors file: "weight/NAME@FIRST". */
void manifest_slice_name(char *out, size_t out_bytes, const char *purpose, const char *name, int64_t first);

#endif
