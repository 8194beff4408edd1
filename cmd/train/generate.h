/* train --generate: ids or text from a trained model. */
#ifndef DT_CMD_TRAIN_GENERATE_H
#define DT_CMD_TRAIN_GENERATE_H

#include "worker/job/job.h"

#include <stdbool.h>

struct train_generate {
    const char *path; /* null: not asked for */
    int count;        /* prompts, in the order given */
    struct train_prompt {
        bool is_text;
        const char *value;
    } * prompts;
    int64_t batch_size; /* 0: not given */
    bool json;
};

void train_add_prompt(struct train_generate *g, bool is_text, const char *value);
/* Are these options right together? beside: another thing that the program was told to do, "--plan", or
 * null. Says what is wrong. */
bool train_check_generate(const struct train_generate *g, const char *beside);
/* Prints the rows and returns the exit code. args: the job file, if any, and values that were set. */
int train_generate(const struct train_generate *g, const struct job_arguments *args);

#endif
