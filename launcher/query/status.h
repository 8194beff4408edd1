/* Asking a running job. The agent listens on a socket in a folder that only its user can enter,
 * one per agent; who connects and sends one line, "status" or "status RUN_ID", is given one JSON
 * object and the connection ends. A connection alone costs the job nothing: that is how each
 * start of dtrun finds out which sockets are left of killed agents. Those who ask cannot disturb
 * the job: a few at a time, and a slow one is dropped. */
#ifndef DT_LAUNCHER_QUERY_STATUS_H
#define DT_LAUNCHER_QUERY_STATUS_H

#include "base/error.h"
#include "base/text.h"

#include <stdbool.h>
#include <uv.h>

struct status;

enum { STATUS_REQUEST_BYTES = 160 }; /* a line is shorter: a run id has 128 characters at most */

/* Appends the job's state as a JSON object. Called from the loop. */
typedef void status_describe(void *user, struct dt_text *out);

/* Listens in DTRUN_RUNTIME_DIR, or XDG_RUNTIME_DIR/dtrun, or /tmp/dtrun-UID. The folder is made
 * with mode 0700; one that others own or may enter is refused. Sockets of jobs that were killed
 * are removed on the way. run_id, which must outlive s: who asks for another run is told this
 * one only, {"format":1,"run_id":...}. */
int status_open(struct status **out, uv_loop_t *loop, const char *run_id, status_describe *describe, void *user,
                struct dt_error *err);
/* `prepare` is called for each who asks for this run, before `describe`; true: the answer takes
 * a moment, and status_ready will be called. */
typedef bool status_prepare(void *user);
void status_set_prepare(struct status *s, status_prepare *prepare);
/* All who wait are answered now. */
void status_ready(struct status *s);
/* Removes the socket and closes, which frees s; run the loop until its handles are closed. */
void status_close(struct status *s);

/* `dtrun --status`: prints the jobs of this user on this host that have the run id (null: all)
 * as text of 80 columns, or as one JSON object per line. Returns the exit code: 1 when a named
 * job is not there or does not answer. */
int status_ask(const char *run_id, bool json);

/* Inside: connects without waiting: the descriptor, or -1 with errno. *stale: nobody listens there any
 * more. */
int status_connect(const char *path, bool *stale);
/* Whether a file in such a folder is a job's socket, by its name. */
bool status_is_socket(const char *name);
/* The text for people of one answer. */
int status_show(const char *answer, size_t size, struct dt_text *out, struct dt_error *err);

#endif
