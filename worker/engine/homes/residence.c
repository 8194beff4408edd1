/* What the section `offload` of a job means for the arrays of a strategy, and whether this host has
 * what that takes. */
#include "worker/engine/homes/transfer.h"
#include "worker/engine/homes/windows.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* Bytes that a short measurement writes and reads at most. */
enum { PROBE_BYTES = 32 << 20 };

static const struct home_ops *home_at(const struct home_ops *row, enum offload_to to, bool own_memory)
{
    switch (to) {
    case OFFLOAD_NONE:
        break;
    case OFFLOAD_CPU:
        return own_memory ? &home_host : row;
    case OFFLOAD_NVME:
        return &home_nvme;
    }
    return row;
}

void residence_choose(struct residence *out, const struct residence *row, const struct job_offload *job,
                      bool own_memory)
{
    /* Gradients that an update reads once need no disk: they are written once a micro-step. */
    enum offload_to grads = job->optimizer != OFFLOAD_NONE ? OFFLOAD_CPU : OFFLOAD_NONE;
    *out = (struct residence){.weights = home_at(row->weights, job->parameters, own_memory),
                              .grads = home_at(row->grads, grads, own_memory),
                              .masters = home_at(row->masters, job->optimizer, own_memory),
                              .states = home_at(row->states, job->optimizer, own_memory)};
}

const struct home_ops *residence_activations(const struct job_offload *job, bool own_memory)
{
    return home_at(&home_device, job->activations, own_memory);
}

void residence_settings(struct home_settings *out, const struct job_offload *job, bool own_memory, bool parameters)
{
    *out = (struct home_settings){.job = job,
                                  .own_memory = own_memory,
                                  .portion_bytes =
                                      (size_t)(job->portion > 0 ? job->portion : HOME_PORTION) * sizeof(float),
                                  .buffers = job->buffer_count > 0 ? (int)job->buffer_count : 4,
                                  .reads_ahead = job->pipeline_read && !parameters, /* gathers ask ahead themselves */
                                  .overlaps_reads = job->pipeline_read,
                                  .overlaps_writes = job->pipeline_write};
}

/* Folders before this one on the same file system, and how many there are in all. */
static int same_disk(const struct job_offload *job, int i, bool *first)
{
    struct stat own, other;
    int count = 0;
    *first = true;
    if (stat(job->nvme_path.of[i], &own) != 0) {
        return 1;
    }
    for (int k = 0; k < job->nvme_path.count; k++) {
        if (stat(job->nvme_path.of[k], &other) == 0 && other.st_dev == own.st_dev) {
            *first = *first && k >= i;
            count++;
        }
    }
    return count;
}

static int check_folder(const struct plan *p, const struct job_offload *job, int i, int ranks, struct dt_error *err)
{
    const char *path = job->nvme_path.of[i];
    struct stat s;
    bool first;
    if (stat(path, &s) != 0) {
        return dt_fail(err, DT_INVALID,
                       "offload.nvme_path: %s: there is no such folder; create it, or name one on a fast disk", path);
    }
    if (!S_ISDIR(s.st_mode)) {
        return dt_fail(err, DT_INVALID, "offload.nvme_path: %s: is no folder; name one on a fast disk", path);
    }
    if (access(path, W_OK | X_OK) != 0) { /* asked of root, too: of a file system that is mounted read-only */
        return dt_fail(err, DT_INVALID, "offload.nvme_path: %s: %s; name a folder in which files can be made", path,
                       strerror(errno));
    }
    int sharers = same_disk(job, i, &first);
    double need = (double)p->file_bytes * ranks * sharers / job->nvme_path.count, have = dt_file_free_bytes(path);
    if (first && have >= 0 && need > have) {
        char need_text[32], have_text[32];
        return dt_fail(err, DT_FULL,
                       "offload.nvme_path: %s: the files of %d rank%s need %s, but %s are free; make room, or add a "
                       "folder on another disk",
                       path, ranks, ranks == 1 ? "" : "s", dt_text_bytes(need, need_text, sizeof need_text),
                       dt_text_bytes(have, have_text, sizeof have_text));
    }
    return 0;
}

int residence_check(const struct plan *p, const struct job_offload *job, int ranks, bool own_memory,
                    struct dt_error *err)
{
    for (int i = 0; i < job->nvme_path.count && p->file_bytes > 0; i++) {
        if (check_folder(p, job, i, ranks, err) != 0) {
            return -1;
        }
    }
    if (own_memory && p->bytes[PLAN_HOST] > 0) { /* pinned by the driver, which asks for no memlock */
        char what[64], need_text[32], have_text[32];
        double need = (double)p->size_bytes[PLAN_PINNED] * ranks, have = plan_available(ranks, what, sizeof what);
        if (need > have) {
            return dt_fail(err, DT_NO_MEMORY, "offload: %d rank%s need %s of the host's memory, %s is %s; use nvme",
                           ranks, ranks == 1 ? "" : "s", dt_text_bytes(need, need_text, sizeof need_text), what,
                           dt_text_bytes(have, have_text, sizeof have_text));
        }
    }
    return 0;
}

/* Bytes per second of writing and reading files as homes do; 0: unknown. */
static double probe(const struct job_offload *job, size_t size_bytes, const char **engine)
{
    struct striped files = {0};
    struct transfer *t = NULL;
    struct dt_device cpu; /* memory as that of a run: on huge pages a disk is twice as fast */
    void *memory = NULL;
    double begin_s = 0, rate = 0;
    *engine = "threads";
    if (dt_device_open(&cpu, "cpu", &(struct dt_device_options){.streams = DT_STREAMS_INLINE}, NULL) != 0) {
        return 0;
    }
    if (dt_device_alloc(&cpu, DT_MEMORY_DEVICE, size_bytes, &memory, NULL) == 0 &&
        striped_open(&files, job, "probe", (size_t)1 << 20, size_bytes, NULL) == 0 &&
        transfer_open(&t, job, NULL) == 0) {
        memset(memory, 1, size_bytes);
        *engine = transfer_name(t);
        begin_s = dt_now_s();
        if (transfer_run(t, &files, true, memory, 0, size_bytes, NULL) == 0 &&
            transfer_run(t, &files, false, memory, 0, size_bytes, NULL) == 0) {
            double took_s = dt_now_s() - begin_s;
            rate = took_s > 0 ? 2.0 * (double)size_bytes / took_s : 0;
        }
    }
    transfer_close(t);
    striped_close(&files);
    if (memory != NULL) {
        dt_device_free(&cpu, DT_MEMORY_DEVICE, memory, size_bytes);
    }
    dt_device_close(&cpu);
    return rate;
}

double residence_rate(const struct plan *p, const struct job_offload *job, const char **engine)
{
    size_t most = (p->file_bytes / TRANSFER_PAGE_BYTES + 1) * TRANSFER_PAGE_BYTES;
    return probe(job, most < PROBE_BYTES ? most : PROBE_BYTES, engine);
}

/* CUDA's driver pins memory without regard to the limit; where another one refuses, this is the cause. */
static void say_memlock(double pinned_bytes, struct dt_text *out)
{
    struct rlimit limit;
    char need[32], have[32];
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && geteuid() != 0 &&
        (double)limit.rlim_cur < pinned_bytes) {
        dt_text_printf(out, " (%s are pinned, ulimit -l is %s: raise it if the driver refuses)",
                       dt_text_bytes(pinned_bytes, need, sizeof need),
                       dt_text_bytes((double)limit.rlim_cur, have, sizeof have));
    }
}

void residence_words(const struct plan *p, const struct job_offload *job, int ranks, bool own_memory,
                     struct dt_text *out)
{
    char bytes[32], rate_text[32];
    const char *engine;
    if (job->optimizer == OFFLOAD_CPU || job->parameters == OFFLOAD_CPU || job->activations == OFFLOAD_CPU) {
        if (own_memory) {
            dt_text_printf(out, "offload: %s of each rank rest in the host's memory",
                           dt_text_bytes((double)p->bytes[PLAN_HOST], bytes, sizeof bytes));
            say_memlock((double)p->size_bytes[PLAN_PINNED] * ranks, out);
        } else {
            dt_text_puts(out, "offload: the CPU computes in the host's memory, so nothing moves for cpu");
        }
    }
    if (p->file_bytes > 0) {
        double rate = residence_rate(p, job, &engine), moved = p->moved_bytes * ranks;
        dt_text_printf(out, "%s%s of each rank rest in files, by %s",
                       out->size > 0 ? "; " : "offload: ", dt_text_bytes((double)p->file_bytes, bytes, sizeof bytes),
                       engine);
        if (rate > 0) {
            dt_text_printf(out, "; a step reads and writes them in %.3g s at the %s/s that a short test gave",
                           moved / rate, dt_text_bytes(rate, rate_text, sizeof rate_text));
        }
    }
}
