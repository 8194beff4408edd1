/* Job files: whatever is accepted must read back from its saved text to the same text. */
#include "driver.h"

#include "worker/job/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Opens bytes as a job, through a file in memory. */
static int open_bytes(struct job *job, const void *data, size_t size)
{
    char path[64];
    struct dt_error err = {0};
    struct dt_text problems;
    dt_text_init(&problems);
    int fd = memfd_create("job", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) {
        abort();
    }
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    struct job_arguments args = {.path = path};
    int result = job_open(job, &args, &problems, &err);
    if ((result != 0) != (problems.size > 0)) {
        abort();
    }
    dt_text_clear(&problems);
    (void)close(fd);
    return result;
}

int dt_fuzz(const uint8_t *data, size_t size)
{
    struct job job, again;
    struct job_changes changes;
    if (open_bytes(&job, data, size) != 0) {
        return 0;
    }
    if (open_bytes(&again, job.text, strlen(job.text)) != 0 || strcmp(job.text, again.text) != 0 ||
        job_compare(job.text, again.text, NULL, NULL, &changes, NULL) != 0 || changes.count != 0) {
        abort();
    }
    job_close(&again);
    job_close(&job);
    return 0;
}
