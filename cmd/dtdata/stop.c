/* See the header. */
#include "cmd/dtdata/stop.h"

#include "base/signals.h"

#include <signal.h>
#include <stddef.h>

static volatile sig_atomic_t stopped;

static void on_signal(int number)
{
    stopped = number;
}

void stop_open(void)
{
    /* no restart: a read from a terminal must end too */
    struct sigaction action = {.sa_handler = on_signal};
    if (dt_signal_wanted(SIGINT)) {
        (void)sigaction(SIGINT, &action, NULL);
    }
    (void)sigaction(SIGTERM, &action, NULL);
}

int stop_signal(void)
{
    return (int)stopped;
}

int stop_check(struct dt_error *err)
{
    return stopped == 0 ? 0 : dt_fail(err, DT_STOPPED, "stopped");
}
