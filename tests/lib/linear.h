/* Decides whether a history of one key is linearizable: each operation must take effect at one
 * instant between its start and its end, and all answers must equal those of a plain variable in
 * the order of these instants (Herlihy and Wing 1990). A history of several keys is linearizable if
 * the history of each key is. A key holds nothing, or a number that operations can tell apart. */
#ifndef DT_TESTS_LIB_LINEAR_H
#define DT_TESTS_LIB_LINEAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum linear_kind { LINEAR_SET, LINEAR_ADD, LINEAR_COMPARE_SET, LINEAR_GET, LINEAR_CHECK, LINEAR_WAIT, LINEAR_DELETE };

/* As a value: the key is absent. As the expected value of compare_set: the empty value. */
#define LINEAR_NOTHING INT64_MIN
#define LINEAR_NEVER INT64_MAX

struct linear_op {
    enum linear_kind kind;
    int key;          /* for a caller that sorts operations by key */
    int64_t value;    /* SET: the value; ADD: the delta; COMPARE_SET: the new value */
    int64_t expected; /* COMPARE_SET */
    /* the reply of ADD, COMPARE_SET and GET; 1 or 0 for CHECK and DELETE; unused for SET and
     * WAIT */
    int64_t answer;
    /* by any clock. end LINEAR_NEVER: no answer came; the operation took effect at any time after
     * start, or not at all */
    int64_t start, end;
};

enum linear_verdict { LINEAR_YES, LINEAR_NO, LINEAR_UNDECIDED };

/* Sorts ops by their start. The key is absent at first. UNDECIDED: the search visited more than
 * `budget` states. */
enum linear_verdict linear_check(struct linear_op *ops, size_t count, size_t budget);
/* Prints the history to stdout, one line per operation. */
void linear_print(const struct linear_op *ops, size_t count);

#endif
