/* A job on several hosts, as one agent sees it: the member (member.h) with its links, its clock
 * and the endpoint, and the worker store on the same port. run.c tells what its workers do and
 * is told what to do, as it would be by a coordinator of its own. */
#ifndef DT_LAUNCHER_HOSTS_HOSTS_H
#define DT_LAUNCHER_HOSTS_HOSTS_H

#include "launcher/rounds/coordinator.h"
#include "launcher/options/options.h"
#include "launcher/store/store_server.h"

#include <uv.h>

struct nodes_hooks {
    void *user;
    /* What our node is to do. master_addr, master_port: where the workers of the round find
     * their store (START; else null); sizes: how many workers each of its hosts has, "8(x3),4",
     * or "". Called from nodes_tell and from the loop; must not call nodes_tell itself. */
    void (*act)(void *user, const struct action *a, const char *master_addr, int master_port, const char *sizes);
    /* From the loop only, after whatever was acted: the time to carry it out; nodes_tell may be
     * called. */
    void (*settle)(void *user);
    /* For nodes_gather (gather.h); may be null. */
    void (*rows)(void *user, struct dt_text *out);
    void (*gathered)(void *user);
};

struct nodes;

/* Decides who holds the endpoint, listens, and seeks the others; nothing is waited for but the
 * look-up of the endpoint's name. o and hooks->user must outlive it. Errors: a bad key file, a
 * port that is taken. */
int nodes_open(struct nodes **out, uv_loop_t *loop, const struct options *o, const struct nodes_hooks *hooks,
               struct dt_error *err);
/* The store that workers find here if this agent leads; empty when a round begins that it leads. */
struct store_server *nodes_store(const struct nodes *n);
/* Where others reach this host, numeric; null while that is unknown. */
const char *nodes_address(const struct nodes *n);
/* Which launch of its run id this is, 32 hex digits: the same on all hosts, from the first round
 * on. */
void nodes_launch(const struct nodes *n, char out[33]);
/* In place of coordinator_step; e->node and e->order are ignored. */
void nodes_tell(struct nodes *n, const struct event *e);
/* Restarts that the job has used, as far as is known here; with `failed`, including the one that
 * a failure here is about to cost. */
int nodes_restarts_used(const struct nodes *n, bool failed);
/* How many restarts in a row came no further, and (through best_step) how far the best one came;
 * as far as is known here. */
int nodes_no_progress(const struct nodes *n, int64_t *best_step);
/* Asks all hosts what their workers do; false: there is nobody to ask, else hooks.gathered is
 * called within a second. */
bool nodes_gather(struct nodes *n);
/* Appends members of a JSON object: "role", "term", "members" (hosts, as the newest nodes_gather
 * found them). */
void nodes_status(const struct nodes *n, struct dt_text *out);
/* We lead, and no other host of the job is here. */
bool nodes_is_alone(const struct nodes *n);
/* The job runs with other hosts; ours takes part when one is lost. */
bool nodes_is_spare(const struct nodes *n);
/* Appends what other hosts' workers did when nodes_gather asked: a JSON object per line. */
void nodes_rows(const struct nodes *n, struct dt_text *out);
/* Why the round ended, or null: nothing is known here. `weak`: no more than that a worker lost
 * its peers. `failed`: it costs a restart. */
const char *nodes_cause(const struct nodes *n, int round, bool *weak, bool *failed);
/* It has been said to people already. */
bool nodes_cause_said(const struct nodes *n, int round);
/* At an etcd, the job is over and nothing runs here any more: a leader waits until nothing runs
 * on the other hosts either, for a third of --dead_after at most, so that the next job of this
 * name can begin at once. */
void nodes_await_others(struct nodes *n);
/* Says goodbye and closes the store and all links; run the loop until it is empty (some seconds
 * at most), then nodes_free. */
void nodes_close(struct nodes *n);
void nodes_free(struct nodes *n);

#endif
