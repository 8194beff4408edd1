/* A perceptron that classifies images: (B, C, S, S) pixels less their mean, two hidden layers of
 * different widths with ReLU, an untied head, and cross entropy over the labels. The mean is the
 * batch's in training, and a running one in evaluation: a buffer, as in a batch norm. */
#include "worker/model/models/mlp.h"

#include "worker/model/blocks/dense.h"
#include "worker/model/model.h"

#include <stdio.h>

static const struct dt_rule size = {.type = DT_RULE_INTEGER, .min = 1, .max = 65536};
static const struct dt_rule labels = {.type = DT_RULE_INTEGER, .min = 2, .max = 1048576};
static const struct dt_rule frozen = {.type = DT_RULE_INTEGER, .min = 0, .max = 2};
static const struct dt_rule share = {.type = DT_RULE_NUMBER, .max = 1};
static const struct dt_rule deviation = {.type = DT_RULE_NUMBER, .max = 1e30};

#define AT(member) offsetof(struct mlp, member)
static const struct dt_field fields[] = {
    {"num_channels", "1", "channels of an image", AT(num_channels), &size},
    {"image_size", "28", "height and width of an image", AT(image_size), &size},
    {"hidden_size", "128", "width of the first hidden layer", AT(hidden_size), &size},
    {"last_hidden_size", "64", "width of the second hidden layer", AT(last_hidden_size), &size},
    {"num_labels", "10", "number of classes", AT(num_labels), &labels},
    {"frozen_layers", "0", "hidden layers, from the first one on, that keep their weights", AT(frozen_layers), &frozen},
    {"momentum", "0.1", "share of the newest batch in the running mean of the pixels", AT(momentum), &share},
    {"initializer_range", "0.02", "standard deviation of initial weights", AT(initializer_range), &deviation},
    {0},
};
#undef AT

static int check(const void *sizes, const char **key, struct dt_error *err)
{
    const struct mlp *m = sizes;
    if (m->num_channels * m->image_size > ((int64_t)1 << 40) / m->image_size / m->hidden_size) {
        *key = "image_size";
        return dt_fail(
            err, DT_INVALID, "an image of %lld x %lld x %lld and hidden_size %lld are more than 2^40 weights",
            (long long)m->num_channels, (long long)m->image_size, (long long)m->image_size, (long long)m->hidden_size);
    }
    return 0;
}

/* Each layer is a unit, so it can be trained or frozen on its own. */
static int build(struct chain *c, struct dt_error *err)
{
    const struct mlp *m = c->spec.sizes;
    int64_t samples = c->spec.batch_size, pixels = m->num_channels * m->image_size * m->image_size;
    c->batch = (struct batch_layout){2,
                                     {{.name = "pixel_values",
                                       .type = DT_F32,
                                       .dims = 4,
                                       .most = {samples, m->num_channels, m->image_size, m->image_size}},
                                      {.name = "labels",
                                       .type = DT_I32,
                                       .dims = 1,
                                       .most = {samples},
                                       .targets = true,
                                       .value = "class",
                                       .values = "classes",
                                       .below = m->num_labels,
                                       .below_key = "num_labels"}}};
    const struct dense_args layers[] = {
        {.name = "layers.0",
         .in = pixels,
         .out = m->hidden_size,
         .frozen = m->frozen_layers > 0,
         .momentum = m->momentum},
        {.name = "layers.1", .in = m->hidden_size, .out = m->last_hidden_size, .frozen = m->frozen_layers > 1}};
    const struct class_head head = {.name = "classifier",
                                    .channels = m->last_hidden_size,
                                    .classes = m->num_labels,
                                    .rule.weight = {.init = INIT_NORMAL, .init_std = m->initializer_range}};
    const struct block_ops *const ops[] = {&block_pixels, &block_dense};
    for (int i = 0; i < 2; i++) {
        struct dense_args args = layers[i];
        args.init_std = m->initializer_range;
        int unit = chain_unit(c, args.name, args.frozen ? ROLE_FROZEN : ROLE_TRAINED);
        if (chain_add(c, ops[i], unit, i, &args, sizeof args, err) != 0) {
            return -1;
        }
    }
    return chain_add(c, &block_class_head, chain_unit(c, head.name, ROLE_TRAINED), -1, &head, sizeof head, err);
}

static double flops(const struct chain *c)
{
    return 6.0 * (double)c->parameter_count;
}

static bool canonical_name(const char *file_name, char *out, size_t out_bytes)
{
    (void)snprintf(out, out_bytes, "%s", file_name);
    return true;
}

const struct model_ops model_mlp = {.name = "mlp",
                                    .architecture = "MlpForImageClassification",
                                    .smaller = "model.hidden_size)",
                                    .fields = fields,
                                    .sizes_bytes = sizeof(struct mlp),
                                    .check = check,
                                    .build = build,
                                    .flops = flops,
                                    .canonical_name = canonical_name};
