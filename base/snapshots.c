#include "base/snapshots.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int dt_snapshots_create(int workers)
{
    int fd = memfd_create("dtrun-snapshots", MFD_CLOEXEC);
    if (fd >= 0 && ftruncate(fd, 2 * workers * DT_SNAPSHOT_REGION) != 0) {
        (void)close(fd);
        fd = -1;
    }
    return fd;
}

int dt_snapshots_attach(int *workers, struct dt_error *err)
{
    const char *path = getenv("DTRUN_SNAPSHOTS");
    struct stat st;
    if (path == NULL || *path == '\0') {
        return dt_fail(err, DT_NOT_FOUND, "DTRUN_SNAPSHOTS: not set");
    }
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0) {
        (void)dt_fail_errno(err, "DTRUN_SNAPSHOTS=%s", path);
        if (fd >= 0) {
            (void)close(fd);
        }
        return -1;
    }
    *workers = (int)(st.st_size / (2 * DT_SNAPSHOT_REGION));
    return fd;
}
