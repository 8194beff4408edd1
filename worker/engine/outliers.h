/* Steps that stand out: a loss or a norm that is too far from those of the last steps. All ranks judge the
 * same numbers, so they agree without a word. Pure. */
#ifndef DT_WORKER_ENGINE_OUTLIERS_H
#define DT_WORKER_ENGINE_OUTLIERS_H

#include "base/arena.h"
#include "worker/job/job.h"

enum outlier { OUTLIER_NONE, OUTLIER_LOSS_Z, OUTLIER_GRAD_Z, OUTLIER_LOSS_MEDIAN };

struct outliers {
    int64_t window, count;        /* window 0: nothing is judged; count: of all steps */
    int64_t skipped;              /* of them: they stood out and changed nothing; the caller counts */
    double *loss, *norm, *sorted; /* of the last `window` steps, in turn; for a median */
    double skip_loss_z, skip_grad_z, guard_factor;
};

/* The steps that are looked back at, as a checkpoint keeps them: as many of each as `kept`, the step number
 * count - 1 last, at place (count - 1) % kept. kept 0: none. */
struct outlier_steps {
    int64_t count, kept, skipped;
    const double *loss, *norm;
};

/* True if the job asks for steps to be judged. */
bool outliers_asked(const struct job_training *job);
/* Zeroed if the job asks for nothing. Memory is of the arena. */
void outliers_open(struct outliers *o, const struct job_training *job, struct dt_arena *arena);
/* Adds a step, whatever it is. *score: how many standard deviations, or how many times the median. The
 * first `window` steps pass. As llm.c's detector, whose window has the step itself; the median is of the
 * steps before it. */
enum outlier outliers_judge(struct outliers *o, double loss, double norm, double *score);
/* Lends what there is; it is good until the next step is judged. */
struct outlier_steps outliers_steps(const struct outliers *o);
/* The next step is judged as in the run that kept these. Of more steps than the window has the newest count. */
void outliers_resume(struct outliers *o, const struct outlier_steps *from);

#endif
