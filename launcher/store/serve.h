/* dtrun --serve_store=HOST:PORT: the worker store alone, for programs that are started by other
 * means and for tests of clients. */
#ifndef DT_LAUNCHER_STORE_SERVE_H
#define DT_LAUNCHER_STORE_SERVE_H

#include "launcher/options/options.h"

/* Listens on o->master_addr and o->master_port (0: any free port), prints HOST:PORT as one line on
 * stdout, and serves until INT or TERM. Returns the exit code. Failures are reported on stderr. */
int serve_store(const struct options *o);

#endif
