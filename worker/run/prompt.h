/* Prompts as people write them, and rows as they read them. */
#ifndef DT_WORKER_RUN_PROMPT_H
#define DT_WORKER_RUN_PROMPT_H

#include "worker/run/generate.h"

struct tokenizer;
struct prompts {
    struct generate_row *rows;
    int64_t count;
    struct tokenizer *tokenizer; /* of the source, if a prompt is a text; null: ids are bytes */
};

/* Adds a text: by the source's tokenizer, with the special tokens that it adds, or as bytes where there is
 * none and the model has 256 ids at most. DT_INVALID: neither is the case, the tokenizer is not right, or
 * the model does not know a byte. */
int prompts_add_text(struct prompts *p, const struct model_source *source, const char *text, struct dt_error *err);
/* Adds ids as they are listed, "5,17,3", or with "@FILE" a prompt per line of the file, except empty lines.
 * Blanks may stand beside a comma, or in its place. */
int prompts_add_ids(struct prompts *p, const char *list, struct dt_error *err);
/* Adds the prompts of the job: texts, then ids. */
int prompts_add_job(struct prompts *p, const struct model_source *source, const struct job_generation *job,
                    struct dt_error *err);
void prompts_clear(struct prompts *p);

/* Appends the text of ids, without special tokens. t: null if ids are bytes; control characters and what is
 * not ASCII become dots then. */
void prompt_show_text(const struct tokenizer *t, const int32_t *ids, int64_t count, struct dt_text *out);
/* Appends a generated text as a terminal may have it: newlines and tabs stay, other characters that are not
 * visible become escapes. */
void prompt_show_visible(const struct dt_text *text, struct dt_text *out);
/* Appends "5,17,3". */
void prompt_show_ids(const int32_t *ids, int64_t count, struct dt_text *out);
/* Appends a generated row as JSON members: "row": 0, "prompt_ids": [...], "ids": [...], "end": "length". */
void prompt_show_json(int64_t number, const struct generate_row *r, struct dt_text *out);

#endif
