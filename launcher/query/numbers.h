/* The numbers that a job publishes about itself. One table holds them all: each row has the
 * number's key in the JSON, its metric, its column in the text, and its place in one of the
 * snapshots below. `dtrun --status --json` and the metrics endpoint walk that table, and so does
 * `dtrun --status` for ranks and GPUs; its lines about the job are written in status_show.c. To add
 * a number, add a row in numbers.c, and a member of a snapshot if none holds the number yet. */
#ifndef DT_LAUNCHER_QUERY_NUMBERS_H
#define DT_LAUNCHER_QUERY_NUMBERS_H

#include "base/page.h"
#include "base/text.h"
#include "launcher/store/store_server.h"
#include "launcher/workers/process.h"

#include <stddef.h>

/* ---- snapshots, filled in by the agent ---- */

/* The job as this host sees it. Strings are borrowed; null strings are not shown. */
struct job_numbers {
    int format; /* version of the JSON format */
    const char *state;
    int round, restarts, max_restarts, pid, guard_pid;
    double up_s;
    const char *run_id, *host, *command, *log_dir, *output_dir;
    const char *ignored_signals;              /* JSON: an array of names */
    int hosts, group_rank, world_size;        /* in the newest round */
    int hosts_now, group_rank_now, ranks_now; /* 0, -1, 0 while this host is in no round */
    int min_hosts, max_hosts, local_world_size;
    struct store_server_counts store;
    struct dt_proc_look agent;
    double agent_cpu_s;
};

/* What is known about a rank, as bits. A row is shown only if all the bits it needs are set. */
enum rank_known {
    RANK_ENDED = 1, /* it was started and does not run any more */
    RANK_RUNS = 2,
    RANK_PROCESS = 4,  /* it runs, and /proc describes it */
    RANK_OUTPUT = 8,   /* it has written something through the launcher */
    RANK_PAGE = 16,    /* it runs a program that writes its page, and has begun to write */
    RANK_LEARNED = 32, /* one step is complete */
    RANK_PACE = 64,    /* ten steps are complete */
    RANK_COLLECTIVE = 128,
    RANK_GPU = 256
};

struct rank_numbers {
    unsigned known; /* bits of enum rank_known */
    int rank, local_rank, pid, exit_code;
    const char *host; /* borrowed */
    bool running;
    double up_s, output_age_s, cpu_s;
    struct dt_proc_look process;
    struct dt_page_look page;
    const char *phase;
    char slowed_by[160]; /* what keeps its GPU's clock low; "": nothing */
};

/* ---- rows ---- */

enum numbers_table { /* one for each object of the JSON, and one for values that are metrics only */
                     NUMBERS_JOB,
                     NUMBERS_STORE,
                     NUMBERS_AGENT,
                     NUMBERS_RANK,
                     NUMBERS_GPU
};

enum number_type { /* type of the snapshot's member */
                   NUMBER_BOOL,
                   NUMBER_CHAR,
                   NUMBER_INT,
                   NUMBER_INT64,
                   NUMBER_UINT64,
                   NUMBER_DOUBLE,
                   NUMBER_TEXT, /* const char * */
                   NUMBER_ARRAY /* char [] */
};

#define NUMBER_SHORTEST (-1)

enum number_view { VIEW_ONE_HOST, VIEW_HOSTS, VIEW_GPUS, VIEW_COUNT };

enum number_cell { /* how a column shows its value */
                   CELL_NUMBER,
                   CELL_COUNT, /* empty if unknown */
                   CELL_OR_DASH,
                   CELL_PERCENT, /* a dash if unknown */
                   CELL_TEXT,
                   CELL_BYTES,
                   CELL_OF_BYTES, /* "of 80.0 GiB" */
                   CELL_AGE,
                   CELL_BUSY /* share of a step in which the rank does not wait for others */
};

struct number {
    const char *key; /* in the JSON object; null: not in the JSON */
    size_t at;       /* offset of the member in the snapshot */
    enum number_type type;
    unsigned needs; /* bits of enum rank_known */
    /* in JSON; NUMBER_SHORTEST: as many as the value has, up to 10 digits */
    int decimals;
    bool optional;             /* a negative value means unknown */
    bool not_zero;             /* JSON leaves out a 0 */
    bool raw;                  /* the text is JSON already */
    const char *metric, *help; /* null: not a metric */
    bool counter;              /* the metric only grows; otherwise it is a gauge */
    double metric_scale;       /* factor from the member to the metric; 0: 1 */
    struct {
        const char *heading;   /* null: no column */
        int width[VIEW_COUNT]; /* in characters; negative: left-aligned; 0: not in that view */
        enum number_cell cell;
        int decimals; /* for CELL_NUMBER */
    } column;
};

/* The rows of a table and their number. */
const struct number *numbers_rows(enum numbers_table table, size_t *count);

/* ---- JSON: members of an object, with a comma before all but the object's first member ---- */

void numbers_json(enum numbers_table table, const void *snapshot, unsigned known, struct dt_text *out);
/* The whole object of a store: its numbers and the text of store_server_details. */
void numbers_store_json(const struct store_server *store, struct dt_text *out);
/* The whole object of a rank. For a rank that has ended, only its end is shown. */
void numbers_rank_json(const struct rank_numbers *rank, struct dt_text *out);

/* ---- metrics ---- */

void numbers_job_metrics(const struct job_numbers *job, struct dt_text *out);
/* The format requires that all values of a metric stand together. */
void numbers_rank_metrics(const struct rank_numbers *ranks, int count, struct dt_text *out);

#endif
