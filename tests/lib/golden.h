/* Reads golden files: JSON, and integers of safetensors files. */
#ifndef DT_TESTS_LIB_GOLDEN_H
#define DT_TESTS_LIB_GOLDEN_H

#include "base/file.h"
#include "worker/data/safetensors.h"

#include <cjson/cJSON.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* A JSON file. The caller deletes it. */
static inline cJSON *golden_json(const char *path)
{
    struct dt_text text;
    struct dt_error err;
    dt_text_init(&text);
    if (dt_file_read(path, 1 << 20, &text, &err) != 0) {
        fail_msg("%s", err.text);
    }
    cJSON *json = cJSON_ParseWithLength(dt_text_str(&text), text.size);
    dt_text_clear(&text);
    assert_non_null(json);
    return json;
}

/* A tensor of 64-bit integers with at least `count` elements. It is valid while the file is
 * open. */
static inline const int64_t *golden_integers(const struct st_file *f, const char *name, int64_t count)
{
    const struct st_tensor *t = st_find(f, name);
    assert_non_null(t);
    assert_int_equal(t->type, DT_I64);
    assert_true(t->numel >= count);
    return t->data;
}

#endif
