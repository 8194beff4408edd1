/* Checkpoints: logical slices of named tensors in safetensors files, one per writing rank, plus
 * manifest.json with checksums, written last. Loads on any world size and strategy: a reader
 * asks for elements of a tensor by name. Layout:
 *   DIR/step-00000300/slices-00000-of-00002.safetensors  manifest.json      DIR/latest: name of the newest complete one */
#ifndef DT_WORKER_CHECKPOINTS_CHECKPOINT_H
#define DT_WORKER_CHECKPOINTS_CHECKPOINT_H

#include "base/dtype.h"
#include "base/error.h"
#include "base/text.h"
#include "worker/data/data.h"
#include "worker/model/block.h"
#include "worker/run/horizon.h"

#include <stdbool.h>
#include <stdint.h>

/* Where data comes from that does not lie in host memory as fp32: by pieces, each done with
 * before the next one is asked for. */
struct checkpoint_reader {
    /* `count` elements from element `first` on of what lies `at`. *out: where they are as fp32,
     * until the next call. */
    int (*read)(void *context, const void *at, int64_t first, int64_t count, const float **out, struct dt_error *err);
    void *context;
};
enum { CHECKPOINT_PIECE = 1 << 20 }; /* elements of a piece at most */

/* What a rank contributes: elements [first, first + count) of logical tensor `name` for one
 * purpose. */
struct checkpoint_slice {
    const char *name;    /* tensor name; purpose is a prefix in the file: "weight/", "exp_avg/",
                          * "exp_avg_sq/" */
    const char *purpose; /* "weight", "exp_avg", "exp_avg_sq" */
    enum role role;      /* frozen tensors and buffers have a "weight" alone */
    int dims;
    int64_t shape[4], numel; /* of the whole tensor */
    int64_t first, count;
    const void *data;                       /* fp32 in host memory, or what the reader knows */
    const struct checkpoint_reader *reader; /* null: host memory */
};

/* everything else; the same on all ranks */
struct checkpoint_state {
    int64_t step, epoch, position; /* optimizer steps done; epoch and samples consumed in it by
                                    * all ranks */
    int64_t tokens;                /* seen since the start */
    int64_t optimizer_steps;       /* AdamW's step count */
    struct horizon horizon;        /* of.micro_batch 0: not known, it was saved by a version that
                                    * did not keep it */
    int64_t seed;
    uint64_t data_hash;
    const struct data_file *data; /* the files of data.train */
    int data_count;               /* 0: not known, alike; data_hash tells then */
    const char *tokenizer;        /* of the data; null or "": not known */
    const char *job;              /* JSON text of the job (struct job.text) */
    const char *model_config;     /* JSON text: config.json of the model */
    int ranks;
    int round;          /* the round that wrote it */
    const char *run_id; /* of the launch whose round it is; null or "" for a lone worker */
    const char *launch; /* which launch of that name (world.h); null or "": not known */
};

struct checkpoint_keep {
    int last_n;         /* complete ones, counted from the one just written; 0: all */
    int64_t named_step; /* the job names it: it stays; -1: none */
};

/* Rank 0, before anything else: nobody else may use DIR until *lock is closed (DIR.lock beside
 * it, by flock, so it ends with the process). Waits up to wait_s for one that is ending; then
 * DT_IN_USE says who holds it. From an older round of this launch that does not let go it is
 * taken away: its host is lost, perhaps frozen. *lock is -1, and nobody is kept away, on file
 * systems without locks. */
int checkpoint_hold(const char *dir, const char *run_id, const char *launch, int round, double wait_s, int *lock,
                    struct dt_error *err);
/* Before anything is started: DT_IN_USE when another job still holds DIR after wait_s. Takes and
 * makes nothing. run_id: a holder with that id is no other job; null: any is. */
int checkpoint_check_free(const char *dir, const char *run_id, double wait_s, struct dt_error *err);
/* Rank 0, at the start of a round: says that this round now writes into DIR. A commit by an
 * older round, or by another launch or run that was there before, is refused from then on.
 * Rounds are older or newer within one launch only, for each counts its own from 1. */
int checkpoint_claim(const char *dir, const char *run_id, const char *launch, int round, struct dt_error *err);
/* Every rank: writes its slices into DIR/step-N.tmp-ROUND-LAUNCH/slices-R-of-N.safetensors with
 * fsync, and a checksum list `out_entry` (JSON text) for the manifest. No communication. */
int checkpoint_write_slices(const char *dir, const struct checkpoint_state *state, int rank, int ranks,
                            const struct checkpoint_slice *slices, int slice_count, struct dt_text *out_entry,
                            struct dt_error *err);
/* Rank 0, after all ranks' entries arrived: writes manifest.json (last), renames the folder to
 * step-N, updates `latest`, removes leftovers and what `keep` does not hold. Other things in DIR
 * stay; one that has the name of this checkpoint is set aside (step-N.old-1) with a warning. A
 * checkpoint cut short at any system call is never loaded and never hides the one before it.
 * DT_IO when a rank's file is not there as it was written. Refuses (DT_STOPPED) when another
 * round or run has claimed DIR since. */
int checkpoint_commit(const char *dir, const struct checkpoint_state *state, const char *const *entries, int ranks,
                      const struct checkpoint_keep *keep, struct dt_error *err);
/* Rank 0, when a save failed: removes what was written of it. */
void checkpoint_discard(const char *dir, const struct checkpoint_state *state);
/* DIR/step-N; the caller frees. */
char *checkpoint_path(const char *dir, int64_t step);
/* Step number of a folder called "step-00000300", or -1: other ways to write it are not ours.
 * What a save has left ("step-00000300.tmp-2") sets *leftover. */
int64_t checkpoint_step_of(const char *name, bool *leftover);
/* It has a manifest, so it was complete once: what does not is no checkpoint, whatever its name. */
bool checkpoint_looks_whole(const char *path);
/* Steps of the checkpoints in DIR, the newest first, complete or not; a DIR that is not there
 * has none. The caller frees *steps. */
int checkpoint_steps(const char *dir, int64_t **steps, int *count, struct dt_error *err);
/* The newest complete checkpoint in DIR (by step; `latest` is for people); DT_NOT_FOUND when
 * there is none. path: the caller frees. Reads all of it and compares every checksum: incomplete
 * or damaged ones are skipped with a line each in `notes` (may be null). */
int checkpoint_find(const char *dir, char **path, struct dt_text *notes, struct dt_error *err);

struct checkpoint; /* an open checkpoint, read-only, mapped */
/* DT_INVALID also for a folder step-N that holds another step than N. */
int checkpoint_open(struct checkpoint **out, const char *path, struct dt_error *err);
/* Where the files lie that the run began with (origin.h), of a checkpoint in its folder; whether
 * they are there or not. The caller frees. */
char *checkpoint_origin(const char *path);
const char *checkpoint_get_path(const struct checkpoint *c);
/* lives as long as c */
const struct checkpoint_state *checkpoint_get_state(const struct checkpoint *c);
/* Reads elements [first, first + count) of a tensor; verifies the checksums of the blocks it
 * touches. DT_NOT_FOUND when the tensor is not there; DT_INVALID when its number of elements is
 * not numel. */
int checkpoint_read(struct checkpoint *c, const char *purpose, const char *name, int64_t numel, int64_t first,
                    int64_t count, float *out, struct dt_error *err);
/* Names and shapes of all tensors, in no particular order. */
int checkpoint_tensor_count(const struct checkpoint *c);
void checkpoint_tensor(const struct checkpoint *c, int i, const char **name, int *dims, const int64_t **shape);
/* Every checksum, every file; err names the first bad file and tensor. */
int checkpoint_verify(struct checkpoint *c, struct dt_error *err);
/* The same for part `part` of `parts` about equal ones: all of them together are
 * checkpoint_verify. */
int checkpoint_verify_part(struct checkpoint *c, int part, int parts, struct dt_error *err);
/* Calls tell(context) after each block (1 MiB) that was compared with its checksum: a sign of
 * life while much is read. */
void checkpoint_progress(struct checkpoint *c, void (*tell)(void *context), void *context);
/* One hash (32 hex digits) over the logical weights: names, shapes, dtypes, values, sorted by
 * name; the same for every world size and strategy. */
int checkpoint_hash(struct checkpoint *c, char out[33], struct dt_error *err);
void checkpoint_close(struct checkpoint *c);

#endif
