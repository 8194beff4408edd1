/* Plan files: text, one line per choice. The last line is a checksum of all lines before it, by
 * which damage is found. */
#include "kernels/cuda/plan_file.h"

#include "kernels/cuda/dnn_plan.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"

#include <cuda_runtime_api.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>
#include <xxhash.h>

#define SUM "sum "
enum { SUM_BYTES = 4 + 16 + 1, FILE_MAX_BYTES = 4 << 20 };
static const double LOCK_WAIT_S = 120;

struct dt_plan_file {
    const struct dt_plan_kind *kind;
    char *path, *of; /* path null: there is no place for the file, or it must not be read */
    char *rows;      /* pairs of a key and its value */
    size_t count, capacity;
    int lock; /* descriptor of the lock, or -1 */
    /* the warning that the disk has nothing usable was written; the file is read again under the
     * lock */
    bool said;
};

/* The folder of plan files, by the environment. The caller frees it. Null: none. */
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

static size_t row_bytes(const struct dt_plan_file *f)
{
    return f->kind->key_bytes + f->kind->value_bytes;
}

static char *row_of(const struct dt_plan_file *f, size_t i)
{
    return f->rows + i * row_bytes(f);
}

/* The value of a key, or null. */
static char *value_of(const struct dt_plan_file *f, const void *key)
{
    for (size_t i = 0; i < f->count; i++) {
        if (memcmp(row_of(f, i), key, f->kind->key_bytes) == 0) {
            return row_of(f, i) + f->kind->key_bytes;
        }
    }
    return NULL;
}

const void *dt_plan_file_find(const struct dt_plan_file *f, const void *key)
{
    return value_of(f, key);
}

void dt_plan_file_put(struct dt_plan_file *f, const void *key, const void *value)
{
    char *known = value_of(f, key);
    if (known == NULL) {
        if (f->count == f->capacity) {
            f->capacity = f->capacity * 2 + 32;
            f->rows = dt_realloc(f->rows, f->capacity * row_bytes(f));
        }
        known = row_of(f, f->count++);
        memcpy(known, key, f->kind->key_bytes);
        known += f->kind->key_bytes;
    }
    memcpy(known, value, f->kind->value_bytes);
}

bool dt_plan_file_number(char **at, int base, uint64_t most, uint64_t *out)
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

/* False if the text is not one that dt_plan_file_save wrote for this device. */
static bool parse(struct dt_plan_file *f, struct dt_text *text)
{
    char sum[SUM_BYTES + 1];
    const char *head = f->kind->head;
    if (text->size < strlen(head) + SUM_BYTES || strlen(text->data) != text->size) {
        return false;
    }
    size_t size = text->size - SUM_BYTES;
    (void)snprintf(sum, sizeof sum, SUM "%016" PRIx64 "\n", (uint64_t)XXH3_64bits(text->data, size));
    if (strcmp(text->data + size, sum) != 0) {
        return false;
    }
    text->data[size] = '\0';
    char *at = text->data;
    if (strncmp(at, head, strlen(head)) != 0) {
        return false;
    }
    at += strlen(head);
    size_t of = strlen(f->of);
    if (strncmp(at, f->of, of) != 0 || at[of] != '\n') {
        return false;
    }
    at += of + 1;
    char *row = dt_alloc(row_bytes(f));
    bool good = true;
    while (good && *at != '\0') {
        memset(row, 0, row_bytes(f));
        good = f->kind->take(&at, row, row + f->kind->key_bytes);
        if (good) {
            dt_plan_file_put(f, row, row + f->kind->key_bytes);
        }
    }
    free(row);
    return good;
}

static struct dt_plan_file *new_file(const struct dt_plan_kind *kind, const char *of)
{
    struct dt_plan_file *f = dt_alloc(sizeof *f);
    f->kind = kind;
    f->lock = -1;
    f->of = dt_strdup(of);
    for (char *c = f->of; *c != '\0'; c++) {
        *c = *c == '\n' ? ' ' : *c;
    }
    return f;
}

static void say(struct dt_plan_file *f, const char *what)
{
    if (!f->said) {
        dt_log(DT_LOG_WARN, f->kind->name, "%s; not used", what);
    }
    f->said = true;
}

/* Replaces the rows in memory by those on the disk. */
static void load(struct dt_plan_file *f)
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

char *dt_plan_file_device(int index, const char *library, size_t version)
{
    struct cudaDeviceProp device;
    int driver = 0;
    if (cudaGetDeviceProperties(&device, index) != cudaSuccess || cudaDriverGetVersion(&driver) != cudaSuccess) {
        (void)cudaGetLastError();
        memset(&device, 0, sizeof device);
    }
    return dt_format("%s, driver %d, %s %zu", device.name, driver, library, version);
}

struct dt_plan_file *dt_plan_file_open(const struct dt_plan_kind *kind, const char *of)
{
    struct dt_plan_file *f = new_file(kind, of);
    char *in = folder();
    /* `head` is part of the name, so programs with other versions of the format use other files */
    char *key = dt_format("%s%s", kind->head, f->of);
    f->path = in != NULL
                  ? dt_format("%s/%s-%016" PRIx64 ".plans", in, kind->name, (uint64_t)XXH3_64bits(key, strlen(key)))
                  : NULL;
    free(key);
    free(in);
    load(f);
    return f;
}

void dt_plan_file_forget(struct dt_plan_file *f)
{
    f->count = 0;
    free(f->path);
    f->path = NULL;
}

int dt_plan_file_lock(struct dt_plan_file *f, void (*tick)(void *context), void *context, struct dt_error *err)
{
    if (f->path == NULL) {
        return dt_fail(err, DT_INVALID, "plan file: no folder for it; set DTRUN_CACHE");
    }
    char *in = folder(), *name = dt_format("%s.lock", f->path);
    f->lock = dt_file_mkdirs(in, err) == 0 ? dt_file_open_lock(name, err) : -1;
    double until_s = dt_now_s() + LOCK_WAIT_S;
    int rc = f->lock;
    /* a process holds the lock while it measures, for a second or two */
    while (rc >= 0 && flock(f->lock, LOCK_EX | LOCK_NB) != 0) {
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
        dt_plan_file_unlock(f);
        return -1;
    }
    load(f);
    return 0;
}

void dt_plan_file_unlock(struct dt_plan_file *f)
{
    if (f->lock >= 0) {
        (void)close(f->lock);
    }
    f->lock = -1;
}

static void put_row(struct dt_text *out, const struct dt_plan_file *f, const void *key, const void *value)
{
    f->kind->put(out, key, value);
    dt_text_puts(out, "\n");
}

static void begin(struct dt_text *out, const struct dt_plan_file *f)
{
    dt_text_printf(out, "%s%s\n", f->kind->head, f->of);
}

static void end(struct dt_text *out)
{
    dt_text_printf(out, SUM "%016" PRIx64 "\n", (uint64_t)XXH3_64bits(out->data, out->size));
}

int dt_plan_file_save(const struct dt_plan_file *f, struct dt_error *err)
{
    struct dt_text text;
    dt_text_init(&text);
    begin(&text, f);
    for (size_t i = 0; i < f->count; i++) {
        put_row(&text, f, row_of(f, i), row_of(f, i) + f->kind->key_bytes);
    }
    end(&text);
    int rc = dt_file_write(f->path, text.data, text.size, err);
    dt_text_clear(&text);
    return rc;
}

void dt_plan_file_tell(const struct dt_plan_file *f, const void *keys, size_t count, struct dt_text *out)
{
    begin(out, f);
    for (size_t i = 0; i < count; i++) {
        const void *key = (const char *)keys + i * f->kind->key_bytes, *value = dt_plan_file_find(f, key);
        if (value != NULL) {
            put_row(out, f, key, value);
        }
    }
    end(out);
}

/* Adds the rows in memory to the file on the disk, if it does not have their keys. */
static int add(const struct dt_plan_file *f, struct dt_error *err)
{
    struct dt_plan_file *disk = new_file(f->kind, f->of);
    disk->path = dt_strdup(f->path);
    disk->said = f->said;
    int rc = dt_plan_file_lock(disk, NULL, NULL, err);
    bool more = false;
    for (size_t i = 0; rc == 0 && i < f->count; i++) {
        if (dt_plan_file_find(disk, row_of(f, i)) == NULL) {
            dt_plan_file_put(disk, row_of(f, i), row_of(f, i) + f->kind->key_bytes);
            more = true;
        }
    }
    rc = rc == 0 && more ? dt_plan_file_save(disk, err) : rc;
    dt_plan_file_close(disk);
    return rc;
}

bool dt_plan_file_take(struct dt_plan_file *f, const char *told, bool keep)
{
    struct dt_plan_file *other = new_file(f->kind, f->of);
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
    dt_plan_file_close(other);
    struct dt_error err;
    if (good && keep && f->path != NULL && add(f, &err) != 0) {
        dt_log(DT_LOG_WARN, f->kind->name, "%s; plans are not kept on this host", err.text);
    }
    return good;
}

void dt_plan_file_close(struct dt_plan_file *f)
{
    if (f != NULL) {
        dt_plan_file_unlock(f);
        free(f->rows);
        free(f->path);
        free(f->of);
        free(f);
    }
}

void dt_dnn_config_put(struct dt_text *out, const struct dt_dnn_config *config)
{
    dt_text_printf(out, " %" PRId64 " %" PRId64, config->engine, config->knob_count);
    for (int i = 0; i < config->knob_count; i++) {
        dt_text_printf(out, " %" PRId64 " %" PRIx64, config->knobs[i].type, (uint64_t)config->knobs[i].value);
    }
}

bool dt_dnn_config_take(char **at, struct dt_dnn_config *config)
{
    uint64_t engine, count, type, value;
    if (!dt_plan_file_number(at, 10, INT64_MAX, &engine) || !dt_plan_file_number(at, 10, DT_DNN_KNOBS, &count)) {
        return false;
    }
    config->engine = (int64_t)engine;
    config->knob_count = (int64_t)count;
    for (int i = 0; i < config->knob_count; i++) {
        if (!dt_plan_file_number(at, 10, INT32_MAX, &type) || !dt_plan_file_number(at, 16, UINT64_MAX, &value)) {
            return false;
        }
        config->knobs[i].type = (int64_t)type;
        config->knobs[i].value = (int64_t)value;
    }
    return true;
}
