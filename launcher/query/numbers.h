/* The numbers that a job shows of itself. There is one table of them: each row has the number's
 * key in the JSON, its metric, its column in the text, and its place in one of the snapshots
 * below. `dtrun --status --json`, the metrics endpoint and `dtrun --status` walk that table.
 *
 * To add a number: a row in numbers.c, and a member of the snapshot unless what it holds has the
 * number already. */
#ifndef DT_LAUNCHER_QUERY_NUMBERS_H
#define DT_LAUNCHER_QUERY_NUMBERS_H

#include "base/page.h"
#include "base/text.h"
#include "launcher/store/store_server.h"
#include "launcher/workers/process.h"

#include <stddef.h>

/* ---- snapshots, which the agent fills in ---- */

/* The job as this host sees it. Texts are borrowed; a null one is not shown. */
struct job_numbers {
    int format; /* of the JSON */
    const char *state;
    int round, restarts, max_restarts, pid, guard_pid;
    double up_s;
    const char *run_id, *host, *command, *log_dir, *output_dir;
    const char *ignored_signals;              /* JSON: an array of names */
    int hosts, group_rank, world_size;        /* of the newest round */
    int hosts_now, group_rank_now, ranks_now; /* 0, -1, 0 while this host is in no round */
    int min_hosts, max_hosts, local_world_size;
    struct store_server_counts store;
    struct process_look agent;
    double agent_cpu_s;
};

/* What is known of a rank: bits. A row that needs bits which are not set is not shown. */
enum rank_known {
    RANK_ENDED = 1, /* it was started, and does not run any more */
    RANK_RUNS = 2,
    RANK_PROCESS = 4,  /* it runs, and /proc tells of it */
    RANK_OUTPUT = 8,   /* it has written something that came through the launcher */
    RANK_PAGE = 16,    /* it runs a program that writes its page, and has begun to */
    RANK_LEARNED = 32, /* a step is complete */
    RANK_PACE = 64,    /* ten are */
    RANK_COLLECTIVE = 128,
    RANK_GPU = 256
};

struct rank_numbers {
    unsigned known; /* of enum rank_known */
    int rank, local_rank, pid, exit_code;
    const char *host; /* borrowed */
    bool running;
    double up_s, output_age_s, cpu_s;
    struct process_look process;
    struct dt_page_look page;
    const char *phase;
    char slowed_by[160]; /* why its GPU's clock is not higher; "": nothing does */
};

/* ---- rows ---- */

enum numbers_table { /* one for each object of the JSON, and one of metrics alone */
                     NUMBERS_JOB,
                     NUMBERS_STORE,
                     NUMBERS_AGENT,
                     NUMBERS_RANK,
                     NUMBERS_GPU
};

enum number_type { /* of the member that a row points to */
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

enum number_cell { /* how a column shows the value */
                   CELL_NUMBER,
                   CELL_COUNT, /* nothing where it is not known */
                   CELL_OR_DASH,
                   CELL_PERCENT, /* or a dash */
                   CELL_TEXT,
                   CELL_BYTES,
                   CELL_OF_BYTES, /* "of 80.0 GiB" */
                   CELL_AGE,
                   CELL_BUSY /* the share of a step in which the rank does not wait for others */
};

struct number {
    const char *key; /* in the JSON object; null: it is in no JSON */
    size_t at;       /* of the member in the snapshot */
    enum number_type type;
    unsigned needs;            /* of enum rank_known */
    int decimals;              /* in JSON; NUMBER_SHORTEST: up to 10 digits, as many as it has */
    bool optional;             /* a negative value is not known */
    bool not_zero;             /* JSON leaves a 0 out */
    bool raw;                  /* the text is JSON already */
    const char *metric, *help; /* null: it is no metric */
    bool counter;              /* it only grows; else it is a gauge */
    double metric_scale;       /* the metric in terms of the member; 0: 1 */
    struct {
        const char *heading;   /* null: it has no column */
        int width[VIEW_COUNT]; /* in characters, negative: to the left; 0: not in that view */
        enum number_cell cell;
        int decimals; /* of CELL_NUMBER */
    } column;
};

/* The rows of a table, and how many there are. */
const struct number *numbers_rows(enum numbers_table table, size_t *count);

/* ---- JSON: members of an object, with a comma before each but the object's first ---- */

void numbers_json(enum numbers_table table, const void *snapshot, unsigned known, struct dt_text *out);
/* The whole object of a store: its numbers, and what store_server_details tells. */
void numbers_store_json(const struct store_server *store, struct dt_text *out);
/* The whole object of a rank. Of one that has ended its end alone is told. */
void numbers_rank_json(const struct rank_numbers *rank, struct dt_text *out);

/* ---- metrics ---- */

void numbers_job_metrics(const struct job_numbers *job, struct dt_text *out);
/* All values of a metric stand together, as the format wants it. */
void numbers_rank_metrics(const struct rank_numbers *ranks, int count, struct dt_text *out);

#endif
