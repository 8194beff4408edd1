/* Simulates a whole cluster: agents (the real table), members, links with delays, cuts, deaths and
 * restarts, all on simulated time. The same seed gives the same schedule. There is one cluster at a
 * time. Invariants are checked while it runs; cluster_broken names the first one that failed. */
#ifndef DT_TESTS_LIB_CLUSTER_H
#define DT_TESTS_LIB_CLUSTER_H

#include "launcher/job/agent.h"
#include "launcher/rounds/member.h"

struct cluster_options {
    uint64_t seed;
    int count, min, max, restarts;
    double start_s;        /* agents start within this time */
    double work_s;         /* how long workers run in a round; 0: random, 2 to 20 s */
    double faults_until_s; /* faults happen until then; 0: no faults */
    double fault_every_s;  /* longest time between two faults; 0: 12 */
    double last_call_s;    /* 0: 8 */
    double join_timeout_s; /* 0: 600 */
    double link_s;         /* longest time for a link to come up; 0: as long as for any message */
    bool failures;         /* workers fail more often than the restart budget allows */
    /* workers lose their peers, mostly because two hosts cannot reach each other any more */
    bool peers;
    /* faults leave the network intact: agents die and return, workers fail, links are reset */
    bool whole;
    bool signals; /* hosts are asked to stop, too; an elastic job goes on without them */
    /* the program saves when asked to; all workers save before one host leaves */
    bool save;
    /* each host is a machine of its own, and packet filters answer for it: links are reset and
     * ports refuse connections, while both ends live on */
    bool filters;
    /* workers that are told to end may live until their guard ends them; agents are stopped for a
     * while */
    bool stubborn;
    /* agents are stopped, up to minutes, even two at once; only a part of the cuts heals */
    bool sleeps;
    /* beats overtake earlier messages, as on a link whose send buffer is full */
    bool overtakes;
    /* agents meet at a store with compare-and-put (launcher/rounds/witness.h); the store and the
     * connections to it fail, too */
    bool witness;
    bool wipes;    /* the store also loses all its data */
    bool machines; /* each agent has a machine of its own */
    /* an agent that ends comes back for the next job of the same name, until it was in so many
     * jobs; 0: one */
    int jobs;
    bool verbose, trace; /* print to stderr what happens, and every message */
};

/* state that tests examine */
struct cluster_agent {
    bool alive, finished, running; /* running: it has workers */
    int code;
    const struct member *member;
    enum agent_state state;
};

struct cluster_totals {
    double now_s;
    long steps, messages, links; /* links: pairs of agents that ever had one */
    int kills, failures, rounds;
};

/* DTRUN_VERBOSE and DTRUN_TRACE set those options, too. */
void cluster_open(const struct cluster_options *options);
/* Runs until all agents have ended (returns true), an invariant fails, or the time is over. */
bool cluster_run(double until_s);
/* Runs for a number of events. */
bool cluster_run_steps(long count);
/* The failed invariant, with the time; null: none failed. */
const char *cluster_broken(void);
struct cluster_agent cluster_agent(int i);
const struct cluster_totals *cluster_totals(void);
/* Prints to stderr which leader each agent believes in. */
void cluster_show_leaders(void);
/* For schedules made by hand. Kills an agent, which starts again after `again_s` (negative: never);
 * cuts an agent off from all others; heals all cuts. */
void cluster_kill(int i, double again_s);
void cluster_isolate(int i);
/* Separates the agents whose bits are set from the other agents (among the first 31). */
void cluster_split(uint32_t side);
/* Cuts the connection between two agents. */
void cluster_cut(int a, int b);
/* Cuts the connection, and both ends have noticed: they have no link any more. */
void cluster_part(int a, int b);
void cluster_heal(void);
void cluster_fail_worker(int i);
/* A worker of agent i ends because it lost its peers. This costs as much as a failed worker, unless
 * a host was lost or cannot be reached. */
void cluster_lose_peers(int i);
/* Stops the agent's process for so long; messages to it wait meanwhile. */
void cluster_stop(int i, double for_s);
/* Asks a host to stop. */
void cluster_signal(int i);
/* Asks the host a second time: it must not wait for its workers. */
void cluster_insist(int i);
/* The store answers no agent from now on (true), or all again (false). */
void cluster_store_down(bool down);
/* The store does not answer this agent until all cuts are healed. */
void cluster_store_cut(int i);
/* The store copies its data; it returns to that copy; it loses all data. */
void cluster_store_copy(void);
void cluster_store_wipe(bool all);
void cluster_close(void);

#endif
