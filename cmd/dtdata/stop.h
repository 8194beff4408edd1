/* SIGINT and SIGTERM: dtdata stops at the next place where nothing is half done. */
#ifndef DT_CMD_DTDATA_STOP_H
#define DT_CMD_DTDATA_STOP_H

#include "base/error.h"

/* Installs the handlers. A signal that was ignored when we started stays ignored. */
void stop_open(void);
/* The signal that asks us to stop; 0: there was none. */
int stop_signal(void);
/* DT_STOPPED after such a signal. */
int stop_check(struct dt_error *err);

#endif
