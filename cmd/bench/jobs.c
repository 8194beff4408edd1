#include "cmd/bench/jobs.h"

#include "base/file.h"
#include "worker/data/safetensors.h"
#include "worker/model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOKENS "tokens_per_s", "tokens/s"
#define IMAGES "samples_per_s", "samples/s"
#define TRAINING(batch)                                                                                                \
    "\"training\":{\"batch_size_per_gpu\":" #batch ",\"learning_rate\":1e-4,\"weight_decay\":0.1,\"max_grad_norm\":1." \
    "0}"
static const struct bench_job jobs[] = {
    {"llama",
     "\"model\":{\"name\":\"llama\",\"hidden_size\":384,\"intermediate_size\":1024,\"num_hidden_layers\":6,"
     "\"num_attention_heads\":6,\"num_key_value_heads\":2,\"vocab_size\":8192,\"max_position_embeddings\":256,"
     "\"tie_word_embeddings\":false},\"data\":{\"sequence_length\":256}," TRAINING(4),
     TOKENS, "llama", "L6C384"},
    {"bert",
     "\"model\":{\"name\":\"bert\",\"hidden_size\":256,\"intermediate_size\":1024,\"num_hidden_layers\":4,"
     "\"num_attention_heads\":4,\"num_labels\":2},\"data\":{\"sequence_length\":128}," TRAINING(16),
     TOKENS, "bert", "L4C256"},
    {"resnet",
     "\"model\":{\"name\":\"resnet-18\",\"stem\":\"small\",\"image_size\":32,\"num_labels\":10}," TRAINING(64), IMAGES,
     "resnet", "18"},
    {"smollm2", "\"model\":{\"name\":\"smollm2-135m\"},\"data\":{\"sequence_length\":256}," TRAINING(1), TOKENS,
     "llama", "smollm2-135m"},
};
#define JOBS (sizeof jobs / sizeof jobs[0])

const struct bench_job *bench_job_find(const char *name)
{
    for (size_t i = 0; i < JOBS; i++) {
        if (strcmp(jobs[i].name, name) == 0) {
            return &jobs[i];
        }
    }
    return NULL;
}

const char *bench_job_names(void)
{
    return "gpt2, llama, bert, resnet, smollm2";
}

/* ---- samples ---- */

static uint64_t random_bits(uint64_t *state)
{
    *state = *state * 6364136223846793005ULL + 1442695040888963407ULL;
    return *state >> 33;
}

/* Fields that the data must have; one of no bound has the values 0 and 1. */
static int list_fields(const struct batch_layout *l, int64_t samples, struct st_entry *entries,
                       int64_t shapes[][BATCH_DIMS_MAX], const struct batch_field **fields)
{
    int count = 0;
    for (int i = 0; i < l->count; i++) {
        const struct batch_field *f = &l->field[i];
        if (batch_in_data(f) && !f->optional) {
            memcpy(shapes[count], f->most, sizeof f->most);
            shapes[count][0] = samples;
            entries[count] = (struct st_entry){f->name, f->type == DT_F32 ? DT_F32 : DT_I32, f->dims, shapes[count]};
            fields[count++] = f;
        }
    }
    return count;
}

static int write_field(struct st_writer *w, const struct batch_field *f, const struct st_entry *e, uint64_t *state,
                       struct dt_error *err)
{
    int64_t left = 1;
    for (int d = 0; d < e->dims; d++) {
        left *= e->shape[d];
    }
    union {
        float real[4096];
        int32_t whole[4096];
    } x;
    int rc = 0;
    for (int64_t n; left > 0 && rc == 0; left -= n) {
        n = left < 4096 ? left : 4096;
        for (int64_t i = 0; i < n; i++) {
            uint64_t bits = random_bits(state);
            if (f->type == DT_F32) {
                x.real[i] = (float)(bits & 0xffff) / 65536.0f;
            } else {
                x.whole[i] = (int32_t)(bits % (uint64_t)(f->below > 0 ? f->below : 2));
            }
        }
        rc = st_writer_data(w, &x, (size_t)n * 4, err);
    }
    return rc;
}

static int write_samples(const struct job *job, const char *path, int64_t samples, struct dt_error *err)
{
    struct chain c;
    const struct model_spec spec = {.name = job->model.name,
                                    .sizes = job->model.sizes.bytes,
                                    .batch_size = job->training.batch_size_per_gpu,
                                    .sequence_length = job->data.sequence_length,
                                    .type = DT_F32};
    if (chain_open(&c, &spec, 1, err) != 0) {
        return -1;
    }
    struct st_entry entries[BATCH_FIELDS_MAX];
    int64_t shapes[BATCH_FIELDS_MAX][BATCH_DIMS_MAX];
    const struct batch_field *fields[BATCH_FIELDS_MAX];
    int count = list_fields(&c.batch, samples, entries, shapes, fields);
    struct st_writer *w = NULL;
    uint64_t state = 1;
    int rc = st_writer_open(&w, path, entries, count, NULL, err);
    for (int i = 0; i < count && rc == 0; i++) {
        rc = write_field(w, fields[i], &entries[i], &state, err);
    }
    if (rc != 0) {
        st_writer_abort(w);
    } else {
        rc = st_writer_close(w, err);
    }
    chain_close(&c);
    return rc;
}

int bench_job_open(struct job *job, const char *path, const char *const *settings, const char *folder, long steps,
                   long ranks, struct dt_error *err)
{
    enum { MOST = 16 };
    char *data = dt_format("%s/train.safetensors", folder), *train = dt_format("data.train=%s", data),
         *out = dt_format("output_dir=%s/run", folder);
    const char *set[MOST] = {train, "data.val=null", "data.format=tensors", out};
    int count = 4;
    for (int i = 0; settings[i] != NULL && count < MOST; i++) {
        set[count++] = settings[i];
    }
    struct dt_text problems;
    dt_text_init(&problems);
    int rc = job_open(job, &(struct job_arguments){.path = path, .set = set, .set_count = count}, &problems, err);
    (void)fputs(dt_text_str(&problems), stderr);
    if (rc == 0) {
        rc = write_samples(job, data,
                           steps * ranks * job->training.batch_size_per_gpu * job->training.gradient_accumulation_steps,
                           err);
    }
    dt_text_clear(&problems);
    free(out);
    free(train);
    free(data);
    return rc;
}
