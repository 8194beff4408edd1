#include "base/bench.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PEER_MS = 120000 };

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double at(const double *sorted, size_t count, double part)
{
    return count > 0 ? sorted[(size_t)(part * (double)(count - 1) + 0.5)] : 0;
}

double dt_bench_median(double *samples, size_t count)
{
    qsort(samples, count, sizeof *samples, compare);
    return at(samples, count, 0.5);
}

static void print_text(const char *key, const char *value)
{
    struct dt_text text;
    if (value == NULL) {
        return;
    }
    dt_text_init(&text);
    dt_text_json(&text, value, strlen(value));
    printf(",\"%s\":%s", key, dt_text_str(&text));
    dt_text_clear(&text);
}

void dt_bench_print(const struct dt_bench_case *c, double *samples, size_t count)
{
    double median = dt_bench_median(samples, count), load = 0;
    (void)getloadavg(&load, 1);
    printf("{\"bench\":\"%s\",\"case\":\"%s\",\"value\":%.6g,\"unit\":\"%s\",\"p10\":%.6g,\"p90\":%.6g,\"count\":%zu",
           c->bench, c->name, median, c->unit, at(samples, count, 0.1), at(samples, count, 0.9), count);
    if (c->calls > 0) {
        printf(",\"calls\":%lld", c->calls);
    }
    if (c->bytes > 0) {
        printf(",\"bytes\":%.0f,\"gb_per_s\":%.4g", c->bytes, c->bytes / median / 1e3);
    }
    if (c->flops > 0) {
        printf(",\"flops\":%.0f,\"gflop_per_s\":%.4g", c->flops, c->flops / median / 1e3);
    }
    if (c->floor > 0) {
        printf(",\"floor\":%.6g,\"to_floor\":%.3g", c->floor, median / c->floor);
    }
    if (c->peer > 0) {
        printf(",\"peer\":\"%s\",\"peer_value\":%.6g,\"to_peer\":%.3g", c->peer_name, c->peer, median / c->peer);
    }
    print_text("device", c->device);
    print_text("by", c->by);
    printf(",\"load\":%.2f}\n", load);
    (void)fflush(stdout);
}

static const char *find(int argc, char **argv, const char *name, bool *bare)
{
    size_t size = strlen(name);
    *bare = false;
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--", 2) == 0 && strncmp(argv[i] + 2, name, size) == 0) {
            const char *rest = argv[i] + 2 + size;
            if (*rest == '=') {
                return rest + 1;
            }
            if (*rest == '\0') {
                *bare = true;
                return i + 1 < argc ? argv[i + 1] : NULL;
            }
        }
    }
    return NULL;
}

enum { MAX_OPTIONS = 16, NAME_BYTES = 64 };

struct known {
    char names[MAX_OPTIONS][NAME_BYTES];
    const char *forms[MAX_OPTIONS]; /* "=1..101", "=NAME" or nothing, up to the next blank */
    size_t count;
};

static void read_known(struct known *k, const char *options)
{
    k->count = 0;
    for (const char *word = options; *word != '\0' && k->count < MAX_OPTIONS; word += strspn(word, " ")) {
        size_t size = strcspn(word, "= ");
        (void)snprintf(k->names[k->count], NAME_BYTES, "%.*s", (int)size, word);
        k->forms[k->count++] = word + size;
        word += strcspn(word, " ");
    }
}

static int unknown(const struct known *k, const char *bench, const char *word, struct dt_error *err)
{
    const char *names[MAX_OPTIONS];
    char name[NAME_BYTES];
    (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(word, "="), word);
    for (size_t i = 0; i < k->count; i++) {
        names[i] = k->names[i];
    }
    const char *near = strncmp(name, "--", 2) == 0 ? dt_text_nearest(name, names, k->count) : NULL;
    return dt_fail(err, DT_INVALID, "%s: %s: unknown option; %s%s%s", bench, name,
                   near != NULL ? "did you mean " : "see bench --help", near != NULL ? near : "",
                   near != NULL ? "?" : "");
}

int dt_bench_check(int argc, char **argv, const char *options, struct dt_error *err)
{
    struct known k;
    read_known(&k, options);
    for (int i = 1; i < argc; i++) {
        size_t size = strcspn(argv[i], "="), which = 0;
        while (which < k.count && (strlen(k.names[which]) != size || strncmp(argv[i], k.names[which], size) != 0)) {
            which++;
        }
        if (which == k.count) {
            return unknown(&k, argv[0], argv[i], err);
        }
        const char *name = k.names[which], *form = k.forms[which],
                   *given = argv[i][size] == '=' ? argv[i] + size + 1 : NULL;
        bool takes = *form == '=';
        int shown = takes ? (int)strcspn(form + 1, " ") : 0;
        if (!takes && given != NULL) {
            return dt_fail(err, DT_INVALID, "%s: %s: takes no value; write %s alone", argv[0], name, name);
        }
        if (takes && given == NULL && (++i == argc || strncmp(argv[i], "--", 2) == 0)) {
            return dt_fail(err, DT_INVALID, "%s: %s: needs a value; write %s=%.*s", argv[0], name, name, shown,
                           form + 1);
        }
        given = given != NULL ? given : argv[i];
        long long lo, hi, value;
        if (takes && sscanf(form, "=%lld..%lld", &lo, &hi) == 2 &&
            (!dt_parse_int64(given, &value) || value < lo || value > hi)) {
            return dt_fail(err, DT_INVALID, "%s: %s: %s: must be a whole number from %lld to %lld", argv[0], name,
                           given, lo, hi);
        }
    }
    return 0;
}

const char *dt_bench_option(int argc, char **argv, const char *name, const char *fallback)
{
    bool bare;
    const char *value = find(argc, argv, name, &bare);
    return value != NULL ? value : fallback;
}

long dt_bench_number(int argc, char **argv, const char *name, long fallback)
{
    long long number = 0;
    const char *value = dt_bench_option(argc, argv, name, NULL);
    return value != NULL && dt_parse_int64(value, &number) ? (long)number : fallback;
}

bool dt_bench_flag(int argc, char **argv, const char *name)
{
    bool bare;
    return find(argc, argv, name, &bare) != NULL || bare;
}

char *dt_bench_peer_program(const char *name)
{
    const char *peers = getenv("DTRUN_PEERS"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char *path = peers != NULL && *peers != '\0' ? dt_format("%s/bin/%s", peers, name)
                 : cache != NULL && *cache != '\0'
                     ? dt_format("%s/dtrun/peers/bin/%s", cache, name)
                     : dt_format("%s/.cache/dtrun/peers/bin/%s", home != NULL ? home : "", name);
    if (access(path, X_OK) != 0) {
        free(path);
        return NULL;
    }
    return path;
}

int dt_bench_peer_open(struct dt_bench_peer *p, char *const *argv)
{
    int to[2], from[2];
    *p = (struct dt_bench_peer){.pid = -1};
    (void)signal(SIGPIPE, SIG_IGN); /* orders may go to a program that has ended */
    if (pipe2(to, O_CLOEXEC) != 0) {
        return -1;
    }
    if (pipe2(from, O_CLOEXEC) != 0) {
        (void)close(to[0]);
        (void)close(to[1]);
        return -1;
    }
    p->pid = fork();
    if (p->pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)signal(SIGPIPE, SIG_DFL);
        /* a process group of its own, so that its children can be ended with it */
        (void)setpgid(0, 0);
        (void)dup2(to[0], 0);
        (void)dup2(from[1], 1);
        (void)execvp(argv[0], argv);
        _exit(127);
    }
    (void)close(to[0]);
    (void)close(from[1]);
    p->orders = fdopen(to[1], "w");
    p->answers = fdopen(from[0], "r");
    return p->pid > 0 && p->orders != NULL && p->answers != NULL ? 0 : -1;
}

/* Waits for an answer. An answer is one line, so the stream is empty before the next one. */
static bool answers_in_time(struct dt_bench_peer *p)
{
    struct pollfd answer = {.fd = fileno(p->answers), .events = POLLIN};
    int ready = poll(&answer, 1, PEER_MS);
    if (ready == 0) {
        (void)fprintf(stderr, "bench: the other program (pid %d) has not answered for %d s: ended and left out\n",
                      (int)p->pid, PEER_MS / 1000);
        (void)kill(-p->pid, SIGKILL);
    }
    return ready > 0;
}

double dt_bench_peer_ask(struct dt_bench_peer *p, const char *fmt, ...)
{
    char line[64];
    double seconds = -1;
    va_list args;
    va_start(args, fmt);
    bool asked = vfprintf(p->orders, fmt, args) > 0 && fputc('\n', p->orders) != EOF && fflush(p->orders) == 0;
    va_end(args);
    if (!asked || !answers_in_time(p) || fgets(line, sizeof line, p->answers) == NULL) {
        return -1;
    }
    line[strcspn(line, "\n")] = 0;
    return dt_parse_double(line, &seconds) ? seconds : -1;
}

void dt_bench_peer_close(struct dt_bench_peer *p)
{
    if (p->orders != NULL) {
        (void)fclose(p->orders);
    }
    if (p->answers != NULL) {
        (void)fclose(p->answers);
    }
    bool ended = p->pid <= 0;
    /* its orders have ended, so it ends with its children */
    for (int i = 0; i < 200 && !ended; i++) {
        ended = waitpid(p->pid, NULL, WNOHANG) != 0;
        dt_sleep_s(ended ? 0 : 0.01);
    }
    if (!ended) {
        (void)kill(-p->pid, SIGKILL);
        (void)waitpid(p->pid, NULL, 0);
    }
    *p = (struct dt_bench_peer){.pid = -1};
}
