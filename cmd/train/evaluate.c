/* See the header. */
#include "cmd/train/evaluate.h"

#include "cmd/train/plan.h"
#include "worker/run/model_source.h"
#include "worker/run/trainer.h"

#include <stdio.h>

static bool evaluation_open(struct observer *o)
{
    return o->all->world->rank == 0;
}

static void evaluation_report(struct observer *o, const struct report *r, enum moment moment)
{
    (void)o;
    if (moment != MOMENT_EVALUATION) {
        return;
    }
    struct dt_text line;
    dt_text_init(&line);
    dt_text_printf(&line, "{\"step\": %lld", (long long)r->step);
    observer_add_evaluation(&line, r);
    (void)printf("%s}\n", dt_text_str(&line));
    (void)fflush(stdout);
    dt_text_clear(&line);
}

const struct observer_ops observer_evaluation = {
    .name = "evaluation", .open = evaluation_open, .report = evaluation_report};

int train_find_weights(const char *path, char **checkpoint, struct dt_error *err)
{
    struct model_source s;
    struct dt_text notes;
    dt_text_init(&notes);
    int rc = model_source_open(&s, path, &notes, err);
    if (notes.size > 0 && train_env_number("RANK", 0) == 0) {
        dt_text_say(stderr, "train: %s", dt_text_str(&notes));
    }
    *checkpoint = rc == 0 && s.checkpoint != NULL ? dt_strdup(s.path) : NULL;
    model_source_close(&s);
    dt_text_clear(&notes);
    return rc;
}
