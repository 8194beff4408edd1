/* covers: worker/job/dialects base/config.c base/scan_member.c */
/* When a run ends, evaluates and saves, and which checkpoint is the best: each word of Lightning and Hugging Face with
 * the value of ours, and one that is wrong. */
#include "tests/lib/job_files.h"

#define EACH_EPOCH "\"checkpointing\": {\"save_every_n_epochs\": 1, \"keep_last_n\": 1}"
#define EVALUATED "\"eval_every_n_epochs\": 1, \"num_sanity_val_steps\": 2"

/* Flags of the Trainer beside max_epochs, and of the section `training` and others in our keys. */
static void flags(const char *theirs, const char *training, const char *more, const char *inert)
{
    char text[1024], ours[1024];
    (void)snprintf(text, sizeof text, "trainer:\n  max_epochs: 8\n%s", theirs);
    (void)snprintf(ours, sizeof ours, "{\"training\": {\"num_epochs\": 8, \"max_grad_norm\": 0, %s}, %s}", training,
                   more);
    same_job("l.yaml", text, 1, ours, inert);
}

static void wrong_flags(const char *theirs, const char *message)
{
    char text[1024];
    (void)snprintf(text, sizeof text, "trainer:\n  max_epochs: 8\n%s", theirs);
    refused("l.yaml", text, 1, message);
}

static void test_length(void **state)
{
    (void)state;
    static const char *const times[][2] = {{"\"00:12:00:00\"", "00:12:00:00"},
                                           {"00:01:30:00", "00:01:30:00"},
                                           {"1:00:00:00", "1:00:00:00"}, /* a number of base 60 in YAML */
                                           {"1 day, 2:30:05", "01:02:30:05"},
                                           {"14 days, 0:00:01", "14:00:00:01"},
                                           {"3 days, 0:00:01", "03:00:00:01"},
                                           {"{days: 1, hours: 2}", "01:02:00:00"},
                                           {"{minutes: 90, seconds: 0.5}", "00:01:30:01"},
                                           {"{class_path: datetime.timedelta, init_args: {weeks: 1}}", "07:00:00:00"},
                                           {"{_target_: datetime.timedelta, minutes: 5}", "00:00:05:00"}};
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
        char text[128], ours[128];
        (void)snprintf(text, sizeof text, "  max_time: %s\n", times[i][0]);
        (void)snprintf(ours, sizeof ours, EVALUATED ", \"max_time\": \"%s\"", times[i][1]);
        flags(text, ours, EACH_EPOCH, NULL);
    }
    static const char *const none[][2] = {{"3600", "3600"},
                                          {"soon", "\"soon\""},
                                          {"{days: 1, fortnights: 2}", "an object"},
                                          {"{days: many}", "an object"},
                                          {"true", "true"},
                                          {"{class_path: datetime.timedelta, init_args: [1]}", "an object"},
                                          {"{_target_: datetime.timedelta, init_args: 3}", "an object"}};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        char text[128], message[256];
        (void)snprintf(text, sizeof text, "  max_time: %s\n", none[i][0]);
        (void)snprintf(
            message, sizeof message,
            "l.yaml:3:3: trainer.max_time: is %s; give a time: \"DD:HH:MM:SS\", or an object of weeks, days, "
            "hours, minutes, seconds\n",
            none[i][1]);
        wrong_flags(text, message);
    }
    wrong_flags("  callbacks: {class_path: Timer, init_args: [1]}\n",
                "l.yaml:3:3: trainer.callbacks: Timer: init_args: give an object of the arguments by name\n");
    wrong_flags("  max_time: 12:61\n  callbacks: {class_path: Timer, init_args: {duration: {days: 1}}}\n",
                "l.yaml:4:3: trainer.callbacks.Timer.duration: is an object, but trainer.max_time is \"12:61\" "
                "(l.yaml:3:3); say it in one place\n");
    flags("  callbacks:\n    - class_path: lightning.pytorch.callbacks.Timer\n      init_args: {duration: "
          "\"00:00:10:00\", interval: step, verbose: true}\n",
          EVALUATED ", \"max_time\": \"00:00:10:00\"", EACH_EPOCH, NULL);
    wrong_flags("  callbacks: {class_path: Timer, init_args: {duration: {days: 1}, interval: epoch}}\n",
                "l.yaml:3:3: trainer.callbacks.Timer.interval: is \"epoch\": a run ends after a step; write step\n");
    flags("  max_time: {days: 1}\n  min_epochs: 2\n  min_steps: 40\n",
          EVALUATED ", \"max_time\": \"01:00:00:00\", \"min_epochs\": 2, \"min_steps\": 40", EACH_EPOCH, NULL);
    flags("  max_time: {days: 1}\n  min_steps: 40\n",
          EVALUATED ", \"max_time\": \"01:00:00:00\", \"min_epochs\": 1, \"min_steps\": 40", EACH_EPOCH, NULL);
    wrong_flags("  min_epochs: -1\n", "l.yaml:3:15: trainer.min_epochs: is -1; give a number from 0 to 1000000\n");
    wrong_flags("  min_steps: 0.5\n",
                "l.yaml:3:14: trainer.min_steps: is 0.5; give a whole number from 0 to 1000000000000\n");
}

static void test_ends(void **state)
{
    (void)state;
    same_job("l.yaml", "trainer: {max_steps: 7, max_epochs: -1}\n", 1,
             "{\"training\": {\"max_steps\": 7, \"max_grad_norm\": 0, " EVALUATED "}, " EACH_EPOCH "}", NULL);
    same_job("l.yaml", "trainer: {max_steps: -1}\n", 1,
             "{\"training\": {\"num_epochs\": 1000, \"max_grad_norm\": 0, " EVALUATED "}, " EACH_EPOCH "}", NULL);
    same_job("l.yaml", "trainer: {max_time: \"00:00:01:00\", max_epochs: -1}\n", 1,
             "{\"training\": {\"num_epochs\": 1000000, \"max_time\": \"00:00:01:00\", \"max_grad_norm\": 0, " EVALUATED
             "}, " EACH_EPOCH "}",
             NULL);
    refused("l.yaml", "trainer: {max_epochs: -1}\n", 1,
            "l.yaml:1:11: trainer.max_epochs: -1 has no end, which the rate follows; give max_steps, max_epochs, or "
            "max_time\n");
    flags("  fast_dev_run: true\n  max_steps: 70\n", EVALUATED ", \"max_steps\": 70, \"fast_dev_run\": 1", EACH_EPOCH,
          NULL);
    flags("  fast_dev_run: 4\n  callbacks: [{class_path: EarlyStopping, init_args: {monitor: val_loss}}]\n",
          EVALUATED ", \"fast_dev_run\": 4", EACH_EPOCH ", \"early_stopping\": {\"mode\": \"min\"}", NULL);
    wrong_flags("  fast_dev_run: maybe\n",
                "l.yaml:3:3: trainer.fast_dev_run: is \"maybe\"; give true, false, or a number of batches\n");
    flags("  log_every_n_steps: 0\n", EVALUATED, EACH_EPOCH, "trainer.log_every_n_steps (lines come by steps)");
    same_job("l.yaml", "trainer: {max_epochs: 8}\nckpt_path: last\nweights_only: null\n", 1,
             "{\"training\": {\"num_epochs\": 8, \"max_grad_norm\": 0, " EVALUATED
             "}, \"checkpointing\": {\"save_every_n_epochs\": 1, \"keep_last_n\": 1, \"resume\": \"auto\"}}",
             NULL);
    refused("l.yaml", "trainer: {max_epochs: 8}\nckpt_path: best\n", 1,
            "l.yaml:2:1: ckpt_path: a run goes on from its newest checkpoint; write last, or the folder of the best\n");
}

static void test_limits(void **state)
{
    (void)state;
    flags("  limit_val_batches: 0.25\n  limit_train_batches: 10\n",
          EVALUATED ", \"eval_batches\": 0.25, \"limit_train_batches\": 10", EACH_EPOCH, NULL);
    flags("  limit_val_batches: 1\n  limit_train_batches: 0.5\n",
          EVALUATED ", \"eval_batches\": 1, \"limit_train_batches\": 0.5", EACH_EPOCH, NULL);
    flags("  limit_val_batches: 1.0\n  limit_train_batches: 1.0\n  limit_test_batches: 0\n", EVALUATED, EACH_EPOCH,
          NULL);
    /* JSON says it as well */
    same_job("l.json", "{\"max_steps\": 8, \"limit_val_batches\": 1.0, \"limit_train_batches\": 1}", 1,
             "{\"training\": {\"max_steps\": 8, \"max_grad_norm\": 0, " EVALUATED
             ", \"limit_train_batches\": 1}, " EACH_EPOCH "}",
             NULL);
    flags("  overfit_batches: 5\n  limit_val_batches: 3\n", EVALUATED ", \"overfit_batches\": 5",
          EACH_EPOCH ", \"data\": {\"shuffle\": false}", "trainer.limit_val_batches (overfit_batches says how many)");
    flags("  overfit_batches: 0.0\n", EVALUATED, EACH_EPOCH, NULL);
    wrong_flags(
        "  overfit_batches: 1.0\n  limit_train_batches: 0\n",
        "l.yaml:3:3: trainer.overfit_batches: 1.0 trains on all batches, in one order; write data.shuffle false "
        "in the job\n");
    /* no evaluation at the end either */
    struct job job;
    write_file("l.yaml", "trainer: {max_epochs: 8, limit_val_batches: 0, check_val_every_n_epoch: 2}\n");
    opened(&job, "l.yaml", NULL, 1);
    assert_int_equal(job.data.val.count, 0);
    assert_true(job.training.eval_every_n_epochs == 0 && job.training.num_sanity_val_steps == 0);
    assert_string_equal(job.inert_keys, "data.val (limit_val_batches 0 evaluates nothing), "
                                        "trainer.check_val_every_n_epoch (there is no data.val)");
    job_close(&job);
    wrong_flags("  limit_train_batches: 0\n",
                "l.yaml:3:3: trainer.limit_train_batches: 0 trains nothing; remove it, or evaluate with train "
                "--evaluate\n");
    wrong_flags(
        "  limit_val_batches: 2.5\n  overfit_batches: all\n",
        "l.yaml:3:3: trainer.limit_val_batches: is 2.5; give a number of batches, or a share of them up to 1.0\n"
        "l.yaml:4:3: trainer.overfit_batches: is \"all\"; give a number of batches, or a share of them up to 1.0\n");
}

static void test_intervals(void **state)
{
    (void)state;
    static const char sanity[] = "\"num_sanity_val_steps\": 2, ";
    static const char *const rows[][2] = {
        {"  val_check_interval: 0.25\n", "\"eval_every_n_epochs\": 0.25"},
        {"  val_check_interval: 1.0\n", "\"eval_every_n_epochs\": 1"},
        {"  val_check_interval: 1\n", "\"eval_every_n_steps\": 1"},
        {"  val_check_interval: 40\n  check_val_every_n_epoch: null\n", "\"eval_every_n_steps\": 40"},
        {"  val_check_interval: 1.0\n  check_val_every_n_epoch: 5\n", "\"eval_every_n_epochs\": 5"},
        {"  check_val_every_n_epoch: 1\n", "\"eval_every_n_epochs\": 1"},
        {"  val_check_interval: 40\n  accumulate_grad_batches: 4\n",
         "\"eval_every_n_steps\": 10, \"gradient_accumulation_steps\": 4"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char ours[128];
        (void)snprintf(ours, sizeof ours, "%s%s", sanity, rows[i][1]);
        flags(rows[i][0], ours, EACH_EPOCH, NULL);
    }
    wrong_flags("  val_check_interval: 0.5\n  check_val_every_n_epoch: 2\n",
                "l.yaml:3:3: trainer.val_check_interval: counts within each epoch, and check_val_every_n_epoch leaves "
                "epochs out; remove one of them\n");
    wrong_flags("  val_check_interval: {minutes: 15}\n  check_val_every_n_epoch: 0\n",
                "l.yaml:3:3: trainer.val_check_interval: evaluations do not follow a clock; give a number of batches, "
                "or a share of an epoch\n"
                "l.yaml:4:3: trainer.check_val_every_n_epoch: is 0; give a whole number of epochs\n");
    wrong_flags("  val_check_interval: 00:00:15:00\n",
                "l.yaml:3:3: trainer.val_check_interval: evaluations do not follow a clock; give a number of batches, "
                "or a share of an epoch\n");
    wrong_flags(
        "  val_check_interval: 30\n  accumulate_grad_batches: 4\n",
        "l.yaml:3:3: trainer.val_check_interval: steps have 4 batches each; give a multiple of that, or a share "
        "of an epoch\n");
    wrong_flags(
        "  val_check_interval: 0.0\n",
        "l.yaml:3:3: trainer.val_check_interval: is 0; give a number of batches, or a share of an epoch up to 1.0\n");
    flags("  num_sanity_val_steps: 0\n", "\"eval_every_n_epochs\": 1", EACH_EPOCH, NULL);
    flags("  num_sanity_val_steps: -1\n", "\"eval_every_n_epochs\": 1, \"num_sanity_val_steps\": -1", EACH_EPOCH, NULL);
    wrong_flags("  num_sanity_val_steps: -2\n",
                "l.yaml:3:25: trainer.num_sanity_val_steps: is -2; give a whole number from -1 to 1000000000000\n");
    flags("  barebones: true\n", "\"eval_every_n_epochs\": 1",
          "\"checkpointing\": {\"save_every_n_steps\": 0, \"keep_last_n\": 1}", NULL);
    flags("  enable_checkpointing: false\n", EVALUATED,
          "\"checkpointing\": {\"save_every_n_steps\": 0, \"keep_last_n\": 1}", NULL);
}

/* A file without data to evaluate on evaluates nothing, as there; what its flags say of that is named. */
static void test_nothing_to_evaluate(void **state)
{
    (void)state;
    struct job job;
    struct dt_error err = {0};
    struct dt_text problems;
    const char *path = path_of("l.yaml"), *const set[] = {"model.name=gpt2", "data.train=x", "output_dir=o"};
    write_file("l.yaml", "trainer: {max_epochs: 8, val_check_interval: 0.5, check_val_every_n_epoch: 1, "
                         "num_sanity_val_steps: 2}\n");
    dt_text_init(&problems);
    struct job_arguments args = {.path = path, .set = set, .set_count = 3, .world = 1};
    assert_int_equal(job_open(&job, &args, &problems, &err), 0);
    assert_string_equal(job.inert_keys, "trainer.val_check_interval (there is no data.val)");
    assert_true(job.training.eval_every_n_epochs == 0 && job.training.num_sanity_val_steps == 0);
    job_close(&job);
    write_file("l.yaml", "trainer: {max_epochs: 8, callbacks: {class_path: EarlyStopping, init_args: {monitor: "
                         "val_loss}}}\n");
    assert_int_equal(job_open(&job, &args, &problems, &err), -1);
    assert_string_equal(plain(dt_text_str(&problems)),
                        "l.yaml:1:26: trainer.callbacks.EarlyStopping.monitor: looks at evaluations; give data.val\n");
    dt_text_clear(&problems);
}

/* Classes of Python count for nothing where the job has a model and data of its own, and are refused elsewhere. */
static void test_classes(void **state)
{
    (void)state;
    static const char text[] =
        "model:\n  class_path: a.Net\ndata:\n  x: {class_path: b.Data}\ntrainer: {max_epochs: 8}\n";
    same_job("l.yaml", text, 1,
             "{\"training\": {\"num_epochs\": 8, \"max_grad_norm\": 0, " EVALUATED "}, " EACH_EPOCH "}",
             "model (a.Net is Python; the job names the model), data (b.Data is Python; data.train has the data)");
    struct job job;
    struct dt_error err = {0};
    struct dt_text problems;
    struct job_arguments args = {.path = path_of("l.yaml"), .world = 1};
    dt_text_init(&problems);
    assert_int_equal(job_open(&job, &args, &problems, &err), -1);
    assert_non_null(
        strstr(plain(dt_text_str(&problems)),
               "l.yaml:1:1: model: a.Net is Python; name a model of ours (model.name in the job, or --set)\n"
               "l.yaml:3:1: data: b.Data is Python; give files (data.train in the job, or --set)\n"));
    dt_text_clear(&problems);
}

#define CALLBACKS(text) "  callbacks:\n" text
#define STOPPING(args)                                                                                                 \
    CALLBACKS("    - class_path: lightning.pytorch.callbacks.EarlyStopping\n      init_args: {" args "}\n")
#define SAVING(args)                                                                                                   \
    CALLBACKS("    - class_path: lightning.pytorch.callbacks.ModelCheckpoint\n      init_args: {" args "}\n")

static void test_early_stopping(void **state)
{
    (void)state;
    flags(STOPPING("monitor: val/loss, patience: 20"), EVALUATED,
          EACH_EPOCH ", \"early_stopping\": {\"monitor\": \"val_loss\", \"mode\": \"min\", \"patience\": 20}", NULL);
    flags(
        STOPPING("monitor: val_acc, mode: max, min_delta: 0.01, patience: 5, strict: true, check_finite: false, "
                 "stopping_threshold: 0.99, divergence_threshold: 0.1, verbose: true, check_on_train_epoch_end: true, "
                 "log_rank_zero_only: true"),
        EVALUATED,
        EACH_EPOCH ", \"early_stopping\": {\"monitor\": \"val_accuracy\", \"mode\": \"max\", \"min_delta\": 0.01, "
                   "\"patience\": 5, \"check_finite\": false, \"stopping_threshold\": 0.99, \"divergence_threshold\": "
                   "0.1}",
        NULL);
    /* Hydra's; without a mode an accuracy ends by min, as there */
    same_job("h.yaml",
             "trainer: {_target_: lightning.pytorch.trainer.Trainer, max_epochs: 8}\ncallbacks:\n  early_stopping: "
             "{_target_: lightning.pytorch.callbacks.EarlyStopping, monitor: valid_accuracy, strict: false}\n  rich: "
             "{_target_: lightning.pytorch.callbacks.RichProgressBar}\n  none: null\n",
             1,
             "{\"training\": {\"num_epochs\": 8, \"max_grad_norm\": 0, " EVALUATED "}, " EACH_EPOCH
             ", \"early_stopping\": {\"monitor\": \"val_accuracy\", \"mode\": \"min\"}}",
             "callbacks.EarlyStopping.strict (what no evaluation has is refused before the run begins)");
    wrong_flags(
        STOPPING("monitor: train_loss, mode: least, patience: -1, min_dleta: 1"),
        "l.yaml:3:3: trainer.callbacks.EarlyStopping.mode: is \"least\"; give one of: auto, min, max\n"
        "l.yaml:3:3: trainer.callbacks.EarlyStopping.patience: is -1; give a whole number from 0 to 1000000\n"
        "l.yaml:3:3: trainer.callbacks.EarlyStopping.monitor: train_loss is no value of an evaluation; there are "
        "val_loss, val_accuracy, val_f1_macro and val_pearson, and of a named set of data.val val_NAME_loss, "
        "...\n"
        "l.yaml:3:3: trainer.callbacks.EarlyStopping.min_dleta: unknown key; did you mean min_delta?\n");
    wrong_flags(
        STOPPING("monitor: train_loss"),
        "l.yaml:3:3: trainer.callbacks.EarlyStopping.monitor: train_loss is no value of an evaluation; there are "
        "val_loss, val_accuracy, val_f1_macro and val_pearson, and of a named set of data.val val_NAME_loss, "
        "...\n");
    wrong_flags("  val_check_interval: 0.5\n" STOPPING("monitor: val_loss, check_on_train_epoch_end: true"),
                "l.yaml:4:3: trainer.callbacks.EarlyStopping.check_on_train_epoch_end: each evaluation is looked at "
                "once, and epochs do not end with one each; remove it\n");
    wrong_flags(CALLBACKS("    - {class_path: EarlyStopping, init_args: {monitor: val_loss}}\n"
                          "    - {class_path: EarlyStopping, init_args: {monitor: val_acc}}\n"),
                "l.yaml:3:3: trainer.callbacks: EarlyStopping stands there more often than a job can have it; remove "
                "one\n");
}

static void test_model_checkpoint(void **state)
{
    (void)state;
    flags(SAVING("dirpath: here, monitor: val_loss, save_top_k: 3, save_last: true, verbose: true, "
                 "auto_insert_metric_name: false"),
          EVALUATED,
          "\"checkpointing\": {\"checkpoint_dir\": \"here\", \"monitor\": \"val_loss\", \"mode\": \"min\", "
          "\"save_top_k\": 3, \"save_every_n_epochs\": 1, \"keep_last_n\": 1}",
          NULL);
    flags(SAVING("monitor: val/acc, mode: max, every_n_train_steps: 50, save_weights_only: true, save_on_exception: "
                 "true, filename: \"{epoch}-{val_loss:.2f}\""),
          EVALUATED,
          "\"checkpointing\": {\"monitor\": \"val_accuracy\", \"mode\": \"max\", \"save_top_k\": 1, "
          "\"save_every_n_steps\": 50, \"keep_last_n\": 1}",
          "trainer.callbacks.ModelCheckpoint.save_weights_only (checkpoints hold all state, and model/ the weights), "
          "trainer.callbacks.ModelCheckpoint.save_on_exception (a run that fails goes on from its newest checkpoint), "
          "trainer.callbacks.ModelCheckpoint.filename");
    flags(SAVING("every_n_epochs: 2, save_top_k: -1"), EVALUATED,
          "\"checkpointing\": {\"save_every_n_epochs\": 2, \"keep_last_n\": 0}", NULL);
    flags(SAVING("every_n_epochs: 0"), EVALUATED, "\"checkpointing\": {\"save_every_n_steps\": 0, \"keep_last_n\": 1}",
          NULL);
    flags(SAVING("save_top_k: 0, monitor: val_loss"), EVALUATED,
          "\"checkpointing\": {\"save_every_n_steps\": 0, \"keep_last_n\": 1}", NULL);
    flags(CALLBACKS("    - {class_path: ModelCheckpoint, init_args: {monitor: val_loss, save_top_k: 2, mode: min}}\n"
                    "    - {class_path: ModelCheckpoint, init_args: {every_n_train_steps: 100, save_top_k: -1}}\n"),
          EVALUATED,
          "\"checkpointing\": {\"monitor\": \"val_loss\", \"mode\": \"min\", \"save_top_k\": 2, "
          "\"save_every_n_steps\": 100, \"keep_last_n\": 0}",
          NULL);
    flags(CALLBACKS("    - ModelCheckpoint\n"), EVALUATED, EACH_EPOCH, NULL);
    flags(SAVING("train_time_interval: {hours: 1, seconds: 1.5}"), EVALUATED,
          "\"checkpointing\": {\"save_every_n_seconds\": 3601.5, \"save_every_n_steps\": 0, \"keep_last_n\": 1}", NULL);
    flags(SAVING("train_time_interval: \"0:30:00\", every_n_train_steps: 9"), EVALUATED,
          "\"checkpointing\": {\"save_every_n_seconds\": 1800, \"save_every_n_steps\": 9, \"keep_last_n\": 1}", NULL);
    wrong_flags(SAVING("every_n_train_steps: 9, every_n_epochs: 1"),
                "l.yaml:3:3: trainer.callbacks.ModelCheckpoint.every_n_epochs: every_n_train_steps is given, too, and "
                "Lightning takes one of them; remove one\n");
    wrong_flags(SAVING("save_top_k: 3"),
                "l.yaml:3:3: trainer.callbacks.ModelCheckpoint.save_top_k: nothing says which are the best; give "
                "monitor, such as val_loss\n");
    wrong_flags(SAVING("save_top_k: some, train_time_interval: {years: 1}, mode: least, monitor: x, every_n_steps: 3"),
                "l.yaml:3:3: trainer.callbacks.ModelCheckpoint.save_top_k: is \"some\"; give a number of checkpoints, "
                "or -1 for "
                "all\n"
                "l.yaml:3:3: trainer.callbacks.ModelCheckpoint.train_time_interval: is an object; give a time: an "
                "object of weeks, days, hours, minutes, seconds, or \"H:MM:SS\"\n"
                "l.yaml:3:3: trainer.callbacks.ModelCheckpoint.mode: is \"least\"; give one of: auto, min, max\n"
                "l.yaml:3:3: trainer.callbacks.ModelCheckpoint.monitor: x is no value of an evaluation; there are "
                "val_loss, val_accuracy, val_f1_macro and val_pearson, and of a named set of data.val val_NAME_loss, "
                "...\n"
                "l.yaml:3:3: trainer.callbacks.ModelCheckpoint.every_n_steps: unknown key; remove it\n");
}

static void test_callbacks(void **state)
{
    (void)state;
    flags(CALLBACKS(
              "    - class_path: LearningRateMonitor\n      init_args: {logging_interval: epoch}\n    - class_path: "
              "RichModelSummary\n    - class_path: ThroughputMonitor\n    - class_path: DeviceStatsMonitor\n    - "
              "class_path: OnExceptionCheckpoint\n      init_args: {dirpath: x}\n    - class_path: a.Mine\n"),
          EVALUATED, EACH_EPOCH,
          "trainer.callbacks (DeviceStatsMonitor: metrics.jsonl has memory, and what a GPU does), trainer.callbacks "
          "(OnExceptionCheckpoint: a run that fails goes on from its newest checkpoint), trainer.callbacks (Mine is "
          "Python)");
    wrong_flags(
        CALLBACKS("    - class_path: EMAWeightAveraging\n    - class_path: LearningRateFinder\n    - class_path: "
                  "BatchSizeFinder\n    - class_path: SpikeDetection\n    - class_path: ModelPruning\n    - "
                  "class_path: BackboneFinetuning\n"),
        "l.yaml:3:3: trainer.callbacks: EMAWeightAveraging: averages of weights are not there yet; remove it\n"
        "l.yaml:3:3: trainer.callbacks: LearningRateFinder: no rate is searched for; remove it, "
        "lr_scheduler_type lrrangetest sweeps over rates\n"
        "l.yaml:3:3: trainer.callbacks: BatchSizeFinder: no batch size is searched for; remove it, train --plan "
        "says what fits\n"
        "l.yaml:3:3: trainer.callbacks: SpikeDetection: here it is training.loss_guard_factor, or "
        "skip_update_lossz; write that, and remove it\n"
        "l.yaml:3:3: trainer.callbacks: ModelPruning: weights are not pruned; remove it\n"
        "l.yaml:3:3: trainer.callbacks: BackboneFinetuning: what is frozen stays so; remove it, "
        "training.freeze names tensors\n");
}

/* TrainingArguments beside num_train_epochs. */
static void arguments(const char *text, const char *training, const char *checkpointing, const char *more,
                      const char *inert)
{
    char all[1024], ours[1024];
    (void)snprintf(all, sizeof all, "num_train_epochs: 2\n%s", text);
    (void)snprintf(ours, sizeof ours,
                   "{\"training\": {\"num_epochs\": 2, \"loss_normalization\": \"global_tokens\"%s%s}, "
                   "\"checkpointing\": {%s}%s%s%s}",
                   *training != 0 ? ", " : "", training, checkpointing, ", \"logging\": {\"log_every_n_steps\": 500}",
                   *more != 0 ? ", " : "", more);
    same_job("t.yaml", all, 1, ours, inert);
}

static void wrong_arguments(const char *text, const char *message)
{
    char all[1024];
    (void)snprintf(all, sizeof all, "num_train_epochs: 2\n%s", text);
    refused("t.yaml", all, 1, message);
}

#define EACH_500 "\"save_every_n_steps\": 500, \"keep_last_n\": 0"
#define BEST "\"save_top_k\": 1, \"load_best_model_at_end\": true"

static void test_arguments(void **state)
{
    (void)state;
    arguments("eval_strategy: epoch\n", "\"eval_every_n_epochs\": 1", EACH_500, "", NULL);
    arguments("evaluation_strategy: steps\n", "\"eval_every_n_steps\": 500", EACH_500, "", NULL);
    arguments("eval_strategy: steps\neval_steps: 0\n", "\"eval_every_n_steps\": 500", EACH_500, "", NULL);
    arguments("eval_strategy: 'no'\neval_steps: 7\n", "", EACH_500, "", NULL);
    arguments("eval_strategy: steps\neval_steps: 0.25\nsave_steps: 0.5\n", "\"eval_every_n_epochs\": 0.5",
              "\"save_every_n_epochs\": 1, \"keep_last_n\": 0", "", NULL);
    arguments("eval_strategy: steps\neval_steps: 0.3\nsave_steps: 0.5\nmax_steps: 11\n",
              "\"eval_every_n_steps\": 4, \"max_steps\": 11", "\"save_every_n_steps\": 6, \"keep_last_n\": 0", "",
              NULL);
    arguments("evals_per_epoch: 4\nsaves_per_epoch: 2\n", "\"eval_every_n_epochs\": 0.25",
              "\"save_every_n_epochs\": 0.5, \"keep_last_n\": 0", "", NULL);
    arguments("eval_strategy: epoch\neval_on_start: true\n", "\"eval_every_n_epochs\": 1, \"num_sanity_val_steps\": -1",
              EACH_500, "", NULL);
    arguments("save_strategy: epoch\nsave_total_limit: 3\nsave_only_model: true\n", "",
              "\"save_every_n_epochs\": 1, \"keep_last_n\": 3", "",
              "save_only_model (checkpoints hold all state, and model/ the weights)");
    arguments(
        "save_strategy: best\neval_strategy: epoch\nmetric_for_best_model: accuracy\n", "\"eval_every_n_epochs\": 1",
        "\"save_every_n_steps\": 0, \"save_top_k\": 1, \"keep_last_n\": 0, \"monitor\": \"val_accuracy\"", "", NULL);
    arguments("logging_strategy: no\n", "", EACH_500, "", "logging_strategy (lines come by logging_steps)");
    arguments("logging_strategy: epoch\n", "", EACH_500, "", "logging_strategy (lines come by logging_steps)");
    wrong_arguments(
        "eval_strategy: daily\nsave_strategy: daily\neval_delay: some\nevals_per_epoch: 0.5\nlogging_steps: "
        "0.1\nload_best_model_at_end: 7\n",
        "t.yaml:2:1: eval_strategy: is \"daily\"; give one of: steps, no, false, epoch\n"
        "t.yaml:3:1: save_strategy: is \"daily\"; give one of: steps, no, false, epoch, best\n"
        "t.yaml:4:13: eval_delay: is \"some\"; give a number from 0 to 1000000\n"
        "t.yaml:5:1: evals_per_epoch: is 0.5; give a whole number\n"
        "t.yaml:6:1: logging_steps: a share of all steps, which max_steps alone says; give a number of "
        "steps\n"
        "t.yaml:7:1: load_best_model_at_end: is 7; give one of: true, false\n");
}

/* Keys of LLaMA-Factory's and axolotl's examples. */
static void test_other_programs(void **state)
{
    (void)state;
    arguments("pure_bf16: true\nenable_liger_kernel: true\nneat_packing: false\nmask_history: false\nuse_unsloth: "
              "true\nstreaming: false\n",
              "\"precision\": \"bf16-true\"", EACH_500, "", "use_unsloth (speed alone)");
    arguments("cosine_min_lr_ratio: 0.1\nlr_scheduler: cosine\nxformers_attention:\neval_table_size:\nstrict: false\n"
              "model_type: LlamaForCausalLM\nlora_model_dir:\nlogging_first_step: true\nrl:\n",
              "\"min_lr_ratio\": 0.1, \"lr_scheduler_type\": \"cosine\"", EACH_500, "",
              "logging_first_step (lines come by logging_steps)");
    wrong_arguments("neat_packing: true\ncontext_parallel_size: 2\nunfrozen_parameters: [\"^lm_head\"]\n",
                    "t.yaml:2:1: neat_packing: is true: not there yet; remove it\n"
                    "t.yaml:3:1: context_parallel_size: is 2: a layer is not split over ranks; write 1, and fsdp or "
                    "deepspeed shards its weights\n"
                    "t.yaml:4:1: unfrozen_parameters: training.freeze names the tensors that stay; write that, and "
                    "remove it\n");
}

static void test_best_model(void **state)
{
    (void)state;
    arguments("load_best_model_at_end: true\neval_strategy: epoch\nsave_strategy: epoch\nsave_total_limit: 2\n",
              "\"eval_every_n_epochs\": 1", "\"save_every_n_epochs\": 1, \"keep_last_n\": 1, " BEST, "", NULL);
    arguments(
        "load_best_model_at_end: true\neval_strategy: steps\neval_steps: 50\nsave_steps: 100\nsave_total_limit: "
        "1\nmetric_for_best_model: eval_f1\ngreater_is_better: false\n",
        "\"eval_every_n_steps\": 50",
        "\"save_every_n_steps\": 100, \"keep_last_n\": 1, \"monitor\": \"val_f1_macro\", \"mode\": \"min\", " BEST, "",
        NULL);
    arguments("metric_for_best_model: accuracy\ngreater_is_better: true\n", "", EACH_500, "", NULL); /* as there */
    arguments("early_stopping_patience: 3\neval_strategy: epoch\n", "\"eval_every_n_epochs\": 1", EACH_500,
              "\"early_stopping\": {\"monitor\": \"val_loss\", \"patience\": 3, \"check_finite\": false}", NULL);
    arguments("early_stopping_patience: 3\nearly_stopping_threshold: 0.1\nmetric_for_best_model: "
              "eval_accuracy\ngreater_is_better: true\neval_strategy: epoch\nload_best_model_at_end: true\n",
              "\"eval_every_n_epochs\": 1", EACH_500 ", \"monitor\": \"val_accuracy\", \"mode\": \"max\", " BEST,
              "\"early_stopping\": {\"monitor\": \"val_accuracy\", \"mode\": \"max\", \"patience\": 3, \"min_delta\": "
              "0.1, \"compare_with_best\": true, \"check_finite\": false}",
              NULL);
    arguments("optimizer: muon\n", "", EACH_500, "\"optimizer\": {\"name\": \"muon\"}", NULL);
    arguments("use_muon: true\n", "", EACH_500, "\"optimizer\": {\"name\": \"muon\"}", NULL);
    wrong_arguments("load_best_model_at_end: true\n",
                    "t.yaml:2:1: load_best_model_at_end: looks at evaluations; give training.eval_every_n_steps or "
                    "training.eval_every_n_epochs\n");
    wrong_arguments("load_best_model_at_end: true\neval_strategy: epoch\nmetric_for_best_model: rouge1\n",
                    "t.yaml:4:1: metric_for_best_model: rouge1 is no value of an evaluation; there are val_loss, "
                    "val_accuracy, val_f1_macro and val_pearson, and of a named set of data.val val_NAME_loss, ...\n");
    wrong_arguments("early_stopping_patience: many\neval_strategy: epoch\nsave_total_limit: few\n",
                    "t.yaml:2:26: early_stopping_patience: is \"many\"; give a whole number from 0 to 1000000\n"
                    "t.yaml:4:1: save_total_limit: is \"few\"; give a number\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_length),         cmocka_unit_test(test_ends),
        cmocka_unit_test(test_limits),         cmocka_unit_test(test_intervals),
        cmocka_unit_test(test_early_stopping), cmocka_unit_test(test_nothing_to_evaluate),
        cmocka_unit_test(test_callbacks),      cmocka_unit_test(test_model_checkpoint),
        cmocka_unit_test(test_classes),        cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_other_programs), cmocka_unit_test(test_best_model)};
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
