/* ResNet (He et al., 2015), as Hugging Face's ResNetForImageClassification: images (B, C, H, W) through a
 * stem and stages of residual layers to a class each. Each layer is a unit. Weights may also have the
 * names of torchvision. */
#include "worker/model/models/resnet.h"

#include "worker/model/blocks/dense.h"
#include "worker/model/blocks/resnet_layer.h"
#include "worker/model/model.h"
#include "worker/model/models/family_keys.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NORM_EPSILON 1e-5
#define NORM_MOMENTUM 0.1
#define MOST_VALUES ((int64_t)1 << 32) /* of one image behind a layer */
enum { REDUCTION = 4 /* of the width within a bottleneck */, NAME_BYTES = 256 };

/* ---- keys ---- */

static const struct dt_rule channels = {.type = DT_RULE_INTEGER, .min = 1, .max = 16384};
static const struct dt_rule pixels = {.type = DT_RULE_INTEGER, .min = 1, .max = 8192};
static const struct dt_rule pixels_or_null = {.type = DT_RULE_INTEGER, .min = 1, .max = 8192, .null = true};
static const struct dt_rule labels = {.type = DT_RULE_INTEGER, .min = 2, .max = 1048576};
static const struct dt_rule stage_widths = {.type = DT_RULE_INTEGERS, .min = 1, .max = 16384};
static const struct dt_rule stage_depths = {.type = DT_RULE_INTEGERS, .min = 1, .max = 1000};
static const struct dt_rule layer_type = {.type = DT_RULE_ENUM, .choices = "basic|bottleneck"};
static const struct dt_rule stem = {.type = DT_RULE_ENUM, .choices = "imagenet|small"};
static const struct dt_rule relu = {.type = DT_RULE_ENUM, .choices = "relu"};

#define AT(member) offsetof(struct resnet, member)
static const struct dt_field fields[] = {
    {"num_channels", "3", "channels of an image", AT(num_channels), &channels},
    {"image_size", "224", "height of an image, and its width where image_width is null", AT(image_size), &pixels},
    {"image_width", "null", "width of an image", AT(image_width), &pixels_or_null},
    {"embedding_size", "64", "channels behind the stem", AT(embedding_size), &channels},
    {"hidden_sizes", "[256, 512, 1024, 2048]", "channels of each stage", AT(hidden_sizes), &stage_widths},
    {"depths", "[3, 4, 6, 3]", "layers of each stage", AT(depths), &stage_depths},
    {"layer_type", "\"bottleneck\"", "basic: two 3 x 3 convolutions; bottleneck: 1 x 1, 3 x 3, 1 x 1", AT(layer_type),
     &layer_type},
    {"stem", "\"imagenet\"", "imagenet: 7 x 7 with stride 2 and max pool; small: 3 x 3 for images of few pixels",
     AT(stem), &stem},
    {"hidden_act", "\"relu\"", "activation", AT(hidden_act), &relu},
    {"downsample_in_first_stage", "false", "the first stage has stride 2, too", AT(downsample_in_first_stage), &flag},
    {"downsample_in_bottleneck", "false", "a bottleneck has its stride in the first convolution, not in the second",
     AT(downsample_in_bottleneck), &flag},
    {"num_labels", "2", "number of classes", AT(num_labels), &labels},
    {0},
};
#undef AT
static const char *const spelled[] = {"num_labels", NULL};
static const char *const head_keys[] = {"num_labels", "image_size", "image_width", NULL};

static int64_t width_of(const struct resnet *m)
{
    return m->image_width > 0 ? m->image_width : m->image_size;
}

static int check(const void *sizes, const char **key, struct dt_error *err)
{
    const struct resnet *m = sizes;
    *key = "depths";
    if (m->depths.count != m->hidden_sizes.count) {
        return dt_fail(err, DT_INVALID, "%" PRId64 " depths and %" PRId64 " hidden_sizes; give one of each per stage",
                       m->depths.count, m->hidden_sizes.count);
    }
    *key = "hidden_sizes";
    for (int64_t i = 0; i < m->hidden_sizes.count; i++) {
        int64_t size = m->hidden_sizes.of[i];
        if (m->layer_type == RESNET_BOTTLENECK && size % REDUCTION != 0) {
            return dt_fail(err, DT_INVALID, "%" PRId64 " of a bottleneck must be a multiple of %d", size,
                           (int)REDUCTION);
        }
        if (m->image_size * width_of(m) > MOST_VALUES / size) {
            return dt_fail(err, DT_INVALID, "%" PRId64 " with images of %" PRId64 " x %" PRId64 " are too many values",
                           size, m->image_size, width_of(m));
        }
    }
    return 0;
}

/* ---- the chain ---- */

static void set_batch(struct chain *c, const struct resnet *m)
{
    int64_t samples = c->spec.batch_size;
    c->batch = (struct batch_layout){2,
                                     {{.name = "pixel_values",
                                       .type = DT_F32,
                                       .dims = 4,
                                       .most = {samples, m->num_channels, m->image_size, width_of(m)}},
                                      {.name = "labels",
                                       .type = DT_I32,
                                       .dims = 1,
                                       .most = {samples},
                                       .targets = true,
                                       .value = "class",
                                       .values = "classes",
                                       .below = m->num_labels,
                                       .below_key = "num_labels"}}};
}

/* Where the next convolution goes: the image so far. */
struct image {
    int64_t height, width, channels;
};

static struct conv convolution(const struct image *x, int64_t out, int64_t size, int64_t stride)
{
    return (struct conv){.height = x->height,
                         .width = x->width,
                         .in = x->channels,
                         .out = out,
                         .size = size,
                         .stride = stride,
                         .eps = NORM_EPSILON,
                         .momentum = NORM_MOMENTUM};
}

/* Adds a convolution behind those of the main path. */
static void add_convolution(struct resnet_layer *a, struct image *x, int64_t out, int64_t size, int64_t stride)
{
    struct conv c = convolution(x, out, size, stride);
    *x = (struct image){conv_height(&c), conv_width(&c), out};
    a->convs[a->count++] = c;
}

static struct resnet_layer stem_of(const struct resnet *m, struct image *x)
{
    bool small = m->stem == RESNET_STEM_SMALL;
    struct resnet_layer a = {.pools = !small};
    add_convolution(&a, x, m->embedding_size, small ? 3 : 7, small ? 1 : 2);
    a.convs[0].planar = true;
    (void)snprintf(a.convs[0].name, CONV_NAME_MAX, "resnet.embedder.embedder");
    x->height = resnet_height(&a);
    x->width = resnet_width(&a);
    return a;
}

static struct resnet_layer layer_of(const struct resnet *m, struct image *x, int64_t out, int64_t stride,
                                    const char *name)
{
    struct resnet_layer a = {.count = 0};
    const struct image before = *x;
    if (m->layer_type == RESNET_BASIC) {
        add_convolution(&a, x, out, 3, stride);
        add_convolution(&a, x, out, 3, 1);
    } else {
        add_convolution(&a, x, out / REDUCTION, 1, m->downsample_in_bottleneck ? stride : 1);
        add_convolution(&a, x, out / REDUCTION, 3, m->downsample_in_bottleneck ? 1 : stride);
        add_convolution(&a, x, out, 1, 1);
    }
    for (int i = 0; i < a.count; i++) {
        (void)snprintf(a.convs[i].name, CONV_NAME_MAX, "%s.layer.%d", name, i);
    }
    a.shortcut = before.channels != out || stride != 1;
    if (a.shortcut) {
        a.convs[a.count] = convolution(&before, out, 1, stride);
        (void)snprintf(a.convs[a.count].name, CONV_NAME_MAX, "%s.shortcut", name);
    }
    return a;
}

static int add_head(struct chain *c, const struct resnet *m, const struct image *x, struct dt_error *err)
{
    const struct resnet_pool pool = {x->height, x->width, x->channels};
    const struct class_head head = {
        .name = "classifier.1",
        .channels = x->channels,
        .classes = m->num_labels,
        .rule.weight = {.init = INIT_NORMAL, .init_std = sqrt(1.0 / (3.0 * (double)x->channels))}};
    int unit = chain_unit(c, "classifier", ROLE_TRAINED);
    return chain_add(c, &block_resnet_pool, unit, -1, &pool, sizeof pool, err) != 0
               ? -1
               : chain_add(c, &block_class_head, unit, -1, &head, sizeof head, err);
}

static int build(struct chain *c, struct dt_error *err)
{
    const struct resnet *m = c->spec.sizes;
    struct image x = {m->image_size, width_of(m), m->num_channels};
    set_batch(c, m);
    struct resnet_layer a = stem_of(m, &x);
    if (chain_add(c, &block_resnet_stem, chain_unit(c, "resnet.embedder", ROLE_TRAINED), -1, &a, sizeof a, err) != 0) {
        return -1;
    }
    int layer = 0;
    for (int64_t s = 0; s < m->depths.count; s++) {
        for (int64_t l = 0; l < m->depths.of[s]; l++) {
            char name[CONV_NAME_MAX / 2];
            (void)snprintf(name, sizeof name, "resnet.encoder.stages.%d.layers.%d", (int)s, (int)l);
            a = layer_of(m, &x, m->hidden_sizes.of[s], l == 0 && (s > 0 || m->downsample_in_first_stage) ? 2 : 1, name);
            int unit = chain_unit(c, name, ROLE_TRAINED);
            if (chain_add(c, &block_resnet_layer, unit, layer++, &a, sizeof a, err) != 0) {
                return -1;
            }
        }
    }
    return add_head(c, m, &x, err);
}

static double flops(const struct chain *c)
{
    const struct resnet *m = c->spec.sizes;
    double sum = 6.0 * (double)m->hidden_sizes.of[m->hidden_sizes.count - 1] * (double)m->num_labels;
    for (int i = 0; i + 2 < c->block_count; i++) {
        sum += resnet_layer_flops(c->blocks[i].args);
    }
    return sum;
}

/* ---- names ---- */

static const char *after(const char *s, const char *begin)
{
    return strncmp(s, begin, strlen(begin)) == 0 ? s + strlen(begin) : NULL;
}

/* Reads "12END", and returns what follows; null: it is something else. */
static const char *take_number(const char *s, const char *end, long *out)
{
    char *rest;
    *out = strtol(s, &rest, 10);
    return rest != s && *out >= 0 ? after(rest, end) : NULL;
}

/* "conv2.weight", "bn2.bias" and "downsample.0.weight" of a layer, behind `name`. */
static bool layer_name(const char *name, const char *rest, char *out, size_t out_bytes)
{
    const char *end;
    long number;
    if ((end = after(rest, "downsample.0.")) != NULL) {
        (void)snprintf(out, out_bytes, "%s.shortcut.convolution.%s", name, end);
    } else if ((end = after(rest, "downsample.1.")) != NULL) {
        (void)snprintf(out, out_bytes, "%s.shortcut.normalization.%s", name, end);
    } else if ((end = after(rest, "conv")) != NULL && (end = take_number(end, ".", &number)) != NULL) {
        (void)snprintf(out, out_bytes, "%s.layer.%ld.convolution.%s", name, number - 1, end);
    } else if ((end = after(rest, "bn")) != NULL && (end = take_number(end, ".", &number)) != NULL) {
        (void)snprintf(out, out_bytes, "%s.layer.%ld.normalization.%s", name, number - 1, end);
    } else {
        return false;
    }
    return true;
}

/* Converts a name of torchvision. False: it is none. */
static bool torchvision_name(const char *s, char *out, size_t out_bytes)
{
    const char *rest;
    long stage, layer;
    char name[64];
    if ((rest = after(s, "fc.")) != NULL) {
        (void)snprintf(out, out_bytes, "classifier.1.%s", rest);
    } else if ((rest = after(s, "conv1.")) != NULL) {
        (void)snprintf(out, out_bytes, "resnet.embedder.embedder.convolution.%s", rest);
    } else if ((rest = after(s, "bn1.")) != NULL) {
        (void)snprintf(out, out_bytes, "resnet.embedder.embedder.normalization.%s", rest);
    } else if ((rest = after(s, "layer")) != NULL && (rest = take_number(rest, ".", &stage)) != NULL &&
               (rest = take_number(rest, ".", &layer)) != NULL) {
        (void)snprintf(name, sizeof name, "resnet.encoder.stages.%ld.layers.%ld", stage - 1, layer);
        return layer_name(name, rest, out, out_bytes);
    } else {
        return false;
    }
    return true;
}

static bool canonical_name(const char *file_name, char *out, size_t out_bytes)
{
    bool inner = after(file_name, "embedder.") != NULL || after(file_name, "encoder.") != NULL; /* of a ResNetModel */
    if (inner || !torchvision_name(file_name, out, out_bytes)) {
        (void)snprintf(out, out_bytes, "%s%s", inner ? "resnet." : "", file_name);
    }
    return true;
}

static bool is_head(const char *name)
{
    return after(name, "classifier.") != NULL;
}

/* ---- config.json ---- */

static int flatten_config(cJSON *config, struct dt_error *err)
{
    (void)err;
    family_count_labels(config);
    return 0;
}

static void put_config(const void *sizes, void (*put)(void *to, const char *key, const char *json), void *to)
{
    family_put_labels(((const struct resnet *)sizes)->num_labels, put, to);
}

static void note_export(const void *sizes, struct dt_text *out)
{
    if (((const struct resnet *)sizes)->stem == RESNET_STEM_SMALL) {
        dt_text_puts(out,
                     "model.stem is small, and Transformers' ResNet has no such stem: it does not load this folder, "
                     "which train and dtckpt read");
    }
}

const struct model_ops model_resnet = {.name = "resnet",
                                       .architecture = "ResNetForImageClassification",
                                       .smaller = "model.image_size)",
                                       .fields = fields,
                                       .sizes_bytes = sizeof(struct resnet),
                                       .spelled = spelled,
                                       .head_keys = head_keys,
                                       .is_head = is_head,
                                       .put_head = put_config,
                                       .check = check,
                                       .build = build,
                                       .flops = flops,
                                       .canonical_name = canonical_name,
                                       .flatten_config = flatten_config,
                                       .note_export = note_export,
                                       .put_config = put_config};
