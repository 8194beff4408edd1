#include "cmd/bench/store_servers.h"

#include "base/bench.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "collectives/net.h"
#include "launcher/store/store_server.h"

#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static const double deadline_s = 120;

static void tell_port(int fd, int port)
{
    char line[16];
    int size = snprintf(line, sizeof line, "%d\n", port);
    if (write(fd, line, (size_t)size) != size) {
        _exit(1);
    }
}

void bench_serve_ours(int fd)
{
    uv_loop_t *loop = uv_default_loop();
    struct store_server *server = NULL;
    struct dt_error err;
    if (store_server_open(&server, loop, &(struct store_server_options){.host = "127.0.0.1"}, &err) != 0) {
        (void)fprintf(stderr, "bench: %s\n", err.text);
        _exit(1);
    }
    tell_port(fd, store_server_port(server));
    (void)uv_run(loop, UV_RUN_DEFAULT);
}

void bench_serve_torch(int fd)
{
    char *python = dt_bench_peer_program("python");
    static const char script[] = "import sys, time\nfrom torch.distributed import TCPStore\n"
                                 "s = TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)\nprint(s.port, "
                                 "flush=True)\ntime.sleep(1e9)\n";
    (void)dup2(fd, 1);
    (void)execl(python, python, "-c", script, (char *)NULL);
}

void bench_serve_echo(int fd)
{
    struct dt_net listener = {.fd = -1}, n = {.fd = -1};
    int port = 0;
    char buffer[4096];
    size_t size = 0;
    if (dt_net_listen(&listener, "127.0.0.1", 0, 1, NULL, &port, NULL) != 0) {
        _exit(1);
    }
    tell_port(fd, port);
    if (dt_net_accept(&listener, &n, dt_now_s() + deadline_s, NULL) == 0) {
        while (dt_net_read_some(&n, buffer, sizeof buffer, &size, dt_now_s() + 3600, NULL) == 0 &&
               dt_net_write(&n, buffer, size, dt_now_s() + 3600, NULL) == 0) {
        }
    }
}

int bench_server_start(struct bench_server *s, const char *name, void (*serve)(int fd))
{
    int ends[2];
    if (pipe(ends) != 0) {
        return -1;
    }
    s->name = name;
    s->pid = fork();
    if (s->pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)close(ends[0]);
        serve(ends[1]);
        _exit(1);
    }
    (void)close(ends[1]);
    FILE *in = fdopen(ends[0], "r");
    char line[32] = "";
    if (s->pid < 0 || in == NULL || fgets(line, sizeof line, in) == NULL || (s->port = atoi(line)) <= 0) {
        (void)fprintf(stderr, "bench: the server '%s' did not start\n", name);
        return -1;
    }
    (void)fclose(in);
    return 0;
}

void bench_server_stop(struct bench_server *s)
{
    dt_store_close(s->store);
    if (s->pid > 0) {
        (void)kill(s->pid, SIGKILL);
        (void)waitpid(s->pid, NULL, 0);
    }
}

double bench_server_cpu_s(const struct bench_server *s)
{
    char pattern[64];
    double sum_s = 0;
    glob_t found;
    (void)snprintf(pattern, sizeof pattern, "/proc/%d/task/*/schedstat", (int)s->pid);
    if (glob(pattern, 0, NULL, &found) != 0) {
        return -1;
    }
    for (size_t i = 0; i < found.gl_pathc; i++) {
        struct dt_text text;
        dt_text_init(&text);
        sum_s += dt_file_read(found.gl_pathv[i], 4096, &text, NULL) == 0 ? strtod(dt_text_str(&text), NULL) * 1e-9 : 0;
        dt_text_clear(&text);
    }
    globfree(&found);
    return sum_s;
}
