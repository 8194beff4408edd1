#include "launcher/hosts/hosts_private.h"

int hosts_open(struct hosts **out, uv_loop_t *loop, const struct options *o, const struct hosts_hooks *hooks,
               struct dt_error *err)
{
    return (o->nnodes_max > 1 ? several_open : alone_open)(out, loop, o, hooks, err);
}

void hosts_tell(struct hosts *h, const struct event *e)
{
    h->ops->tell(h, e);
}

struct hosts_view hosts_view(const struct hosts *h)
{
    return h->ops->view(h);
}

struct hosts_cause hosts_cause(const struct hosts *h, int round)
{
    return h->ops->cause != NULL ? h->ops->cause(h, round) : (struct hosts_cause){0};
}

struct store_server *hosts_store(const struct hosts *h)
{
    return h->store;
}

bool hosts_gather(struct hosts *h)
{
    return h->ops->gather != NULL && h->ops->gather(h);
}

void hosts_status(const struct hosts *h, struct dt_text *out)
{
    h->ops->status(h, out);
}

void hosts_rows(const struct hosts *h, struct dt_text *out)
{
    if (h->ops->rows != NULL) {
        h->ops->rows(h, out);
    }
}

void hosts_await_others(struct hosts *h)
{
    if (h->ops->await_others != NULL) {
        h->ops->await_others(h);
    }
}

void hosts_close(struct hosts *h)
{
    if (h != NULL) {
        h->ops->close(h);
    }
}

void hosts_free(struct hosts *h)
{
    if (h != NULL) {
        h->ops->free(h);
    }
}
