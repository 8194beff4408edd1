/* Prompts as people write them, and rows as they read them. */
#ifndef DT_WORKER_RUN_PROMPT_H
#define DT_WORKER_RUN_PROMPT_H

#include "worker/run/generate.h"

struct prompts {
    struct generate_row *rows;
    int64_t count;
};

/* Adds the bytes of a text as ids: of a model over bytes, with 256 ids at most. DT_INVALID for another
 * model, and for a byte that it does not know. */
int prompts_add_text(struct prompts *p, const struct model_source *source, const char *text, struct dt_error *err);
/* Adds ids as they are listed, "5,17,3", or with "@FILE" a prompt per line of the file, except empty lines.
 * Blanks may stand beside a comma, or in its place. */
int prompts_add_ids(struct prompts *p, const char *list, struct dt_error *err);
/* Adds the prompts of the job: texts, then ids. */
int prompts_add_job(struct prompts *p, const struct model_source *source, const struct job_generation *job,
                    struct dt_error *err);
void prompts_clear(struct prompts *p);

/* Appends ids that are bytes as text; control characters and what is not ASCII become dots. */
void prompt_show_text(const int32_t *ids, int64_t count, struct dt_text *out);
/* Appends "5,17,3". */
void prompt_show_ids(const int32_t *ids, int64_t count, struct dt_text *out);
/* Appends a generated row as JSON members: "row": 0, "prompt_ids": [...], "ids": [...], "end": "length". */
void prompt_show_json(int64_t number, const struct generate_row *r, struct dt_text *out);

#endif
