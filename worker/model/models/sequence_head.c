/* See the header. */
#include "worker/model/models/sequence_head.h"

#include "worker/model/blocks/dense.h"
#include "worker/model/models/family_keys.h"

#include <cjson/cJSON.h>
#include <string.h>

const char *const sequence_head_keys[] = {"num_labels", "problem_type", "task", "pad_token_id", NULL};
const char *const problem_texts[] = {[PROBLEM_CLASS] = "\"single_label_classification\"",
                                     [PROBLEM_NUMBERS] = "\"regression\"",
                                     [PROBLEM_CLASSES] = "\"multi_label_classification\"",
                                     [PROBLEM_BY_LABELS] = "null"};

bool sequence_head_named(const char *name)
{
    return strncmp(name, "score.", 6) == 0;
}

enum encoder_problem problem_of(int problem_type, int64_t num_labels)
{
    if (problem_type == PROBLEM_BY_LABELS) {
        return num_labels == 1 ? PROBLEM_NUMBERS : PROBLEM_CLASS;
    }
    return (enum encoder_problem)problem_type;
}

int sequence_head_check(const struct sequence_head *h, int64_t padding_id, const char **key, struct dt_error *err)
{
    if (h->task != DECODER_SEQUENCES) {
        return 0;
    }
    *key = "num_labels";
    if (h->num_labels == 1 && problem_of(h->problem_type, 1) == PROBLEM_CLASS) {
        return dt_fail(err, DT_INVALID, "num_labels 1: with one class there is nothing to learn; give 2 or more");
    }
    *key = "pad_token_id";
    return padding_id >= 0 ? 0
                           : dt_fail(err, DT_INVALID,
                                     "pad_token_id null: a sequence's class is that of its last token, which stands "
                                     "before the first padding; give the id that rows are padded with");
}

struct batch_field sequence_labels(int64_t samples, int64_t num_labels, enum encoder_problem asked)
{
    const struct batch_field classes = {.name = "labels",
                                        .type = DT_I32,
                                        .dims = 1,
                                        .most = {samples},
                                        .targets = true,
                                        .value = "class",
                                        .values = "classes",
                                        .below = num_labels,
                                        .below_key = "num_labels"},
                             numbers = {.name = "labels",
                                        .type = DT_F32,
                                        .dims = num_labels > 1 ? 2 : 1,
                                        .most = {samples, num_labels > 1 ? num_labels : 0},
                                        .targets = true,
                                        .shares = asked == PROBLEM_CLASSES};
    return asked == PROBLEM_CLASS ? classes : numbers;
}

/* 1 at the last id that is no padding, at the first one if all are; otherwise 0. */
static void last_of_ids(const int32_t *ids, int64_t count, int64_t padding_id, int32_t *out)
{
    int64_t last = 0;
    for (int64_t i = 0; i < count; i++) {
        out[i] = 0;
        last = ids[i] != padding_id ? i : last;
    }
    out[last] = 1;
}

struct batch_layout sequence_head_batch(const struct model_spec *spec, const struct sequence_head *h, int64_t ids,
                                        int64_t padding_id)
{
    struct batch_layout l = batch_tokens(spec->batch_size, spec->sequence_length, ids, "vocab_size");
    struct batch_field last = {.name = "last_tokens",
                               .type = DT_I32,
                               .dims = 2,
                               .most = {spec->batch_size, spec->sequence_length},
                               .derive = last_of_ids,
                               .from = 0,
                               .number = padding_id},
                       mask = last;
    mask.name = "attention_mask";
    mask.derive = NULL;
    mask.below = 2;
    mask.value = "value";
    mask.values = "values";
    mask.optional = true;
    mask.missing = 1;
    l.field[1] = mask;
    l.field[2] = last;
    l.field[3] = sequence_labels(spec->batch_size, h->num_labels, problem_of(h->problem_type, h->num_labels));
    l.count = 4;
    return l;
}

int sequence_head_add(struct chain *c, int root, const struct lm_head *last, const struct sequence_head *h,
                      struct dt_error *err)
{
    enum encoder_problem asked = problem_of(h->problem_type, h->num_labels);
    const struct class_head head = {.name = "score",
                                    .channels = last->channels,
                                    .classes = h->num_labels,
                                    .unbiased = true,
                                    .numbers = asked != PROBLEM_CLASS,
                                    .loss = asked == PROBLEM_CLASSES ? DT_LOSS_BINARY : DT_LOSS_SQUARED,
                                    .rule = {.weight = last->rule}};
    if (c->spec.documents) {
        return dt_fail(err, DT_INVALID, "model.task: samples of several documents are for task \"causal_lm\"");
    }
    return chain_add(c, &block_last_token, root, -1, last, sizeof *last, err) != 0
               ? -1
               : chain_add(c, &block_class_head, root, -1, &head, sizeof head, err);
}

bool sequence_head_flatten(cJSON *config)
{
    const cJSON *class = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(config, "architectures"), 0);
    const char *name = cJSON_IsString(class) ? class->valuestring : "";
    bool sequences = dt_text_ends_with(name, "ForSequenceClassification");
    family_count_labels(config);
    family_set(config, "task", cJSON_CreateString(sequences ? "sequence_classification" : "causal_lm"));
    return sequences;
}

void sequence_head_put(const struct sequence_head *h, void (*put)(void *to, const char *key, const char *json),
                       void *to)
{
    if (h->task == DECODER_SEQUENCES) {
        family_put_labels(h->num_labels, put, to);
        put(to, "problem_type", problem_texts[h->problem_type]);
    }
}
