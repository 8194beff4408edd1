/* covers: launcher/workers */
/* Real processes, short ones: starting, errors of exec, exits, groups, orders, the watch, the
 * guard's sweep. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/clock.h"
#include "launcher/workers/guard.h"
#include "launcher/workers/process.h"
#include "launcher/workers/watch.h"
#include "launcher/workers/workers.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATIENCE_S 60.0

static char *const no_env[] = {NULL};

static int spawn_shell(struct workers *w, int i, const char *text, int out_fd, struct dt_error *err)
{
    char *argv[] = {(char *)"sh", (char *)"-c", (char *)(uintptr_t)text, NULL};
    return workers_spawn(
        w, i,
        &(struct spawn){
            .path = "/bin/sh", .argv = argv, .envp = no_env, .stdin_fd = -1, .stdout_fd = out_fd, .stderr_fd = -1},
        err);
}

static int wait_for(struct workers *w, int rank)
{
    double end_s = dt_now_s() + PATIENCE_S;
    while (w->list[rank].running && dt_now_s() < end_s) {
        pid_t pid;
        int status;
        if (workers_reap(w, &pid, &status) < 0) {
            dt_sleep_s(0.002);
        }
    }
    assert_false(w->list[rank].running);
    return workers_code(w->list[rank].status);
}

static int open_files(void)
{
    int count = 0;
    DIR *d = opendir("/proc/self/fd");
    while (readdir(d) != NULL) {
        count++;
    }
    closedir(d);
    return count;
}

static void exits_and_signals(void **state)
{
    (void)state;
    struct workers w;
    struct dt_error err;
    assert_int_equal(workers_open(&w, 3, 0, &err), 0);
    assert_int_equal(workers_begin(&w, 1, &err), 0);
    assert_int_equal(spawn_shell(&w, 0, "exit 7", -1, &err), 0);
    assert_int_equal(spawn_shell(&w, 1, "kill -9 $$", -1, &err), 0);
    assert_int_equal(spawn_shell(&w, 2, "sleep 100 & wait", -1, &err), 0);
    assert_int_equal(wait_for(&w, 0), 7);
    assert_int_equal(wait_for(&w, 1), -9);
    assert_int_equal(w.running_count, 1);
    assert_int_equal(getpgid(w.list[2].pid), w.list[2].pid);
    assert_int_equal(getsid(w.list[2].pid), w.list[2].pid);
    workers_signal(&w, SIGTERM);
    assert_int_equal(wait_for(&w, 2), -15);
    workers_close(&w);
}

static void what_cannot_be_executed(void **state)
{
    (void)state;
    static const struct {
        const char *path, *words;
        enum dt_status status;
    } rows[] = {{"/nonexistent/program", "No such file", DT_INVALID},
                {"/etc/passwd", "Permission denied", DT_INVALID},
                {"/tmp", "ermission", DT_INVALID}};
    struct workers w;
    struct dt_error err;
    assert_int_equal(workers_open(&w, 1, 0, &err), 0);
    assert_int_equal(workers_begin(&w, 1, &err), 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *argv[] = {(char *)"x", NULL};
        struct spawn s = {
            .path = rows[i].path, .argv = argv, .envp = no_env, .stdin_fd = -1, .stdout_fd = -1, .stderr_fd = -1};
        assert_int_equal(workers_spawn(&w, 0, &s, &err), -1);
        assert_int_equal(err.status, rows[i].status);
        assert_non_null(strstr(err.text, rows[i].words));
        assert_non_null(strstr(err.text, rows[i].path));
    }
    assert_int_equal(w.running_count, 0);
    workers_close(&w);
}

/* A clean start: empty signal mask, default dispositions, no descriptor but 0, 1, 2, and its
 * output where we want it. */
static void a_clean_start(void **state)
{
    (void)state;
    struct workers w;
    struct dt_error err;
    int ends[2];
    char text[1024] = "";
    sigset_t set, before;
    assert_int_equal(pipe(ends), 0); /* not close-on-exec: as if inherited by us */
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGUSR1);
    (void)sigprocmask(SIG_BLOCK, &set, &before);
    (void)signal(SIGPIPE, SIG_IGN);
    assert_int_equal(workers_open(&w, 1, 0, &err), 0);
    assert_int_equal(workers_begin(&w, 1, &err), 0);
    char command[256];
    (void)snprintf(command, sizeof command,
                   "grep -E 'SigBlk|SigIgn' /proc/self/status; [ -e /proc/self/fd/1 -a ! -e /proc/self/fd/%d -a ! -e "
                   "/proc/self/fd/%d ] && echo closed",
                   ends[0], ends[1]);
    assert_int_equal(spawn_shell(&w, 0, command, ends[1], &err), 0);
    (void)close(ends[1]);
    size_t size = 0;
    for (ssize_t got; (got = read(ends[0], text + size, sizeof text - 1 - size)) > 0; size += (size_t)got) {
    }
    assert_int_equal(wait_for(&w, 0), 0);
    (void)close(ends[0]);
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    assert_non_null(strstr(text, "SigBlk:\t0000000000000000"));
    unsigned long long ignored = ~0ull;
    assert_int_equal(sscanf(strstr(text, "SigIgn:"), "SigIgn: %llx", &ignored), 1);
    assert_true((ignored & (1ull << (SIGPIPE - 1))) == 0);
    assert_non_null(strstr(text, "\nclosed\n"));
    workers_close(&w);
}

static void two_hundred_rounds_leak_nothing(void **state)
{
    (void)state;
    struct workers w;
    struct dt_error err;
    assert_int_equal(workers_open(&w, 2, 0, &err), 0);
    int before = open_files();
    for (int round = 1; round <= 200; round++) {
        assert_int_equal(workers_begin(&w, round, &err), 0);
        char *argv[] = {(char *)"true", NULL};
        for (int i = 0; i < 2; i++) {
            struct spawn s = {.path = "/bin/true", .argv = argv, .envp = no_env, .stdout_fd = -1, .stderr_fd = -1};
            assert_int_equal(workers_spawn(&w, i, &s, &err), 0);
        }
        assert_int_equal(wait_for(&w, 0), 0);
        assert_int_equal(wait_for(&w, 1), 0);
    }
    workers_end(&w);
    assert_int_equal(open_files(), before);
    workers_close(&w);
}

static void orders_only_grow(void **state)
{
    (void)state;
    struct workers w;
    struct dt_error err;
    assert_int_equal(workers_open(&w, 1, 0, &err), 0);
    assert_int_equal(workers_begin(&w, 3, &err), 0);
    assert_int_equal(spawn_shell(&w, 0, "sleep 100", -1, &err), 0);
    struct dt_page *p = w.list[0].page;
    assert_int_equal(p->round, 3);
    workers_order(&w, DT_ORDER_ABORT);
    workers_order(&w, DT_ORDER_STOP);
    assert_int_equal(atomic_load(&p->order), DT_ORDER_ABORT);
    workers_signal(&w, SIGKILL);
    assert_int_equal(wait_for(&w, 0), -9);
    workers_close(&w);
}

/* The watch takes its time from the caller, so hours pass here without waiting. */
static void the_watch_names_the_silent_one(void **state)
{
    (void)state;
    struct workers w;
    struct dt_error err;
    struct dt_text words;
    struct watch_options o = {.pages = true};
    dt_text_init(&words);
    assert_int_equal(workers_open(&w, 3, 0, &err), 0);
    assert_int_equal(workers_begin(&w, 1, &err), 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(spawn_shell(&w, i, "exec sleep 100", -1, &err), 0);
    }
    for (int i = 0; i < 3; i++) { /* until then it loads itself */
        struct process_look look;
        double end_s = dt_now_s() + PATIENCE_S;
        do {
            dt_sleep_s(0.01);
            assert_true(process_look(w.list[i].pid, &look));
        } while (look.state != 'S' && dt_now_s() < end_s);
    }
    double t = dt_now_s();
    assert_int_equal(watch_look(&w, &o, t + 1e6, &words), -1); /* nobody asked to be watched */
    watch_forgive(&w, t);
    for (int i = 0; i < 3; i++) {
        atomic_store(&w.list[i].page->pulse_limit_ms, 60000);
        dt_page_pulse(w.list[i].page);
        atomic_store(&w.list[i].page->in_collective, i != 1);
    }
    atomic_store(&w.list[1].page->step, 310);
    atomic_store(&w.list[1].page->collective_count, 17);
    (void)snprintf(w.list[1].page->collective_name, 64, "all_reduce");
    assert_int_equal(watch_look(&w, &o, t + 10, &words), -1);
    assert_int_equal(watch_look(&w, &o, t + 69, &words), -1);
    watch_forgive(&w, t + 100); /* everybody was paused */
    assert_int_equal(watch_look(&w, &o, t + 159, &words), -1);
    dt_page_pulse(w.list[0].page);
    assert_int_equal(watch_look(&w, &o, t + 161, &words), 1); /* not the one that waits for it in
                                                               * a collective */
    assert_non_null(strstr(
        dt_text_str(&words),
        "no pulse for 61.0 s at step 310, phase none, last collective 17 all_reduce; in the last 61.0 s: 0.0 s user, "
        "0.0 s system time: it waits (state "));
    dt_text_reset(&words);
    assert_int_equal(watch_look(&w, &o, t + 174, &words), -1); /* who waits for peers is given
                                                                * more time: theirs may be
                                                                * elsewhere */
    assert_int_equal(watch_look(&w, &o, t + 176, &words), 2);
    o = (struct watch_options){.limit_s = 5}; /* a foreign program that sleeps */
    watch_forgive(&w, t);
    w.list[0].seen_sign = 0;
    w.list[0].seen_use = w.list[0].use = guard_use(w.list[0].pid);
    w.looked_s = t;
    dt_text_reset(&words);
    assert_int_equal(watch_look(&w, &o, t + 6, &words), 0);
    assert_non_null(strstr(dt_text_str(&words),
                           "no output and no CPU time for 6.0 s (--hang_timeout=5); in the last 6.0 s: 0.0 s user, "));
    w.list[0].blamed = false; /* all stand still for ten minutes, as in a container that is
                               * paused: none of them was silent */
    o.look_s = 1;
    watch_forgive(&w, t + 6);
    assert_int_equal(watch_look(&w, &o, t + 7, &words), -1);
    assert_int_equal(watch_look(&w, &o, t + 607, &words), -1);
    assert_int_equal(watch_look(&w, &o, t + 608, &words), -1);
    assert_int_equal(watch_look(&w, &o, t + 613, &words), 0);
    workers_signal(&w, SIGKILL);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(wait_for(&w, i), -9);
    }
    dt_text_clear(&words);
    workers_close(&w);
}

/* One that waits in a collective is not blamed while a peer that saves has time; a stopped one
 * has not. */
static void who_waits_for_one_that_saves_is_excused(void **state)
{
    (void)state;
    struct workers w;
    struct dt_error err;
    struct dt_text words;
    struct process_look look;
    struct watch_options o = {.pages = true, .stopped_s = 60};
    dt_text_init(&words);
    assert_int_equal(workers_open(&w, 2, 0, &err), 0);
    assert_int_equal(workers_begin(&w, 1, &err), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(spawn_shell(&w, i, "exec sleep 100", -1, &err), 0);
        atomic_store(&w.list[i].page->pulse_limit_ms, i == 0 ? 4000 : 4000000000u);
        dt_page_pulse(w.list[i].page);
    }
    atomic_store(&w.list[0].page->in_collective, 1);
    dt_page_phase(w.list[1].page, DT_PHASE_SAVE);
    double t = dt_now_s();
    assert_int_equal(watch_look(&w, &o, t, &words), -1);
    assert_int_equal(watch_look(&w, &o, t + 1000, &words), -1);
    (void)kill(w.list[1].pid, SIGSTOP);
    do {
        dt_sleep_s(0.01);
        assert_true(process_look(w.list[1].pid, &look));
    } while (dt_now_s() < t + PATIENCE_S && look.state != 'T');
    dt_page_pulse(w.list[1].page);
    assert_int_equal(watch_look(&w, &o, t + 2000, &words), -1);
    assert_int_equal(watch_look(&w, &o, t + 2050, &words), -1);
    assert_int_equal(watch_look(&w, &o, t + 2070, &words), 1);
    workers_signal(&w, SIGKILL);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(wait_for(&w, i), -9);
    }
    dt_text_clear(&words);
    workers_close(&w);
}

/* What the three files of /proc say, from kernels of several kinds. */
static void where_a_process_waits(void **state)
{
    static const struct {
        const char *wchan, *stack, *call, *said;
    } cases[] = {
        {"futex_wait_queue", "", "202 0x7f 0x80", "futex_wait_queue"},
        {"0", "[<0>] __switch_to_asm+0x70/0x70\n", "running\n", ""},
        {"0",
         "[<0>] hrtimer_nanosleep+0x74/0xf0\n[<0>] __x64_sys_clock_nanosleep+0xce/0x140\n[<0>] "
         "do_syscall_64+0x71/0x280\n",
         "230 0x0", "kernel stack: hrtimer_nanosleep < __x64_sys_clock_nanosleep"},
        {"pipe_read", "[<0>] a+1/2\n[<0>] b\n[<0>] c.isra.0+1/2\n[<0>] d\n[<0>] e\n[<0>] f\n", "0 0x0",
         "pipe_read; kernel stack: a < b < c.isra.0 < d < e"},
        {"", "", "7 0x0 0x1\n", "system call 7"},
        {"\033[2J", "] ] ]\n\n] \033\n", "", ""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dt_text words;
        dt_text_init(&words);
        process_where_text(cases[i].wchan, cases[i].stack, cases[i].call, &words);
        assert_string_equal(dt_text_str(&words), cases[i].said);
        dt_text_clear(&words);
    }
}

/* Stopped, computing and waiting are told apart, even by a single look: the time used is
 * measured from the start. */
static void the_watch_says_what_a_silent_one_does(void **state)
{
    static const char *const programs[] = {"while :; do :; done", "exec sleep 100", "kill -STOP $$"};
    static const char *const said[] = {": it spins (state ", ": it waits (state S)", ": stopped by somebody (state T)"};
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct workers w;
        struct dt_error err;
        struct dt_text words;
        struct process_look look;
        struct watch_options o = {.pages = true};
        dt_text_init(&words);
        assert_int_equal(workers_open(&w, 1, 0, &err), 0);
        assert_int_equal(workers_begin(&w, 1, &err), 0);
        assert_int_equal(spawn_shell(&w, 0, programs[i], -1, &err), 0);
        atomic_store(&w.list[0].page->pulse_limit_ms, 1);
        double t = w.list[0].seen_s;
        do {
            dt_sleep_s(0.01);
            assert_true(process_look(w.list[0].pid, &look));
        } while (dt_now_s() < t + 60 && (i == 0 ? look.user_s < 0.15 : i == 1 ? look.state != 'S' : look.state != 'T'));
        assert_int_equal(watch_look(&w, &o, t + 0.2, &words), 0);
        if (strstr(dt_text_str(&words), "; in the last 0.2 s: ") == NULL ||
            strstr(dt_text_str(&words), said[i]) == NULL) {
            fail_msg("%s", dt_text_str(&words));
        }
        workers_signal(&w, SIGKILL);
        assert_int_equal(wait_for(&w, 0), -9);
        dt_text_clear(&words);
        workers_close(&w);
    }
}

/* A grandchild in a session of its own whose parent is gone comes to the subreaper and is found. */
static void descendants_are_found_and_ended(void **state)
{
    (void)state;
    struct workers w;
    struct dt_error err;
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
    assert_int_equal(workers_open(&w, 1, 0, &err), 0);
    assert_int_equal(workers_begin(&w, 1, &err), 0);
    assert_int_equal(spawn_shell(&w, 0, "setsid sh -c 'sleep 100 & sleep 100' & exit 0", -1, &err), 0);
    assert_int_equal(wait_for(&w, 0), 0);
    assert_true(guard_kill_descendants() > 0);
    assert_true(guard_end_descendants(PATIENCE_S));
    assert_int_equal(guard_kill_descendants(), 0);
    workers_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exits_and_signals),
        cmocka_unit_test(what_cannot_be_executed),
        cmocka_unit_test(a_clean_start),
        cmocka_unit_test(two_hundred_rounds_leak_nothing),
        cmocka_unit_test(orders_only_grow),
        cmocka_unit_test(the_watch_names_the_silent_one),
        cmocka_unit_test(who_waits_for_one_that_saves_is_excused),
        cmocka_unit_test(where_a_process_waits),
        cmocka_unit_test(the_watch_says_what_a_silent_one_does),
        cmocka_unit_test(descendants_are_found_and_ended),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
