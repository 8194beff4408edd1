/* train --generate, --chat: ids or text from a trained model. */
#ifndef DT_CMD_TRAIN_GENERATE_H
#define DT_CMD_TRAIN_GENERATE_H

#include "worker/job/job.h"
#include "worker/run/generate.h"

#include <stdbool.h>

struct train_generate {
    const char *path;   /* null: not asked for */
    bool chats;         /* --chat: prompts are turns from standard input */
    const char *system; /* the message before all turns; null: that of the template, if it has one */
    int count;          /* prompts, in the order given */
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

/* Text that is printed while it grows; `tell` of the options is told each id. */
struct tokenizer;
struct tokenizer_decoder;
struct train_stream {
    struct tokenizer_decoder *decoder;
    struct dt_text text;
};
void train_stream_open(struct train_stream *s, const struct tokenizer *t, struct generate_options *options);
void train_stream_add(struct train_stream *s, int32_t id);
/* Prints what is left, and the end of a line. */
void train_stream_end(struct train_stream *s);

/* chat.c: answers each line of standard input, until its end. system: the message before all turns, or null. */
int train_chat(const struct model_source *source, const char *system, struct generate_options *options,
               struct dt_error *err);

#endif
