/* See the header. */
#include "kernels/cuda/dnn_cache.h"

#include "kernels/device.h"

#include "base/log.h"
#include "base/text.h"

#include <stdlib.h>

static struct dt_dnn_cache *open_cache(struct dt_dnn_caches *all, struct dt_device *d)
{
    struct dt_dnn_cache *c = dt_alloc(sizeof *c);
    struct dt_error err = {0};
    c->device = d;
    c->api = dt_dnn_start(&c->handle, &c->failed, &err);
    if (c->api == NULL) {
        dt_log(DT_LOG_WARN, all->name, "%s; %s on kernels of our own", err.text, all->runs);
    }
    char *of = dt_plan_file_device(d->options.index, "cuDNN", c->api != NULL ? c->api->cudnnGetVersion() : 0);
    c->file = dt_plan_file_open(all->kind, of);
    free(of);
    c->next = all->first;
    all->first = c;
    return c;
}

struct dt_dnn_cache *dt_dnn_cache_enter(struct dt_dnn_caches *all, struct dt_device *d)
{
    (void)pthread_mutex_lock(&all->lock);
    struct dt_dnn_cache *c = all->first;
    while (c != NULL && c->device != d) {
        c = c->next;
    }
    return c != NULL ? c : open_cache(all, d);
}

void dt_dnn_cache_leave(struct dt_dnn_caches *all)
{
    (void)pthread_mutex_unlock(&all->lock);
}

void dt_dnn_cache_forget(const struct dt_dnn_caches *all, struct dt_dnn_cache *c)
{
    while (c->plans != NULL) {
        c->plans = all->drop(c->api, c->plans);
    }
}

void dt_dnn_cache_close(struct dt_dnn_caches *all, struct dt_device *d)
{
    (void)pthread_mutex_lock(&all->lock);
    struct dt_dnn_cache **at = &all->first;
    while (*at != NULL && (*at)->device != d) {
        at = &(*at)->next;
    }
    struct dt_dnn_cache *c = *at;
    if (c != NULL) {
        *at = c->next;
        dt_dnn_cache_forget(all, c);
        dt_plan_file_close(c->file);
        if (c->handle != NULL) {
            (void)c->api->cudnnDestroy(c->handle);
        }
        free(c);
    }
    (void)pthread_mutex_unlock(&all->lock);
}

bool dt_dnn_cache_take(struct dt_dnn_caches *all, struct dt_device *d, const char *told, bool keep)
{
    struct dt_dnn_cache *c = dt_dnn_cache_enter(all, d);
    bool taken = dt_plan_file_take(c->file, told, keep);
    if (taken) {
        dt_dnn_cache_forget(all, c);
    }
    dt_dnn_cache_leave(all);
    return taken;
}

void dt_dnn_cache_none(struct dt_dnn_caches *all, struct dt_device *d)
{
    struct dt_dnn_cache *c = dt_dnn_cache_enter(all, d);
    dt_plan_file_forget(c->file);
    dt_dnn_cache_forget(all, c);
    dt_dnn_cache_leave(all);
}
