/* Errors: a status and one line of text, filled in by whoever first knows what is wrong.
 * Functions that can fail return 0 or -1 and take a `struct dt_error *` last; outputs are set on
 * success only. */
#ifndef DT_BASE_ERROR_H
#define DT_BASE_ERROR_H

#include <stdarg.h>

enum dt_status {
    DT_OK = 0,
    DT_INVALID,   /* the input is wrong: option, job key, file content; another try fails the
                   * same way */
    DT_NOT_FOUND, /* a file, key or host that is not there */
    DT_IO,        /* the operating system refused: permission, broken pipe, an error of the disk */
    DT_TIMEOUT,   /* a deadline passed; the text says for whom it waited */
    DT_PEER,      /* another rank or host is gone */
    DT_STOPPED,   /* asked to stop: the round is over, or a signal came */
    DT_NO_MEMORY, /* does not fit */
    DT_INTERNAL,  /* our own mistake */
    DT_FULL,      /* a disk or a quota has no room */
    DT_IN_USE,    /* only one may have it, and another does: the input is wrong as long as that
                   * one runs */
    DT_USAGE      /* the start is wrong, which shows only when all ranks are there */
};

/* The status that a peer, a store or shared memory says: DT_INTERNAL for a number that is none,
 * and for DT_OK, with which nothing fails. */
enum dt_status dt_status_of(long number);

struct dt_error {
    enum dt_status status;
    char text[512]; /* no newline, nothing that a terminal does not show (base/text.h); `where:
                     * what: cause; do this` */
};

/* Sets status and text (err may be null). Returns -1, so that callers can `return dt_fail(...)`. */
int dt_fail(struct dt_error *err, enum dt_status status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Same with a va_list. */
int dt_fail_v(struct dt_error *err, enum dt_status status, const char *fmt, va_list args)
    __attribute__((format(printf, 3, 0)));
/* Sets the text to "fmt...: strerror(errno)"; status DT_NOT_FOUND for ENOENT, DT_NO_MEMORY for
 * ENOMEM, DT_FULL for ENOSPC and EDQUOT, DT_IO otherwise. Returns -1. */
int dt_fail_errno(struct dt_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Puts "fmt...: " before the text that is there; keeps the status. Returns -1. */
int dt_wrap(struct dt_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Exit codes of our programs (docs/architecture.md lists them). */
enum dt_exit {
    DT_EXIT_DONE = 0,
    DT_EXIT_FAILED = 1,      /* a worker failed and no restart was left */
    DT_EXIT_USAGE = 2,       /* wrong option, job or environment; nothing was started */
    DT_EXIT_STOPPED = 75,    /* stopped on request, state saved: the same command continues */
    DT_EXIT_PERMANENT = 100, /* another try fails the same way */
    DT_EXIT_TEMPORARY = 111  /* another try may work */
};

#endif
