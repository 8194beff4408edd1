/* See the header. */
#include "cmd/train/generate.h"

#include "base/error.h"
#include "worker/data/tokenizers/tokenizer.h"
#include "worker/run/prompt.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

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
    } else if (!g->chats && g->system != NULL) {
        (void)fprintf(stderr, "train: --system: only with --chat; see train --help\n");
    } else if (g->chats && (g->count > 0 || g->batch_size > 0 || g->json)) {
        (void)fprintf(stderr,
                      "train: --chat: reads its prompts from standard input, and takes no --prompt, --prompt_ids, "
                      "--batch_size and --json\n");
    } else if (g->path != NULL && beside != NULL) {
        (void)fprintf(
            stderr,
            "train: --generate, --chat: not beside %s, nor under dtrun, which asks for a plan first; it runs alone\n",
            beside);
    } else {
        return true;
    }
    return false;
}

static void print_next(struct train_stream *s)
{
    struct dt_text shown;
    dt_text_init(&shown);
    prompt_show_visible(&s->text, &shown);
    (void)fwrite(dt_text_str(&shown), 1, shown.size, stdout);
    (void)fflush(stdout);
    dt_text_reset(&s->text);
    dt_text_clear(&shown);
}

void train_stream_add(struct train_stream *s, int32_t id)
{
    tokenizer_decoder_add(s->decoder, id, &s->text);
    print_next(s);
}

static bool on_id(void *context, int64_t row, int32_t id)
{
    struct train_stream *s = context;
    (void)row;
    train_stream_add(s, id);
    return true;
}

void train_stream_open(struct train_stream *s, const struct tokenizer *t, struct generate_options *options)
{
    *s = (struct train_stream){.decoder = tokenizer_decoder_open(t, true)};
    dt_text_init(&s->text);
    options->tell = on_id;
    options->context = s;
}

void train_stream_end(struct train_stream *s)
{
    tokenizer_decoder_end(s->decoder, &s->text);
    dt_text_puts(&s->text, "\n");
    print_next(s);
    tokenizer_decoder_close(s->decoder);
    dt_text_clear(&s->text);
}

static void print_row(const struct train_generate *g, const struct tokenizer *t, int64_t number,
                      const struct generate_row *r)
{
    struct dt_text line, text;
    dt_text_init(&line);
    dt_text_init(&text);
    if (r->is_text) {
        prompt_show_text(t, r->ids, r->count, &text);
    }
    if (g->json) {
        dt_text_puts(&line, "{");
        prompt_show_json(number, r, &line);
        if (r->is_text) {
            dt_text_puts(&line, ", \"text\": ");
            dt_text_json(&line, dt_text_str(&text), text.size);
        }
        dt_text_puts(&line, "}");
    } else if (r->is_text) {
        prompt_show_visible(&text, &line);
    } else {
        prompt_show_ids(r->ids + r->prompt_count, r->count - r->prompt_count, &line);
    }
    (void)puts(dt_text_str(&line));
    dt_text_clear(&text);
    dt_text_clear(&line);
}

/* Generates the rows and prints them. */
static int continue_rows(const struct train_generate *g, const struct model_source *source, struct prompts *p,
                         struct generate_options *options, struct dt_error *err)
{
    struct train_stream s;
    bool streams = !g->json && p->count == 1 && p->rows[0].is_text && p->tokenizer != NULL;
    if (streams) { /* begins with the prompt's own text */
        train_stream_open(&s, p->tokenizer, options);
        for (int64_t i = 0; i < p->rows[0].prompt_count; i++) {
            train_stream_add(&s, p->rows[0].ids[i]);
        }
    }
    int rc = generate_rows(source, options, p->rows, p->count, err);
    if (streams) {
        train_stream_end(&s);
    }
    for (int64_t i = 0; i < p->count && rc == 0 && !streams; i++) {
        print_row(g, p->tokenizer, i, &p->rows[i]);
    }
    return rc;
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
    rc = rc == 0 && !g->chats ? read_prompts(g, &source, job, &prompts, err) : rc;
    if (rc == 0 && g->chats) {
        rc = train_chat(&source, g->system, &options, err);
    } else if (rc == 0) {
        options.batch_size = g->batch_size > 0 ? g->batch_size : options.batch_size;
        rc = continue_rows(g, &source, &prompts, &options, err);
    }
    prompts_clear(&prompts);
    model_source_close(&source);
    dt_text_clear(&ignored);
    dt_text_clear(&notes);
    return rc;
}

/* Says that nothing is at the path, where the text of a prompt may stand by mistake. */
static bool is_there(const struct train_generate *g, const char *path, const char *what)
{
    struct stat st;
    bool there = stat(path, &st) == 0 || errno != ENOENT;
    if (!there) {
        (void)fprintf(stderr, "train: %s: no such %s%s\n", path, what,
                      g->chats ? "" : "; a text to continue is given by --prompt TEXT");
    }
    return there;
}

int train_generate(const struct train_generate *g, const struct job_arguments *args)
{
    if (!is_there(g, g->path, "folder") || (args->path != NULL && !is_there(g, args->path, "job file"))) {
        return DT_EXIT_USAGE;
    }
    struct job job;
    struct dt_error err = {.status = DT_OK};
    struct dt_text problems;
    dt_text_init(&problems);
    int rc = job_read_generation(&job, args, &problems, &err);
    if (rc != 0) {
        (void)fprintf(stderr, "%s", dt_text_str(&problems));
    } else if (!g->chats && g->count == 0 && job.generation.prompt.count + job.generation.prompt_ids.count == 0) {
        (void)fprintf(stderr, "train: --generate: no prompt; give --prompt TEXT or --prompt_ids 1,2,3\n");
        rc = dt_fail(&err, DT_USAGE, "no prompt");
    } else if ((rc = generate(g, &job.generation, &err)) != 0) {
        (void)fprintf(stderr, "train: %s\n", err.text);
    }
    job_close(&job);
    dt_text_clear(&problems);
    return rc == 0 ? DT_EXIT_DONE : err.status == DT_NO_MEMORY || err.status == DT_IO ? 1 : DT_EXIT_USAGE;
}
