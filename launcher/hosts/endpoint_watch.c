/* One timer. Each try checks again whether the address is local, because the address of a service
 * may move between machines. */
#include "launcher/hosts/endpoint_watch.h"

#include "base/log.h"
#include "base/text.h"
#include "launcher/net/endpoint.h"

#include <stdlib.h>

struct endpoint_watch {
    struct endpoint_watch_options options;
    uv_loop_t *loop;
    uv_timer_t timer;
    struct lookup *lookup;   /* the running look-up, or null */
    struct lookup_list list; /* count 0: not known yet */
};

static void on_lookup(void *user, const struct lookup_list *list, const struct dt_error *err)
{
    struct endpoint_watch *c = user;
    c->lookup = NULL;
    if (list != NULL) {
        c->list = *list;
        (void)uv_timer_again(&c->timer);
    } else {
        dt_log(DT_LOG_DEBUG, "endpoint", "%s", err->text);
    }
}

static void on_try(uv_timer_t *timer)
{
    struct endpoint_watch *c = timer->data;
    struct dt_error err;
    int fd = -1;
    if (c->list.count == 0) {
        if (c->lookup == NULL && lookup_open(&c->lookup, c->loop, c->options.host, c->options.port, c->options.resolver,
                                             on_lookup, c, &err) != 0) {
            dt_log(DT_LOG_DEBUG, "endpoint", "%s", err.text);
        }
        return;
    }
    if (endpoint_take(&c->list, c->options.port, &fd, &err) != 0) {
        dt_log(DT_LOG_DEBUG, "endpoint", "%s", err.text);
        return;
    }
    (void)uv_timer_stop(timer);
    c->options.got(c->options.user, fd, &c->list);
}

void endpoint_watch_open(struct endpoint_watch **out, uv_loop_t *loop, const struct endpoint_watch_options *options,
                         const struct lookup_list *list)
{
    struct endpoint_watch *c = dt_alloc(sizeof *c);
    *c = (struct endpoint_watch){.options = *options, .loop = loop};
    if (list != NULL) {
        c->list = *list;
    }
    (void)uv_timer_init(loop, &c->timer);
    c->timer.data = c;
    uint64_t every_ms = (uint64_t)((options->every_s > 0 ? options->every_s : 1) * 1e3) + 1;
    (void)uv_timer_start(&c->timer, on_try, list != NULL ? every_ms : 0, every_ms);
    *out = c;
}

static void on_closed(uv_handle_t *handle)
{
    free(handle->data);
}

void endpoint_watch_close(struct endpoint_watch *c)
{
    if (c->lookup != NULL) {
        lookup_close(c->lookup);
    }
    uv_close((uv_handle_t *)&c->timer, on_closed);
}
