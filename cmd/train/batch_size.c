/* See the header. */
#include "cmd/train/batch_size.h"

#include "worker/run/trainer.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

enum { SIZE_MOST = 65536 }; /* of training.batch_size_per_gpu */
/* For what grows beside plans, as in Lightning's batch-size finder; and what CUDA and its libraries take. */
#define SHARE 0.95
#define LIBRARIES_BYTES 0x2p28

/* The plan of one size. */
struct size_plan {
    int64_t size;
    double bytes; /* of a GPU's rank, or of all ranks of this host */
    char level[16];
    bool fits;
};

struct finder {
    const struct job *job;
    const struct train_room *room;
    double have_bytes;
    char what[64];   /* have_bytes are a share of */
    int64_t samples; /* of data.train for each rank and micro-step; known once a size is planned */
};

static double have_bytes(struct finder *f)
{
    const struct train_room *room = f->room;
    if (!room->on_gpu) {
        return SHARE * plan_available(room->local_size, f->what, sizeof f->what);
    }
    (void)snprintf(f->what, sizeof f->what, "memory of the GPU");
    return room->device_bytes > 0 ? fmax(0, SHARE * room->device_bytes - LIBRARIES_BYTES) : INFINITY;
}

/* -1: no job of this size can be, or not even this size fits where it must. */
static int plan_size(struct finder *f, int64_t size, bool must_fit, struct size_plan *out, struct dt_error *err)
{
    const struct train_room *room = f->room;
    struct job job = *f->job;
    struct trainer t;
    job.training.batch_size_per_gpu = size;
    int rc = trainer_prepare(&t, &job, 0, room->ranks, room->local_size, room->type, train_device_bytes(room), err);
    rc = rc == 0 && !job.elsewhere ? trainer_plan_samples(&t, err) : rc;
    if (rc == 0) {
        trainer_plan_saves(&t);
        trainer_plan_snapshots(&t);
        *out = (struct size_plan){
            .size = size, .bytes = room->on_gpu ? trainer_device_bytes(&t) : trainer_host_bytes(&t, room->local_size)};
        out->fits = out->bytes <= f->have_bytes;
        (void)trainer_level_name(&t, out->level);
        int64_t takes = job.training.partial_accumulation == PARTIAL_DROP ? t.micro_steps : 1;
        f->samples = job.elsewhere ? SIZE_MOST : t.feeds.train.sample_count / room->ranks / takes;
        if (must_fit && !out->fits) {
            rc = room->on_gpu ? trainer_check_total(&t, f->have_bytes, room->local_size, err)
                              : trainer_check_memory(&t, NULL, room->local_size, err);
        }
    }
    trainer_close_samples(&t);
    trainer_close(&t);
    return rc;
}

/* The largest size that fits, by halving between one that does and one that does not. */
static int find_largest(struct finder *f, struct size_plan *out, struct dt_error *err)
{
    struct size_plan next;
    if (plan_size(f, 1, true, out, err) != 0) {
        return -1;
    }
    int64_t most = f->samples < SIZE_MOST ? f->samples : SIZE_MOST, fails = most + 1;
    while (out->fits && out->size + 1 < fails) {
        bool doubles = fails > most && 2 * out->size <= most;
        int64_t size = doubles ? 2 * out->size : fails > most ? most : out->size + (fails - out->size) / 2;
        if (plan_size(f, size, false, &next, err) != 0) {
            return -1;
        }
        if (next.fits) {
            *out = next;
        } else {
            fails = size;
        }
    }
    return 0;
}

/* ---- words ---- */

static void print_line(const char *name, const struct size_plan *x, const char *behind)
{
    char bytes[32];
    (void)printf("    %-14s %8" PRId64 " %10s  %-*s%s\n", name, x->size, dt_text_bytes(x->bytes, bytes, sizeof bytes),
                 *behind ? 7 : 0, x->level, behind);
}

static void print_json(const char *name, const struct size_plan *x, const char *comma)
{
    (void)printf("\"%s\": {\"batch_size_per_gpu\": %" PRId64 ", \"bytes\": %.0f, \"activation_checkpointing\": \"%s\"",
                 name, x->size, x->bytes, x->level);
    (void)fputs(comma, stdout);
}

int train_find_batch_size(const struct job *job, const struct train_room *room, bool json, struct dt_error *err)
{
    struct finder f = {.job = job, .room = room};
    struct size_plan largest, power, step;
    f.have_bytes = have_bytes(&f);
    if (!isfinite(f.have_bytes)) {
        return dt_fail(err, DT_INVALID, "--find_batch_size: the GPU's memory is not known here; --gpus %d --gpu NAME",
                       room->ranks);
    }
    if (find_largest(&f, &largest, err) != 0) {
        return -1;
    }
    const struct job_training *t = &job->training;
    int64_t two = 1, micro_steps = t->gradient_accumulation_steps, all = t->batch_size_per_gpu * micro_steps,
            divisor = largest.size;
    while (2 * two <= largest.size) {
        two *= 2;
    }
    while (all % divisor != 0) {
        divisor--;
    }
    if (plan_size(&f, two, false, &power, err) != 0 || plan_size(&f, divisor, false, &step, err) != 0) {
        return -1;
    }
    char have[32], steps[64];
    const char *bound = largest.size == SIZE_MOST   ? "the most that a job takes"
                        : largest.size == f.samples ? "data.train has no more"
                                                    : "";
    if (json) {
        (void)printf("{\"ranks\": %d, \"memory\": %.0f, ", room->ranks, f.have_bytes);
        print_json("largest", &largest, "}, ");
        print_json("power_of_two", &power, "}, ");
        print_json("same_step", &step, "");
        (void)printf(", \"gradient_accumulation_steps\": %" PRId64 "}}\n", all / step.size);
        return 0;
    }
    (void)printf("training.batch_size_per_gpu of %d rank%s, by plans, within %s\n(%.0f %% of %s)\n\n", room->ranks,
                 room->ranks == 1 ? "" : "s", dt_text_bytes(f.have_bytes, have, sizeof have), 100 * SHARE, f.what);
    (void)printf("    %-14s %8s %10s  %s\n", "", "samples", room->on_gpu ? "a GPU" : "this host", "level");
    print_line("largest", &largest, bound);
    print_line("power of two", &power, "");
    (void)snprintf(steps, sizeof steps, "%" PRId64 " micro-step%s: %" PRId64 " samples in all", all / step.size,
                   all == step.size ? "" : "s", all * room->ranks);
    print_line("the job's step", &step, steps);
    (void)printf("\ntry it: --set training.batch_size_per_gpu=%" PRId64 " --set training.max_steps=3\n", power.size);
    return 0;
}
