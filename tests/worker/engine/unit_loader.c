/* covers: worker/engine/trainer_loader.c */
/* The loader: what it read is what its place in the data says, in the order of a CPU's steps and of a
 * GPU's, whatever was borrowed or begun anew meanwhile. In builds with the thread sanitizer, also
 * without races. */
#include "base/file.h"
#include "tests/lib/folder.h"
#include "worker/data/shards.h"
#include "worker/engine/trainer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum { BATCH = 8, LENGTH = 8, MICRO_STEPS = 3, SAMPLES = 300, RANKS = 2, STEPS = 120 };

/* Of a trainer that has no world: there are no peers to look at. */
int trainer_look(struct trainer *t, const char *what, double begin_s, struct dt_error *err)
{
    (void)t;
    (void)what;
    (void)begin_s;
    (void)err;
    return 0;
}

struct fixture {
    struct trainer t;
    struct job job;
    struct sampler order; /* the same order in memory of its own */
    char *host;
    size_t batch_bytes;
    uint32_t random;
};

static uint32_t draw(struct fixture *f, uint32_t below)
{
    f->random = f->random * 1664525u + 1013904223u;
    return (f->random >> 8) % below;
}

static void write_shard(char *path, size_t size)
{
    enum { COUNT = SAMPLES * LENGTH + 1 };
    static char bytes[SHARD_HEADER_BYTES + 2 * COUNT];
    const int32_t header[] = {SHARD_MAGIC_U16, 1, COUNT};
    struct dt_error err;
    memcpy(bytes, header, sizeof header);
    for (uint32_t i = 0; i < COUNT; i++) {
        const uint16_t id = (uint16_t)(i * 7919u % 509u);
        memcpy(bytes + SHARD_HEADER_BYTES + 2 * (size_t)i, &id, sizeof id);
    }
    (void)snprintf(path, size, "%s/train.bin", folder);
    assert_int_equal(dt_file_write(path, bytes, sizeof bytes, &err), 0);
}

static void open_fixture(struct fixture *f)
{
    struct dt_error err;
    char path[128];
    write_shard(path, sizeof path);
    memset(f, 0, sizeof *f);
    struct trainer *t = &f->t;
    dt_arena_init(&t->arena);
    t->job = &f->job;
    t->size = RANKS;
    t->rank = 1;
    t->micro_steps = MICRO_STEPS;
    f->job.training.batch_size_per_gpu = BATCH;
    f->job.training.partial_accumulation = PARTIAL_CARRY;
    t->chain.batch = batch_tokens(BATCH, LENGTH, 0, NULL);
    t->stepper.shape = (struct batch){.layout = &t->chain.batch, .samples = BATCH, .length = LENGTH};
    if (data_open(&t->feeds.train, path, "auto", &t->chain.batch, &err) != 0) {
        fail_msg("%s", err.text);
    }
    t->feeds.order = f->order =
        (struct sampler){.sample_count = SAMPLES, .seed = 3, .shuffle = true, .order = ORDER_DISTRIBUTED};
    sampler_use(&t->feeds.order, dt_arena_alloc(&t->arena, sampler_bytes(&f->order)));
    sampler_use(&f->order, dt_arena_alloc(&t->arena, sampler_bytes(&f->order)));
    f->batch_bytes = batch_offset(&t->chain.batch, t->chain.batch.count);
    f->host = dt_arena_alloc(&t->arena, 2 * MICRO_STEPS * f->batch_bytes);
    trainer_loader_open(t, f->host, MICRO_STEPS * f->batch_bytes);
    t->run.total_steps = STEPS;
}

static void close_fixture(struct fixture *f)
{
    trainer_loader_close(&f->t);
    trainer_loader_close(&f->t); /* twice is no harm */
    data_close(&f->t.feeds.train);
    dt_arena_clear(&f->t.arena);
}

/* Compares what was read with what data_batch gives at the place, which goes on behind the step. */
static void check_step(struct fixture *f, const struct trainer_slot *s, struct trainer_run *place)
{
    int32_t ids[BATCH * LENGTH], labels[BATCH * LENGTH];
    struct dt_error err;
    assert_int_equal(s->count, MICRO_STEPS);
    for (int64_t j = 0; j < s->count; j++) {
        if (SAMPLES - place->position < BATCH * RANKS) {
            place->epoch++;
            place->position = 0;
        }
        struct batch b = f->t.stepper.shape,
                     read = trainer_batch_in(&f->t.stepper.shape, s->host + (size_t)j * f->batch_bytes);
        b.at[0] = ids;
        b.at[1] = labels;
        assert_int_equal(
            data_batch(&f->t.feeds.train, &f->order, place->epoch, place->position, f->t.rank, f->t.size, &b, &err), 0);
        assert_memory_equal(read.at[0], ids, sizeof ids);
        assert_memory_equal(read.at[1], labels, sizeof labels);
        assert_int_equal(s->valid[j], b.weight);
        place->position += BATCH * RANKS;
    }
    assert_int_equal(s->epoch, place->epoch);
    assert_int_equal(s->position, place->position);
}

/* held: a step's slot is let go when the next one is taken, as for a device with memory of its own. */
static void run_steps(struct fixture *f, int64_t first, bool held)
{
    struct trainer_run place = f->t.run;
    struct dt_error err;
    for (int64_t step = first; step < STEPS; step++) {
        struct trainer_slot *s;
        if (held && step > first) {
            trainer_loader_release(&f->t, step - 1);
        }
        assert_int_equal(trainer_loader_take(&f->t, step, &s, &err), 0);
        check_step(f, s, &place);
        (void)usleep(draw(f, 4) == 0 ? draw(f, 300) : 0);
        if (!held) {
            trainer_loader_release(&f->t, step);
        }
        if (draw(f, 5) == 0) { /* an evaluation writes into the slot that is free */
            (void)usleep(draw(f, 300));
            memset(trainer_loader_borrow(&f->t, step + (held ? 1 : 2)), 0xee, f->batch_bytes);
        }
    }
}

static void test_every_order(void **state)
{
    (void)state;
    for (int held = 0; held < 2; held++) {
        struct fixture f;
        open_fixture(&f);
        for (int round = 0; round < 3; round++) { /* each begins anew, elsewhere */
            f.t.run.epoch = round;
            f.t.run.position = BATCH * RANKS * round;
            f.t.run.step = 5 * round;
            trainer_loader_restart(&f.t);
            run_steps(&f, f.t.run.step, held == 1);
        }
        close_fixture(&f);
    }
}

/* A loader that never began ends as well, and lends its memory. */
static void test_never_begun(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f);
    assert_ptr_equal(trainer_loader_borrow(&f.t, 1), f.host + MICRO_STEPS * f.batch_bytes);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_order), cmocka_unit_test(test_never_begun)};
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
