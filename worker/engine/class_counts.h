/* Counts of an evaluation of a model that names classes: integers, which add up exactly over batches
 * and ranks, and the numbers that follow from them. */
#ifndef DT_WORKER_ENGINE_CLASS_COUNTS_H
#define DT_WORKER_ENGINE_CLASS_COUNTS_H

#include "base/dtype.h"

#include <stdbool.h>
#include <stdint.h>

struct class_counts {
    int64_t classes;
    bool several; /* a sample may have any number of the classes */
    /* (3, classes): samples of a class that were named so, samples of a class, samples that were named
     * so; then samples whose class is among the five likeliest, or, with `several`, samples of which each class is
     * right; then all samples. Owned, class_counts_size elements */
    int64_t *n;
};

void class_counts_open(struct class_counts *c, int64_t classes, bool several);
void class_counts_close(struct class_counts *c);
/* Number of integers in n. */
int64_t class_counts_size(const struct class_counts *c);
/* Counts rows of logits (rows, classes) of type F32, F64 or BF16. The class that is named is the likeliest
 * one, the lowest one of equals. Targets are classes; rows below 0 do not count. */
void class_counts_add(struct class_counts *c, const void *logits, enum dt_dtype type, const int32_t *targets,
                      int64_t rows);
/* The same for `several`. A class is named where its logit is above 0, which is a probability above a half. Targets
 * (rows, classes) are numbers from 0 to 1, and stand for the class above a half; rows whose first one is NaN do not
 * count. */
void class_counts_add_several(struct class_counts *c, const void *logits, enum dt_dtype type, const void *targets,
                              enum dt_dtype target_type, int64_t rows);

struct class_report {
    double accuracy, top5; /* NaN: nothing was counted; top5 also with 5 classes or less, or several of a sample */
    double f1_macro;       /* mean over all classes of the model */
    double f1_micro;       /* of all classes together; NaN where a sample has one, since it is the accuracy then */
    const double *f1;      /* of each class, 0 where it neither occurs nor was named */
    int64_t classes;
};
/* f1: room for `classes`. */
struct class_report class_counts_report(const struct class_counts *c, double *f1);

#endif
