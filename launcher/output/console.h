/* The console of this process: standard output and error, written by threads, so that a terminal
 * or pipe which nobody reads never holds up the caller. All lines of the launcher itself go
 * through here, dt_log's included, in order with those of the workers that it passes on. Before
 * console_open and after console_close own lines are written directly. One per process.
 * console_say, console_write and dt_log may be called from any thread, the rest from the one
 * that opened it. */
#ifndef DT_LAUNCHER_OUTPUT_CONSOLE_H
#define DT_LAUNCHER_OUTPUT_CONSOLE_H

#include "base/error.h"
#include "base/text.h"

#include <stdbool.h>
#include <stddef.h>

/* how long the end of a process waits for a console that does not read */
#define CONSOLE_STALL_S 5.0

/* Starts the threads; out_fd and err_fd (1 and 2; tests give others) stay the caller's.
 * DT_NO_MEMORY when there can be no thread: all is written directly, as before. */
int console_open(int out_fd, int err_fd, struct dt_error *err);
/* For a process that may have no threads: own lines are written when that waits for nobody, and
 * held until then; console_turn writes what can be, and is true while some wait. Only own lines,
 * and console_close, are for it. */
void console_open_alone(void);
bool console_turn(void);
/* An own line, or several, each with its newline, on standard error. It is written at once where
 * that takes no longer than a moment. */
void console_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* The same for text that is there already. */
void console_write(const char *text, size_t size);

/* The rest needs console_open. side: 0 standard output, 1 standard error. */
int console_fd(int side);
/* The side is a terminal: what others write is put there by log_safe, with colours where people
 * want them (NO_COLOR, TERM). */
bool console_is_terminal(int side);
bool console_wants_colours(void);
/* Both sides are one terminal, file or pipe. */
bool console_is_one(void);
/* Others' output: the caller looks at console_size first. */
void console_put(int side, const void *data, size_t size);
/* Bytes that wait, of both sides; seconds since the side that is worse off could last be
 * written. */
size_t console_size(void);
double console_stalled_s(void);
/* `count` lines did not come here at all because the console did not read; they are in the
 * folder `where`, null: nowhere. console_close says so. */
void console_missed(size_t count, const char *where);
/* Writes what waits, however slowly somebody reads it, but for no longer than stall_s when
 * nobody does, nor in all once an INT or TERM is pending (where they are blocked). Then says
 * what was lost, and ends the threads; own lines of later are dropped where they would wait.
 * Nothing when it is not open. */
void console_close(double stall_s);

#endif
