/* See the header. */
#include "worker/engine/class_counts.h"

#include "base/text.h"
#include "kernels/cpu/half.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TOP = 5 };

void class_counts_open(struct class_counts *c, int64_t classes, bool several)
{
    *c = (struct class_counts){.classes = classes, .several = several};
    c->n = dt_alloc((size_t)class_counts_size(c) * sizeof *c->n);
}

void class_counts_close(struct class_counts *c)
{
    free(c->n);
    *c = (struct class_counts){0};
}

int64_t class_counts_size(const struct class_counts *c)
{
    return 3 * c->classes + 2;
}

void class_counts_add(struct class_counts *c, const void *logits, enum dt_dtype type, const int32_t *targets,
                      int64_t rows)
{
    for (int64_t r = 0; r < rows; r++) {
        int64_t gold = targets[r], first = r * c->classes, named = 0, before = 0;
        if (gold < 0) {
            continue;
        }
        double own = dt_value_at(logits, type, first + gold);
        for (int64_t k = 0; k < c->classes; k++) {
            double x = dt_value_at(logits, type, first + k);
            named = x > dt_value_at(logits, type, first + named) ? k : named;
            before += x > own || (x == own && k < gold);
        }
        c->n[gold] += named == gold;
        c->n[c->classes + gold]++;
        c->n[2 * c->classes + named]++;
        c->n[3 * c->classes] += before < TOP;
        c->n[3 * c->classes + 1]++;
    }
}

void class_counts_add_several(struct class_counts *c, const void *logits, enum dt_dtype type, const void *targets,
                              enum dt_dtype target_type, int64_t rows)
{
    for (int64_t r = 0; r < rows; r++) {
        int64_t first = r * c->classes;
        bool right = true;
        if (isnan(dt_value_at(targets, target_type, first))) {
            continue;
        }
        for (int64_t k = 0; k < c->classes; k++) {
            bool gold = dt_value_at(targets, target_type, first + k) > 0.5,
                 named = dt_value_at(logits, type, first + k) > 0;
            c->n[k] += gold && named;
            c->n[c->classes + k] += gold;
            c->n[2 * c->classes + k] += named;
            right = right && gold == named;
        }
        c->n[3 * c->classes] += right;
        c->n[3 * c->classes + 1]++;
    }
}

struct class_report class_counts_report(const struct class_counts *c, double *f1)
{
    const int64_t *hits = c->n, *gold = hits + c->classes, *named = gold + c->classes;
    int64_t all = c->n[3 * c->classes + 1], fourth = c->n[3 * c->classes], right = 0, both = 0;
    double sum = 0;
    for (int64_t k = 0; k < c->classes; k++) {
        int64_t of = gold[k] + named[k];
        f1[k] = of > 0 ? 2.0 * (double)hits[k] / (double)of : 0;
        sum += f1[k];
        right += hits[k];
        both += of;
    }
    double micro = both > 0 ? 2.0 * (double)right / (double)both : 0;
    right = c->several ? fourth : right;
    return (struct class_report){.accuracy = all > 0 ? (double)right / (double)all : NAN,
                                 .top5 =
                                     all > 0 && c->classes > TOP && !c->several ? (double)fourth / (double)all : NAN,
                                 .f1_macro = all > 0 ? sum / (double)c->classes : NAN,
                                 .f1_micro = all > 0 && c->several ? micro : NAN,
                                 .f1 = f1,
                                 .classes = c->classes};
}
