/* Records of CSV (RFC 4180) and TSV (no quotes): where they end, and their fields. */
#ifndef DT_CMD_DTDATA_CSV_H
#define DT_CMD_DTDATA_CSV_H

#include "base/error.h"
#include "base/text.h"

#include <stdbool.h>
#include <stddef.h>

/* delimiter: ',' for CSV; '\t' for TSV, where quotes are text. */
struct csv_form {
    char delimiter;
    bool quotes;
};

/* The end of the last whole record of `text` (behind its line break), 0: there is none. A record ends at a
 * line break outside of quotes. */
size_t csv_last_end(const struct csv_form *form, const char *text, size_t size);
/* The end of the first record, with its line break; `size` if it has none. Of a record with a quote that is never
 * closed it is the end of its first line, so that the lines behind it are not lost with it. */
size_t csv_first_end(const struct csv_form *form, const char *text, size_t size);

/* The fields of a record, in the memory of `text`. */
struct csv_fields {
    struct dt_text text; /* decoded fields, one after the other */
    size_t *ends;        /* of each field in text */
    size_t count, capacity;
};
/* Splits one record, which ends with LF, CRLF or nothing. Line breaks in quotes stay as they are. DT_INVALID,
 * without a place: a quote that is never closed, or text behind a closing quote. A quote inside of a field that
 * does not begin with one is text. */
int csv_split(const struct csv_form *form, const char *record, size_t size, struct csv_fields *out,
              struct dt_error *err);
/* Field i; *size: its bytes. */
const char *csv_field(const struct csv_fields *f, size_t i, size_t *size);
void csv_fields_clear(struct csv_fields *f);

#endif
