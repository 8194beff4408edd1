/* See the header. */
#include "cmd/bench/offload.h"

#include "base/bench.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "cmd/bench/start.h"
#include "cmd/bench/trains.h"
#include "worker/engine/homes/home.h"
#include "worker/engine/homes/transfer.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_RUNS = 21, WARMUP = 3, ARRAYS_MOST = 3 * 64, ROUNDS = 5 };

struct offload {
    const char *dtrun, *folder, *files; /* files: offload.nvme_path */
    const char *dtype, *strategy;
    long ranks, threads, steps, buffers;
};

struct outcome { /* of a run */
    double step_s, planned_bytes, measured_bytes;
};

/* The arguments of both kinds of run; the caller frees from [first] on. */
static int add_settings(const struct offload *o, bool offloaded, char **argv, int n)
{
    char *const sets[] = {dt_format("training.strategy=%s", o->strategy),
                          dt_format("training.precision=%s", o->dtype),
                          dt_format("training.threads=%ld", o->threads),
                          dt_format("training.max_steps=%ld", o->steps),
                          dt_format("logging.log_every_n_steps=1"),
                          dt_format("data.train=%s/train-*.bin", o->folder),
                          dt_format("offload.nvme_path=%s", o->files),
                          dt_format("offload.buffer_count=%ld", o->buffers),
                          dt_format("offload.optimizer=%s", offloaded ? "nvme" : "none")};
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        argv[n++] = dt_strdup("--set");
        argv[n++] = sets[i];
    }
    argv[n] = NULL;
    return n;
}

static void free_from(char **argv, int n)
{
    for (; argv[n] != NULL; n++) {
        free(argv[n]);
    }
}

/* step_s is negative if it failed. */
static struct outcome run(const struct offload *o, bool offloaded)
{
    char *out = dt_format("%s/run", o->folder), *metrics = dt_format("%s/metrics.jsonl", out),
         *events = dt_format("%s/events.jsonl", out);
    char *argv[40] = {dt_strdup(o->dtrun),       dt_format("--nproc_per_node=%ld", o->ranks),
                      dt_strdup("train"),        dt_format("%s/job.json", o->folder),
                      dt_strdup("--output_dir"), dt_strdup(out)};
    struct outcome r = {-1, 0, 0};
    double most_mib;
    (void)add_settings(o, offloaded, argv, 6);
    (void)dt_file_remove_tree(out, NULL);
    if (bench_program(argv, "/dev/null", &most_mib)) {
        r.step_s = bench_median_of(metrics, "step_s", WARMUP);
        r.planned_bytes = bench_median_of(events, "planned_bytes", 0);
        r.measured_bytes = bench_median_of(events, "measured_bytes", 0);
    }
    free_from(argv, 0);
    free(events);
    free(metrics);
    free(out);
    return r;
}

/* Bytes of one rank's files, by the plan; negative: unknown. */
static double file_bytes(const struct offload *o)
{
    const char *slash = strrchr(o->dtrun, '/');
    char *out = dt_format("%s/plan.json", o->folder);
    char *argv[40] = {dt_format("%.*strain", slash != NULL ? (int)(slash + 1 - o->dtrun) : 0, o->dtrun),
                      dt_format("%s/job.json", o->folder),
                      dt_strdup("--plan"),
                      dt_strdup("--json"),
                      dt_strdup("--nproc"),
                      dt_format("%ld", o->ranks)};
    double most_mib;
    (void)add_settings(o, true, argv, 6);
    double bytes = bench_program(argv, out, &most_mib) ? bench_median_of(out, "files", 0) : -1;
    free_from(argv, 0);
    free(out);
    return bytes;
}

/* ---- the disk ---- */

struct direction {
    struct transfer *transfer;
    const struct striped *files;
    bool write;
    void *memory;
    size_t portion_bytes, size_bytes;
    bool failed;
};

static void *move(void *context)
{
    struct direction *d = context;
    for (size_t at = 0; at < d->size_bytes && !d->failed; at += d->portion_bytes) {
        size_t n = d->size_bytes - at < d->portion_bytes ? d->size_bytes - at : d->portion_bytes;
        d->failed = transfer_run(d->transfer, d->files, d->write, d->memory, at, n, NULL) != 0;
    }
    return NULL;
}

/* Runs all of them at a time. False: one failed. */
static bool move_all(struct direction *way, int count, int step)
{
    pthread_t thread[2 * ARRAYS_MOST];
    int started = 0;
    bool ok = true;
    for (int i = 0; i < count; i += step) {
        if (pthread_create(&thread[started], NULL, move, &way[i]) != 0) {
            ok = false;
            break;
        }
        started++;
    }
    for (int i = 0; i < started; i++) {
        (void)pthread_join(thread[i], NULL);
    }
    for (int i = 0; i < count; i += step) {
        ok = ok && !way[i].failed;
    }
    return ok;
}

/* Median seconds for reading and for writing so many bytes, all at a time, by portions as homes do: a file of each array and
 * rank (moments; in BF16 masters, too), which one thread reads and one writes. Negative: it failed. */
static double disk_s(const struct offload *o, size_t size_bytes)
{
    const char *const path[] = {o->files};
    const struct job_offload settings = {.nvme_path = {1, path},
                                         .block_size = 1 << 20,
                                         .queue_depth = 8,
                                         .intra_op_parallelism = 1,
                                         .overlap_events = true};
    int arrays = (strcmp(o->dtype, "fp32") == 0 ? 2 : 3) * (int)o->ranks;
    size_t portion = (size_t)HOME_PORTION * sizeof(float);
    struct striped files[ARRAYS_MOST] = {{0}};
    struct direction way[2 * ARRAYS_MOST] = {{0}}; /* by turns: reads an array, writes it */
    struct dt_device cpu;                          /* memory as that of a run: on huge pages a disk is twice as fast */
    double took_s = -1;
    bool ok = dt_device_open(&cpu, "cpu", &(struct dt_device_options){.streams = DT_STREAMS_INLINE}, NULL) == 0;
    if (!ok) {
        return -1;
    }
    arrays = arrays < ARRAYS_MOST ? arrays : ARRAYS_MOST;
    for (int i = 0; i < 2 * arrays && ok; i++) {
        way[i] = (struct direction){.files = &files[i / 2],
                                    .write = i % 2 == 1,
                                    .size_bytes = size_bytes / (size_t)arrays,
                                    .portion_bytes = portion};
        ok = dt_device_alloc(&cpu, DT_MEMORY_DEVICE, portion, &way[i].memory, NULL) == 0 &&
             transfer_open(&way[i].transfer, &settings, NULL) == 0 &&
             (way[i].write || striped_open(&files[i / 2], &settings, "bench", portion, way[i].size_bytes, NULL) == 0);
        if (way[i].memory != NULL) {
            memset(way[i].memory, 1, portion);
        }
    }
    ok = ok && move_all(way + 1, 2 * arrays - 1, 2); /* what is read was written once, as a run's files are */
    double rounds_s[ROUNDS];
    for (int i = 0; i < ROUNDS && ok; i++) {
        double begin_s = dt_now_s();
        ok = move_all(way, 2 * arrays, 1);
        rounds_s[i] = dt_now_s() - begin_s;
    }
    took_s = ok ? dt_bench_median(rounds_s, ROUNDS) : -1;
    for (int i = 0; i < 2 * arrays; i++) {
        transfer_close(way[i].transfer);
        if (way[i].memory != NULL) {
            dt_device_free(&cpu, DT_MEMORY_DEVICE, way[i].memory, portion);
        }
    }
    for (int i = 0; i < arrays; i++) {
        striped_close(&files[i]);
    }
    dt_device_close(&cpu);
    return took_s;
}

/* ---- all of it ---- */

static void print(const char *name, const char *unit, double floor, double *samples, size_t count)
{
    dt_bench_print(&(struct dt_bench_case){.bench = "offload", .name = name, .unit = unit, .floor = floor}, samples,
                   count);
}

static int measure(const struct offload *o, const char *size, long repeats)
{
    double alone[MAX_RUNS], disk[MAX_RUNS], offloaded[MAX_RUNS], memory[MAX_RUNS],
        planned = 0, bytes = file_bytes(o) * (double)o->ranks;
    for (long i = 0; i < repeats; i++) {
        struct outcome without = run(o, false);
        disk[i] = bytes > 0 ? disk_s(o, (size_t)bytes) * 1e3 : -1;
        struct outcome with = run(o, true);
        if (without.step_s < 0 || with.step_s < 0 || disk[i] < 0) {
            (void)fprintf(stderr, "bench offload: %s failed; try: %s --nproc_per_node=%ld train JOB\n",
                          disk[i] < 0 ? o->files : "a run", o->dtrun, o->ranks);
            return 1;
        }
        alone[i] = without.step_s * 1e3;
        offloaded[i] = with.step_s * 1e3;
        memory[i] = with.measured_bytes / 0x1p20;
        planned = with.planned_bytes / 0x1p20;
    }
    char *name =
             dt_format("gpt2 %s, %s, %s, %ld rank%s", size, o->dtype, o->strategy, o->ranks, o->ranks == 1 ? "" : "s"),
         *first = dt_format("%s: step, all in memory", name),
         *second = dt_format("%s: %.1f MiB read and written, nothing else", name, bytes / 0x1p20),
         *third = dt_format("%s: step, optimizer in files (floor: the larger of both)", name),
         *fourth = dt_format("%s: memory of a rank (floor: its plan)", name);
    print(first, "ms", 0, alone, (size_t)repeats);
    print(second, "ms", 0, disk, (size_t)repeats);
    print(third, "ms", fmax(dt_bench_median(alone, (size_t)repeats), dt_bench_median(disk, (size_t)repeats)), offloaded,
          (size_t)repeats);
    print(fourth, "MiB", planned, memory, (size_t)repeats);
    free(fourth);
    free(third);
    free(second);
    free(first);
    free(name);
    return 0;
}

int bench_offload(int argc, char **argv)
{
    const char *size = dt_bench_option(argc, argv, "size", "L6C384");
    long repeats = dt_bench_number(argc, argv, "repeats", 3);
    struct bench_shape s = {.positions = dt_bench_number(argc, argv, "positions", 256),
                            .batch = dt_bench_number(argc, argv, "batch", 4)};
    struct offload o = {.dtype = dt_bench_option(argc, argv, "dtype", "fp32"),
                        .strategy = dt_bench_option(argc, argv, "strategy", "zero1"),
                        .ranks = dt_bench_number(argc, argv, "ranks", 1),
                        .threads = dt_bench_number(argc, argv, "threads", 1),
                        .steps = dt_bench_number(argc, argv, "steps", 12),
                        .buffers = dt_bench_number(argc, argv, "buffers", 4)};
    char folder[] = "/tmp/dtrun-bench-XXXXXX";
    if (sscanf(size, "L%ldC%ld", &s.layers, &s.channels) != 2 || s.layers < 1 || s.channels < 64 ||
        s.channels % 64 != 0) {
        (void)fprintf(stderr, "bench offload: --size L6C384 (channels: a multiple of 64)\n");
        return DT_EXIT_USAGE;
    }
    if (mkdtemp(folder) == NULL) {
        perror("bench: mkdtemp");
        return DT_EXIT_FAILED;
    }
    struct dt_error err;
    char *dtrun = bench_find_dtrun();
    s.heads = s.channels / 64;
    o.dtrun = dtrun;
    o.folder = folder;
    o.files = dt_bench_option(argc, argv, "folder", folder);
    int code = bench_write_job(folder, &s, NULL, o.steps, o.ranks, &err);
    if (code != 0) {
        (void)fprintf(stderr, "bench offload: %s\n", err.text);
    }
    code = code == 0 ? measure(&o, size, repeats) : DT_EXIT_FAILED;
    (void)dt_file_remove_tree(folder, NULL);
    free(dtrun);
    return code;
}
