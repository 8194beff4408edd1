/* Signals that a program may handle. Code that gives a signal a handler, or waits for it, asks
 * here first. */
#ifndef DT_BASE_SIGNALS_H
#define DT_BASE_SIGNALS_H

#include <stdbool.h>

/* False for a signal that is ignored now: whoever started us chose so (a shell for its "&" with
 * INT and QUIT, nohup with HUP, a script's trap ''), and it stays ignored. TERM is always ours:
 * it is how a job is stopped. Ask before the signal gets a handler. */
bool dt_signal_wanted(int number);

#endif
