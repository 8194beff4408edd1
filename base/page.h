/* The worker's page: 4 KiB of memory shared by one worker and its agent. The worker writes its
 * state (the pulse), and the agent writes orders. Every wait in the worker checks `order`. The
 * agent makes the page as a memfd and passes DTRUN_PAGE=/proc/PID/fd/N (PID is the agent's), so no
 * descriptor is inherited. A worker without an agent has a private page. */
#ifndef DT_BASE_PAGE_H
#define DT_BASE_PAGE_H

#include "base/error.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define DT_PAGE_MAGIC 0x3147505444ull /* "DTPG1" */
#define DT_PAGE_BYTES 4096

enum dt_order { /* only grows during a round */
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

/* The state of the worker's GPU, at most a second old. memory_total_bytes 0: the worker has no GPU,
 * or nothing reads its state. -1: unknown. */
struct dt_page_gpu {
    _Atomic double busy, memory_bytes, memory_total_bytes, clock_mhz, clock_max_mhz, temperature, power_w;
    _Atomic int64_t throttle; /* for dt_nvml_throttle_text */
    _Atomic int32_t xid;      /* the latest error that the driver reported; 0: none */
    char bus[32];             /* "0000:3b:00.0"; not atomic, only for reports */
};

struct dt_page {
    uint64_t magic;
    uint32_t version, round;
    /* written by the agent */
    _Atomic uint32_t order; /* enum dt_order; also a futex */
    /* written by the worker */
    /* if the pulse stands still for longer, the worker hangs; 0: the pulse is not watched */
    _Atomic uint32_t pulse_limit_ms;
    _Atomic int64_t pulse_count;      /* grows with every pulse */
    _Atomic double pulse_s;           /* dt_now_s() of the last pulse */
    _Atomic int64_t step;             /* optimizer step; -1 before the first */
    _Atomic uint32_t phase;           /* enum dt_phase */
    _Atomic uint32_t in_collective;   /* greater than 0 while the worker waits for peers */
    _Atomic int64_t collective_count; /* number of collectives started */
    _Atomic double collective_s;      /* start time of the last one */
    /* newest complete checkpoint that this worker knows; -1: none */
    _Atomic int64_t saved_step;
    _Atomic int64_t micro_step;
    char collective_name[64]; /* the last collective; not atomic, only for reports */
    /* the worker's cause for the report, written before it exits; NUL-terminated */
    char note[512];
    /* start of the newest save; duration of the newest complete one, 0: none yet */
    _Atomic double save_begin_s, save_s;
    /* where a step's time goes: means of the last ten steps; all 0 before that */
    _Atomic double data_s, compute_s, communication_s;
    /* values of the newest step, as in metrics.jsonl; learned_step -1: none yet */
    _Atomic int64_t learned_step;
    _Atomic double loss, grad_norm, lr;
    /* one of the two is -1: tokens if samples are no sequences, samples if they are */
    _Atomic double tokens_per_s, samples_per_s;
    _Atomic double ready_s; /* time at which store and communicators were first open; 0: not yet */
    struct dt_page_gpu gpu;
    /* the cause in `note` as numbers: enum dt_status, struct dt_blame, the digest */
    uint32_t cause_digest;
    int32_t cause_status, cause_fault, cause_rank, cause_told, cause_teller, cause_host;
    /* this worker's newest complete snapshot in the host's memory; -1: none */
    _Atomic int64_t snapshot_step;
    /* step of the newest save or snapshot that was begun, complete or not; -1: none */
    _Atomic int64_t begun_step;
};

/* A copy of a page with every value in its range, because a faulty worker may have written
 * anything. Counts and steps are 0 (step and learned_step: -1) to 2^53; times are finite and in a
 * sensible order; texts are harmless for a terminal. */
struct dt_page_look {
    bool known; /* the worker has given a pulse; before that, the page is as the agent made it */
    double pulse_limit_s, pulse_age_s;
    int64_t pulse_count, step, micro_step, saved_step, learned_step, collective_count, snapshot_step, begun_step;
    enum dt_phase phase;
    bool in_collective;
    double collective_age_s, save_age_s, save_s;
    double data_s, compute_s, communication_s;
    double loss, grad_norm, lr, tokens_per_s, samples_per_s; /* unchecked: a loss may be NaN */
    double ready_s;                                          /* by dt_now_s(); 0: not yet */
    char collective_name[64];
    struct dt_error cause; /* the worker's cause for its end; no text: none */
    struct {
        /* -1: unknown */
        double busy, memory_bytes, memory_total_bytes, clock_mhz, clock_max_mhz, temperature, power_w;
        int64_t throttle;
        int xid;
        char bus[32];
    } gpu;
};

/* Agent: the only way to read a page. A null page gives initial values. */
void dt_page_read(const struct dt_page *page, double now_s, struct dt_page_look *out);
const char *dt_phase_name(enum dt_phase phase);
/* Agent: makes a page for one worker, sealed against shrinking. *fd stays open until
 * dt_page_close. */
int dt_page_create(struct dt_page **out, int *fd, uint32_t round, struct dt_error *err);
/* Worker: maps DTRUN_PAGE, or a private page if the variable is not set. Fails if the page cannot
 * be mapped. */
int dt_page_attach(struct dt_page **out, struct dt_error *err);
/* Unmaps the page, and closes fd unless it is -1. */
void dt_page_close(struct dt_page *page, int fd);
/* Worker: writes the cause of its end. */
void dt_page_set_cause(struct dt_page *page, const struct dt_error *why);
/* Worker: counts one pulse. */
void dt_page_pulse(struct dt_page *page);
void dt_page_phase(struct dt_page *page, enum dt_phase phase);

#endif
