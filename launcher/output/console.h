/* The console of this process: standard output and error. Threads write them, so that a terminal or
 * pipe which nobody reads never blocks the caller. All lines of the launcher go through here,
 * including dt_log's, in order with the workers' lines that it passes on. Before console_open and
 * after console_close own lines are written directly. There is one console per process.
 * console_say, console_write and dt_log may be called from any thread, the other functions only
 * from the thread that opened the console. */
#ifndef DT_LAUNCHER_OUTPUT_CONSOLE_H
#define DT_LAUNCHER_OUTPUT_CONSOLE_H

#include "base/error.h"
#include "base/text.h"

#include <stdbool.h>
#include <stddef.h>

/* longest wait for a console that does not read, at the end of a process */
#define CONSOLE_STALL_S 5.0

/* Starts the threads. out_fd and err_fd (1 and 2; tests give others) still belong to the caller.
 * DT_NO_MEMORY when no thread can be started: lines are written directly, as before. */
int console_open(int out_fd, int err_fd, struct dt_error *err);
/* Opens the console without threads, for a process that may have none. Own lines are written when
 * that does not block, and held until then. console_turn writes held lines, and is true while some
 * are left. Only own lines and console_close work. */
void console_open_alone(void);
bool console_turn(void);
/* Writes one or more own lines, each with its newline, to standard error. Returns at once if
 * writing takes longer than a moment. */
void console_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Like console_say, for a finished text. */
void console_write(const char *text, size_t size);

/* The functions below need console_open. side: 0 standard output, 1 standard error. */
int console_fd(int side);
/* Whether the output is a terminal. Workers' lines then go through log_safe, with colours if the
 * user wants them (NO_COLOR, TERM). */
bool console_is_terminal(int side);
bool console_wants_colours(void);
/* Whether both outputs are one terminal, file or pipe. */
bool console_is_one(void);
/* Queues workers' output. The caller checks console_size first. */
void console_put(int side, const void *data, size_t size);
/* console_size: bytes queued for both outputs. console_stalled_s: seconds since the last successful
 * write, of the output that is worse off. */
size_t console_size(void);
double console_stalled_s(void);
/* Counts lines that the caller dropped because the console did not read. where: the folder that has
 * them; null: none. console_close reports them. */
void console_missed(size_t count, const char *where);
/* Writes what is queued for as long as somebody reads, at most stall_s when nobody does, and at
 * most stall_s in all once an INT or TERM is pending (where these are blocked). Then reports losses
 * and ends the threads. Own lines after that are dropped where they would block. Does nothing when
 * the console is not open. */
void console_close(double stall_s);

#endif
