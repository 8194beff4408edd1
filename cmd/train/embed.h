/* train --embed: a vector for each text, from a trained model. */
#ifndef DT_CMD_TRAIN_EMBED_H
#define DT_CMD_TRAIN_EMBED_H

#include <stdbool.h>
#include <stdint.h>

struct train_embed {
    const char *path;    /* null: not asked for */
    const char *texts;   /* the file; null or "-": standard input */
    const char *output;  /* the file, .npy or JSON lines; null: standard output */
    const char *pooling; /* names with commas between; null: what the folder says */
    bool normalize;      /* whatever the folder says */
    int64_t batch_size;  /* 0: not given */
};

/* Are these options right together? beside: another thing that the program was told to do, "--plan", or null.
 * Says what is wrong. */
bool train_check_embed(const struct train_embed *e, const char *beside);
/* Writes the vectors and returns the exit code. */
int train_embed(const struct train_embed *e);

#endif
