/* Who holds the others up. In a synchronous step all ranks take the same time, so the slow one
 * shows in how it is spent: it reads and computes for longer than the others, who wait for it.
 * Each rank has a clock of its phases; the sums of every PACE_BLOCK steps reach all ranks
 * (riders of the step sums, step_sums.h), and rank 0 judges. Both are pure: times come in, nothing
 * else does. */
#ifndef DT_WORKER_ENGINE_PACE_H
#define DT_WORKER_ENGINE_PACE_H

#include <stdbool.h>
#include <stdint.h>

enum {
    PACE_BLOCK = 10, /* steps whose times are summed before they travel */
    PACE_BLOCKS = 5  /* of the window that is judged */
};
enum pace_phase {
    PACE_DATA,          /* waiting for the batch */
    PACE_COMPUTE,       /* all that is neither of the others, also what lies between two steps */
    PACE_COMMUNICATION, /* in collectives, or waiting for those of another stream: for peers,
                         * mostly */
    PACE_PHASES
};
const char *pace_phase_name(enum pace_phase phase); /* "compute" */

/* of this rank; all zero to begin with */
struct pace_clock {
    double from_s, waited_s;       /* where the time that was not counted yet begins; 0: at the
                                    * next step's begin */
    double sums_s[PACE_PHASES];    /* of the block so far */
    int step_count;                /* in them */
    int64_t block_ns[PACE_PHASES]; /* of the last whole block: what travels */
};

/* Times are monotonic seconds. waited_s: what the compute stream has waited so far
 * (dt_stream_waited_s). */
/* What came before now was no step (an evaluation, a save): it is nobody's pace. */
void pace_skip(struct pace_clock *c, double now_s, double waited_s);
/* A step that began at begin_s has ended now; data_s of it went by for its batches. True: a
 * block is complete, its sums are in c->block_ns. Ranks that make the same steps complete their
 * blocks at the same ones. */
bool pace_step(struct pace_clock *c, double begin_s, double data_s, double now_s, double waited_s);

struct pace_state { /* of one rank, as the judge sees it */
    bool slow;
    enum pace_phase phase; /* as said last */
    double ratio, said_s;  /* ratio: of its own time to the median */
    int calm;              /* looks in a row at which a slow one was not */
};
struct pace_judge {
    int size;
    int64_t block_count;           /* so far */
    int64_t (*times)[PACE_PHASES]; /* a ring of PACE_BLOCKS tables of `size` rows, ns */
    double *scratch;               /* size */
    double medians[PACE_BLOCKS];   /* of the ranks' own time (all but communication) per block, s */
    struct pace_state *ranks;
};
struct pace_news {
    int rank;
    bool over;                                         /* it is slow no longer */
    enum pace_phase phase;                             /* in which it loses most */
    double ratio;                                      /* of that phase to the median; over: of
                                                        * its own time. Not finite: the others
                                                        * need none */
    double own_s, median_own_s;                        /* data and compute, a step */
    double mean_s[PACE_PHASES], median_s[PACE_PHASES]; /* a step, over the window: its own, and
                                                        * the median of the ranks */
};

/* Room for the judgement over `size` ranks; pace_judge_close frees it and is harmless on a
 * zeroed one. */
void pace_judge_open(struct pace_judge *j, int size);
void pace_judge_close(struct pace_judge *j);
/* One more block: table[rank * PACE_PHASES + phase] in ns, summed over PACE_BLOCK steps. Writes
 * what is to be said, by rank, to news (room for one per rank); returns how many. A rank is slow
 * whose own time over the window is 1.5 times the median and costs the job a tenth of its time,
 * also when its worst block is left out: one pause (somebody's cron job) says nothing. Said
 * once, then when it changes much, and every hour. The median of an even number of ranks is the
 * lower one: of two, the faster is the measure. */
int pace_judge_add(struct pace_judge *j, const int64_t *table, double now_s, struct pace_news *news);

#endif
