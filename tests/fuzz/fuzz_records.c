/* Records of JSONL, CSV, TSV and JSON arrays, which come in two parts: the first byte of the input chooses what is wanted of them; whatever stands in a
 * block, a record is UTF-8 text, and an error or a count says what is none. */
#include "driver.h"

#include "cmd/dtdata/json_array.h"
#include "cmd/dtdata/records.h"
#include "worker/data/tokenizers/characters.h"

#include <stdlib.h>
#include <string.h>

static void check_text(const char *text, size_t size)
{
    if (text == NULL || utf8_valid(text, size) != size) {
        abort();
    }
}

static int take(void *context, const struct record *r, struct dt_error *err)
{
    const struct record_form *form = context;
    (void)err;
    check_text(r->text, r->text_size);
    if (form->pair_key != NULL) {
        check_text(r->pair, r->pair_size);
    }
    if (form->label_key != NULL) {
        check_text(r->label, r->label_size);
    }
    return 0;
}

int dt_fuzz(const uint8_t *data, size_t size)
{
    static const enum source_kind kinds[] = {SOURCE_JSONL, SOURCE_CSV, SOURCE_TSV, SOURCE_JSON};
    if (size == 0) {
        return 0;
    }
    unsigned choice = data[0];
    enum source_kind kind = kinds[choice & 3];
    struct record_form form = {.text_key = "a",
                               .pair_key = (choice & 4) != 0 ? "b" : NULL,
                               .label_key = (choice & 8) != 0 ? "c" : NULL,
                               .replace = (choice & 16) != 0,
                               .skip = (choice & 32) != 0};
    struct text_block b = {.text = dt_alloc(size), .size = size - 1};
    memcpy(b.text, data + 1, size - 1);
    struct record_columns columns = {0};
    struct dt_error err = {0};
    struct tally *tally = dt_alloc(sizeof *tally);
    int result = 0;
    if (kind == SOURCE_JSON) {
        struct json_array array = {0};
        size_t half = b.size / 2;
        result = json_array_lines(&array, b.text, half, "f", &err) != 0 ||
                         json_array_lines(&array, b.text + half, b.size - half, "f", &err) != 0 ||
                         json_array_end(&array, "f", &err) != 0
                     ? -1
                     : 0;
    } else if (kind != SOURCE_JSONL) {
        struct dt_text header;
        size_t end = b.size > 0 ? csv_first_end(source_csv_form(kind), b.text, b.size) : 0;
        dt_text_init(&header);
        dt_text_add(&header, b.text, end);
        result = record_columns_find(&columns, &form, kind, "f", &header, &err);
        dt_text_clear(&header);
    }
    if (result == 0) {
        result = records_of(&form, kind, "f", &columns, &b, tally, take, &form, &err);
    }
    if (result != 0 && (err.status != DT_INVALID || err.text[0] != 'f')) {
        abort();
    }
    free(tally);
    block_clear(&b);
    return 0;
}
