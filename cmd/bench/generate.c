/* Prompts of random ids are continued; the time from the first new id of the last row to its last one is
 * that of the ids between, without start and prompts. Weights are those that a run would begin with. */
#include "cmd/bench/generate.h"

#include "base/bench.h"
#include "base/clock.h"
#include "base/text.h"
#include "worker/model/model.h"
#include "worker/run/prompt.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>

enum { REPEATS_MOST = 101 };

struct shape {
    const char *size;
    long layers, channels, vocabulary, batch, prompt, count, threads;
};

static int open_source(struct model_source *m, const struct shape *s, struct dt_error *err)
{
    char *config = dt_format("{\"n_layer\": %ld, \"n_embd\": %ld, \"n_head\": %ld, \"n_positions\": %ld, "
                             "\"vocab_size\": %ld}",
                             s->layers, s->channels, s->channels / 64, s->prompt + s->count, s->vocabulary);
    *m = (struct model_source){.model = model_find("gpt2"), .config = cJSON_Parse(config)};
    free(config);
    return model_read_config(m->model, m->config, m->sizes.bytes, err);
}

static int add_prompts(struct prompts *p, const struct shape *s, struct dt_error *err)
{
    uint64_t x = 1;
    int rc = 0;
    for (long i = 0; i < s->batch && rc == 0; i++) {
        struct dt_text ids;
        dt_text_init(&ids);
        for (long k = 0; k < s->prompt; k++) {
            x = x * 6364136223846793005ULL + 1442695040888963407ULL;
            dt_text_printf(&ids, "%ld ", (long)((x >> 33) % (uint64_t)s->vocabulary));
        }
        rc = prompts_add_ids(p, dt_text_str(&ids), err);
        dt_text_clear(&ids);
    }
    return rc;
}

struct times {
    int64_t row; /* the one that is looked at */
    double first_s, last_s;
};

static bool note_time(void *context, int64_t row, int32_t id)
{
    struct times *t = context;
    (void)id;
    if (row == t->row) {
        t->last_s = dt_now_s();
        t->first_s = t->first_s > 0 ? t->first_s : t->last_s;
    }
    return true;
}

/* Seconds of one more id for all rows; below 0: an error. */
static double take_s(const struct model_source *m, const struct shape *s, bool recomputes, struct dt_error *err)
{
    struct times t = {.row = s->batch - 1};
    const struct generate_options o = {.sampling = {.repetition_penalty = 1, .temperature = 1, .top_p = 1},
                                       .max_new_tokens = s->count,
                                       .batch_size = s->batch,
                                       .threads = (int)s->threads,
                                       .tell = note_time,
                                       .context = &t,
                                       .recomputes = recomputes};
    struct prompts p = {0};
    int rc = add_prompts(&p, s, err);
    rc = rc == 0 ? generate_rows(m, &o, p.rows, p.count, err) : rc;
    prompts_clear(&p);
    return rc == 0 ? (t.last_s - t.first_s) / (double)(s->count - 1) : -1;
}

static void print(const struct shape *s, const char *what, double *us, double *peer_us, int repeats)
{
    char *name = dt_format("gpt2 %s, %ld rows, prompt %ld, %ld ids, %s", s->size, s->batch, s->prompt, s->count, what);
    struct dt_bench_case line = {.bench = "generate", .name = name, .unit = "us", .calls = s->batch};
    if (peer_us != NULL) {
        line.peer = dt_bench_median(peer_us, (size_t)repeats);
        line.peer_name = "transformers";
    }
    dt_bench_print(&line, us, (size_t)repeats);
    free(name);
}

/* cached: with a cache, and so the peer. */
static int run(const struct shape *s, bool cached, struct dt_bench_peer *peer, int repeats)
{
    struct model_source m;
    struct dt_error err;
    double us[REPEATS_MOST], peer_us[REPEATS_MOST];
    int rc = open_source(&m, s, &err);
    for (int i = 0; i < repeats && rc == 0; i++) {
        us[i] = take_s(&m, s, !cached, &err) * 1e6;
        rc = us[i] < 0 ? -1 : 0;
        if (peer != NULL) {
            peer_us[i] = dt_bench_peer_ask(peer, "%ld %ld %ld %ld %ld %ld %ld", s->layers, s->channels, s->vocabulary,
                                           s->batch, s->prompt, s->count, s->threads) *
                         1e6;
        }
    }
    if (rc == 0) {
        print(s, cached ? "with a cache" : "without a cache", us, peer != NULL ? peer_us : NULL, repeats);
    } else {
        (void)fprintf(stderr, "bench: generate: %s\n", err.text);
    }
    model_source_close(&m);
    return rc == 0 ? DT_EXIT_DONE : DT_EXIT_FAILED;
}

int bench_generate(int argc, char **argv)
{
    struct shape s = {.size = dt_bench_option(argc, argv, "size", "L12C768"),
                      .vocabulary = dt_bench_number(argc, argv, "vocab", 50257),
                      .batch = dt_bench_number(argc, argv, "batch", 1),
                      .prompt = dt_bench_number(argc, argv, "prompt", 128),
                      .count = dt_bench_number(argc, argv, "ids", 64),
                      .threads = dt_bench_number(argc, argv, "threads", 1)};
    int repeats = (int)dt_bench_number(argc, argv, "repeats", 3);
    if (sscanf(s.size, "L%ldC%ld", &s.layers, &s.channels) != 2 || s.layers < 1 || s.channels < 64 ||
        s.channels % 64 != 0) {
        (void)fprintf(stderr, "bench: generate: --size: %s: must be like L6C384, channels a multiple of 64\n", s.size);
        return DT_EXIT_USAGE;
    }
    struct dt_bench_peer peer;
    bool asks = dt_bench_flag(argc, argv, "peer");
    if (asks) {
        const char *script = dt_bench_option(argc, argv, "script", "tests/peers/generate.py");
        char *python = dt_bench_peer_program("python"), *command[] = {python, (char *)(uintptr_t)script, NULL};
        if (python == NULL || dt_bench_peer_open(&peer, command) != 0) {
            (void)fprintf(stderr, "bench: no transformers to compare with: scripts/setup.sh --peers\n");
            free(python);
            return DT_EXIT_USAGE;
        }
        free(python);
    }
    int code = run(&s, true, asks ? &peer : NULL, repeats);
    code = code == DT_EXIT_DONE && !dt_bench_flag(argc, argv, "cache-only") ? run(&s, false, NULL, repeats) : code;
    if (asks) {
        dt_bench_peer_close(&peer);
    }
    return code;
}
