/* Limits the log lines about, and the work for, hosts that were refused or that said hello and
 * proved nothing. Pure. A fixed table, in which a new host replaces the host that was quiet
 * longest. Limits for all hosts together also hold for hosts that have left the table. An IPv6
 * network (/64) counts as one host, because a host there can use all its addresses. All loopback
 * addresses share one budget. */
#ifndef DT_LAUNCHER_NET_STRANGERS_H
#define DT_LAUNCHER_NET_STRANGERS_H

#include <stdbool.h>
#include <sys/socket.h>

enum {
    STRANGERS = 64,
    STRANGERS_LINE_S = 60,      /* one line per host in this time */
    STRANGERS_LINES = 20,       /* lines for all hosts in the same time */
    STRANGERS_MORE_BYTES = 128, /* size of the text that ends a line */
    STRANGERS_PER_S = 10,       /* wrong keys of one host that are checked in a second */
    /* hellos of one host in a second that got an answer and led to nothing; each costs 0.1 ms of
     * CPU */
    STRANGERS_HELLOS_PER_S = 500,
    /* the limits for all hosts together are so many times those of one */
    STRANGERS_ALL = 4
};

struct strangers_second { /* counts of the second that began at since_s */
    double since_s;
    int guesses, hellos;
};
struct stranger {
    struct sockaddr_storage host; /* AF_UNSPEC: a free entry */
    double seen_s, line_s;        /* times of the last refusal and of the last line */
    int unsaid;
    struct strangers_second second, proven;
};
struct strangers { /* all zeros at first */
    struct stranger list[STRANGERS];
    struct strangers_second all;
    double lines_s; /* begin of the period in which lines are counted */
    int lines, hidden;
};

/* Records a refused connection. True when the caller may log it: the line then ends with `more`,
 * which tells how many were not logged. */
bool strangers_refused(struct strangers *t, const struct sockaddr *host, double now_s, char more[STRANGERS_MORE_BYTES]);
/* Records a hello that got our answer and led to nothing. Either its key was wrong (guess), or
 * it ended before it proved anything; agents do so now and then, when another connection with
 * the same peer was faster. proven: the hello names an agent that has proved itself from this
 * host before. */
void strangers_gone(struct strangers *t, const struct sockaddr *host, bool guess, bool proven, double now_s);
/* Whether a hello, or with `proof` the proof after it, may be handled now. Else it waits for the
 * next second. Agents that have proved themselves from this host have their own budget, as large as
 * the strangers' and untouched by them. */
bool strangers_may(const struct strangers *t, const struct sockaddr *host, bool proof, bool proven, double now_s);

#endif
