/* Between the launching host of --hostfile and the agents on the others: the standard input of
 * each agent, which ssh keeps open. It carries what must not stand in a command line (the key,
 * variables), then signals; its end, or a silence, means that nobody waits for this host any
 * more. Records end with a NUL byte: "env NAME=VALUE", "key TEXT", "sign TEXT", "go"; then
 * "signal N" and "beat". At its end the agent signs its exit code on its outputs: whatever else
 * ended with 0 in its place, such as a login file, was no agent. */
#ifndef DT_LAUNCHER_SSH_LEASH_H
#define DT_LAUNCHER_SSH_LEASH_H

#include "base/error.h"
#include "base/text.h"

#include <stdbool.h>
#include <uv.h>

#define LEASH_BEATS 3 /* so many beats may be missing */

/* Agent, before anything else: takes standard input away from the workers, reads up to "go" (at
 * most 60 s), puts the variables into our environment. *fd: for leash_watch; key_path: a file
 * without a name that keeps the key, "" when no key came. */
int leash_open(int *fd, char key_path[64], struct dt_error *err);
/* Empties that file, which the workers could reach: once the key has been read. */
void leash_forget_key(const char *key_path);

/* of the text that comes with "sign": hexadecimal digits and NUL */
#define LEASH_SIGN_BYTES 33
/* what a line ends with that signs: this, the text, a space, the exit code */
#define LEASH_SIGN "dtrun-ended "
/* Agent, last of all: signs its exit code. Nothing without a leash. */
void leash_sign(int code);

struct leash {
    int fd;
    uv_poll_t input;
    uv_timer_t silence;
    uint64_t silence_ms;
    struct dt_text text;                         /* an unfinished record */
    void (*signal)(void *user, int number);      /* the launching host passes one on */
    void (*gone)(void *user, const char *cause); /* once: it is gone */
    void *user;                                  /* not null; null after a failed leash_watch:
                                                  * nothing to close */
};
/* Watches fd on the loop; silence_s: longest time without a record. l is zeroed but for the
 * hooks. */
int leash_watch(struct leash *l, uv_loop_t *loop, int fd, double silence_s, struct dt_error *err);
void leash_close(struct leash *l);

/* Launching host: appends a record. */
void leash_put(struct dt_text *out, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
