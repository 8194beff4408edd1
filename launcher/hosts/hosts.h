/* The coordinator as the job's loop sees it, whether the job has other hosts or not. The job
 * reports what its workers do, and hooks.act tells what this host must do next. alone.c owns the
 * coordinator of a job on one host. several.c agrees with the other hosts, over links, on one
 * coordinator and its owner (rounds/member.h). Both hold the store of the workers. */
#ifndef DT_LAUNCHER_HOSTS_HOSTS_H
#define DT_LAUNCHER_HOSTS_HOSTS_H

#include "launcher/output/cause.h"
#include "launcher/rounds/coordinator.h"
#include "launcher/options/options.h"
#include "launcher/store/store_server.h"

#include <uv.h>

struct hosts_meeting { /* where the workers of a round meet; the same on all its hosts */
    /* 32 hex digits, unique to this launch even if the run id is used again */
    char launch[33];
    char master_addr[256]; /* address of the workers' store, as seen from this host */
    int master_port;
    char sizes[2048]; /* workers per host, "8(x3),4"; "": unknown */
};

struct hosts_hooks {
    void *user;
    /* Tells what this host must do. meeting: for a START, valid during the call; otherwise null.
     * Called from hosts_tell and from the loop. It must not call hosts_tell. */
    void (*act)(void *user, const struct action *a, const struct hosts_meeting *meeting);
    /* Called from the loop only, after all calls of act: now carry the actions out. It may call
     * hosts_tell. */
    void (*settle)(void *user);
    /* For hosts_gather (query/gather.h); may be null. */
    void (*rows)(void *user, struct dt_text *out);
    void (*gathered)(void *user);
};

struct hosts_view { /* what this host knows now */
    /* the job may have other hosts, which may know causes and may have stopped it */
    bool others;
    bool alone; /* we lead, and no other host of the job is here */
    bool spare; /* the job runs without this host, which takes part when another host is lost */
    int restarts_used;
    /* restarts_used, plus the restart that a failure here costs if another host leads and has not
     * counted it yet */
    int restarts_after_failure;
    int no_progress;     /* restarts in a row without progress */
    int64_t best_step;   /* the latest step that a round reached; -1: none */
    const char *address; /* where other hosts reach this host, numeric; null: unknown */
};

struct hosts_cause {           /* why a round ended; valid until control returns to the loop */
    const struct cause *cause; /* null: unknown on this host */
    const char *text;          /* text of the cause, for people; null: unknown */
    bool weak;                 /* the cause only says that a worker lost its peers */
    bool failed;               /* it costs a restart */
    bool said;                 /* people were told */
};

struct hosts;

/* Opens the store. For several hosts it also decides which host holds the endpoint, listens, and
 * seeks the other hosts. It waits only for the look-up of a name. o and hooks->user must outlive
 * *out.
 * Errors: a bad key file, a port that is taken, an address of another host, a loopback interface
 * that is down. Call hosts_close and hosts_free after an error, too. */
int hosts_open(struct hosts **out, uv_loop_t *loop, const struct options *o, const struct hosts_hooks *hooks,
               struct dt_error *err);
/* Reports what our workers did. e->node is ignored, and e->order too if the hosts agree on the
 * order. */
void hosts_tell(struct hosts *h, const struct event *e);
struct hosts_view hosts_view(const struct hosts *h);
struct hosts_cause hosts_cause(const struct hosts *h, int round);
/* The store that workers find on this host if this host leads; null after an error. When this host
 * leads, the store is empty at the start of each round. */
struct store_server *hosts_store(const struct hosts *h);
/* Asks all hosts what their workers do; hooks.gathered is called within a second. Returns false if
 * there is no host to ask. */
bool hosts_gather(struct hosts *h);
/* Appends members of a JSON object: "role", "term" (with several hosts), "members" (hosts, as the
 * latest hosts_gather found them). */
void hosts_status(const struct hosts *h, struct dt_text *out);
/* Appends what other hosts' workers did at the latest hosts_gather: one JSON object per line. */
void hosts_rows(const struct hosts *h, struct dt_text *out);
/* Call it when the job is over and nothing runs here any more. With etcd, a leader waits until
 * nothing runs on the other hosts either, for at most a third of --dead_after. Then the next job of
 * this name can begin at once. */
void hosts_await_others(struct hosts *h);
/* Says goodbye and closes the store and all links. Run the loop until it is empty (at most some
 * seconds), then call hosts_free. Does nothing if h is null. */
void hosts_close(struct hosts *h);
void hosts_free(struct hosts *h);

#endif
