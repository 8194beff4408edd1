/* The plan file: text, a line per shape, the last line a checksum of all before it, so that a damaged one is known. */
#include "kernels/cuda/matmul.h"

#include "base/file.h"
#include "base/log.h"
#include "base/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define HEAD "dtrun matmul plans 1\n"
#define SUM "sum "
enum { SUM_BYTES = 4 + 16 + 1, FILE_MAX_BYTES = 4 << 20 };

struct row {
    struct dt_matmul_key key;
    struct dt_matmul_algo algo;
};

struct dt_matmul_file {
    char *path, *of; /* path null: no place for it */
    struct row *rows;
    size_t count, capacity;
};

/* The folder of plan files, from the environment; the caller frees; null: none. */
static char *folder(void)
{
    const char *own = getenv("DTRUN_CACHE"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (own != NULL && own[0] != '\0') {
        return dt_strdup(own);
    }
    if (cache != NULL && cache[0] == '/') {
        return dt_format("%s/dtrun", cache);
    }
    return home != NULL && home[0] == '/' ? dt_format("%s/.cache/dtrun", home) : NULL;
}

static bool same(const struct dt_matmul_key *a, const struct dt_matmul_key *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

const struct dt_matmul_algo *dt_matmul_file_find(const struct dt_matmul_file *f, const struct dt_matmul_key *key)
{
    for (size_t i = 0; i < f->count; i++) {
        if (same(&f->rows[i].key, key)) {
            return &f->rows[i].algo;
        }
    }
    return NULL;
}

void dt_matmul_file_put(struct dt_matmul_file *f, const struct dt_matmul_key *key, const struct dt_matmul_algo *algo)
{
    for (size_t i = 0; i < f->count; i++) {
        if (same(&f->rows[i].key, key)) {
            f->rows[i].algo = *algo;
            return;
        }
    }
    if (f->count == f->capacity) {
        f->capacity = f->capacity * 2 + 32;
        f->rows = dt_realloc(f->rows, f->capacity * sizeof *f->rows);
    }
    f->rows[f->count++] = (struct row){*key, *algo};
}

static void put_row(struct dt_text *out, const struct row *r)
{
    const struct dt_matmul_key *k = &r->key;
    dt_text_printf(out, "%" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %d %d %d %d %d %d %d %d", k->m, k->n, k->k, k->lda,
                   k->ldb, k->ldc, k->a_transposed, k->b_transposed, k->bias, k->type, k->c_type, k->a_alignment, k->b_alignment, k->c_alignment);
    for (int i = 0; i < 8; i++) {
        dt_text_printf(out, " %" PRIx64, r->algo.words[i]);
    }
    dt_text_printf(out, " %" PRId64 "\n", r->algo.workspace_bytes);
}

/* One number of base `base`, at most `most`; moves *at behind it and the blank or newline after it. */
static bool take(char **at, int base, uint64_t most, uint64_t *out)
{
    char *end;
    if (**at < '0' || (**at > '9' && base == 10)) {
        return false;
    }
    *out = strtoull(*at, &end, base);
    if (end == *at || (*end != ' ' && *end != '\n') || *out > most) {
        return false;
    }
    *at = end + 1;
    return true;
}

static bool take_row(char **at, struct row *r)
{
    struct dt_matmul_key *k = &r->key;
    int64_t *const sizes[] = {&k->m, &k->n, &k->k, &k->lda, &k->ldb, &k->ldc};
    uint8_t *const small[] = {&k->a_transposed, &k->b_transposed, &k->bias, &k->type, &k->c_type, &k->a_alignment, &k->b_alignment, &k->c_alignment};
    uint64_t x = 0;
    memset(r, 0, sizeof *r);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        if (!take(at, 10, INT64_MAX, &x)) {
            return false;
        }
        *sizes[i] = (int64_t)x;
    }
    for (size_t i = 0; i < sizeof small / sizeof small[0]; i++) {
        if (!take(at, 10, 16, &x)) {
            return false;
        }
        *small[i] = (uint8_t)x;
    }
    for (int i = 0; i < 8; i++) {
        if (!take(at, 16, UINT64_MAX, &r->algo.words[i])) {
            return false;
        }
    }
    if (!take(at, 10, INT64_MAX, &x)) {
        return false;
    }
    r->algo.workspace_bytes = (int64_t)x;
    return true;
}

/* False when the text is not what dt_matmul_file_save wrote for this device. */
static bool parse(struct dt_matmul_file *f, struct dt_text *text)
{
    char sum[SUM_BYTES + 1];
    if (text->size < strlen(HEAD) + SUM_BYTES || strlen(text->data) != text->size) {
        return false;
    }
    size_t size = text->size - SUM_BYTES;
    (void)snprintf(sum, sizeof sum, SUM "%016" PRIx64 "\n", (uint64_t)XXH3_64bits(text->data, size));
    if (strcmp(text->data + size, sum) != 0) {
        return false;
    }
    text->data[size] = '\0';
    char *at = text->data;
    if (strncmp(at, HEAD, strlen(HEAD)) != 0) {
        return false;
    }
    at += strlen(HEAD);
    size_t of = strlen(f->of);
    if (strncmp(at, f->of, of) != 0 || at[of] != '\n') {
        return false;
    }
    at += of + 1;
    while (*at != '\0') {
        struct row r;
        if (!take_row(&at, &r)) {
            return false;
        }
        dt_matmul_file_put(f, &r.key, &r.algo);
    }
    return true;
}

struct dt_matmul_file *dt_matmul_file_open(const char *of)
{
    struct dt_matmul_file *f = dt_alloc(sizeof *f);
    struct dt_text text;
    struct dt_error err;
    char *in = folder();
    f->of = dt_strdup(of);
    for (char *c = f->of; *c != '\0'; c++) {
        *c = *c == '\n' ? ' ' : *c;
    }
    f->path = in != NULL ? dt_format("%s/matmul-%016" PRIx64 ".plans", in, (uint64_t)XXH3_64bits(f->of, strlen(f->of))) : NULL;
    dt_text_init(&text);
    if (f->path != NULL && dt_file_read(f->path, FILE_MAX_BYTES, &text, &err) == 0) {
        if (!parse(f, &text)) {
            f->count = 0;
            dt_log(DT_LOG_WARN, "matmul", "%s: damaged, or of another device; not used; remove it", f->path);
        }
    } else if (f->path != NULL && err.status != DT_NOT_FOUND) {
        dt_log(DT_LOG_WARN, "matmul", "%s; not used", err.text);
    }
    dt_text_clear(&text);
    free(in);
    return f;
}

int dt_matmul_file_save(const struct dt_matmul_file *f, struct dt_error *err)
{
    if (f->path == NULL) {
        return dt_fail(err, DT_INVALID, "plan file: no folder for it; set DTRUN_CACHE");
    }
    struct dt_text text;
    dt_text_init(&text);
    dt_text_printf(&text, HEAD "%s\n", f->of);
    for (size_t i = 0; i < f->count; i++) {
        put_row(&text, &f->rows[i]);
    }
    dt_text_printf(&text, SUM "%016" PRIx64 "\n", (uint64_t)XXH3_64bits(text.data, text.size));
    char *in = folder();
    int rc = dt_file_mkdirs(in, err) != 0 ? -1 : dt_file_write(f->path, text.data, text.size, err);
    free(in);
    dt_text_clear(&text);
    return rc;
}

void dt_matmul_file_close(struct dt_matmul_file *f)
{
    if (f != NULL) {
        free(f->rows);
        free(f->path);
        free(f->of);
        free(f);
    }
}
