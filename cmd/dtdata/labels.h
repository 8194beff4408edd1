/* The labels of rows: names of classes, or numbers. */
#ifndef DT_CMD_DTDATA_LABELS_H
#define DT_CMD_DTDATA_LABELS_H

#include "base/error.h"
#include "base/text.h"

#include <stdbool.h>
#include <stddef.h>

struct labels {
    bool numbers; /* of a regression; there are no names */
    bool given;   /* by --labels; else they are those of the data */
    char **names; /* class k has the k-th */
    size_t count, capacity;
    size_t json_bytes;         /* of the names as a JSON array */
    struct label_order *order; /* names sorted by bytes, for searches */
};
enum { LABELS_MOST = 100000, LABEL_BYTES = 1024, LABELS_BYTES = 15 << 20 };

/* Names in the order of the classes: "ham,spam", or a JSON array of them. DT_INVALID: one is empty, or stands there
 * twice. */
int labels_parse(struct labels *l, const char *names, struct dt_error *err);
/* Adds a name of the data, if it is new. DT_INVALID: it is empty, of more than LABEL_BYTES, or the
 * LABELS_MOST + 1st, or the array of all has more than LABELS_BYTES, beyond which it could not be read back. */
int labels_add(struct labels *l, const char *name, size_t size, struct dt_error *err);
/* After the last one: if the names are the numbers 0 to n - 1, or some of those below `classes` (0: unknown), class k is
 * k; else classes follow the names' bytes. */
void labels_end(struct labels *l, int64_t classes);
/* The class of a label, or its number. DT_INVALID: there is none such. */
int labels_value(const struct labels *l, const char *name, size_t size, double *out, struct dt_error *err);
/* Appends the names as a JSON array. */
void labels_json(const struct labels *l, struct dt_text *out);
void labels_clear(struct labels *l);

#endif
