/* Classes of whole sequences by a decoder, as Hugging Face's ...ForSequenceClassification: the last token of a row that
 * is no padding, a map without bias, "score", and the losses of encoders. */
#ifndef DT_WORKER_MODEL_MODELS_SEQUENCE_HEAD_H
#define DT_WORKER_MODEL_MODELS_SEQUENCE_HEAD_H

#include "worker/model/blocks/blocks.h"
#include "worker/model/models/encoders.h"

enum { DECODER_NEXT_TOKENS, DECODER_SEQUENCES };
struct sequence_head {
    int64_t num_labels;
    int task, problem_type; /* of DECODER_...; enum encoder_problem */
};

static const struct dt_rule decoder_task = {.type = DT_RULE_ENUM, .choices = "causal_lm|sequence_classification"};
static const struct dt_rule label_rule = {.type = DT_RULE_INTEGER, .min = 1, .max = 65536};
static const struct dt_rule problem_rule = {.type = DT_RULE_ENUM,
                                            .choices =
                                                "single_label_classification|regression|multi_label_classification",
                                            .null = true,
                                            .null_value = PROBLEM_BY_LABELS};
#define PROBLEM_HELP                                                                                                   \
    "what a sequence gets: a class, num_labels numbers, or several classes; null: "                                    \
    "a number if num_labels is 1, otherwise a class"

/* The keys of a struct with a member `head`. */
#define SEQUENCE_HEAD(type)                                                                                            \
    {"task", "\"causal_lm\"", "what the model gives: next tokens, or a class of each sequence",                        \
     offsetof(type, head.task), &decoder_task},                                                                        \
        {"num_labels", "2", "number of classes of sequences", offsetof(type, head.num_labels), &label_rule},           \
    {                                                                                                                  \
        "problem_type", "null", PROBLEM_HELP, offsetof(type, head.problem_type), &problem_rule                         \
    }

/* For struct model_ops: head_keys, and is_head. */
extern const char *const sequence_head_keys[];
bool sequence_head_named(const char *name);

/* DT_INVALID: classes of which nothing can be learned, or no id for padding (-1). */
int sequence_head_check(const struct sequence_head *h, int64_t padding_id, const char **key, struct dt_error *err);
/* The batch: input_ids, attention_mask, last_tokens, labels. ids: how many there are. */
struct batch_layout sequence_head_batch(const struct model_spec *spec, const struct sequence_head *h, int64_t ids,
                                        int64_t padding_id);
/* Adds the two last blocks. last: the final norm, as of block_lm_head. */
int sequence_head_add(struct chain *c, int root, const struct lm_head *last, const struct sequence_head *h,
                      struct dt_error *err);
/* Gives config.json the members num_labels and task, from its labels and its class. True: sequences get classes. */
bool sequence_head_flatten(struct cJSON *config);
/* Writes labels and problem_type, if sequences get classes. */
void sequence_head_put(const struct sequence_head *h, void (*put)(void *to, const char *key, const char *json),
                       void *to);
/* The problem that a problem_type means, for so many labels: never PROBLEM_BY_LABELS. */
enum encoder_problem problem_of(int problem_type, int64_t num_labels);
/* The labels of sequences. */
struct batch_field sequence_labels(int64_t samples, int64_t num_labels, enum encoder_problem asked);
/* problem_type as JSON. */
extern const char *const problem_texts[];

#endif
