/* Answers questions about a running job. Each agent listens at a socket of its own, in a folder
 * that only its user can enter. A client connects and sends one line, "status" or "status RUN_ID".
 * It gets one JSON object, and the connection ends. A connection without a line costs the job
 * nothing: each start of dtrun connects to find sockets that killed agents have left. Clients
 * cannot disturb the job: only a few are served at a time, and slow ones are dropped. */
#ifndef DT_LAUNCHER_QUERY_STATUS_H
#define DT_LAUNCHER_QUERY_STATUS_H

#include "base/error.h"
#include "base/text.h"

#include <stdbool.h>
#include <uv.h>

struct status;

/* a line is shorter, because a run id has at most 128 characters */
enum { STATUS_REQUEST_BYTES = 160 };

/* Appends the job's state as a JSON object. Called from the loop. */
typedef void status_describe(void *user, struct dt_text *out);

/* Listens in DTRUN_RUNTIME_DIR, or XDG_RUNTIME_DIR/dtrun, or /tmp/dtrun-UID. The folder is created
 * with mode 0700. A folder that others own or may enter is refused. Sockets of killed jobs are
 * removed. run_id must outlive s. A client that asks for another run only gets
 * {"format":1,"run_id":...}. */
int status_open(struct status **out, uv_loop_t *loop, const char *run_id, status_describe *describe, void *user,
                struct dt_error *err);
/* `prepare` is called before `describe`, for each client that asks for this run. If it returns
 * true, the answer takes a moment, and the caller will call status_ready. */
typedef bool status_prepare(void *user);
void status_set_prepare(struct status *s, status_prepare *prepare);
/* Answers all waiting clients now. */
void status_ready(struct status *s);
/* Removes the socket, closes, and frees s. Run the loop until the handles are closed. */
void status_close(struct status *s);

/* `dtrun --status`: prints this user's jobs on this host that have the run id (null: all jobs), as
 * text of 80 columns or as one JSON object per line. Returns the exit code: 1 when a named job is
 * not there or does not answer. */
int status_ask(const char *run_id, bool json);

/* Between the files status*.c: connects without waiting. Returns the descriptor, or -1 with errno.
 * *stale: no process listens there any more. */
int status_connect(const char *path, bool *stale);
/* Whether a file in the folder is a job's socket, by its name. */
bool status_is_socket(const char *name);
/* Appends the text of one answer for people. */
int status_show(const char *answer, size_t size, struct dt_text *out, struct dt_error *err);

#endif
