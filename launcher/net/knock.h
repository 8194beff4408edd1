/* Whether somebody listens at an address: a connection that is begun and closed at once. Not to
 * be confused with link.h: nothing is said. */
#ifndef DT_LAUNCHER_NET_KNOCK_H
#define DT_LAUNCHER_NET_KNOCK_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct knock;

enum knock_end { KNOCK_OPEN, KNOCK_REFUSED, KNOCK_SILENT /* unreachable, or no answer in time */ };
typedef void knock_done(void *user, uint64_t peer, enum knock_end end);

/* Calls `done` once, from the loop. address: numeric. *list holds those under way; the caller's,
 * null at first. */
void knock_open(struct knock **list, uv_loop_t *loop, uint64_t peer, const char *address, int port, double timeout_s,
                knock_done *done, void *user);
/* Gives all up: `done` is not called. Run the loop until their handles are closed. */
void knock_close_all(struct knock **list);

#endif
