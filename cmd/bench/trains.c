/* See the header. */
#include "cmd/bench/trains.h"

#include "base/bench.h"
#include "base/file.h"
#include "base/text.h"

#include <fcntl.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { TOKENS = 400000 };

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
        bytes[1024 + 2 * i] = (uint8_t)((x >> 33) % BENCH_VOCABULARY);
    }
    int result = dt_file_write(path, bytes, size, err);
    free(bytes);
    return result;
}

int bench_write_job(const char *folder, const struct bench_shape *s, const struct bench_job *model, long steps,
                    long most_ranks, struct dt_error *err)
{
    char *path = dt_format("%s/job.json", folder), *shard = dt_format("%s/train-00000.bin", folder), *text;
    if (model != NULL) {
        text = dt_format("{%s}\n", model->sections);
    } else {
        text =
            dt_format("{\"model\":{\"name\":\"gpt2\",\"n_layer\":%ld,\"n_head\":%ld,\"n_embd\":%ld,\"n_positions\":%ld,"
                      "\"vocab_size\":%d},\n"
                      "\"data\":{\"train\":\"%s/train-*.bin\",\"sequence_length\":%ld},\n"
                      "\"training\":{\"batch_size_per_gpu\":%ld,\"learning_rate\":1e-3,\"max_grad_norm\":1.0}}\n",
                      s->layers, s->heads, s->channels, s->positions, BENCH_VOCABULARY, folder, s->positions, s->batch);
    }
    int rc = dt_file_write(path, text, strlen(text), err);
    if (rc == 0 && model == NULL) {
        rc = write_shard(shard, err);
    } else if (rc == 0) {
        struct job job = {0};
        rc = bench_job_open(&job, path, (const char *const[]){NULL}, folder, steps, most_ranks, err);
        job_close(&job);
    }
    free(text);
    free(shard);
    free(path);
    return rc;
}

bool bench_program(char *const *argv, const char *out, double *most_mib)
{
    struct rusage used = {.ru_maxrss = 0};
    posix_spawn_file_actions_t actions;
    pid_t pid = -1;
    int status = -1;
    (void)posix_spawn_file_actions_init(&actions);
    (void)posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    (void)posix_spawn_file_actions_addopen(&actions, 1, out, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    (void)posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    bool started = posix_spawnp(&pid, argv[0], &actions, NULL, argv, environ) == 0;
    (void)posix_spawn_file_actions_destroy(&actions);
    bool ended = started && wait4(pid, &status, 0, &used) == pid;
    *most_mib = (double)used.ru_maxrss / 1024;
    return ended && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

double bench_median_of(const char *path, const char *key, int skip)
{
    double values[BENCH_STEPS_MOST];
    size_t count = 0;
    struct dt_text text;
    dt_text_init(&text);
    char *mark = dt_format("\"%s\": ", key);
    if (dt_file_read(path, 64 << 20, &text, NULL) == 0) {
        for (const char *at = text.data; at != NULL && (at = strstr(at, mark)) != NULL && count < BENCH_STEPS_MOST;) {
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
