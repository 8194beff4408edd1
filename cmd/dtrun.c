/* dtrun: starts the ranks of a job on this host, brings them together, starts them again when
 * some are lost. */
#include "base/log.h"
#include "base/signals.h"
#include "launcher/options/env.h"
#include "launcher/options/exports.h"
#include "launcher/workers/guard.h"
#include "launcher/options/hostfile.h"
#include "launcher/ssh/leash.h"
#include "launcher/options/options_table.h"
#include "launcher/job/plan.h"
#include "launcher/workers/process.h"
#include "launcher/job/run.h"
#include "launcher/store/serve.h"
#include "launcher/ssh/starter.h"
#include "launcher/query/status.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/auxv.h>
#include <sys/resource.h>
#include <unistd.h>

#define STACK_LEAST_BYTES (256 << 10) /* twice what a job of one host takes */

/* Help, version, completion, dry run: text on stdout, 0. */
static int print(struct options *o)
{
    struct dt_text text;
    dt_text_init(&text);
    switch (o->action) {
    case OPTIONS_HELP:
    case OPTIONS_HELP_ALL:
        options_help(&text, o->action == OPTIONS_HELP_ALL);
        break;
    case OPTIONS_VERSION:
        dt_text_puts(&text, "dtrun " DT_VERSION "\n");
        break;
    case OPTIONS_COMPLETION:
        options_completion(&text, o->completion);
        break;
    default:
        if (o->host_list_count > 0) {
            hostfile_describe(o, environ, &text);
        } else {
            options_describe(o, environ, &text);
        }
        break;
    }
    bool written = fwrite(dt_text_str(&text), 1, text.size, stdout) == text.size && fflush(stdout) == 0;
    dt_text_clear(&text);
    return written ? DT_EXIT_DONE : DT_EXIT_FAILED;
}

/* The guard looks there for what workers leave behind, and our own programs for the page that
 * they share with the agent. */
static bool check_proc(const struct options *o)
{
    static const char what[] = "/proc is not that of this PID namespace",
                      how[] = "mount it: mount -t proc proc /proc, or unshare --mount-proc";
    if (process_numbers_are_ours()) {
        return true;
    }
    if (o->bundled) {
        (void)fprintf(stderr, "dtrun: %s, and %s needs it; %s\n", what, o->program, how);
    } else {
        (void)fprintf(stderr, "dtrun: warning: %s: what workers leave behind cannot be found and ended; %s\n", what,
                      how);
    }
    return !o->bundled;
}

/* The kernel would end us somewhere in the middle. */
static bool check_stack(void)
{
    struct rlimit stack;
    if (getrlimit(RLIMIT_STACK, &stack) != 0 || stack.rlim_cur >= STACK_LEAST_BYTES) {
        return true;
    }
    (void)fprintf(stderr, "dtrun: limit of the stack: %llu KiB, at least %d are needed; raise it with ulimit -s\n",
                  (unsigned long long)stack.rlim_cur >> 10, STACK_LEAST_BYTES >> 10);
    return false;
}

/* Signals that were ignored at the start stay ignored (base/signals.h), unless an option names
 * them, or signals come over a leash: the launching host has chosen. */
static void settle_signals(const struct options *o)
{
    bool named = strcmp(options_source(o, OPTION_signals_to_handle), "default") != 0;
    for (int n = 1; n < 65; n++) {
        bool meant = (named && o->signals[n]) || (o->leashed && n != SIGXFSZ);
        if (meant && !dt_signal_wanted(n)) {
            (void)signal(n, SIG_DFL);
        }
    }
    if (o->here.requeue.batch && !named) {
        (void)signal(SIGHUP, SIG_IGN); /* no terminal is behind a batch job */
    }
}

static int begin(struct options *o)
{
    struct dt_error err;
    struct dt_arena arena;
    char *path, **argv;
    (void)fputs(dt_text_str(&o->warnings), stderr);
    if (!check_stack()) {
        return DT_EXIT_USAGE;
    }
    if (o->action == OPTIONS_SERVE_STORE) {
        return serve_store(o);
    }
    if (o->action == OPTIONS_STATUS) {
        return status_ask(o->status_run, o->json);
    }
    settle_signals(o);
    exports_hide(o);
    if (exports_apply(o, &err) != 0) {
        (void)fprintf(stderr, "dtrun: %s\n", err.text);
        return DT_EXIT_TEMPORARY;
    }
    if (o->action == OPTIONS_HOSTFILE) {
        return starter_run(o, environ);
    }
    if ((o->action != OPTIONS_RUN && o->action != OPTIONS_DRY_RUN) || o->host_list_count > 0) {
        return print(o);
    }
    dt_arena_init(&arena);
    int result = env_command(o, 0, environ, &arena, &path, &argv, &err);
    dt_arena_clear(&arena);
    if (result != 0) {
        (void)fprintf(stderr, "dtrun: %s\n", err.text);
        return DT_EXIT_USAGE;
    }
    if (o->action == OPTIONS_DRY_RUN) {
        int code = plan_check_job(o, environ);
        return code == 0 ? print(o) : code;
    }
    if (!check_proc(o)) {
        return DT_EXIT_USAGE;
    }
    if (guard_open(o->signals, leash_sign, &err) != 0) {
        (void)fprintf(stderr, "dtrun: %s\n", err.text);
        return DT_EXIT_TEMPORARY;
    }
    return run_job(o, environ); /* in the agent; the guard never comes here */
}

/* LOGLEVEL in Python's words or numbers, as torchrun reads it. DTRUN_LOG, where set, comes
 * before it. */
static enum dt_log_level level_of(const char *text)
{
    static const struct {
        const char *name;
        int number;
        enum dt_log_level level;
    } known[] = {{"NOTSET", 0, DT_LOG_DEBUG}, {"DEBUG", 10, DT_LOG_DEBUG},   {"INFO", 20, DT_LOG_INFO},
                 {"WARN", 30, DT_LOG_WARN},   {"WARNING", 30, DT_LOG_WARN},  {"ERROR", 40, DT_LOG_ERROR},
                 {"FATAL", 50, DT_LOG_ERROR}, {"CRITICAL", 50, DT_LOG_ERROR}};
    long long number;
    bool is_number = dt_parse_int64(text, &number);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (is_number ? number <= known[i].number : strcasecmp(text, known[i].name) == 0) {
            return known[i].level;
        }
    }
    if (!is_number) {
        char shown[64];
        (void)fprintf(stderr, "dtrun: LOGLEVEL: %s: unknown level; must be DEBUG, INFO, WARNING, ERROR or CRITICAL\n",
                      option_show(text, shown));
    }
    return is_number ? DT_LOG_ERROR : DT_LOG_WARN;
}

/* DTRUN_LOG is read by base/log.c, in each of our processes; here alone is somebody told. */
static void check_log_level(void)
{
    const char *text = getenv("DTRUN_LOG");
    enum dt_log_level ignored;
    if (text != NULL && text[0] != '\0' && dt_log_parse(text, &ignored) != 0) {
        char shown[64];
        (void)fprintf(stderr, "dtrun: DTRUN_LOG: %s: unknown level; must be error, warn, info or debug\n",
                      option_show(text, shown));
    }
}

int main(int argc, char **argv)
{
    static struct options options; /* masks for thousands of ranks */
    struct dt_error err;
    for (int fd = 0; fd < 3; fd++) { /* a closed one would be taken by the next file we open */
        if (fcntl(fd, F_GETFD) < 0) {
            (void)open("/dev/null", O_RDWR);
        }
    }
    (void)signal(SIGXFSZ, SIG_IGN);  /* a limit on file sizes is an error of write, which costs
                                      * lines of a log at most */
    if (getauxval(AT_SECURE) != 0) { /* whoever starts us chooses the program, its variables and
                                      * where files go */
        (void)fprintf(stderr, "dtrun: set-user-id, set-group-id or file capabilities: refused; remove them with chmod "
                              "ug-s or setcap -r\n");
        return DT_EXIT_USAGE;
    }
    int leash_fd = -1;
    char key_path[64];
    bool leashed = argc > 1 && strcmp(argv[1], "--leash") == 0; /* what it brings comes before
                                                                 * options are read */
    if (leashed && leash_open(&leash_fd, key_path, &err) != 0) {
        (void)fprintf(stderr, "dtrun: %s\n", err.text);
        return DT_EXIT_USAGE;
    }
    const char *level = getenv("LOGLEVEL");
    check_log_level();
    dt_log_open(level != NULL && level[0] != '\0' ? level_of(level) : DT_LOG_WARN, -1, 2);
    if (options_read(&options, argc, argv, environ, &err) != 0) {
        (void)fprintf(stderr, "dtrun: %s\n", err.text);
        return err.status == DT_INVALID || err.status == DT_NOT_FOUND ? DT_EXIT_USAGE : DT_EXIT_TEMPORARY;
    }
    options.leash_fd = leash_fd;
    if (leashed && key_path[0] != '\0') {
        options.key_file = key_path;
        options.leash_key = true;
    }
    int code = begin(&options);
    options_clear(&options);
    return code;
}
