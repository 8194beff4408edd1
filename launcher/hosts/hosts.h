/* What the job's loop asks of the coordinator, whether the job has other hosts or not. The job
 * tells what its workers do, and hooks.act says what this host does next. alone.c owns the
 * coordinator of a job on one host; several.c agrees with the other hosts, over links, on one
 * coordinator and its owner (rounds/member.h). Both hold the store of the workers. */
#ifndef DT_LAUNCHER_HOSTS_HOSTS_H
#define DT_LAUNCHER_HOSTS_HOSTS_H

#include "launcher/output/cause.h"
#include "launcher/rounds/coordinator.h"
#include "launcher/options/options.h"
#include "launcher/store/store_server.h"

#include <uv.h>

struct hosts_meeting {     /* of the workers of a round; the same on all its hosts */
    char launch[33];       /* 32 hex digits; no other launch has it, whatever its run id */
    char master_addr[256]; /* where the workers find their store, as seen from this host */
    int master_port;
    char sizes[2048]; /* workers of each host, "8(x3),4"; "": not known */
};

struct hosts_hooks {
    void *user;
    /* What this host is to do; meeting: of a START, else null, and valid during the call. Called
     * from hosts_tell and from the loop; must not call hosts_tell itself. */
    void (*act)(void *user, const struct action *a, const struct hosts_meeting *meeting);
    /* From the loop only, after whatever was acted: the time to carry it out; hosts_tell may be
     * called. */
    void (*settle)(void *user);
    /* For hosts_gather (query/gather.h); may be null. */
    void (*rows)(void *user, struct dt_text *out);
    void (*gathered)(void *user);
};

struct hosts_view { /* what is known on this host now */
    bool others;    /* other hosts may be in the job: they may know causes, and have stopped it */
    bool alone;     /* we lead, and no other host of the job is here */
    bool spare;     /* the job runs with other hosts; ours takes part when one is lost */
    int restarts_used;
    int restarts_after_failure; /* including the one that a failure here costs, which a leader
                                 * elsewhere may not have counted yet */
    int no_progress;            /* restarts in a row that came no further */
    int64_t best_step;          /* the furthest one, of those; -1: none */
    const char *address;        /* where others reach this host, numeric; null: not known */
};

struct hosts_cause {           /* why a round ended; valid until the loop runs on */
    const struct cause *cause; /* null: not known on this host */
    const char *text;          /* the same for people; null: not known */
    bool weak;                 /* no more than that a worker lost its peers */
    bool failed;               /* it costs a restart */
    bool said;                 /* people have been told */
};

struct hosts;

/* Opens the store, and for several hosts decides who holds the endpoint, listens, and seeks the
 * others. Waits for nothing but the look-up of a name. o and hooks->user must outlive *out.
 * Errors: a bad key file, a port that is taken, an address of another host, a loopback interface
 * that is down. hosts_close and hosts_free are due after an error as well. */
int hosts_open(struct hosts **out, uv_loop_t *loop, const struct options *o, const struct hosts_hooks *hooks,
               struct dt_error *err);
/* What our workers did; e->node is ignored, and so is e->order where hosts agree on the order. */
void hosts_tell(struct hosts *h, const struct event *e);
struct hosts_view hosts_view(const struct hosts *h);
struct hosts_cause hosts_cause(const struct hosts *h, int round);
/* The store that workers of this host find here, if this host leads; null after an error. It is
 * empty when a round begins that this host leads. */
struct store_server *hosts_store(const struct hosts *h);
/* Asks all hosts what their workers do; false: there is nobody to ask, else hooks.gathered is
 * called within a second. */
bool hosts_gather(struct hosts *h);
/* Appends members of a JSON object: "role", "term" (of several hosts), "members" (hosts, as the
 * newest hosts_gather found them). */
void hosts_status(const struct hosts *h, struct dt_text *out);
/* Appends what other hosts' workers did when hosts_gather asked: a JSON object per line. */
void hosts_rows(const struct hosts *h, struct dt_text *out);
/* At an etcd, the job is over and nothing runs here any more: a leader waits until nothing runs
 * on the other hosts either, for a third of --dead_after at most, so that the next job of this
 * name can begin at once. */
void hosts_await_others(struct hosts *h);
/* Says goodbye and closes the store and all links; run the loop until it is empty (some seconds
 * at most), then hosts_free. Null: nothing happens. */
void hosts_close(struct hosts *h);
void hosts_free(struct hosts *h);

#endif
