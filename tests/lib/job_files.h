/* Files of other systems as jobs: opened, compared with a job in our keys, refused. For tests that have
 * included cmocka's headers; all names are in `folder`. */
#ifndef DT_TESTS_LIB_JOB_FILES_H
#define DT_TESTS_LIB_JOB_FILES_H

#include "base/file.h"
#include "tests/lib/folder.h"
#include "worker/job/job.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static inline const char *path_of(const char *name)
{
    static char paths[4][sizeof folder + 64];
    static int next;
    char *path = paths[next++ % 4];
    (void)snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static inline void write_file(const char *name, const char *text)
{
    struct dt_error err = {0};
    if (dt_file_write(path_of(name), text, strlen(text), &err) != 0) {
        fail_msg("%s", err.text);
    }
}

/* A copy without the folder's name, which the caller does not free. */
static inline const char *plain(const char *text)
{
    static char copy[16384];
    char *out = copy;
    for (const char *p = text; *p != 0 && out + 1 < copy + sizeof copy;) {
        if (strncmp(p, folder, strlen(folder)) == 0) {
            p += strlen(folder) + 1;
        } else {
            *out++ = *p++;
        }
    }
    *out = 0;
    return copy;
}

/* what such files do not say */
static const char *const basic[] = {"model.name=gpt2", "data.train=x", "data.val=y", "output_dir=o"};

/* Opens a file as a job; a second one beside it (null: none). What is wrong, or null. */
static inline const char *open_as_job(struct job *job, const char *name, const char *config, int world)
{
    struct dt_error err = {0};
    struct dt_text all;
    const char *path = path_of(name), *beside[1] = {config != NULL ? path_of(config) : NULL};
    struct job_arguments args = {
        .path = path, .config = beside, .config_count = config != NULL, .set = basic, .set_count = 4, .world = world};
    dt_text_init(&all);
    int result = job_open(job, &args, &all, &err);
    const char *wrong = result != 0 ? plain(dt_text_str(&all)) : NULL;
    dt_text_clear(&all);
    return wrong;
}

static inline void opened(struct job *job, const char *name, const char *config, int world)
{
    const char *wrong = open_as_job(job, name, config, world);
    if (wrong != NULL) {
        fail_msg("%s: %s", name, wrong);
    }
}

/* The file is the same job as the one in our keys, and says that `inert` has no effect (null: nothing). */
static inline void same_job(const char *name, const char *text, int world, const char *ours, const char *inert)
{
    struct job theirs, own;
    write_file(name, text);
    write_file("ours.json", ours);
    opened(&theirs, name, NULL, world);
    opened(&own, "ours.json", NULL, world);
    for (const char *a = theirs.text, *b = own.text; *a != 0 && *b != 0;) { /* line by line, to say which */
        size_t size = strcspn(a, "\n");
        if (strncmp(a, b, size + 1) != 0) {
            fail_msg("%s: %.*s, and ours: %.*s", name, (int)size, a, (int)strcspn(b, "\n"), b);
        }
        a += size + (a[size] != 0);
        b += size + (b[size] != 0);
    }
    assert_string_equal(theirs.inert_keys != NULL ? theirs.inert_keys : "", inert != NULL ? inert : "");
    job_close(&theirs);
    job_close(&own);
}

static inline void refused(const char *name, const char *text, int world, const char *message)
{
    struct job job;
    write_file(name, text);
    const char *wrong = open_as_job(&job, name, NULL, world);
    if (wrong == NULL) {
        job_close(&job);
        fail_msg("%s is taken", text);
    }
    assert_string_equal(wrong, message);
}

#endif
