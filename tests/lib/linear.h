/* Was a history of one key linearizable? Each operation must take effect at one instant between
 * its start and its end, and all answers must be those that a plain variable would give in the
 * order of these instants (Herlihy and Wing 1990). Histories of several keys are checked key by
 * key, which is the same. A key holds nothing, or a number that operations can tell apart. */
#ifndef DT_TESTS_LIB_LINEAR_H
#define DT_TESTS_LIB_LINEAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum linear_kind { LINEAR_SET, LINEAR_ADD, LINEAR_COMPARE_SET, LINEAR_GET, LINEAR_CHECK, LINEAR_WAIT, LINEAR_DELETE };

/* LINEAR_NOTHING as a value: the key is absent; as what compare_set expects: the empty value. */
#define LINEAR_NOTHING INT64_MIN
#define LINEAR_NEVER INT64_MAX

struct linear_op {
    enum linear_kind kind;
    int key;            /* for whoever sorts operations by key */
    int64_t value;      /* SET: it; ADD: delta; COMPARE_SET: the new one */
    int64_t expected;   /* COMPARE_SET */
    int64_t answer;     /* ADD, COMPARE_SET, GET: the reply; CHECK, DELETE: 1 or 0; SET, WAIT:
                         * nothing to compare */
    int64_t start, end; /* any clock; end LINEAR_NEVER: no answer came, it took effect at any
                         * time after start, or not at all */
};

enum linear_verdict { LINEAR_YES, LINEAR_NO, LINEAR_UNDECIDED };

/* Sorts ops by their start. The key is absent at first. UNDECIDED: more than `budget` states
 * were looked at. */
enum linear_verdict linear_check(struct linear_op *ops, size_t count, size_t budget);
/* Prints the history, a line per operation, to stdout. */
void linear_print(const struct linear_op *ops, size_t count);

#endif
