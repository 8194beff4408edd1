/* Each agent is what dtrun runs for a job on several hosts (hosts.h), all on one loop, told what
 * a node without workers has to say. */
#include "cmd/bench/nodes.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "collectives/net.h"
#include "launcher/hosts/hosts.h"
#include "launcher/options/options.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static const double deadline_s = 120;

struct crowd;
struct bench_agent {
    struct crowd *crowd;
    struct hosts *hosts;
    struct options options;
    bool join; /* to be said when the member may be called */
};
struct crowd { /* the agents of one process */
    uv_loop_t loop;
    struct bench_agent *agents;
    int count, started;
    bool broken;
};

static void say_join(struct bench_agent *a)
{
    hosts_tell(a->hosts, &(struct event){.kind = EVENT_JOIN, .local_world_size = 1, .order = -1, .role = "default"});
}

static void on_act(void *user, const struct action *a, const struct hosts_meeting *meeting)
{
    struct bench_agent *agent = user;
    (void)meeting;
    if (a->kind == ACTION_START) {
        agent->crowd->started++;
    } else if (a->kind == ACTION_END) {
        agent->join = true;
    } else {
        agent->crowd->broken = true;
    }
}

static void on_settle(void *user)
{
    struct bench_agent *a = user;
    if (a->join) {
        a->join = false;
        say_join(a);
    }
}

/* Agents first .. first + count - 1 of `all`, with their options read and nothing else done. */
static int prepare(struct crowd *c, int first, int count, long all, int port)
{
    struct dt_error err;
    *c = (struct crowd){.agents = dt_alloc((size_t)count * sizeof *c->agents), .count = count};
    if (uv_loop_init(&c->loop) != 0) {
        return -1;
    }
    for (int i = 0; i < count; i++) {
        char nodes[40], rank[40], where[40];
        (void)snprintf(nodes, sizeof nodes, "--nnodes=%ld", all);
        (void)snprintf(rank, sizeof rank, "--node_rank=%d", first + i);
        (void)snprintf(where, sizeof where, "--master_port=%d", port);
        char *argv[] = {(char *)"dtrun",
                        nodes,
                        rank,
                        where,
                        (char *)"--master_addr=127.0.0.1",
                        (char *)"--nproc_per_node=1",
                        (char *)"--max_restarts=1",
                        (char *)"--no_python",
                        (char *)"/bin/true",
                        NULL};
        c->agents[i].crowd = c;
        if (options_read(&c->agents[i].options, 9, argv, environ, &err) != 0) {
            return -1;
        }
    }
    return 0;
}

static int begin(struct crowd *c)
{
    struct dt_error err;
    for (int i = 0; i < c->count; i++) {
        struct bench_agent *a = &c->agents[i];
        if (hosts_open(&a->hosts, &c->loop, &a->options,
                       &(struct hosts_hooks){.user = a, .act = on_act, .settle = on_settle}, &err) != 0) {
            return -1;
        }
        say_join(a);
    }
    return 0;
}

static int run_until_started(struct crowd *c, int started)
{
    double until_s = dt_now_s() + deadline_s;
    while (c->started < started && !c->broken && dt_now_s() < until_s) {
        (void)uv_run(&c->loop, UV_RUN_ONCE);
    }
    return c->started >= started && !c->broken ? 0 : -1;
}

/* The followers: a byte to `out` whenever all of them were told to start. */
static int follow(long count, int port, int in, int out)
{
    struct crowd c;
    char byte = 0;
    int others = (int)count - 1;
    if (prepare(&c, 1, others, count, port) != 0 || write(out, &byte, 1) != 1 || read(in, &byte, 1) != 1 ||
        begin(&c) != 0) {
        return -1;
    }
    for (int round = 1; round <= 2; round++) {
        if (run_until_started(&c, round * others) != 0 || write(out, &byte, 1) != 1) {
            return -1;
        }
    }
    for (;;) { /* the leader ends us */
        (void)uv_run(&c.loop, UV_RUN_ONCE);
    }
}

static void on_news(uv_poll_t *poll, int status, int events)
{
    char byte;
    int fd = -1;
    (void)events;
    if (status == 0 && uv_fileno((uv_handle_t *)poll, &fd) == 0 && read(fd, &byte, 1) == 1) {
        ++*(int *)poll->data;
    }
}

static int wait_for_all(struct crowd *c, const int *news, int round)
{
    double until_s = dt_now_s() + deadline_s;
    while ((*news < round || c->started < round) && !c->broken && dt_now_s() < until_s) {
        (void)uv_run(&c->loop, UV_RUN_ONCE);
    }
    return *news >= round && c->started >= round && !c->broken ? 0 : -1;
}

static int lead(long count, int port, int in, int out, double *ms)
{
    struct crowd c;
    char byte = 0;
    int news = 0;
    uv_poll_t poll = {.data = &news};
    if (prepare(&c, 0, 1, count, port) != 0 || read(in, &byte, 1) != 1 || uv_poll_init(&c.loop, &poll, in) != 0 ||
        uv_poll_start(&poll, UV_READABLE, on_news) != 0) {
        return -1;
    }
    double began_s = dt_now_s();
    if (begin(&c) != 0 || write(out, &byte, 1) != 1 || wait_for_all(&c, &news, 1) != 0) {
        return -1;
    }
    ms[0] = (dt_now_s() - began_s) * 1e3;
    began_s = dt_now_s();
    hosts_tell(
        c.agents[0].hosts,
        &(struct event){
            .kind = EVENT_FAILED, .round = 1, .failure = FAILURE_PLAIN, .code = 1, .step = -1, .saved_step = -1});
    say_join(&c.agents[0]);
    if (wait_for_all(&c, &news, 2) != 0) {
        return -1;
    }
    ms[1] = (dt_now_s() - began_s) * 1e3;
    return 0;
}

/* A process that dies with us, its complaints unheard. */
static pid_t fork_quietly(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)dup2(null, 2);
    }
    return pid;
}

static void end(pid_t pid)
{
    if (pid > 0) {
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, NULL, 0);
    }
}

int bench_free_port(void)
{
    struct dt_net listener = {.fd = -1};
    int port = 0;
    if (dt_net_listen(&listener, "127.0.0.1", 0, 1, NULL, &port, NULL) == 0) {
        dt_net_close(&listener);
    }
    return port;
}

int bench_nodes(long count, double *first_ms, double *again_ms)
{
    int to_leader[2], to_others[2], result[2], port = bench_free_port();
    double ms[2];
    if (pipe2(to_leader, O_CLOEXEC) != 0 || pipe2(to_others, O_CLOEXEC) != 0 || pipe2(result, O_CLOEXEC) != 0) {
        perror("bench: pipe");
        return -1;
    }
    pid_t leader = fork_quietly();
    if (leader == 0) {
        _exit(lead(count, port, to_leader[0], to_others[1], ms) == 0 &&
                      write(result[1], ms, sizeof ms) == (ssize_t)sizeof ms
                  ? 0
                  : 1);
    }
    pid_t others = leader > 0 ? fork_quietly() : -1;
    if (others == 0) {
        (void)follow(count, port, to_others[0], to_leader[1]);
        _exit(1);
    }
    (void)close(result[1]);
    bool well = others > 0 && read(result[0], ms, sizeof ms) == (ssize_t)sizeof ms;
    end(leader);
    end(others);
    for (int i = 0; i < 2; i++) {
        (void)close(to_leader[i]);
        (void)close(to_others[i]);
    }
    (void)close(result[0]);
    if (!well) {
        (void)fprintf(stderr, "bench: %ld agents did not meet\n", count);
        return -1;
    }
    *first_ms = ms[0];
    *again_ms = ms[1];
    return 0;
}
