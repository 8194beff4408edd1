/* The facts that one rank of doctor found, as lines "name value". The looks write them, the
 * store carries them, the checks read them. Names are letters, digits, '_' and '.'; values are
 * one line of text. */
#ifndef DT_CMD_DOCTOR_FACTS_H
#define DT_CMD_DOCTOR_FACTS_H

#include "base/text.h"

struct facts {
    struct dt_text lines;
};

void facts_init(struct facts *f);
void facts_clear(struct facts *f);
/* Appends; a newline inside becomes a blank. The first value of a name counts. */
void facts_set(struct facts *f, const char *name, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Appends lines that came from elsewhere, as they are. */
void facts_add(struct facts *f, const char *lines);
/* The value, at most out_bytes - 1 of it, or null (out is then ""). Returns out. */
const char *facts_get(const struct facts *f, const char *name, char *out, size_t out_bytes);
/* The value as a number; `fallback` when it is not there or is none. */
double facts_number(const struct facts *f, const char *name, double fallback);

#endif
