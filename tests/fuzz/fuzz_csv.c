/* CSV and TSV: the ends of records cover the text, whole records are where the last end says, each record has
 * fields or an error, and what is written in quotes is read back. */
#include "driver.h"

#include "cmd/dtdata/csv.h"

#include <stdlib.h>
#include <string.h>

static void check_fields(const struct csv_form *form, const char *record, size_t size)
{
    struct csv_fields fields = {0};
    struct dt_error err = {0};
    if (csv_split(form, record, size, &fields, &err) != 0) {
        if (err.status != DT_INVALID || err.text[0] == 0 || !form->quotes) {
            abort();
        }
    } else {
        size_t total = 0;
        for (size_t i = 0; i < fields.count; i++) {
            size_t n;
            (void)csv_field(&fields, i, &n);
            total += n;
        }
        if (fields.count == 0 || total > size || total != fields.text.size) {
            abort();
        }
    }
    csv_fields_clear(&fields);
}

/* A field in quotes is itself again, whatever it holds. */
static void check_quoted(const char *text, size_t size)
{
    struct dt_text record;
    struct csv_fields fields = {0};
    struct dt_error err;
    dt_text_init(&record);
    dt_text_puts(&record, "\"");
    for (size_t i = 0; i < size; i++) {
        dt_text_add(&record, text[i] == '"' ? "\"\"" : text + i, text[i] == '"' ? 2 : 1);
    }
    dt_text_puts(&record, "\",x\n");
    const struct csv_form csv = {',', true};
    size_t got = 0;
    if (csv_first_end(&csv, record.data, record.size) != record.size ||
        csv_split(&csv, record.data, record.size, &fields, &err) != 0 || fields.count != 2 ||
        memcmp(csv_field(&fields, 0, &got), text, size) != 0 || got != size) {
        abort();
    }
    csv_fields_clear(&fields);
    dt_text_clear(&record);
}

int dt_fuzz(const uint8_t *data, size_t size)
{
    static const struct csv_form forms[] = {{',', true}, {'\t', false}};
    const char *text = (const char *)data;
    for (int f = 0; f < 2; f++) {
        size_t last = csv_last_end(&forms[f], text, size);
        bool met = last == 0;
        for (size_t at = 0, n; at < size; at += n) {
            n = csv_first_end(&forms[f], text + at, size - at);
            if (n == 0 || n > size - at) {
                abort();
            }
            check_fields(&forms[f], text + at, n);
            met = met || at + n == last;
        }
        if (!met) {
            abort();
        }
    }
    if (size > 0) {
        check_quoted(text, size);
    }
    return 0;
}
