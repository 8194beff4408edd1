/* Loads a folder as train --evaluate does: memory is there, then the weights are read into it. The floor is
 * one process that reads the same files with read(2), 1 MiB at a time, in turns with ours. Cold: the
 * kernel has dropped the files from its cache before each turn. Peak memory stands beside what the plan
 * gives this rank, and the largest unit. */
#include "cmd/bench/load.h"

#include "base/bench.h"
#include "base/clock.h"
#include "base/file.h"
#include "worker/engine/trainer.h"
#include "worker/run/trainer.h"

#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { REPEATS_MOST = 101, READ_BYTES = 1 << 20, PAGE_BYTES = 4096 };

struct load {
    struct job job;
    struct world world;
    struct trainer trainer;
    bool has_trainer;
    glob_t files;
    double bytes; /* of all files */
};

static int open_job(struct load *l, const char *folder, const char *strategy, const char *dtype, struct dt_error *err)
{
    char path[] = "/tmp/dtrun-bench-XXXXXX";
    int fd = mkstemp(path);
    struct dt_text text, problems;
    dt_text_init(&text);
    dt_text_init(&problems);
    dt_text_puts(&text, "{\"model\": {\"load\": ");
    dt_text_json(&text, folder, strlen(folder));
    dt_text_printf(&text,
                   "}, \"data\": {\"sequence_length\": 16}, \"training\": {\"strategy\": \"%s\", \"precision\": "
                   "\"%s\", \"batch_size_per_gpu\": 1}}",
                   strategy, dtype);
    int rc = fd >= 0 ? dt_file_write(path, text.data, text.size, err) : dt_fail_errno(err, "%s", path);
    if (rc == 0 && job_open(&l->job, &(struct job_arguments){.path = path, .evaluates = true}, &problems, err) != 0) {
        rc = dt_fail(err, DT_INVALID, "%s", dt_text_str(&problems));
    }
    if (fd >= 0) {
        (void)close(fd);
        (void)unlink(path);
    }
    dt_text_clear(&problems);
    dt_text_clear(&text);
    return rc;
}

static int open_trainer(struct load *l, struct dt_error *err)
{
    struct world *w = &l->world;
    if (world_open(w, &(struct world_options){.device = "cpu"}, err) != 0) {
        return -1;
    }
    l->has_trainer = true;
    return trainer_prepare(&l->trainer, &l->job, w->rank, w->size, w->local_size, w->device->real, 0, err) != 0
               ? -1
               : trainer_open(&l->trainer, w, err);
}

static int find_files(struct load *l, const char *folder, struct dt_error *err)
{
    char *pattern = dt_format("%s/*.safetensors", folder);
    int rc = glob(pattern, 0, NULL, &l->files) == 0 ? 0 : dt_fail(err, DT_NOT_FOUND, "%s: no such file", pattern);
    for (size_t i = 0; i < l->files.gl_pathc; i++) {
        struct stat st;
        l->bytes += stat(l->files.gl_pathv[i], &st) == 0 ? (double)st.st_size : 0;
    }
    free(pattern);
    return rc;
}

/* Reads all files, or, with a null buffer, has the kernel drop them from its cache. */
static void visit_files(const struct load *l, char *buffer)
{
    for (size_t i = 0; i < l->files.gl_pathc; i++) {
        int fd = open(l->files.gl_pathv[i], O_RDONLY | O_CLOEXEC);
        if (buffer == NULL) {
            (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        }
        while (buffer != NULL && read(fd, buffer, READ_BYTES) > 0) {
        }
        (void)close(fd);
    }
}

/* All ranks have come here. */
static int meet(struct load *l, struct dt_error *err)
{
    int64_t sum = 1;
    if (l->world.size > 1) {
        dt_comm_start(l->world.comm,
                      &(struct dt_collective){.kind = DT_ALL_REDUCE,
                                              .op = DT_SUM,
                                              .name = "meet",
                                              .in = &sum,
                                              .out = &sum,
                                              .count = 1,
                                              .type = DT_I64},
                      l->world.compute);
    }
    return dt_stream_finish(l->world.compute, 600, err);
}

/* Bytes of "VmHWM:" or the like, of this process. */
static double status_bytes(const char *key)
{
    struct dt_text text;
    double kib = 0;
    dt_text_init(&text);
    if (dt_file_read("/proc/self/status", 1 << 20, &text, NULL) == 0) {
        const char *at = strstr(text.data, key);
        kib = at != NULL ? strtod(at + strlen(key), NULL) : 0;
    }
    dt_text_clear(&text);
    return kib * 1024;
}

static int run_case(struct load *l, const char *name, bool cold, size_t repeats, struct dt_error *err)
{
    double rates[2][REPEATS_MOST] = {{0}};                /* of read(2), and ours */
    char *buffer = aligned_alloc(PAGE_BYTES, READ_BYTES); /* copies to an odd address are several times slower */
    int rc = 0;
    for (size_t r = 0; r < repeats && rc == 0; r++) {
        for (size_t turn = 0; turn < 2 && rc == 0; turn++) {
            bool loads = turn == r % 2; /* neither is always the first */
            if (l->world.rank == 0) {
                visit_files(l, cold ? NULL : buffer);
            }
            rc = meet(l, err);
            double begin_s = dt_now_s();
            if (!loads && l->world.rank == 0) {
                visit_files(l, buffer);
            } else if (loads && rc == 0) {
                rc = trainer_init_weights(&l->trainer, err);
            }
            rc = rc == 0 ? meet(l, err) : rc;
            rates[loads][r] = l->bytes / (dt_now_s() - begin_s) * 1e-9;
        }
    }
    free(buffer);
    if (rc == 0 && l->world.rank == 0) {
        struct dt_bench_case c = {
            .bench = "load", .name = name, .unit = "GB/s", .floor = dt_bench_median(rates[0], repeats)};
        dt_bench_print(&c, rates[1], repeats);
    }
    return rc;
}

static void print_memory(const struct load *l, double before)
{
    const struct chain *c = &l->trainer.chain;
    int64_t most = 0;
    for (int u = 0; u < c->unit_count; u++) {
        most = c->units[u].numel > most ? c->units[u].numel : most;
    }
    double peak = (status_bytes("VmHWM:") - before) / 0x1p20,
           unit = (double)most * (double)l->trainer.strategy.type_size,
           share = (double)plan_total(&l->trainer.memory.plan);
    struct dt_bench_case memory = {
        .bench = "load", .name = "peak memory", .unit = "MiB", .floor = (share + unit) / 0x1p20};
    dt_bench_print(&memory, &peak, 1);
}

int bench_load(int argc, char **argv)
{
    const char *folder = dt_bench_option(argc, argv, "folder", NULL),
               *strategy = dt_bench_option(argc, argv, "strategy", "auto"),
               *dtype = dt_bench_option(argc, argv, "dtype", "fp32");
    size_t repeats = (size_t)dt_bench_number(argc, argv, "repeats", 5);
    struct load l = {.bytes = 0};
    struct dt_error err = {.status = DT_OK};
    if (folder == NULL) {
        (void)fprintf(stderr, "bench load: no folder; say --folder PATH, a Hugging Face folder\n");
        return DT_EXIT_USAGE;
    }
    int rc = find_files(&l, folder, &err);
    rc = rc == 0 ? open_job(&l, folder, strategy, dtype, &err) : rc;
    double before = status_bytes("VmRSS:");
    rc = rc == 0 ? open_trainer(&l, &err) : rc;
    rc = rc == 0 ? run_case(&l, "cold", true, repeats, &err) : rc;
    rc = rc == 0 ? run_case(&l, "warm", false, repeats, &err) : rc;
    if (rc != 0) {
        (void)fprintf(stderr, "bench load: %s\n", err.text);
    } else if (l.world.rank == 0) {
        print_memory(&l, before);
    }
    if (l.has_trainer) {
        l.world.failed = rc != 0;
        trainer_close(&l.trainer);
    }
    world_close(&l.world);
    job_close(&l.job);
    globfree(&l.files);
    return rc == 0 ? 0 : 1;
}
