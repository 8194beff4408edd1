/* The thread and the loop share one small struct with two references. The thread touches the loop
 * only by uv_async_send under the mutex, and not once `async` is null. So the loop can end while a
 * resolver still runs. */
#include "launcher/net/lookup.h"

#include "base/clock.h"
#include "base/text.h"
#include "collectives/net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct shared {
    pthread_mutex_t mutex;
    pthread_cond_t ready; /* for lookup_within, which blocks */
    bool done;
    int references;
    uv_async_t *async; /* null: no loop waits for the result */
    lookup_resolver *resolver;
    char *host;
    int port;
    int rc; /* result of the look-up */
    struct lookup_list list;
    struct dt_error err;
};

struct lookup {
    uv_async_t async;
    struct shared *shared;
    lookup_done *done; /* null: cancelled */
    void *user;
};

/* ---- addresses ---- */

socklen_t lookup_size(const struct sockaddr *a)
{
    return a->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
}

int lookup_port(const struct sockaddr *a)
{
    return ntohs(a->sa_family == AF_INET6 ? ((const struct sockaddr_in6 *)(const void *)a)->sin6_port
                                          : ((const struct sockaddr_in *)(const void *)a)->sin_port);
}

void lookup_set_port(struct sockaddr *a, int port)
{
    *(a->sa_family == AF_INET6 ? &((struct sockaddr_in6 *)(void *)a)->sin6_port
                               : &((struct sockaddr_in *)(void *)a)->sin_port) = htons((uint16_t)port);
}

void lookup_unmap(struct sockaddr_storage *a)
{
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)(const void *)a;
    if (a->ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&six->sin6_addr)) {
        struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = six->sin6_port};
        memcpy(&four.sin_addr, six->sin6_addr.s6_addr + 12, 4);
        *a = (struct sockaddr_storage){0};
        memcpy(a, &four, sizeof four);
    }
}

void lookup_bytes(const struct sockaddr *a, uint8_t out[16])
{
    if (a->sa_family == AF_INET6) {
        memcpy(out, &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr, 16);
    } else {
        memset(out, 0, 10);
        memset(out + 10, 0xff, 2);
        memcpy(out + 12, &((const struct sockaddr_in *)(const void *)a)->sin_addr, 4);
    }
}

static struct sockaddr_storage plain(const struct sockaddr *a)
{
    struct sockaddr_storage copy = {0};
    memcpy(&copy, a, lookup_size(a));
    lookup_unmap(&copy);
    return copy;
}

char *lookup_host(const struct sockaddr *a, char *out, size_t out_bytes)
{
    struct sockaddr_storage copy = plain(a);
    if ((copy.ss_family != AF_INET && copy.ss_family != AF_INET6) ||
        getnameinfo((struct sockaddr *)&copy, lookup_size((struct sockaddr *)&copy), out, (socklen_t)out_bytes, NULL, 0,
                    NI_NUMERICHOST) != 0) {
        (void)snprintf(out, out_bytes, "?");
    }
    return out;
}

char *lookup_name(const struct sockaddr *a, char *out, size_t out_bytes)
{
    char host[LOOKUP_NAME_BYTES];
    return dt_net_name(lookup_host(a, host, sizeof host), lookup_port(a), out, out_bytes);
}

bool lookup_same_host(const struct sockaddr *a, const struct sockaddr *b)
{
    struct sockaddr_storage x = plain(a), y = plain(b);
    if (x.ss_family != y.ss_family) {
        return false;
    }
    if (x.ss_family == AF_INET6) {
        const struct sockaddr_in6 *p = (const struct sockaddr_in6 *)(const void *)&x,
                                  *q = (const struct sockaddr_in6 *)(const void *)&y;
        return memcmp(&p->sin6_addr, &q->sin6_addr, sizeof p->sin6_addr) == 0 &&
               (p->sin6_scope_id == q->sin6_scope_id || p->sin6_scope_id == 0 || q->sin6_scope_id == 0);
    }
    return ((const struct sockaddr_in *)(const void *)&x)->sin_addr.s_addr ==
           ((const struct sockaddr_in *)(const void *)&y)->sin_addr.s_addr;
}

void lookup_order(struct lookup_list *list)
{
    struct lookup_list in = {0}, out = {0};
    for (int i = 0; i < list->count; i++) {
        bool again = false;
        for (int k = 0; k < in.count && !again; k++) {
            again = lookup_same_host((struct sockaddr *)&in.addresses[k], (struct sockaddr *)&list->addresses[i]);
        }
        if (!again) {
            in.addresses[in.count++] = list->addresses[i];
        }
    }
    int family = in.count > 0 ? in.addresses[0].ss_family : AF_UNSPEC;
    bool used[LOOKUP_MAX] = {false};
    while (out.count < in.count) {
        int pick = -1, other = -1;
        for (int i = in.count - 1; i >= 0; i--) {
            if (!used[i]) {
                *(in.addresses[i].ss_family == family ? &pick : &other) = i;
            }
        }
        pick = pick >= 0 ? pick : other;
        used[pick] = true;
        out.addresses[out.count++] = in.addresses[pick];
        family = in.addresses[pick].ss_family == AF_INET6 ? AF_INET : AF_INET6;
    }
    *list = out;
}

/* ---- look-ups ---- */

static int look_up(lookup_resolver *resolver, const char *host, int port, struct lookup_list *out, struct dt_error *err)
{
    char service[16];
    (void)snprintf(service, sizeof service, "%d", port);
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV},
                    *found = NULL;
    int code = resolver(host, service, &hints, &found);
    if (code != 0) {
        return dt_fail(err, DT_NOT_FOUND, "%s: name look-up: %s", host,
                       code == EAI_SYSTEM ? strerror(errno) : gai_strerror(code));
    }
    *out = (struct lookup_list){0};
    for (const struct addrinfo *a = found; a != NULL && out->count < LOOKUP_MAX; a = a->ai_next) {
        if (a->ai_family == AF_INET || a->ai_family == AF_INET6) {
            memcpy(&out->addresses[out->count++], a->ai_addr, a->ai_addrlen);
        }
    }
    freeaddrinfo(found);
    if (out->count == 0) {
        return dt_fail(err, DT_NOT_FOUND, "%s: name look-up: no IPv4 or IPv6 address", host);
    }
    lookup_order(out);
    return 0;
}

int lookup_now(const char *host, int port, struct lookup_list *out, struct dt_error *err)
{
    return look_up(getaddrinfo, host, port, out, err);
}

static void release(struct shared *s)
{
    (void)pthread_mutex_lock(&s->mutex);
    int left = --s->references;
    (void)pthread_mutex_unlock(&s->mutex);
    if (left == 0) {
        (void)pthread_cond_destroy(&s->ready);
        (void)pthread_mutex_destroy(&s->mutex);
        free(s->host);
        free(s);
    }
}

static void *run(void *argument)
{
    struct shared *s = argument;
    struct lookup_list list;
    struct dt_error err = {0};
    int rc = look_up(s->resolver, s->host, s->port, &list, &err);
    (void)pthread_mutex_lock(&s->mutex);
    s->rc = rc;
    s->err = err;
    if (rc == 0) {
        s->list = list;
    }
    s->done = true;
    (void)pthread_cond_signal(&s->ready);
    if (s->async != NULL) {
        (void)uv_async_send(s->async);
    }
    (void)pthread_mutex_unlock(&s->mutex);
    release(s);
    return NULL;
}

static void on_closed(uv_handle_t *handle)
{
    struct lookup *l = handle->data;
    release(l->shared);
    free(l);
}

void lookup_close(struct lookup *l)
{
    (void)pthread_mutex_lock(&l->shared->mutex);
    l->shared->async = NULL;
    (void)pthread_mutex_unlock(&l->shared->mutex);
    l->done = NULL;
    if (!uv_is_closing((uv_handle_t *)&l->async)) {
        uv_close((uv_handle_t *)&l->async, on_closed);
    }
}

static void on_found(uv_async_t *async)
{
    struct lookup *l = async->data;
    lookup_done *done = l->done;
    if (done == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&l->shared->mutex);
    struct lookup_list list = l->shared->list;
    struct dt_error err = l->shared->err;
    int rc = l->shared->rc;
    (void)pthread_mutex_unlock(&l->shared->mutex);
    void *user = l->user;
    lookup_close(l);
    done(user, rc == 0 ? &list : NULL, &err);
}

static int start_thread(struct shared *s)
{
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, old;
    (void)sigfillset(&all);
    (void)pthread_attr_init(&attributes);
    (void)pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    (void)pthread_attr_setstacksize(&attributes, (size_t)512 << 10);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old); /* only the loop's thread handles signals */
    int code = pthread_create(&thread, &attributes, run, s);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    (void)pthread_attr_destroy(&attributes);
    return code;
}

static struct shared *new_shared(const char *host, int port, lookup_resolver *resolver)
{
    struct shared *s = dt_alloc(sizeof *s);
    pthread_condattr_t monotonic;
    *s = (struct shared){
        .references = 2, .resolver = resolver != NULL ? resolver : getaddrinfo, .host = dt_strdup(host), .port = port};
    (void)pthread_mutex_init(&s->mutex, NULL);
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&s->ready, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    return s;
}

int lookup_within(const char *host, int port, double seconds, lookup_resolver *resolver, struct lookup_list *out,
                  struct dt_error *err)
{
    struct shared *s = new_shared(host, port, resolver);
    int code = start_thread(s), rc;
    if (code != 0) {
        s->references = 1;
        release(s);
        return dt_fail(err, DT_IO, "%s: name look-up: thread: %s", host, strerror(code));
    }
    struct timespec until = dt_timespec(dt_now_s() + seconds);
    (void)pthread_mutex_lock(&s->mutex);
    while (!s->done && code == 0) {
        code = pthread_cond_timedwait(&s->ready, &s->mutex, &until);
    }
    if (!s->done) {
        rc = dt_fail(err, DT_TIMEOUT, "%s: name look-up: no answer yet after %.0f s", host, seconds);
    } else if ((rc = s->rc) == 0) {
        *out = s->list;
    } else {
        *err = s->err;
    }
    (void)pthread_mutex_unlock(&s->mutex);
    release(s);
    return rc;
}

int lookup_open(struct lookup **out, uv_loop_t *loop, const char *host, int port, lookup_resolver *resolver,
                lookup_done *done, void *user, struct dt_error *err)
{
    struct lookup *l = dt_alloc(sizeof *l);
    struct shared *s = new_shared(host, port, resolver);
    *l = (struct lookup){.shared = s, .done = done, .user = user};
    s->async = &l->async;
    int code = uv_async_init(loop, &l->async, on_found);
    if (code != 0) {
        s->references = 1;
        release(s);
        free(l);
        return dt_fail(err, DT_IO, "%s: name look-up: %s", host, uv_strerror(code));
    }
    l->async.data = l;
    code = start_thread(s);
    if (code != 0) {
        release(s);
        lookup_close(l);
        return dt_fail(err, DT_IO, "%s: name look-up: thread: %s", host, strerror(code));
    }
    *out = l;
    return 0;
}
