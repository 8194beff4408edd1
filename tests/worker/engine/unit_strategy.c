/* covers: worker/engine worker/job/job_strategy.c */
/* Strategies one by one: their names, what they keep, what travels and in which order, and that
 * a step allocates nothing. */
#include "tests/lib/ranks.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifndef DT_SANITIZED
/* Counts the allocations of this program; glibc's own names do the work. */
static _Atomic int64_t allocations;
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *p, size_t size);
void *malloc(size_t size)
{
    allocations++;
    return __libc_malloc(size);
}
void *calloc(size_t count, size_t size)
{
    allocations++;
    return __libc_calloc(count, size);
}
void *realloc(void *p, size_t size)
{
    allocations++;
    return __libc_realloc(p, size);
}
#else
static int64_t allocations;
#endif

static void test_names(void **state)
{
    (void)state;
    static const struct {
        const char *name, *row;
        int size;
    } good[] = {{"auto", "single_device", 1},
                {"auto", "ddp", 2},
                {NULL, "ddp", 2},
                {"fsdp", "full_shard", 4},
                {"FULL_SHARD", "full_shard", 2},
                {"deepspeed_stage_1", "zero1", 2},
                {"deepspeed_stage_2", "zero2", 2},
                {"deepspeed_stage_3", "zero3", 2},
                {"deepspeed", "zero2", 2},
                {"ddp_find_unused_parameters_false", "ddp", 2},
                {"_hybrid_shard_zero2", "hybrid_shard_zero2", 4},
                {"single_device", "single_device", 1}};
    struct dt_error err;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        const struct strategy_row *row = strategy_find(good[i].name, good[i].size, &err);
        assert_non_null(row);
        assert_string_equal(row->name, good[i].row);
    }
    assert_null(strategy_find("zerro2", 2, &err));
    assert_string_equal(err.text, "training.strategy: zerro2: unknown strategy; did you mean zero2?");
    assert_int_equal(err.status, DT_INVALID);
    assert_string_equal(strategy_find("deepspeed_stage_3_offload", 2, &err)->name, "zero3");
    assert_null(strategy_find("single_device", 2, &err));
    struct dt_text text;
    dt_text_init(&text);
    strategy_list(&text);
    assert_non_null(strstr(text.data, "hybrid_shard_zero2\n"));
    for (char *line = text.data; *line; line += strcspn(line, "\n") + 1) {
        assert_true(strcspn(line, "\n") <= 80);
    }
    dt_text_clear(&text);
}

/* The meaning that keys of a job give a name (job_strategy.c) is what its row does. */
static void like_row(const char *name, size_t size, const struct strategy_row *row)
{
    char text[64];
    (void)snprintf(text, sizeof text, "%.*s", (int)size, name);
    const struct job_strategy s = job_strategy(text);
    bool sliced = row->weights == &weights_sliced, state = row->optimizer == PART_SLICE;
    if (s.slices != (sliced  ? SLICES_WEIGHTS
                     : state ? SLICES_STATE
                             : SLICES_NOTHING) ||
        s.whole_gradients != (row->reduce == REDUCE_BOUNDARY) || s.keeps_weights != row->keep_after_forward ||
        (s.optimizer != OFFLOAD_NONE) != (strstr(text, "offload") != NULL)) {
        fail_msg("%s is not like %s", text, row->name);
    }
}

static void test_names_in_jobs(void **state)
{
    (void)state;
    struct dt_text all;
    const struct strategy_row *row = NULL;
    int count = 0;
    dt_text_init(&all);
    strategy_list(&all);
    for (const char *line = dt_text_str(&all); *line != 0; line += strcspn(line, "\n") + 1) {
        static const char also[] = "    also named: ", more[] = "                ";
        if (*line != ' ') {
            char name[64];
            (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(line, "\n"), line);
            row = strategy_find(name, 1, NULL);
            like_row(line, strcspn(line, "\n"), row);
        } else if (strncmp(line, also, 16) == 0 || strncmp(line, more, 16) == 0) {
            for (const char *p = line + 16; *p != '\n'; p += strspn(p, " ")) {
                like_row(p, strcspn(p, " \n"), row);
                p += strcspn(p, " \n");
                count++;
            }
        }
    }
    assert_in_range(count, 30, 100);
    assert_int_equal(job_strategy("ZeRO1").slices, SLICES_STATE);
    assert_true(job_strategy("SHARD_GRAD_OP").keeps_weights);
    dt_text_clear(&all);
}

static void test_mesh(void **state)
{
    (void)state;
    struct job job = {.fsdp = {.device_mesh = {2, 2}}};
    struct dt_error err;
    int shards = 0;
    const struct strategy_row *hybrid = strategy_find("hybrid_shard", 4, &err);
    assert_int_equal(strategy_shards(hybrid, &job, 4, 4, &shards, &err), 0);
    assert_int_equal(shards, 2);
    assert_int_equal(strategy_shards(hybrid, &job, 6, 6, &shards, &err), -1);
    assert_non_null(strstr(err.text, "fsdp.device_mesh: [2, 2] is 4 ranks"));
    job.fsdp.device_mesh[0] = job.fsdp.device_mesh[1] = 0;
    assert_int_equal(strategy_shards(hybrid, &job, 6, 3, &shards, &err), 0);
    assert_int_equal(shards, 3);
    assert_int_equal(strategy_shards(strategy_find("zero3", 6, &err), &job, 6, 3, &shards, &err), 0);
    assert_int_equal(shards, 6);
}

static void run(const char *row, int size, int k, enum prefetch prefetch, struct ranks_outcome *out)
{
    struct job job;
    ranks_job(&job);
    job.training.strategy = row;
    job.training.gradient_accumulation_steps = k;
    job.fsdp.backward_prefetch = prefetch;
    if (strncmp(row, "hybrid", 6) == 0) {
        job.fsdp.device_mesh[0] = 2;
        job.fsdp.device_mesh[1] = size / 2;
    }
    ranks_train(&job, size, &(struct ranks_options){.trace = true}, out);
    if (out->rc[0] != 0) {
        print_error("%s: %s\n", row, out->err[0].text);
    }
    assert_int_equal(out->rc[0], 0);
    dt_arena_clear(&job.arena);
}

/* A communicator whose gathers take fewer multiprocessors than its sums. */
static int some_sms(const struct dt_comm *c, enum dt_coll kind)
{
    (void)c;
    return kind == DT_ALL_GATHER ? 5 : 9;
}

static bool always(const struct dt_comm *c)
{
    (void)c;
    return true;
}

/* What runs beside each pass (forward, again, backward, evaluation) of a layer and of the last
 * block: "-" nothing, "g" gathers, "r" sums, "b" both. */
static void describe_beside(const struct strategy *s, const struct world *w, bool first, bool last, char out[9])
{
    static const enum pass_phase phases[] = {PASS_FORWARD, PASS_RECOMPUTE, PASS_BACKWARD, PASS_EVAL};
    for (int i = 0; i < 8; i++) {
        int sms = strategy_busy_sms(s, w, phases[i / 2], i % 2 == 1, first, last);
        assert_true(sms == 0 || sms == 5 || sms == 9 || sms == 5 + 9);
        out[i] = sms == 0 ? '-' : sms == 5 ? 'g' : sms == 9 ? 'r' : 'b';
    }
    out[8] = '\0';
}

/* Pairs of letters: a layer, the last block; forward, again, backward, evaluation. */
static void test_what_runs_beside(void **state)
{
    (void)state;
    static const struct {
        const char *row;
        int size, k;
        enum prefetch prefetch;
        bool forward_prefetch;
        const char *first, *middle, *last; /* micro-steps; with one it is `last` */
    } cases[] = {
        {"ddp", 1, 1, PREFETCH_PRE, false, NULL, NULL, "--------"},
        {"full_shard", 1, 2, PREFETCH_PRE, true, "--------", "--------", "--------"},
        {"ddp", 4, 1, PREFETCH_PRE, false, NULL, NULL, "----r---"},
        {"ddp", 4, 3, PREFETCH_PRE, false, "--------", "--------", "----r---"},
        {"zero1", 4, 1, PREFETCH_PRE, false, NULL, NULL, "ggggr---"},
        {"zero1", 4, 3, PREFETCH_PRE, false, "gggg----", "--------", "----r---"},
        {"zero2", 4, 3, PREFETCH_PRE, false, "ggggr---", "----r---", "----r---"},
        {"full_shard", 4, 3, PREFETCH_PRE, false, "ggggrggg", "ggggrggg", "ggggrggg"},
        {"full_shard", 4, 1, PREFETCH_NONE, false, NULL, NULL, "----r---"},
        {"full_shard", 4, 1, PREFETCH_NONE, true, NULL, NULL, "ggggr-gg"},
        {"shard_grad_op", 4, 3, PREFETCH_POST, false, "ggggr-gg", "ggggr-gg", "ggggr-gg"},
        {"hybrid_shard", 4, 1, PREFETCH_PRE, false, NULL, NULL, "ggggrggg"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct dt_comm_ops talks = {.name = "test", .sms = some_sms}, silent = {.name = "test"};
        struct dt_comm comm = {.ops = &talks}, none = {.ops = &silent};
        struct world w = {.comm = &comm, .shard = &comm};
        const struct strategy_row *row;
        struct chain chain;
        struct strategy s;
        struct job job;
        struct dt_error err;
        char text[9];
        int size = cases[i].size, shards;
        ranks_job(&job);
        job.training.gradient_accumulation_steps = cases[i].k;
        job.fsdp.backward_prefetch = cases[i].prefetch;
        job.fsdp.forward_prefetch = cases[i].forward_prefetch;
        job.fsdp.device_mesh[0] = job.fsdp.device_mesh[1] = 2;
        row = strategy_find(cases[i].row, size, &err);
        assert_non_null(row);
        assert_int_equal(strategy_shards(row, &job, size, size, &shards, &err), 0);
        struct model_spec spec = {.name = "gpt2",
                                  .sizes = &(struct gpt2){.tie_word_embeddings = true,
                                                          .n_layer = 2,
                                                          .n_head = 2,
                                                          .n_embd = 16,
                                                          .head.num_labels = 2,
                                                          .n_positions = 16,
                                                          .vocab_size = 40,
                                                          .n_inner = 64,
                                                          .layer_norm_epsilon = 1e-5,
                                                          .initializer_range = 0.02},
                                  .batch_size = 1,
                                  .sequence_length = 8,
                                  .type = DT_F32};
        assert_int_equal(chain_open(&chain, &spec, shards, &err), 0);
        struct precision precision;
        assert_int_equal(precision_of(&job, DT_F32, &precision, &err), 0);
        assert_int_equal(strategy_init(&s, row, &job, &chain, &precision, 0, size, shards, &err), 0);
        if (size == 1) {
            w.comm = w.shard = &none;
        }
        for (int m = 0; m < (cases[i].k > 1 ? 3 : 1); m++) {
            bool last = cases[i].k == 1 || m == 2;
            const char *expected = last ? cases[i].last : m == 0 ? cases[i].first : cases[i].middle;
            describe_beside(&s, &w, m == 0, last, text);
            if (strcmp(text, expected) != 0) {
                fail_msg("case %zu, %s, micro-step %d: %s, not %s", i, cases[i].row, m, text, expected);
            }
        }
        if (strcmp(cases[i].last, "ggggrggg") == 0) { /* on a stream of their own gathers take
                                                       * theirs beside sums */
            const struct dt_comm_ops two = {.name = "test", .sms = some_sms, .beside = always};
            struct dt_stream other;
            comm.ops = &two;
            describe_beside(&s, &w, true, true, text);
            assert_string_equal(text, "ggggrggg"); /* there is no second stream */
            w.communication = &other;
            describe_beside(&s, &w, true, true, text);
            assert_string_equal(text, "ggggbggg");
            w.communication = NULL;
        }
        w.comm = w.shard = &none; /* of a backend that takes none */
        describe_beside(&s, &w, true, true, text);
        assert_string_equal(text, "--------");
        strategy_close(&s);
        chain_close(&chain);
        dt_arena_clear(&job.arena);
    }
}

/* Units: 0 root (embeddings, final norm; shared with the head), 1 and 2 the layers. */
static void test_order_of_issue(void **state)
{
    (void)state;
    static const struct {
        const char *row;
        enum prefetch prefetch;
        const char *trace;
    } cases[] = {
        {"ddp", PREFETCH_PRE, "F0 F1 F2 B0 B2 R2 B1 R1 B0 R0"},
        {"zero1", PREFETCH_PRE, "F0 F1 F2 B0 B2 R2 B1 R1 B0 R0 P0 P1 P2"},
        {"zero2", PREFETCH_PRE, "F0 F1 F2 B0 B2 R2 B1 R1 B0 R0 P0 P1 P2"},
        /* the last layer stays for the turn; the layer before it is gathered before the
         * reduction of the one in work */
        {"full_shard", PREFETCH_PRE, "G0 F0 G1 F1 D1 G2 F2 B0 G1 B2 R2 D2 B1 R1 D1 B0 R0 D0"},
        {"full_shard", PREFETCH_POST, "G0 F0 G1 F1 D1 G2 F2 B0 B2 G1 R2 D2 B1 R1 D1 B0 R0 D0"},
        {"full_shard", PREFETCH_NONE, "G0 F0 G1 F1 D1 G2 F2 B0 B2 R2 D2 G1 B1 R1 D1 B0 R0 D0"},
        {"shard_grad_op", PREFETCH_PRE, "G0 F0 G1 F1 G2 F2 B0 B2 R2 D2 B1 R1 D1 B0 R0 D0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct ranks_outcome out;
        run(cases[i].row, 2, 1, cases[i].prefetch, &out);
        assert_string_equal(out.trace, cases[i].trace);
        ranks_clear(&out);
    }
}

/* Weights that are whole at a time. Units: 0 root, then the layers; of tensors that stay, the last one. */
static void test_live(void **state)
{
    (void)state;
    const struct job_fsdp usual = {.layers_per_unit = 1,
                                   .prefetch_bucket_size = -1,
                                   .max_live_parameters = -1,
                                   .model_persistence_threshold = -1,
                                   .overlap_comm = true};
    enum { LAYER = 3328 }; /* elements of a layer, with gaps; 816 of them vectors */
    static const char *const only[] = {"*.h.1"};
    struct job_fsdp two = usual, whole = usual, some = usual, small = usual, all = usual, demand = usual, far = usual,
                    one = usual, near = usual, bounded = usual, waits = usual, again = usual, again_far = usual;
    two.layers_per_unit = 2;
    whole.auto_wrap_policy = WRAP_WHOLE;
    some.wrap_layers = (struct dt_strings){1, (const char **)(uintptr_t)only};
    small.param_persistence_threshold = 64;
    all.param_persistence_threshold = 1 << 20;
    demand.prefetch_bucket_size = 0;
    far.prefetch_bucket_size = 2 * LAYER;
    one.prefetch_bucket_size = one.max_live_parameters = 1;
    near.max_reuse_distance = 4 * LAYER;
    bounded = near;
    bounded.max_live_parameters = 1;
    waits.overlap_comm = false;
    again.reshard_after_forward = 2;
    again_far.reshard_after_forward = 2;
    again_far.max_reuse_distance = 4 * LAYER;
    again_far.prefetch_bucket_size = 2 * LAYER;
    const struct {
        const struct job_fsdp *fsdp;
        const char *trace;
        int gather_slots, gradient_slots; /* the root's and those of tensors that stay among them */
    } cases[] = {
        {&usual, "G0 F0 G1 F1 D1 G2 F2 D2 G3 F3 B0 G2 B3 R3 D3 G1 B2 R2 D2 B1 R1 D1 B0 R0 D0", 3, 3},
        {&two, "G0 F0 G1 F1 F1 D1 G2 F2 B0 G1 B2 R2 D2 B1 B1 R1 D1 B0 R0 D0", 3, 3},
        {&whole, "G0 F0 F0 F0 F0 B0 B0 B0 B0 B0 R0 D0", 1, 1},
        {&some, "G0 F0 F0 G1 F1 D1 F0 G1 B0 B0 B1 R1 D1 B0 B0 R0 D0", 2, 2},
        {&small,
         "G0 F0 G4 G1 F4 F1 D1 G2 F4 F2 D2 G3 F4 F3 B4 B0 G2 B4 B3 R3 D3 G1 B4 B2 R2 D2 B4 B1 R4 R1 D1 B0 R0 D0 D4", 4,
         4},
        {&all, "G0 F0 G1 F1 G2 F2 G3 F3 B0 B3 R3 B2 R2 B1 R1 B0 R0 D0 D1 D2 D3", 4, 3},
        {&demand, "G0 F0 G1 F1 D1 G2 F2 D2 G3 F3 B0 B3 R3 D3 G2 B2 R2 D2 G1 B1 R1 D1 B0 R0 D0", 2, 3},
        {&far, "G0 G1 G2 F0 G3 F1 D1 F2 D2 F3 G2 B0 G1 B3 R3 D3 B2 R2 D2 B1 R1 D1 B0 R0 D0", 4, 3},
        {&one, "G0 F0 G1 F1 D1 G2 F2 D2 G3 F3 B0 B3 R3 D3 G2 B2 R2 D2 G1 B1 R1 D1 B0 R0 D0", 2, 3},
        {&near, "G0 F0 G1 F1 D1 G2 F2 G3 F3 G1 B0 B3 R3 D3 B2 R2 D2 B1 R1 D1 B0 R0 D0", 4, 3},
        {&bounded, "G0 F0 G1 F1 D1 G2 F2 D2 G3 F3 B0 B3 R3 D3 G2 B2 R2 D2 G1 B1 R1 D1 B0 R0 D0", 2, 3},
        {&waits, "G0 F0 G1 F1 D1 G2 F2 D2 G3 F3 B0 G2 B3 R3 D3 G1 B2 R2 D2 B1 R1 D1 B0 R0 D0", 3, 2},
        {&again, "G0 F0 G1 F1 S1 D1 G2 F2 S2 D2 G3 F3 B0 g2 B3 R3 D3 g1 B2 R2 D2 B1 R1 D1 B0 R0 D0", 3, 3},
        {&again_far, "G0 G1 G2 F0 G3 F1 S1 D1 F2 F3 g1 B0 B3 R3 D3 B2 R2 D2 B1 R1 D1 B0 R0 D0", 4, 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct ranks_outcome out;
        struct job job;
        struct trainer t;
        struct dt_error err;
        ranks_job(&job);
        ranks_model(&job)->n_layer = 3;
        job.training.strategy = "zero3";
        job.fsdp = *cases[i].fsdp;
        int size = job.fsdp.reshard_after_forward > 0 ? 4 : 2;
        assert_int_equal(trainer_prepare(&t, &job, 0, size, size, DT_F32, 0, &err), 0);
        assert_int_equal(t.strategy.gather.count, cases[i].gather_slots);
        assert_int_equal(t.strategy.gradient.count, cases[i].gradient_slots);
        trainer_close(&t);
        ranks_train(&job, size, &(struct ranks_options){.trace = true}, &out);
        assert_int_equal(out.rc[0], 0);
        assert_string_equal(out.trace, cases[i].trace);
        ranks_clear(&out);
        dt_arena_clear(&job.arena);
    }
}

/* training.freeze: tensors that it names keep their first values, the others learn; they have no state. */
static void test_frozen(void **state)
{
    (void)state;
    static const char *const name[] = {"*.h.0.*", "*wpe*"};
    for (int half = 0; half < 2; half++) {
        struct ranks_outcome all, some, first;
        struct job job;
        ranks_job(&job);
        job.training.strategy = "zero3";
        job.precision.compute = job.precision.reduce = half ? DT_BF16 : DT_F32;
        ranks_train(&job, 2, &(struct ranks_options){.trace = false}, &all);
        job.training.freeze = (struct dt_strings){2, (const char **)(uintptr_t)name};
        ranks_train(&job, 2, &(struct ranks_options){.trace = false}, &some);
        job.training.learning_rate = 0;
        ranks_train(&job, 2, &(struct ranks_options){.trace = false}, &first);
        assert_true(all.rc[0] == 0 && some.rc[0] == 0 && first.rc[0] == 0);
        int frozen = 0;
        for (int i = 0; i < some.tensor_count; i++) {
            const char *own = some.tensors[i].name;
            bool named = strstr(own, ".h.0.") != NULL || strstr(own, "wpe") != NULL;
            bool same = memcmp(some.weights + some.tensors[i].first, first.weights + first.tensors[i].first,
                               (size_t)some.tensors[i].numel * sizeof(float)) == 0;
            assert_true(same == named);
            frozen += named;
        }
        assert_int_equal(frozen, 13);
        assert_true(some.bytes[PLAN_OPTIMIZER] < all.bytes[PLAN_OPTIMIZER] * 2 / 3);
        assert_true(some.bytes[PLAN_GRADIENTS] < all.bytes[PLAN_GRADIENTS] * 2 / 3);
        ranks_clear(&all);
        ranks_clear(&some);
        ranks_clear(&first);
        dt_arena_clear(&job.arena);
    }
}

static void test_names_of_the_model(void **state)
{
    (void)state;
    static const char *const wrong[] = {"transformer.wte.wieght"}, *const all[] = {"*"},
                             *const layers[] = {"*.h.0", "transformer.h.7"}, *const behind[] = {"*.wpe.*"};
    const char *const *globs[] = {wrong, all, layers, behind};
    const char *const said[] = {"training.freeze: transformer.wte.wieght: no tensor has such a name; the nearest is "
                                "transformer.wte.weight; * stands for any characters",
                                "training.freeze: names all tensors: nothing is trained; name fewer, or use train "
                                "--evaluate",
                                "fsdp.wrap_layers: transformer.h.7: no layer has such a name; they are "
                                "transformer.h.0 to transformer.h.1, and * stands for any characters",
                                "optimizer.groups: group 2 (*.wpe.*): groups before it have all tensors that it names; "
                                "put it before them"};
    for (int i = 0; i < 4; i++) {
        struct job job;
        struct trainer t;
        struct dt_error err;
        ranks_job(&job);
        const struct dt_strings names = {i == 2 ? 2 : 1, globs[i]};
        if (i == 3) {
            job.optimizer.group_count = 2;
            job.optimizer.groups[0] = (struct job_group){.params = {1, all}, .lr_scale = 1, .weight_decay = NAN};
            job.optimizer.groups[1] = (struct job_group){.params = names, .lr_scale = 1, .weight_decay = NAN};
        } else {
            *(i == 2 ? &job.fsdp.wrap_layers : &job.training.freeze) = names;
        }
        assert_int_equal(trainer_prepare(&t, &job, 0, 2, 2, DT_F32, 0, &err), -1);
        assert_string_equal(err.text, said[i]);
        trainer_close(&t);
        dt_arena_clear(&job.arena);
    }
}

/* Collectives of three steps, the last one's publish included, by kind. */
static void test_what_travels(void **state)
{
    (void)state;
    static const struct {
        const char *row;
        int size, k;
        int64_t all_reduce, reduce_scatter, all_gather;
    } cases[] = {
        {"single_device", 1, 2, 0, 0, 0},
        {"zero3", 1, 2, 0, 0, 0},
        {"ddp", 2, 2, 3 * (3 + 1), 0, 0},
        {"zero1", 2, 2, 3 * 1, 3 * 3, 3 * 3},
        {"zero2", 2, 2, 3 * 1, 3 * 2 * 3, 3 * 3},
        {"full_shard", 2, 2, 3 * 1, 3 * 2 * 3, 3 * 2 * 4}, /* 2 units twice less the one kept at
                                                            * the turn, the root once */
        {"shard_grad_op", 2, 2, 3 * 1, 3 * 2 * 3, 3 * 2 * 3},
        {"hybrid_shard", 4, 1, 3 * (3 + 1), 3 * 3, 3 * 4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct ranks_outcome out;
        run(cases[i].row, cases[i].size, cases[i].k, PREFETCH_PRE, &out);
        if (out.collectives != cases[i].all_reduce + cases[i].reduce_scatter + cases[i].all_gather) {
            print_error("%s: %lld all_reduce, %lld reduce_scatter, %lld all_gather\n", cases[i].row,
                        (long long)out.collectives_of[DT_ALL_REDUCE], (long long)out.collectives_of[DT_REDUCE_SCATTER],
                        (long long)out.collectives_of[DT_ALL_GATHER]);
        }
        assert_int_equal(out.collectives_of[DT_ALL_REDUCE], cases[i].all_reduce);
        assert_int_equal(out.collectives_of[DT_REDUCE_SCATTER], cases[i].reduce_scatter);
        assert_int_equal(out.collectives_of[DT_ALL_GATHER], cases[i].all_gather);
        ranks_clear(&out);
    }
}

/* ddp.bucket_cap_mb: how many all_reduces there are is up to it, and no bit of the result is. */
static void test_buckets(void **state)
{
    (void)state;
    static const struct {
        int channels;
        double cap_mb;
        const char *trace;
        int64_t per_step;
    } cases[] = {{16, 1e-6, "F0 F1 F2 B0 B2 R2 B1 R1 B0 R0", 3},
                 {16, 0.015, "F0 F1 F2 B0 B2 B1 R1 B0 R0", 2},
                 {16, 25, "F0 F1 F2 B0 B2 B1 B0 R0", 1},
                 {192, 1e-6, "F0 F1 F2 B0 B2 R2 B1 R1 B0 R0", 3},
                 {192, 25, "F0 F1 F2 B0 B2 R2 B1 R1 B0 R0", 3}}; /* a MiB and more goes ahead of the root */
    uint64_t hash = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct ranks_outcome out;
        struct job job;
        ranks_job(&job);
        ranks_model(&job)->n_embd = cases[i].channels;
        job.ddp.bucket_cap_mb = cases[i].cap_mb;
        job.training.gradient_accumulation_steps = 2;
        ranks_train(&job, 3, &(struct ranks_options){.trace = true}, &out);
        assert_int_equal(out.rc[0], 0);
        /* of the last micro-step */
        assert_non_null(strstr(out.trace, cases[i].trace + strlen("F0 F1 F2 ")));
        assert_int_equal(out.collectives_of[DT_ALL_REDUCE], 3 * (cases[i].per_step + 1));
        hash = i == 0 || cases[i].channels != cases[i - 1].channels ? out.hash : hash;
        assert_true(out.hash == hash);
        ranks_clear(&out);
        dt_arena_clear(&job.arena);
    }
}

/* What rests on a rank: 1, or one over the shards, of four equal parts (weights, gradients, two
 * moments). */
static void test_bytes(void **state)
{
    (void)state;
    static const struct {
        const char *row;
        int weights, gradients, optimizer; /* quarters of the whole on 4 ranks */
    } cases[] = {
        {"ddp", 4, 4, 4}, {"zero1", 4, 4, 1}, {"zero2", 4, 1, 1}, {"zero3", 1, 1, 1}, {"hybrid_shard", 2, 2, 2}};
    struct ranks_outcome whole;
    run("ddp", 4, 2, PREFETCH_PRE, &whole);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct ranks_outcome out;
        run(cases[i].row, 4, 2, PREFETCH_PRE, &out);
        /* padding depends on the number of shards, so hybrid may be a little less */
        assert_in_range(out.bytes[PLAN_WEIGHTS] * 4 + 4096, whole.bytes[PLAN_WEIGHTS] * (size_t)cases[i].weights,
                        whole.bytes[PLAN_WEIGHTS] * (size_t)cases[i].weights + 4096);
        assert_in_range(out.bytes[PLAN_GRADIENTS] * 4 + 4096, whole.bytes[PLAN_WEIGHTS] * (size_t)cases[i].gradients,
                        whole.bytes[PLAN_WEIGHTS] * (size_t)cases[i].gradients + 4096);
        assert_in_range(out.bytes[PLAN_OPTIMIZER] * 4 + 8192, whole.bytes[PLAN_OPTIMIZER] * (size_t)cases[i].optimizer,
                        whole.bytes[PLAN_OPTIMIZER] * (size_t)cases[i].optimizer + 8192);
        ranks_clear(&out);
    }
    ranks_clear(&whole);
}

/* In BF16: weights in 2 bytes, 4 more for the masters of what is updated here. Gradients are 2
 * bytes unless sums over micro-steps rest in their place; whole sums travel from a place of
 * their own, as large as what travels at once. */
static void test_bytes_bf16(void **state)
{
    (void)state;
    static const struct {
        const char *row;
        enum accumulate_sync sync;
        int micro_steps;
        enum dt_dtype reduce;
        size_t gradients; /* bytes per element; weights have 2, and the optimizer 12 */
        bool sliced_weights, sliced_gradients, sliced_optimizer, beside;
    } cases[] = {
        {"ddp", SYNC_AUTO, 1, DT_BF16, 2, false, false, false, false},
        {"ddp", SYNC_AUTO, 2, DT_BF16, 4, false, false, false, true},
        {"ddp", SYNC_AUTO, 1, DT_F32, 4, false, false, false, false},
        {"ddp", SYNC_AUTO, 2, DT_F32, 4, false, false, false, false},
        {"zero1", SYNC_AUTO, 2, DT_BF16, 4, false, false, true, true},
        {"zero2", SYNC_AUTO, 1, DT_BF16, 2, false, true, true, false},
        {"zero2", SYNC_AUTO, 2, DT_BF16, 4, false, true, true, false},
        {"zero3", SYNC_AUTO, 2, DT_BF16, 4, true, true, true, false},
        {"zero3", SYNC_AUTO, 2, DT_F32, 4, true, true, true, false},
        {"zero3", SYNC_BOUNDARY, 2, DT_BF16, 4, true, false, true, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct job job;
        struct trainer t;
        struct dt_error err;
        ranks_job(&job);
        job.training.strategy = cases[i].row;
        job.training.accumulate_sync = cases[i].sync;
        job.training.gradient_accumulation_steps = cases[i].micro_steps;
        job.precision.compute = DT_BF16;
        job.precision.reduce = cases[i].reduce;
        job.ddp.bucket_cap_mb = 25;
        assert_int_equal(trainer_prepare(&t, &job, 1, 4, 4, DT_F32, 0, &err), 0);
        const struct chain *c = &t.chain;
        size_t all = 0, most = 0, slots = (size_t)t.strategy.gradient.total;
        for (int u = 0; u < c->unit_count; u++) {
            all += (size_t)c->units[u].numel;
            most = (size_t)c->units[u].numel > most ? (size_t)c->units[u].numel : most;
        }
        size_t w = all / (cases[i].sliced_weights ? 4 : 1), g = all / (cases[i].sliced_gradients ? 4 : 1),
               o = all / (cases[i].sliced_optimizer ? 4 : 1);
        size_t beside = strcmp(cases[i].row, "ddp") == 0 ? all : most; /* one bucket takes all */
        assert_int_equal(t.memory.plan.bytes[PLAN_WEIGHTS], w * 2);
        assert_int_equal(t.memory.plan.bytes[PLAN_GRADIENTS], g * cases[i].gradients);
        assert_int_equal(t.memory.plan.bytes[PLAN_OPTIMIZER], o * 12);
        assert_int_equal(t.memory.plan.bytes[PLAN_GRADIENT_SLOTS],
                         cases[i].beside ? beside * 2 : slots * dt_dtype_size(cases[i].reduce));
        trainer_close(&t);
        dt_arena_clear(&job.arena);
    }
}

static int64_t at_step[8];

static void remember(int rank, int64_t step)
{
    if (rank == 0 && step < 8) {
        at_step[step] = allocations;
    }
}

static void test_no_allocation_in_a_step(void **state)
{
    (void)state;
    static const struct {
        const char *strategy, *hosts;
        int ranks;
    } rows[] = {
        {"single_device", NULL, 1}, {"zero3", NULL, 2}, {"zero3", "ab", 2}, {"ddp", "aab", 3}, {"zero3", "aabb", 4}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct ranks_outcome out;
        struct job job;
        ranks_job(&job);
        job.training.strategy = rows[i].strategy;
        job.training.gradient_accumulation_steps = 2;
        job.training.max_steps = 7;
        ranks_train(&job, rows[i].ranks, &(struct ranks_options){.on_step = remember, .hosts = rows[i].hosts}, &out);
        assert_int_equal(out.rc[0], 0);
        assert_int_equal(at_step[6] - at_step[2], 0); /* on all ranks: they share the counter */
        ranks_clear(&out);
        dt_arena_clear(&job.arena);
    }
}

/* A loss that is not finite ends the run on all ranks, names step and rank, and is permanent. */
static void test_loss_not_finite(void **state)
{
    (void)state;
    struct ranks_outcome out;
    struct job job;
    ranks_job(&job);
    job.training.strategy = "ddp";
    ranks_train(&job, 3, &(struct ranks_options){.poison_step = 1, .poison_rank = 1}, &out);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(out.rc[r], -1);
        assert_int_equal(trainer_exit_code(&out.err[r]), DT_EXIT_PERMANENT);
        assert_non_null(strstr(out.err[r].text, "step 2: the loss is not finite"));
        assert_true(out.err[r].blame.fault == DT_FAULT_FAILED && out.err[r].blame.rank == 1);
    }
    ranks_clear(&out);
    dt_arena_clear(&job.arena);
}

/* Every validation sample once, also when they do not divide by batch and ranks. */
static void test_evaluation(void **state)
{
    (void)state;
    double wanted = 0;
    for (int size = 1; size <= 4; size++) {
        struct ranks_outcome out;
        struct job job;
        ranks_job(&job);
        job.data.val = dt_set_alone(&job.arena, dt_arena_printf(&job.arena, "%s/val.bin", folder));
        job.training.strategy = size > 1 ? "zero3" : "auto";
        job.training.batch_size_per_gpu = size == 3 ? 5 : 2;
        job.training.learning_rate = 0; /* the same weights everywhere */
        ranks_train(&job, size, &(struct ranks_options){.evaluate = true}, &out);
        assert_int_equal(out.rc[0], 0);
        wanted = size == 1 ? out.val_loss : wanted;
        assert_true(fabs(out.val_loss - wanted) <= 1e-6 * wanted);
        ranks_clear(&out);
        dt_arena_clear(&job.arena);
    }
}

/* A wish to stop during an evaluation is heard at its next batch: no further step is made, and
 * what was learned is saved. */
static void test_stop_in_evaluation(void **state)
{
    (void)state;
    struct ranks_outcome out;
    struct job job;
    ranks_job(&job);
    job.data.val = dt_set_alone(&job.arena, dt_arena_printf(&job.arena, "%s/val.bin", folder));
    job.training.strategy = "zero3";
    job.training.max_steps = 6;
    job.training.eval_every_n_steps = 1;
    job.training.batch_size_per_gpu = 1;
    ranks_train(&job, 3, &(struct ranks_options){.stop_after = 2, .stop_rank = 1}, &out);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(out.rc[r], 0);
        assert_int_equal(out.exit_code[r], DT_EXIT_STOPPED);
    }
    assert_int_equal(out.last_step, 2);
    ranks_clear(&out);
    dt_arena_clear(&job.arena);
}

/* Epochs that do not divide: 96 samples, 10 a micro-step, two micro-steps a step, one epoch and
 * a half. */
static void test_epochs(void **state)
{
    (void)state;
    static const struct {
        enum partial_accumulation partial;
        int steps;
    } cases[] = {{PARTIAL_STEP, 5 + 3}, {PARTIAL_DROP, 4 + 2}, {PARTIAL_CARRY, 6}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct ranks_outcome out;
        struct job job;
        ranks_job(&job);
        job.training.max_steps = -1;
        job.training.num_epochs = 1.5;
        job.training.batch_size_per_gpu = 5;
        job.training.gradient_accumulation_steps = 2;
        job.training.partial_accumulation = cases[i].partial;
        ranks_train(&job, 2, NULL, &out);
        assert_int_equal(out.rc[0], 0);
        assert_int_equal(out.exit_code[0], DT_EXIT_DONE);
        assert_int_equal(out.step_count, cases[i].steps);
        ranks_clear(&out);
        dt_arena_clear(&job.arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_names_in_jobs),
        cmocka_unit_test(test_mesh),
        cmocka_unit_test(test_what_runs_beside),
        cmocka_unit_test(test_order_of_issue),
        cmocka_unit_test(test_live),
        cmocka_unit_test(test_frozen),
        cmocka_unit_test(test_names_of_the_model),
        cmocka_unit_test(test_what_travels),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_bytes_bf16),
        cmocka_unit_test(test_no_allocation_in_a_step),
        cmocka_unit_test(test_loss_not_finite),
        cmocka_unit_test(test_evaluation),
        cmocka_unit_test(test_stop_in_evaluation),
        cmocka_unit_test(test_epochs),
        cmocka_unit_test(test_buckets),
    };
    return cmocka_run_group_tests(tests, ranks_setup, folder_teardown);
}
