/* Plan files keep, for later starts, the way of a library that was measured to be the fastest.
 * Another way has other bits, so a line that was used is never replaced, and all ranks of a run
 * compute by rank 0's file. A file belongs to one kind (products, attention), GPU, driver and
 * library version. */
#ifndef DT_KERNELS_CUDA_PLAN_FILE_H
#define DT_KERNELS_CUDA_PLAN_FILE_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dt_text;
struct dt_dnn_config;

#ifdef __cplusplus
extern "C" {
#endif

/* Keys and values are compared and copied as bytes, so padding between their members is zero. */
struct dt_plan_kind {
    const char *name; /* of the files, NAME-HASH.plans, and of messages */
    const char *head; /* their first line */
    size_t key_bytes, value_bytes;
    /* put writes a line of the file, without its end. take reads a line into zeroed memory and
     * moves *at past the line's end; false if it is no such line. */
    void (*put)(struct dt_text *out, const void *key, const void *value);
    bool (*take)(char **at, void *key, void *value);
};

struct dt_plan_file;
/* The text that identifies the owner of a file, for dt_plan_file_open: GPU number `index`, driver
 * and library. The caller frees it. */
char *dt_plan_file_device(int index, const char *library, size_t version);
/* Reads NAME-HASH.plans in $DTRUN_CACHE, $XDG_CACHE_HOME/dtrun or ~/.cache/dtrun; without a file it
 * is empty. A damaged file, or one of another device than `of`, counts as none, and one warning is
 * written. Never null. `kind` belongs to the caller and must outlive the file. */
struct dt_plan_file *dt_plan_file_open(const struct dt_plan_kind *kind, const char *of);
/* the value of a key, valid until the file is changed; or null */
const void *dt_plan_file_find(const struct dt_plan_file *f, const void *key);
void dt_plan_file_put(struct dt_plan_file *f, const void *key, const void *value);
/* Empties the file in memory. From now on it is neither read nor written. */
void dt_plan_file_forget(struct dt_plan_file *f);
/* Locks the file against other processes until unlock (or close), and reads it again. tick (may be
 * null) is called while another process holds the lock. */
int dt_plan_file_lock(struct dt_plan_file *f, void (*tick)(void *context), void *context, struct dt_error *err);
void dt_plan_file_unlock(struct dt_plan_file *f);
/* Writes the whole file, first under a temporary name. Call it with the file locked. */
int dt_plan_file_save(const struct dt_plan_file *f, struct dt_error *err);
/* tell writes the rows of these keys, one after the other, as a file's text. take replaces all rows
 * in memory by those of such a text. False: the text is damaged or of another device. keep: also
 * adds the rows to the file on the disk, if it lacks their keys; if it cannot, one warning is
 * written. */
void dt_plan_file_tell(const struct dt_plan_file *f, const void *keys, size_t count, struct dt_text *out);
bool dt_plan_file_take(struct dt_plan_file *f, const char *told, bool keep);
void dt_plan_file_close(struct dt_plan_file *f); /* null is allowed */

/* For `take`: reads one number in base `base`, at most `most`, and moves *at past it and the blank
 * or newline after it. */
bool dt_plan_file_number(char **at, int base, uint64_t most, uint64_t *out);
/* For `put` and `take`: an engine of cuDNN and its knobs, as the rest of a line. */
void dt_dnn_config_put(struct dt_text *out, const struct dt_dnn_config *config);
bool dt_dnn_config_take(char **at, struct dt_dnn_config *config);

#ifdef __cplusplus
}
#endif
#endif
