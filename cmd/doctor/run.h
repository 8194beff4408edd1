/* doctor: looks at this host, and under dtrun at the whole job, and says what it found. */
#ifndef DT_CMD_DOCTOR_RUN_H
#define DT_CMD_DOCTOR_RUN_H

#include <stdbool.h>

/* One rank of those that dtrun started (RANK is set), or alone. Rank 0 prints the report on
 * stdout. Returns the exit code: 0 nothing failed, 1 something did (under dtrun 100 of rank 0:
 * another try finds the same), 111 the others or the store are gone. Every wait ends; the whole
 * takes at most about five minutes, on a healthy job one or two seconds. */
int doctor_run(bool json, char *const *env);

#endif
