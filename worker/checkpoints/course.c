/* Keeps one course of training per folder: records its beginning, and sets other checkpoints aside.
 * To set aside means to rename, not to remove: they may be the work of days. */
#include "worker/checkpoints/course.h"

#include "base/file.h"
#include "base/scan.h"
#include "base/text.h"
#include "worker/checkpoints/checkpoint.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define COURSE_MAX_BYTES (4 << 20) /* the run id comes from the environment */
/* Most files to look at: on a slow file system each one delays the start of a run. */
#define ASIDE_FILES 20000
#define ASIDE_DEPTH 4
#define OLD ".old-"

static char *member(const cJSON *tree, const char *key)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(tree, key));
    return text != NULL ? dt_strdup(text) : NULL;
}

void course_read(struct course *c, const char *dir)
{
    char *path = dt_format("%s/course.json", dir);
    struct dt_text text;
    struct dt_error err;
    dt_text_init(&text);
    cJSON *tree = dt_file_read_own(path, COURSE_MAX_BYTES, &text, &err) == 0
                      ? dt_scan_parse(dt_text_str(&text), text.size, path, NULL, &err)
                      : NULL;
    *c = (struct course){
        .run_id = member(tree, "run_id"), .launch = member(tree, "launch"), .from = member(tree, "from")};
    c->from = c->from != NULL ? c->from : dt_strdup("");
    c->launch = c->launch != NULL ? c->launch : dt_strdup("");
    cJSON_Delete(tree);
    dt_text_clear(&text);
    free(path);
}

int course_write(const char *dir, const char *run_id, const char *launch, const char *from, struct dt_error *err)
{
    char *path = dt_format("%s/course.json", dir);
    struct dt_text text;
    dt_text_init(&text);
    dt_text_puts(&text, "{\"from\":");
    dt_text_json(&text, from, strlen(from));
    if (run_id != NULL) {
        dt_text_puts(&text, ",\"run_id\":");
        dt_text_json(&text, run_id, strlen(run_id));
        if (launch[0] != '\0') {
            dt_text_puts(&text, ",\"launch\":");
            dt_text_json(&text, launch, strlen(launch));
        }
    }
    dt_text_puts(&text, "}\n");
    int rc = dt_file_write(path, text.data, text.size, err);
    dt_text_clear(&text);
    free(path);
    return rc;
}

void course_clear(struct course *c)
{
    free(c->run_id);
    free(c->launch);
    free(c->from);
    *c = (struct course){NULL};
}

int course_set_aside(const char *path, struct dt_error *err)
{
    if (!dt_file_exists(path)) {
        return 0;
    }
    for (int i = 1;; i++) {
        char *old = dt_format("%s" OLD "%d", path, i);
        bool taken = dt_file_exists(old);
        int rc = taken ? 0 : rename(path, old);
        if (!taken && rc != 0) {
            rc = dt_fail_errno(err, "%s", path);
        }
        free(old);
        if (!taken) {
            return rc;
        }
    }
}

int course_leave_behind(const char *dir, int64_t after, int64_t *first, int64_t *last, struct dt_error *err)
{
    int64_t *steps = NULL;
    int count = 0, left = 0, rc = checkpoint_steps(dir, &steps, &count, err);
    for (int i = 0; rc == 0 && i < count && steps[i] > after; i++) {
        char *path = checkpoint_path(dir, steps[i]);
        if (checkpoint_looks_whole(path)) {
            rc = course_set_aside(path, err);
            *last = left++ == 0 ? steps[i] : *last;
            *first = steps[i];
        }
        free(path);
    }
    free(steps);
    return rc == 0 ? left : -1;
}

/* ---- folders set aside ---- */

/* True if name is `stem`, something, and ".old-N"; with `whole`, nothing is between.
 * "step-00000300.old-1" has the stem "step-". "checkpoints.old-2" has the whole stem
 * "checkpoints". */
static bool is_aside(const char *name, const char *stem, bool whole)
{
    const char *mark = strstr(name, OLD);
    size_t size = strlen(stem);
    return mark != NULL && strncmp(name, stem, size) == 0 && (whole ? mark == name + size : mark > name + size) &&
           mark[strlen(OLD)] != '\0' && strspn(mark + strlen(OLD), "0123456789") == strlen(mark + strlen(OLD));
}

static double disk_bytes(const char *path, int depth, int *left)
{
    struct stat st;
    if (--*left < 0 || lstat(path, &st) != 0) {
        return 0;
    }
    double sum = 512.0 * (double)st.st_blocks;
    DIR *d = S_ISDIR(st.st_mode) && depth < ASIDE_DEPTH ? opendir(path) : NULL;
    for (struct dirent *e; d != NULL && *left > 0 && (e = readdir(d)) != NULL;) {
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) {
            char *below = dt_format("%s/%s", path, e->d_name);
            sum += disk_bytes(below, depth + 1, left);
            free(below);
        }
    }
    if (d != NULL) {
        (void)closedir(d);
    }
    return sum;
}

/* Adds up the bytes of the folders in `folder` that are set aside. Returns their number. */
static int add_aside(const char *folder, const char *stem, bool whole, int *left, double *bytes)
{
    int count = 0;
    DIR *d = opendir(folder);
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        if (is_aside(e->d_name, stem, whole)) {
            char *path = dt_format("%s/%s", folder, e->d_name);
            *bytes += disk_bytes(path, 0, left);
            free(path);
            count++;
        }
    }
    if (d != NULL) {
        (void)closedir(d);
    }
    return count;
}

/* Adds up the bytes of PATH.old-N beside PATH, and appends the argument of rm that removes them. */
static int add_courses(const char *path, int *left, double *bytes, struct dt_text *remove)
{
    const char *slash = strrchr(path, '/');
    /* "./" keeps rm from reading the path as an option */
    char *parent = dt_strdup(path), *whole = dt_format("%s%s" OLD, path[0] == '-' ? "./" : "", path);
    dt_file_strip(parent);
    int count = add_aside(parent, slash != NULL ? slash + 1 : path, true, left, bytes);
    if (count > 0) {
        dt_text_puts(remove, " ");
        dt_text_shell(remove, whole);
        dt_text_puts(remove, "[0-9]*");
    }
    free(whole);
    free(parent);
    return count;
}

int course_aside(const char *dir, const char *model, double *bytes, struct dt_text *remove)
{
    char *steps = dt_format("%s%s/step-", dir[0] == '-' ? "./" : "", dir);
    int left = ASIDE_FILES;
    *bytes = 0;
    dt_text_puts(remove, "rm -r");
    int courses = add_courses(dir, &left, bytes, remove) + add_courses(model, &left, bytes, remove);
    int single = add_aside(dir, "step-", false, &left, bytes);
    if (single > 0) {
        dt_text_puts(remove, " ");
        dt_text_shell(remove, steps);
        dt_text_puts(remove, "*" OLD "[0-9]*");
    }
    free(steps);
    return courses + single;
}
