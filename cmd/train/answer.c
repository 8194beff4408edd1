/* --list-strategies, --explain, --convert: nothing is trained. */
#include "cmd/train/answer.h"

#include "base/file.h"
#include "worker/engine/strategy.h"
#include "worker/job/convert.h"
#include "worker/job/dialects/dialect.h"
#include "worker/run/trainer.h"

#include <stdio.h>
#include <string.h>

int train_answer(const struct train_question *q, const struct job_arguments *job)
{
    struct dt_text text, notes;
    struct dt_error err = {.status = DT_OK};
    int code = -1;
    dt_text_init(&text);
    dt_text_init(&notes);
    if (q->list_strategies) {
        strategy_list(&text);
        code = DT_EXIT_DONE;
        if (job->path != NULL && job_list_strategies(job->path, &text, &err) != 0) {
            code = DT_EXIT_USAGE;
            dt_text_printf(&notes, "%s\n", err.text);
        }
    } else if (q->explain != NULL) {
        bool known = dialects_explain(q->explain, &text);
        code = known ? DT_EXIT_DONE : DT_EXIT_USAGE;
        if (!known) {
            dt_text_printf(&notes, "--explain: %s\n", dt_text_str(&text));
            dt_text_reset(&text);
        }
    } else if (q->convert != NULL) {
        code = job_convert(job, &text, &notes, &err) == 0 ? DT_EXIT_DONE : DT_EXIT_USAGE;
        if (code == DT_EXIT_DONE && q->output != NULL) {
            if (dt_file_write(q->output, text.data, text.size, &err) != 0) {
                dt_text_printf(&notes, "%s\n", err.text);
                code = DT_EXIT_USAGE;
            }
            dt_text_reset(&text);
        }
    }
    fputs(dt_text_str(&text), stdout);
    for (const char *p = dt_text_str(&notes); *p != 0; p += *p == '\n') {
        size_t size = strcspn(p, "\n");
        fprintf(stderr, "train: %.*s\n", (int)size, p);
        p += size;
    }
    dt_text_clear(&text);
    dt_text_clear(&notes);
    return code;
}
