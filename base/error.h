/* Errors: a status and one line of text, written by the function that first knows the cause.
 * Functions that can fail return 0 or -1 and take a `struct dt_error *` last. Outputs are set only
 * on success. */
#ifndef DT_BASE_ERROR_H
#define DT_BASE_ERROR_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dt_status {
    DT_OK = 0,
    /* the input is wrong: option, job key, file content; a retry fails the same way */
    DT_INVALID,
    DT_NOT_FOUND, /* a file, key or host does not exist */
    DT_IO,        /* the operating system refused: permission, broken pipe, disk error */
    DT_TIMEOUT,   /* a deadline has passed; the text says what was awaited */
    DT_PEER,      /* another rank or host is gone */
    DT_STOPPED,   /* stopped on request: the round is over, or a signal came */
    DT_NO_MEMORY, /* not enough memory */
    DT_INTERNAL,  /* a bug in this program */
    DT_FULL,      /* the disk is full or a quota is reached */
    /* another process has the exclusive right; the input is wrong as long as that process runs */
    DT_IN_USE,
    DT_USAGE /* the start is wrong, which shows only when all ranks are there */
};

/* Converts a status from a peer, a store or shared memory. Unknown numbers become DT_INTERNAL, and
 * so does DT_OK, since no failure has it. */
enum dt_status dt_status_of(long number);

/* The rank to blame for an error, as data. The text is only for people; no code decides by it.
 * Ranks are those of the job. All zero: the rank that has the error failed itself, and the text is
 * its own. */
enum dt_fault {
    DT_FAULT_OWN,
    DT_FAULT_FAILED, /* `rank` has failed, and all ranks end with its text */
    DT_FAULT_LOST,   /* `rank` is gone or has given up; its own text is better, if it has one */
    DT_FAULT_COUNT
};

/* Whether another rank has written the text. */
enum dt_told {
    DT_TOLD_NOT,
    DT_TOLD_BY_RANK, /* rank `teller` has */
    DT_TOLD_BY_HOST, /* rank `teller` has, for host number `host` */
    DT_TOLD_COUNT
};

struct dt_blame {
    enum dt_fault fault;
    int rank;
    enum dt_told told;
    int teller, host;
};

/* Bits: what the text of an accelerator's error contains. */
enum dt_device_words {
    DT_DEVICE_FAILED = 1, /* the device or its driver failed, and the text names the device */
    DT_DEVICE_SERIAL = 2, /* the text has its serial number */
    DT_DEVICE_DRIVER = 4  /* the text has the driver's report */
};

struct dt_error {
    enum dt_status status;
    struct dt_blame blame;
    unsigned device; /* enum dt_device_words */
    /* hash of the text before any prefix or suffix: equal for the same event on different ranks */
    uint32_t digest;
    /* `where: what: cause; do this`; no newline, only characters that a terminal shows
     * (base/text.h) */
    char text[512];
};

/* A hash of a text: equal texts have the same, different ones rarely. */
uint32_t dt_digest(const char *text);

/* Sets status and text, and clears the blame; err may be null. Returns -1, so that callers can
 * `return dt_fail(...)`. */
int dt_fail(struct dt_error *err, enum dt_status status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* The same with a va_list. */
int dt_fail_v(struct dt_error *err, enum dt_status status, const char *fmt, va_list args)
    __attribute__((format(printf, 3, 0)));
/* Sets the text to "fmt...: strerror(errno)"; status DT_NOT_FOUND for ENOENT, DT_NO_MEMORY for
 * ENOMEM, DT_FULL for ENOSPC and EDQUOT, DT_IO otherwise. Returns -1. */
int dt_fail_errno(struct dt_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Puts "fmt...: " before the text. Keeps status and blame. Returns -1. */
int dt_wrap(struct dt_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Sets the blame. Returns -1. */
int dt_blame(struct dt_error *err, enum dt_fault fault, int rank);
/* Marks an error as heard from rank `teller`; `theirs` is its blame. If `teller` has heard it from
 * another rank, that rank stays the teller. host: the host to name to people; -1: name the rank.
 * Returns -1. */
int dt_blame_heard(struct dt_error *err, const struct dt_blame *theirs, int teller, int host);
/* Makes the sentence for people: "rank 3: text (noticed by rank 3)". own: a rank that the reader
 * already knows, so it is not named; -1: none. Returns out. */
const char *dt_blame_words(const struct dt_blame *blame, const char *text, int own, char *out, size_t out_bytes);
enum { DT_WORDS_BYTES = 600 };
/* Makes the sentence for people from an error, like dt_blame_words. Returns out. */
const char *dt_error_words(const struct dt_error *err, char out[DT_WORDS_BYTES]);
/* The blame as numbers in a line of text, "1 3 0 0 0", and the reverse, which returns the number of
 * bytes read; 0: this is no blame. */
enum { DT_BLAME_BYTES = 64 };
void dt_blame_write(const struct dt_blame *blame, char out[DT_BLAME_BYTES]);
size_t dt_blame_read(const char *text, struct dt_blame *out);
/* True if a blame from another process has valid numbers. */
bool dt_blame_valid(const struct dt_blame *blame);

/* Exit codes of our programs (docs/architecture.md lists them). */
enum dt_exit {
    DT_EXIT_DONE = 0,
    DT_EXIT_FAILED = 1,      /* a worker has failed and no restart is left */
    DT_EXIT_USAGE = 2,       /* wrong option, job or environment; nothing was started */
    DT_EXIT_STOPPED = 75,    /* stopped on request, state saved: the same command continues */
    DT_EXIT_PERMANENT = 100, /* a retry fails the same way */
    DT_EXIT_TEMPORARY = 111  /* a retry may work */
};

#endif
