/* Trains a GPT-2, or the job of a file, on random samples in this process, as one rank, and takes turns: a few steps as
 * they are; one step whose kernels a meter looks at (kernels/meter.h); a copy; a square product.
 * The floor of a call is the time in which the copy moves the bytes that its arguments say must
 * move, or the product does the operations, whichever is longer; that of a kernel is the sum
 * over its calls in the step, that of the step the sum over its kernels. What a step takes
 * beyond its kernels (copies, launches that come late, the host) is a line of its own. */
#include "cmd/bench/floor.h"

#include "base/bench.h"
#include "base/file.h"
#include "cmd/bench/jobs.h"
#include "cmd/bench/rates.h"
#include "kernels/meter.h"
#include "worker/data/shards.h"
#include "worker/run/trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPEATS_MOST = 101, STEPS_MOST = 500, EPOCH_STEPS = 8, WARMUP = 2 };

struct shape {
    long layers, channels, batch, positions, vocabulary, micro_steps;
    const char *size, *level;
    const char *file; /* job, which says all but the level; null: a GPT-2 of that size */
};

struct line { /* what is printed of a kernel, and of the step */
    double us[REPEATS_MOST], floor_us[REPEATS_MOST];
    int64_t calls; /* of one step, as are the next two */
    struct dt_cost cost;
};

struct floor {
    struct shape shape;
    int steps, repeats;
    const char *device;
    struct job job;
    struct world world;
    struct trainer trainer;
    bool has_trainer;
    struct bench b;
    struct bench_copying copying;
    struct bench_squaring squaring;
    struct dt_meter meter;
    struct line kernels[DT_METER_ROWS], step, between;
};

/* ---- a run ---- */

static int64_t step_tokens(const struct shape *s)
{
    return (int64_t)s->batch * s->positions * s->micro_steps;
}

/* Random ids, as many as a few steps read. */
static int write_shard(const struct shape *s, const char *folder, struct dt_error *err)
{
    struct shard_writer *w = NULL;
    int32_t ids[4096];
    uint64_t x = 1;
    int64_t left = EPOCH_STEPS * step_tokens(s) + 1;
    const struct shard_form form = {
        .tokenizer = "random", .document_end = 0, .vocabulary = s->vocabulary, .shard_tokens = INT32_MAX};
    int rc = shard_writer_open(&w, folder, "train", &form, false, err);
    for (size_t count = 0; rc == 0 && left > 0; left -= (int64_t)count) {
        for (count = 0; count < sizeof ids / sizeof *ids && (int64_t)count < left; count++) {
            x = x * 6364136223846793005ULL + 1442695040888963407ULL;
            ids[count] = (int32_t)((x >> 33) % (uint64_t)s->vocabulary);
        }
        rc = shard_writer_add(w, ids, count, err);
    }
    if (rc == 0) {
        rc = shard_writer_finish(w, err) != 0 ? -1 : shard_writer_commit(w, err);
    }
    shard_writer_close(w, false);
    return rc;
}

static int open_gpt2(struct floor *f, const char *folder, enum dt_dtype type, struct dt_error *err)
{
    const struct shape *s = &f->shape;
    char *path = dt_format("%s/job.json", folder);
    char *text = dt_format("{\"model\":{\"name\":\"gpt2\",\"n_layer\":%ld,\"n_head\":%ld,\"n_embd\":%ld,\"n_"
                           "positions\":%ld,\"vocab_size\":%ld},\n"
                           "\"data\":{\"train\":\"%s/train-*.bin\",\"sequence_length\":%ld},\n"
                           "\"training\":{\"strategy\":\"single_device\",\"precision\":\"%s\",\"batch_size_per_gpu\":%"
                           "ld,\"gradient_accumulation_steps\":%ld,\n"
                           "\"max_steps\":1000000,\"learning_rate\":1e-4,\"lr_scheduler_type\":\"constant\",\"weight_"
                           "decay\":0.1,\"max_grad_norm\":1.0,\"cuda_graphs\":"
                           "false},\n"
                           "\"activation_checkpointing\":{\"enabled\":true,\"level\":\"%s\"}}\n",
                           s->layers, s->channels / 64, s->channels, s->positions, s->vocabulary, folder, s->positions,
                           bench_dtype_name(type), s->batch, s->micro_steps, s->level);
    struct dt_text problems;
    dt_text_init(&problems);
    int rc = write_shard(s, folder, err) != 0 ? -1 : dt_file_write(path, text, strlen(text), err);
    if (rc == 0 && job_open(&f->job, &(struct job_arguments){.path = path}, &problems, err) != 0) {
        rc = dt_fail(err, DT_INVALID, "%s", dt_text_str(&problems));
    }
    dt_text_clear(&problems);
    free(text);
    free(path);
    return rc;
}

static int open_job(struct floor *f, const char *folder, enum dt_dtype type, struct dt_error *err)
{
    struct shape *s = &f->shape;
    if (s->file == NULL) {
        return open_gpt2(f, folder, type, err);
    }
    char *precision = dt_format("training.precision=%s", bench_dtype_name(type)),
         *level = dt_format("activation_checkpointing.level=%s", s->level);
    const char *const settings[] = {precision,
                                    level,
                                    "activation_checkpointing.enabled=true",
                                    "training.strategy=single_device",
                                    "training.max_steps=1000000",
                                    "training.cuda_graphs=false",
                                    NULL};
    int rc = bench_job_open(&f->job, s->file, settings, folder, EPOCH_STEPS, 1, err);
    s->batch = f->job.training.batch_size_per_gpu;
    s->positions = f->job.data.sequence_length;
    s->micro_steps = f->job.training.gradient_accumulation_steps;
    free(level);
    free(precision);
    return rc;
}

/* Once the data are mapped, nobody needs the folder any more. */
static int open_trainer(struct floor *f, const char *folder, enum dt_dtype type, int threads, struct dt_error *err)
{
    struct world *w = &f->world;
    struct trainer *t = &f->trainer;
    if (open_job(f, folder, type, err) != 0 ||
        world_open(w, &(struct world_options){.device = f->device, .threads = threads}, err) != 0) {
        return -1;
    }
    if (w->size > 1) {
        return dt_fail(err, DT_INVALID, "a step of one rank is measured, and here are %d; start it alone", w->size);
    }
    if (bench_check_device(w->device, f->device, err) != 0) {
        return -1;
    }
    f->b.d = w->device;
    f->b.s = w->compute;
    f->b.k = w->device->kernels;
    f->b.type = type;
    f->has_trainer = true;
    int rc = trainer_prepare(t, &f->job, 0, 1, 1, w->device->real, world_device_bytes(w), err);
    rc = rc == 0 ? trainer_check_memory(t, w->device, 1, err) : rc;
    if (rc == 0) {
        rc = trainer_choose_plans(t, w, err) != 0 || trainer_open(t, w, err) != 0 ? -1 : trainer_init_weights(t, err);
    }
    if (rc == 0) {
        trainer_batch_restart(t);
    }
    return rc;
}

static void close_run(struct floor *f)
{
    f->world.failed = f->b.failed;
    if (f->b.d != NULL) {
        dt_meter_close(&f->meter);
        bench_copying_close(&f->b, &f->copying);
        bench_squaring_close(&f->b, &f->squaring);
        bench_close_random(&f->b);
    }
    if (f->has_trainer) {
        trainer_close(&f->trainer);
    }
    world_close(&f->world);
    job_close(&f->job);
}

/* ---- turns ---- */

/* Microseconds of a step: the median, without the first one, before which the device had nothing
 * to do. */
static double run_steps(struct floor *f, int count)
{
    struct trainer *t = &f->trainer;
    struct trainer_result r;
    struct dt_error err = {0};
    double us[STEPS_MOST + 1] = {0};
    int64_t first = t->run.step, target = t->run.step + count;
    while (t->run.step < target && !f->b.failed) {
        if (t->stepper.begun < target && t->stepper.begun - t->run.step <= t->stepper.ahead) {
            (void)bench_ok(&f->b, trainer_begin(t, &err), &err);
        } else if (bench_ok(&f->b, trainer_finish(t, &r, &err), &err)) {
            us[t->run.step - 1 - first] = r.step_s * 1e6;
        }
    }
    return f->b.failed ? 0 : count == 1 ? us[0] : dt_bench_median(us + 1, (size_t)count - 1);
}

static void metered_step(struct floor *f)
{
    dt_meter_begin(&f->meter);
    (void)run_steps(f, 1);
    dt_meter_end(&f->meter);
}

static void add_cost(struct dt_cost *sum, const struct dt_cost *cost)
{
    sum->bytes += cost->bytes;
    sum->flops += cost->flops;
}

/* Takes the times and floors by kernel from the metered step of a turn. */
static void take_turn(struct floor *f, int turn, double step_us, double copy_us, double square_us)
{
    double kernels_us = 0;
    for (int i = 0; i < DT_METER_ROWS; i++) {
        struct line *k = &f->kernels[i];
        k->us[turn] = k->floor_us[turn] = 0;
        k->calls = 0;
        k->cost = (struct dt_cost){.bytes = 0};
    }
    f->step.floor_us[turn] = 0;
    f->step.cost = (struct dt_cost){.bytes = 0};
    for (int64_t i = 0; i < f->meter.count; i++) {
        const struct dt_metered *call = &f->meter.calls[i];
        struct line *k = &f->kernels[call->row];
        double us = dt_timer_s(call->timer) * 1e6,
               floor_us = fmax(call->cost.bytes * copy_us, call->cost.flops * square_us);
        k->calls++;
        k->us[turn] += us;
        k->floor_us[turn] += floor_us;
        add_cost(&k->cost, &call->cost);
        add_cost(&f->step.cost, &call->cost);
        f->step.floor_us[turn] += floor_us;
        kernels_us += us;
    }
    f->step.us[turn] = step_us;
    f->between.us[turn] = step_us - kernels_us;
}

static void measure(struct floor *f, long copy_mib, long square_side)
{
    struct bench *b = &f->b;
    double enough_us = bench_enough_us(b->d);
    dt_meter_open(&f->meter, b->d);
    bench_open_random(b);
    bench_copying_open(b, &f->copying, copy_mib > 0 ? copy_mib : bench_copy_mib(b->d));
    bench_squaring_open(b, &f->squaring, square_side > 0 ? square_side : bench_square_side(b->d));
    if (b->failed) {
        return;
    }
    bench_squaring_fill(b, &f->squaring);
    int copies = bench_copy_calls(b, &f->copying, enough_us), squares = bench_square_calls(b, &f->squaring, enough_us);
    (void)run_steps(f, WARMUP);
    metered_step(f); /* opens its timers */
    for (int i = 0; i < f->repeats && !b->failed; i++) {
        double step_us = run_steps(f, f->steps + 1);
        metered_step(f);
        double copy_us = bench_copy_us(b, &f->copying, copies), square_us = bench_square_us(b, &f->squaring, squares);
        if (!b->failed) {
            take_turn(f, i, step_us, copy_us, square_us);
        }
    }
}

/* ---- lines ---- */

static void print_line(struct floor *f, struct line *x, const char *what)
{
    const struct shape *s = &f->shape;
    struct dt_device_place place = {.name = ""};
    char micro_steps[32] = "";
    if (s->micro_steps > 1) {
        (void)snprintf(micro_steps, sizeof micro_steps, ", %ld micro-steps", s->micro_steps);
    }
    (void)dt_device_place(f->b.d->ops->name, f->b.d->options.index, &place);
    char *name =
        dt_format("%s %s %s, %s %ldx%ld%s, level %s", f->b.k->name, bench_dtype_name(f->b.type), what,
                  s->file != NULL ? f->job.model.name : s->size, s->batch, s->positions, micro_steps, s->level);
    struct dt_bench_case line = {.bench = "floor",
                                 .name = name,
                                 .unit = "us",
                                 .calls = x->calls,
                                 .bytes = x->cost.bytes,
                                 .flops = x->cost.flops,
                                 .floor = dt_bench_median(x->floor_us, (size_t)f->repeats),
                                 .device = place.name[0] != '\0' ? place.name : NULL};
    dt_bench_print(&line, x->us, (size_t)f->repeats);
    free(name);
}

static void print(struct floor *f)
{
    for (int i = 0; i < DT_METER_ROWS; i++) {
        if (f->kernels[i].calls > 0) {
            print_line(f, &f->kernels[i], dt_meter_name(i));
        }
    }
    print_line(f, &f->between, "between kernels");
    print_line(f, &f->step, "step");
}

static int run(const struct floor *wanted, enum dt_dtype type, int threads, long copy_mib, long square_side)
{
    char folder[] = "/tmp/dtrun-bench-XXXXXX";
    struct floor *f = dt_alloc(sizeof *f);
    struct dt_error err = {0};
    int code = DT_EXIT_DONE;
    *f = *wanted;
    if (mkdtemp(folder) == NULL) {
        perror("bench: mkdtemp");
        free(f);
        return DT_EXIT_FAILED;
    }
    bool opened = bench_ok(&f->b, open_trainer(f, folder, type, threads, &err), &err);
    (void)dt_file_remove_tree(folder, NULL);
    if (opened) {
        measure(f, copy_mib, square_side);
    }
    if (f->b.failed) {
        code = opened ? DT_EXIT_FAILED : DT_EXIT_USAGE;
    } else {
        print(f);
    }
    close_run(f);
    free(f);
    return code;
}

static bool level_known(const char *level)
{
    char *word = dt_format("|%s|", level);
    bool known = strchr(level, '|') == NULL && strstr("|" JOB_RECOMPUTE_LEVELS "|", word) != NULL;
    free(word);
    return known;
}

int bench_floor(int argc, char **argv)
{
    static struct floor wanted = {.b.name = "floor"}; /* too large for the stack */
    struct shape *s = &wanted.shape;
    struct dt_error err;
    const char *dtype = dt_bench_option(argc, argv, "dtype", "");
    wanted.device = dt_bench_option(argc, argv, "device", "cpu");
    bool gpu = strcmp(wanted.device, "cuda") == 0;
    s->file = dt_bench_option(argc, argv, "job", NULL);
    s->size = dt_bench_option(argc, argv, "size", gpu ? "L12C768" : "L6C384");
    s->level = dt_bench_option(argc, argv, "level", "cheap");
    s->batch = dt_bench_number(argc, argv, "batch", gpu ? 64 : 4);
    s->positions = dt_bench_number(argc, argv, "positions", gpu ? 1024 : 256);
    s->vocabulary = dt_bench_number(argc, argv, "vocab", gpu ? 50304 : 8192);
    s->micro_steps = dt_bench_number(argc, argv, "micro-steps", 1);
    wanted.steps = (int)dt_bench_number(argc, argv, "steps", gpu ? 10 : 2);
    wanted.repeats = (int)dt_bench_number(argc, argv, "repeats", gpu ? 15 : 5);
    if (bench_check_dtype(dtype, &err) != 0) {
        (void)fprintf(stderr, "bench: floor: %s\n", err.text);
        return DT_EXIT_USAGE;
    }
    if (sscanf(s->size, "L%ldC%ld", &s->layers, &s->channels) != 2 || s->layers < 1 || s->channels < 64 ||
        s->channels % 64 != 0) {
        (void)fprintf(stderr, "bench: floor: --size: %s: must be like L6C384, channels a multiple of 64\n", s->size);
        return DT_EXIT_USAGE;
    }
    if (!level_known(s->level)) {
        (void)fprintf(stderr, "bench: floor: --level: %s: must be one of " JOB_RECOMPUTE_LEVELS "\n", s->level);
        return DT_EXIT_USAGE;
    }
    int threads = (int)dt_bench_number(argc, argv, "threads", 1), code = DT_EXIT_DONE;
    long copy_mib = dt_bench_number(argc, argv, "copy", 0), square_side = dt_bench_number(argc, argv, "square", 0);
    for (int i = 0; i < 2 && code == DT_EXIT_DONE; i++) {
        enum dt_dtype type = i == 0 ? DT_F32 : DT_BF16;
        code = bench_wants(dtype, type) ? run(&wanted, type, threads, copy_mib, square_side) : code;
    }
    return code;
}
