/* Output of the workers: torchrun's folders, copies on the console with prefixes, and the last
 * lines for the report.
 * A stream without redirect, tee or filter is inherited and costs nothing here. All others are
 * pipes that the loop reads. A thread writes the files, and another the console (console.h), so
 * that neither a slow disk nor a stopped terminal blocks the loop. A full disk or a console that
 * does not read costs lines, never the job; lost lines are counted and reported. All calls come
 * from the loop's thread. */
#ifndef DT_LAUNCHER_OUTPUT_LOGS_H
#define DT_LAUNCHER_OUTPUT_LOGS_H

#include "launcher/options/options.h"

#include <uv.h>

struct logs;

/* Makes LOG_DIR/RUNID_xxxxxxxx (mode 0700). Makes none for /dev/null, nor when no default folder
 * can be made and the user asked for none. The console must be open (console.h). */
int logs_open(struct logs **out, uv_loop_t *loop, const struct options *o, struct dt_error *err);
/* The run's folder; null: there is none. */
const char *logs_dir(const struct logs *l);
/* Whether some stream goes to a file, so that the start line and the report should name the
 * folder. */
bool logs_has_files(const struct logs *l);
/* Whether the folder was made by default and no stream goes there. */
bool logs_unasked(const struct logs *l);
/* Begins a new attempt: ends the streams of the one before, and makes the folder attempt_N with one
 * folder per local rank. If attempt_N exists (a round lost to a change of members), it stays, and
 * the new one is called attempt_N.2, .3 ... first_rank: global rank of local rank 0. */
int logs_attempt(struct logs *l, int restart_count, int local_world_size, int first_rank, int group_rank,
                 int world_size, struct dt_error *err);
/* The worker's folder and the path of its error.json; null and "" where there is none. Valid until
 * the next attempt. */
const char *logs_worker_dir(const struct logs *l, int local_rank);
const char *logs_error_file(const struct logs *l, int local_rank);
/* Opens the worker's stdout (fds[0]) and stderr (fds[1]), close-on-exec; -1 means inherit. After
 * the fork, even a failed one, call logs_spawned, which closes our copies of the worker's ends. */
int logs_streams(struct logs *l, int local_rank, int fds[2], struct dt_error *err);
void logs_spawned(struct logs *l, int local_rank);
/* The worker has ended: reads what is in its pipes. The pipes stay open for processes that the
 * worker has left, until the last of these closes them, or until the next attempt or logs_close. A
 * second call does nothing. */
void logs_finish(struct logs *l, int local_rank);
/* Appends the last lines (at most line_count) of the worker's stderr, or of its stdout if stderr is
 * empty. Each line has a newline, and control characters are made visible. Returns the number of
 * lines; 0 for inherited streams. Works after logs_finish, too. */
int logs_tail(const struct logs *l, int local_rank, int line_count, struct dt_text *out);
/* Time (dt_now_s) of the worker's last output; 0: none yet, or inherited. For --hang_timeout. */
double logs_last_output_s(const struct logs *l, int local_rank);
/* Waits at most timeout_s until the files hold all that was read so far, before a report names
 * them. */
void logs_flush(struct logs *l, double timeout_s);
/* Ends all streams, waits at most timeout_s for the files, and appends a line to `lost` (may be
 * null) if data were lost. Handles close asynchronously: run the loop until they have. */
void logs_close(struct logs *l, double timeout_s, struct dt_text *lost);

#endif
