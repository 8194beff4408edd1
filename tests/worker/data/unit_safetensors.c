/* covers: worker/data/safetensors.c worker/data/safetensors_read.c base/dtype.c */
/* safetensors: what the writer writes the reader reads; every broken header is refused with the
 * path and a cause. */
#include "worker/data/safetensors.h"

#include "base/file.h"
#include "base/text.h"
#include "tests/lib/folder.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* A file in memory from a header text and a number of data bytes. */
static int open_header(struct st_file **out, const char *header, size_t data_bytes, struct dt_error *err)
{
    size_t n = strlen(header);
    unsigned char *bytes = dt_alloc(8 + n + data_bytes);
    for (int i = 0; i < 8; i++) {
        bytes[i] = (unsigned char)((uint64_t)n >> (8 * i));
    }
    memcpy(bytes + 8, header, n);
    int rc = st_open_memory(out, bytes, 8 + n + data_bytes, "the.file", err);
    if (rc == 0) {
        st_close(*out);
    }
    free(bytes);
    return rc;
}

static void test_broken_headers(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t data_bytes;
        const char *cause; /* null: a good file */
    } rows[] = {
        {"{}", 0, NULL},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}  ", 8, NULL},
        {"{\"a\":{\"shape\":[],\"data_offsets\":[0,8],\"dtype\":\"I64\"}}", 8, NULL},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[0,3],\"data_offsets\":[0,0]}}", 0, NULL},
        {"{\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[2,5]},\"a\":{\"dtype\":\"U16\",\"shape\":[1],\"data_"
         "offsets\":[0,2]}}",
         5, NULL},
        {"{\"__metadata__\":{\"format\":\"pt\",\"\\u00e9\\ud83d\\ude00\":\"\"},\"a\":{\"dtype\":\"F4\",\"shape\":[4],"
         "\"data_offsets\":[0,2]}}",
         2, NULL},
        {"", 0, "expected '{'"},
        {" {}", 0, "expected '{'"},
        {"{", 0, "expected '\"'"},
        {"{} x", 0, "closing brace"},
        {"{}", 1, "after the last tensor"},
        {"[]", 0, "expected '{'"},
        {"{\"a\":{}}", 0, "expected '\"'"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "needs dtype, shape and data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],}}", 8, "expected '\"'"},
        {"{\"a\":{\"dtype\":\"F33\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "unknown dtype"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "twice"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":1}}", 8, "unknown key"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"a\":{\"dtype\":\"F32\",\"shape\":[1],"
         "\"data_offsets\":[8,12]}}",
         12, "twice"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8, "whole number"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}}", 8, "expected ']'"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[02],\"data_offsets\":[0,8]}}", 8, "whole number"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,9]}}", 8, "too many numbers"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", 8, "two numbers"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,9]}}", 9, "do not fit"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, "do not fit"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 7, "cut short"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 9, "after the last tensor"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}", 12, "a hole or an overlap"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"F32\",\"shape\":[1],"
         "\"data_offsets\":[4,8]}}",
         8, "overlap"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"F32\",\"shape\":[1],"
         "\"data_offsets\":[9,13]}}",
         13, "hole"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0, "too large"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1152921504606846976],\"data_offsets\":[0,0]}}", 0, "too large"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[99999999999999999999],\"data_offsets\":[0,0]}}", 0, "too large"},
        {"{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]}}", 1, "whole number of bytes"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4, "too many numbers"},
        {"{\"\\u0000\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "no name may have"},
        {"{\"\\ud800x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "surrogate"},
        {"{\"\xff\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "UTF-8"},
        {"{\"a\n\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "control character"},
        {"{\"__metadata__\":{\"format\":1}}", 0, "expected '\"'"},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "twice"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct st_file *f;
        struct dt_error err = {.status = DT_OK};
        int rc = open_header(&f, rows[i].header, rows[i].data_bytes, &err);
        bool right = rows[i].cause == NULL
                         ? rc == 0
                         : rc == -1 && err.status == DT_INVALID && strstr(err.text, rows[i].cause) != NULL &&
                               strstr(err.text, "the.file") != NULL;
        if (!right) {
            fail_msg("row %zu: %s: rc %d: %s", i, rows[i].header, rc, err.text);
        }
    }
}

static void test_broken_lengths(void **state)
{
    (void)state;
    struct st_file *f;
    struct dt_error err;
    unsigned char bytes[16] = {0};
    assert_int_equal(st_open_memory(&f, bytes, 7, "x", &err), -1);
    assert_int_equal(st_open_memory(&f, bytes, 8, "x", &err), -1);
    memset(bytes, 0xff, 8);
    assert_int_equal(st_open_memory(&f, bytes, 16, "x", &err), -1);
    bytes[0] = 9;
    memset(bytes + 1, 0, 7);
    assert_int_equal(st_open_memory(&f, bytes, 16, "x", &err), -1);
    assert_non_null(strstr(err.text, "cut short"));
    assert_int_equal(st_open(&f, "/nowhere/at.all", &err), -1);
    assert_int_equal(err.status, DT_NOT_FOUND);
    assert_int_equal(st_open(&f, "/", &err), -1);
    assert_int_equal(st_open(&f, "/dev/null", &err), -1);
}

static void test_round_trip(void **state)
{
    (void)state;
    struct dt_error err = {.status = DT_OK};
    const float real[6] = {1.5f, -2, 3, 4, 5, 6};
    const uint16_t bf16[2] = {0x3fc0, 0xc000}, f16[4] = {0x3e00, 0x0001, 0xfc00, 0x8000};
    const int64_t ids[2] = {-100, 7};
    const struct st_entry entries[] = {{"w/\"quoted\" \xc3\xa9", DT_F32, 2, (int64_t[]){2, 3}},
                                       {"b", DT_BF16, 1, (int64_t[]){2}},
                                       {"h", DT_F16, 1, (int64_t[]){4}},
                                       {"ids", DT_I64, 1, (int64_t[]){2}},
                                       {"none", DT_F32, 1, (int64_t[]){0}}};
    const char *const metadata[] = {"format", "pt", "note", "a \\ b", NULL};
    char path[128];
    (void)snprintf(path, sizeof path, "%s/a.safetensors", folder);
    struct st_writer *w;
    assert_int_equal(st_writer_open(&w, path, entries, 5, metadata, &err), 0);
    assert_false(dt_file_exists(path));
    assert_int_equal(st_writer_data(w, real, 5, &err), 0); /* pieces need not be whole elements */
    assert_int_equal(st_writer_data(w, (const char *)real + 5, sizeof real - 5, &err), 0);
    assert_int_equal(st_writer_data(w, bf16, sizeof bf16, &err), 0);
    assert_int_equal(st_writer_data(w, f16, sizeof f16, &err), 0);
    assert_int_equal(st_writer_data(w, ids, sizeof ids, &err), 0);
    assert_int_equal(st_writer_data(w, ids, 1, &err), -1);
    assert_int_equal(st_writer_close(w, &err), 0);

    struct st_file *f;
    assert_int_equal(st_open(&f, path, &err), 0);
    assert_int_equal(st_count(f), 5);
    assert_string_equal(st_metadata(f, "note"), "a \\ b");
    assert_null(st_metadata(f, "x"));
    assert_null(st_find(f, "x"));
    const struct st_tensor *t = st_find(f, entries[0].name);
    assert_non_null(t);
    assert_int_equal((uintptr_t)t->data % 8, 0);
    float out[6];
    assert_int_equal(st_read_f32(f, t, 0, 6, out, &err), 0);
    assert_memory_equal(out, real, sizeof real);
    assert_int_equal(st_read_f32(f, t, 4, 3, out, &err), -1);
    assert_int_equal(st_read_f32(f, st_find(f, "ids"), 0, 1, out, &err), -1);
    double wide[4];
    assert_int_equal(st_read_f64(f, st_find(f, "b"), 0, 2, wide, &err), 0);
    assert_true(wide[0] == 1.5 && wide[1] == -2);
    assert_int_equal(st_read_f64(f, st_find(f, "h"), 1, 3, wide, &err), 0);
    assert_true(wide[0] == 0x1p-24 && wide[1] < -1e300 && wide[2] == 0);
    assert_memory_equal(st_find(f, "ids")->data, ids, sizeof ids);
    st_close(f);
}

/* KiB of files that are mapped and resident. */
static long mapped_kib(void)
{
    struct dt_text text;
    dt_text_init(&text);
    assert_int_equal(dt_file_read("/proc/self/status", 1 << 20, &text, NULL), 0);
    const char *at = strstr(dt_text_str(&text), "RssFile:");
    assert_non_null(at);
    long kib = strtol(at + strlen("RssFile:"), NULL, 10);
    dt_text_clear(&text);
    return kib;
}

/* A file is read in pieces that do not pile up in memory, and can be read again. In BF16 and F16, whose data
 * begin at an odd address here: every value of 16 bits, exactly. */
static void test_pieces(void **state)
{
    (void)state;
    enum { VALUES = 1 << 16, TIMES = 128, PIECE = VALUES * 8 };
    struct dt_error err = {.status = DT_OK};
    const struct st_entry entries[] = {{"odd", DT_U8, 1, (int64_t[]){1}},
                                       {"bf16", DT_BF16, 1, (int64_t[]){VALUES * TIMES}},
                                       {"f16", DT_F16, 1, (int64_t[]){VALUES}}};
    char path[128];
    (void)snprintf(path, sizeof path, "%s/pieces.safetensors", folder);
    uint16_t *values = dt_alloc(VALUES * sizeof *values);
    for (int i = 0; i < VALUES; i++) {
        values[i] = (uint16_t)i;
    }
    struct st_writer *w;
    assert_int_equal(st_writer_open(&w, path, entries, 3, NULL, &err), 0);
    assert_int_equal(st_writer_data(w, "", 1, &err), 0);
    for (int i = 0; i < TIMES + 1; i++) {
        assert_int_equal(st_writer_data(w, values, VALUES * sizeof *values, &err), 0);
    }
    assert_int_equal(st_writer_close(w, &err), 0);
    struct st_file *f;
    assert_int_equal(st_open(&f, path, &err), 0);
    const struct st_tensor *t = st_find(f, "bf16"), *h = st_find(f, "f16");
    assert_int_equal((uintptr_t)t->data % 2, 1);
    float *out = dt_alloc(PIECE * sizeof *out);
    long before = mapped_kib();
    for (int64_t at = 0; at < t->numel; at += PIECE) {
        assert_int_equal(st_read_f32(f, t, at, PIECE, out, &err), 0);
        for (int64_t i = 0; i < PIECE; i++) {
            uint32_t bits, wanted = (uint32_t)((at + i) % VALUES) << 16;
            memcpy(&bits, &out[i], sizeof bits);
            assert_true(bits == wanted);
        }
        st_leave(f, (const char *)t->data + 2 * at, 2 * PIECE);
    }
    assert_in_range(mapped_kib() - before + 1024, 0, 2048); /* of 16 MiB */
    assert_int_equal(st_read_f32(f, h, 0, VALUES, out, &err), 0);
    for (int i = 0; i < VALUES; i++) {
        int exponent = i >> 10 & 31;
        double x = ldexp((i & 1023) + (exponent > 0 ? 1024 : 0), (exponent > 0 ? exponent : 1) - 25);
        bool special = exponent == 31, nan = special && (i & 1023) != 0;
        x = nan ? NAN : special ? INFINITY : x;
        assert_true(nan ? isnan(out[i]) : out[i] == (i & 0x8000 ? -x : x));
    }
    st_close(f);
    free(out);
    free(values);
}

static void test_incomplete_leaves_nothing(void **state)
{
    (void)state;
    struct dt_error err = {.status = DT_OK};
    const struct st_entry entry = {"a", DT_F32, 1, (int64_t[]){2}};
    char path[128];
    (void)snprintf(path, sizeof path, "%s/b.safetensors", folder);
    struct st_writer *w;
    assert_int_equal(st_writer_open(&w, path, &entry, 1, NULL, &err), 0);
    assert_int_equal(st_writer_data(w, "1234", 4, &err), 0);
    assert_int_equal(st_writer_close(w, &err), -1);
    assert_int_equal(st_writer_open(&w, path, &entry, 1, NULL, &err), 0);
    st_writer_abort(w);
    assert_false(dt_file_exists(path));
    char *temporary = dt_format("%s.tmp-%ld", path, (long)getpid());
    assert_false(dt_file_exists(temporary));
    free(temporary);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_broken_headers),
        cmocka_unit_test(test_broken_lengths),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_incomplete_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
