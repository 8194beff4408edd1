/* Plan files: what was measured to be the fastest way that a library computes something, kept
 * for later starts. Another way has other bits, so who uses one never replaces a line of it, and
 * all ranks of a run compute by rank 0's. A file is of one kind (products, attention), GPU,
 * driver and library version. */
#ifndef DT_KERNELS_CUDA_PLAN_FILE_H
#define DT_KERNELS_CUDA_PLAN_FILE_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dt_text;

#ifdef __cplusplus
extern "C" {
#endif

/* Keys and values are compared and copied whole: bytes between their members are zero. */
struct dt_plan_kind {
    const char *name; /* of the files, NAME-HASH.plans, and of messages */
    const char *head; /* their first line */
    size_t key_bytes, value_bytes;
    /* A line of the file, without its end; and the other way, from *at on, which is moved behind
     * the line's end: into zeroed memory, false when it is none. */
    void (*put)(struct dt_text *out, const void *key, const void *value);
    bool (*take)(char **at, void *key, void *value);
};

struct dt_plan_file;
/* What a file is of, as dt_plan_file_open wants it: GPU number `index`, driver and library; the
 * caller frees it. */
char *dt_plan_file_device(int index, const char *library, size_t version);
/* Reads NAME-HASH.plans in $DTRUN_CACHE, $XDG_CACHE_HOME/dtrun or ~/.cache/dtrun; an empty one
 * when there is none. A damaged file, or one of another device than `of`, is said in one line
 * and counts as none. Never null; `kind` stays the caller's and outlives it. */
struct dt_plan_file *dt_plan_file_open(const struct dt_plan_kind *kind, const char *of);
/* the value, until the file is changed; or null */
const void *dt_plan_file_find(const struct dt_plan_file *f, const void *key);
void dt_plan_file_put(struct dt_plan_file *f, const void *key, const void *value);
/* From now on it is empty and has no place. */
void dt_plan_file_forget(struct dt_plan_file *f);
/* Alone among processes until unlock (or close), and read anew. tick, which may be null, is
 * called while another one has it. */
int dt_plan_file_lock(struct dt_plan_file *f, void (*tick)(void *context), void *context, struct dt_error *err);
void dt_plan_file_unlock(struct dt_plan_file *f);
/* Writes it whole, under a passing name first; locked. */
int dt_plan_file_save(const struct dt_plan_file *f, struct dt_error *err);
/* The rows of these keys, one after the other, as a file's text; and the other way: that text's
 * rows in place of all in memory. False when it is damaged or of another device. keep: the file
 * on the disk gets those that it has no key of; why it can't is said in one line. */
void dt_plan_file_tell(const struct dt_plan_file *f, const void *keys, size_t count, struct dt_text *out);
bool dt_plan_file_take(struct dt_plan_file *f, const char *told, bool keep);
void dt_plan_file_close(struct dt_plan_file *f); /* null is harmless */

/* For `take`: one number of base `base`, at most `most`; moves *at behind it and the blank or
 * newline after it. */
bool dt_plan_file_number(char **at, int base, uint64_t most, uint64_t *out);

#ifdef __cplusplus
}
#endif
#endif
