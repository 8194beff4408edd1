/* See the header. */
#include "worker/engine/choice_scores.h"

#include "base/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void choice_scores_open(struct choice_scores *c, const struct data_source *s)
{
    *c = (struct choice_scores){.choices = s->choices, .samples = s->sample_count};
    c->n = dt_alloc((size_t)c->samples * sizeof *c->n);
}

void choice_scores_close(struct choice_scores *c)
{
    free(c->n);
    *c = (struct choice_scores){0};
}

void choice_scores_add(struct choice_scores *c, const double *row_loss, int64_t samples, int64_t length, int64_t first,
                       int rank, int ranks)
{
    for (int64_t r = 0; r < samples; r++) {
        int64_t sample = first + r * ranks + rank;
        double sum = 0;
        for (int64_t i = 0; i < length; i++) {
            sum -= row_loss[r * length + i];
        }
        if (sample < c->samples) {
            memcpy(&c->n[sample], &sum, sizeof sum);
        }
    }
}

/* The choice with the highest score over its divisor; 0: no divisor, 1: characters, 2: bytes. */
static int64_t best(const struct choice_scores *c, const struct data_choice_item *item, int by)
{
    int64_t best_at = 0;
    double most = NAN;
    for (int64_t k = 0; k < item->count; k++) {
        const struct data_choice_size *size = &c->choices->sizes[item->first + k];
        double score;
        memcpy(&score, &c->n[item->first + k], sizeof score);
        score /= by == 0 ? 1.0 : (double)(by == 1 ? size->characters : size->bytes);
        if (k == 0 || score > most) {
            best_at = k;
            most = score;
        }
    }
    return best_at;
}

struct choice_report choice_scores_report(const struct choice_scores *c, int64_t known)
{
    int64_t items = 0, right[3] = {0};
    for (int64_t i = 0; i < c->choices->item_count; i++) {
        const struct data_choice_item *item = &c->choices->items[i];
        if (item->first + item->count > known) {
            break;
        }
        items++;
        for (int by = 0; by < 3; by++) {
            right[by] += best(c, item, by) == item->label;
        }
    }
    double all = items > 0 ? (double)items : NAN;
    return (struct choice_report){.items = items,
                                  .accuracy = (double)right[0] / all,
                                  .by_characters = (double)right[1] / all,
                                  .by_bytes = (double)right[2] / all};
}
