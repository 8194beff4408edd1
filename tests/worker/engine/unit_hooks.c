/* covers: worker/engine/hooks worker/job/job_hooks.c */
/* Hooks give what PyTorch's give, step by step (tests/golden/numbers/hooks.json, made by make_hooks.py), and
 * what error feedback promises: sums of what was applied, plus what is left, are the sums of all gradients. */
#include "tests/lib/ranks.h"

#include "base/file.h"
#include "worker/engine/strategy.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TENSORS = 5, STEPS = 6, BEGINS = 2 };
static const struct {
    int dims;
    int64_t shape[4];
} shapes[TENSORS] = {{2, {12, 8}}, {1, {16}}, {2, {6, 10}}, {2, {3, 4}}, {3, {5, 4, 3}}};

/* As in make_hooks.py. */
static float given(int64_t i, int64_t tensor, int64_t step, int64_t rank)
{
    return (float)((double)((i * i * 127 + i * 7919 + tensor * 15487 + step * 104729 + rank * 1299709) % 2003 - 1001) /
                   1001);
}

/* A unit of these tensors, without blocks. */
struct fixture {
    struct unit unit;
    struct tensor tensors[TENSORS];
    struct chain chain;
};

static void make_chain(struct fixture *f, int ranks)
{
    memset(f, 0, sizeof *f);
    int64_t at = 0;
    static const char *const names[TENSORS] = {"a", "b", "c", "d", "e"};
    for (int t = 0; t < TENSORS; t++) {
        struct tensor *x = &f->tensors[t];
        *x = (struct tensor){.name = names[t], .dims = shapes[t].dims, .numel = 1, .offset = at};
        memcpy(x->shape, shapes[t].shape, sizeof x->shape);
        for (int d = 0; d < x->dims; d++) {
            x->numel *= x->shape[d];
        }
        at = (at + x->numel + 63) / 64 * 64;
    }
    int64_t part = 64 * ranks;
    f->unit = (struct unit){.name = "root",
                            .role = ROLE_TRAINED,
                            .tensor_count = TENSORS,
                            .used = at,
                            .numel = (at + part - 1) / part * part};
    f->chain = (struct chain){
        .units = &f->unit, .unit_count = 1, .tensors = f->tensors, .tensor_count = TENSORS, .shards = ranks};
}

struct shared {
    struct job job;
    const cJSON *steps; /* null: only sums are looked at */
    struct dt_store_local *store;
    int ranks;
    bool cold, varies;
    double worst, saved, planned; /* elements of states that a checkpoint has */
    pthread_mutex_t lock;
    double sum[TENSORS][128], applied[TENSORS][128], left[TENSORS][128];
};

struct self {
    struct shared *shared;
    int rank;
    bool good;
    struct dt_error err;
};

static void set_q(struct strategy *s)
{
    struct hook_state x;
    hook_state_loaded(s, true);
    for (int i = 0; hook_state_at(s, i, &x); i++) {
        int64_t m = x.tensor->numel / x.tensor->shape[0];
        for (int64_t k = 0; k < x.count && !x.error; k++) {
            ((float *)x.data)[k] = given(k, m, 99, 0);
        }
    }
}

/* Steps of fewer micro-steps: how large their sums of gradients are. */
static double unit_of(const struct shared *h, int step)
{
    static const double units[] = {1, 0.25, 0.625};
    return h->varies ? units[step % 3] : 1;
}

static void look(struct self *self, const struct fixture *f, const float *grads, int step, double share)
{
    struct shared *h = self->shared;
    pthread_mutex_lock(&h->lock);
    for (int t = 0; t < TENSORS; t++) {
        const cJSON *wanted =
            h->steps != NULL ? cJSON_GetArrayItem(cJSON_GetArrayItem(h->steps, step), t)->child : NULL;
        for (int64_t i = 0; i < f->tensors[t].numel; i++) {
            double mean = (double)grads[f->tensors[t].offset + i] * share / h->ranks;
            h->applied[t][i] += mean / h->ranks; /* each rank adds the same */
            h->sum[t][i] += (double)given(i, t, step, self->rank) / h->ranks;
            if (wanted != NULL) {
                h->worst = fmax(h->worst, fabs(mean - wanted->valuedouble));
                wanted = wanted->next;
            }
        }
    }
    pthread_mutex_unlock(&h->lock);
}

static void look_at_errors(struct self *self, struct strategy *s, const struct fixture *f)
{
    struct shared *h = self->shared;
    struct hook_state x;
    pthread_mutex_lock(&h->lock);
    h->planned = hook_saved_elements(s);
    for (int i = 0; hook_state_at(s, i, &x); i++) {
        h->saved += x.error || self->rank == 0 ? (double)x.count : 0;
        for (int64_t k = 0; k < x.count && x.error; k++) {
            h->left[x.tensor - f->tensors][k] += (double)((const float *)x.data)[k] / h->ranks;
        }
    }
    pthread_mutex_unlock(&h->lock);
}

static int run_steps(struct self *self, struct world *w, struct fixture *f)
{
    struct shared *h = self->shared;
    struct strategy s;
    struct plan p;
    struct precision types;
    plan_init(&p);
    if (precision_of(&h->job, DT_F32, &types, &self->err) != 0 ||
        strategy_init(&s, strategy_find("ddp", h->ranks, &self->err), &h->job, &f->chain, &types, self->rank, h->ranks,
                      h->ranks, &self->err) != 0) {
        return -1;
    }
    strategy_plan(&s, &p);
    if (strategy_connect(&s, w, &self->err) != 0 || plan_open(&p, w, &self->err) != 0 ||
        strategy_open(&s, w, &p, &self->err) != 0) {
        return -1;
    }
    int rc = 0;
    set_q(&s);
    for (int step = 0; step < STEPS && rc == 0; step++) {
        bool add;
        float *grads = s.grads->get(&s, 0, 0, &add);
        memset(grads, 0, (size_t)f->unit.numel * sizeof *grads);
        for (int t = 0; t < TENSORS; t++) {
            for (int64_t i = 0; i < f->tensors[t].numel; i++) {
                grads[f->tensors[t].offset + i] = (float)unit_of(h, step) * given(i, t, step, self->rank);
            }
        }
        if (h->cold) {
            set_q(&s);
        }
        hook_begin_step(&s, step, unit_of(h, step));
        (void)s.grads->reduce(&s, 0, true);
        strategy_land(&s);
        rc = dt_stream_finish(w->compute, 30, &self->err);
        look(self, f, grads, step, s.gradient_share / unit_of(h, step));
    }
    look_at_errors(self, &s, f);
    strategy_close(&s);
    plan_clear(&p);
    return rc;
}

static void *rank_main(void *arg)
{
    struct self *self = arg;
    struct shared *h = self->shared;
    struct world w;
    struct dt_store *store = NULL;
    struct fixture f;
    make_chain(&f, h->ranks);
    if (dt_store_open_local(&store, h->store, NULL, &self->err) == 0) {
        self->good = world_open_thread(&w, &(struct world_options){.device = "cpu", .threads = 1}, store, self->rank,
                                       h->ranks, &self->err) == 0 &&
                     run_steps(self, &w, &f) == 0;
        w.failed = !self->good;
        world_close(&w);
    }
    return NULL;
}

static void make_job(struct job *job)
{
    ranks_job(job);
    job->training.loss_normalization = LOSS_LOCAL_MEAN;
    job->power_sgd.start_iter = BEGINS;
}

static void run(struct shared *h)
{
    pthread_t threads[RANKS_MAX];
    struct self ranks[RANKS_MAX];
    h->store = dt_store_local_open();
    pthread_mutex_init(&h->lock, NULL);
    for (int r = 0; r < h->ranks; r++) {
        ranks[r] = (struct self){.shared = h, .rank = r};
        assert_int_equal(pthread_create(&threads[r], NULL, rank_main, &ranks[r]), 0);
    }
    for (int r = 0; r < h->ranks; r++) {
        pthread_join(threads[r], NULL);
    }
    for (int r = 0; r < h->ranks; r++) {
        if (!ranks[r].good) {
            fail_msg("rank %d: %s", r, ranks[r].err.text);
        }
    }
    dt_store_local_close(h->store);
    pthread_mutex_destroy(&h->lock);
    dt_arena_clear(&h->job.arena);
}

static double number(const cJSON *x, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(x, key)->valuedouble;
}

static bool flag(const cJSON *x, const char *key)
{
    return cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(x, key));
}

/* fp16 and bf16 of two ranks have PyTorch's bits; of three gloo rounds after each addition, and ours once. */
static void test_as_pytorch(void **state)
{
    (void)state;
    struct dt_text text;
    struct dt_error err;
    dt_text_init(&text);
    assert_int_equal(dt_file_read("tests/golden/numbers/hooks.json", 1 << 24, &text, &err), 0);
    cJSON *root = cJSON_Parse(dt_text_str(&text));
    const cJSON *x;
    int count = 0;
    cJSON_ArrayForEach(x, cJSON_GetObjectItemCaseSensitive(root, "cases"))
    {
        struct shared h = {.ranks = (int)number(x, "ranks"), .steps = cJSON_GetObjectItemCaseSensitive(x, "steps")};
        const char *name = cJSON_GetObjectItemCaseSensitive(x, "name")->valuestring;
        make_job(&h.job);
        bool low = strcmp(name, "fp16") == 0 || strcmp(name, "bf16") == 0;
        h.job.ddp.comm_hook = low ? (name[0] == 'f' ? "fp16_compress" : "bf16_compress") : "power_sgd";
        double bound = !low ? 3e-6 : h.ranks == 2 ? 1e-8 : name[0] == 'f' ? 0x1p-10 : 0x1p-7;
        if (!low) {
            h.job.power_sgd.matrix_approximation_rank = (int64_t)number(x, "rank");
            h.job.power_sgd.min_compression_rate = number(x, "rate");
            h.job.power_sgd.use_error_feedback = flag(x, "feedback");
            h.cold = !flag(x, "warm");
        }
        run(&h);
        if (h.worst > bound) {
            fail_msg("%s on %d ranks: %g from PyTorch's", name, h.ranks, h.worst);
        }
        count++;
    }
    assert_int_equal(count, 14);
    cJSON_Delete(root);
    dt_text_clear(&text);
}

/* Rank 1 leaves most out of each step, and in the long run nothing. */
static void test_nothing_is_lost(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 4; ranks++) {
        for (int feedback = 0; feedback < 3; feedback++) {
            struct shared h = {.ranks = ranks, .varies = feedback == 2};
            make_job(&h.job);
            h.job.ddp.comm_hook = "power_sgd";
            h.job.power_sgd.min_compression_rate = 1;
            h.job.power_sgd.use_error_feedback = feedback > 0;
            run(&h);
            double missing = 0;
            for (int t = 0; t < TENSORS; t++) {
                for (int i = 0; i < 128; i++) {
                    missing = fmax(missing, fabs(h.sum[t][i] - h.applied[t][i] - h.left[t][i]));
                }
            }
            assert_true(h.saved > 0 && h.saved == h.planned);
            assert_true(feedback ? missing < 1e-5 : missing > 0.1);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_as_pytorch, ranks_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_nothing_is_lost, ranks_setup, folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
