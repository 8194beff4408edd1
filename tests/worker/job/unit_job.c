/* covers: worker/job */
/* The job file: defaults, checks that span keys, exact messages, the saved text, sources,
 * schema, what may differ from a saved one. */
#include "base/file.h"
#include "tests/lib/folder.h"
#include "worker/job/job.h"
#include "worker/model/model.h"
#include "worker/model/models/gpt2.h"
#include "worker/job/job_fields.h"
#include "worker/engine/strategy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

static const struct gpt2 *model_of(const struct job *job)
{
    return (const struct gpt2 *)(const void *)job->model.sizes.bytes;
}

static char job_path[sizeof folder + 16];

static void write_file(const char *path, const char *text)
{
    struct dt_error err = {0};
    if (dt_file_write(path, text, strlen(text), &err) != 0) {
        fail_msg("%s", err.text);
    }
}

/* Opens `text` as job.json; problems with the folder's name cut off. */
static int open_text(struct job *job, const char *text, const char *const *set, int set_count, char *problems,
                     size_t size)
{
    struct dt_error err = {0};
    struct dt_text all;
    dt_text_init(&all);
    write_file(job_path, text);
    struct job_arguments args = {.path = job_path, .set = set, .set_count = set_count};
    int result = job_open(job, &args, &all, &err);
    char *out = problems;
    for (const char *p = dt_text_str(&all); *p != 0 && out + 1 < problems + size;) {
        if (strncmp(p, folder, strlen(folder)) == 0) {
            p += strlen(folder) + 1;
        } else {
            *out++ = *p++;
        }
    }
    *out = 0;
    dt_text_clear(&all);
    return result;
}

/* message: what is said, or its beginning, with "..." behind it. */
static void refused(const char *text, const char *set, const char *message)
{
    size_t size = strlen(message);
    bool open_end = size > 3 && strcmp(message + size - 3, "...") == 0;
    struct job job;
    char problems[4096];
    assert_int_equal(open_text(&job, text, &set, set != NULL, problems, sizeof problems), -1);
    if (open_end) {
        assert_memory_equal(problems, message, size - 3);
    } else {
        assert_string_equal(problems, message);
    }
}

/* The same, where the text names the models that there are. */
static void refused_with_models(const char *text, const char *before, const char *after)
{
    struct dt_text problem;
    dt_text_init(&problem);
    dt_text_puts(&problem, before);
    model_list(&problem);
    dt_text_puts(&problem, after);
    refused(text, NULL, dt_text_str(&problem));
    dt_text_clear(&problem);
}

static void opened(struct job *job, const char *text, const char *set)
{
    char problems[4096];
    if (open_text(job, text, &set, set != NULL, problems, sizeof problems) != 0) {
        fail_msg("%s", problems);
    }
}

#define SMALL "{\"model\": {\"name\": \"gpt2\"}, \"data\": {\"train\": \"x\"}}"
/* A job with something more in the training section, or one more section. */
#define TRAINING(more) "{\"model\": {\"name\": \"gpt2\"}, \"data\": {\"train\": \"x\"},\n \"training\": {" more "}}"
#define SECTION(more) "{\"model\": {\"name\": \"gpt2\"}, \"data\": {\"train\": \"x\"},\n " more "}"

static void test_defaults(void **state)
{
    (void)state;
    struct job job;
    opened(&job, SMALL, NULL);
    assert_string_equal(job.name, "job");
    assert_string_equal(job.output_dir, "runs/job");
    assert_string_equal(job.checkpointing.checkpoint_dir, "runs/job/checkpoints");
    assert_string_equal(job.model.name, "gpt2");
    assert_int_equal(model_of(&job)->n_layer, 12);
    assert_int_equal(model_of(&job)->vocab_size, 50257);
    assert_int_equal(model_of(&job)->n_inner, 0);
    assert_int_equal(job.data.sequence_length, 1024);
    assert_true(job.data.shuffle);
    assert_int_equal(job.data.val.count, 0);
    assert_string_equal(job.training.strategy, "auto");
    assert_string_equal(job.training.lr_scheduler_type, "linear");
    assert_int_equal(job.training.max_steps, -1);
    assert_true(job.training.num_epochs == 3);
    assert_int_equal(job.training.seed, 42);
    assert_true(job.optimizer.numbers.beta2 == 0.999);
    assert_true(job.training.collective_timeout_s == 600);
    assert_int_equal(job.fsdp.backward_prefetch, PREFETCH_PRE);
    assert_int_equal(job.training.loss_normalization, LOSS_LOCAL_MEAN);
    assert_int_equal(job.checkpointing.keep_last_n, 3);
    assert_string_equal(job.checkpointing.resume, "auto");
    job_close(&job);
}

static void test_set(void **state)
{
    (void)state;
    struct job job;
    opened(&job, TRAINING("\"max_steps\": 10"), "training.max_steps=20");
    assert_int_equal(job.training.max_steps, 20);
    assert_true(job.training.num_epochs == 0);
    job_close(&job);
    opened(&job, SMALL, "data.val=shards/val-*.bin");
    assert_string_equal(job.data.val.of[0].from.words, "shards/val-*.bin");
    job_close(&job);
    refused(SMALL, "training.sede=1", "--set training.sede=1: training.sede: unknown key; did you mean seed?\n");
    refused(SMALL, "training", "--set training: not of the form key=value; write for example --set training.seed=7\n");
}

/* A job that only evaluates reads no data.train, and so needs none; what it has there stays as it is. */
static void test_evaluates(void **state)
{
    (void)state;
    struct job job;
    struct dt_error err;
    struct dt_text problems;
    const struct job_arguments args = {.path = job_path, .evaluates = true};
    dt_text_init(&problems);
    write_file(job_path, "{\"model\": {\"name\": \"gpt2\"}, \"data\": {\"val\": \"v\"}}");
    assert_int_equal(job_open(&job, &args, &problems, &err), 0);
    assert_true(job.evaluates);
    assert_string_equal(job.data.val.of[0].from.words, "v");
    job_close(&job);
    write_file(job_path, "{\"model\": {\"name\": \"gpt2\"}, \"data\": {\"train\": \"x\"}}");
    assert_int_equal(job_open(&job, &args, &problems, &err), 0);
    assert_string_equal(job.data.train.words, "x");
    job_close(&job);
    assert_int_equal(problems.size, 0);
    dt_text_clear(&problems);
}

static void test_bad_keys(void **state)
{
    (void)state;
    refused("{\n  \"model\": {\"name\": \"gpt2\"},\n  \"data\": {\"train\": \"x\"},\n  \"training\": {\n    "
            "\"warmup_step\": 3\n  }\n}",
            NULL, "job.json:5:5: training.warmup_step: unknown key; did you mean warmup_steps?\n");
    refused("{\"model\": {\"name\": \"gpt2\"}}", NULL,
            "job.json: data.train: missing; add it (path or glob of shards or texts to train on, or a list of "
            "them with weights)\n");
    refused_with_models("{\"data\": {\"train\": \"x\"}}", "job.json: model.name: missing; give model.name (",
                        ") or model.load (a Hugging Face folder)\n");
    refused("", NULL, "job.json:1:1: empty; expected a JSON value\n");
    refused("{\"model\": {\"name\": \"gpt\"}, \"data\": {\"train\": \"x\"}}", NULL,
            "job.json:1:20: model.name: is \"gpt\", which is not there yet; see train --list-models\n");
    refused("{\"model\": {\"name\": \"mixtral-8x7b\"}, \"data\": {\"train\": \"x\"}}", NULL,
            "job.json:1:20: model.name: is \"mixtral-8x7b\", which is not supported: it has a mixture of experts; the "
            "nearest model that works is mistral; see train --list-models\n");
    refused(TRAINING("\"device\": \"tpu\""), NULL,
            "job.json:2:25: training.device: is \"tpu\"; give one of: auto, cpu, cuda, gpu\n");
    refused(TRAINING("\"attention\": \"quick\""), NULL,
            "job.json:2:28: training.attention: is \"quick\"; give one of: auto, fast, ordered, own\n");
    refused(TRAINING("\"attention\": \"fast\", \"deterministic\": true"), NULL,
            "job.json:2:15: training.attention: fast adds up in no order, and training.deterministic (job.json:2:36) "
            "asks for the same bits each time; use auto, or set it to false\n");
    refused(TRAINING("\"batch_size_per_gpu\": 0"), NULL,
            "job.json:2:37: training.batch_size_per_gpu: is 0; give a whole number from 1 to 65536\n");
    refused(TRAINING("\"seed\": \"x\", \"learning_rate\": -1, \"adam_beta1\": 1"), NULL,
            "job.json:2:23: training.seed: is \"x\"; give a whole number from 0 to 9007199254740992\n"
            "job.json:2:45: training.learning_rate: is -1; give a number from 0 to 1e+30\n"
            "job.json:2:63: training.adam_beta1: is 1; give a number from 0 and below 1\n");
    refused(SECTION("\"export\": {\"max_shard_size\": \"5G\", \"dtype\": \"int8\"}"), NULL,
            "job.json:2:46: export.dtype: is \"int8\"; give one of: float32, bfloat16, float16, fp32, bf16, fp16\n");
    refused(SECTION("\"export\": {\"max_shard_size\": \"5G\"}"), NULL,
            "job.json:2:13: export.max_shard_size: is \"5G\"; give a size as 5GB or 200MB, or a number of bytes\n");
    refused(SECTION("\"deepspeed\": \"ds.json\""), NULL,
            "job.json:2:2: deepspeed: ds.json: No such file or directory\n");
    refused(SECTION("\"zero_optimization\": {\"stage\": 2, \"zero_quantized_weights\": true}"), NULL,
            "job.json:2:36: zero_optimization.zero_quantized_weights: beyond scope; remove it\n");
    struct job job;
    opened(&job, SECTION("\"logging\": {\"use_tensorboard\": false}, \"fp16\": {\"enabled\": false}"), NULL);
    job_close(&job);
}

/* What is far beyond its range is refused, whatever the key: no later sum or cast meets it. */
static void test_far_out(void **state)
{
    (void)state;
    refused(TRAINING("\"num_epochs\": 1e10"), NULL,
            "job.json:2:29: training.num_epochs: is 10000000000; give a number from 0 to 1000000\n");
    refused(SECTION("\"checkpointing\": {\"keep_last_n\": 4294967297}"), NULL,
            "job.json:2:35: checkpointing.keep_last_n: is 4294967297; give a whole number from 0 to 1000000\n");
    for (int i = 0; i < JOB_SECTION_COUNT; i++) {
        assert_non_null(job_sections[i].name); /* else whoever walks the sections ends there */
    }
    for (const struct job_section *s = job_sections; s->name != NULL; s++) {
        for (const struct dt_field *f = s->fields; f->key != NULL; f++) {
            if (f->rule->type != DT_RULE_INTEGER && f->rule->type != DT_RULE_NUMBER) {
                continue;
            }
            char text[256], path[128], problems[4096];
            struct job job;
            (void)snprintf(path, sizeof path, "%s.%s", s->name, f->key);
            (void)snprintf(text, sizeof text, "%s=1e300", path);
            const char *set = text;
            if (open_text(&job, SMALL, &set, 1, problems, sizeof problems) == 0 || strstr(problems, path) == NULL) {
                fail_msg("%s is taken: %s", text, problems);
            }
        }
    }
}

static void test_spans(void **state)
{
    (void)state;
    refused("{\"model\": {\"name\": \"gpt2\", \"n_embd\": 100, \"n_head\": 12}, \"data\": {\"train\": \"x\"}}", NULL,
            "job.json:1:43: model.n_head: n_embd 100 cannot be split among n_head 12 heads; choose a multiple\n");
    refused(
        "{\"model\": {\"name\": \"gpt2\", \"n_positions\": 64}, \"data\": {\"train\": \"x\", \"sequence_length\": 65}}",
        NULL,
        "job.json:1:71: data.sequence_length: 65 is longer than model.n_positions 64 (job.json:1:28); lower it\n");
    refused(TRAINING("\"max_steps\": 0"), NULL,
            "job.json:2:15: training.max_steps: is 0; give a number of steps, or -1 and training.num_epochs\n");
    refused(TRAINING("\"num_epochs\": 0, \"max_steps\": -1"), NULL,
            "job.json:2:15: training.num_epochs: is 0, and training.max_steps gives no number of steps; give one of "
            "them\n");
    refused(SECTION("\"training\": {\"strategy\": \"ddp\", \"loss_normalization\": \"global_tokens\"}, "
                    "\"ddp\": {\"comm_hook\": \"power_sgd\"}"),
            NULL,
            "job.json: power_sgd.use_error_feedback: errors of one number of targets would be added to gradients of "
            "another; write local_mean as training.loss_normalization, or set it to false\n");
    refused(TRAINING("\"warmup_ratio\": 0.1, \"warmup_steps\": 11"), NULL,
            "job.json:2:15: training.warmup_ratio: training.warmup_steps says the same (job.json:2:36); remove one\n");
    refused(TRAINING("\"lr_scheduler_type\": \"constant\", \"warmup_steps\": 11"), NULL,
            "job.json:2:15: training.lr_scheduler_type: constant has no warm-up; write constant_with_warmup\n");
    refused(TRAINING("\"lr_power\": 2, \"decay_ratio\": 0.2"), NULL,
            "job.json:2:15: training.lr_power: belongs to polynomial, polynomial_lr, and training.lr_scheduler_type is "
            "linear "
            "(default); remove it\n"
            "job.json:2:30: training.decay_ratio: belongs to warmup_stable_decay, and training.lr_scheduler_type is "
            "linear (default); remove it\n");
    refused(SECTION("\"logging\": {\"csv_path\": \"x\"}"), NULL,
            "job.json:2:14: logging.csv_path: nothing is written there while logging.csv is false; set it to true\n");
    refused(TRAINING("\"eval_every_n_steps\": 5"), NULL,
            "job.json:2:15: training.eval_every_n_steps: there is nothing to evaluate on; give data.val\n");
    refused(SECTION("\"training\": {\"seed\": -1}, \"data2\": 1, \"logging\": {\"log_every_n_steps\": 0}"), NULL,
            "job.json:2:23: training.seed: is -1; give a whole number from 0 to 9007199254740992\n"
            "job.json:2:28: data2: unknown key; did you mean data?\n"
            "job.json:2:73: logging.log_every_n_steps: is 0; give a whole number from 1 to 1000000000000\n");
}

/* Keys of the batch and the length, together. */
static void test_batch(void **state)
{
    (void)state;
    struct job job;
    opened(&job, TRAINING("\"gradient_accumulation_steps\": {\"7\": 3, \"4\": 2}"), NULL);
    static const int64_t epochs[][2] = {{0, 1}, {3, 1}, {4, 2}, {6, 2}, {7, 3}, {1000, 3}};
    for (size_t i = 0; i < sizeof epochs / sizeof epochs[0]; i++) {
        assert_int_equal(job_accumulation(&job.training, epochs[i][0]), epochs[i][1]);
    }
    assert_int_equal(job.training.gradient_accumulation_steps, 3);
    assert_non_null(strstr(job.text, "\"accumulation_schedule\": [0, 1, 4, 2, 7, 3]"));
    job_close(&job);
#define AN_OBJECT                                                                                                      \
    "job.json:2:15: training.gradient_accumulation_steps: give a number, or an object of epochs and numbers such as "  \
    "{\"0\": 1, \"4\": 2}: epochs from 0, each once, numbers from 1 to 65536, at most 16 of them\n"
    static const char *const wrong[] = {"{}",         "{\"x\": 1}",   "{\"-1\": 1}",
                                        "{\"1\": 0}", "{\"1\": 1.5}", "{\"1\": 2, \"01\": 3}"};
    for (size_t i = 1; i < sizeof wrong / sizeof wrong[0]; i++) {
        char text[256];
        (void)snprintf(text, sizeof text, TRAINING("\"gradient_accumulation_steps\": %s"), wrong[i]);
        refused(text, NULL, AN_OBJECT);
    }
    opened(&job, TRAINING("\"gradient_accumulation_steps\": {}"), NULL); /* from epoch 0 on, 1 */
    assert_int_equal(job_accumulation(&job.training, 9), 1);
    job_close(&job);
    refused(TRAINING("\"gradient_accumulation_steps\": {\"4\": 2}, \"partial_accumulation\": \"carry\""), NULL,
            "job.json:2:56: training.partial_accumulation: carry takes a step over the end of an epoch, where "
            "training.accumulation_schedule may change it; write step or drop\n");
    refused(TRAINING("\"accumulation_schedule\": [0, 1, 4]"), NULL,
            "job.json:2:15: training.accumulation_schedule: give pairs of an epoch and its "
            "training.gradient_accumulation_steps, epochs in order from 0: [0, 1, 4, 2]\n");
    opened(&job, TRAINING("\"max_tokens\": 2049, \"train_batch_tokens\": 8192"), NULL);
    assert_int_equal(job.training.max_samples, 3);
    assert_int_equal(job.training.batch_size_per_gpu * job.training.gradient_accumulation_steps, 8);
    job_close(&job);
    refused(
        TRAINING("\"max_tokens\": 2049, \"max_steps\": 5"), NULL,
        "job.json:2:15: training.max_tokens: training.max_steps (job.json:2:35) says the length, too; remove one of "
        "them\n");
    opened(&job, SECTION("\"checkpointing\": {\"accept\": [\"seed\"], \"override\": [\"learning_rate\"]}"), NULL);
    assert_string_equal(job.checkpointing.accept, "training.seed,training.learning_rate");
    job_close(&job);
}

static void strategy_is(const char *text, const char *strategy)
{
    struct job job;
    opened(&job, text, NULL);
    assert_string_equal(job.training.strategy, strategy);
    job_close(&job);
}

static void test_strategy(void **state)
{
    (void)state;
    strategy_is(SECTION("\"zero_optimization\": {\"stage\": 3}"), "zero3");
    strategy_is(SECTION("\"training\": {\"strategy\": \"deepspeed\"}, \"zero_optimization\": {\"stage\": 1}"), "zero1");
    strategy_is(SECTION("\"training\": {\"strategy\": \"deepspeed_stage_2\"}, \"zero_optimization\": {\"stage\": 2}"),
                "zero2");
    strategy_is(SECTION("\"training\": {\"strategy\": \"fsdp\"}, \"fsdp\": {\"sharding_strategy\": "
                        "\"_HYBRID_SHARD_ZERO2\", \"device_mesh\": [2, 2]}"),
                "hybrid_shard_zero2");
    strategy_is(
        SECTION("\"training\": {\"strategy\": \"full_shard\"}, \"fsdp\": {\"sharding_strategy\": \"FULL_SHARD\"}"),
        "full_shard");
    strategy_is(SECTION("\"training\": {\"strategy\": \"DDP\"}"), "ddp");
    refused(TRAINING("\"max_steps\": 1"), "training.strategy=ZeRO-3",
            "--set training.strategy=ZeRO-3: training.strategy: is \"ZeRO-3\"; did you mean zero3? All of them: see "
            "train --list-strategies\n");
    refused(TRAINING("\"max_steps\": 1"), "training.strategy=nothing_alike",
            "--set training.strategy=nothing_alike: training.strategy: is \"nothing_alike\"; see train "
            "--list-strategies\n");
    refused(SECTION("\"training\": {\"strategy\": \"full_shard\"}, \"zero_optimization\": {\"stage\": 3}"), NULL,
            "job.json:2:64: zero_optimization.stage: is 3, but training.strategy is \"full_shard\" (job.json:2:15); "
            "say it in one place\n");
    refused(SECTION("\"training\": {\"strategy\": \"ddp\"}, \"fsdp\": {\"sharding_strategy\": \"FULL_SHARD\"}"), NULL,
            "job.json:2:44: fsdp.sharding_strategy: is \"FULL_SHARD\", but training.strategy is \"ddp\" "
            "(job.json:2:15); say it in one place\n");
    refused(SECTION("\"zero_optimization\": {\"stage\": 3}, \"fsdp\": {\"sharding_strategy\": \"FULL_SHARD\"}"), NULL,
            "job.json:2:24: zero_optimization.stage: is 3, but fsdp.sharding_strategy is \"FULL_SHARD\" "
            "(job.json:2:46); say it in one place\n");
    refused(SECTION("\"fsdp\": {\"sharding_strategy\": \"FULL_SHARD\", \"device_mesh\": [2, 2]}"), NULL,
            "job.json:2:46: fsdp.device_mesh: only hybrid_shard and hybrid_shard_zero2 have a mesh, the strategy is "
            "full_shard "
            "(job.json:2:11); remove it\n");
}

static void hooks_are(const char *text, const char *hook, const char *wrapper)
{
    struct job job;
    opened(&job, text, NULL);
    assert_true(hook == NULL ? job.ddp.comm_hook == NULL : strcmp(job.ddp.comm_hook, hook) == 0);
    assert_true(wrapper == NULL ? job.ddp.comm_wrapper == NULL : strcmp(job.ddp.comm_wrapper, wrapper) == 0);
    job_close(&job);
}

#define DDP(text) SECTION("\"ddp\": {" text "}")
static void test_hooks(void **state)
{
    (void)state;
    hooks_are(DDP("\"comm_hook\": \"fp16\""), "fp16_compress", NULL);
    hooks_are(DDP("\"comm_hook\": \"powerSGD_hook\", \"comm_wrapper\": \"bf16_compress_wrapper\""), "power_sgd",
              "bf16_compress");
    hooks_are(DDP("\"comm_hook\": \"no\", \"comm_wrapper\": \"none\", \"find_unused_parameters\": true"), NULL, NULL);
    refused(DDP("\"comm_hook\": \"bf16_compress\""), "training.strategy=zero2",
            "job.json:2:10: ddp.comm_hook: goes with ddp, zero0 and no_shard, and training.strategy is zero2; remove "
            "it, or write ddp\n");
    refused(DDP("\"comm_hook\": \"bf16_compress\""), "training.accumulate_sync=every_micro_step",
            "job.json:2:10: ddp.comm_hook: works once a step, and training.accumulate_sync is every_micro_step; remove "
            "that\n");
    refused(DDP("\"comm_hook\": \"bf16_compress\", \"comm_wrapper\": \"fp16\""), NULL,
            "job.json:2:40: ddp.comm_wrapper: fp16_compress around bf16_compress rounds twice; remove one\n");
    refused(DDP("\"comm_hook\": \"bf16_compress\""), "training.precision=64-true",
            "job.json:2:10: ddp.comm_hook: 16 bits on the wire of a run in fp64 are not there yet; write 32-true as "
            "training.precision, or remove it\n");
    refused(DDP("\"comm_hook\": \"power_sgd\""), "power_sgd.start_powerSGD_iter=1",
            "--set power_sgd.start_powerSGD_iter=1: power_sgd.start_powerSGD_iter: is 1: with use_error_feedback or "
            "warm_start the first gradients, which are the largest, must be sent whole; write 2 or more\n");
    refused(SECTION("\"offload\": {\"optimizer\": \"cpu\"}"), "training.strategy=local_sgd",
            "job.json:2:14: offload.optimizer: training.strategy local_sgd keeps everything whole on each rank; write "
            "zero1, zero2, zero3 or full_shard, or remove it\n");
    refused(DDP("\"ddp_comm_hook\": \"fp16\""), NULL,
            "job.json:2:10: ddp.ddp_comm_hook: Lightning's name; here it is ddp.comm_hook\n");
}

static void precision_is(const char *text, const char *set, const char *precision, enum dt_dtype compute,
                         enum dt_dtype reduce)
{
    struct job job;
    opened(&job, text, set);
    assert_string_equal(job.training.precision, precision);
    assert_int_equal(job.precision.compute, compute);
    assert_int_equal(job.precision.reduce, reduce);
    char *first = strdup(job.text);
    job_close(&job);
    opened(&job, first, NULL); /* what is saved reads back to the same */
    assert_int_equal(job.precision.compute, compute);
    assert_int_equal(job.precision.reduce, reduce);
    assert_string_equal(job.text, first);
    job_close(&job);
    free(first);
}

/* Each optimizer has its own keys, and those of another are refused by name, with where the choice
 * was made. */
static void test_optimizer(void **state)
{
    (void)state;
    struct job job;
    opened(&job, SMALL, NULL);
    assert_string_equal(job.optimizer.row->name, "adamw");
    assert_non_null(strstr(job.text, "\"adam_epsilon\": 1e-08"));
    assert_non_null(strstr(job.text, "\"optimizer\": {\n    \"name\": \"adamw\",\n    \"groups\": null\n  }"));
    job_close(&job);
    opened(&job, SECTION("\"optimizer\": {\"name\": \"SGD\", \"momentum\": 0.9, \"nesterov\": true}"), NULL);
    assert_string_equal(job.optimizer.name, "sgd");
    assert_true(job.optimizer.numbers.momentum == 0.9 && job.optimizer.numbers.nesterov);
    assert_non_null(strstr(job.text, "\"dampening\": 0,"));
    assert_null(strstr(job.text, "adam_beta1"));
    job_close(&job);
    opened(&job, SECTION("\"optimizer\": {\"name\": \"lion\"}"), "optimizer.beta2=0.98");
    assert_true(job.optimizer.numbers.beta1 == 0.9 && job.optimizer.numbers.beta2 == 0.98);
    job_close(&job);
    opened(&job, SECTION("\"optimizer\": {\"name\": \"adam\"}"), "training.adam_beta2=0.95");
    assert_string_equal(job.optimizer.row->name, "adam");
    assert_true(job.optimizer.numbers.beta1 == 0.9 && job.optimizer.numbers.beta2 == 0.95);
    job_close(&job);
    opened(&job, SECTION("\"optimizer\": {\"name\": \"adagrad\", \"lr_decay\": 0.1}"), NULL);
    assert_true(job.optimizer.numbers.lr_decay == 0.1 && job.optimizer.numbers.initial == 0);
    assert_true(job.optimizer.numbers.eps == 1e-10);
    job_close(&job);
    opened(&job, SECTION("\"optimizer\": {\"name\": \"muon\", \"ns_steps\": 3, \"adjust_lr_fn\": \"match_rms_adamw\"}"),
           "training.adam_beta2=0.95");
    const struct job_optimizer *muon = &job.optimizer;
    assert_true(muon->numbers.ns_steps == 3 && muon->numbers.adjust == MUON_MATCH_RMS_ADAMW && muon->numbers.nesterov);
    assert_true(muon->numbers.eps == 1e-7 && muon->rest.eps == 1e-8 && muon->rest.beta2 == 0.95);
    assert_non_null(strstr(job.text, "\"adam_beta2\": 0.95"));
    assert_non_null(strstr(job.text, "\"adjust_lr_fn\": \"match_rms_adamw\""));
    job_close(&job);
    opened(&job,
           SECTION("\"optimizer\": {\"name\": \"muon\", \"groups\": [{\"params\": \"a*\", \"optimizer\": \"adamw\", "
                   "\"betas\": [0.8, 0.9], \"eps\": 1e-6}, {\"params\": \"b*\", \"momentum\": 0.5}]}"),
           "training.adam_bias_correction=false");
    assert_true(job.optimizer.group_count == 2 && job.optimizer.groups[0].row == optimizer_find("adamw"));
    assert_true(job.optimizer.groups[0].own_betas && job.optimizer.groups[0].beta2 == 0.9);
    assert_true(job.optimizer.groups[0].eps == 1e-6 && job.optimizer.groups[1].momentum == 0.5);
    assert_true(job.optimizer.rest.uncorrected == 1 && job.optimizer.groups[1].row == NULL);
    job_close(&job);
    static const struct {
        const char *name, *group, *words;
    } bad[] = {{"sgd", "\"betas\": [0.8, 0.9]", "sgd has no betas (optimizer.name, "},
               {"adamw", "\"betas\": [0.8, 1]", "betas are two numbers from 0 to below 1"},
               {"adamw", "\"momentum\": 0.5", "adamw has no momentum (optimizer.name, "},
               {"sgd", "\"momentum\": 0.5", "momentum lies between 0 and 1, as optimizer.momentum must"},
               {"adamw", "\"eps\": 0", "eps must be above 0"},
               {"muon", "\"eps\": 1", "eps needs the group's optimizer; name that, too"},
               {"muon", "\"optimizer\": \"sgd\"", "optimizer is muon or adamw here"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char *text = dt_format(SECTION("\"optimizer\": {\"name\": \"%s\", \"groups\": [{\"params\": \"a\", %s}]}"),
                               bad[i].name, bad[i].group);
        const char *set = NULL;
        char problems[4096];
        assert_int_equal(open_text(&job, text, &set, 0, problems, sizeof problems), -1);
        if (strstr(problems, bad[i].words) == NULL) {
            fail_msg("%s: %s", bad[i].words, problems);
        }
        free(text);
    }
    refused(
        SECTION("\"optimizer\": {\"name\": \"sgd\", \"beta1\": 0.9, \"momentun\": 0.9}, \"training\": {\"adam_beta1\": "
                "0.8}"),
        NULL,
        "job.json:2:31: optimizer.beta1: belongs to lion, lamb, and optimizer.name is sgd (job.json:2:16); remove it\n"
        "job.json:2:45: optimizer.momentun: unknown key; did you mean momentum?\n"
        "job.json:2:76: training.adam_beta1: belongs to adamw, adam, and optimizer.name is sgd (job.json:2:16); remove "
        "it\n");
    refused(SMALL, "optimizer.momentum=0.9",
            "--set optimizer.momentum=0.9: optimizer.momentum: belongs to sgd, muon, and optimizer.name is adamw "
            "(default); "
            "remove it\n");
    refused(SECTION("\"optimizer\": {\"name\": \"sgd\", \"nesterov\": true}"), NULL,
            "job.json:2:31: optimizer.nesterov: needs a momentum above 0 and a dampening of 0; give them, or write "
            "false\n");
    refused(SECTION("\"optimizer\": {\"name\": \"sgd\", \"momentum\": 1}"), NULL,
            "job.json:2:43: optimizer.momentum: is 1; give a number from 0 and below 1\n");
    refused(SECTION("\"optimizer\": {\"name\": \"adadelta\"}"), NULL,
            "job.json:2:24: optimizer.name: is \"adadelta\", which is not there yet; give one of: adamw, adam, sgd, "
            "lion, ...");
}

static void moments_are(const char *text, const char *set, const char *name, enum dt_dtype moments)
{
    struct job job;
    opened(&job, text, set);
    assert_string_equal(job.training.optimizer_state_dtype, name);
    assert_int_equal(job.precision.states, moments);
    job_close(&job);
}

/* A choice of its own, whatever the precision is; DeepSpeed's name for it says where it is said
 * here. */
static void test_moments(void **state)
{
    (void)state;
    moments_are(SMALL, NULL, "fp32", DT_F32);
    moments_are(SMALL, "training.precision=bf16", "fp32", DT_F32);
    moments_are(SMALL, "training.optimizer_state_dtype=bfloat16", "bf16", DT_BF16);
    moments_are(TRAINING("\"precision\": \"bf16-mixed\", \"optimizer_state_dtype\": \"BF16\""), NULL, "bf16", DT_BF16);
    moments_are(TRAINING("\"optimizer_state_dtype\": \"float32\""), NULL, "fp32", DT_F32);
    moments_are(SMALL, "training.precision=bf16-true", "bf16", DT_BF16);
    moments_are(TRAINING("\"precision\": \"16-true\", \"optimizer_state_dtype\": \"fp32\""), NULL, "fp32", DT_F32);
    refused(TRAINING("\"matmul_precision\": \"medium\""), NULL,
            "job.json:2:35: training.matmul_precision: is \"medium\", which is not supported: products of F32 are not "
            "computed in BF16; the nearest is high (TF32); give one of: highest, high\n");
    refused(TRAINING("\"optimizer_state_dtype\": \"int8\""), NULL,
            "job.json:2:40: training.optimizer_state_dtype: is \"int8\", which is not there yet; give one of: fp32, "
            "float32, bf16, bfloat16\n");
    refused(SECTION("\"bf16\": {\"enabled\": true, \"bf16_optimizer_states\": true}"), NULL,
            "job.json:2:28: bf16.bf16_optimizer_states: DeepSpeed's name; here it is training.optimizer_state_dtype "
            "\"bf16\", beside fp32 masters\n");
}

/* In the words of Lightning, DeepSpeed and FSDP; one of them is enough, and they may not differ. */
static void test_precision(void **state)
{
    (void)state;
    precision_is(SMALL, NULL, "32-true", DT_F32, DT_F32);
    precision_is(SMALL, "training.precision=bf16", "bf16-mixed", DT_BF16, DT_BF16);
    precision_is(TRAINING("\"precision\": \"BF16-mixed\""), NULL, "bf16-mixed", DT_BF16, DT_BF16);
    precision_is(TRAINING("\"precision\": \"32\""), NULL, "32-true", DT_F32, DT_F32);
    precision_is(SECTION("\"bf16\": {\"enabled\": true}"), NULL, "bf16-mixed", DT_BF16, DT_BF16);
    precision_is(SECTION("\"bf16\": {\"enabled\": \"auto\"}"), NULL, "32-true", DT_F32, DT_F32);
    precision_is(SECTION("\"mixed_precision\": {\"param_dtype\": \"bf16\", \"buffer_dtype\": \"bf16\"}"), NULL,
                 "bf16-mixed", DT_BF16, DT_BF16);
    precision_is(SECTION("\"mixed_precision\": {\"param_dtype\": \"bfloat16\", \"reduce_dtype\": \"fp32\"}"), NULL,
                 "bf16-mixed", DT_BF16, DT_F32);
    precision_is(SECTION("\"bf16\": {\"enabled\": true}, \"mixed_precision\": {\"reduce_dtype\": \"float32\"}"), NULL,
                 "bf16-mixed", DT_BF16, DT_F32);
    precision_is(SECTION("\"bf16\": {\"enabled\": false}"), "training.precision=bf16-mixed", "bf16-mixed", DT_BF16,
                 DT_BF16);
    refused(SECTION("\"training\": {\"precision\": \"32-true\"}, \"bf16\": {\"enabled\": true}"), NULL,
            "job.json:2:49: bf16.enabled: is true, but training.precision is \"32-true\" (job.json:2:15); say it in "
            "one place\n");
    refused(SECTION("\"bf16\": {\"enabled\": true}, \"mixed_precision\": {\"param_dtype\": \"fp32\"}"), NULL,
            "job.json:2:11: bf16.enabled: is true, but mixed_precision.param_dtype is \"fp32\" (job.json:2:49); say it "
            "in one place\n");
    precision_is(SMALL, "training.precision=16", "16-mixed", DT_F16, DT_F16);
    precision_is(SMALL, "training.precision=fp16", "16-mixed", DT_F16, DT_F16);
    precision_is(SECTION("\"training\": {\"precision\": 16}, \"fp16\": {\"enabled\": true}"), NULL, "16-mixed", DT_F16,
                 DT_F16);
    precision_is(SMALL, "training.precision=16-true", "16-true", DT_F16, DT_F16);
    precision_is(SMALL, "training.precision=BF16-true", "bf16-true", DT_BF16, DT_BF16);
    precision_is(SMALL, "training.precision=64", "64-true", DT_F64, DT_F64);
    precision_is(SECTION("\"mixed_precision\": {\"param_dtype\": \"float16\", \"reduce_dtype\": \"fp32\"}"), NULL,
                 "16-mixed", DT_F16, DT_F32);
    precision_is(SECTION("\"fp16\": {\"enabled\": true}, \"communication_data_type\": \"fp16\""), NULL, "16-mixed",
                 DT_F16, DT_F16);
    precision_is(SECTION("\"amp\": {\"enabled\": true, \"opt_level\": \"O1\"}"), NULL, "16-mixed", DT_F16, DT_F16);
    precision_is(SECTION("\"mixed_precision\": {\"reduce_dtype\": \"bf16\"}"), NULL, "32-true", DT_F32, DT_BF16);
    precision_is(SECTION("\"communication_data_type\": \"fp16\""), NULL, "32-true", DT_F32, DT_F16);
    refused(SECTION("\"mixed_precision\": {\"param_dtype\": \"fp16\", \"reduce_dtype\": \"bf16\"}"), NULL,
            "job.json:2:45: mixed_precision.reduce_dtype: bf16 on the wire of a run in fp16 is not there yet; write "
            "fp32, or remove it\n");
    refused(TRAINING("\"precision\": \"bf16\", \"grad_accum_dtype\": \"fp16\""), NULL,
            "job.json:2:36: training.grad_accum_dtype: fp16 goes with a run that computes and reduces in fp16; write "
            "fp32, or remove it\n");
    refused(SECTION("\"bf16\": {\"enabled\": true}, \"fp16\": {\"enabled\": true}"), NULL,
            "job.json:2:38: fp16.enabled: is true, but bf16.enabled is true (job.json:2:11); say it in one place\n");
    refused(
        TRAINING("\"precision\": \"transformer-engine\""), NULL,
        "job.json:2:28: training.precision: is \"transformer-engine\", which is not there yet; give one of: 32-true, "
        "32, fp32, bf16-mixed, bf16, bf16-true, 16-mixed, 16, fp16, 16-true, 64-true, 64\n");
    refused(SECTION("\"bf16\": {\"enabled\": true, \"bf16_optimizer_states\": true}"), NULL,
            "job.json:2:28: bf16.bf16_optimizer_states: DeepSpeed's name; here it is training.optimizer_state_dtype "
            "\"bf16\", beside fp32 masters\n");
    refused(TRAINING("\"bf16\": true"), NULL,
            "job.json:2:15: training.bf16: Hugging Face's name; here it is training.precision \"bf16-mixed\"\n");
}

static void scaling_is(const char *text, const char *algorithm, double loss_scale, int64_t power, int64_t window,
                       int64_t hysteresis, double least)
{
    struct job job;
    opened(&job, text, NULL);
    const struct scaler_settings *s = &job.loss_scaling;
    assert_string_equal(s->algorithm, algorithm);
    assert_true(s->loss_scale == loss_scale && s->min_loss_scale == least);
    assert_int_equal(s->initial_scale_power, power);
    assert_int_equal(s->loss_scale_window, window);
    assert_int_equal(s->hysteresis, hysteresis);
    job_close(&job);
}

/* Whose loss scale: that of the block which asks for fp16, otherwise of the strategy's system. */
static void test_loss_scaling(void **state)
{
    (void)state;
    scaling_is(SMALL, "torch", 0, 16, 1000, 2, -1);
    scaling_is(TRAINING("\"precision\": \"16-mixed\", \"strategy\": \"zero2\""), "deepspeed", 0, 16, 1000, 2, -1);
    scaling_is(TRAINING("\"precision\": \"16-mixed\", \"strategy\": \"deepspeed_stage_3\""), "deepspeed", 0, 16, 1000,
               2, -1);
    scaling_is(SECTION("\"amp\": {\"enabled\": true}, \"zero_optimization\": {\"stage\": 1}"), "torch", 0, 16, 1000, 2,
               -1);
    scaling_is(SECTION("\"fp16\": {\"enabled\": true, \"loss_scale\": 128}"), "deepspeed", 128, 16, 1000, 2, -1);
    scaling_is(SECTION("\"fp16\": {\"enabled\": true, \"initial_scale_power\": 12, \"loss_scale_window\": 50, "
                       "\"hysteresis\": 1, \"min_loss_scale\": 0.5}"),
               "deepspeed", 0, 12, 50, 1, 0.5);
    scaling_is(SECTION("\"fp16\": {\"enabled\": true}, \"loss_scaling\": {\"algorithm\": \"torch\"}"), "torch", 0, 16,
               1000, 2, -1);
    refused(SECTION("\"fp16\": {\"enabled\": true, \"loss_scale\": -1}"), NULL,
            "job.json:2:42: fp16.loss_scale: is -1; give a number from 0 to 1e+30\n");
    refused(SECTION("\"fp16\": {\"enabled\": true, \"loss_scale\": true}"), NULL,
            "job.json:2:42: fp16.loss_scale: is true; give a number from 0 to 1e+30\n");
    refused(SECTION("\"fp16\": {\"enabled\": true, \"hysteresis\": 0}"), NULL,
            "job.json:2:42: fp16.hysteresis: is 0; give a whole number from 1 to 1000000000000\n");
    refused(SECTION("\"fp16\": {\"enabled\": true, \"fp16_master_weights_and_grads\": true}"), NULL,
            "job.json:2:28: fp16.fp16_master_weights_and_grads: is true: masters are fp32; training.precision "
            "\"16-true\" has none; write that\n");
    refused(SECTION("\"amp\": {\"enabled\": true, \"opt_level\": \"O3\"}"), NULL,
            "job.json:2:2: amp: opt_level O3 has no fp32 masters; write O1 or O2\n");
}

/* Every name that the job file takes is one that strategy.c knows. */
static void test_strategy_names(void **state)
{
    (void)state;
    const struct dt_field *f = job_sections[JOB_TRAINING].fields;
    assert_string_equal(f->key, "strategy");
    for (const char *p = f->rule->choices; *p != 0;) {
        char name[64];
        struct dt_error err = {0};
        size_t n = strcspn(p, "|");
        (void)snprintf(name, sizeof name, "%.*s", (int)n, p);
        if (strategy_find(name, strncmp(name, "single", 6) == 0 ? 1 : 2, &err) == NULL) {
            fail_msg("%s: %s", name, err.text);
        }
        p += n + (p[n] == '|');
    }
}

static void test_load(void **state)
{
    (void)state;
    char path[128], text[512], message[512];
    struct job job;
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    write_file(path, "{\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_head\": 4, \"n_embd\": 48, \"n_positions\": 32, "
                     "\"vocab_size\": 131, \"n_inner\": null,"
                     "\"layer_norm_epsilon\": 1e-6, \"activation_function\": \"gelu_new\", \"attn_pdrop\": 0.3}");
    (void)snprintf(text, sizeof text, "{\"model\": {\"load\": \"%s\", \"n_layer\": 2}, \"data\": {\"train\": \"x\"}}",
                   folder);
    opened(&job, text, NULL);
    assert_string_equal(job.model.name, "gpt2");
    assert_int_equal(model_of(&job)->n_embd, 48);
    assert_int_equal(model_of(&job)->n_inner, 0);
    assert_true(model_of(&job)->layer_norm_epsilon == 1e-6);
    assert_int_equal(job.data.sequence_length, 32);
    char *first = strdup(job.text);
    job_close(&job);
    opened(&job, first, NULL); /* what was saved reads back to the same */
    assert_string_equal(job.text, first);
    job_close(&job);
    free(first);
    opened(&job, text, "model.embd_pdrop=0"); /* dropout: the job's, the folder's, or the library's */
    assert_true(model_of(&job)->attn_pdrop == 0.3 && model_of(&job)->embd_pdrop == 0);
    assert_true(model_of(&job)->resid_pdrop == 0.1);
    job_close(&job);
    refused(text, "model.attn_pdrop=1",
            "--set model.attn_pdrop=1: model.attn_pdrop: is 1; give a number from 0 and below 1\n");
    refused(text, "model.n_layer=3",
            "--set model.n_layer=3: model.n_layer: is 3, but config.json says 2; remove it here\n");
    opened(&job, text, "model.n_inner=192"); /* 4 * n_embd, as null says */
    job_close(&job);
    refused(text, "model.n_inner=100",
            "--set model.n_inner=100: model.n_inner: is 100, but config.json says null; remove it here\n");
    write_file(path, "{\"model_type\": \"gpt2\", \"n_embd\": 48, \"n_head\": 4, \"n_inner\": 100}");
    (void)snprintf(message, sizeof message,
                   "{\"model\": {\"n_inner\": null, \"load\": \"%s\"}, \"data\": {\"train\": \"x\"}}", folder);
    refused(message, NULL, "job.json:1:12: model.n_inner: is null, but config.json says 100; remove it here\n");
    write_file(path, "{\"model_type\": \"t5\"}");
    refused(text, NULL,
            "job.json:1:12: model.load: config.json: model_type: \"t5\" is not supported: it has an encoder and a "
            "decoder; the nearest model that works is bert\n");
    write_file(path, "{\"model_type\": \"gpt2\", \"n_head\": 0}");
    refused(text, NULL,
            "job.json:1:12: model.load: config.json: n_head: is 0; must be a whole number from 1 to 10000\n");
    write_file(path, "{\"model_type\": \"gpt2\", \"quantization_config\": {\"bits\": 4}}");
    refused(text, NULL,
            "job.json:1:12: model.load: config.json: quantization_config: quantized weights are not supported; give "
            "the model before it was "
            "quantized\n");
    write_file(path, "{\"model_type\": \"gpt2\", \"activation_function\": \"relu\"}");
    refused(text, NULL,
            "job.json:1:12: model.load: config.json: activation_function: only \"gelu_new\" is supported\n");
    write_file(path, "{\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_head\": 5}"); /* the file contradicts itself */
    refused(text, NULL,
            "job.json:1:12: model.load: config.json: n_head: n_embd 768 cannot be split among n_head 5 heads; choose a "
            "multiple\n");
    write_file(path, "{\"model_type\": ");
    refused(text, NULL, "job.json:1:12: model.load: config.json:1:16: the text ends here; expected a value\n");
    assert_int_equal(unlink(path), 0);
    (void)snprintf(message, sizeof message, "job.json:1:12: model.load: config.json: No such file or directory\n");
    refused(text, NULL, message);
    /* A run that goes on has kept what it needs of a folder that is gone; whoever begins anew
     * needs the folder. */
    (void)snprintf(path, sizeof path, "%s/kept/origin", folder);
    assert_int_equal(dt_file_mkdirs(path, NULL), 0);
    (void)snprintf(path, sizeof path, "%s/kept/origin/config.json", folder);
    write_file(path, "{\"model_type\": \"gpt2\", \"n_head\": 4, \"n_embd\": 48}");
    (void)snprintf(text, sizeof text,
                   "{\"model\": {\"load\": \"%s/gone\"}, \"data\": {\"train\": \"x\"}, \"checkpointing\": "
                   "{\"checkpoint_dir\": \"%s/kept\"}}",
                   folder, folder);
    opened(&job, text, NULL);
    assert_int_equal(model_of(&job)->n_embd, 48);
    job_close(&job);
    refused(text, "checkpointing.resume=never",
            "job.json:1:12: model.load: gone/config.json: No such file or directory\n");
}

/* Null is a value of a key, and not the preset's. */
static void test_preset_nulls(void **state)
{
    (void)state;
    static const struct {
        const char *name, *null;
        double as;
    } rows[] = {{"olmo-2-1b", "pad_token_id", -1},
                {"smollm3-3b", "pad_token_id", -1},
                {"mistral-7b", "sliding_window", 0},
                {"gemma-2-2b", "attn_logit_softcapping", 0},
                {"gemma-2-2b", "final_logit_softcapping", 0}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct job job;
        char text[256];
        (void)snprintf(text, sizeof text, "{\"model\": {\"name\": \"%s\", \"%s\": null}, \"data\": {\"train\": \"x\"}}",
                       rows[i].name, rows[i].null);
        opened(&job, text, NULL);
        const struct dt_field *f = job.model.ops->fields;
        while (strcmp(f->key, rows[i].null) != 0) {
            f++;
        }
        const char *at = job.model.sizes.bytes + f->offset;
        double value = f->rule->type == DT_RULE_NUMBER ? *(const double *)(const void *)at
                                                       : (double)*(const int64_t *)(const void *)at;
        if (value != rows[i].as) {
            fail_msg("%s: %s is %g", rows[i].name, rows[i].null, value);
        }
        char *whole = dt_strdup(job.text); /* what is saved reads back to the same */
        job_close(&job);
        opened(&job, whole, NULL);
        assert_string_equal(job.text, whole);
        free(whole);
        job_close(&job);
    }
}

/* Published names of models lead to the presets. */
static void test_names_of_presets(void **state)
{
    (void)state;
    static const char *const rows[][2] = {{"gpt2-xl", "gpt2-1558m"},
                                          {"openai-community/gpt2-medium", "gpt2-355m"},
                                          {"bert-base-uncased", "bert-base"},
                                          {"distilbert-base-multilingual-cased", "distilbert-base-multilingual"},
                                          {"xlm-roberta-large", "roberta-large"},
                                          {"meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"},
                                          {"HuggingFaceTB/SmolLM2-1.7B-Instruct", "smollm2-1.7b"},
                                          {"lama", "llama"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[256], message[512];
        (void)snprintf(text, sizeof text, "{\"model\": {\"name\": \"%s\"}, \"data\": {\"train\": \"x\"}}", rows[i][0]);
        (void)snprintf(message, sizeof message,
                       "job.json:1:20: model.name: is \"%s\"; did you mean %s? All of them: see train --list-models\n",
                       rows[i][0], rows[i][1]);
        refused(text, NULL, message);
    }
}

static void test_text(void **state)
{
    (void)state;
    struct job job;
    opened(&job,
           SECTION("\"training\": {\"max_steps\": 1e3, \"learning_rate\": 3e-4}, \"fsdp\": {\"sharding_strategy\": "
                   "\"HYBRID_SHARD\", "
                   "\"device_mesh\": [1, 2]}"),
           NULL);
    char *first = strdup(job.text);
    job_close(&job);
    assert_non_null(strstr(first, "\"max_steps\": 1000,"));
    assert_non_null(strstr(first, "\"learning_rate\": 0.0003,"));
    assert_non_null(strstr(first, "\"strategy\": \"hybrid_shard\","));
    assert_non_null(strstr(first, "\"device_mesh\": [1, 2],"));
    opened(&job, first, NULL);
    assert_string_equal(job.text, first);
    job_close(&job);
    free(first);
}

static void test_print(void **state)
{
    (void)state;
    const char *set[] = {
        "training.seed=7", "training.gradient_accumulation_steps=4",
        "output_dir=a/very/long/folder/name/that/goes/on/and/on/until/it/fits/into/no/line/of/a/terminal"};
    struct job_arguments args = {.path = job_path, .set = set, .set_count = 3};
    struct dt_text out, problems;
    struct dt_error err = {0};
    dt_text_init(&out);
    dt_text_init(&problems);
    write_file(job_path, SMALL);
    assert_int_equal(job_print_config(&args, &out, &problems, &err), 0);
    assert_non_null(
        strstr(out.data, "\ntraining.seed                         7                   --set training.seed=7\n"));
    assert_non_null(strstr(out.data, "\ntraining.max_grad_norm                1                   default\n"));
    assert_non_null(strstr(out.data, "job.json:1:38\n"));
    assert_non_null(strstr(out.data, "\nactivation_checkpointing.checkpoint_every_n_layers\n                           "
                                     "           1                   default\n"));
    assert_non_null(strstr(out.data, " model.n_positions\n"));
    /* 80 columns show it; a longer word stands alone */
    for (const char *line = out.data; *line != 0; line += strcspn(line, "\n") + 1) {
        size_t size = strcspn(line, "\n"), blank = strspn(line, " ");
        const char *next = memmem(line + blank, size - blank, "  ", 2);
        if (size > 79 && (blank != 4 || next != NULL)) {
            fail_msg("%.*s", (int)size, line);
        }
    }
    dt_text_clear(&out);
    dt_text_clear(&problems);
}

/* Each folder has one spelling: locks lie beside it. */
static void test_folders_are_plain(void **state)
{
    (void)state;
    static const char *const forms[][2] = {{"ck/", "ck"}, {"./a//b/./", "a/b"},  {"/", "/"}, {"//x/../y/", "/x/../y"},
                                           {"./", "."},   {".hidden", ".hidden"}};
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        struct job job;
        char given[64];
        snprintf(given, sizeof given, "checkpointing.checkpoint_dir=%s", forms[i][0]);
        opened(&job, SMALL, given);
        assert_string_equal(job.checkpointing.checkpoint_dir, forms[i][1]);
        job_close(&job);
    }
}

/* However a folder is called, its lock has one name. */
static void test_links_to_folders(void **state)
{
    (void)state;
    char top[] = "/tmp/dtrun-test-XXXXXX";
    assert_non_null(mkdtemp(top));
    static const char *const links[][3] = {/* name, target, where it leads; null: it stays */
                                           {"one", "real", "real"},
                                           {"two", "one/", "real"},
                                           {"later", "not/there", "not/there"},
                                           {"sub/up", "../real", "sub/../real"},
                                           {"mount", "/proc", NULL},
                                           {"top", "/", NULL},
                                           {"here", ".", NULL},
                                           {"round", "round", NULL},
                                           {"open/theirs", "../real", NULL}};
    size_t count = sizeof links / sizeof links[0];
    struct dt_error err;
    char path[256], given[300], expected[256];
    static const char *const folders[] = {"real", "sub", "open"};
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", top, folders[i]);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    assert_int_equal(chmod(path, 01777), 0);
    for (size_t i = 0; i < count; i++) {
        struct job job;
        snprintf(path, sizeof path, "%s/%s", top, links[i][0]);
        assert_int_equal(symlink(links[i][1], path), 0);
        if (strcmp(links[i][0], "open/theirs") == 0 && (geteuid() != 0 || lchown(path, 12345, 12345) != 0)) {
            continue; /* only root makes links of others */
        }
        snprintf(given, sizeof given, "checkpointing.checkpoint_dir=%s", path);
        snprintf(expected, sizeof expected, "%s/%s", top, links[i][2] != NULL ? links[i][2] : links[i][0]);
        opened(&job, SMALL, given);
        assert_string_equal(job.checkpointing.checkpoint_dir, expected);
        job_close(&job);
    }
    assert_int_equal(dt_file_remove_tree(top, &err), 0);
}

/* The run of `was` goes on as `is`: "", all changes that were taken ("key was -> is; "), or the
 * error. other_data: as job_compare. */
static const char *go_on(const struct job *was, const char *json, const char *set, const char *other_data)
{
    static char out[1024];
    struct job is;
    struct job_changes changes;
    struct dt_error err = {0};
    opened(&is, json, set);
    out[0] = 0;
    if (job_compare(was->text, is.text, is.checkpointing.accept, other_data, &changes, &err) != 0) {
        assert_int_equal(err.status, DT_INVALID);
        (void)snprintf(out, sizeof out, "%s", err.text);
    } else {
        for (int i = 0; i < changes.count; i++) {
            size_t used = strlen(out);
            (void)snprintf(out + used, sizeof out - used, "%s %s -> %s; ", changes.list[i].key, changes.list[i].was,
                           changes.list[i].is);
        }
    }
    job_close(&is);
    return out;
}

#define ANEW "or begin anew with --fresh or another output_dir"

#define LONG_GROUPS(decay)                                                                                             \
    "optimizer.groups=[{\"params\": [\"*.bias\", \"*.ln_1.*\", \"*.ln_2.*\", \"transformer.wte.*\", "                  \
    "\"transformer.ln_f.*\", \"transformer.wpe.*\"], \"weight_decay\": " decay "}]"

static void test_compare(void **state)
{
    (void)state;
    struct job a, b;
    struct job_changes changes;
    struct dt_error err = {0};
    opened(&a, SMALL, NULL);
    assert_string_equal(go_on(&a,
                              SECTION("\"training\": {\"strategy\": \"zero3\", \"num_epochs\": 3, "
                                      "\"batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 4}"),
                              NULL, NULL),
                        "");
    assert_string_equal(go_on(&a, SMALL, "training.learning_rate=0.25", NULL),
                        "training.learning_rate: was 5e-05, is now 0.25; go back to the old value, keep the "
                        "optimizer's state and go on with --accept "
                        "training.learning_rate (checkpointing.accept), " ANEW);
    assert_string_equal(go_on(&a, SECTION("\"training\": {\"learning_rate\": 0.25, \"weight_decay\": 0.1}"),
                              "data.shuffle=false", NULL),
                        "data.shuffle: was true, is now false (all that differ: "
                        "data.shuffle,training.learning_rate,training.weight_decay); go back to the "
                        "old value, keep the optimizer's state and go on from the first sample with --accept "
                        "data.shuffle,training.learning_rate,training.weight_decay (checkpointing.accept), " ANEW);
    assert_non_null(strstr(go_on(&a, SMALL, "training.optimizer_state_dtype=bf16", NULL),
                           "training.optimizer_state_dtype: was \"fp32\", is now \"bf16\"; go back"));
    assert_string_equal(go_on(&a, SMALL, "training.strategy=local_sgd", NULL),
                        "training.strategy: was \"auto\", is now \"local_sgd\"; go back to the old value, keep the "
                        "optimizer's state and go on with --accept training.strategy (checkpointing.accept), " ANEW);
    /* where the shards lie says nothing about what they hold */
    assert_string_equal(go_on(&a, SMALL, "data.train=elsewhere/train-*.bin", NULL), "");
    assert_string_equal(go_on(&a, SMALL, NULL, "x.bin is new"),
                        "data.train: x.bin is new; bring the old data back, keep the optimizer's state and go on from "
                        "the first sample with --accept data.train "
                        "(checkpointing.accept), " ANEW);
    assert_string_equal(go_on(&a, SMALL, "training.max_steps=7", NULL),
                        "training.max_steps -1 -> 7; training.num_epochs 3 -> 0; ");
    /* of long values, where they differ */
    opened(&b, SMALL, LONG_GROUPS("0.125"));
    const char *groups = go_on(&b, SMALL, LONG_GROUPS("0.25"), NULL);
    assert_true(strstr(groups, "optimizer.groups: was ...") == groups);
    assert_non_null(strstr(groups, "0.125"));
    assert_non_null(strstr(groups, "0.25"));
    job_close(&b);
    /* null, and the value that null stands for */
    assert_string_equal(go_on(&a, SMALL, "model.n_inner=3072", NULL), "");
    assert_string_equal(go_on(&a, SMALL, "model.n_inner=100", NULL), "model.n_inner: was null, is now 100; go back to "
                                                                     "the old value, " ANEW);
    const char *wide = go_on(&a,
                             "{\"model\": {\"name\": \"gpt2\", \"n_embd\": 1536, \"n_inner\": 3072}, "
                             "\"data\": {\"train\": \"x\"}}",
                             NULL, NULL);
    assert_string_equal(wide, "model.n_embd: was 768, is now 1536; go back to the old value, " ANEW);
    job_close(&a);
    opened(&a, SMALL, "model.n_inner=3072");
    assert_string_equal(go_on(&a, SMALL, NULL, NULL), "");
    assert_int_equal(job_compare("{", a.text, NULL, NULL, &changes, &err), -1);
    assert_int_equal(job_compare("{}", a.text, NULL, NULL, &changes, &err), 0);
    assert_int_equal(job_compare("[1]", a.text, NULL, NULL, &changes, &err), 0);
    job_close(&a);
}

/* The optimizer is the run's: another one has no state there, nor has a momentum that was 0. What a
 * job of before this key says nothing of was AdamW. */
static const char *apart(const char *ours, const char *theirs)
{
    static struct dt_text out;
    dt_text_clear(&out);
    dt_text_init(&out);
    bool differ = job_apart(ours, theirs, &out);
    assert_int_equal(differ, out.size > 0);
    return dt_text_str(&out);
}

/* Jobs of two ranks: a place of files may be another, and keys of another model or optimizer count. */
static void test_apart(void **state)
{
    (void)state;
    struct job a, b;
    opened(&a, SMALL, NULL);
    opened(&b, SMALL, "training.threads=3");
    assert_string_equal(apart(a.text, b.text), "");
    job_close(&b);
    opened(&b, SMALL, "data.train=elsewhere/*.bin");
    assert_string_equal(apart(b.text, a.text), "");
    job_close(&b);
    opened(&b, SECTION("\"training\": {\"seed\": 3, \"strategy\": \"full_shard\"}"), NULL);
    assert_string_equal(apart(b.text, a.text),
                        "training.strategy is \"full_shard\" here and \"auto\" there (all that differ: "
                        "training.strategy, training.seed)");
    job_close(&b);
    opened(&b, SMALL, "optimizer.name=lion");
    assert_non_null(strstr(apart(a.text, b.text), "optimizer.name is \"adamw\" here and \"lion\" there (all that "
                                                  "differ: optimizer.name, "));
    assert_non_null(strstr(apart(b.text, a.text), "optimizer.beta1"));
    job_close(&b);
    job_close(&a);
}

static void test_compare_optimizers(void **state)
{
    (void)state;
    struct job a;
    struct job_changes changes;
    struct dt_error err = {0};
    opened(&a, SECTION("\"optimizer\": {\"name\": \"sgd\", \"momentum\": 0.9}"), NULL);
    const char *const never = "go back to the old value, " ANEW JOB_WEIGHTS_ALONE;
    const char *said = go_on(&a, SMALL, "training.learning_rate=0.25", NULL);
    assert_true(strstr(said, "optimizer.name: was \"sgd\", is now \"adamw\" (all that differ: ") == said);
    assert_non_null(strstr(said, never));
    static const char with[] =
        SECTION("\"optimizer\": {\"name\": \"sgd\"}, \"checkpointing\": {\"accept\": \"momentum\"}");
    said = go_on(&a, with, NULL, NULL);
    assert_non_null(strstr(said, "optimizer.momentum: was 0.9, is now 0; go back"));
    assert_non_null(strstr(said, "it cannot be accepted"));
    assert_string_equal(go_on(&a, with, "optimizer.momentum=0.5", NULL), "optimizer.momentum 0.9 -> 0.5; ");
    job_close(&a);
    opened(&a, SMALL, "training.adam_beta1=0.8");
    assert_int_equal(job_compare("{\"training\": {\"adam_beta1\": 0.8}}", a.text, NULL, NULL, &changes, &err), 0);
    assert_int_equal(changes.count, 0);
    assert_int_equal(job_compare("{\"training\": {\"adam_beta1\": 0.9}}", a.text, NULL, NULL, &changes, &err), -1);
    job_close(&a);
    opened(&a, SECTION("\"optimizer\": {\"name\": \"lion\"}"), NULL);
    assert_int_equal(job_compare("{\"training\": {\"adam_beta1\": 0.9}}", a.text, NULL, NULL, &changes, &err), -1);
    assert_non_null(strstr(err.text, "optimizer.name: was \"adamw\", is now \"lion\"; go back"));
    job_close(&a);
}

/* What checkpointing.accept names is taken, by its full or its last name; tensors of another
 * model are not, whatever it says. */
static void test_accept(void **state)
{
    (void)state;
    struct job a, b;
    opened(&a, SMALL, NULL);
    static const char *const lists[] = {"\"learning_rate\"", "[\"training.learning_rate\"]",
                                        "[\"data.train\", \"learning_rate\", \"seed\"]"};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        char json[256];
        snprintf(json, sizeof json,
                 SECTION("\"training\": {\"learning_rate\": 1e-5}, \"checkpointing\": {\"accept\": %s}"), lists[i]);
        assert_string_equal(go_on(&a, json, NULL, NULL), "training.learning_rate 5e-05 -> 1e-05; ");
    }
    const char *with = SECTION("\"training\": {\"learning_rate\": 1e-5, \"adam_beta1\": 0.8}, \"checkpointing\": "
                               "{\"accept\": [\"learning_rate\", \"model.n_layer\"]}");
    assert_non_null(strstr(go_on(&a, with, NULL, NULL), "training.adam_beta1: was 0.9, is now 0.8; go back"));
    assert_int_equal(
        strncmp(go_on(&a, with, "training.adam_beta1=0.9", "x.bin is new"), "data.train: x.bin is new; bring", 31), 0);
    assert_string_equal(go_on(&a, with, "model.n_layer=3", NULL),
                        "model.n_layer: was 12, is now 3 (all that differ: model.n_layer,training.adam_beta1); go back "
                        "to the old value, " ANEW "; it cannot be accepted, the saved tensors are of the old value");
    assert_string_equal(go_on(&a, SMALL, "model.n_layer=3", NULL),
                        "model.n_layer: was 12, is now 3; go back to the old value, " ANEW);
    assert_non_null(
        strstr(go_on(&a, SMALL, "data.tokenizer=bytes", NULL),
               "another output_dir (with its weights alone: dtckpt export CHECKPOINT DIR, then model.load DIR)"));
    assert_string_equal(go_on(&a, SMALL, "checkpointing.accept=train, adam_epsilon", "x.bin is new"),
                        "data.train  -> ; ");
    opened(&b, SMALL, "checkpointing.accept=train, adam_epsilon");
    assert_non_null(strstr(b.text, "\"accept\": [\"data.train\", \"training.adam_epsilon\"]"));
    job_close(&b);
    opened(&b, SMALL, "checkpointing.accept=[]");
    assert_null(b.checkpointing.accept);
    job_close(&b);
    job_close(&a);
}

static void test_wrong_accept(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"lerning_rate", "lerning_rate: is no key that a checkpoint is compared by; did you mean learning_rate?"},
        {"trainig.learning_rate",
         "trainig.learning_rate: is no key that a checkpoint is compared by; did you mean training.learning_rate?"},
        {"training.max_steps", "training.max_steps may always differ from a checkpoint's; remove it"},
        {"training.threads", "training.threads may always differ from a checkpoint's; remove it"},
        {"xyz", "xyz: is no key that a checkpoint is compared by; see dtrun-train(1)"},
        {"a,,b", "is \"a,,b\"; give a list of names, or null"},
        {"[1]", "is [1]; give a list of names, or null"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char set[128], expected[256];
        snprintf(set, sizeof set, "checkpointing.accept=%s", cases[i][0]);
        snprintf(expected, sizeof expected, "--set %s: checkpointing.accept: %s\n", set, cases[i][1]);
        refused(SMALL, set, expected);
    }
    refused(SMALL, "checkpointing.override=learnin_rate",
            "--set checkpointing.override=learnin_rate: checkpointing.override: learnin_rate: is no key that a "
            "checkpoint is compared by; did you mean learning_rate?\n");
    refused(SECTION("\"checkpointing\": {\"accept\": [\"seed\", \"sed\"], \"override\": [\"xyz\"]}"), NULL,
            "job.json:2:20: checkpointing.accept: sed: is no key that a checkpoint is compared by; did you mean std?\n"
            "job.json:2:47: checkpointing.override: xyz: is no key that a checkpoint is compared by; see "
            "dtrun-train(1)\n");
}

/* configs/job.schema.json is what job_schema says; DT_UPDATE=1 writes it anew. */
static void test_schema(void **state)
{
    (void)state;
    const char *path = "configs/job.schema.json";
    struct dt_text schema, file;
    struct dt_error err = {0};
    dt_text_init(&schema);
    dt_text_init(&file);
    job_schema(&schema);
    if (getenv("DT_UPDATE") != NULL) {
        write_file(path, schema.data);
    }
    if (!dt_file_exists(path)) {
        skip(); /* not run from the top folder */
    }
    assert_int_equal(dt_file_read(path, 1 << 20, &file, &err), 0);
    assert_string_equal(file.data, schema.data);
    dt_text_clear(&schema);
    dt_text_clear(&file);
}

static void test_configs(void **state)
{
    (void)state;
    if (!dt_file_exists("configs/demo.json")) {
        skip(); /* not run from the top folder */
    }
    struct job job;
    struct dt_error err = {0};
    struct dt_text problems;
    dt_text_init(&problems);
    struct job_arguments args = {.path = "configs/demo.json"};
    int result = job_open(&job, &args, &problems, &err);
    assert_string_equal(dt_text_str(&problems), "");
    assert_int_equal(result, 0);
    assert_string_equal(job.name, "demo");
    job_close(&job);
    dt_text_clear(&problems);
}

static int set_up(void **state)
{
    int rc = folder_setup(state);
    (void)snprintf(job_path, sizeof job_path, "%s/job.json", folder);
    return rc;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batch),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_set),
        cmocka_unit_test(test_evaluates),
        cmocka_unit_test(test_bad_keys),
        cmocka_unit_test(test_far_out),
        cmocka_unit_test(test_spans),
        cmocka_unit_test(test_strategy),
        cmocka_unit_test(test_precision),
        cmocka_unit_test(test_hooks),
        cmocka_unit_test(test_loss_scaling),
        cmocka_unit_test(test_optimizer),
        cmocka_unit_test(test_apart),
        cmocka_unit_test(test_compare_optimizers),
        cmocka_unit_test(test_moments),
        cmocka_unit_test(test_strategy_names),
        cmocka_unit_test(test_load),
        cmocka_unit_test(test_preset_nulls),
        cmocka_unit_test(test_names_of_presets),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_print),
        cmocka_unit_test(test_compare),
        cmocka_unit_test(test_accept),
        cmocka_unit_test(test_wrong_accept),
        cmocka_unit_test(test_folders_are_plain),
        cmocka_unit_test(test_links_to_folders),
        cmocka_unit_test(test_schema),
        cmocka_unit_test(test_configs),
    };
    return cmocka_run_group_tests(tests, set_up, folder_teardown);
}
