/* The table is at the end; read it first. Each action changes the state and lists what to do. Empty
 * cells are events that come too late to matter (a worker that ends while all are being ended, a
 * grace time that expires when no worker is left). */
#include "launcher/job/agent.h"

#include "base/error.h"

#include <assert.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>

typedef void agent_action(struct agent *a, int value);

static void to_do(struct agent *a, enum agent_do what)
{
    assert(a->do_count < AGENT_MAX_DO);
    a->todo[a->do_count++] = what;
}

/* Ends the workers without asking them to save. Workers with a page leave their waits at once. All
 * get TERM, and KILL after the grace time. */
static void wind_down(struct agent *a)
{
    a->state = AGENT_STOPPING;
    a->signal = SIGTERM;
    to_do(a, AGENT_DO_ORDER_ABORT);
    to_do(a, AGENT_DO_TERM);
    to_do(a, AGENT_DO_GRACE);
}

static void start(struct agent *a, int value)
{
    (void)value;
    a->state = AGENT_RUNNING;
    a->ok_count = 0;
    a->saved = a->unsaved = a->stop_wanted = a->pausing = a->orphaned = a->insisted = false;
    to_do(a, AGENT_DO_SPAWN);
}

static void exit_now(struct agent *a, int value)
{
    a->state = AGENT_FINISHING;
    a->verdict = true;
    a->code = value;
    to_do(a, AGENT_DO_EXIT);
}

static void count_ok(struct agent *a, int value)
{
    (void)value;
    a->ok_count++;
}

static void count_saved(struct agent *a, int value)
{
    (void)value;
    a->saved = true;
}

/* A worker failed during a save. The others would wait for it, and nothing can be saved without
 * it. */
static void bad_stopping(struct agent *a, int value)
{
    (void)value;
    if (a->stop_wanted && a->options.bundled && !a->unsaved) {
        a->signal = SIGTERM;
        to_do(a, AGENT_DO_ORDER_ABORT);
        to_do(a, AGENT_DO_TERM);
    }
    a->unsaved = true;
}

static bool is_permanent(const struct agent *a, int code)
{
    for (int i = 0; i < a->options.permanent_code_count; i++) {
        if (a->options.permanent_codes[i] == code) {
            return true;
        }
    }
    return a->options.bundled && (code == DT_EXIT_PERMANENT || code == DT_EXIT_USAGE);
}

/* The exit code of the job if no restart follows this failure. */
static int code_of_failure(const struct agent *a, int value)
{
    if (is_permanent(a, value)) {
        return value;
    }
    if (a->options.exit_code_worker && value != 0) {
        return value > 0 ? value : 128 - value;
    }
    return DT_EXIT_FAILED;
}

static void failed(struct agent *a, int value)
{
    a->failure = is_permanent(a, value) ? FAILURE_PERMANENT : FAILURE_PLAIN;
    a->failure_code = code_of_failure(a, value);
    wind_down(a);
    to_do(a, AGENT_DO_TELL_FAILED);
}

static void not_started(struct agent *a, int value)
{
    a->failure = FAILURE_START;
    a->failure_code = value;
    wind_down(a);
    to_do(a, AGENT_DO_TELL_FAILED);
}

static void end_round(struct agent *a, int value)
{
    (void)value;
    wind_down(a);
}

/* A host was lost during the stop, so nothing can be saved. A pause is given up. A stop is not; it
 * gets END only when its coordinator is lost. */
static void end_stopping(struct agent *a, int value)
{
    (void)value;
    if (a->pausing) {
        a->pausing = a->stop_wanted = false;
        wind_down(a);
        return;
    }
    a->orphaned = a->stop_wanted;
}

static void verdict_running(struct agent *a, int value)
{
    a->verdict = true;
    a->code = value;
    wind_down(a);
}

static void leave_now(struct agent *a, int value)
{
    exit_now(a, agent_has_saved(a) ? DT_EXIT_STOPPED : value);
}

static void verdict_stopping(struct agent *a, int value)
{
    a->verdict = true;
    a->code = value;
}

static void stop(struct agent *a, int value)
{
    a->state = AGENT_STOPPING;
    a->stop_wanted = true;
    a->code = value;
    a->signal = value > 128 ? value - 128 : SIGTERM;
    to_do(a, AGENT_DO_ORDER_STOP);
    to_do(a, AGENT_DO_GRACE);
}

static void pause_round(struct agent *a, int value)
{
    stop(a, value);
    a->pausing = true;
}

static void stop_again(struct agent *a, int value)
{
    if (value == COORDINATOR_KILL) {
        to_do(a, AGENT_DO_KILL);
    } else if (a->pausing) { /* now the whole job stops */
        a->pausing = false;
        a->code = value;
    }
}

static void leave(struct agent *a, int value)
{
    stop(a, value);
    a->verdict = a->leaving = true;
}

static void leave_stopping(struct agent *a, int value)
{
    verdict_stopping(a, value);
    a->leaving = true;
}

static void rejoin(struct agent *a, int value)
{
    (void)value;
    a->state = AGENT_JOINING;
    to_do(a, AGENT_DO_TELL_JOIN);
    /* the coordinator that ordered the stop is gone, and the next one does not know of it */
    if (a->stop_wanted && !a->pausing) {
        to_do(a, AGENT_DO_TELL_STOP);
    }
}

/* The coordinator answers with a stop. If a round is being ended anyway, it sends LEAVE or the
 * verdict when we join the next round. */
static void wish(struct agent *a, int value)
{
    (void)value;
    to_do(a, AGENT_DO_TELL_STOP);
}

static void now(struct agent *a, int value)
{
    a->state = AGENT_STOPPING;
    a->verdict = true;
    a->code = 128 + value;
    a->signal = SIGKILL;
    to_do(a, AGENT_DO_KILL);
}

/* No workers run here, so there is nothing to end first. */
static void now_idle(struct agent *a, int value)
{
    exit_now(a, 128 + value);
}

/* Kills the workers of all hosts. The coordinator decides the exit code, so that it is the same on
 * all hosts. A node that leaves alone, that has no coordinator, or that is asked once more ends at
 * once. */
static void insist(struct agent *a, int value)
{
    if (a->verdict || a->pausing || a->orphaned || a->insisted) {
        now(a, value);
        return;
    }
    /* the coordinator's answer to the first request is on its way */
    if (a->state == AGENT_RUNNING) {
        a->state = AGENT_STOPPING;
        a->stop_wanted = true;
        a->code = 128 + value;
    }
    a->insisted = true;
    to_do(a, AGENT_DO_TELL_KILL);
    to_do(a, AGENT_DO_KILL);
}

static void insist_idle(struct agent *a, int value)
{
    if (!a->insisted) {
        to_do(a, AGENT_DO_TELL_KILL);
    }
    if (a->insisted || a->state == AGENT_JOINING) {
        exit_now(a, agent_has_saved(a) ? DT_EXIT_STOPPED : 128 + value);
    }
    a->insisted = true;
}

static void grace_over(struct agent *a, int value)
{
    (void)value;
    to_do(a, AGENT_DO_KILL);
}

/* All workers ended by themselves: with 0, or after a stop that the agent was not told of (a
 * scheduler that signals each process). */
static void gone_running(struct agent *a, int value)
{
    (void)value;
    a->state = AGENT_FINISHING;
    a->failure_code = a->saved ? DT_EXIT_STOPPED : DT_EXIT_DONE;
    to_do(a, a->saved ? AGENT_DO_TELL_STOPPED : AGENT_DO_TELL_DONE);
}

static void gone_stopping(struct agent *a, int value)
{
    if (a->verdict) {
        exit_now(a, a->leaving && agent_has_saved(a) ? DT_EXIT_STOPPED : a->code);
        return;
    }
    if (!a->stop_wanted || a->orphaned) {
        rejoin(a, value);
        return;
    }
    a->state = AGENT_FINISHING;
    a->failure_code = a->code;
    if (a->options.bundled && !a->unsaved) {
        a->failure_code = a->saved ? DT_EXIT_STOPPED : DT_EXIT_DONE;
    }
    to_do(a, a->failure_code == DT_EXIT_DONE ? AGENT_DO_TELL_DONE : AGENT_DO_TELL_STOPPED);
}

static agent_action *const on[AGENT_STATE_COUNT][AGENT_EVENT_COUNT] = {
    [AGENT_JOINING] =
        {
            [AGENT_ON_START] = start,
            [AGENT_ON_LEAVE] = leave_now,
            [AGENT_ON_VERDICT] = exit_now,
            [AGENT_ON_SIGNAL] = wish,
            [AGENT_ON_INSIST] = insist_idle,
            [AGENT_ON_NOW] = now_idle,
        },
    [AGENT_RUNNING] =
        {
            [AGENT_ON_END] = end_round,
            [AGENT_ON_STOP] = stop,
            [AGENT_ON_PAUSE] = pause_round,
            [AGENT_ON_LEAVE] = leave,
            [AGENT_ON_VERDICT] = verdict_running,
            [AGENT_ON_WORKER_OK] = count_ok,
            [AGENT_ON_WORKER_75] = count_saved,
            [AGENT_ON_WORKER_BAD] = failed,
            [AGENT_ON_NO_START] = not_started,
            [AGENT_ON_GONE] = gone_running,
            [AGENT_ON_SIGNAL] = wish,
            [AGENT_ON_INSIST] = insist,
            [AGENT_ON_NOW] = now,
        },
    [AGENT_STOPPING] =
        {
            [AGENT_ON_END] = end_stopping,
            [AGENT_ON_STOP] = stop_again,
            [AGENT_ON_LEAVE] = leave_stopping,
            [AGENT_ON_VERDICT] = verdict_stopping,
            [AGENT_ON_WORKER_OK] = count_ok,
            [AGENT_ON_WORKER_75] = count_saved,
            [AGENT_ON_WORKER_BAD] = bad_stopping,
            [AGENT_ON_GONE] = gone_stopping,
            [AGENT_ON_GRACE] = grace_over,
            [AGENT_ON_SIGNAL] = wish,
            [AGENT_ON_INSIST] = insist,
            [AGENT_ON_NOW] = now,
        },
    [AGENT_FINISHING] =
        {
            [AGENT_ON_END] = rejoin,
            [AGENT_ON_LEAVE] = leave_now,
            [AGENT_ON_VERDICT] = exit_now,
            [AGENT_ON_SIGNAL] = wish,
            [AGENT_ON_INSIST] = insist_idle,
            [AGENT_ON_NOW] = now_idle,
        },
};

void agent_init(struct agent *a, const struct agent_options *options)
{
    memset(a, 0, sizeof *a);
    a->options = *options;
}

void agent_step(struct agent *a, enum agent_event event, int value)
{
    a->do_count = 0;
    agent_action *action = on[a->state][event];
    if (action != NULL) {
        action(a, value);
    }
}

bool agent_has_saved(const struct agent *a)
{
    return (a->state == AGENT_JOINING || a->state == AGENT_FINISHING) && a->options.bundled && a->saved && !a->unsaved;
}

const char *agent_state_name(enum agent_state state)
{
    switch (state) {
    case AGENT_JOINING:
        return "joining";
    case AGENT_RUNNING:
        return "running";
    case AGENT_STOPPING:
        return "stopping";
    case AGENT_FINISHING:
        return "finishing";
    case AGENT_STATE_COUNT:
        break;
    }
    return "unknown";
}
