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
    int64_t max_length;                /* most ids of a row, its prompt among them; 0: no such limit */
    int32_t stops[GENERATE_STOPS_MAX]; /* a row ends behind each of these ids */
    int stop_count;
    int64_t batch_size; /* rows at a time */
    int threads;        /* 0: as many as this process may use cores */
    /* 0: a row ends where the model's positions do. Otherwise it sees that many ids at most: when they are
     * full, the older half is forgotten. */
    int64_t window;
    /* Called for each new id; null: nobody asks. False: the generation ends here, with DT_STOPPED. */
    bool (*tell)(void *context, int64_t row, int32_t id);
    void *context;
    bool recomputes; /* keeps no keys and values: each id computes its whole row again */
};

enum generate_end { GENERATE_STOPPED, GENERATE_LENGTH, GENERATE_POSITIONS };

struct generate_row {
    int32_t *ids; /* prompt, then what is new; malloc'ed, the caller frees it */
    int64_t prompt_count, count;
    bool is_text;          /* the prompt was given as text */
    enum generate_end end; /* a stop id; max_new_tokens or max_length; the model's positions */
};

/* Fills in the options: from the job's section, otherwise from the source's generation_config.json and
 * config.json (of stop ids: otherwise from its tokenizer), otherwise defaults. Appends to `ignored` (may be null) the keys of generation_config.json
 * that would change the ids and are not computed: "num_beams, typical_p". DT_INVALID: a value there is none
 * that we know. */
int generate_settings(const struct model_source *source, const struct job_generation *job, struct generate_options *out,
                      struct dt_text *ignored, struct dt_error *err);
/* Number of ids that the model knows, and the most positions of a row. DT_INVALID: it writes no text. */
int generate_limits(const struct model_source *source, int64_t *vocabulary, int64_t *positions, struct dt_error *err);
/* Continues all rows, whose ids are those of the prompt (count is prompt_count). DT_INVALID: a prompt is
 * empty, too long, or has an id that the model does not know. */
int generate_rows(const struct model_source *source, const struct generate_options *options, struct generate_row *rows,
                  int64_t row_count, struct dt_error *err);

/* The same in steps, for weights that change: each run continues the prompts with the weights that the
 * generator has then. */
struct generator;
/* Checks the rows, as generate_rows does, and opens the chain; allocates none of the memory that it computes
 * in. wrap, shards: units are those of a chain that was opened with them (null: those of the model), padded as for
 * so many ranks. All but `out` are borrowed until generator_close, which follows in any case. */
int generator_prepare(struct generator **out, const struct model_source *source, const struct generate_options *options,
                      struct generate_row *rows, int64_t row_count, const struct wrap_policy *wrap, int shards,
                      struct dt_error *err);
/* All weights of the source, behind generator_open. */
int generator_read(struct generator *g, const struct model_source *source, struct dt_error *err);
/* Bytes of that memory: weights, cache, activations, logits. */
size_t generator_bytes(const struct generator *g);
/* memory: host memory of generator_bytes, aligned to 64; null: allocates it. The weights are arbitrary then. */
int generator_open(struct generator *g, void *memory, struct dt_error *err);
const struct chain *generator_chain(const struct generator *g);
/* All weights of a unit, for the caller to fill in: chain->units[unit].numel elements. */
float *generator_unit(struct generator *g, int unit);
int generator_run(struct generator *g, struct dt_error *err);
void generator_close(struct generator *g);

#endif
