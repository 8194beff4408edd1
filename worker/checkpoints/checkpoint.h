/* Checkpoints: logical slices of named tensors in safetensors files, one file per writing rank,
 * plus manifest.json with checksums, written last. A checkpoint loads with any world size and
 * strategy: a reader asks for elements of a tensor by name. Layout:
 *   DIR/step-00000300/slices-00000-of-00002.safetensors
 *   DIR/step-00000300/manifest.json
 *   DIR/latest                    name of the newest complete checkpoint */
#ifndef DT_WORKER_CHECKPOINTS_CHECKPOINT_H
#define DT_WORKER_CHECKPOINTS_CHECKPOINT_H

#include "base/dtype.h"
#include "base/error.h"
#include "base/text.h"
#include "worker/data/data.h"
#include "worker/model/block.h"
#include "worker/engine/horizon.h"
#include "worker/engine/outliers.h"
#include "worker/engine/scaler.h"
#include "worker/engine/schedules/plateau.h"
#include "worker/engine/stopping.h"

#include <stdbool.h>
#include <stdint.h>

/* A source of data that is not fp32 in host memory. It is read piece by piece; a piece is used
 * before the next one is asked for. */
struct checkpoint_reader {
    /* Reads `count` elements, from element `first` on, of the data `at`. *out: these elements as
     * fp32, valid until the next call. */
    int (*read)(void *context, const void *at, int64_t first, int64_t count, const float **out, struct dt_error *err);
    void *context;
};
enum { CHECKPOINT_PIECE = 1 << 20 }; /* most elements of a piece */

/* Purposes of communication hooks: of PowerSGD, the first elements of a matrix that is no larger than the
 * tensor; and, with the rank's number behind it, the error of a rank. Not every tensor has them. */
#define CHECKPOINT_COMM_Q "comm_q"
#define CHECKPOINT_COMM_ERROR "comm_error_"

/* One rank's part: elements [first, first + count) of the logical tensor `name`, for one
 * purpose. */
struct checkpoint_slice {
    /* name of the tensor; in the file the purpose is its prefix: "weight/", "exp_avg/" */
    const char *name;
    /* "weight", the name of an optimizer's state (optimizers.h), or what a communication hook keeps */
    const char *purpose;
    enum role role; /* frozen tensors and buffers have only a "weight" */
    /* the states of a tensor, "exp_avg,exp_avg_sq", where they are not the same of all; or null. For "weight" */
    const char *states;
    int dims;
    int64_t shape[4], numel; /* of the whole tensor */
    int64_t first, count;
    /* fp32 in host memory, or what the reader takes as `at` */
    const void *data;
    const struct checkpoint_reader *reader; /* null: data is in host memory */
};

/* Everything else in a checkpoint. It is the same on all ranks. */
struct checkpoint_state {
    /* optimizer steps done; epoch, and samples that all ranks together have consumed in it */
    int64_t step, epoch, position;
    int64_t blank_steps;     /* steps without targets so far */
    int64_t tokens;          /* tokens seen since the start of training */
    int64_t optimizer_steps; /* the optimizer's step count */
    /* of.micro_batch 0: unknown, because an older version has saved it */
    struct horizon horizon;
    struct scaler_state scaler;    /* scale 0: there is none */
    struct outlier_steps outliers; /* kept 0: none */
    struct plateau plateau;        /* checks 0: the schedule does not look at evaluations */
    struct stopper stopper;        /* checks 0: early_stopping has seen none */
    struct best_list best;         /* of checkpointing.save_top_k, with this one where it is one of them */
    double trained_s;              /* seconds of training, over all starts */
    int64_t seed;
    uint64_t data_hash;
    const struct data_file *data; /* the files of data.train */
    int data_count;               /* 0: unknown for the same reason; then compare data_hash */
    const char *tokenizer;        /* the tokenizer of the data; null or "": unknown */
    const char *job;              /* JSON text of the job (struct job.text) */
    const char *model_config;     /* JSON text: config.json of the model */
    int ranks;
    int round; /* the round that wrote the checkpoint */
    /* run id of the launch of that round; null or "" for a worker without a launcher */
    const char *run_id;
    const char *launch; /* the launch, among those of that run id (world.h); null or "": unknown */
};

struct checkpoint_keep {
    /* number of complete checkpoints to keep, counted from the one just written; 0: all */
    int last_n;
    int64_t named_step;           /* a step that is never removed, because the job names it; -1: none */
    const struct best_list *best; /* steps that are not removed either; null: none */
};

/* Rank 0, first of all: locks DIR against other jobs until *lock is closed. The lock is a flock on
 * DIR.lock beside DIR, so it ends with the process. Waits up to wait_s for a job that is ending;
 * then fails with DT_IN_USE, which names the holder. If an older round of this launch keeps the
 * lock, its host is lost or frozen, and the lock is taken from it. On file systems without locks
 * *lock is -1, and no job is kept away. */
int checkpoint_hold(const char *dir, const char *run_id, const char *launch, int round, double wait_s, int *lock,
                    struct dt_error *err);
/* Before anything is started: DT_IN_USE if another job still holds DIR after wait_s. Takes no lock
 * and creates nothing. run_id: a holder with that id is not another job; null: every holder is. */
int checkpoint_check_free(const char *dir, const char *run_id, double wait_s, struct dt_error *err);
/* Rank 0, at the start of a round: makes this round the owner of DIR. From then on commits of an
 * older round, or of another launch or run that was there before, are refused. Each launch counts
 * its rounds from 1, so rounds are compared within one launch only. */
int checkpoint_claim(const char *dir, const char *run_id, const char *launch, int round, struct dt_error *err);
/* Every rank: writes and syncs its slices,
 * DIR/step-N.tmp-ROUND-LAUNCH/slices-R-of-N.safetensors. out_entry: the rank's part of the
 * manifest, with checksums, as JSON text. Does not communicate. */
int checkpoint_write_slices(const char *dir, const struct checkpoint_state *state, int rank, int ranks,
                            const struct checkpoint_slice *slices, int slice_count, struct dt_text *out_entry,
                            struct dt_error *err);
/* The same into an open file, from where it stands: nothing is synced. *size_bytes: what was written. */
int checkpoint_write_fd(int fd, int rank, int ranks, const struct checkpoint_slice *slices, int slice_count,
                        struct dt_text *out_entry, int64_t *size_bytes, struct dt_error *err);
/* Rank 0, once it has the entries of all ranks: writes manifest.json (last), renames the folder to
 * step-N, updates `latest`, and removes leftovers and the checkpoints that `keep` does not keep.
 * Other files in DIR stay. A foreign folder with the name of this checkpoint is set aside
 * (step-N.old-1) with a warning. A save interrupted at any system call is never loaded, and never
 * hides the checkpoint before it. DT_IO: a rank's file is not there as it was written. DT_STOPPED:
 * another round or run has claimed DIR since. */
int checkpoint_commit(const char *dir, const struct checkpoint_state *state, const char *const *entries, int ranks,
                      const struct checkpoint_keep *keep, struct dt_error *err);
/* Rank 0, after a failed save: removes what was written of it. */
void checkpoint_discard(const char *dir, const struct checkpoint_state *state);
/* DIR/step-N; the caller frees it. */
char *checkpoint_path(const char *dir, int64_t step);
/* Step number of a folder called "step-00000300", or -1. Other spellings of the number are not
 * ours. *leftover: the name has an ending of an unfinished save ("step-00000300.tmp-2"). */
int64_t checkpoint_step_of(const char *name, bool *leftover);
/* True if the folder has a manifest, so it was complete once. A folder without one is no
 * checkpoint, whatever its name. */
bool checkpoint_looks_whole(const char *path);
/* Steps of the checkpoints in DIR, the newest first, complete or not. A missing DIR has none. The
 * caller frees *steps. */
int checkpoint_steps(const char *dir, int64_t **steps, int *count, struct dt_error *err);
/* Finds the newest complete checkpoint in DIR, by step (`latest` is for people). DT_NOT_FOUND:
 * there is none. The caller frees path. Reads all of the checkpoint and compares every checksum.
 * Incomplete and damaged ones are skipped; `notes` (may be null) says why of each, and which one is taken then. */
int checkpoint_find(const char *dir, char **path, struct dt_text *notes, struct dt_error *err);

struct checkpoint; /* an open checkpoint: read-only and mapped */
/* Opens a checkpoint. DT_INVALID also for a folder step-N that holds another step than N. */
int checkpoint_open(struct checkpoint **out, const char *path, struct dt_error *err);
struct checkpoint_bytes { /* a rank's file in memory, which must live until checkpoint_close */
    const void *at;
    size_t size;
};
/* The same from memory: the text of the manifest, and its files in the manifest's order. They may be those of
 * some ranks only (checkpoint_holds). `name` is what the checkpoint is called in messages. */
int checkpoint_open_memory(struct checkpoint **out, const char *name, const struct dt_text *manifest,
                           const struct checkpoint_bytes *files, int file_count, struct dt_error *err);
/* The folder, beside a checkpoint, for the files that the run began with (origin.h), whether it
 * exists or not. The caller frees it. */
char *checkpoint_origin(const char *path);
const char *checkpoint_get_path(const struct checkpoint *c);
/* valid as long as c */
const struct checkpoint_state *checkpoint_get_state(const struct checkpoint *c);
/* Reads elements [first, first + count) of a tensor, and verifies the checksums of the blocks that
 * hold them. DT_NOT_FOUND: there is no such tensor. DT_INVALID: its number of elements is not
 * numel. */
int checkpoint_read(struct checkpoint *c, const char *purpose, const char *name, int64_t numel, int64_t first,
                    int64_t count, float *out, struct dt_error *err);
/* Does it have elements [first, first + count) of a tensor? Opened from a folder it has all. */
bool checkpoint_holds(const struct checkpoint *c, const char *purpose, const char *name, int64_t first, int64_t count);
/* Names and shapes of all tensors, in no particular order. */
int checkpoint_tensor_count(const struct checkpoint *c);
void checkpoint_tensor(const struct checkpoint *c, int i, const char **name, int *dims, const int64_t **shape);
/* Verifies every checksum of every file. err names the first bad file and tensor. */
int checkpoint_verify(struct checkpoint *c, struct dt_error *err);
/* Verifies part `part` of `parts` parts of about equal size. All parts together are
 * checkpoint_verify. */
int checkpoint_verify_part(struct checkpoint *c, int part, int parts, struct dt_error *err);
/* Calls tell(context) after each block (1 MiB) that was compared with its checksum. The caller can
 * show progress while much is read. */
void checkpoint_progress(struct checkpoint *c, void (*tell)(void *context), void *context);
/* Is there one slice of exactly the first `count` elements of the tensor for that purpose? */
bool checkpoint_has(const struct checkpoint *c, const char *purpose, const char *name, int64_t count);
/* One hash (32 hex digits) over the logical weights, sorted by name: names, shapes, dtypes, values.
 * It is the same for every world size and strategy. */
int checkpoint_hash(struct checkpoint *c, char out[33], struct dt_error *err);
void checkpoint_close(struct checkpoint *c);

#endif
