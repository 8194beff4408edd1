/* What the golden files hold besides weights. */
#ifndef DT_TESTS_LIB_GOLDEN_H
#define DT_TESTS_LIB_GOLDEN_H

#include "worker/checkpoints/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* A tensor of 64-bit integers with `count` elements at least; it lives as long as the file is
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
