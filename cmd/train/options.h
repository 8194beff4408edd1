/* The options of train. */
#ifndef DT_CMD_TRAIN_OPTIONS_H
#define DT_CMD_TRAIN_OPTIONS_H

#include "cmd/train/answer.h"
#include "cmd/train/embed.h"
#include "cmd/train/estimate.h"
#include "cmd/train/generate.h"
#include "worker/job/job.h"

struct train_options {
    struct job_arguments job;
    const char **set, **set_option, **config;
    int nproc;
    int64_t batch_size; /* 0: not given */
    bool plan, find_batch_size, json, print_config;
    struct train_question question;
    const char *evaluate;
    struct train_generate generate;
    struct train_embed embed;
    struct train_estimate estimate;
};

/* Reads the command line. -1: go on; otherwise the exit code, and all is said and done. train_free_options follows in
 * any case. */
int train_read_options(struct train_options *o, int argc, char **argv);
void train_free_options(struct train_options *o);
/* Adds a value of the job. option: the one that says this key; null for --set, with an empty key. */
void train_add_set(struct train_options *o, const char *option, const char *key, const char *value);

#endif
