/* Errors: a status and one line of text, filled in by whoever first knows what is wrong.
 * Functions that can fail return 0 or -1 and take a `struct dt_error *` last; outputs are set on
 * success only. */
#ifndef DT_BASE_ERROR_H
#define DT_BASE_ERROR_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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

/* Who is to blame for an error, as data: nothing is decided by a text, which is for people alone.
 * Ranks are those of the job. All zero: the failure is that of the rank that has the error, in its
 * own words. */
enum dt_fault {
    DT_FAULT_OWN,
    DT_FAULT_FAILED, /* `rank` failed, and all ranks end with its words */
    DT_FAULT_LOST,   /* `rank` is gone or has given up, and says more if it can */
    DT_FAULT_COUNT
};

/* The words are another rank's. */
enum dt_told {
    DT_TOLD_NOT,
    DT_TOLD_BY_RANK, /* by `teller` */
    DT_TOLD_BY_HOST, /* by `teller`, who spoke for host number `host` */
    DT_TOLD_COUNT
};

struct dt_blame {
    enum dt_fault fault;
    int rank;
    enum dt_told told;
    int teller, host;
};

/* What an error of an accelerator holds; bits. */
enum dt_device_words {
    DT_DEVICE_FAILED = 1, /* the device, which the text names, or its driver refused */
    DT_DEVICE_SERIAL = 2, /* the text has its serial number */
    DT_DEVICE_DRIVER = 4  /* and what the driver says of it */
};

struct dt_error {
    enum dt_status status;
    struct dt_blame blame;
    unsigned device; /* enum dt_device_words */
    uint32_t digest; /* of the text before anything was put before or behind it: what happened,
                      * whoever it happened to */
    char text[512];  /* no newline, nothing that a terminal does not show (base/text.h); `where:
                     * what: cause; do this` */
};

/* A number that the same texts share, and others hardly. */
uint32_t dt_digest(const char *text);

/* Sets status and text, and blames nobody (err may be null). Returns -1, so that callers can
 * `return dt_fail(...)`. */
int dt_fail(struct dt_error *err, enum dt_status status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Same with a va_list. */
int dt_fail_v(struct dt_error *err, enum dt_status status, const char *fmt, va_list args)
    __attribute__((format(printf, 3, 0)));
/* Sets the text to "fmt...: strerror(errno)"; status DT_NOT_FOUND for ENOENT, DT_NO_MEMORY for
 * ENOMEM, DT_FULL for ENOSPC and EDQUOT, DT_IO otherwise. Returns -1. */
int dt_fail_errno(struct dt_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Puts "fmt...: " before the text that is there; keeps status and blame. Returns -1. */
int dt_wrap(struct dt_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Says who is to blame. Returns -1. */
int dt_blame(struct dt_error *err, enum dt_fault fault, int rank);
/* The error is one that `teller` had: `theirs` is its blame. Of words that were told before, the
 * first teller stays. host: whose host number is named to people; -1: the rank is. Returns -1. */
int dt_blame_heard(struct dt_error *err, const struct dt_blame *theirs, int teller, int host);
/* The whole sentence for people: "rank 3: text (noticed by rank 3)". own: the rank that the
 * reader knows to be meant, which is not named again; -1: none. Returns out. */
const char *dt_blame_words(const struct dt_blame *blame, const char *text, int own, char *out, size_t out_bytes);
enum { DT_WORDS_BYTES = 600 };
/* The whole sentence of an error, as dt_blame_words makes it. Returns out. */
const char *dt_error_words(const struct dt_error *err, char out[DT_WORDS_BYTES]);
/* The blame as numbers for a line of text, "1 3 0 0 0", and its reading: how many bytes were read,
 * 0 when these are none. */
enum { DT_BLAME_BYTES = 64 };
void dt_blame_write(const struct dt_blame *blame, char out[DT_BLAME_BYTES]);
size_t dt_blame_read(const char *text, struct dt_blame *out);
/* Whether numbers that came from outside are a blame. */
bool dt_blame_valid(const struct dt_blame *blame);

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
