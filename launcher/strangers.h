/* Hosts that were refused: one line per host and minute, and how many keys it tried within a second. Pure; a fixed table, in
 * which a new host takes the place of whoever was quiet longest. */
#ifndef DT_LAUNCHER_STRANGERS_H
#define DT_LAUNCHER_STRANGERS_H

#include <stdbool.h>
#include <sys/socket.h>

enum { STRANGERS = 64, STRANGERS_PER_S = 10, STRANGERS_HELLOS_PER_S = 100, STRANGERS_LINE_S = 60 };

struct stranger {
    struct sockaddr_storage host;    /* AF_UNSPEC: free */
    double seen_s, line_s, window_s; /* the last refusal; the last line; when the second began in which we count */
    int in_window, hellos, unsaid;
};
struct strangers { /* all zeros: nobody */
    struct stranger list[STRANGERS];
};

/* One of its connections is refused; guess: it tried a key. True when that may be said; *unsaid: refusals since the last line. */
bool strangers_refused(struct strangers *t, const struct sockaddr *host, bool guess, double now_s, int *unsaid);
/* "; since the last line 3 more", or "". Returns out. */
const char *strangers_more(int unsaid, char out[48]);
/* One of its connections said hello, cost us the answer, and ended before it proved anything. Agents do so now and then, when another connection
 * with the same peer was faster: there may be more of these than of wrong keys, and no line is said. */
void strangers_gone(struct strangers *t, const struct sockaddr *host, double now_s);
/* As many guesses, or such hellos, came within this second as are looked at: the next one may be closed at once. */
bool strangers_is_pushy(const struct strangers *t, const struct sockaddr *host, double now_s);

#endif
