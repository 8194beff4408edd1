/* rank_threads JOB RANKS [device=NAME] [hosts=aab]: trains a job file with ranks as threads, on any device of
 * the CPU and as if on several hosts, and prints each step and the hashes of all weights and states.
 * Streams: DTRUN_STREAMS. Exit code 0, or 1 with a line for each rank that failed. */
#include "tests/lib/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *option(int argc, char **argv, const char *name)
{
    size_t size = strlen(name);
    for (int i = 3; i < argc; i++) {
        if (strncmp(argv[i], name, size) == 0 && argv[i][size] == '=') {
            return argv[i] + size + 1;
        }
    }
    return NULL;
}

int main(int argc, char **argv)
{
    int ranks = argc > 2 ? atoi(argv[2]) : 0;
    const char *hosts = option(argc, argv, "hosts"), *device = option(argc, argv, "device");
    if (ranks < 1 || ranks > RANKS_MAX || (hosts != NULL && strlen(hosts) != (size_t)ranks)) {
        fprintf(stderr, "rank_threads JOB RANKS [device=NAME] [hosts=aab]\n");
        return 2;
    }
    struct job job;
    struct dt_error err;
    struct dt_text problems;
    dt_text_init(&problems);
    if (job_open(&job, &(struct job_arguments){.path = argv[1], .world = ranks}, &problems, &err) != 0) {
        fprintf(stderr, "%s%s\n", dt_text_str(&problems), err.text);
        dt_text_clear(&problems);
        job_close(&job);
        return 2;
    }
    static struct ranks_outcome out;
    device = device == NULL && job.precision.compute == DT_F64 ? "twin64" : device;
    struct ranks_options o = {.device = device, .hosts = hosts, .files = job.checkpointing.save_every_n_steps > 0};
    ranks_train(&job, ranks, &o, &out);
    int failed = 0;
    for (int r = 0; r < ranks; r++) {
        if (out.rc[r] != 0) {
            fprintf(stderr, "rank %d: %s\n", r, out.err[r].text);
            failed = 1;
        }
    }
    for (int i = 0; i < out.step_count && failed == 0; i++) {
        printf("loss %a norm %a rate %a\n", out.loss[i], out.norm[i], out.lr[i]);
    }
    if (failed == 0) {
        printf("weights %016llx states %016llx\n", (unsigned long long)out.hash, (unsigned long long)out.moments_hash);
    }
    ranks_clear(&out);
    dt_text_clear(&problems);
    job_close(&job);
    return failed;
}
