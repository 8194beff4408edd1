/* `dtrun --no_python --nproc_per_node=N /bin/true` from start to end, in milliseconds; the floor
 * is N times /bin/true started and waited for by ourselves, the peer is torchrun with the same
 * words. Interleaved, median over repeats. */
#include "cmd/bench/start.h"

#include "base/bench.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "cmd/bench/nodes.h"

#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { max_repeats = 101 };

/* quiet: nor is anybody to hear what it complains of. */
static pid_t spawn_with(char *const *argv, bool quiet)
{
    posix_spawn_file_actions_t actions;
    pid_t pid = -1;
    (void)posix_spawn_file_actions_init(&actions);
    (void)posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    (void)posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    if (quiet) {
        (void)posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    }
    if (posix_spawn(&pid, argv[0], &actions, NULL, argv, environ) != 0) {
        pid = -1;
    }
    (void)posix_spawn_file_actions_destroy(&actions);
    return pid;
}

static pid_t spawn(char *const *argv)
{
    return spawn_with(argv, false);
}

static bool ended_well(pid_t pid)
{
    int status = 0;
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Milliseconds, or negative when the command failed. */
static double time_launcher(const char *path, long nproc)
{
    char count[40];
    (void)snprintf(count, sizeof count, "--nproc_per_node=%ld", nproc);
    char *argv[] = {(char *)path, (char *)"--standalone", (char *)"--no_python", count, (char *)"/bin/true", NULL};
    double began_s = dt_now_s();
    return ended_well(spawn(argv)) ? (dt_now_s() - began_s) * 1e3 : -1;
}

/* The same for two launchers of one job, as if on two hosts, with a worker each. */
static double time_two_launchers(const char *path)
{
    char port[40], rank[40];
    pid_t pids[2];
    (void)snprintf(port, sizeof port, "--master_port=%d", bench_free_port());
    double began_s = dt_now_s();
    for (int i = 0; i < 2; i++) {
        (void)snprintf(rank, sizeof rank, "--node_rank=%d", i);
        char *argv[] = {(char *)path,
                        (char *)"--nnodes=2",
                        rank,
                        (char *)"--master_addr=127.0.0.1",
                        port,
                        (char *)"--nproc_per_node=1",
                        (char *)"--no_python",
                        (char *)"/bin/true",
                        NULL};
        pids[i] = spawn_with(argv, true); /* that loopback is no address for other hosts */
    }
    bool well = ended_well(pids[0]);
    well = ended_well(pids[1]) && well;
    return well ? (dt_now_s() - began_s) * 1e3 : -1;
}

static double time_bare(long nproc)
{
    char *argv[] = {(char *)"/bin/true", NULL};
    pid_t *pids = dt_alloc((size_t)nproc * sizeof *pids);
    bool well = true;
    double began_s = dt_now_s();
    for (long i = 0; i < nproc; i++) {
        pids[i] = spawn(argv);
    }
    for (long i = 0; i < nproc; i++) {
        well = ended_well(pids[i]) && well;
    }
    free(pids);
    return well ? (dt_now_s() - began_s) * 1e3 : -1;
}

/* Time after `word ROUND ` in the file that the workers wrote, or -1. */
static double time_in(const struct dt_text *text, const char *word)
{
    const char *at = text->size > 0 ? strstr(text->data, word) : NULL;
    return at != NULL ? strtod(at + strlen(word), NULL) : -1;
}

enum { max_agents = 2 };

/* `bench first` under one agent with two workers, or under two with one each, until all have
 * ended. */
static bool launch_first(const char *dtrun, long agents, const char *file)
{
    pid_t pids[max_agents];
    char nproc[40], nodes[40], port[40], *option = dt_format("--file=%s", file);
    (void)snprintf(nproc, sizeof nproc, "--nproc_per_node=%ld", 2 / agents);
    (void)snprintf(nodes, sizeof nodes, "--nnodes=%ld", agents);
    (void)snprintf(port, sizeof port, "--master_port=%d", agents > 1 ? bench_free_port() : 0);
    for (long i = 0; i < agents; i++) {
        char rank[40];
        (void)snprintf(rank, sizeof rank, "--node_rank=%ld", i);
        char *argv[13] = {(char *)dtrun, nproc, (char *)"--max_restarts=1"};
        int n = 3;
        if (agents > 1) {
            argv[n++] = nodes;
            argv[n++] = rank;
            argv[n++] = (char *)"--master_addr=127.0.0.1";
            argv[n++] = port;
        }
        argv[n++] = (char *)"bench";
        argv[n++] = (char *)"first";
        argv[n++] = option;
        argv[n++] = (char *)"--kill";
        pids[i] = spawn_with(argv, true); /* the killed worker is reported, as it should be */
    }
    bool well = true;
    for (long i = 0; i < agents; i++) {
        well = ended_well(pids[i]) && well;
    }
    free(option);
    return well;
}

/* Two of our own workers: from the command to the first sum; from a worker's death until the
 * other knows, and to the first sum of the next round. */
static int run_first(const char *dtrun, long agents, long repeats)
{
    static const struct {
        const char *name, *from, *to;
    } rows[] = {{"launch to first all_reduce", NULL, "first 0 "},
                {"killed worker until the other one knows", "kill 0 ", "noticed 0 "},
                {"killed worker to next all_reduce", "kill 0 ", "first 1 "}};
    double samples[3][max_repeats];
    char folder[] = "/tmp/dtrun-bench-XXXXXX";
    if (mkdtemp(folder) == NULL) {
        perror("bench: mkdtemp");
        return 1;
    }
    char *file = dt_format("%s/times", folder);
    int code = 0;
    for (long r = -1; r < repeats && code == 0; r++) {
        struct dt_text text;
        dt_text_init(&text);
        (void)unlink(file);
        double began_s = dt_now_s();
        bool well = launch_first(dtrun, agents, file);
        (void)dt_file_read(file, 4096, &text, NULL);
        for (int i = 0; i < 3; i++) {
            double from_s = rows[i].from == NULL ? began_s : time_in(&text, rows[i].from),
                   to_s = time_in(&text, rows[i].to);
            well = well && from_s >= 0 && to_s >= 0;
            samples[i][r < 0 ? 0 : r] = (to_s - from_s) * 1e3;
        }
        if (!well) {
            (void)fprintf(stderr, "bench: %s: the workers of `bench first` did not come through\n", dtrun);
            code = 1;
        }
        dt_text_clear(&text);
    }
    for (int i = 0; i < 3 && code == 0; i++) {
        char name[96];
        (void)snprintf(name, sizeof name, "%s, %s", rows[i].name, agents == 1 ? "2 ranks" : "2 agents");
        dt_bench_print(&(struct dt_bench_case){.bench = "start", .name = name, .unit = "ms"}, samples[i],
                       (size_t)repeats);
    }
    (void)dt_file_remove_tree(folder, NULL);
    free(file);
    return code;
}

/* Many agents meet, and meet again. */
static int run_agents(long agents, long repeats)
{
    double first[max_repeats], again[max_repeats];
    for (long r = 0; r < repeats; r++) {
        if (bench_nodes(agents, &first[r], &again[r]) != 0) {
            return 1;
        }
    }
    char name[96];
    (void)snprintf(name, sizeof name, "%ld agents to their first round", agents);
    dt_bench_print(&(struct dt_bench_case){.bench = "start", .name = name, .unit = "ms"}, first, (size_t)repeats);
    (void)snprintf(name, sizeof name, "%ld agents, failure to the next round", agents);
    dt_bench_print(&(struct dt_bench_case){.bench = "start", .name = name, .unit = "ms"}, again, (size_t)repeats);
    return 0;
}

/* Resident MiB of a process, or -1. */
static double resident_mib(pid_t pid)
{
    char path[64];
    struct dt_text text;
    (void)snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    dt_text_init(&text);
    double kib = dt_file_read(path, 1 << 16, &text, NULL) == 0 ? time_in(&text, "VmRSS:") : -1;
    dt_text_clear(&text);
    return kib < 0 ? -1 : kib / 1024;
}

/* The agent, while `nproc` workers sleep. */
static int run_memory(const char *dtrun, long nproc)
{
    char count[40], name[64], path[64];
    (void)snprintf(count, sizeof count, "--nproc_per_node=%ld", nproc);
    char *argv[] = {(char *)dtrun, count, (char *)"--no_python", (char *)"/bin/sleep", (char *)"1", NULL};
    pid_t guard = spawn(argv);
    dt_sleep_s(0.6);
    struct dt_text text;
    dt_text_init(&text);
    (void)snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)guard, (int)guard);
    double mib[1] = {-1};
    if (dt_file_read(path, 4096, &text, NULL) == 0 && text.size > 0) {
        mib[0] = resident_mib((pid_t)strtol(text.data, NULL, 10));
    }
    dt_text_clear(&text);
    bool well = ended_well(guard);
    (void)snprintf(name, sizeof name, "resident memory of the agent, %ld workers", nproc);
    dt_bench_print(&(struct dt_bench_case){.bench = "start", .name = name, .unit = "MiB"}, mib, 1);
    return well ? 0 : 1;
}

/* Beside us in the build folder; installed, we are in libexec/dtrun and it is in bin. */
char *bench_find_dtrun(void)
{
    char *dir = dt_file_program_dir();
    char *path = dt_format("%s/dtrun", dir != NULL ? dir : ".");
    if (access(path, X_OK) != 0) {
        free(path);
        path = dt_format("%s/../../bin/dtrun", dir != NULL ? dir : ".");
    }
    free(dir);
    return path;
}

/* nproc 0: two launchers with one each. */
static double time_case(const char *path, long nproc)
{
    return nproc > 0 ? time_launcher(path, nproc) : time_two_launchers(path);
}

static int run_case(const char *dtrun, const char *torchrun, long nproc, long repeats)
{
    double ours[max_repeats], floors[max_repeats], peers[max_repeats];
    for (long r = -1; r < repeats; r++) {
        long at = r < 0 ? 0 : r;
        ours[at] = time_case(dtrun, nproc);
        floors[at] = time_bare(nproc > 0 ? nproc : 2);
        peers[at] = torchrun != NULL ? time_case(torchrun, nproc) : 0;
        if (ours[at] < 0 || floors[at] < 0 || peers[at] < 0) {
            (void)fprintf(stderr, "bench: %s failed\n", ours[at] < 0 ? dtrun : floors[at] < 0 ? "/bin/true" : torchrun);
            return 1;
        }
    }
    char name[64];
    (void)snprintf(name, sizeof name, nproc > 0 ? "%ld processes" : "2 launchers of one job, 1 process each", nproc);
    struct dt_bench_case c = {.bench = "start",
                              .name = name,
                              .unit = "ms",
                              .floor = dt_bench_median(floors, (size_t)repeats),
                              .peer = dt_bench_median(peers, (size_t)repeats),
                              .peer_name = "torchrun"};
    dt_bench_print(&c, ours, (size_t)repeats);
    return 0;
}

int bench_start(int argc, char **argv)
{
    const char *given = dt_bench_option(argc, argv, "dtrun", NULL),
               *list = dt_bench_option(argc, argv, "nproc", "1,2,8,64");
    long repeats = dt_bench_number(argc, argv, "repeats", 11), agents = dt_bench_number(argc, argv, "agents", 1000);
    char *dtrun = given != NULL ? dt_strdup(given) : bench_find_dtrun(), *torchrun = NULL;
    int code = repeats >= 1 && repeats <= max_repeats ? 0 : 2;
    (void)setenv("OMP_NUM_THREADS", "1", 0); /* both launchers remark on its absence */
    if (dt_bench_flag(argc, argv, "peer") && (torchrun = dt_bench_peer_program("torchrun")) == NULL) {
        (void)fprintf(stderr, "bench: no PyTorch to compare with: scripts/setup.sh --peers\n");
    }
    if (code == 0 && access(dtrun, X_OK) != 0) {
        (void)fprintf(stderr, "bench: %s is not there; say --dtrun PATH\n", dtrun);
        code = 2;
    }
    char *copy = dt_strdup(list), *rest = copy;
    for (char *word; code == 0 && (word = strsep(&rest, ",")) != NULL;) {
        long long nproc = 0;
        if (!dt_parse_int64(word, &nproc) || nproc < 1 || nproc > 4096) {
            (void)fprintf(stderr, "bench: --nproc '%s': numbers from 1 to 4096 with commas between them\n", list);
            code = 2;
        } else {
            code = run_case(dtrun, torchrun, (long)nproc, repeats);
        }
    }
    if (code == 0) {
        code = run_case(dtrun, torchrun, 0, repeats);
    }
    for (long n = 1; n <= max_agents && code == 0; n++) {
        code = run_first(dtrun, n, repeats);
    }
    if (code == 0 && agents > 0) {
        code = run_agents(agents, repeats < 5 ? repeats : 5);
    }
    for (long n = 2; n <= 64 && code == 0; n += 62) {
        code = run_memory(dtrun, n);
    }
    free(copy);
    free(dtrun);
    free(torchrun);
    return code;
}
