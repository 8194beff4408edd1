/* Reports of what happens in a run: one report per moment, many sinks. The step and the loop
 * know only struct observers; run/observers/ fills it with rows. An observer may also vote: the
 * step's one all_reduce (step_sums.h) carries the votes, so all ranks hear the same ones after
 * the same step. */
#ifndef DT_WORKER_ENGINE_REPORT_H
#define DT_WORKER_ENGINE_REPORT_H

#include "base/text.h"
#include "worker/engine/choice_scores.h"
#include "worker/engine/class_counts.h"
#include "worker/engine/step_sums.h"
#include "worker/job/job.h"

#include <stdbool.h>
#include <stdint.h>

struct generate_row;
struct tokenizer;
struct trainer;

enum moment {
    MOMENT_READING,    /* weights are about to be read or made */
    MOMENT_START,      /* the weights are there, the first step follows */
    MOMENT_STEP,       /* a step's results are known; the next step may have begun */
    MOMENT_EVALUATION, /* val_loss is known */
    MOMENT_SAMPLES,    /* samples were made (rank 0 alone) */
    MOMENT_SAVING,     /* a checkpoint is about to be written */
    MOMENT_SAVED,      /* it is complete; save_s */
    MOMENT_SAVE_OVER,  /* the save has ended, complete or not */
    MOMENT_CLOSING,    /* the last step and the last save are over; the export follows */
    MOMENT_END,        /* the run has succeeded; its weights are final and still in memory */
    MOMENT_SAID,       /* words, for the console and the log */
    MOMENT_NOTED,      /* words, for the log alone */
    MOMENT_EVENT       /* name, fields */
};

/* Members that a moment does not name are zero. Pointers are good until report returns. */
struct report {
    struct trainer *of;
    /* all moments of the loop: where the run stands */
    int64_t step, total_steps; /* steps that are done; steps of the whole run */
    int round;
    /* a step, and the evaluation after it */
    bool logged;           /* the step is one of logging.log_every_n_steps, or the last one */
    double epoch;          /* passes over the data, with the fraction of this one */
    bool sequences;        /* false: samples are no sequences, and tokens counts samples */
    int64_t tokens;        /* since the start of the run */
    int64_t targets;       /* of this step, all ranks */
    int64_t blank_steps;   /* steps without any target since the start of the run */
    double loss_scale;     /* that the step was computed with; 1: none */
    int64_t skipped_steps; /* steps whose gradients were not finite with that scale, since the start of the run */
    int64_t outlier_steps; /* steps that stood out and were skipped, since the start of the run */
    double loss, grad_norm, lr, step_s, tokens_per_s; /* NaN: a loss and a norm without targets */
    double data_wait_s;                               /* of step_s: this rank waited for its batches */
    double memory_bytes;                              /* in use; NaN: not logged, or another rank */
    double mfu;                                       /* share of all ranks' peak; not finite: unknown */
    const int64_t *pace; /* times of all ranks that came with this step (pace_judge_add); null: none did */
    /* an evaluation */
    const char *set;                     /* which of data.val; null: it is one set without a name */
    int64_t val_targets;                 /* that the evaluation counted */
    double val_loss;                     /* NaN: the set has no target, or a loss is not finite */
    double perplexity, bits_per_byte;    /* NaN: the targets are no next or masked tokens, or no bytes */
    double pearson;                      /* NaN: the model gives no numbers, or they do not vary */
    const struct class_report *classes;  /* null: the model names no classes */
    const struct choice_report *choices; /* null: the set is no multiple choice */
    const struct generate_row *samples;  /* worker/run/generate.h */
    int64_t sample_count;
    const struct tokenizer *tokenizer; /* of the samples; null: ids are bytes */
    double save_s, pause_s;            /* a save: from its begin to its end, and how long training stood still */
    const char *words;                 /* one line, without its end */
    const char *name, *fields;         /* of an event; fields: JSON members without braces, or "" */
};

struct observer {
    const struct observer_ops *ops;
    struct observers *all;
    void *state; /* the row's own */
};

struct observer_ops {
    const char *name;
    /* False: this run, or this rank, has no use for the observer; nothing else of it is called. A file
     * that cannot be written costs a warning later, never the run. */
    bool (*open)(struct observer *o);
    void (*report)(struct observer *o, const struct report *r, enum moment moment);
    /* Null: it never votes. Asked on every rank when a step is about to end, and in an evaluation after
     * each batch. A wish stands (is voted again) until the moment that fulfils it. */
    unsigned (*vote)(struct observer *o); /* enum vote */
    /* Null: it keeps nothing. Forgets what was reported of steps after `step`, where the run goes on;
     * *evaluated: an evaluation of `step` was reported. */
    int (*rewind)(struct observer *o, int64_t step, bool *evaluated, struct dt_error *err);
    void (*close)(struct observer *o); /* null: there is nothing to close */
};

enum { OBSERVERS_MAX = 16 };
struct observers {
    const struct job *job;
    struct world *world;
    bool quiet, files;
    bool warned; /* that a file of lines cannot be written */
    int count;
    struct observer list[OBSERVERS_MAX];
};

/* A zeroed table has no observers: all of these are harmless on it. close zeroes it. */
void observers_close(struct observers *all);
void observers_report(struct observers *all, const struct report *r, enum moment moment);
/* The votes of all observers of this rank together (enum vote). */
unsigned observers_vote(struct observers *all);
/* Each observer's rewind. *evaluated: any of them knows an evaluation of `step`. */
int observers_rewind(struct observers *all, int64_t step, bool *evaluated, struct dt_error *err);
/* MOMENT_SAID, MOMENT_NOTED, MOMENT_EVENT. */
void observers_say(struct observers *all, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void observers_note(struct observers *all, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void observers_event(struct observers *all, const char *name, const char *fields);

#endif
