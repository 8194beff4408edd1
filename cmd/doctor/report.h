/* The output of doctor: a line per finding, as text (80 columns, under the heading of its group)
 * or as JSON. */
#ifndef DT_CMD_DOCTOR_REPORT_H
#define DT_CMD_DOCTOR_REPORT_H

#include "base/text.h"

#include <stdbool.h>

enum doctor_level { DOCTOR_OK, DOCTOR_INFO, DOCTOR_WARN, DOCTOR_FAIL, DOCTOR_LEVEL_COUNT };

struct doctor_report {
    bool json;
    const char *group, *check; /* of what is said next */
    const char *heading;       /* group last printed */
    int counts[DOCTOR_LEVEL_COUNT];
    char first_fail[256]; /* "check: finding; advice" */
    struct dt_text out;
};

void doctor_report_init(struct doctor_report *r, bool json);
void doctor_report_clear(struct doctor_report *r);
/* One line: "warn  check: finding; advice". advice null or "": without. Control characters
 * become '?'. */
void doctor_say(struct doctor_report *r, enum doctor_level level, const char *advice, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Closes with "31 ok, 1 warn, 0 fail" (nothing in JSON). */
void doctor_report_end(struct doctor_report *r);

#endif
