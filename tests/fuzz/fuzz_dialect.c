/* Files of other systems, in YAML and in JSON: whatever is accepted is a job that reads back from its
 * saved text to the same text, and what --convert writes is JSON. */
#include "driver.h"

#include "base/file.h"
#include "base/scan.h"
#include "worker/job/convert.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[] = "/tmp/dt-dialect-XXXXXX";

static void remove_folder(void)
{
    (void)dt_file_remove_tree(folder, NULL);
}

/* Strings of its own: the job may keep the path. */
static const char *write_file(const char *end, const void *data, size_t size)
{
    static char paths[2][64];
    static int next;
    static bool there;
    char *path = paths[next++ % 2];
    if (!there) {
        if (mkdtemp(folder) == NULL) {
            abort();
        }
        (void)atexit(remove_folder);
        there = true;
    }
    (void)snprintf(path, sizeof paths[0], "%s/f.%s", folder, end);
    if (dt_file_write(path, data, size, NULL) != 0) {
        abort();
    }
    return path;
}

static void try_as(const char *end, const uint8_t *data, size_t size)
{
    static const char *const set[] = {"model.name=gpt2", "data.train=x"};
    struct job job, again;
    struct dt_text out, notes;
    struct dt_error err = {0};
    struct job_arguments args = {.path = write_file(end, data, size), .set = set, .set_count = 2};
    dt_text_init(&out);
    dt_text_init(&notes);
    int opened = job_open(&job, &args, &notes, &err);
    if ((opened != 0) != (notes.size > 0)) {
        abort();
    }
    if (opened == 0) {
        struct job_arguments saved = {.path = write_file("saved.json", job.text, strlen(job.text))};
        if (job_open(&again, &saved, &notes, &err) != 0 || strcmp(job.text, again.text) != 0) {
            abort();
        }
        job_close(&again);
        job_close(&job);
    }
    dt_text_reset(&notes);
    args.path = write_file(end, data, size);
    args.set_count = 0;
    if (job_convert(&args, &out, &notes, &err) == 0) {
        cJSON *tree = dt_scan_parse(dt_text_str(&out), out.size, "converted", NULL, &err);
        if (tree == NULL) {
            abort();
        }
        cJSON_Delete(tree);
    }
    dt_text_clear(&out);
    dt_text_clear(&notes);
}

int dt_fuzz(const uint8_t *data, size_t size)
{
    try_as("yaml", data, size);
    try_as("json", data, size);
    return 0;
}
