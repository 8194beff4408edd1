/* covers: worker/job/dialects worker/job/convert.c base/yaml.c */
/* Files with the keys of those that public projects have: what each comes to, line by line.
 * tests/golden/dialects/outcomes.txt has it; DT_UPDATE=1 writes it anew. */
#include "tests/lib/job_files.h"
#include "worker/job/convert.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define FOLDER "tests/golden/dialects/"
#define OUTCOMES FOLDER "outcomes.txt"

/* A file, the ranks that it is opened for, and what the job says besides data and model. */
static const struct {
    const char *file;
    int ranks;
    const char *model, *set;
} cases[] = {
    {"lamb_sparse.json", 4, "bert", NULL},
    {"predivided_adam.json", 4, "bert", NULL},
    {"one_cycle.json", 4, "bert", NULL},
    {"stage1_fp16.json", 3, "gpt2", NULL},
    {"infinity.json", 2, "gpt2", NULL},
    {"infinity_mended.json", 2, "gpt2", NULL},
    {"all_auto.json", 2, "gpt2", NULL},
    {"all_auto.json", 2, "gpt2", "training.batch_size_per_gpu=3"},
    {"wrong_auto.json", 1, "gpt2", NULL},
    {"leaf_cosine.json", 2, "gpt2", NULL},
    {"old_names.json", 3, "gpt2", NULL},
    {"old_names.json", 4, "gpt2", NULL},
    {"one_bit.json", 2, "gpt2", NULL},
    {"no_batch.json", 1, "bert", NULL},
    {"elastic.json", 2, "gpt2", NULL},
    {"elastic.json", 3, "gpt2", NULL},
    {"template.json", 1, "gpt2", NULL},
    {"fsdp1.yaml", 2, "bert", NULL},
    {"fsdp1.yaml", 2, "gpt2", NULL},
    {"tensor_parallel.yaml", 8, "gpt2", NULL},
    {"unknown_keys.yaml", 1, "gpt2", NULL},
    {"block_strings.json", 2, "gpt2", NULL},
    {"recipe.yaml", 1, "gpt2", NULL},
    {"recipe.yaml", 1, "gpt2", "data.val=y"},
    {"trainer_flags.yaml", 1, "gpt2", NULL},
    {"command_line.yaml", 1, "bert", "data.val=y"},
    {"command_line.yaml", 1, "bert", NULL},
    {"monitored.yaml", 1, "gpt2", "data.val=y"},
    {"twice.yaml", 1, "gpt2", NULL},
    {"arguments5.json", 1, "gpt2", "data.val=y"},
    {"arguments4.json", 1, "gpt2", "data.val=y"},
    {"all_flags.yaml", 1, "gpt2", "data.val=y"},
};

static void say(const struct job *job, struct dt_text *out)
{
    const struct job_training *t = &job->training;
    dt_text_printf(out, "taken: %s, %s, batch %lld * %lld, %s %g, %s\n", t->strategy, t->precision,
                   (long long)t->batch_size_per_gpu, (long long)t->gradient_accumulation_steps, job->optimizer.name,
                   t->learning_rate, t->lr_scheduler_type);
    if (job->stopping.monitor != NULL || job->checkpointing.save_top_k > 0) {
        dt_text_printf(
            out,
            "evaluated every %g epochs or %lld steps, %g batches; ends by %s; the best %lld and the newest %lld stay\n",
            t->eval_every_n_epochs, (long long)t->eval_every_n_steps, t->eval_batches,
            job->stopping.monitor != NULL ? job->stopping.monitor : "nothing", (long long)job->checkpointing.save_top_k,
            (long long)job->checkpointing.keep_last_n);
    }
    if (job->inert_keys != NULL) {
        dt_text_printf(out, "no effect: %s\n", job->inert_keys);
    }
}

static void test_outcomes(void **state)
{
    (void)state;
    struct dt_text all, file, problems;
    struct dt_error err = {0};
    dt_text_init(&all);
    dt_text_init(&file);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct job job;
        char path[96], model[64];
        (void)snprintf(path, sizeof path, FOLDER "%s", cases[i].file);
        (void)snprintf(model, sizeof model, "model.name=%s", cases[i].model);
        const char *const set[] = {model, "data.train=x", cases[i].set};
        struct job_arguments args = {
            .path = path, .set = set, .set_count = cases[i].set != NULL ? 3 : 2, .world = cases[i].ranks};
        dt_text_init(&problems);
        dt_text_printf(&all, "== %s, %s, %d rank%s%s%s\n", cases[i].file, cases[i].model, cases[i].ranks,
                       cases[i].ranks == 1 ? "" : "s", cases[i].set != NULL ? ", " : "",
                       cases[i].set != NULL ? cases[i].set : "");
        if (job_open(&job, &args, &problems, &err) == 0) {
            say(&job, &all);
            job_close(&job);
        } else {
            dt_text_puts(&all, dt_text_str(&problems));
        }
        dt_text_clear(&problems);
    }
    if (getenv("DT_UPDATE") != NULL) {
        assert_int_equal(dt_file_write(OUTCOMES, all.data, all.size, &err), 0);
    }
    assert_int_equal(dt_file_read(OUTCOMES, 1 << 20, &file, &err), 0);
    for (const char *a = all.data, *b = file.data; *a != 0 || *b != 0;) { /* line by line, to say which */
        size_t size = strcspn(a, "\n"), other = strcspn(b, "\n");
        if (size != other || strncmp(a, b, size) != 0) {
            fail_msg("%.*s\n   not: %.*s", (int)size, a, (int)other, b);
        }
        a += size + (a[size] != 0);
        b += other + (b[other] != 0);
    }
    dt_text_clear(&all);
    dt_text_clear(&file);
}

/* A file as a job of ours says the same of every key. */
static void comes_back(const char *path, const struct job_arguments *args, const struct job *job)
{
    struct job again;
    struct dt_text out, notes;
    struct dt_error err = {0};
    struct job_arguments same = *args;
    same.path = path_of("converted.json");
    dt_text_init(&out);
    dt_text_init(&notes);
    assert_int_equal(job_convert(args, &out, &notes, &err), 0);
    write_file("converted.json", dt_text_str(&out));
    if (job_open(&again, &same, &notes, &err) != 0) {
        fail_msg("%s, converted: %s", path, dt_text_str(&notes));
    }
    for (const char *a = job->text, *b = again.text; *a != 0 && *b != 0;) { /* line by line, to say which */
        size_t size = strcspn(a, "\n");
        if (strncmp(a, b, size + 1) != 0) {
            fail_msg("%s: %.*s, and converted: %.*s", path, (int)size, a, (int)strcspn(b, "\n"), b);
        }
        a += size + (a[size] != 0);
        b += size + (b[size] != 0);
    }
    job_close(&again);
    dt_text_clear(&out);
    dt_text_clear(&notes);
}

static void test_round_trip(void **state)
{
    (void)state;
    int taken = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct job job;
        struct dt_text problems;
        struct dt_error err = {0};
        char path[96], model[64];
        (void)snprintf(path, sizeof path, FOLDER "%s", cases[i].file);
        (void)snprintf(model, sizeof model, "model.name=%s", cases[i].model);
        const char *const set[] = {model, "data.train=x", "output_dir=o", cases[i].set};
        struct job_arguments args = {
            .path = path, .set = set, .set_count = cases[i].set != NULL ? 4 : 3, .world = cases[i].ranks};
        dt_text_init(&problems);
        if (job_open(&job, &args, &problems, &err) == 0) {
            comes_back(path, &args, &job);
            job_close(&job);
            taken++;
        }
        dt_text_clear(&problems);
    }
    assert_in_range(taken, 12, 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_outcomes), cmocka_unit_test(test_round_trip)};
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
