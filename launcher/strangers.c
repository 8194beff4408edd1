/* See strangers.h. */
#include "launcher/strangers.h"

#include "launcher/lookup.h"

#include <stdio.h>
#include <string.h>

static const struct stranger *find(const struct strangers *t, const struct sockaddr *host)
{
    for (int i = 0; i < STRANGERS; i++) {
        const struct stranger *s = &t->list[i];
        if (s->host.ss_family != AF_UNSPEC && lookup_same_host((const struct sockaddr *)&s->host, host)) {
            return s;
        }
    }
    return NULL;
}

static struct stranger *add(struct strangers *t, const struct sockaddr *host, double now_s)
{
    struct stranger *quiet = &t->list[0];
    for (int i = 0; i < STRANGERS; i++) {
        struct stranger *s = &t->list[i];
        if (s->host.ss_family == AF_UNSPEC) {
            quiet = s;
            break;
        }
        quiet = s->seen_s < quiet->seen_s ? s : quiet;
    }
    *quiet = (struct stranger){.window_s = now_s, .line_s = -STRANGERS_LINE_S};
    memcpy(&quiet->host, host, lookup_size(host));
    return quiet;
}

/* The entry of a host that has just been seen; a second that is over is counted anew. */
static struct stranger *seen(struct strangers *t, const struct sockaddr *host, double now_s)
{
    const struct stranger *known = find(t, host);
    struct stranger *s = known != NULL ? &t->list[known - t->list] : add(t, host, now_s);
    s->seen_s = now_s;
    if (now_s - s->window_s >= 1) {
        s->window_s = now_s;
        s->in_window = s->hellos = 0;
    }
    return s;
}

void strangers_gone(struct strangers *t, const struct sockaddr *host, double now_s)
{
    seen(t, host, now_s)->hellos++;
}

bool strangers_refused(struct strangers *t, const struct sockaddr *host, bool guess, double now_s, int *unsaid)
{
    struct stranger *s = seen(t, host, now_s);
    s->in_window += guess;
    *unsaid = s->unsaid;
    bool say = now_s - s->line_s >= STRANGERS_LINE_S;
    s->line_s = say ? now_s : s->line_s;
    s->unsaid = say ? 0 : s->unsaid + 1;
    return say;
}

const char *strangers_more(int unsaid, char out[48])
{
    (void)snprintf(out, 48, unsaid > 0 ? "; since the last line %d more" : "", unsaid);
    return out;
}

bool strangers_is_pushy(const struct strangers *t, const struct sockaddr *host, double now_s)
{
    const struct stranger *s = find(t, host);
    return s != NULL && now_s - s->window_s < 1 && (s->in_window >= STRANGERS_PER_S || s->hellos >= STRANGERS_HELLOS_PER_S);
}
