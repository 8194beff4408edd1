/* Between hosts.c and the two kinds of hosts only. */
#ifndef DT_LAUNCHER_HOSTS_HOSTS_PRIVATE_H
#define DT_LAUNCHER_HOSTS_HOSTS_PRIVATE_H

#include "launcher/hosts/hosts.h"

struct hosts_ops { /* hosts.h says what each does; null: nothing to do, or nobody to ask */
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

struct hosts { /* the first member of either kind */
    const struct hosts_ops *ops;
    const struct options *o;
    struct hosts_hooks hooks;
    struct store_server *store; /* null until it is open */
};

/* hosts_open for one host, and for several. */
int alone_open(struct hosts **out, uv_loop_t *loop, const struct options *o, const struct hosts_hooks *hooks,
               struct dt_error *err);
int several_open(struct hosts **out, uv_loop_t *loop, const struct options *o, const struct hosts_hooks *hooks,
                 struct dt_error *err);

#endif
