/* A whole cluster on simulated time: agents (the real table), members, links with delays, cuts,
 * deaths and restarts, from a seed. The same seed gives the same schedule. One cluster at a
 * time. What must hold is checked while it runs; cluster_broken says what did not. */
#ifndef DT_TESTS_LIB_CLUSTER_H
#define DT_TESTS_LIB_CLUSTER_H

#include "launcher/job/agent.h"
#include "launcher/rounds/member.h"

struct cluster_options {
    uint64_t seed;
    int count, min, max, restarts;
    double start_s;        /* agents start within this time */
    double work_s;         /* what a round's workers take; 0: 2 to 20 s, drawn */
    double faults_until_s; /* 0: no faults */
    double fault_every_s;  /* at most, between two of them; 0: 12 */
    double last_call_s;    /* 0: 8 */
    double join_timeout_s; /* 0: 600 */
    double link_s;         /* what a link may take to come up, at most; 0: as long as any message */
    bool failures;         /* workers fail more often than `restarts` allows */
    bool peers;            /* workers lose their peers, mostly because two hosts cannot reach
                            * each other any more */
    bool whole;            /* faults leave the network as it is: agents die and return, workers
                            * fail, links are reset */
    bool signals;          /* hosts are asked to stop, too; an elastic job goes on without them */
    bool save;             /* the program saves when asked to: all do, before one leaves */
    bool filters;          /* packet filters answer for hosts, each a machine of its own: links
                            * are reset, ports refuse, both ends live on */
    bool stubborn;         /* workers that are told to end may take until their guard ends them;
                            * agents are stopped for a while */
    bool sleeps;           /* agents are stopped, for minutes too, two at once; of what is cut, a
                            * part heals */
    bool overtakes;        /* beats overtake what was sent before them, as on a link that does
                            * not get rid of all at once */
    bool witness;          /* agents meet at a store that compares and puts
                            * (launcher/rounds/witness.h); it and the ways to it fail, too */
    bool wipes;            /* and loses all it has */
    bool machines;         /* each agent has a machine of its own */
    int jobs;              /* whoever ends comes back for the next job of the same name, until it
                            * has been in so many; 0: once */
    bool verbose, trace;   /* to stderr: what happens, and every message */
};

/* what tests look at */
struct cluster_agent {
    bool alive, finished, running; /* running: workers exist */
    int code;
    const struct member *member;
    enum agent_state state;
};

struct cluster_totals {
    double now_s;
    long steps, messages, links; /* links: pairs that ever had one */
    int kills, failures, rounds;
};

/* DTRUN_VERBOSE and DTRUN_TRACE set those options as well. */
void cluster_open(const struct cluster_options *options);
/* Until all agents ended (true), something broke, or the time is over. */
bool cluster_run(double until_s);
/* The same, for so many things that happen. */
bool cluster_run_steps(long count);
/* What did not hold, with the time; null: nothing. */
const char *cluster_broken(void);
struct cluster_agent cluster_agent(int i);
const struct cluster_totals *cluster_totals(void);
/* The leaders' beliefs, to stderr. */
void cluster_show_leaders(void);
/* For schedules made by hand: kills an agent, which starts again after `again_s` (negative:
 * never); cuts it off from all others; heals all cuts. */
void cluster_kill(int i, double again_s);
void cluster_isolate(int i);
/* Cuts the agents whose bits (of the first 31) are set off from those whose are not. */
void cluster_split(uint32_t side);
/* Cuts two agents off from each other. */
void cluster_cut(int a, int b);
/* The same, and both have noticed: they have no link any more. */
void cluster_part(int a, int b);
void cluster_heal(void);
void cluster_fail_worker(int i);
/* A worker of it ends because it lost its peers; it costs as much as one that fails, unless a
 * host was lost or cannot be reached. */
void cluster_lose_peers(int i);
/* Its agent's process is stopped for so long; what comes meanwhile waits. */
void cluster_stop(int i, double for_s);
/* Asks a host to stop. */
void cluster_signal(int i);
/* And again: no worker is to be waited for. */
void cluster_insist(int i);
/* The store answers nobody from now on, or all again. */
void cluster_store_down(bool down);
/* It does not answer this agent, until all cuts are healed. */
void cluster_store_cut(int i);
/* The store keeps a copy of what it has; has what it kept, or nothing. */
void cluster_store_copy(void);
void cluster_store_wipe(bool all);
void cluster_close(void);

#endif
