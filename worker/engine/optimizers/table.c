#include "worker/engine/optimizers/optimizers.h"

#include <stddef.h>
#include <string.h>

static const struct dt_rule beta = {.type = DT_RULE_NUMBER, .max = 1, .open_max = true};
static const struct dt_rule above_0 = {.type = DT_RULE_NUMBER, .open_min = true, .max = 1e30};
static const struct dt_rule share = {.type = DT_RULE_NUMBER, .max = 1};
static const struct dt_rule from_0 = {.type = DT_RULE_NUMBER, .max = 1e30};
static const struct dt_rule boolean = {.type = DT_RULE_BOOL};

#define AT(member) offsetof(struct dt_update_numbers, member)
/* Hugging Face's names, and their place; Adam has them, too. */
static const struct dt_field adamw_fields[] = {
    {"adam_beta1", "0.9", "decay of the first moment", AT(beta1), &beta},
    {"adam_beta2", "0.999", "decay of the second moment", AT(beta2), &beta},
    {"adam_epsilon", "1e-08", "added to the root of the second moment", AT(eps), &above_0},
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

static const struct optimizer_row rows[] = {
    {"adamw", {"exp_avg", "exp_avg_sq"}, NULL, 0, "training", adamw_fields, NULL, adamw, REACH_ELEMENT},
    {"adam", {"exp_avg", "exp_avg_sq"}, NULL, 0, "training", adamw_fields, NULL, adam, REACH_ELEMENT},
    {"sgd",
     {"momentum_buffer"},
     "momentum",
     offsetof(struct dt_update_numbers, momentum),
     "optimizer",
     sgd_fields,
     check_sgd,
     sgd,
     REACH_ELEMENT},
    {"lion", {"exp_avg"}, NULL, 0, "optimizer", lion_fields, NULL, lion, REACH_ELEMENT},
    {"adagrad", {"sum"}, NULL, 0, "optimizer", adagrad_fields, NULL, adagrad, REACH_ELEMENT},
    {"lamb", {"exp_avg", "exp_avg_sq"}, NULL, 0, "optimizer", lamb_fields, check_lamb, lamb, REACH_TENSOR},
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
    double needed = 1;
    if (row->needed_by != NULL) {
        memcpy(&needed, (const char *)numbers + row->needed_at, sizeof needed);
    }
    while (needed != 0 && count < DT_STATES_MAX && row->state[count] != NULL) {
        count++;
    }
    return count;
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
