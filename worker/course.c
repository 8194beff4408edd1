/* Keeps one course of training per folder: its beginning on record, and what is not of it out of the way. Set aside is renamed, not removed: days of
 * work may lie in it. */
#include "worker/course.h"

#include "base/file.h"
#include "base/scan.h"
#include "base/text.h"
#include "worker/checkpoint.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COURSE_MAX_BYTES (4 << 20) /* the run id is a string of the environment */

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
    cJSON *tree = dt_file_read(path, COURSE_MAX_BYTES, &text, &err) == 0 ? dt_scan_parse(dt_text_str(&text), text.size, path, NULL, &err) : NULL;
    *c = (struct course){.run_id = member(tree, "run_id"), .from = member(tree, "from")};
    c->from = c->from != NULL ? c->from : dt_strdup("");
    cJSON_Delete(tree);
    dt_text_clear(&text);
    free(path);
}

int course_write(const char *dir, const char *run_id, const char *from, struct dt_error *err)
{
    char *path = dt_format("%s/course.json", dir);
    struct dt_text text;
    dt_text_init(&text);
    dt_text_puts(&text, "{\"from\":");
    dt_text_json(&text, from, strlen(from));
    if (run_id != NULL) {
        dt_text_puts(&text, ",\"run_id\":");
        dt_text_json(&text, run_id, strlen(run_id));
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
    free(c->from);
    *c = (struct course){NULL};
}

int course_set_aside(const char *path, struct dt_error *err)
{
    if (!dt_file_exists(path)) {
        return 0;
    }
    for (int i = 1;; i++) {
        char *old = dt_format("%s.old-%d", path, i);
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
        char *path = checkpoint_path(dir, steps[i]), *manifest = dt_format("%s/manifest.json", path);
        if (dt_file_exists(manifest)) { /* without: a removal that was cut short, which the next save ends */
            rc = course_set_aside(path, err);
            *last = left++ == 0 ? steps[i] : *last;
            *first = steps[i];
        }
        free(manifest);
        free(path);
    }
    free(steps);
    return rc == 0 ? left : -1;
}
