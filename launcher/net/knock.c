#include "launcher/net/knock.h"

#include "base/text.h"
#include "launcher/net/lookup.h"

#include <stdlib.h>

struct knock {
    struct knock *next, **list;
    uv_tcp_t handle;
    uv_timer_t timer;
    uv_connect_t request;
    int handles;
    uint64_t peer;
    knock_done *done;
    void *user;
};

static void on_closed(uv_handle_t *handle)
{
    struct knock *k = handle->data;
    if (--k->handles == 0) {
        free(k);
    }
}

/* Takes it out of the list and closes it; once. */
static bool end(struct knock *k)
{
    if (k->list == NULL) {
        return false;
    }
    struct knock **place = k->list;
    while (*place != k) {
        place = &(*place)->next;
    }
    *place = k->next;
    k->list = NULL;
    uv_close((uv_handle_t *)&k->handle, on_closed);
    uv_close((uv_handle_t *)&k->timer, on_closed);
    return true;
}

static void answer(struct knock *k, enum knock_end how)
{
    if (end(k)) {
        k->done(k->user, k->peer, how);
    }
}

static void on_connect(uv_connect_t *request, int status)
{
    answer(request->data, status == 0 ? KNOCK_OPEN : status == UV_ECONNREFUSED ? KNOCK_REFUSED : KNOCK_SILENT);
}

static void on_timer(uv_timer_t *timer)
{
    answer(timer->data, KNOCK_SILENT);
}

void knock_open(struct knock **list, uv_loop_t *loop, uint64_t peer, const char *address, int port, double timeout_s,
                knock_done *done, void *user)
{
    struct lookup_list to;
    struct dt_error ignored;
    struct knock *k = dt_alloc(sizeof *k);
    *k = (struct knock){.next = *list, .list = list, .handles = 2, .peer = peer, .done = done, .user = user};
    *list = k;
    (void)uv_tcp_init(loop, &k->handle);
    (void)uv_timer_init(loop, &k->timer);
    k->handle.data = k->timer.data = k->request.data = k;
    bool begun = lookup_now(address, port, &to, &ignored) == 0 && to.count > 0 &&
                 uv_tcp_connect(&k->request, &k->handle, (const struct sockaddr *)&to.addresses[0], on_connect) == 0;
    uv_update_time(loop);
    (void)uv_timer_start(&k->timer, on_timer, begun ? (uint64_t)(timeout_s * 1e3) + 1 : 0, 0);
}

void knock_close_all(struct knock **list)
{
    while (*list != NULL) {
        (void)end(*list);
    }
}
