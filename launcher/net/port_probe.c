#include "launcher/net/port_probe.h"

#include "base/clock.h"
#include "base/text.h"
#include "launcher/net/lookup.h"

#include <stdlib.h>

struct port_probe {
    struct port_probe *next, **list;
    uv_tcp_t handle;
    uv_timer_t timer;
    uv_connect_t request;
    int handles;
    uint64_t peer;
    port_probe_done *done;
    void *user;
};

static void on_closed(uv_handle_t *handle)
{
    struct port_probe *k = handle->data;
    if (--k->handles == 0) {
        free(k);
    }
}

/* Removes the probe from its list and closes its handles. False if it had ended before. */
static bool end(struct port_probe *k)
{
    if (k->list == NULL) {
        return false;
    }
    struct port_probe **place = k->list;
    while (*place != k) {
        place = &(*place)->next;
    }
    *place = k->next;
    k->list = NULL;
    uv_close((uv_handle_t *)&k->handle, on_closed);
    uv_close((uv_handle_t *)&k->timer, on_closed);
    return true;
}

static void answer(struct port_probe *k, enum port_probe_end how)
{
    if (end(k)) {
        k->done(k->user, k->peer, how);
    }
}

static void on_connect(uv_connect_t *request, int status)
{
    answer(request->data, status == 0 ? PORT_OPEN : status == UV_ECONNREFUSED ? PORT_REFUSED : PORT_SILENT);
}

static void on_timer(uv_timer_t *timer)
{
    answer(timer->data, PORT_SILENT);
}

void port_probe_open(struct port_probe **list, uv_loop_t *loop, uint64_t peer, const char *address, int port,
                     double timeout_s, port_probe_done *done, void *user)
{
    struct lookup_list to;
    struct dt_error ignored;
    struct port_probe *k = dt_alloc(sizeof *k);
    *k = (struct port_probe){.next = *list, .list = list, .handles = 2, .peer = peer, .done = done, .user = user};
    *list = k;
    (void)uv_tcp_init(loop, &k->handle);
    (void)uv_timer_init(loop, &k->timer);
    k->handle.data = k->timer.data = k->request.data = k;
    bool begun = lookup_now(address, port, &to, &ignored) == 0 && to.count > 0 &&
                 uv_tcp_connect(&k->request, &k->handle, (const struct sockaddr *)&to.addresses[0], on_connect) == 0;
    uv_update_time(loop);
    (void)uv_timer_start(&k->timer, on_timer, begun ? dt_milliseconds(timeout_s) : 0, 0);
}

void port_probe_close_all(struct port_probe **list)
{
    while (*list != NULL) {
        (void)end(*list);
    }
}
