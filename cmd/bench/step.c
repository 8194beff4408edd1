/* Writes a shard of random tokens and a job to a temporary folder, runs dtrun on it and reads
 * the run's metrics.jsonl: what is measured is what a user gets. Ours and the peer's runs
 * alternate, the median of all runs counts. */
#include "cmd/bench/step.h"

#include "base/bench.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "cmd/bench/start.h"

#include <fcntl.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { MAX_RUNS = 21, VOCABULARY = 65, TOKENS = 400000, WARMUP = 3, MAX_STEPS = 500 };

struct shape {
    long layers, channels, heads, positions, batch;
};

/* llm.c's shard format: 256 int32 of header, then uint16. */
static int write_shard(const char *path, struct dt_error *err)
{
    size_t size = 1024 + 2 * (size_t)TOKENS;
    uint8_t *bytes = dt_alloc(size);
    int32_t header[3] = {20240520, 1, TOKENS};
    memcpy(bytes, header, sizeof header);
    uint64_t x = 1;
    for (size_t i = 0; i < TOKENS; i++) {
        x = x * 6364136223846793005ull + 1442695040888963407ull;
        bytes[1024 + 2 * i] = (uint8_t)((x >> 33) % VOCABULARY);
    }
    int result = dt_file_write(path, bytes, size, err);
    free(bytes);
    return result;
}

static int write_job(const char *folder, const struct shape *s, long steps, struct dt_error *err)
{
    char *path = dt_format("%s/job.json", folder);
    char *job =
        dt_format("{\"model\":{\"name\":\"gpt2\",\"n_layer\":%ld,\"n_head\":%ld,\"n_embd\":%ld,\"n_positions\":%ld,"
                  "\"vocab_size\":%d},\n"
                  "\"data\":{\"train\":\"%s/train-*.bin\",\"sequence_length\":%ld},\n"
                  "\"training\":{\"batch_size_per_gpu\":%ld,\"max_steps\":%ld,\"learning_rate\":1e-3,\"max_grad_norm\":"
                  "1.0,\"threads\":1},\n"
                  "\"logging\":{\"log_every_n_steps\":1}}\n",
                  s->layers, s->heads, s->channels, s->positions, VOCABULARY, folder, s->positions, s->batch, steps);
    int result = dt_file_write(path, job, strlen(job), err);
    free(job);
    free(path);
    return result;
}

/* Runs a command; its standard output goes to `out`, the rest nowhere. */
static bool run(char *const *argv, const char *out)
{
    posix_spawn_file_actions_t actions;
    pid_t pid = -1;
    int status = -1;
    (void)posix_spawn_file_actions_init(&actions);
    (void)posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    (void)posix_spawn_file_actions_addopen(&actions, 1, out, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    (void)posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    bool started = posix_spawnp(&pid, argv[0], &actions, NULL, argv, environ) == 0;
    (void)posix_spawn_file_actions_destroy(&actions);
    return started && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Median of the values of a key in a JSON-lines file, the first `skip` left out; negative when
 * there are none. */
static double median_of(const char *path, const char *key, int skip)
{
    double values[MAX_STEPS];
    size_t count = 0;
    struct dt_text text;
    dt_text_init(&text);
    char *mark = dt_format("\"%s\": ", key);
    if (dt_file_read(path, 64 << 20, &text, NULL) == 0) {
        for (const char *at = text.data; at != NULL && (at = strstr(at, mark)) != NULL && count < MAX_STEPS;) {
            at += strlen(mark);
            if (skip-- <= 0) {
                values[count++] = strtod(at, NULL);
            }
        }
    }
    free(mark);
    dt_text_clear(&text);
    return count > 0 ? dt_bench_median(values, count) : -1;
}

/* One case: what is run, by whom it is measured. */
struct variant {
    const char *strategy, *dtype; /* fp32, bf16 */
    long ranks;
};

static double run_ours(const char *folder, const char *dtrun, const struct variant *v)
{
    char *nproc = dt_format("--nproc_per_node=%ld", v->ranks), *job = dt_format("%s/job.json", folder),
         *out = dt_format("%s/run", folder);
    char *set = dt_format("training.strategy=%s", v->strategy), *metrics = dt_format("%s/metrics.jsonl", out);
    char *precision = dt_format("training.precision=%s", v->dtype);
    char *argv[] = {(char *)dtrun, nproc,           (char *)"train", job, (char *)"--output_dir", out, (char *)"--set",
                    set,           (char *)"--set", precision,       NULL};
    (void)dt_file_remove_tree(out, NULL);
    double value = run(argv, "/dev/null") ? median_of(metrics, "tokens_per_s", WARMUP) : -1;
    free(metrics);
    free(precision);
    free(set);
    free(out);
    free(job);
    free(nproc);
    return value;
}

/* tests/peers/step.py, with torchrun for more than one rank. Its names of strategies: none, ddp,
 * fsdp2. */
static double run_peer(const char *folder, const char *script, const char *size, const struct variant *v)
{
    const char *theirs = v->ranks == 1                            ? "none"
                         : strcmp(v->strategy, "full_shard") == 0 ? "fsdp2"
                         : strcmp(v->strategy, "ddp") == 0        ? "ddp"
                                                                  : NULL;
    char *program = theirs != NULL ? dt_bench_peer_program(v->ranks == 1 ? "python" : "torchrun") : NULL;
    if (program == NULL) {
        return 0;
    }
    char *out = dt_format("%s/peer.json", folder), *nproc = dt_format("--nproc-per-node=%ld", v->ranks),
         *name = dt_format("%sv%d", size, VOCABULARY);
    char *argv[20];
    int n = 0;
    argv[n++] = program;
    if (v->ranks > 1) {
        argv[n++] = (char *)"--standalone";
        argv[n++] = nproc;
    }
    char *const rest[] = {(char *)script, (char *)"--model",    (char *)"gpt2",   (char *)"--size",
                          name,           (char *)"--dtype",    (char *)v->dtype, (char *)"--threads",
                          (char *)"1",    (char *)"--strategy", (char *)theirs,   NULL};
    memcpy(argv + n, rest, sizeof rest);
    double value = run(argv, out) ? median_of(out, "tok_s", 0) : -1;
    free(name);
    free(nproc);
    free(out);
    free(program);
    return value;
}

static int run_case(const char *folder, const char *dtrun, const char *script, const char *size,
                    const struct variant *v, long repeats)
{
    double ours[MAX_RUNS], peers[MAX_RUNS];
    size_t peer_count = 0;
    for (long r = 0; r < repeats; r++) {
        ours[r] = run_ours(folder, dtrun, v);
        if (ours[r] <= 0) {
            (void)fprintf(stderr, "bench step: %s on %ld ranks failed; try: %s --nproc_per_node=%ld train JOB\n",
                          v->strategy, v->ranks, dtrun, v->ranks);
            return 1;
        }
        double peer = script != NULL ? run_peer(folder, script, size, v) : 0;
        if (peer > 0) {
            peers[peer_count++] = peer;
        }
    }
    char *name = dt_format("gpt2 %s %s, %s, %ld rank%s, 1 thread each", size, v->dtype, v->strategy, v->ranks,
                           v->ranks == 1 ? "" : "s");
    struct dt_bench_case c = {.bench = "step",
                              .name = name,
                              .unit = "tokens/s",
                              .peer = peer_count > 0 ? dt_bench_median(peers, peer_count) : 0,
                              .peer_name = "PyTorch"};
    dt_bench_print(&c, ours, (size_t)repeats);
    free(name);
    return 0;
}

int bench_step(int argc, char **argv)
{
    const char *size = dt_bench_option(argc, argv, "size", "L6C384"),
               *list = dt_bench_option(argc, argv, "strategy", NULL);
    const char *dtype = dt_bench_option(argc, argv, "dtype", NULL),
               *script = dt_bench_option(argc, argv, "script", "tests/peers/step.py");
    long ranks = dt_bench_number(argc, argv, "ranks", 0), steps = dt_bench_number(argc, argv, "steps", 15),
         repeats = dt_bench_number(argc, argv, "repeats", 3);
    struct shape s = {.positions = 256, .batch = 4};
    if (sscanf(size, "L%ldC%ld", &s.layers, &s.channels) != 2 || s.layers < 1 || s.channels < 64 ||
        s.channels % 64 != 0 || ranks < 0 || ranks > 64 ||
        (dtype != NULL && strcmp(dtype, "fp32") != 0 && strcmp(dtype, "bf16") != 0) || steps <= WARMUP ||
        steps > MAX_STEPS || repeats < 1 || repeats > MAX_RUNS) {
        (void)fprintf(stderr,
                      "bench step: --size L6C384 (channels: a multiple of 64)  --ranks 1..64  --dtype fp32|bf16  "
                      "--steps %d..%d  --repeats 1..%d\n",
                      WARMUP + 1, MAX_STEPS, MAX_RUNS);
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
    char *shard = dt_format("%s/train-00000.bin", folder), *dtrun = bench_find_dtrun();
    int code = write_shard(shard, &err) == 0 && write_job(folder, &s, steps, &err) == 0 ? 0 : 1;
    if (code != 0) {
        (void)fprintf(stderr, "bench step: %s\n", err.text);
    }
    for (long n = ranks > 0 ? ranks : 1; n <= (ranks > 0 ? ranks : 2) && code == 0; n++) {
        char *copy = dt_strdup(list != NULL ? list
                               : n == 1     ? "single_device"
                                            : "ddp,zero1,zero2,full_shard"),
             *rest = copy;
        for (char *word; code == 0 && (word = strsep(&rest, ",")) != NULL;) {
            const char *const both[] = {"fp32", "bf16"};
            for (int i = 0; i < 2 && code == 0; i++) {
                struct variant v = {.strategy = word, .dtype = both[i], .ranks = n};
                code = dtype == NULL || strcmp(dtype, both[i]) == 0
                           ? run_case(folder, dtrun, peer ? script : NULL, size, &v, repeats)
                           : 0;
            }
        }
        free(copy);
    }
    (void)dt_file_remove_tree(folder, NULL);
    free(dtrun);
    free(shard);
    return code;
}
