/* Output of the workers: torchrun's folder tree, copies on the console with prefixes, the last
 * lines for the report. A stream without redirect, tee or filter is inherited: no pipe, nothing
 * to do here. The others are pipes read on the loop; files are written by a thread, as the
 * console is (console.h), so that neither a slow disk nor a stopped terminal holds up the loop.
 * A full disk or a console that does not read costs lines, never the job: they are counted and
 * reported. All calls come from the loop's thread. */
#ifndef DT_LAUNCHER_OUTPUT_LOGS_H
#define DT_LAUNCHER_OUTPUT_LOGS_H

#include "launcher/options/options.h"

#include <uv.h>

struct logs;

/* Makes LOG_DIR/RUNID_xxxxxxxx (mode 0700; nothing for /dev/null, nor where no default folder
 * can be made and nobody asked for one). The console must be open (console.h). */
int logs_open(struct logs **out, uv_loop_t *loop, const struct options *o, struct dt_error *err);
/* The run's folder, or null: there is none. */
const char *logs_dir(const struct logs *l);
/* True when some stream goes to a file (so the start line and the report should name the
 * folder). */
bool logs_has_files(const struct logs *l);
/* True when nobody asked for any of it: the folder is one we made by default, and no stream goes
 * there. */
bool logs_unasked(const struct logs *l);
/* A new attempt: the folder attempt_N and one folder per local rank. An older attempt_N (a round
 * lost to a change of members) stays, and the new one is called attempt_N.2, .3 ... Ends the
 * streams of the attempt before. first_rank is the global rank of local rank 0. */
int logs_attempt(struct logs *l, int restart_count, int local_world_size, int first_rank, int group_rank,
                 int world_size, struct dt_error *err);
/* This worker's folder and its error.json; null and "" where there is none. Valid until the next
 * attempt. */
const char *logs_worker_dir(const struct logs *l, int local_rank);
const char *logs_error_file(const struct logs *l, int local_rank);
/* What the worker gets as its stdout (fds[0]) and stderr (fds[1]): -1 means inherit. They are
 * close-on-exec; after the fork (or a failed one) call logs_spawned, which closes our copies of
 * the worker's ends. */
int logs_streams(struct logs *l, int local_rank, int fds[2], struct dt_error *err);
void logs_spawned(struct logs *l, int local_rank);
/* The worker has ended: takes what is in its pipes. They stay open for what it has started:
 * until the last of these closes them, or the next attempt or logs_close. Harmless twice. */
void logs_finish(struct logs *l, int local_rank);
/* Appends the last lines (at most line_count) of the worker's stderr, or of its stdout when
 * stderr said nothing, each with a newline, control characters made visible. Returns their
 * number; 0 for inherited streams. Works after logs_finish. */
int logs_tail(const struct logs *l, int local_rank, int line_count, struct dt_text *out);
/* dt_now_s() of the last byte that came from this worker through us; 0: none yet, or inherited.
 * For --hang_timeout. */
double logs_last_output_s(const struct logs *l, int local_rank);
/* Waits until the files have what was read so far, at most timeout_s. For the report that names
 * them. */
void logs_flush(struct logs *l, double timeout_s);
/* Finishes all, waits at most timeout_s for the files, appends what they lost to `lost` (a line,
 * or nothing; may be null). Handles close asynchronously: run the loop until they have. */
void logs_close(struct logs *l, double timeout_s, struct dt_text *lost);

#endif
