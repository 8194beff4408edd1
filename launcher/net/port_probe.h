/* Tells whether a process listens at an address, by a connection that is closed at once. No bytes
 * are sent; the probes of link.h do speak. */
#ifndef DT_LAUNCHER_NET_PORT_PROBE_H
#define DT_LAUNCHER_NET_PORT_PROBE_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct port_probe;

enum port_probe_end { PORT_OPEN, PORT_REFUSED, PORT_SILENT /* unreachable, or no answer in time */ };
typedef void port_probe_done(void *user, uint64_t peer, enum port_probe_end end);

/* Begins a probe; `done` is called once, from the loop. address: numeric. *list is the caller's
 * list of running probes, null at first. */
void port_probe_open(struct port_probe **list, uv_loop_t *loop, uint64_t peer, const char *address, int port,
                     double timeout_s, port_probe_done *done, void *user);
/* Cancels all probes: `done` is not called. Run the loop until their handles are closed. */
void port_probe_close_all(struct port_probe **list);

#endif
