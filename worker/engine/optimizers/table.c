#include "worker/engine/optimizers/optimizers.h"

#include <stddef.h>
#include <string.h>

static const struct dt_rule beta = {.type = DT_RULE_NUMBER, .max = 1, .open_max = true};
static const struct dt_rule above_0 = {.type = DT_RULE_NUMBER, .open_min = true, .max = 1e30};
static const struct dt_rule share = {.type = DT_RULE_NUMBER, .max = 1};
static const struct dt_rule from_0 = {.type = DT_RULE_NUMBER, .max = 1e30};
static const struct dt_rule boolean = {.type = DT_RULE_BOOL};
static const struct dt_rule yes_or_no = {.type = DT_RULE_ENUM, .choices = "true|false"};
static const struct dt_rule iterations = {.type = DT_RULE_INTEGER, .min = 1, .max = 99};
static const struct dt_rule adjust = {.type = DT_RULE_ENUM, .choices = "original|match_rms_adamw|spectral_unclamped"};

#define AT(member) offsetof(struct dt_update_numbers, member)
/* Hugging Face's names, and their place; Adam has them, too. */
static const struct dt_field adamw_fields[] = {
    {"adam_beta1", "0.9", "decay of the first moment", AT(beta1), &beta},
    {"adam_beta2", "0.999", "decay of the second moment", AT(beta2), &beta},
    {"adam_epsilon", "1e-08", "added to the root of the second moment", AT(eps), &above_0},
    {"adam_amsgrad", "false", "the root is of the largest second moment so far", AT(amsgrad), &boolean},
    {"adam_bias_correction", "true", "false: the moments' bias towards 0 in the first steps stays", AT(uncorrected),
     &yes_or_no},
    {0},
};
static const struct dt_field sgd_fields[] = {
    {"momentum", "0", "sgd: share of the momentum buffer that is kept; 0: no buffer", AT(momentum), &beta},
    {"dampening", "0", "sgd: share of the gradient that the momentum buffer does not get", AT(dampening), &share},
    {"nesterov", "false", "sgd: Nesterov's momentum", AT(nesterov), &boolean},
    {0},
};
static const struct dt_field lion_fields[] = {
    {"beta1", "0.9", "lion: share of the momentum in the step's direction", AT(beta1), &beta},
    {"beta2", "0.99", "lion: share of the momentum that is kept", AT(beta2), &beta},
    {0},
};
static const struct dt_field adagrad_fields[] = {
    {"lr_decay", "0", "adagrad: the rate is divided by 1 + (step - 1) lr_decay", AT(lr_decay), &from_0},
    {"initial_accumulator_value", "0", "adagrad: what the sums of squares begin at", AT(initial), &from_0},
    {"eps", "1e-10", "adagrad: added to the root of the sum of squares", AT(eps), &above_0},
    {0},
};
/* DeepSpeed's names. */
static const struct dt_field lamb_fields[] = {
    {"beta1", "0.9", "lamb: decay of the first moment", AT(beta1), &beta},
    {"beta2", "0.999", "lamb: decay of the second moment", AT(beta2), &beta},
    {"eps", "1e-08", "lamb: added to the root of the second moment", AT(eps), &above_0},
    {"min_coeff", "0.01", "lamb: least ratio of a tensor's norm to its step's", AT(min_coeff), &above_0},
    {"max_coeff", "10", "lamb: largest ratio of a tensor's norm to its step's", AT(max_coeff), &above_0},
    {"bias_correction", "true", "lamb: false: the moments' bias towards 0 in the first steps stays", AT(uncorrected),
     &yes_or_no},
    {0},
};
/* PyTorch's names. */
static const struct dt_field muon_fields[] = {
    {"momentum", "0.95", "muon: share of the momentum that is kept", AT(momentum), &beta},
    {"nesterov", "true", "muon: Nesterov's momentum", AT(nesterov), &boolean},
    {"ns_steps", "5", "muon: iterations of Newton and Schulz", AT(ns_steps), &iterations},
    {"eps", "1e-07", "muon: least norm that a matrix is divided by", AT(eps), &above_0},
    {"adjust_lr_fn", "\"original\"", "muon: how the rate follows from a matrix's shape", AT(adjust), &adjust},
    {"adamw_learning_rate", "0",
     "muon: what the tensors that go by adamw have where the others have training.learning_rate; 0: the same",
     AT(rest_lr), &from_0},
    {0},
};
#undef AT

static int check_sgd(const struct dt_update_numbers *numbers, const char **key, struct dt_error *err)
{
    *key = "nesterov";
    if (numbers->nesterov && (numbers->momentum == 0 || numbers->dampening != 0)) {
        return dt_fail(err, DT_INVALID, "needs a momentum above 0 and a dampening of 0; give them, or write false");
    }
    return 0;
}

static int check_lamb(const struct dt_update_numbers *numbers, const char **key, struct dt_error *err)
{
    *key = "min_coeff";
    return numbers->min_coeff <= numbers->max_coeff
               ? 0
               : dt_fail(err, DT_INVALID, "is above optimizer.max_coeff; give a smaller one");
}

static int states_of_adam(const struct dt_update_numbers *numbers)
{
    return numbers->amsgrad ? 3 : 2;
}

static int states_of_sgd(const struct dt_update_numbers *numbers)
{
    return numbers->momentum != 0 ? 1 : 0;
}

static void adamw(const struct dt_kernels *k, struct dt_stream *s, const struct dt_update_args *a)
{
    k->adamw_many(s, a);
}

static void adam(const struct dt_kernels *k, struct dt_stream *s, const struct dt_update_args *a)
{
    k->adam_many(s, a);
}

static void sgd(const struct dt_kernels *k, struct dt_stream *s, const struct dt_update_args *a)
{
    k->sgd_many(s, a);
}

static void lion(const struct dt_kernels *k, struct dt_stream *s, const struct dt_update_args *a)
{
    k->lion_many(s, a);
}

static void adagrad(const struct dt_kernels *k, struct dt_stream *s, const struct dt_update_args *a)
{
    k->adagrad_many(s, a);
}

static void lamb(const struct dt_kernels *k, struct dt_stream *s, const struct dt_update_args *a)
{
    k->lamb_many(s, a);
}

static void muon(const struct dt_kernels *k, struct dt_stream *s, const struct dt_update_args *a)
{
    k->muon_many(s, a);
}

#define MOMENTS                                                                                                        \
    {                                                                                                                  \
        "exp_avg", "exp_avg_sq", "max_exp_avg_sq"                                                                      \
    }
static const struct optimizer_row rows[] = {
    {"adamw", MOMENTS, "adam_amsgrad", states_of_adam, "training", adamw_fields, NULL, adamw, REACH_ELEMENT, NULL},
    {"adam", MOMENTS, "adam_amsgrad", states_of_adam, "training", adamw_fields, NULL, adam, REACH_ELEMENT, NULL},
    {"sgd",
     {"momentum_buffer"},
     "momentum",
     states_of_sgd,
     "optimizer",
     sgd_fields,
     check_sgd,
     sgd,
     REACH_ELEMENT,
     NULL},
    {"lion", {"exp_avg"}, NULL, NULL, "optimizer", lion_fields, NULL, lion, REACH_ELEMENT, NULL},
    {"adagrad", {"sum"}, NULL, NULL, "optimizer", adagrad_fields, NULL, adagrad, REACH_ELEMENT, NULL},
    {"lamb", {"exp_avg", "exp_avg_sq"}, NULL, NULL, "optimizer", lamb_fields, check_lamb, lamb, REACH_TENSOR, NULL},
    {"muon", {"momentum_buffer"}, NULL, NULL, "optimizer", muon_fields, NULL, muon, REACH_MATRIX, "adamw"},
};
enum { ROW_COUNT = sizeof rows / sizeof rows[0] };

const struct optimizer_row *optimizer_at(int i)
{
    return i < ROW_COUNT ? &rows[i] : NULL;
}

const struct optimizer_row *optimizer_find(const char *name)
{
    for (int i = 0; i < ROW_COUNT; i++) {
        if (strcmp(rows[i].name, name) == 0) {
            return &rows[i];
        }
    }
    return NULL;
}

int optimizer_row_states(const struct optimizer_row *row, const struct dt_update_numbers *numbers)
{
    int count = 0;
    while (count < DT_STATES_MAX && row->state[count] != NULL) {
        count++;
    }
    return row->states != NULL ? row->states(numbers) : count;
}

const struct optimizer_row *optimizer_rest(const struct optimizer_row *row)
{
    return row->rest != NULL ? optimizer_find(row->rest) : NULL;
}

bool optimizer_has_key(const struct optimizer_row *row, const char *section, const char *key)
{
    for (; row != NULL; row = optimizer_rest(row)) {
        for (const struct dt_field *f = row->fields; strcmp(row->section, section) == 0 && f->key != NULL; f++) {
            if (strcmp(f->key, key) == 0) {
                return true;
            }
        }
    }
    return false;
}

const char *optimizer_state_named(const char *name)
{
    for (int i = 0; i < ROW_COUNT; i++) {
        for (int k = 0; k < DT_STATES_MAX && rows[i].state[k] != NULL; k++) {
            if (strcmp(rows[i].state[k], name) == 0) {
                return rows[i].state[k];
            }
        }
    }
    return NULL;
}
