/* Signals that a program may handle. Call this before a signal gets a handler or is waited for. */
#ifndef DT_BASE_SIGNALS_H
#define DT_BASE_SIGNALS_H

#include <stdbool.h>

/* False for a signal that is ignored now. The process that started us chose so (a shell for its "&"
 * with INT and QUIT, nohup with HUP, a script's trap ''), so it stays ignored. Always true for
 * TERM, which stops a job. */
bool dt_signal_wanted(int number);

#endif
