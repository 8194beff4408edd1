/* A trained model, wherever its weights lie: a checkpoint, a folder of checkpoints or of a run (which
 * means the newest complete checkpoint there), or a Hugging Face folder. */
#ifndef DT_WORKER_RUN_MODEL_SOURCE_H
#define DT_WORKER_RUN_MODEL_SOURCE_H

#include "base/text.h"
#include "worker/checkpoints/checkpoint.h"
#include "worker/model/chain.h"

struct cJSON;
struct job;

struct model_source {
    /* the checkpoint or the folder that was found; null: none, the weights are those that a run begins with */
    char *path;
    struct checkpoint *checkpoint; /* null: it is a Hugging Face folder */
    const struct model_ops *model;
    struct model_sizes sizes;
    struct cJSON *config, *generation; /* config.json; generation_config.json, null: there is none */
    /* data.sequence_length of the run that wrote the checkpoint; 0: unknown */
    int64_t trained_length;
    /* tokenizer.json, or its folder: that of data.tokenizer, or else beside the weights; null: there is none */
    char *tokenizer;
};

/* Reads all but the weights. notes: lines about checkpoints that were skipped. DT_NOT_FOUND: there is
 * nothing at the path. model_source_close may follow in any case. */
int model_source_open(struct model_source *s, const char *path, struct dt_text *notes, struct dt_error *err);
/* The model that a job trains, without its weights: what the checkpoints of its run will say of it, from the
 * folder of model.load, or what the run has kept of it. */
int model_source_of_job(struct model_source *s, const struct job *job, struct dt_error *err);
/* Reads all weights as F32 into units[u], of chain->units[u].numel elements each, in host memory, and the
 * buffers and constants into `buffers`, of chain_buffers elements. chain is one of the source's model. */
int model_source_read(const struct model_source *s, const struct chain *chain, char *const *units, float *buffers,
                      struct dt_error *err);
void model_source_close(struct model_source *s);

#endif
