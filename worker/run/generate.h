/* New ids behind prompts, one after the other, by a trained model. A row's ids depend on its prompt, its
 * number, the settings and the seed, and not on the other rows. */
#ifndef DT_WORKER_RUN_GENERATE_H
#define DT_WORKER_RUN_GENERATE_H

#include "worker/job/job.h"
#include "worker/run/model_source.h"
#include "worker/run/sampling.h"

enum { GENERATE_STOPS_MAX = 64 };

struct generate_options {
    struct sampling sampling;
    uint64_t seed;
    int64_t max_new_tokens;
    int32_t stops[GENERATE_STOPS_MAX]; /* a row ends behind each of these ids */
    int stop_count;
    int64_t batch_size; /* rows at a time */
    int threads;        /* 0: as many as this process may use cores */
    /* 0: a row ends where the model's positions do. Otherwise it sees that many ids at most: when they are
     * full, the older half is forgotten. */
    int64_t window;
    void (*tell)(void *context, int64_t row, int32_t id); /* called for each new id; null: nobody asks */
    void *context;
    bool recomputes; /* keeps no keys and values: each id computes its whole row again */
};

enum generate_end { GENERATE_STOPPED, GENERATE_LENGTH, GENERATE_POSITIONS };

struct generate_row {
    int32_t *ids; /* prompt, then what is new; malloc'ed, the caller frees it */
    int64_t prompt_count, count;
    enum generate_end end; /* a stop id; max_new_tokens; the model's positions */
};

/* Fills in the options: from the job's section, otherwise from the source's generation_config.json and
 * config.json, otherwise defaults. DT_INVALID: a value there is none that we know. */
int generate_settings(const struct model_source *source, const struct job_generation *job, struct generate_options *out,
                      struct dt_error *err);
/* Number of ids that the model knows, and the most positions of a row. DT_INVALID: it writes no text. */
int generate_limits(const struct model_source *source, int64_t *vocabulary, int64_t *positions, struct dt_error *err);
/* Continues all rows, whose ids are those of the prompt (count is prompt_count). DT_INVALID: a prompt is
 * empty, too long, or has an id that the model does not know. */
int generate_rows(const struct model_source *source, const struct generate_options *options, struct generate_row *rows,
                  int64_t row_count, struct dt_error *err);

#endif
