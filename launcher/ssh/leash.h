/* The leash: the standard input of an agent under --hostfile, which ssh keeps open to the launching
 * host. The leash carries what a command line must not show (the key, variables), then signals.
 * When the leash ends or falls silent, the launching host is gone and the agent ends.
 * Records end with a NUL byte. The opening is "env NAME=VALUE", "key TEXT", "sign TEXT" and "go";
 * then come "signal N" and "beat".
 * An agent writes a line with its exit code as it ends (leash_sign). Without this line, exit code 0
 * comes from another program, such as a login file, and not from an agent. */
#ifndef DT_LAUNCHER_SSH_LEASH_H
#define DT_LAUNCHER_SSH_LEASH_H

#include "base/error.h"
#include "base/text.h"

#include <stdbool.h>
#include <uv.h>

#define LEASH_BEATS 3 /* the agent ends after so many missing beats */

/* Agent, first of all: takes standard input away from the workers, reads the records up to "go" (at
 * most 60 s), and puts the variables into the environment. *fd is for leash_watch. key_path names
 * an anonymous file with the key, "" when no key came. */
int leash_open(int *fd, char key_path[64], struct dt_error *err);
/* Empties the file at key_path, because workers could open it. Call this once the key has been
 * read. */
void leash_forget_key(const char *key_path);

/* size of the text after "sign": hexadecimal digits and NUL */
#define LEASH_SIGN_BYTES 33
/* A signed line ends with: this, the text, a space, the exit code. */
#define LEASH_SIGN "dtrun-ended "
/* Agent, last of all: writes its exit code as a signed line. Does nothing without a leash. */
void leash_sign(int code);

struct leash {
    int fd;
    uv_poll_t input;
    uv_timer_t silence;
    uint64_t silence_ms;
    struct dt_text text;                    /* an unfinished record */
    void (*signal)(void *user, int number); /* a signal from the launching host */
    /* called once, when the leash has ended or is silent */
    void (*gone)(void *user, const char *cause);
    /* null after a failed leash_watch: nothing to close */
    void *user;
};
/* Watches fd on the loop. silence_s: longest time without a record. The caller sets the hooks and
 * zeroes the rest. */
int leash_watch(struct leash *l, uv_loop_t *loop, int fd, double silence_s, struct dt_error *err);
void leash_close(struct leash *l);

/* Launching host: appends a record to out. */
void leash_put(struct dt_text *out, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
