/* What the job's section `transforms` does to an image on its way into a batch, with torchvision's
 * names and arithmetic. In training the random ones follow from a counter: a function of the job's
 * seed, the epoch and the sample's number, so they do not depend on ranks, threads or restarts. */
#ifndef DT_WORKER_DATA_IMAGES_TRANSFORMS_H
#define DT_WORKER_DATA_IMAGES_TRANSFORMS_H

#include "worker/data/images/image.h"
#include "worker/job/job.h"

enum { TRANSFORM_CHANNELS = 3 };

struct transforms {
    struct job_transforms job;
    bool training; /* the random ones act */
    uint64_t seed;
    int channels;
    int64_t width, height; /* what the model reads */
    /* the number that stands for each byte of a channel */
    float value[TRANSFORM_CHANNELS][256];
};

/* DT_INVALID: a mean or deviation per channel, and other channels; or a number of channels that no
 * image has. */
int transforms_open(struct transforms *t, const struct job_transforms *job, bool training, uint64_t seed, int channels,
                    int64_t height, int64_t width, struct dt_error *err);
/* DT_INVALID if an image of width x height does not become one of the model's size. Fails for the
 * same sizes as transforms_apply. */
int transforms_check(const struct transforms *t, int64_t width, int64_t height, struct dt_error *err);
/* Writes the image `in` (of t->channels) as (channels, height, width) floats. `rows` and `resized`
 * are scratch. Returns -1 as transforms_check does. */
int transforms_apply(const struct transforms *t, const struct image *in, int64_t epoch, int64_t sample,
                     struct image *rows, struct image *resized, float *out, struct dt_error *err);

#endif
