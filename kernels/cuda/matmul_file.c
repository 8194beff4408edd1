/* The plan file: text, a line per shape, the last line a checksum of all before it, so that a damaged one is known. */
#include "kernels/cuda/matmul.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>
#include <xxhash.h>

#define HEAD "dtrun matmul plans 2\n"
#define SUM "sum "
enum { SUM_BYTES = 4 + 16 + 1, FILE_MAX_BYTES = 4 << 20 };
static const double LOCK_WAIT_S = 120;

struct row {
    struct dt_matmul_key key;
    struct dt_matmul_algo algo;
};

struct dt_matmul_file {
    char *path, *of; /* path null: no place for it, or it is not to be read */
    struct row *rows;
    size_t count, capacity;
    int lock;  /* descriptor, or -1 */
    bool said; /* that the disk has nothing to use: once is enough, though it is read again under the lock */
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
    dt_text_printf(out, "%" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %d %d %d %d %d %d %d %d", k->m, k->n,
                   k->k, k->lda, k->ldb, k->ldc, k->busy_sms, k->a_transposed, k->b_transposed, k->epilogue, k->type, k->c_type, k->a_alignment,
                   k->b_alignment, k->c_alignment);
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
    int64_t *const sizes[] = {&k->m, &k->n, &k->k, &k->lda, &k->ldb, &k->ldc, &k->busy_sms};
    uint8_t *const small[] = {&k->a_transposed, &k->b_transposed, &k->epilogue,    &k->type,
                              &k->c_type,       &k->a_alignment,  &k->b_alignment, &k->c_alignment};
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

static struct dt_matmul_file *new_file(const char *of)
{
    struct dt_matmul_file *f = dt_alloc(sizeof *f);
    f->lock = -1;
    f->of = dt_strdup(of);
    for (char *c = f->of; *c != '\0'; c++) {
        *c = *c == '\n' ? ' ' : *c;
    }
    return f;
}

static void say(struct dt_matmul_file *f, const char *what)
{
    if (!f->said) {
        dt_log(DT_LOG_WARN, "matmul", "%s; not used", what);
    }
    f->said = true;
}

/* What the disk has, in place of what is in memory. */
static void load(struct dt_matmul_file *f)
{
    struct dt_text text;
    struct dt_error err;
    dt_text_init(&text);
    f->count = 0;
    if (f->path != NULL && dt_file_read(f->path, FILE_MAX_BYTES, &text, &err) == 0) {
        if (!parse(f, &text)) {
            f->count = 0;
            (void)dt_fail(&err, DT_INVALID, "%s: damaged, or of another device", f->path);
            say(f, err.text);
        }
    } else if (f->path != NULL && err.status != DT_NOT_FOUND) {
        say(f, err.text);
    }
    dt_text_clear(&text);
}

struct dt_matmul_file *dt_matmul_file_open(const char *of)
{
    struct dt_matmul_file *f = new_file(of);
    char *in = folder();
    char *key = dt_format(HEAD "%s", f->of); /* programs with other versions of the file leave each other's alone */
    f->path = in != NULL ? dt_format("%s/matmul-%016" PRIx64 ".plans", in, (uint64_t)XXH3_64bits(key, strlen(key))) : NULL;
    free(key);
    free(in);
    load(f);
    return f;
}

const char *dt_matmul_file_path(const struct dt_matmul_file *f)
{
    return f->path;
}

void dt_matmul_file_forget(struct dt_matmul_file *f)
{
    f->count = 0;
    free(f->path);
    f->path = NULL;
}

int dt_matmul_file_lock(struct dt_matmul_file *f, void (*tick)(void *context), void *context, struct dt_error *err)
{
    if (f->path == NULL) {
        return dt_fail(err, DT_INVALID, "plan file: no folder for it; set DTRUN_CACHE");
    }
    char *in = folder(), *name = dt_format("%s.lock", f->path);
    int rc = dt_file_mkdirs(in, err) != 0 || dt_file_check_owner(in, err) != 0 ? -1 : 0;
    f->lock = rc == 0 ? dt_file_open_own(name, O_RDWR, err) : -1;
    double until_s = dt_now_s() + LOCK_WAIT_S;
    for (rc = f->lock; rc >= 0 && flock(f->lock, LOCK_EX | LOCK_NB) != 0;) { /* who holds it measures for a second or two */
        if (errno != EWOULDBLOCK && errno != EINTR) {
            rc = dt_fail_errno(err, "%s", name);
        } else if (dt_now_s() > until_s) {
            rc = dt_fail(err, DT_TIMEOUT, "%s: locked by another process for %.0f s", name, LOCK_WAIT_S);
        } else {
            if (tick != NULL) {
                tick(context);
            }
            (void)usleep(20000);
        }
    }
    free(name);
    free(in);
    if (rc < 0) {
        dt_matmul_file_unlock(f);
        return -1;
    }
    load(f);
    return 0;
}

void dt_matmul_file_unlock(struct dt_matmul_file *f)
{
    if (f->lock >= 0) {
        (void)close(f->lock);
    }
    f->lock = -1;
}

static void put_all(struct dt_text *text, const struct dt_matmul_file *f, const struct row *rows, size_t count)
{
    dt_text_printf(text, HEAD "%s\n", f->of);
    for (size_t i = 0; i < count; i++) {
        put_row(text, &rows[i]);
    }
    dt_text_printf(text, SUM "%016" PRIx64 "\n", (uint64_t)XXH3_64bits(text->data, text->size));
}

int dt_matmul_file_save(const struct dt_matmul_file *f, struct dt_error *err)
{
    struct dt_text text;
    dt_text_init(&text);
    put_all(&text, f, f->rows, f->count);
    int rc = dt_file_write(f->path, text.data, text.size, err);
    dt_text_clear(&text);
    return rc;
}

void dt_matmul_file_tell(const struct dt_matmul_file *f, const struct dt_matmul_key *keys, size_t count, struct dt_text *out)
{
    struct row *rows = dt_alloc((count + 1) * sizeof *rows);
    size_t found = 0;
    for (size_t i = 0; i < count; i++) {
        const struct dt_matmul_algo *a = dt_matmul_file_find(f, &keys[i]);
        if (a != NULL) {
            rows[found++] = (struct row){keys[i], *a};
        }
    }
    put_all(out, f, rows, found);
    free(rows);
}

bool dt_matmul_file_take(struct dt_matmul_file *f, const char *told)
{
    struct dt_matmul_file *other = new_file(f->of);
    struct dt_text text;
    dt_text_init(&text);
    dt_text_puts(&text, told);
    bool good = parse(other, &text);
    dt_text_clear(&text);
    if (good) {
        free(f->rows);
        f->rows = other->rows;
        f->count = other->count;
        f->capacity = other->capacity;
        other->rows = NULL;
    }
    dt_matmul_file_close(other);
    return good;
}

int dt_matmul_file_add(const struct dt_matmul_file *f, struct dt_error *err)
{
    struct dt_matmul_file *disk = new_file(f->of);
    disk->path = f->path != NULL ? dt_strdup(f->path) : NULL;
    disk->said = f->said;
    int rc = dt_matmul_file_lock(disk, NULL, NULL, err);
    bool more = false;
    for (size_t i = 0; rc == 0 && i < f->count; i++) {
        if (dt_matmul_file_find(disk, &f->rows[i].key) == NULL) {
            dt_matmul_file_put(disk, &f->rows[i].key, &f->rows[i].algo);
            more = true;
        }
    }
    rc = rc == 0 && more ? dt_matmul_file_save(disk, err) : rc;
    dt_matmul_file_close(disk);
    return rc;
}

void dt_matmul_file_close(struct dt_matmul_file *f)
{
    if (f != NULL) {
        dt_matmul_file_unlock(f);
        free(f->rows);
        free(f->path);
        free(f->of);
        free(f);
    }
}
