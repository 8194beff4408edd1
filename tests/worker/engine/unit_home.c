/* covers: worker/engine/homes worker/engine/optimizer.c worker/engine/placements worker/engine/step_sums.c worker/run/trainer_weights.c worker/run/trainer_save.c */
/* Trainings whose slices rest in another memory than the device's: the same bits as from the device.
 * The home of this test copies what is brought into a room on the device, and fills the room with NaN
 * before and after, so whatever is used without being brought, kept for longer, or written without
 * saying so shows in the bits. */
#include "tests/lib/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PORTION = 128, OUT_MOST = 64, ALIGN_BYTES = 64 };

struct elsewhere {
    struct dt_device *device;
    char *rest, *nan;  /* pinned memory: the array; bytes that are NaN in every type */
    char *room;        /* the device's */
    size_t size_bytes; /* of each of these three; of the room: what fits */
    size_t room_bytes, used_bytes;
    struct dt_event *moved; /* the last transfer in or out; so none overtakes another */
    struct {
        size_t at, size_bytes;
        char *place;
        enum home_use use;
    } out[OUT_MOST];
    int out_count;
};

static _Atomic int brought, broken;

static void break_contract(const char *why)
{
    print_error("home: %s\n", why);
    broken++;
}

/* As much room as is asked for, and the gaps between what is brought together. */
static void plan_room(struct home *h, struct plan *p, enum plan_purpose purpose, enum plan_memory memory,
                      size_t size_bytes, size_t most_bytes)
{
    struct elsewhere *x = dt_alloc(sizeof *x);
    x->size_bytes = size_bytes;
    x->room_bytes = most_bytes + OUT_MOST * ALIGN_BYTES;
    h->state = x;
    h->piece = plan_add(p, purpose, memory, size_bytes > 0 ? x->room_bytes : 0);
}

static int open_room(struct home *h, struct world *w, const struct plan *p, struct dt_error *err)
{
    struct elsewhere *x = h->state;
    x->device = w->device;
    x->room = plan_at(p, h->piece);
    void *rest = NULL, *nan = NULL;
    if (x->size_bytes == 0) {
        return 0;
    }
    if (dt_device_alloc(w->device, DT_MEMORY_PINNED, x->size_bytes, &rest, err) != 0 ||
        dt_device_alloc(w->device, DT_MEMORY_PINNED, x->size_bytes, &nan, err) != 0) {
        return -1;
    }
    x->rest = rest;
    x->nan = nan;
    memset(x->nan, 0xff, x->size_bytes);
    return dt_event_open(w->device, &x->moved, err);
}

static void *bring(struct home *h, size_t at, size_t size_bytes, enum home_use use, struct dt_stream *user)
{
    struct elsewhere *x = h->state;
    if (at + size_bytes > x->size_bytes || x->used_bytes + size_bytes > x->room_bytes || x->out_count == OUT_MOST) {
        break_contract("more is brought than there is, or than was planned for at a time");
        abort();
    }
    for (int i = 0; i < x->out_count; i++) {
        if (x->out[i].at < at + size_bytes && at < x->out[i].at + x->out[i].size_bytes) {
            break_contract("the same bytes are brought twice");
        }
    }
    char *place = x->room + x->used_bytes;
    x->used_bytes = (x->used_bytes + size_bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    x->out[x->out_count].at = at;
    x->out[x->out_count].size_bytes = size_bytes;
    x->out[x->out_count].place = place;
    x->out[x->out_count++].use = use;
    dt_event_wait(x->moved, user);
    dt_stream_copy(user, place, use == HOME_WRITE ? x->nan : x->rest + at, size_bytes);
    brought++;
    return place;
}

static void back(struct home *h, size_t at, size_t size_bytes, struct dt_stream *after)
{
    struct elsewhere *x = h->state;
    int i = 0;
    while (i < x->out_count && !(x->out[i].at == at && x->out[i].size_bytes == size_bytes)) {
        i++;
    }
    if (i == x->out_count) {
        break_contract("given back, and not brought");
        return;
    }
    dt_event_wait(x->moved, after);
    if (x->out[i].use != HOME_READ) {
        dt_stream_copy(after, x->rest + at, x->out[i].place, size_bytes);
    }
    dt_stream_copy(after, x->out[i].place, x->nan, size_bytes);
    dt_event_record(x->moved, after);
    x->out[i] = x->out[--x->out_count];
    x->used_bytes = x->out_count > 0 ? x->used_bytes : 0;
}

static void close_room(struct home *h)
{
    struct elsewhere *x = h->state;
    if (x == NULL) {
        return;
    }
    if (x->out_count > 0) {
        break_contract("something was not given back");
    }
    if (x->rest != NULL) {
        dt_device_free(x->device, DT_MEMORY_PINNED, x->rest, x->size_bytes);
    }
    if (x->nan != NULL) {
        dt_device_free(x->device, DT_MEMORY_PINNED, x->nan, x->size_bytes);
    }
    dt_event_close(x->moved);
    free(x);
    h->state = NULL;
}

static const struct home_ops elsewhere = {.name = "elsewhere",
                                          .portion = PORTION,
                                          .plan = plan_room,
                                          .open = open_room,
                                          .bring = bring,
                                          .back = back,
                                          .close = close_room};

/* ---- whole trainings ---- */

/* An open array that nobody has used yet moves: the room is where it was. */
static void move(struct home *h, struct trainer *t)
{
    struct elsewhere *x = dt_alloc(sizeof *x);
    struct dt_error err;
    x->size_bytes = x->room_bytes = t->memory.plan.pieces[h->piece].size_bytes;
    h->ops = &elsewhere;
    h->state = x;
    if (elsewhere.open(h, t->world, &t->memory.plan, &err) != 0) {
        print_error("%s\n", err.text);
        abort();
    }
}

static void move_all(int rank, const struct report *r, enum moment moment)
{
    (void)rank;
    if (moment != MOMENT_READING) {
        return;
    }
    struct trainer *t = r->of;
    t->strategy.portion = PORTION;
    if (t->strategy.weights == &weights_sliced) {
        move(&t->strategy.weights_home, t);
    }
    if (t->strategy.grads == &grads_sliced) {
        move(&t->strategy.grads_home, t);
    }
    for (int k = 0; k <= DT_STATES_MAX; k++) {
        move(&t->optimizer.parts[k].home, t);
    }
}

static void train(const struct job *job, int size, const struct ranks_options *o, struct ranks_outcome *out)
{
    broken = 0;
    ranks_train(job, size, o, out);
    for (int r = 0; r < size; r++) {
        if (out->rc[r] != 0) {
            print_error("rank %d: %s\n", r, out->err[r].text);
        }
        assert_int_equal(out->rc[r], 0);
    }
    assert_int_equal(broken, 0);
}

static const struct test_case {
    const char *row;
    int size;
    enum dt_dtype type, states;
    const char *device;
} cases[] = {{"single_device", 1, DT_F32, DT_F32, NULL},  {"single_device", 1, DT_BF16, DT_BF16, "separate"},
             {"ddp", 2, DT_BF16, DT_F32, NULL},           {"zero1", 2, DT_F32, DT_BF16, NULL},
             {"zero2", 3, DT_BF16, DT_F32, NULL},         {"full_shard", 2, DT_F32, DT_F32, NULL},
             {"full_shard", 3, DT_BF16, DT_BF16, NULL},   {"full_shard", 2, DT_BF16, DT_F32, "separate"},
             {"shard_grad_op", 2, DT_BF16, DT_F32, NULL}, {"hybrid_shard", 4, DT_F32, DT_F32, NULL}};
enum { CASES = sizeof cases / sizeof cases[0] };

static void set(struct job *job, const struct test_case *c, const char *name)
{
    ranks_job(job);
    job->training.strategy = c->row;
    job->training.max_steps = 4;
    job->training.gradient_accumulation_steps = 2;
    job->precision.compute = job->precision.reduce = c->type;
    job->precision.states = c->states;
    if (strncmp(c->row, "hybrid", 6) == 0) {
        job->fsdp.device_mesh[0] = job->fsdp.device_mesh[1] = 2;
    }
    job->output_dir = dt_arena_printf(&job->arena, "%s/%s", folder, name);
    job->checkpointing.checkpoint_dir = dt_arena_printf(&job->arena, "%s/checkpoints", job->output_dir);
}

/* Without files: weights, moments, losses and norms of all steps. */
static void test_same_bits(void **state)
{
    (void)state;
    for (int i = 0; i < CASES; i++) {
        const struct test_case *c = &cases[i];
        struct job job;
        struct ranks_outcome device, moved;
        set(&job, c, "bits");
        brought = 0;
        train(&job, c->size, &(struct ranks_options){.device = c->device}, &device);
        assert_int_equal(brought, 0);
        train(&job, c->size, &(struct ranks_options){.device = c->device, .on_moment = move_all}, &moved);
        assert_true(brought > 0);
        assert_true(device.step_count == 4 && moved.step_count == 4);
        assert_memory_equal(moved.loss, device.loss, 4 * sizeof(double));
        assert_memory_equal(moved.norm, device.norm, 4 * sizeof(double));
        assert_true(moved.hash == device.hash && moved.moments_hash == device.moments_hash);
        ranks_clear(&device);
        ranks_clear(&moved);
        dt_arena_clear(&job.arena);
    }
}

/* A run under one home loads the checkpoint of another home, either way, and goes on with the
 * same bits. */
static void test_saved_and_loaded(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * CASES; i++) {
        const struct test_case *c = &cases[i / 2];
        struct job job;
        struct ranks_outcome whole, first, second;
        char name[32];
        (void)snprintf(name, sizeof name, "saved-%d", i);
        set(&job, c, name);
        job.text = NULL;
        struct ranks_options plain = {.device = c->device, .files = true}, moved = plain;
        moved.on_moment = move_all;
        train(&job, c->size, &(struct ranks_options){.device = c->device}, &whole);
        struct ranks_options stopped = i % 2 == 0 ? moved : plain;
        stopped.stop_after = 1;
        train(&job, c->size, &stopped, &first);
        assert_true(first.last_step < 4 || c->device != NULL);
        train(&job, c->size, i % 2 == 0 ? &plain : &moved, &second);
        assert_true(second.hash == whole.hash && second.moments_hash == whole.moments_hash);
        ranks_clear(&whole);
        ranks_clear(&first);
        ranks_clear(&second);
        dt_arena_clear(&job.arena);
    }
}

/* ---- a row of strategies with this home, from the plan on ---- */

static void step_of(const struct residence *rests, float *weights, size_t *planned_bytes)
{
    enum { MATRICES = 5, NUMEL = 320 };
    struct tensor tensors[MATRICES];
    struct unit unit = {.name = "root", .tensor_count = MATRICES, .numel = MATRICES * NUMEL, .used = MATRICES * NUMEL};
    for (int i = 0; i < MATRICES; i++) {
        tensors[i] = (struct tensor){
            .name = "t", .numel = NUMEL, .offset = i * NUMEL, .decay = i % 2 == 0, .declared = {0, i * NUMEL}};
    }
    struct chain chain = {.spec = {.type = DT_BF16},
                          .units = &unit,
                          .unit_count = 1,
                          .tensors = tensors,
                          .tensor_count = MATRICES,
                          .shards = 1};
    struct job job = {
        .optimizer = {.row = optimizer_find("adamw"), .numbers = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8}},
        .training = {.weight_decay = 0.1, .seed = 3, .gradient_accumulation_steps = 1},
        .precision = {.compute = DT_BF16, .reduce = DT_BF16, .states = DT_BF16}};
    struct dt_error err;
    struct world world;
    struct precision precision;
    struct strategy strategy;
    struct optimizer optimizer;
    struct plan plan;
    struct strategy_row row = *strategy_find("single_device", 1, &err);
    row.rests = *rests;
    assert_int_equal(
        world_open_thread(&world, &(struct world_options){.device = "cpu", .threads = 1}, NULL, 0, 1, &err), 0);
    plan_init(&plan);
    assert_int_equal(precision_of(&job, DT_F32, &precision, &err), 0);
    assert_int_equal(strategy_init(&strategy, &row, &job, &chain, &precision, 0, 1, 1, &err), 0);
    strategy_plan(&strategy, &plan);
    optimizer_plan(&optimizer, &strategy, &job, &plan);
    *planned_bytes = plan.bytes[PLAN_OPTIMIZER];
    assert_int_equal(plan_open(&plan, &world, &err), 0);
    assert_int_equal(strategy_open(&strategy, &world, &plan, &err), 0);
    assert_int_equal(optimizer_open(&optimizer, &plan, &err), 0);
    const double one = 1;
    for (int step = 0; step < 3; step++) {
        float values[MATRICES * NUMEL];
        for (int e = 0; e < unit.numel; e++) {
            values[e] = (float)((e * 7 + step * 13) % 31 - 15);
        }
        void *g = home_bring(strategy.grads->slice(&strategy, 0), 0, HOME_WRITE, world.compute);
        dt_cpu_cast(&(struct dt_cast_args){g, values, unit.numel, strategy.precision.sums, DT_F32});
        optimizer_step(&optimizer, 0.01, &one, NULL);
        assert_int_equal(dt_stream_finish(world.compute, 60, NULL), 0);
    }
    struct home_part masters = optimizer_weights(&optimizer, 0, 0);
    for (int e = 0; e < unit.numel; e += PORTION / 2) { /* a checkpoint reads so, too */
        size_t size_bytes = PORTION / 2 * sizeof *weights;
        const float *piece = home_bring(masters, size_bytes, HOME_READ, world.compute);
        assert_int_equal(dt_stream_finish(world.compute, 60, NULL), 0);
        memcpy(weights + e, piece, size_bytes);
        home_back(masters, size_bytes, world.compute);
        masters.at += size_bytes;
    }
    assert_int_equal(dt_stream_finish(world.compute, 60, NULL), 0);
    optimizer_clear(&optimizer);
    strategy_close(&strategy);
    plan_clear(&plan);
    world_close(&world);
}

/* The plan has the room that a home asks for, and an update goes by portions, which change nothing. */
static void test_row(void **state)
{
    (void)state;
    static float device[5 * 320], moved[5 * 320];
    size_t device_bytes, moved_bytes;
    broken = brought = 0;
    step_of(&strategy_find("single_device", 1, NULL)->rests, device, &device_bytes);
    step_of(&(struct residence){&home_device, &home_device, &elsewhere, &elsewhere}, moved, &moved_bytes);
    assert_int_equal(broken, 0);
    assert_memory_equal(device, moved, sizeof device);
    assert_true(device[0] != 0);
    assert_int_equal(device_bytes, 5 * 320 * (4 + 2 + 2));
    /* all of it, as a unit may be brought at once; and the gaps of the room */
    assert_int_equal(moved_bytes, device_bytes + 3 * OUT_MOST * ALIGN_BYTES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_same_bits, ranks_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_saved_and_loaded, ranks_setup, folder_teardown),
        cmocka_unit_test(test_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
