/* train: trains what a job.json describes, as one rank of dtrun's round or alone. Options in,
 * exit code out. */
#include "base/crash.h"
#include "base/file.h"
#include "base/log.h"
#include "base/signals.h"
#include "cmd/train/batch_size.h"
#include "cmd/train/classes.h"
#include "cmd/train/evaluate.h"
#include "cmd/train/options.h"
#include "cmd/train/plan.h"
#include "cmd/train/texts.h"
#include "worker/checkpoints/hf.h"
#include "worker/job/folder.h"
#include "worker/engine/gpu_blame.h"
#include "worker/run/trainer.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Atomic(struct world *) signal_world; /* null until its page is there */

/* The first signal asks for a stop after this step; alone, the second one ends the process. An
 * agent says by itself when it is over. */
static void on_signal(int number)
{
    struct world *w = atomic_load(&signal_world);
    struct dt_page *page = w != NULL ? w->page : NULL;
    uint32_t order = DT_ORDER_NONE;
    if (page && atomic_compare_exchange_strong(&page->order, &order, DT_ORDER_STOP)) {
        return;
    }
    if (!page || getenv("DTRUN_PAGE") == NULL || order == DT_ORDER_ABORT) {
        int code = w != NULL ? atomic_load(&w->exit_code) : 0;
        _exit(code != 0 ? code : 128 + number);
    }
}

static void *wait_for_signals(void *set)
{
    for (int number;;) {
        if (sigwait(set, &number) == 0) {
            on_signal(number);
        }
    }
    return NULL;
}

/* Signals go to a thread of their own, and to no other: with a handler, 3 of 70 stops ended in a
 * broken heap inside oneDNN, without one none of
 * 200. Why is not proved; a handler's frame on the stack of generated matrix code is the likely
 *      cause. Called before there are other threads,
 * which inherit the mask. */
static int catch_signals(struct dt_error *err)
{
    static const int asked[] = {SIGINT, SIGTERM, SIGUSR1,
                                SIGUSR2}; /* a scheduler's warning goes to every process of the
                                           * step, not to the launcher alone */
    static sigset_t set;
    pthread_t thread;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        if (dt_signal_wanted(asked[i])) {
            sigaddset(&set, asked[i]);
        }
    }
    signal(SIGPIPE, SIG_IGN); /* whoever reads our lines may go away */
    int rc = pthread_sigmask(SIG_BLOCK, &set, NULL);
    rc = rc != 0 ? rc : pthread_create(&thread, NULL, wait_for_signals, &set);
    if (rc != 0) {
        errno = rc;
        return dt_fail_errno(err, "cannot start the thread that waits for signals");
    }
    (void)pthread_detach(thread);
    return 0;
}

/* The cause is said once: by the agent in its report, by whoever told it already, or here. */
static int fail(struct world *w, const struct dt_error *err, int code, bool told)
{
    if (!world_tell_cause(w, err) && !told) {
        char words[DT_WORDS_BYTES];
        fprintf(stderr, "train: %s\n", dt_error_words(err, words));
    }
    if (w->page) {
        dt_page_phase(w->page, DT_PHASE_EXIT);
    }
    return code;
}

/* All ranks end with the error of one: that one says it. When a peer is merely lost, nobody may be
 * left to say so. */
static bool another_says(const struct dt_error *err, int code, int rank)
{
    return code != DT_EXIT_TEMPORARY && err->blame.fault == DT_FAULT_FAILED && err->blame.rank != rank;
}

/* checkpoint: what is evaluated (observers_options); null: a run. */
static int run(const struct job *job, const char *checkpoint)
{
    struct world w = {.page = NULL};
    struct dt_error err = {.status = DT_OK};
    int code = DT_EXIT_DONE;
    const char *device;
    if (precision_device(job, &device, &err) != 0) {
        return fail(&w, &err, trainer_exit_code(&err), false);
    }
    struct world_options options = {.device = device,
                                    .share_gpu = job->training.share_gpu,
                                    .collectives = job->training.collectives,
                                    .collective_sms = (int)job->training.collective_sms,
                                    .deterministic = job->training.deterministic,
                                    .attention = job->training.attention,
                                    .tf32 = job->training.matmul_precision == MATMUL_HIGH,
                                    .collective_timeout_s = job->training.collective_timeout_s,
                                    .threads = (int)job->training.threads};
    if (catch_signals(&err) != 0) {
        return fail(&w, &err, DT_EXIT_TEMPORARY, false);
    }
    if (world_open(&w, &options, &err) != 0) {
        code = fail(&w, &err, trainer_exit_code(&err), false);
        fflush(NULL);
        _exit(code);
    }
    dt_log_open(dt_log_level(), w.size > 1 ? w.rank : -1, STDERR_FILENO);
    char who[32];
    (void)snprintf(who, sizeof who, "train: rank %d", w.rank);
    dt_crash_open(who);
    atomic_store(&signal_world, &w);
    if (w.rank == 0 && job->inert_keys != NULL) {
        dt_text_say(stderr, "train: no effect: %s (train --explain KEY says why)", job->inert_keys);
    }
    if (w.rank == 0 && job->idle_keys != NULL && checkpoint == NULL) {
        dt_text_say(stderr, "train: no effect: %s", job->idle_keys);
    }
    if (w.rank == 0 && options.tf32 && w.device->ops->plans == NULL) {
        dt_text_say(stderr,
                    "train: no effect: training.matmul_precision (products of F32 are computed in F32 on a CPU)");
    }
    const struct observers_options evaluates = {.no_files = true, .evaluate = checkpoint, .last = &observer_evaluation};
    if (trainer_run(&w, job, checkpoint != NULL ? &evaluates : NULL, &code, &err) != 0) {
        world_explain(&w, &err, true);
        code = trainer_exit_code(&err);
        code = fail(&w, &err, code, w.told || another_says(&err, code, w.rank));
        fflush(NULL);
        _exit(code); /* peers may be gone: nothing here waits for them */
    }
    dt_page_phase(w.page, DT_PHASE_EXIT);
    atomic_store(&signal_world, NULL);
    world_close(&w);
    return code;
}

/* On this machine, or on GPUs that are elsewhere. */
static int find_batch_size(const struct train_options *o, struct job *job, struct dt_error *err)
{
    struct train_room room = {.on_gpu = true, .type = DT_F32, .ranks = o->job.world};
    struct dt_gpu_sheet gpu;
    if (o->estimate.gpus == 0) {
        return train_find_room(job, o->job.world, true, &room, err) == 0
                   ? train_find_batch_size(job, &room, o->json, err)
                   : -1;
    }
    if (train_estimate_gpu(&o->estimate, &gpu, err) != 0) {
        return -1;
    }
    job->elsewhere = true;
    room.local_size = train_estimate_local(&o->estimate);
    room.device_bytes = gpu.memory_bytes;
    return train_find_batch_size(job, &room, o->json, err);
}

static int run_all(int argc, char **argv)
{
    struct train_options o = {.job = {.look = hf_untie}, .nproc = 0};
    argv[0] = "train"; /* getopt's messages begin with it */
    int code = train_read_options(&o, argc, argv);
    if (code >= 0) {
        train_free_options(&o);
        return code;
    }
    if (o.generate.path != NULL || o.embed.path != NULL) {
        code = o.embed.path != NULL ? train_embed(&o.embed) : train_generate(&o.generate, &o.job);
        train_free_options(&o);
        return code;
    }
    /* As a worker of a round a wrong job is permanent: the agent must not start it again. */
    int refused = getenv("DTRUN_PAGE") && !o.plan ? DT_EXIT_PERMANENT : DT_EXIT_USAGE;
    o.job.world = o.nproc > 0 ? o.nproc : o.estimate.gpus > 0 ? o.estimate.gpus : train_env_number("WORLD_SIZE", 1);
    struct job job;
    struct dt_text problems;
    struct dt_error err = {.status = DT_OK};
    char *checkpoint = NULL;
    if (o.evaluate != NULL && train_find_weights(o.evaluate, &checkpoint, &err) != 0) {
        fprintf(stderr, "train: --evaluate: %s\n", err.text);
        train_free_options(&o);
        return refused;
    }
    o.job.evaluates = o.evaluate != NULL;
    if (o.evaluate != NULL && checkpoint == NULL) {
        train_add_set(&o, "--evaluate", "model.load", o.evaluate);
    }
    dt_text_init(&problems);
    if (o.print_config) {
        struct dt_text text;
        dt_text_init(&text);
        code = job_print_config(&o.job, &text, &problems, &err) == 0 ? DT_EXIT_DONE : DT_EXIT_USAGE;
        fputs(dt_text_str(&text), stdout);
        dt_text_clear(&text);
    } else if (job_open(&job, &o.job, &problems, &err) != 0) {
        code = refused;
    } else {
        bool alone = getenv("DTRUN_PAGE") == NULL; /* nobody has run --plan for us */
        const struct train_plan checks = {o.job.world, o.plan, o.json, o.evaluate != NULL};
        if (o.evaluate != NULL && job.data.val.count == 0) {
            fprintf(stderr, "train: --evaluate: the job has no data.val; give it, or --set data.val=FILES\n");
            code = refused;
        } else if (checkpoint != NULL && trainer_check_model(&job, checkpoint, &err) != 0) {
            fprintf(stderr, "train: --evaluate: %s\n", err.text);
            code = refused;
        } else if (train_find_classes(&job, checkpoint, &err) != 0 || texts_prepare(&job, &err) != 0) {
            fprintf(stderr, "train: %s\n", err.text);
            code = err.status == DT_INVALID || err.status == DT_NOT_FOUND ? refused : trainer_exit_code(&err);
        } else if (o.find_batch_size     ? find_batch_size(&o, &job, &err) != 0
                   : o.estimate.gpus > 0 ? train_estimate(&o.estimate, &job, o.json, &err) != 0
                                         : (o.plan || alone) && train_plan(&job, &checks, &err) != 0) {
            fprintf(stderr, "train: %s\n", err.text);
            code = DT_EXIT_USAGE;
        } else if (o.plan) {
            code = DT_EXIT_DONE;
        } else {
            code = run(&job, o.evaluate == NULL ? NULL : checkpoint != NULL ? checkpoint : "");
        }
        job_close(&job);
        dt_text_clear(&problems);
        train_free_options(&o);
        free(checkpoint);
        return code;
    }
    for (char *line = problems.data; line && *line; line += strcspn(line, "\n") + (line[strcspn(line, "\n")] != 0)) {
        fprintf(stderr, "train: %.*s\n", (int)strcspn(line, "\n"), line);
    }
    if (code != DT_EXIT_DONE && problems.size == 0) {
        fprintf(stderr, "train: %s\n", err.text);
    }
    dt_text_clear(&problems);
    train_free_options(&o);
    free(checkpoint);
    return code;
}

int main(int argc, char **argv)
{
    (void)signal(SIGXFSZ, SIG_IGN); /* a limit on file sizes is an error of write, which costs a checkpoint at most */
    int code = run_all(argc, argv);
    bool trained = getenv("DTRUN_PAGE") != NULL; /* what was trained is not lost with the console */
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == DT_EXIT_DONE && !trained) {
        fprintf(stderr, "train: standard output: cannot be written\n");
        code = DT_EXIT_USAGE;
    }
    return code;
}
