/* One job at a time for a folder of checkpoints: a lock on DIR.lock beside it. The lock ends with
 * its process, however that ends. The file names the holder. */
#include "worker/checkpoints/checkpoint.h"

#include "base/clock.h"
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOOK_S 0.02
#define FROZEN_S 3.0   /* a rank that is told to end releases the lock sooner */
#define LINE_BYTES 512 /* "HOST PID SINCE JOB", and the launch on a second line */

struct holder {
    char host[256], since[32], job[128], launch[64];
    long pid; /* 0: the file names no holder */
};

static void read_holder(int fd, struct holder *h)
{
    char line[LINE_BYTES] = "";
    ssize_t size = pread(fd, line, sizeof line - 1, 0);
    *h = (struct holder){.pid = 0};
    const char *second = strchr(line, '\n');
    if (second != NULL) {
        (void)snprintf(h->launch, sizeof h->launch, "%s", second + 1);
    }
    for (ssize_t i = 0; i < size; i++) { /* for one line of a message, whoever wrote it */
        line[i] = (unsigned char)line[i] < 32 || line[i] == 127 ? '\0' : line[i];
    }
    if (sscanf(line, "%255s %ld %31s %127[^\n]", h->host, &h->pid, h->since, h->job) < 3) {
        h->pid = 0;
    }
}

/* Bytes of a run id that the file holds. */
static int job_bytes(const char *run_id)
{
    size_t size = strcspn(run_id != NULL ? run_id : "", "\n");
    return size < 127 ? (int)size : 127;
}

static void write_holder(int fd, const char *run_id, const char *launch)
{
    char host[256] = "", since[32], line[LINE_BYTES];
    (void)gethostname(host, sizeof host - 1);
    dt_wall_text(dt_wall_s(), since, sizeof since);
    int size = snprintf(line, sizeof line, "%s %ld %s %.*s\n%.63s", *host != '\0' ? host : "?", (long)getpid(), since,
                        job_bytes(run_id), run_id != NULL ? run_id : "", launch != NULL ? launch : "");
    if (ftruncate(fd, 0) == 0) {
        (void)!pwrite(fd, line, (size_t)size, 0);
    }
}

static int refuse(const char *dir, const struct holder *h, struct dt_error *err)
{
    if (h->pid == 0) {
        return dt_fail(err, DT_IN_USE, "%s: in use by another job; give this one another --output_dir", dir);
    }
    return dt_fail(err, DT_IN_USE, "%s: in use by host %s pid %ld%s%s, since %s; give this one another --output_dir",
                   dir, h->host, h->pid, h->job[0] != '\0' ? ", job " : "", h->job, h->since);
}

/* True if the holder is an older round of this launch, whose host is lost or frozen. The holder
 * cannot be another job of that name: it would have refused the first round of this launch. */
static bool is_older_round(const struct holder *h, const char *run_id, const char *launch, int round)
{
    return round > 1 && run_id != NULL && run_id[0] != '\0' && h->pid != 0 &&
           strncmp(h->job, run_id, sizeof h->job - 1) == 0 && strcmp(h->launch, launch != NULL ? launch : "") == 0;
}

/* True if fd is still the file at `path`, and no other file has replaced it. */
static bool is_at(int fd, const char *path)
{
    struct stat here, there;
    return fstat(fd, &here) == 0 && stat(path, &there) == 0 && here.st_dev == there.st_dev &&
           here.st_ino == there.st_ino;
}

/* Replaces the lock file, whose lock a frozen rank holds, by a new file that we have locked. When
 * the frozen rank ends or wakes up, the folder stays ours: a process that gets a lock checks that
 * its file still has this name. Returns the descriptor, or -1: no process holds the folder then,
 * and only the owner's file (checkpoint_claim) keeps the older round away. */
static int take_over(const char *path, const char *run_id, const char *launch)
{
    char *fresh = dt_format("%s.new", path);
    int fd = dt_file_open_lock(fresh, NULL);
    if (fd >= 0 &&
        (flock(fd, LOCK_EX | LOCK_NB) != 0 || (write_holder(fd, run_id, launch), rename(fresh, path)) != 0)) {
        (void)close(fd);
        fd = -1;
    }
    free(fresh);
    return fd;
}

int checkpoint_hold(const char *dir, const char *run_id, const char *launch, int round, double wait_s, int *lock,
                    struct dt_error *err)
{
    char *parent = dt_strdup(dir), *path = dt_format("%s.lock", dir);
    struct holder h;
    dt_file_strip(parent);
    int result = dt_file_mkdirs(parent, err), fd = -1;
    if (result == 0) {
        fd = dt_file_open_lock(path, err);
        result = fd >= 0 ? 0 : -1;
    }
    double begin_s = dt_now_s();
    while (result == 0) {
        bool locked = flock(fd, LOCK_EX | LOCK_NB) == 0, busy = !locked && errno == EWOULDBLOCK, taken = false;
        if (locked && is_at(fd, path)) {
            write_holder(fd, run_id, launch);
            break;
        }
        if (locked) { /* another round has replaced the file, so this lock is worthless */
            (void)close(fd);
            fd = dt_file_open_lock(path, err);
            result = fd >= 0 ? 0 : -1;
            continue;
        }
        double waited_s = dt_now_s() - begin_s;
        if (busy && (waited_s > wait_s || waited_s > FROZEN_S)) {
            read_holder(fd, &h);
            taken = is_older_round(&h, run_id, launch, round);
        }
        if (busy && waited_s > wait_s && !taken) {
            result = refuse(dir, &h, err);
        } else if (!taken && (busy || errno == EINTR)) {
            dt_sleep_s(LOOK_S);
        } else { /* taken from an older round, or the file system has no locks */
            (void)close(fd);
            fd = taken ? take_over(path, run_id, launch) : -1;
            break;
        }
    }
    if (result != 0 && fd >= 0) {
        (void)close(fd);
    }
    if (result == 0) {
        *lock = fd;
    }
    free(path);
    free(parent);
    return result;
}

int checkpoint_check_free(const char *dir, const char *run_id, double wait_s, struct dt_error *err)
{
    char *path = dt_format("%s.lock", dir);
    struct holder h;
    int result = 0, fd = dt_file_exists(path) ? dt_file_open_lock(path, err) : -1;
    if (fd < 0) {
        /* the error of an unreadable file comes when the lock is taken */
        result = dt_file_exists(path) && err->status == DT_INVALID ? -1 : 0;
    }
    for (double until_s = dt_now_s() + wait_s; fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) != 0;) {
        if (errno != EWOULDBLOCK && errno != EINTR) {
            break;
        }
        read_holder(fd, &h);
        if (run_id != NULL && h.pid != 0 && strncmp(h.job, run_id, sizeof h.job - 1) == 0) {
            break; /* the holder is our own job: this host joins it */
        }
        if (dt_now_s() > until_s) {
            result = refuse(dir, &h, err);
            break;
        }
        dt_sleep_s(LOOK_S);
    }
    if (fd >= 0) {
        (void)flock(fd, LOCK_UN); /* unlock at once, since this process takes the lock soon */
        (void)close(fd);
    }
    free(path);
    return result;
}
