/* Token shards that memory has not got, as of a data set larger than it: samples in a shuffled order, and all in
 * order, with what is needed next asked for ahead as a training job does. The floor is the disk itself: as many
 * reads at random places by threads, or one thread's reads in order, all past the page cache. By the clock. */
#include "cmd/bench/cold.h"

#include "base/bench.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "cmd/bench/shards.h"
#include "worker/data/data.h"

#include <fcntl.h>
#include <glob.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    TOKENS = 640 << 20, /* more than what is read whole at each start */
    LENGTH = 1024,
    ROWS = 64,
    SHUFFLED_ROWS = 1 << 14,
    PAGE = 4096,
    BLOCK = 1 << 20,
    THREADS = 32,
    REPEATS_MOST = 101,
    MEASURES = 2
};

/* Takes the files out of memory. */
static int forget(const char *pattern, struct dt_error *err)
{
    glob_t files;
    int rc = 0;
    if (glob(pattern, 0, NULL, &files) != 0) {
        return dt_fail(err, DT_IO, "%s: no file", pattern);
    }
    for (size_t i = 0; i < files.gl_pathc && rc == 0; i++) {
        int fd = open(files.gl_pathv[i], O_RDONLY | O_CLOEXEC);
        rc = fd >= 0 && fsync(fd) == 0 && posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0
                 ? 0
                 : dt_fail_errno(err, "%s", files.gl_pathv[i]);
        if (fd >= 0) {
            (void)close(fd);
        }
    }
    globfree(&files);
    return rc;
}

/* Seconds for so many samples in batches of ROWS. */
static int read_rows(const char *pattern, bool shuffle, int64_t count, double *took_s, struct dt_error *err)
{
    static int32_t ids[ROWS * LENGTH], labels[ROWS * LENGTH];
    const struct batch_layout layout = batch_tokens(ROWS, LENGTH, 0, "vocab_size");
    struct data_source s;
    if (forget(pattern, err) != 0 || data_open(&s, pattern, "auto", &layout, err) != 0) {
        return -1;
    }
    struct sampler order = {.sample_count = s.sample_count, .seed = 1, .shuffle = shuffle};
    struct batch b = {.layout = &layout, .at = {ids, labels}, .samples = ROWS};
    int rc = 0;
    double begin_s = dt_now_s();
    for (int64_t at = 0; rc == 0 && at + ROWS <= count && at + ROWS <= s.sample_count; at += ROWS) {
        (void)data_expect(&s, &order, 0, at + ROWS, 0, 1, 2 * ROWS);
        rc = data_batch(&s, &order, 0, at, 0, 1, &b, err);
    }
    *took_s = dt_now_s() - begin_s;
    data_close(&s);
    return rc;
}

/* ---- the disk ---- */

struct reads {
    int fd;
    off_t size;
    _Atomic int64_t left;
};

static void *read_anywhere(void *context)
{
    struct reads *r = context;
    void *page = NULL;
    uint64_t random = (uint64_t)pthread_self();
    if (posix_memalign(&page, PAGE, PAGE) == 0) {
        while (r->left-- > 0) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            (void)!pread(r->fd, page, PAGE, (off_t)((random >> 20) % (uint64_t)(r->size / PAGE)) * PAGE);
        }
    }
    free(page);
    return NULL;
}

/* Seconds for `count` pages at random places of a file, and for all of it in order. */
static int read_disk(const char *path, int64_t count, double took_s[MEASURES], struct dt_error *err)
{
    struct reads r = {.fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC), .left = count};
    pthread_t threads[THREADS];
    void *block = NULL;
    if (r.fd < 0 || (r.size = lseek(r.fd, 0, SEEK_END)) <= 0 || posix_memalign(&block, PAGE, BLOCK) != 0) {
        return dt_fail_errno(err, "%s", path);
    }
    int started = 0;
    double begin_s = dt_now_s();
    while (started < THREADS && pthread_create(&threads[started], NULL, read_anywhere, &r) == 0) {
        started++;
    }
    for (int i = 0; i < started; i++) {
        (void)pthread_join(threads[i], NULL);
    }
    took_s[0] = dt_now_s() - begin_s;
    begin_s = dt_now_s();
    for (off_t at = 0; at < r.size && pread(r.fd, block, BLOCK, at) > 0; at += BLOCK) {
    }
    took_s[1] = (dt_now_s() - begin_s) * 2.0 * TOKENS / (double)r.size;
    free(block);
    (void)close(r.fd);
    return 0;
}

int bench_cold_shards(const char *folder, size_t repeats, struct dt_error *err)
{
    static const char *const names[MEASURES] = {"shards from the disk, shuffled", "shards from the disk, in order"};
    static const char *const units[MEASURES] = {"rows/s", "MB/s"};
    const double amounts[MEASURES] = {SHUFFLED_ROWS, 2.0 * TOKENS / 1e6};
    double rates[MEASURES][REPEATS_MOST], floors[MEASURES][REPEATS_MOST];
    char *own = dt_format("%s/dtrun-bench-XXXXXX", folder);
    if (mkdtemp(own) == NULL) {
        (void)dt_fail_errno(err, "%s", folder);
        free(own);
        return -1;
    }
    char *pattern = dt_format("%s/train-*.bin", own), *first = dt_format("%s/train-00000.bin", own);
    int rc = bench_write_shards(own, TOKENS, err);
    for (size_t i = 0; rc == 0 && i < repeats; i++) {
        double took_s[MEASURES], disk_s[MEASURES];
        rc = read_rows(pattern, true, SHUFFLED_ROWS, &took_s[0], err) != 0 ||
                     read_rows(pattern, false, INT64_MAX - ROWS, &took_s[1], err) != 0 ||
                     read_disk(first, SHUFFLED_ROWS, disk_s, err) != 0
                 ? -1
                 : 0;
        for (int m = 0; m < MEASURES && rc == 0; m++) {
            rates[m][i] = amounts[m] / took_s[m];
            floors[m][i] = amounts[m] / disk_s[m];
        }
    }
    for (int m = 0; rc == 0 && m < MEASURES; m++) {
        double floor = dt_bench_median(floors[m], repeats);
        dt_bench_print(&(struct dt_bench_case){.bench = "data", .name = names[m], .unit = units[m], .floor = floor},
                       rates[m], repeats);
    }
    (void)dt_file_remove_tree(own, NULL);
    free(first);
    free(pattern);
    free(own);
    return rc;
}
