/* Embeddings of texts: the last hidden states of a trained model, pooled to one vector for each text, as the
 * sentence-transformers library has them. A text's vector depends on no other text beside it but by rounding. */
#ifndef DT_WORKER_RUN_EMBED_H
#define DT_WORKER_RUN_EMBED_H

#include "worker/run/model_source.h"

#include <stdint.h>

/* Ways to make one vector of a text's hidden states, in the order in which the library joins them: that of the first
 * token; the largest of each element; the mean; the sum over the root of their number; the mean with weights 1, 2, ...;
 * that of the last token. */
enum pooling_kind { POOLED_CLS, POOLED_MAX, POOLED_MEAN, POOLED_ROOT, POOLED_WEIGHTED, POOLED_LAST, POOLED_KINDS };
/* As options and files name them: "cls|max|mean|mean_sqrt_len_tokens|weightedmean|lasttoken". */
extern const char *const pooling_names[POOLED_KINDS + 1];

struct embed_options {
    bool pools[POOLED_KINDS]; /* those that are joined; at least one */
    bool normalize;           /* vectors have length 1 */
    int64_t max_length;       /* ids of a text, special tokens among them; the rest is cut off */
    int64_t batch_size;       /* texts at a time */
    int threads;              /* 0: as many as this process may use cores */
    char *prompt;             /* stands before each text; null: nothing. Freed by embed_options_clear */
    bool strips;              /* white space before and behind a text goes away */
};

/* What the folder of the model says, in the files of the sentence-transformers library: modules.json and the folders
 * that it names, sentence_bert_config.json, tokenizer_config.json, config_sentence_transformers.json. Without them: the
 * mean, not normalized. reads_modules false: modules.json does not count, and the caller says how to pool. DT_INVALID: a
 * module is none that we compute. */
int embed_settings(const struct model_source *source, bool reads_modules, struct embed_options *out,
                   struct dt_error *err);
void embed_options_clear(struct embed_options *o);

/* One text: its ids with their types (null: all 0), and room for its vector. */
struct embed_row {
    const int32_t *ids;
    const uint8_t *types;
    int64_t count;
    float *vector; /* embedder_width elements */
};

struct embedder;
/* Opens the model and reads its weights. The options are borrowed until embedder_close. DT_INVALID: a model without
 * tokens, or max_length is more than its positions. */
int embedder_open(struct embedder **out, const struct model_source *source, const struct embed_options *options,
                  struct dt_error *err);
/* Elements of a vector. */
int64_t embedder_width(const struct embedder *e);
/* The most ids of a text, and the number of ids that the model knows. */
int64_t embedder_longest(const struct embedder *e);
int64_t embedder_vocabulary(const struct embedder *e);
/* Fills in the vectors of all rows; rows of like lengths are computed together. DT_INVALID: a row has no ids, too many,
 * or one that the model does not know; it is named as text `first` + its number, from 1. */
int embedder_run(struct embedder *e, const struct embed_row *rows, int64_t count, int64_t first, struct dt_error *err);
void embedder_close(struct embedder *e); /* null is allowed */

#endif
