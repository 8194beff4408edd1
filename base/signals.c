#include "base/signals.h"

#include <signal.h>
#include <stddef.h>

bool dt_signal_wanted(int number)
{
    struct sigaction now;
    return number == SIGTERM || sigaction(number, NULL, &now) != 0 || now.sa_handler != SIG_IGN;
}
