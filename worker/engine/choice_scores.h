/* Scores of an evaluation by multiple choice, and the accuracies that follow from them. Each rank has those
 * of its samples, and 0 for others, so the integers add up to all scores, bit for bit. */
#ifndef DT_WORKER_ENGINE_CHOICE_SCORES_H
#define DT_WORKER_ENGINE_CHOICE_SCORES_H

#include "worker/data/data.h"

struct choice_scores {
    const struct data_choices *choices; /* borrowed */
    int64_t samples;
    int64_t *n; /* of each sample the bits of a double: the log p of its choice. Owned; null: not open */
};

void choice_scores_open(struct choice_scores *c, const struct data_source *s);
void choice_scores_close(struct choice_scores *c);
/* Adds a batch that data_batch has filled from position `first` on, without shuffle: the losses of its rows
 * (samples, length), in order. */
void choice_scores_add(struct choice_scores *c, const double *row_loss, int64_t samples, int64_t length, int64_t first,
                       int rank, int ranks);

struct choice_report {              /* shares of items; the first of equal scores is taken */
    int64_t items;                  /* that are known whole; 0: the shares are NaN */
    double accuracy;                /* by log p */
    double by_characters, by_bytes; /* by log p over the size of the choice's text */
};
/* known: of the samples, in order, so many have their scores. */
struct choice_report choice_scores_report(const struct choice_scores *c, int64_t known);

#endif
