/* The worker's page: 4 KiB of memory shared by one worker and its agent. The worker writes what
 * it does (the pulse), the agent writes what it wants. Every wait in the worker looks at
 * `order`. The agent makes it as a memfd and names it DTRUN_PAGE=/proc/PID/fd/N (PID is the
 * agent's), so nothing is inherited; a worker without an agent has a private one. */
#ifndef DT_BASE_PAGE_H
#define DT_BASE_PAGE_H

#include "base/error.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define DT_PAGE_MAGIC 0x3147505444ull /* "DTPG1" */
#define DT_PAGE_BYTES 4096

enum dt_order { /* only ever grows during a round */
                DT_ORDER_NONE = 0,
                DT_ORDER_STOP = 1, /* finish this step, save, exit 75 */
                DT_ORDER_ABORT = 2 /* the round is over: leave every wait at once, exit 111 */
};

enum dt_phase {
    DT_PHASE_NONE,
    DT_PHASE_START,
    DT_PHASE_FORWARD,
    DT_PHASE_BACKWARD,
    DT_PHASE_STEP,
    DT_PHASE_EVAL,
    DT_PHASE_SAVE,
    DT_PHASE_EXIT,
    DT_PHASE_COUNT
};

/* The state of the worker's GPU, at most a second old. memory_total_bytes 0: the worker has no
 * GPU, or nothing reads its state. -1: not known. */
struct dt_page_gpu {
    _Atomic double busy, memory_bytes, memory_total_bytes, clock_mhz, clock_max_mhz, temperature, power_w;
    _Atomic int64_t throttle; /* as dt_nvml_throttle_text takes it */
    _Atomic int32_t xid;      /* the latest error that the driver told; 0: none */
    char bus[32];             /* "0000:3b:00.0"; a plain copy, read for reports only */
};

struct dt_page {
    uint64_t magic;
    uint32_t version, round;
    /* written by the agent */
    _Atomic uint32_t order; /* enum dt_order; also a futex */
    /* written by the worker */
    _Atomic uint32_t pulse_limit_ms;  /* a pulse that stands still for longer is a hang; 0:
                                       * nobody watches */
    _Atomic int64_t pulse_count;      /* grows with every sign of life */
    _Atomic double pulse_s;           /* dt_now_s() of the last one */
    _Atomic int64_t step;             /* optimizer step, -1 before the first */
    _Atomic uint32_t phase;           /* enum dt_phase */
    _Atomic uint32_t in_collective;   /* 1 while waiting for peers */
    _Atomic int64_t collective_count; /* number of the last collective started */
    _Atomic double collective_s;      /* when it was started */
    _Atomic int64_t saved_step;       /* newest complete checkpoint this worker knows of, -1 for
                                       * none */
    _Atomic int64_t micro_step;
    char collective_name[64];            /* what it is; a plain copy, read for reports only */
    char note[512];                      /* the worker's own cause line for the report, before it
                                          * exits; NUL-terminated */
    _Atomic double save_begin_s, save_s; /* when the newest save began; how long the newest
                                          * complete one took, 0: none yet */
    /* where a step's time goes, the mean of the last ten; all 0 before */
    _Atomic double data_s, compute_s, communication_s;
    /* of the newest step, as metrics.jsonl has them; learned_step -1: none yet */
    _Atomic int64_t learned_step;
    _Atomic double loss, grad_norm, lr, tokens_per_s;
    _Atomic double ready_s; /* when it was first ready for the others: store and communicators
                             * are open; 0: not yet */
    struct dt_page_gpu gpu;
};

/* A page, read with every value in its range: a worker may have written anything there, also by
 * mistake. Counts and steps are 0 (steps and learned_step: -1) to 2^53, times finite and not
 * before or after all others, texts harmless for a terminal. */
struct dt_page_look {
    bool known; /* it gave a sign of life; else all is as at the beginning */
    double pulse_limit_s, pulse_age_s;
    int64_t pulse_count, step, micro_step, saved_step, learned_step, collective_count;
    enum dt_phase phase;
    bool in_collective;
    double collective_age_s, save_age_s, save_s;
    double data_s, compute_s, communication_s;
    double loss, grad_norm, lr, tokens_per_s; /* as they are: a loss may be none */
    double ready_s;                           /* dt_now_s() then; 0: not yet */
    char collective_name[64], note[512];
    struct {
        /* -1: not known */
        double busy, memory_bytes, memory_total_bytes, clock_mhz, clock_max_mhz, temperature, power_w;
        int64_t throttle;
        int xid;
        char bus[32];
    } gpu;
};

/* Agent: the one way to read a page. A null page says nothing. */
void dt_page_read(const struct dt_page *page, double now_s, struct dt_page_look *out);
const char *dt_phase_name(enum dt_phase phase);
/* Agent: a new page for one worker, which nobody can cut off; *fd stays open until
 * dt_page_close. */
int dt_page_create(struct dt_page **out, int *fd, uint32_t round, struct dt_error *err);
/* Worker: maps DTRUN_PAGE, or a private page when the variable is not set. A page that cannot be
 * mapped is an error. */
int dt_page_attach(struct dt_page **out, struct dt_error *err);
/* Unmaps; closes fd unless it is -1. */
void dt_page_close(struct dt_page *page, int fd);
/* Worker: a sign of life. */
void dt_page_pulse(struct dt_page *page);
void dt_page_phase(struct dt_page *page, enum dt_phase phase);

#endif
