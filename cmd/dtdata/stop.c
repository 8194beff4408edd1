/* See the header. */
#include "cmd/dtdata/stop.h"

#include "base/signals.h"

#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>

static atomic_int stopped; /* lock-free, as a handler needs it; several threads look at it */

static void on_signal(int number)
{
    atomic_store(&stopped, number);
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
    return atomic_load(&stopped);
}

int stop_check(struct dt_error *err)
{
    return atomic_load(&stopped) == 0 ? 0 : dt_fail(err, DT_STOPPED, "stopped");
}
