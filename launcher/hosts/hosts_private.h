/* Interface between hosts.c and its two implementations. */
#ifndef DT_LAUNCHER_HOSTS_HOSTS_PRIVATE_H
#define DT_LAUNCHER_HOSTS_HOSTS_PRIVATE_H

#include "launcher/hosts/hosts.h"

struct hosts_ops { /* hosts.h describes each function. Null: nothing to do, or no host to ask. */
    void (*tell)(struct hosts *h, const struct event *e);
    struct hosts_view (*view)(const struct hosts *h);
    struct hosts_cause (*cause)(const struct hosts *h, int round);
    bool (*gather)(struct hosts *h);
    void (*status)(const struct hosts *h, struct dt_text *out);
    void (*rows)(const struct hosts *h, struct dt_text *out);
    void (*await_others)(struct hosts *h);
    void (*close)(struct hosts *h);
    void (*free)(struct hosts *h);
};

struct hosts { /* the first member of each implementation */
    const struct hosts_ops *ops;
    const struct options *o;
    struct hosts_hooks hooks;
    struct store_server *store; /* null before it is open */
};

/* hosts_open for one host; for several hosts. */
int alone_open(struct hosts **out, uv_loop_t *loop, const struct options *o, const struct hosts_hooks *hooks,
               struct dt_error *err);
int several_open(struct hosts **out, uv_loop_t *loop, const struct options *o, const struct hosts_hooks *hooks,
                 struct dt_error *err);

#endif
