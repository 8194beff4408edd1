/* See the header. */
#include "cmd/train/generate.h"

#include "base/error.h"
#include "worker/run/prompt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void train_add_prompt(struct train_generate *g, bool is_text, const char *value)
{
    g->prompts = dt_realloc(g->prompts, (size_t)(g->count + 1) * sizeof *g->prompts);
    g->prompts[g->count++] = (struct train_prompt){.is_text = is_text, .value = value};
}

bool train_check_generate(const struct train_generate *g, const char *beside)
{
    if (g->path == NULL && (g->count > 0 || g->batch_size > 0)) {
        const char *option = g->count == 0 ? "--batch_size" : g->prompts[0].is_text ? "--prompt" : "--prompt_ids";
        (void)fprintf(stderr, "train: %s: only with --generate; see train --help\n", option);
    } else if (g->path != NULL && beside != NULL) {
        (void)fprintf(stderr,
                      "train: --generate: not beside %s, nor under dtrun, which asks for a plan first; it runs alone\n",
                      beside);
    } else {
        return true;
    }
    return false;
}

static void print_row(const struct train_generate *g, int64_t number, const struct generate_row *r)
{
    struct dt_text line;
    dt_text_init(&line);
    if (g->json) {
        dt_text_puts(&line, "{");
        prompt_show_json(number, r, &line);
        dt_text_puts(&line, "}");
    } else if (r->is_text) {
        prompt_show_text(r->ids, r->count, &line);
    } else {
        prompt_show_ids(r->ids + r->prompt_count, r->count - r->prompt_count, &line);
    }
    (void)puts(dt_text_str(&line));
    dt_text_clear(&line);
}

/* The prompts of the options; without them, those of the job. */
static int read_prompts(const struct train_generate *g, const struct model_source *source,
                        const struct job_generation *job, struct prompts *out, struct dt_error *err)
{
    int rc = g->count == 0 ? prompts_add_job(out, source, job, err) : 0;
    for (int i = 0; i < g->count && rc == 0; i++) {
        const struct train_prompt *p = &g->prompts[i];
        rc = p->is_text ? prompts_add_text(out, source, p->value, err) : prompts_add_ids(out, p->value, err);
        rc = rc == 0 ? 0 : dt_wrap(err, p->is_text ? "--prompt" : "--prompt_ids");
    }
    return rc;
}

static int generate(const struct train_generate *g, const struct job_generation *job, struct dt_error *err)
{
    struct model_source source;
    struct generate_options options;
    struct prompts prompts = {0};
    struct dt_text notes, ignored;
    dt_text_init(&notes);
    dt_text_init(&ignored);
    int rc = model_source_open(&source, g->path, &notes, err);
    if (notes.size > 0) {
        dt_text_say(stderr, "train: %s", dt_text_str(&notes));
    }
    rc = rc == 0 ? generate_settings(&source, job, &options, &ignored, err) : rc;
    if (ignored.size > 0) {
        dt_text_say(stderr, "train: %s: generation_config.json: not computed: %s", source.path, dt_text_str(&ignored));
    }
    rc = rc == 0 ? read_prompts(g, &source, job, &prompts, err) : rc;
    if (rc == 0) {
        options.batch_size = g->batch_size > 0 ? g->batch_size : options.batch_size;
        rc = generate_rows(&source, &options, prompts.rows, prompts.count, err);
    }
    for (int64_t i = 0; i < prompts.count && rc == 0; i++) {
        print_row(g, i, &prompts.rows[i]);
    }
    prompts_clear(&prompts);
    model_source_close(&source);
    dt_text_clear(&ignored);
    dt_text_clear(&notes);
    return rc;
}

int train_generate(const struct train_generate *g, const struct job_arguments *args)
{
    struct job job;
    struct dt_error err = {.status = DT_OK};
    struct dt_text problems;
    dt_text_init(&problems);
    int rc = job_read_generation(&job, args, &problems, &err);
    if (rc != 0) {
        (void)fprintf(stderr, "%s", dt_text_str(&problems));
    } else if (g->count == 0 && job.generation.prompt.count + job.generation.prompt_ids.count == 0) {
        (void)fprintf(stderr, "train: --generate: no prompt; give --prompt_ids 1,2,3 or --prompt TEXT\n");
        rc = dt_fail(&err, DT_USAGE, "no prompt");
    } else if ((rc = generate(g, &job.generation, &err)) != 0) {
        (void)fprintf(stderr, "train: %s\n", err.text);
    }
    job_close(&job);
    dt_text_clear(&problems);
    return rc == 0 ? DT_EXIT_DONE : err.status == DT_NO_MEMORY || err.status == DT_IO ? 1 : DT_EXIT_USAGE;
}
