#include "tests/lib/plan_cache.h"

#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "tests/lib/folder.h"

#include <fcntl.h>
#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <xxhash.h>
// clang-format off: needs the headers above
#include <cmocka.h>
// clang-format on

void plan_cache_use(const char *name, bool fresh)
{
    struct dt_error err;
    char *path = dt_format("%s/%s", folder, name);
    if (fresh && dt_file_remove_tree(path, &err) != 0) {
        fail_msg("%s", err.text);
    }
    (void)setenv("DTRUN_CACHE", path, 1);
    free(path);
}

void plan_cache_find(const char *kind, char *path, size_t size)
{
    glob_t found;
    char *pattern = dt_format("%s/%s-*.plans", getenv("DTRUN_CACHE"), kind);
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    assert_int_equal(found.gl_pathc, 1);
    (void)snprintf(path, size, "%s", found.gl_pathv[0]);
    globfree(&found);
    free(pattern);
}

void plan_cache_read(const char *path, struct dt_text *out)
{
    struct dt_error err;
    dt_text_reset(out);
    if (dt_file_read(path, 1 << 20, out, &err) != 0) {
        fail_msg("%s", err.text);
    }
}

void plan_cache_damage(const char *path, const struct dt_text *good, enum plan_cache_damage kind, const char *instead)
{
    struct dt_error err;
    struct dt_text text;
    dt_text_init(&text);
    dt_text_puts(&text, kind == PLAN_CACHE_INSTEAD ? instead : good->data);
    if (kind == PLAN_CACHE_CHANGED) {
        text.data[text.size / 2] ^= 1;
    } else if (kind == PLAN_CACHE_CUT) {
        text.size /= 2;
    } else {
        dt_text_printf(&text, "sum %016llx\n", (unsigned long long)XXH3_64bits(text.data, text.size));
    }
    assert_int_equal(dt_file_write(path, text.data, text.size, &err), 0);
    dt_text_clear(&text);
}

static char *log_path(void)
{
    return dt_format("%s/log", folder);
}

int plan_cache_log_begin(void)
{
    char *path = log_path();
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    dt_log_open(DT_LOG_WARN, -1, fd);
    free(path);
    return fd;
}

void plan_cache_log_end(int fd, struct dt_text *said)
{
    char *path = log_path();
    dt_log_open(DT_LOG_WARN, -1, 2);
    (void)close(fd);
    plan_cache_read(path, said);
    free(path);
}
