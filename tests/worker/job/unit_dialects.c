/* covers: worker/job/dialects base/config.c base/config_unknown.c */
/* Keys of other systems: what each rule does, values with two owners, files and places, the batch,
 * what has no effect, and the tables in docs. */
#include "base/file.h"
#include "tests/lib/folder.h"
#include "worker/job/dialects/dialect.h"
#include "worker/job/job.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static char job_path[sizeof folder + 16], ds_path[sizeof folder + 16];

static void write_file(const char *path, const char *text)
{
    struct dt_error err = {0};
    if (dt_file_write(path, text, strlen(text), &err) != 0) {
        fail_msg("%s", err.text);
    }
}

/* Opens a job with `more` beside model and data; null, or what is wrong, without the folder's name. */
static const char *open_with(struct job *job, const char *more, const char *set, int world)
{
    static char problems[8192];
    struct dt_error err = {0};
    struct dt_text all, text;
    dt_text_init(&all);
    dt_text_init(&text);
    dt_text_printf(&text, "{\"model\": {\"name\": \"gpt2\"}, \"data\": {\"train\": \"x\"}%s\n %s}",
                   *more != 0 ? "," : "", more);
    write_file(job_path, text.data);
    struct job_arguments args = {.path = job_path, .set = &set, .set_count = set != NULL, .world = world};
    int result = job_open(job, &args, &all, &err);
    char *out = problems;
    for (const char *p = dt_text_str(&all); *p != 0 && out + 1 < problems + sizeof problems;) {
        if (strncmp(p, folder, strlen(folder)) == 0) {
            p += strlen(folder) + 1;
        } else {
            *out++ = *p++;
        }
    }
    *out = 0;
    dt_text_clear(&all);
    dt_text_clear(&text);
    return result != 0 ? problems : NULL;
}

static void opened(struct job *job, const char *more, const char *set, int world)
{
    const char *wrong = open_with(job, more, set, world);
    if (wrong != NULL) {
        fail_msg("%s: %s", more, wrong);
    }
}

static void refused(const char *more, const char *set, int world, const char *message)
{
    struct job job;
    const char *wrong = open_with(&job, more, set, world);
    if (wrong == NULL) {
        job_close(&job);
        fail_msg("%s is taken", more);
    }
    assert_string_equal(wrong, message);
}

/* ---- one job in both languages ---- */

#define KEYS                                                                                                           \
    "\"train_batch_size\": 16, \"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 4, "            \
    "\"gradient_clipping\": 0.5, \"steps_per_print\": 7, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": "   \
    "3e-4, \"betas\": [0.8, 0.99], \"eps\": 1e-7, \"weight_decay\": 0.1}}, \"scheduler\": {\"type\": "                 \
    "\"WarmupDecayLR\", \"params\": {\"warmup_num_steps\": 4, \"warmup_min_lr\": 0, \"warmup_max_lr\": 3e-4, "         \
    "\"total_num_steps\": 20}}, \"bf16\": {\"enabled\": true}, \"fp16\": {\"enabled\": false}, "                       \
    "\"zero_optimization\": {\"stage\": 2, \"reduce_bucket_size\": 5e8, \"offload_optimizer\": {\"device\": "          \
    "\"none\"}}"
#define OURS                                                                                                           \
    "\"training\": {\"batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 4, \"max_grad_norm\": 0.5, "           \
    "\"learning_rate\": 3e-4, \"adam_beta1\": 0.8, \"adam_beta2\": 0.99, \"adam_epsilon\": 1e-7, \"weight_decay\": "   \
    "0.1, \"lr_scheduler_type\": \"warmupdecaylr\", \"warmup_steps\": 4, \"max_steps\": 20, \"precision\": \"bf16\", " \
    "\"strategy\": \"zero2\"}, \"logging\": {\"log_every_n_steps\": 7}"

static void test_same_job(void **state)
{
    (void)state;
    struct job ours, theirs;
    opened(&ours, OURS, NULL, 2);
    write_file(ds_path, "{" KEYS "}");
    char named[160];
    (void)snprintf(named, sizeof named, "\"deepspeed\": \"%s\"", ds_path);
    const char *const forms[] = {KEYS, "\"deepspeed\": {" KEYS "}", named, KEYS ", " OURS,
                                 "\"deepspeed\": {" KEYS "}, " KEYS};
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        opened(&theirs, forms[i], NULL, 2);
        assert_string_equal(theirs.text, ours.text);
        assert_non_null(strstr(theirs.inert_keys, "zero_optimization.reduce_bucket_size"));
        job_close(&theirs);
    }
    char set[160];
    (void)snprintf(set, sizeof set, "deepspeed=%s", ds_path);
    opened(&theirs, "", set, 2);
    assert_string_equal(theirs.text, ours.text);
    job_close(&theirs);
    opened(&theirs, named, "deepspeed.gradient_clipping=0.25", 2); /* one key of the file */
    assert_true(theirs.training.max_grad_norm == 0.25);
    job_close(&theirs);
    assert_null(ours.inert_keys);
    job_close(&ours);
}

/* Messages about a file say its places and keys. */
static void test_places(void **state)
{
    (void)state;
    char named[160];
    (void)snprintf(named, sizeof named, "\"training\": {\"weight_decay\": 0.1}, \"deepspeed\": \"%s\"", ds_path);
    write_file(
        ds_path,
        "{\n  \"gradient_clipping\": -1,\n  \"gradient_cliping\": 1, \"overlap_comm\": true, \"train_batch_size\": 8,\n"
        "  \"zero_optimization\": {\"stag\": 2},\n  \"optimizer\": {\"params\": {\"weight_decay\": 0}}\n}");
    refused(
        named, NULL, 1,
        "ds.json:2:24: gradient_clipping: is -1; give a number from 0 to 1e+30\n"
        "ds.json:3:3: gradient_cliping: unknown key; did you mean gradient_clipping?\n"
        "ds.json:4:25: zero_optimization.stag: unknown key; did you mean stage?\n"
        "ds.json:5:28: optimizer.params.weight_decay: is 0, but training.weight_decay is 0.1 (job.json:2:15); say it "
        "in one place\n");
    write_file(ds_path, "{\n  \"gradient_clipping\": }");
    refused(named, NULL, 1, "job.json:2:37: deepspeed: ds.json:2:24: unexpected \"}\"; expected a value\n");
    refused("\"deepspeed\": 5", NULL, 1, "job.json:2:15: deepspeed: is 5; give an object, { \"key\": value, ... }\n");
    refused("\"optimizer\": 5", NULL, 1, "job.json:2:15: optimizer: is 5; give an object, { \"key\": value, ... }\n");
    refused("\"gradient_cliping\": 1", NULL, 1,
            "job.json:2:2: gradient_cliping: unknown key; did you mean gradient_clipping?\n");
}

/* ---- every rule ---- */

/* {"a": {"b": VALUE}} of "a.b", without the outer braces. */
static void nest(const char *key, const char *value, struct dt_text *out)
{
    int depth = 0;
    for (; strchr(key, '.') != NULL; depth++, key = strchr(key, '.') + 1) {
        dt_text_printf(out, "\"%.*s\": {", (int)strcspn(key, "."), key);
    }
    dt_text_printf(out, "\"%s\": %s%.*s", key, value, depth, "}}}}}}}}");
}

/* Where the keys of a dialect stand, with what must stand beside them. */
static const struct dialect *at;

/* What is wrong with a job that has a key, or null; and one more. */
static const char *with_key(const char *key, const char *value, const char *set)
{
    static char copy[4096];
    struct dt_text more;
    struct job job;
    dt_text_init(&more);
    if (at != NULL && *at->places[0] != 0) {
        bool accelerate = at == &dialect_accelerate && strcmp(key, "distributed_type") != 0;
        dt_text_printf(&more, "%s%s", accelerate ? "\"accelerate\": {\"distributed_type\": \"MULTI_GPU\", " : "", "");
        char path[160];
        (void)snprintf(path, sizeof path, "%s.%s", at->places[0], key);
        nest(accelerate ? key : path, value, &more);
        dt_text_puts(&more, accelerate ? "}" : "");
    } else {
        nest(key, value, &more);
    }
    const char *wrong = open_with(&job, more.data, set, 1);
    if (wrong == NULL) {
        (void)snprintf(copy, sizeof copy, "inert: %s", job.inert_keys != NULL ? job.inert_keys : "");
        job_close(&job);
    }
    dt_text_clear(&more);
    return wrong != NULL ? wrong : copy;
}

/* A word that becomes a value of ours: its size, 0 for none. */
static size_t word_of(const char *words, const char **word)
{
    for (const char *p = words; *p != 0; p += *p == '|') {
        size_t size = strcspn(p, "="), rest = strcspn(p + size + 1, "|");
        if (rest > 0 && p[size + 1] != '!' && p[size + 1] != '~' && *p != '*') {
            *word = p;
            return size;
        }
        p += size + 1 + rest;
    }
    return 0;
}

/* Whatever takes a value to a key of ours finds that the key has another one. */
static void check_owners(const struct dialect_rule *r)
{
    char theirs[64], set[128];
    const char *word = r->text;
    if (r->how == DIALECT_MOVE) {
        (void)snprintf(theirs, sizeof theirs, "3");
        (void)snprintf(set, sizeof set, "%s=4", r->to);
    } else {
        size_t size = word_of(r->text, &word);
        bool bare =
            strncmp(word, "true", 4) == 0 || strncmp(word, "false", 5) == 0 || strspn(word, "0123456789") == size;
        (void)snprintf(theirs, sizeof theirs, bare ? "%.*s" : "\"%.*s\"", (int)size, word);
        (void)snprintf(set, sizeof set, "%s=%s", r->to,
                       strcmp(r->to, "training.strategy") == 0                                     ? "ddp"
                       : strcmp(r->to, "training.device") == 0                                     ? "auto_"
                       : strcmp(r->to, "mixed_precision.reduce_dtype") == 0                        ? "bf16"
                       : strcmp(r->to, "training.precision") == 0 && strncmp(word, "true", 4) != 0 ? "bf16"
                                                                                                   : "fp32");
    }
    const char *wrong = with_key(r->from, theirs, set);
    if (strstr(wrong, r->from) == NULL || strstr(wrong, r->to) == NULL ||
        strstr(wrong, "say it in one place") == NULL) {
        fail_msg("%s and %s: %s", r->from, set, wrong);
    }
}

static bool wants_block(const struct dialect_rule *r)
{
    /* unit_dialect_words.c, unit_dialect_lightning.c */
    bool of_class = at == &dialect_ddp_strategy || at == &dialect_deepspeed_strategy || at == &dialect_fsdp_strategy ||
                    at == &dialect_callbacks || at == &dialect_early_stopping || at == &dialect_model_checkpoint ||
                    at == &dialect_timer;
    return of_class || (at == &dialect_accelerate && strncmp(r->from, "deepspeed_config.", 17) == 0);
}

static void test_rules(void **state)
{
    (void)state;
    for (const struct dialect *const *d = dialects; *d != NULL; d++) {
        at = *d;
        for (const struct dialect_rule *r = at->rules; r->from != NULL; r++) {
            if (wants_block(r) || (at == &dialect_accelerate && strcmp(r->from, "distributed_type") == 0)) {
                continue; /* unit_dialect_files.c has them */
            }
            char inert[192];
            bool top = *at->places[0] == 0;
            (void)snprintf(inert, sizeof inert, "inert: %s%s%s", at->places[0], top ? "" : ".", r->from);
            assert_string_equal(with_key(r->from, "null", NULL), "inert: ");
            if (r->how == DIALECT_INERT) {
                assert_string_equal(with_key(r->from, "true", NULL), inert);
            } else if (r->how == DIALECT_SILENT && strcmp(r->from, "transformer_layer_cls_to_wrap") != 0) {
                assert_string_equal(with_key(r->from, "true", NULL), "inert: ");
            } else if (r->how == DIALECT_REFUSE) {
                const char *off = with_key(r->from, "{\"enabled\": false, \"loss_scale\": 0}", NULL);
                assert_string_equal(off, strstr(r->text, "beyond scope") == r->text ? inert : "inert: ");
                assert_non_null(strstr(with_key(r->from, "true", NULL), r->text));
                assert_string_equal(with_key(r->from, "false", NULL), "inert: ");
            } else if (r->how == DIALECT_MOVE || (r->how == DIALECT_WORDS && strstr(r->text, "auto=") == NULL)) {
                const char *word;
                if (strcmp(r->from, "train_micro_batch_size_per_gpu") != 0) { /* which the job must say then */
                    char key[96];
                    (void)snprintf(key, sizeof key, "|%s|", r->from);
                    bool has_auto = at->autos == NULL || strstr(at->autos, key) != NULL;
                    const char *said = with_key(r->from, "\"auto\"", NULL);
                    if (has_auto ? strcmp(said, "inert: ") != 0 : strstr(said, "\"auto\" means nothing here") == NULL) {
                        fail_msg("%s: auto: %s", r->from, said);
                    }
                }
                if (r->to != NULL && (r->how == DIALECT_MOVE || word_of(r->text, &word) > 0)) {
                    check_owners(r);
                }
            }
        }
    }
    at = NULL;
}

/* Two foreign keys may own one value as well. */
static void test_two_foreign_owners(void **state)
{
    (void)state;
    refused(
        "\"bf16\": {\"enabled\": true}, \"mixed_precision\": {\"param_dtype\": \"fp32\"}", NULL, 1,
        "job.json:2:11: bf16.enabled: is true, but mixed_precision.param_dtype is \"fp32\" (job.json:2:49); say it in "
        "one place\n");
    refused(
        "\"gradient_clipping\": 1, \"deepspeed\": {\"gradient_clipping\": 2, \"train_batch_size\": 8}", NULL, 1,
        "job.json:2:40: deepspeed.gradient_clipping: is 2, but gradient_clipping is 1 (job.json:2:2); say it in one "
        "place\n");
    refused("\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_max_lr\": 2e-3}}",
            "training.learning_rate=1e-3", 1,
            "job.json:2:47: scheduler.params.warmup_max_lr: is 0.002, but training.learning_rate is 0.001 (--set "
            "training.learning_rate=1e-3); say it in one place\n");
    refused("\"optimizer\": {\"params\": {\"betas\": [0.9, 0.99]}}", "training.adam_beta2=0.9", 1,
            "job.json:2:27: optimizer.params.betas: is [0.9, 0.99], but training.adam_beta2 is 0.9 (--set "
            "training.adam_beta2=0.9); say it in one place\n");
}

/* ---- single keys ---- */

static void test_optimizers(void **state)
{
    (void)state;
    struct job job;
    opened(&job, "\"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": 0.1, \"momentum\": 0.9, \"nesterov\": true}}",
           NULL, 1);
    assert_string_equal(job.optimizer.name, "sgd");
    assert_true(job.training.learning_rate == 0.1 && job.optimizer.numbers.momentum == 0.9);
    assert_true(job.optimizer.numbers.nesterov);
    job_close(&job);
    opened(&job, "\"optimizer\": {\"type\": \"Adam\", \"params\": {\"adam_w_mode\": true}}", NULL, 1);
    assert_string_equal(job.optimizer.name, "adamw");
    job_close(&job);
    opened(&job, "\"optimizer\": {\"type\": \"Adam\", \"params\": {\"adam_w_mode\": false, \"betas\": [0.8, 0.97]}}",
           NULL, 1);
    assert_string_equal(job.optimizer.name, "adam");
    assert_true(job.optimizer.numbers.beta1 == 0.8 && job.optimizer.numbers.beta2 == 0.97);
    job_close(&job);
    opened(&job, "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"adam_w_mode\": false}}", NULL, 1);
    assert_string_equal(job.optimizer.name, "adamw"); /* as there, where only Adam has two modes */
    job_close(&job);
    opened(&job, "\"optimizer\": {\"type\": \"Lion\", \"params\": {\"betas\": [0.8, 0.97]}}", NULL, 1);
    assert_string_equal(job.optimizer.name, "lion");
    assert_true(job.optimizer.numbers.beta1 == 0.8 && job.optimizer.numbers.beta2 == 0.97);
    job_close(&job);
    opened(&job, "\"optimizer\": {\"type\": \"lion\"}", NULL, 1); /* DeepSpeed's betas, not the paper's */
    assert_true(job.optimizer.numbers.beta1 == 0.9 && job.optimizer.numbers.beta2 == 0.999);
    job_close(&job);
    opened(&job, "\"optimizer\": {\"type\": \"Lion\"}", "optimizer.beta2=0.98", 1);
    assert_true(job.optimizer.numbers.beta2 == 0.98);
    job_close(&job);
    opened(&job, "\"optimizer\": {\"name\": \"sgd\"}", NULL, 1); /* our section, whose rate is not DeepSpeed's */
    assert_true(job.training.learning_rate == 5e-5);
    job_close(&job);
    opened(&job, "\"optimizer\": {\"params\": {\"eps\": 1e-7}}", NULL, 1);
    assert_true(job.training.learning_rate == 1e-3);
    job_close(&job);
    opened(&job,
           "\"optimizer\": {\"type\": \"Lamb\", \"params\": {\"betas\": [0.8, 0.99], \"eps\": 1e-7, \"max_coeff\": 5, "
           "\"min_coeff\": 0.1}}",
           NULL, 1);
    assert_string_equal(job.optimizer.name, "lamb");
    assert_true(job.optimizer.numbers.beta1 == 0.8 && job.optimizer.numbers.beta2 == 0.99 &&
                job.optimizer.numbers.eps == 1e-7 && job.optimizer.numbers.max_coeff == 5 &&
                job.optimizer.numbers.min_coeff == 0.1);
    job_close(&job);
    opened(&job, "\"optimizer\": {\"type\": \"Adagrad\", \"params\": {\"eps\": 1e-7}}", NULL, 1);
    assert_true(strcmp(job.optimizer.name, "adagrad") == 0 && job.optimizer.numbers.eps == 1e-7);
    assert_true(job.training.learning_rate == 0.01); /* torch's and DeepSpeed's; the others have 0.001 */
    job_close(&job);
    opened(&job, "\"optimizer\": {\"type\": \"Muon\", \"params\": {\"lr\": 0.01, \"momentum\": 0.9, \"eps\": 1e-9}}",
           NULL, 1);
    assert_string_equal(job.optimizer.name, "muon");
    assert_true(job.training.learning_rate == 0.01 && job.optimizer.numbers.rest_lr == 0);
    assert_true(job.optimizer.numbers.momentum == 0.9 && job.optimizer.numbers.eps == 1e-7);
    assert_true(job.optimizer.rest.eps == 1e-9 && job.optimizer.rest.beta2 == 0.95);
    job_close(&job);
    opened(&job, "\"optimizer\": {\"type\": \"muon\", \"params\": {\"lr\": 0.01, \"muon_lr\": 0.02}}", NULL, 1);
    assert_true(job.training.learning_rate == 0.02 && job.optimizer.numbers.rest_lr == 0.01);
    job_close(&job);
    opened(&job, "\"optimizer\": {\"type\": \"Muon\", \"params\": {\"lr\": 1, \"muon_lr\": 0.02, \"adam_lr\": 1e-4}}",
           NULL, 1);
    assert_true(job.training.learning_rate == 0.02 && job.optimizer.numbers.rest_lr == 1e-4);
    job_close(&job);
    static const struct {
        const char *type, *params;
        double decay;
    } decays[] = {{"Adam", "\"torch_adam\": true", 0.01},
                  {"AdamW", "\"torch_adam\": true", 0.01},
                  {"AdamW", "\"torch_adam\": true, \"weight_decay\": 0", 0},
                  {"AdamW", "\"torch_adam\": false", 0},
                  {"Adam", "\"torch_adam\": true, \"adam_w_mode\": false", 0}};
    for (size_t i = 0; i < sizeof decays / sizeof decays[0]; i++) {
        char text[160];
        (void)snprintf(text, sizeof text, "\"optimizer\": {\"type\": \"%s\", \"params\": {%s}}", decays[i].type,
                       decays[i].params);
        opened(&job, text, NULL, 1);
        assert_true(job.training.weight_decay == decays[i].decay);
        job_close(&job);
    }
    opened(&job, "\"optimizer\": {\"type\": \"Muon\"}", NULL, 1); /* its defaults there */
    assert_true(job.training.learning_rate == 0.02 && job.optimizer.numbers.rest_lr == 3e-4);
    assert_true(job.optimizer.rest.eps == 1e-10);
    job_close(&job);
    opened(&job, "\"optimizer\": {\"type\": \"Adam\", \"params\": {\"amsgrad\": true, \"bias_correction\": false}}",
           NULL, 1);
    assert_true(job.optimizer.numbers.amsgrad && job.optimizer.numbers.uncorrected == 1);
    job_close(&job);
    opened(&job, "\"optimizer\": {\"type\": \"Lamb\", \"params\": {\"amsgrad\": false, \"bias_correction\": false}}",
           NULL, 1);
    assert_true(job.optimizer.numbers.uncorrected == 1);
    job_close(&job);
    refused("\"optimizer\": {\"type\": \"SGD\", \"name\": \"lion\"}", NULL, 1,
            "job.json:2:16: optimizer.type: is \"SGD\", but optimizer.name is \"lion\" (job.json:2:31); say it in one "
            "place\n");
}

static void test_auto_and_defaults(void **state)
{
    (void)state;
    struct job job;
    opened(&job, "\"optimizer\": {\"type\": \"Adam\"}, \"scheduler\": {\"type\": \"WarmupLR\"}", NULL, 1);
    assert_true(job.training.learning_rate == 1e-3 && job.training.warmup_steps == 1000);
    assert_string_equal(job.training.lr_scheduler_type, "warmuplr");
    job_close(&job);
    opened(
        &job,
        "\"training\": {\"learning_rate\": 2, \"warmup_ratio\": 0.5}, \"optimizer\": {\"params\": {\"lr\": \"auto\"}},"
        "\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\"warmup_max_lr\": \"auto\", \"warmup_num_steps\": "
        "\"auto\", \"warmup_type\": \"linear\", \"total_num_steps\": \"auto\"}}, \"gradient_clipping\": \"auto\"",
        NULL, 1);
    assert_true(job.training.learning_rate == 2 && job.training.warmup_ratio == 0.5 && job.training.warmup_steps == -1);
    assert_string_equal(job.training.lr_scheduler_type, "warmupdecaylr_linear");
    assert_true(job.training.max_grad_norm == 1 && job.training.max_steps == -1);
    job_close(&job);
    opened(&job, "\"deepspeed\": {\"steps_per_print\": 3, \"train_batch_size\": 4}", NULL, 1);
    assert_true(job.training.max_grad_norm == 0);
    job_close(&job);
    opened(&job,
           "\"deepspeed\": {\"steps_per_print\": 3}, \"training\": {\"max_grad_norm\": 2, \"batch_size_per_gpu\": 4}",
           NULL, 1);
    assert_true(job.training.max_grad_norm == 2);
    job_close(&job);
    opened(&job, "\"steps_per_print\": 3", NULL, 1); /* a key of theirs in our job */
    assert_true(job.training.max_grad_norm == 1);
    job_close(&job);
    refused("\"scheduler\": {\"type\": \"Cycle\"}", NULL, 1,
            "job.json:2:16: scheduler.type: Cycle: there are WarmupLR, WarmupDecayLR, WarmupCosineLR, LRRangeTest and "
            "OneCycle; "
            "write one of them, or remove the block and write training.lr_scheduler_type\n");
    refused("\"scheduler\": {\"type\": \"OneCycle\"}", NULL, 1,
            "job.json: scheduler.cycle_min_lr: is missing, which onecycle, DeepSpeed's, needs; give it, or write "
            "one_cycle for PyTorch's\n");
    refused("\"scheduler\": {\"type\": \"LRRangeTest\", \"params\": {\"cycle_min_lr\": 0.1}}", NULL, 1,
            "job.json:2:50: scheduler.params.cycle_min_lr: belongs to onecycle, and training.lr_scheduler_type is "
            "lrrangetest (job.json:2:16); remove it\n");
    refused("\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"cos_min_ratio\": 0.1}}", NULL, 1,
            "job.json:2:47: scheduler.params.cos_min_ratio: belongs to WarmupCosineLR; remove it\n");
    opened(&job, "\"scheduler\": {\"type\": \"WarmupCosineLR\", \"params\": {\"warmup_min_ratio\": 0.1}}", NULL, 1);
    assert_true(job.training.scheduler.warmup_min_ratio == 0.1);
    job_close(&job);
    opened(&job,
           "\"optimizer\": {\"params\": {\"lr\": 1}}, \"scheduler\": {\"type\": \"OneCycle\", \"params\": "
           "{\"cycle_min_lr\": 0.001, \"cycle_max_lr\": 0.002, \"cycle_second_step_size\": 7, "
           "\"last_batch_iteration\": -1}}",
           NULL, 1);
    assert_string_equal(job.training.lr_scheduler_type, "onecycle");
    assert_true(job.training.learning_rate == 1 && job.training.scheduler.cycle_max_lr == 0.002);
    assert_int_equal(job.training.scheduler.cycle_second_step_size, 7);
    assert_int_equal(job.training.warmup_steps, -1);
    job_close(&job);
    refused(
        "\"training\": {\"num_epochs\": 2}, \"scheduler\": {\"params\": {\"total_num_steps\": 9, "
        "\"warmup_num_steps\": 1}}",
        NULL, 1,
        "job.json:2:58: scheduler.params.total_num_steps: the schedule ends with the run, which training.num_epochs "
        "(job.json:2:15) says; write \"auto\"\n");
    refused(
        "\"optimizer\": {\"type\": \"OneBitAdam\"}", NULL, 1,
        "job.json:2:16: optimizer.type: is \"OneBitAdam\": 1-bit optimizers are beyond scope; write Adam or Lamb, and "
        "communication_data_type bf16\n");
    refused("\"zero_optimization\": {\"stage\": 4}", NULL, 1,
            "job.json:2:24: zero_optimization.stage: is 4; give one of: 0, 1, 2, 3\n");
    refused("\"optimizer\": {\"params\": {\"betas\": [0.9]}}", NULL, 1,
            "job.json:2:27: optimizer.params.betas: is [0.9]; give two numbers, such as [0.9, 0.999]\n");
}

/* The rate is the optimizer's; what is left at the end has DeepSpeed's default, unless one of the two says it. */
static void test_cosine(void **state)
{
    (void)state;
    static const struct {
        const char *keys, *type;
        double least;
    } cases[] = {
        {"\"scheduler\": {\"type\": \"WarmupCosineLR\"}", "warmupcosinelr", 0.0001},
        {"\"scheduler\": {\"type\": \"WarmupCosineLR\", \"params\": {\"cos_min_ratio\": 0.25, \"warmup_type\": "
         "\"linear\"}}",
         "warmupcosinelr_linear", 0.25},
        {"\"scheduler\": {\"type\": \"WarmupCosineLR\"}, \"training\": {\"min_lr_ratio\": 0.5}", "warmupcosinelr", 0.5},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct job job;
        char more[256];
        (void)snprintf(more, sizeof more, "%s, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.002}}",
                       cases[i].keys);
        opened(&job, more, NULL, 1);
        assert_string_equal(job.training.lr_scheduler_type, cases[i].type);
        assert_true(job.training.min_lr_ratio == cases[i].least);
        assert_true(job.training.learning_rate == 0.002 && job.training.warmup_steps == 1000);
        job_close(&job);
    }
}

/* The rate of a scheduler that sets one counts, whatever the optimizer's is. */
static void test_rate_of_scheduler(void **state)
{
    (void)state;
    static const struct {
        const char *scheduler, *inert;
        double rate;
    } cases[] = {
        {"\"type\": \"WarmupLR\", \"params\": {\"warmup_max_lr\": 0.002}",
         "optimizer.params.lr (the scheduler sets warmup_max_lr)", 0.002},
        {"\"type\": \"WarmupLR\", \"params\": {\"warmup_max_lr\": 0.01}", NULL, 0.01},
        {"\"type\": \"WarmupLR\", \"params\": {\"warmup_max_lr\": \"auto\"}", NULL, 0.01},
        {"\"type\": \"WarmupLR\"", NULL, 0.01},
        {"\"type\": \"WarmupDecayLR\", \"params\": {\"warmup_max_lr\": 0.002}",
         "optimizer.params.lr (the scheduler sets warmup_max_lr)", 0.002},
        {"\"type\": \"WarmupDecayLR\"",
         "optimizer.params.lr (WarmupDecayLR sets its warmup_max_lr, 0.001 where that is not given)", 0.001},
        {"\"type\": \"WarmupCosineLR\"", NULL, 0.01},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct job job;
        char more[256];
        (void)snprintf(more, sizeof more, "\"scheduler\": {%s}, \"optimizer\": {\"params\": {\"lr\": 0.01}}",
                       cases[i].scheduler);
        opened(&job, more, NULL, 1);
        assert_true(job.training.learning_rate == cases[i].rate);
        assert_string_equal(job.inert_keys != NULL ? job.inert_keys : "", cases[i].inert != NULL ? cases[i].inert : "");
        job_close(&job);
    }
    refused("\"scheduler\": {\"type\": \"WarmupCosineLR\", \"params\": {\"warmup_max_lr\": 0.1}}", NULL, 1,
            "job.json:2:53: scheduler.params.warmup_max_lr: belongs to WarmupLR and WarmupDecayLR; remove it\n");
}

/* "auto" is said where the trainer has a value, and nowhere else. A file without a batch has none. */
static void test_auto_and_batch(void **state)
{
    (void)state;
    struct job job;
    refused(
        "\"scheduler\": {\"type\": \"WarmupCosineLR\", \"params\": {\"cos_min_ratio\": \"auto\"}}, "
        "\"zero_optimization\": {\"overlap_comm\": \"auto\", \"offload_param\": {\"buffer_size\": \"auto\"}}",
        NULL, 1,
        "job.json:2:53: scheduler.params.cos_min_ratio: \"auto\" means nothing here; give a value, or remove it\n"
        "job.json:2:102: zero_optimization.overlap_comm: \"auto\" means nothing here; give a value, or remove it\n"
        "job.json:2:144: zero_optimization.offload_param.buffer_size: \"auto\" means nothing here; give a value, or "
        "remove it\n");
    write_file(ds_path, "{\"zero_optimization\": {\"stage\": 1}, \"gradient_accumulation_steps\": 2}");
    char named[160], beside[200];
    (void)snprintf(named, sizeof named, "\"deepspeed\": \"%s\"", ds_path);
    refused(named, NULL, 1,
            "job.json:2:2: deepspeed: says no batch, and DeepSpeed has no default; add train_batch_size or "
            "train_micro_batch_size_per_gpu, or training.batch_size_per_gpu to the job\n");
    (void)snprintf(beside, sizeof beside, "\"training\": {\"train_batch_tokens\": 65536}, %s", named);
    opened(&job, beside, NULL, 1);
    assert_int_equal(job.training.batch_size_per_gpu, 32); /* of 1024 tokens, in 2 micro-steps */
    job_close(&job);
}

static void test_csv_monitor(void **state)
{
    (void)state;
    struct job job;
    opened(&job, "\"csv_monitor\": {\"enabled\": true, \"output_path\": \"x\", \"job_name\": \"y\"}", NULL, 1);
    assert_true(job.logging.csv);
    assert_null(job.logging.csv_path);
    assert_non_null(strstr(job.inert_keys, "csv_monitor.output_path, csv_monitor.job_name"));
    job_close(&job);
    opened(&job, "\"csv_monitor\": {\"enabled\": false}", NULL, 1);
    assert_false(job.logging.csv);
    job_close(&job);
}

#define TOTAL "\"train_batch_size\": "
#define MICRO "\"train_micro_batch_size_per_gpu\": "
#define STEPS "\"gradient_accumulation_steps\": "

/* train_batch_size = micro-batch * micro-steps * ranks. */
static void test_batch(void **state)
{
    (void)state;
    static const struct {
        const char *keys;
        int world, micro, steps;
    } cases[] = {
        {TOTAL "48, " MICRO "3, " STEPS "4", 4, 3, 4},
        {TOTAL "48, " MICRO "3", 4, 3, 4},
        {TOTAL "48, " STEPS "4", 4, 3, 4},
        {TOTAL "48", 4, 12, 1},
        {TOTAL "48, " MICRO "\"auto\"", 2, 24, 1},
        {TOTAL "\"auto\", " MICRO "3", 4, 3, 1},
        {MICRO "3, " STEPS "4", 4, 3, 4},
        {STEPS "4", 4, 8, 4},
        {TOTAL "48, \"training\": {\"batch_size_per_gpu\": 6}", 4, 6, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct job job;
        opened(&job, cases[i].keys, NULL, cases[i].world);
        assert_int_equal(job.training.batch_size_per_gpu, cases[i].micro);
        assert_int_equal(job.training.gradient_accumulation_steps, cases[i].steps);
        job_close(&job);
    }
    refused(TOTAL "10", NULL, 4,
            "job.json:2:2: train_batch_size: 10 != 2 * 1 * 4: training.batch_size_per_gpu 2 (derived), "
            "training.gradient_accumulation_steps 1 (derived), 4 ranks; write 8 or 12, or remove one of them\n");
    refused(TOTAL "10, " MICRO "2, " STEPS "3", NULL, 1,
            "job.json:2:2: train_batch_size: 10 != 2 * 3 * 1: train_micro_batch_size_per_gpu 2 (job.json:2:26), "
            "gradient_accumulation_steps 3 (job.json:2:63), 1 rank; write 6, or remove one of them\n");
    refused(TOTAL "3", NULL, 4,
            "job.json:2:2: train_batch_size: 3 is less than 4: 4 ranks; write 4, or start 3 ranks\n");
    refused(TOTAL "3, " MICRO "\"auto\"", NULL, 4,
            "job.json:2:2: train_batch_size: 3 is less than 4: 4 ranks; write 4, or start 3 ranks\n");
    refused(TOTAL "0", NULL, 1, "job.json:2:2: train_batch_size: is 0; give a whole number of at least 1\n");
    refused(TOTAL "70000", NULL, 1, "job.json:2:22: train_batch_size: is 70000; give a whole number from 1 to 65536\n");
    refused(TOTAL "8, " MICRO "1.5", NULL, 1,
            "job.json:2:59: train_micro_batch_size_per_gpu: is 1.5; give a whole number from 1 to 65536\n");
}

/* ---- documentation ---- */

/* The part of a page between two lines is the table of the rules; DT_UPDATE=1 writes it anew. */
static void check_table(const struct dialect *d, const char *path)
{
    const char *end = "<!-- end -->\n";
    char begin[80];
    struct dt_text table, file, now;
    struct dt_error err = {0};
    (void)snprintf(begin, sizeof begin, "<!-- %s's keys -->\n", d->name);
    dt_text_init(&table);
    dt_text_init(&file);
    dt_text_init(&now);
    if (!dt_file_exists(path)) {
        fail_msg("%s is missing: run this from the top folder", path);
    }
    assert_int_equal(dt_file_read(path, 1 << 20, &file, &err), 0);
    dialect_table(d, &table);
    const char *from = strstr(file.data, begin), *to = from != NULL ? strstr(from, end) : NULL;
    if (to == NULL) {
        fail_msg("%s: no place for %s", path, begin);
    }
    dt_text_printf(&now, "%.*s%s%s", (int)(from + strlen(begin) - file.data), file.data, table.data, to);
    if (getenv("DT_UPDATE") != NULL) {
        write_file(path, now.data);
    } else {
        assert_string_equal(file.data, now.data);
    }
    dt_text_clear(&table);
    dt_text_clear(&file);
    dt_text_clear(&now);
}

#define PAGE "docs/dialects.md"

static void test_docs(void **state)
{
    (void)state;
    for (const struct dialect *const *d = dialects; *d != NULL; d++) {
        check_table(*d, PAGE);
    }
}

/* Every key of DeepSpeed's documents has an outcome and explains itself, and the page says how many have which. */
static void test_documented_keys(void **state)
{
    (void)state;
    struct dt_text list, page, said, now;
    struct dt_error err = {0};
    int counts[OUTCOME_REFUSED + 1] = {0}, all = 0;
    dt_text_init(&list);
    dt_text_init(&page);
    dt_text_init(&said);
    dt_text_init(&now);
    assert_int_equal(dt_file_read("tests/golden/dialects/deepspeed_keys.txt", 1 << 20, &list, &err), 0);
    assert_int_equal(dt_file_read(PAGE, 1 << 20, &page, &err), 0);
    char *rest = list.data;
    for (char *key; (key = strsep(&rest, "\n")) != NULL;) {
        if (*key == '#' || *key == 0) {
            continue;
        }
        const struct dialect_rule *r = dialect_rule_of(&dialect_deepspeed, key);
        if (r == NULL) {
            fail_msg("%s has no outcome", key);
        }
        bool inside = strcmp(r->from, key) != 0; /* of a block that is one rule */
        if (inside && r->how != DIALECT_INERT && r->how != DIALECT_REFUSE && r->how != DIALECT_FUNCTION) {
            fail_msg("%s stands below %s, which is no block", key, r->from);
        }
        if (!dialects_explain(key, &now)) {
            fail_msg("%s", now.data);
        }
        counts[dialect_outcome(r)]++;
        all++;
    }
    dt_text_clear(&now);
    dt_text_printf(&said, "Of DeepSpeed's %d documented keys %d are done, %d have no effect, %d are refused.", all,
                   counts[OUTCOME_DONE], counts[OUTCOME_NO_EFFECT], counts[OUTCOME_REFUSED]);
    const char *from = strstr(page.data, "Of DeepSpeed's ");
    assert_non_null(from);
    size_t size = strcspn(from, ".") + 1;
    if (getenv("DT_UPDATE") != NULL) {
        dt_text_printf(&now, "%.*s%s%s", (int)(from - page.data), page.data, said.data, from + size);
        write_file(PAGE, now.data);
    } else if (strlen(said.data) != size || strncmp(from, said.data, size) != 0) {
        fail_msg("%s says %.*s, and there are: %s", PAGE, (int)size, from, said.data);
    }
    dt_text_clear(&list);
    dt_text_clear(&page);
    dt_text_clear(&said);
    dt_text_clear(&now);
}

static int set_up(void **state)
{
    int rc = folder_setup(state);
    (void)snprintf(job_path, sizeof job_path, "%s/job.json", folder);
    (void)snprintf(ds_path, sizeof ds_path, "%s/ds.json", folder);
    return rc;
}

#define ELASTIC(more)                                                                                                  \
    "\"elasticity\": {\"enabled\": true, \"max_train_batch_size\": 24, \"micro_batch_sizes\": [2, 3], \"version\": "   \
    "0.1" more "}"

static void test_elasticity(void **state)
{
    (void)state;
    struct job job;
    static const int64_t splits[][3] = {{1, 3, 8}, {2, 3, 4}, {3, 2, 4}, {4, 3, 2}, {12, 2, 1}};
    for (size_t i = 0; i < sizeof splits / sizeof splits[0]; i++) {
        opened(&job, ELASTIC(""), NULL, (int)splits[i][0]);
        assert_int_equal(job.training.batch_size_per_gpu, splits[i][1]);
        assert_int_equal(job.training.gradient_accumulation_steps, splits[i][2]);
        job_close(&job);
    }
    refused(
        ELASTIC(""), NULL, 5,
        "job.json:2:2: elasticity: a batch of 24 samples does not run on 5 ranks; valid numbers of ranks: 1, 2, 3, 4, "
        "6, 8, 12\n");
    refused(ELASTIC("") ", \"train_batch_size\": 8", NULL, 1,
            "job.json:2:108: train_batch_size: elasticity (job.json:2:2) chooses the batch; remove it, or set "
            "elasticity.ignore_non_elastic_batch_info\n");
    opened(&job, ELASTIC(", \"ignore_non_elastic_batch_info\": true") ", \"train_batch_size\": 8", NULL, 2);
    assert_int_equal(job.training.batch_size_per_gpu, 3);
    job_close(&job);
    refused("\"elasticity\": {\"enabled\": true, \"micro_batch_sizes\": [2]}", NULL, 1,
            "job.json:2:2: elasticity: max_train_batch_size or micro_batch_sizes is missing; give both\n");
    refused(ELASTIC(", \"min_gpu\": 2"), NULL, 1,
            "job.json:2:2: elasticity: elasticity:1:97: elasticity.min_gpu: unknown key; did you mean min_gpus?\n");
    opened(&job, "\"elasticity\": {\"enabled\": false}, \"train_batch_size\": 8", NULL, 1);
    job_close(&job);
    assert_int_equal(
        setenv("DEEPSPEED_ELASTICITY_CONFIG",
               "{\"enabled\": true, \"max_train_batch_size\": 48, \"micro_batch_sizes\": [2, 3], \"version\": 0.1}", 1),
        0);
    refused(
        ELASTIC(""), NULL, 1,
        "job.json:2:2: elasticity: the scheduler's DEEPSPEED_ELASTICITY_CONFIG has another max_train_batch_size; start "
        "the job with the block it was queued with\n");
    assert_int_equal(unsetenv("DEEPSPEED_ELASTICITY_CONFIG"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_elasticity),
        cmocka_unit_test(test_same_job),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_rules),
        cmocka_unit_test(test_two_foreign_owners),
        cmocka_unit_test(test_optimizers),
        cmocka_unit_test(test_auto_and_defaults),
        cmocka_unit_test(test_cosine),
        cmocka_unit_test(test_csv_monitor),
        cmocka_unit_test(test_rate_of_scheduler),
        cmocka_unit_test(test_auto_and_batch),
        cmocka_unit_test(test_batch),
        /* with DT_UPDATE=1 it writes the table anew */
        cmocka_unit_test(test_docs),
        cmocka_unit_test(test_documented_keys),
    };
    return cmocka_run_group_tests(tests, set_up, folder_teardown);
}
