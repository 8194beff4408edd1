/* The checks of doctor: pure functions from the facts of all ranks to lines of a report. */
#ifndef DT_CMD_DOCTOR_CHECKS_H
#define DT_CMD_DOCTOR_CHECKS_H

#include "cmd/doctor/facts.h"
#include "cmd/doctor/report.h"

#include <stdbool.h>

struct doctor_rank {
    bool here; /* its facts arrived */
    int group; /* of facts "group" */
    struct facts facts;
};

struct doctor_host {
    int group, first;   /* first: the lowest rank there */
    int ranks;          /* here, of it */
    char name[64];      /* "a", or "a#1" where several agents run on one machine */
    struct facts found; /* what its first rank found on the way to others: "GROUP.state", ...,
                         * "done"; and "stored" */
};

struct doctor_view {
    bool alone; /* one process, not started by dtrun */
    struct doctor_rank *ranks;
    int rank_count;
    struct doctor_host *hosts; /* by the lowest rank */
    int host_count;
    struct facts sums; /* "error", or "0.bytes", "0.seconds", "0.wrong", "backend" */
};

/* All ranks and hosts of the facts that arrived; hosts are found, named and sorted. ranks
 * belongs to the view from now on. */
void doctor_view_init(struct doctor_view *v, struct doctor_rank *ranks, int rank_count, bool alone);
void doctor_view_clear(struct doctor_view *v);
/* "4 ranks on 2 hosts: a (ranks 0, 1), b (ranks 2, 3)". */
void doctor_view_describe(const struct doctor_view *v, struct dt_text *out);
/* Runs every row of the table. */
void doctor_judge(const struct doctor_view *v, struct doctor_report *r);

/* ---- for the files of the rows ---- */

typedef void doctor_check(const struct doctor_view *v, struct doctor_report *r);
/* Facts of a host: those of its first rank. */
const struct facts *view_host(const struct doctor_view *v, int host);
/* "x" where all hosts say the same, else "a: x; b: y", side by side. Returns how many different
 * values there are (absent ones do not count). */
int view_values(const struct doctor_view *v, const char *name, struct dt_text *out);
/* The least value over the hosts (negative ones, unlimited, do not count); -1 without any. *host
 * (may be null) has it. */
double view_least(const struct doctor_view *v, const char *name, int *host);

doctor_check check_gpus, check_gpu_driver, check_gpu_libraries, check_gpu_modes, check_gpu_memory, check_gpu_errors,
    check_gpu_clocks, check_gpu_links;
doctor_check check_clock, check_backlog, check_interfaces, check_mtu, check_name, check_pairs, check_master,
    check_outgoing, check_port, check_store, check_sums, check_usual_ports;

#endif
