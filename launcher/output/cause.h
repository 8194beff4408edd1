/* Why a round ended, as data: what agents tell each other, and decide by. The words for people are
 * made from it here. */
#ifndef DT_LAUNCHER_OUTPUT_CAUSE_H
#define DT_LAUNCHER_OUTPUT_CAUSE_H

#include "base/error.h"
#include "base/text.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum cause_kind {
    CAUSE_NONE,
    CAUSE_PEER,   /* a worker lost its peers: somebody will say more */
    CAUSE_HOST,   /* a host came, or was lost */
    CAUSE_FAILED, /* a worker failed, or could not be started */
    CAUSE_KIND_COUNT
};

enum { CAUSE_HOST_BYTES = 256, CAUSE_WORDS_BYTES = 512, CAUSE_NEXT_BYTES = 160 };

struct cause {
    enum cause_kind kind;
    /* the worker that ended; rank -1: none did, and the words name the host */
    char host[CAUSE_HOST_BYTES];
    int rank, local_rank;
    pid_t pid;
    int exit_code;      /* negative: killed by that signal */
    bool stopped_by_us; /* it was told to end, and failed meanwhile */
    int64_t step;       /* in which it ended; -1: before the first, or unknown */
    struct dt_blame blame;
    uint32_t digest;               /* dt_digest of what happened, whoever it happened to */
    bool whole;                    /* the words say how it ended; else code or signal go before */
    char words[CAUSE_WORDS_BYTES]; /* what happened; one line, or "" */
    char next[CAUSE_NEXT_BYTES];   /* what comes of it, "going on with 2 of 3 hosts"; or "" */
};

/* What happened to the worker, "exit code 3: words", "killed by signal 9 (SIGKILL)". */
void cause_add_what(const struct cause *c, struct dt_text *out);
/* Without what comes of it: "host b rank 5 (local 1, pid 4242): exit code 3: words". */
void cause_add_line(const struct cause *c, struct dt_text *out);
/* A rank of this cause only has what another rank told it. */
bool cause_is_heard(const struct cause *c);
/* Two workers ended alike: the same happened to both, whatever their ranks. */
bool cause_alike(const struct cause *a, const struct cause *b);

#endif
