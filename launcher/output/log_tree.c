/* Names and modes are torchrun's. Nothing that exists is ever overwritten. */
#include "launcher/output/log_tree.h"

#include "base/file.h"
#include "base/text.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* Fills `out` (9 bytes) with 8 random letters and digits. */
static void random_name(char *out)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    unsigned char bytes[8] = {0};
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes) {
        (void)snprintf((char *)bytes, sizeof bytes, "%ld", (long)getpid());
    }
    for (int i = 0; i < 8; i++) {
        out[i] = letters[bytes[i] % (sizeof letters - 1)];
    }
    out[8] = '\0';
}

/* Makes base/PREFIX_xxxxxxxx with mode 0700; null on failure. */
static char *make_private(const char *base, const char *prefix, struct dt_error *err)
{
    for (int attempt = 0; attempt < 100; attempt++) {
        char name[9];
        random_name(name);
        char *path = dt_format("%s/%s_%s", base, prefix, name);
        if (mkdir(path, 0700) == 0) {
            return path;
        }
        if (errno != EEXIST || attempt == 99) {
            (void)dt_fail_errno(err, "%s: cannot make the folder", path);
            free(path);
            return NULL;
        }
        free(path);
    }
    return NULL;
}

/* The run id as part of a file name that neither leaves the folder nor is hidden in it. */
static void plain_name(const char *run_id, char *out, size_t size)
{
    size_t n = 0;
    for (const char *p = run_id; *p != '\0' && n < size - 1; p++) {
        bool plain = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') || *p == '-' ||
                     *p == '_' || (*p == '.' && n > 0);
        out[n++] = plain ? *p : '_';
    }
    out[n] = '\0';
}

static bool may_pass(enum dt_status status)
{
    return status == DT_FULL || status == DT_NO_MEMORY;
}

/* After a lack of room or memory another try may work. Any other failure would come again, so it
 * becomes DT_INVALID. */
static char *refuse(struct dt_error *err, const char *option)
{
    if (err != NULL && !may_pass(err->status)) {
        err->status = DT_INVALID;
    }
    (void)dt_wrap(err, "%s", option);
    return NULL;
}

/* Writes a test file: a disk that has room for folders may have none for data. */
static int try_to_write(const char *dir, struct dt_error *err)
{
    char *path = dt_format("%s/room", dir);
    int result = dt_file_append_line(path, "room", 4, err);
    (void)unlink(path);
    free(path);
    return result;
}

/* Makes place/torchelastic_xxxxxxxx, which becomes *base, and the run's folder in it. Null when
 * that fails or cannot be written to. */
static char *open_at(const char *place, const char *name, char **base, struct dt_error *err)
{
    char *made = make_private(place, "torchelastic", err);
    char *whole = made != NULL ? realpath(made, NULL) : NULL;
    char *dir = made != NULL ? make_private(whole != NULL ? whole : made, name, err) : NULL;
    free(whole);
    if (dir != NULL && try_to_write(dir, err) != 0) {
        (void)rmdir(dir);
        free(dir);
        dir = NULL;
    }
    if (dir == NULL && made != NULL) {
        (void)rmdir(made);
        free(made);
        made = NULL;
    }
    *base = made;
    return dir;
}

/* Makes the folders in the temporary folder, which is found as Python's gettempdir finds it. */
static char *open_temporary(const char *name, char **base, struct dt_error *err)
{
    const char *places[] = {getenv("TMPDIR"), getenv("TEMP"), getenv("TMP"), "/tmp", "/var/tmp", "/usr/tmp", "."};
    struct dt_error first = {.status = DT_OK}, cause;
    bool passes = false;
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        char *dir = places[i] != NULL && places[i][0] != '\0' ? open_at(places[i], name, base, &cause) : NULL;
        if (dir != NULL) {
            return dir;
        }
        if (places[i] != NULL && places[i][0] != '\0') {
            first = first.status == DT_OK ? cause : first;
            passes = passes || may_pass(cause.status);
        }
    }
    (void)dt_fail(err, passes ? DT_FULL : DT_INVALID,
                  "%s, and no other temporary folder can be written; set TMPDIR to one that can, or give --log_dir",
                  first.text);
    return NULL;
}

char *log_tree_open(const char *log_dir, const char *run_id, char **base, struct dt_error *err)
{
    char name[101];
    *base = NULL;
    plain_name(run_id, name, sizeof name);
    const char *prefix = name[0] != '\0' ? name : "none";
    if (log_dir == NULL || log_dir[0] == '\0') {
        return open_temporary(prefix, base, err);
    }
    if (dt_file_mkdirs(log_dir, err) != 0) {
        return refuse(err, "--log_dir");
    }
    char *whole = realpath(log_dir, NULL); /* absolute, because workers may change their folder */
    char *dir = make_private(whole != NULL ? whole : log_dir, prefix, err);
    free(whole);
    return dir != NULL ? dir : refuse(err, "--log_dir");
}

char *log_tree_attempt(const char *dir, int restart_count, struct dt_error *err)
{
    for (int again = 1;; again++) {
        char *path = again == 1 ? dt_format("%s/attempt_%d", dir, restart_count)
                                : dt_format("%s/attempt_%d.%d", dir, restart_count, again);
        if (mkdir(path, 0755) == 0) {
            return path;
        }
        if (errno != EEXIST || again == 1000000) {
            (void)dt_fail_errno(err, "%s: cannot make the folder", path);
            free(path);
            return NULL;
        }
        free(path);
    }
}
