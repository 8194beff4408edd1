/* See the header. */
#include "worker/engine/number_sums.h"

#include "base/text.h"
#include "kernels/cpu/half.h"
#include "kernels/exact.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

/* Exact sums take no values below 0, so those have a sum of their own. Products of floats are exact in
 * double, as are the sums. */
enum { X, MINUS_X, Y, MINUS_Y, XX, YY, XY, MINUS_XY, SUM_COUNT };

#define NOTHING (8 * DBL_EPSILON) /* rounding leaves less of a difference of equal sums, as a share of them */

void number_sums_open(struct number_sums *s, int64_t columns)
{
    *s = (struct number_sums){.columns = columns};
    s->n = dt_alloc((size_t)number_sums_size(s) * sizeof *s->n);
}

void number_sums_close(struct number_sums *s)
{
    free(s->n);
    *s = (struct number_sums){0};
}

int64_t number_sums_size(const struct number_sums *s)
{
    return s->columns * (1 + SUM_COUNT * DT_EXACT_LIMBS);
}

static int64_t *column_of(const struct number_sums *s, int64_t column)
{
    return s->n + column * (1 + SUM_COUNT * DT_EXACT_LIMBS);
}

/* Adds to sum number `which`; a value below 0 to the one behind it. */
static void add(int64_t *sums, int which, double value)
{
    dt_exact_add(sums + (which + (value < 0)) * DT_EXACT_LIMBS, fabs(value));
}

void number_sums_add(struct number_sums *s, const void *predictions, enum dt_dtype type, const void *targets,
                     enum dt_dtype target_type, int64_t rows)
{
    for (int64_t i = 0; i < rows * s->columns; i++) {
        int64_t *column = column_of(s, i % s->columns), *sums = column + 1;
        double x = dt_value_at(predictions, type, i), y = dt_value_at(targets, target_type, i);
        if (isnan(y)) {
            continue;
        }
        column[0]++;
        add(sums, X, x);
        add(sums, Y, y);
        add(sums, XX, x * x);
        add(sums, YY, y * y);
        add(sums, XY, x * y);
    }
}

static double sum_of(const int64_t *sums, int which)
{
    return dt_exact_get(sums + which * DT_EXACT_LIMBS);
}

static double pearson_of(const int64_t *column)
{
    const int64_t *sums = column + 1;
    double n = (double)column[0], x = sum_of(sums, X) - sum_of(sums, MINUS_X),
           y = sum_of(sums, Y) - sum_of(sums, MINUS_Y), xy = sum_of(sums, XY) - sum_of(sums, MINUS_XY),
           xx = n * sum_of(sums, XX), yy = n * sum_of(sums, YY), of_x = xx - x * x, of_y = yy - y * y;
    bool vary = of_x > NOTHING * xx && of_y > NOTHING * yy;
    return vary ? fmax(-1, fmin(1, (n * xy - x * y) / (sqrt(of_x) * sqrt(of_y)))) : NAN;
}

double number_sums_pearson(const struct number_sums *s)
{
    double sum = 0;
    for (int64_t k = 0; k < s->columns; k++) {
        sum += pearson_of(column_of(s, k));
    }
    return sum / (double)s->columns;
}
