/* Writes random samples and a job to a temporary folder, runs dtrun on it and reads the run's
 * metrics.jsonl: what is measured is what a user gets. Runs of all cases, and those of the peer,
 * alternate, and medians count. The peer is PyTorch as it is or compiled, whichever is faster. */
#include "cmd/bench/step.h"

#include "base/bench.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "cmd/bench/jobs.h"
#include "cmd/bench/start.h"
#include "cmd/bench/trains.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_RUNS = 21, MAX_CASES = 64, WARMUP = 3 };
enum { OURS, EAGER, COMPILED, WAYS };

/* One case: what is run, by whom it is measured. */
struct variant {
    const struct bench_job *model; /* null: GPT-2 */
    const char *strategy, *dtype;  /* fp32, bf16 */
    long ranks, threads, steps;
    const char *folder, *dtrun, *size, *script; /* script: null without a peer */
    double rates[WAYS][MAX_RUNS], mibs[WAYS][MAX_RUNS];
    size_t counts[WAYS];
};

struct figures { /* of one run; 0: not measured, negative: it failed */
    double rate, mib;
};

static struct figures run_ours(const struct variant *v)
{
    char *nproc = dt_format("--nproc_per_node=%ld", v->ranks), *job = dt_format("%s/job.json", v->folder),
         *out = dt_format("%s/run", v->folder), *metrics = dt_format("%s/metrics.jsonl", out);
    char *const sets[] = {dt_format("training.strategy=%s", v->strategy),
                          dt_format("training.precision=%s", v->dtype),
                          dt_format("training.threads=%ld", v->threads),
                          dt_format("training.max_steps=%ld", v->steps),
                          dt_format("logging.log_every_n_steps=1"),
                          dt_format("data.train=%s/train%s", v->folder, v->model ? ".safetensors" : "-*.bin"),
                          dt_format("fsdp.device_mesh=[%ld,2]", v->ranks / 2)};
    /* of one host a hybrid row would be full_shard: groups of two share the weights */
    size_t used = sizeof sets / sizeof sets[0] - (strncmp(v->strategy, "hybrid", 6) != 0);
    char *argv[8 + 2 * sizeof sets / sizeof sets[0]] = {(char *)v->dtrun,       nproc, (char *)"train", job,
                                                        (char *)"--output_dir", out};
    int n = 6;
    for (size_t i = 0; i < used; i++) {
        argv[n++] = (char *)"--set";
        argv[n++] = sets[i];
    }
    (void)dt_file_remove_tree(out, NULL);
    struct figures f = {-1, 0};
    if (bench_program(argv, "/dev/null", &f.mib)) {
        f.rate = bench_median_of(metrics, v->model != NULL ? v->model->rate : "tokens_per_s", WARMUP);
        f.mib *= (double)v->ranks;
    }
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        free(sets[i]);
    }
    free(metrics);
    free(out);
    free(job);
    free(nproc);
    return f;
}

/* tests/peers/step.py, with torchrun for more than one rank. Its names of strategies: none, ddp,
 * fsdp2. */
static struct figures run_peer(const struct variant *v, bool compiled)
{
    const char *theirs = v->ranks == 1                            ? "none"
                         : strcmp(v->strategy, "full_shard") == 0 ? "fsdp2"
                         : strcmp(v->strategy, "ddp") == 0        ? "ddp"
                                                                  : NULL;
    struct figures f = {0, 0};
    char *program =
        theirs != NULL && v->script != NULL ? dt_bench_peer_program(v->ranks == 1 ? "python" : "torchrun") : NULL;
    if (program == NULL) {
        return f;
    }
    char *out = dt_format("%s/peer.json", v->folder), *nproc = dt_format("--nproc-per-node=%ld", v->ranks),
         *name = v->model != NULL ? dt_strdup(v->model->peer_size) : dt_format("%sv%d", v->size, BENCH_VOCABULARY),
         *threads = dt_format("%ld", v->threads);
    char *argv[24];
    int n = 0;
    argv[n++] = program;
    if (v->ranks > 1) {
        argv[n++] = (char *)"--standalone";
        argv[n++] = nproc;
    }
    char *const rest[] = {(char *)v->script,
                          (char *)"--model",
                          (char *)(v->model != NULL ? v->model->peer : "gpt2"),
                          (char *)"--size",
                          name,
                          (char *)"--dtype",
                          (char *)v->dtype,
                          (char *)"--threads",
                          threads,
                          (char *)"--strategy",
                          (char *)theirs,
                          (char *)"--compile",
                          (char *)(compiled ? "1" : "0"),
                          NULL};
    memcpy(argv + n, rest, sizeof rest);
    double largest_mib;
    f.rate = bench_program(argv, out, &largest_mib) ? bench_median_of(out, "tok_s", 0) : -1;
    f.mib = f.rate > 0 ? bench_median_of(out, "rss_mb_sum", 0) : 0;
    free(threads);
    free(name);
    free(nproc);
    free(out);
    free(program);
    return f;
}

/* One run of each way. 0, or 1 if ours failed. */
static int run_once(struct variant *v)
{
    for (int way = OURS; way < WAYS; way++) {
        struct figures f = way == OURS ? run_ours(v) : run_peer(v, way == COMPILED);
        if (way == OURS && f.rate <= 0) {
            (void)fprintf(stderr, "bench step: %s on %ld ranks failed; try: %s --nproc_per_node=%ld train JOB\n",
                          v->strategy, v->ranks, v->dtrun, v->ranks);
            return 1;
        }
        if (f.rate > 0) {
            v->rates[way][v->counts[way]] = f.rate;
            v->mibs[way][v->counts[way]++] = f.mib;
        }
    }
    return 0;
}

static void print_case(struct variant *v)
{
    double eager = dt_bench_median(v->rates[EAGER], v->counts[EAGER]),
           compiled = dt_bench_median(v->rates[COMPILED], v->counts[COMPILED]);
    int peer = compiled > eager ? COMPILED : EAGER;
    char *name = dt_format("%s %s %s, %s, %ld rank%s, %ld thread%s each", v->model != NULL ? v->model->name : "gpt2",
                           v->model != NULL ? v->model->peer_size : v->size, v->dtype, v->strategy, v->ranks,
                           v->ranks == 1 ? "" : "s", v->threads, v->threads == 1 ? "" : "s"),
         *memory = dt_format("%s: peak memory of all ranks", name);
    struct dt_bench_case c = {.bench = "step",
                              .name = name,
                              .unit = v->model != NULL ? v->model->unit : "tokens/s",
                              .peer = peer == COMPILED ? compiled : eager,
                              .peer_name = peer == COMPILED ? "PyTorch, compiled" : "PyTorch"};
    dt_bench_print(&c, v->rates[OURS], v->counts[OURS]);
    c.name = memory;
    c.unit = "MiB";
    c.peer = dt_bench_median(v->mibs[peer], v->counts[peer]);
    dt_bench_print(&c, v->mibs[OURS], v->counts[OURS]);
    free(memory);
    free(name);
}

int bench_step(int argc, char **argv)
{
    const char *size = dt_bench_option(argc, argv, "size", "L6C384"),
               *list = dt_bench_option(argc, argv, "strategy", NULL);
    const char *dtype = dt_bench_option(argc, argv, "dtype", NULL),
               *script = dt_bench_option(argc, argv, "script", "tests/peers/step.py");
    long ranks = dt_bench_number(argc, argv, "ranks", 0), steps = dt_bench_number(argc, argv, "steps", 15),
         repeats = dt_bench_number(argc, argv, "repeats", 3), threads = dt_bench_number(argc, argv, "threads", 1);
    const char *model_name = dt_bench_option(argc, argv, "model", "gpt2");
    const struct bench_job *model = bench_job_find(model_name);
    struct bench_shape s = {.positions = 256, .batch = 4};
    if (sscanf(size, "L%ldC%ld", &s.layers, &s.channels) != 2 || s.layers < 1 || s.channels < 64 ||
        s.channels % 64 != 0 || ranks < 0 || ranks > 64 ||
        (dtype != NULL && strcmp(dtype, "fp32") != 0 && strcmp(dtype, "bf16") != 0) || steps <= WARMUP ||
        steps > BENCH_STEPS_MOST || repeats < 1 || repeats > MAX_RUNS) {
        (void)fprintf(stderr,
                      "bench step: --size L6C384 (channels: a multiple of 64)  --ranks 1..64  --dtype fp32|bf16  "
                      "--steps %d..%d  --repeats 1..%d\n",
                      WARMUP + 1, BENCH_STEPS_MOST, MAX_RUNS);
        return 2;
    }
    if (model == NULL && strcmp(model_name, "gpt2") != 0) {
        (void)fprintf(stderr, "bench step: --model: %s: there are %s\n", model_name, bench_job_names());
        return 2;
    }
    s.heads = s.channels / 64;
    bool peer = dt_bench_flag(argc, argv, "peer");
    if (peer && access(script, R_OK) != 0) {
        (void)fprintf(stderr, "bench step: %s: not there; run from the source tree, or say --script\n", script);
        return 2;
    }
    char folder[] = "/tmp/dtrun-bench-XXXXXX";
    if (mkdtemp(folder) == NULL) {
        perror("bench: mkdtemp");
        return 1;
    }
    struct dt_error err;
    char *dtrun = bench_find_dtrun();
    int code = bench_write_job(folder, &s, model, steps, ranks > 0 ? ranks : 2, &err) == 0 ? 0 : 1;
    if (code != 0) {
        (void)fprintf(stderr, "bench step: %s\n", err.text);
    }
    struct variant *cases = dt_alloc(MAX_CASES * sizeof *cases);
    char *lists[2] = {NULL, NULL};
    size_t count = 0;
    for (long n = ranks > 0 ? ranks : 1; n <= (ranks > 0 ? ranks : 2); n++) {
        const char *usual = n == 1 ? "single_device" : "ddp,zero1,zero2,full_shard", *const both[] = {"fp32", "bf16"};
        char *rest = lists[ranks > 0 ? 0 : n - 1] = dt_strdup(list != NULL ? list : usual);
        for (char *word; (word = strsep(&rest, ",")) != NULL;) {
            for (int i = 0; i < 2 && count < MAX_CASES; i++) {
                if (dtype == NULL || strcmp(dtype, both[i]) == 0) {
                    cases[count++] = (struct variant){.model = model,
                                                      .strategy = word,
                                                      .dtype = both[i],
                                                      .ranks = n,
                                                      .threads = threads,
                                                      .steps = steps,
                                                      .folder = folder,
                                                      .dtrun = dtrun,
                                                      .size = size,
                                                      .script = peer ? script : NULL};
                }
            }
        }
    }
    for (long r = 0; r < repeats && code == 0; r++) {
        for (size_t i = 0; i < count && code == 0; i++) {
            code = run_once(&cases[i]);
        }
    }
    for (size_t i = 0; i < count && code == 0; i++) {
        print_case(&cases[i]);
    }
    free(lists[0]);
    free(lists[1]);
    free(cases);
    (void)dt_file_remove_tree(folder, NULL);
    free(dtrun);
    return code;
}
