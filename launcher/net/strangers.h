/* Hosts that were refused, or said hello and proved nothing: which lines are written about them,
 * and how much of what they say is looked at in a second. Pure; a fixed table, in which a new
 * host takes the place of whoever was quiet longest. The limits for all of them together hold
 * beyond it. A network of IPv6 (/64) counts as one host: whoever is in it has all its addresses.
 * All loopback addresses share what is looked at. */
#ifndef DT_LAUNCHER_NET_STRANGERS_H
#define DT_LAUNCHER_NET_STRANGERS_H

#include <stdbool.h>
#include <sys/socket.h>

enum {
    STRANGERS = 64,
    STRANGERS_LINE_S = 60,        /* one line per host, and so many for all */
    STRANGERS_LINES = 20,         /* in that time */
    STRANGERS_MORE_BYTES = 128,   /* what a line ends with */
    STRANGERS_PER_S = 10,         /* wrong keys of one host that are looked at */
    STRANGERS_HELLOS_PER_S = 500, /* hellos of one host that cost an answer and led to nothing;
                                   * 0.1 ms of CPU each */
    STRANGERS_ALL = 4             /* so many times as much of all hosts together */
};

struct strangers_second { /* what was looked at since it began */
    double since_s;
    int guesses, hellos;
};
struct stranger {
    struct sockaddr_storage host; /* AF_UNSPEC: free */
    double seen_s, line_s;        /* the last refusal; the last line */
    int unsaid;
    struct strangers_second second, proven;
};
struct strangers { /* all zeros: nobody */
    struct stranger list[STRANGERS];
    struct strangers_second all;
    double lines_s; /* when the time began in which lines are counted */
    int lines, hidden;
};

/* One of its connections is refused. True when that may be said: the line then ends with `more`,
 * which tells of those that were not. */
bool strangers_refused(struct strangers *t, const struct sockaddr *host, double now_s, char more[STRANGERS_MORE_BYTES]);
/* A hello that cost us the answer led to nothing: it ended before it proved anything, as agents
 * do now and then, when another connection with the same peer was faster; or (guess) its key was
 * wrong. proven: it names an agent that has proved itself from this host before. */
void strangers_gone(struct strangers *t, const struct sockaddr *host, bool guess, bool proven, double now_s);
/* Whether a hello, or (proof) the proof after it, is looked at now; else it waits: a second
 * later more is. For agents that have proved themselves from this host, as much again is looked
 * at as for strangers there, whatever strangers do. */
bool strangers_may(const struct strangers *t, const struct sockaddr *host, bool proof, bool proven, double now_s);

#endif
