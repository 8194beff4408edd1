/* The watch over peers of a device's communicators. The host that drives a device runs ahead of
 * it, and sits in a launch when the driver's queue is full; a stream of it that waits for a lost
 * rank empties no queue. So a thread asks every LOOK_S how things are, for a communicator and
 * all its groups. The first that is not well takes the others along: a stream may wait in one of
 * them for a rank that is stuck in another. What is started later fails its stream at once, so
 * that the queue runs dry.
 *
 * The same thread shows on the page whether a stream waits for peers now: the host, which only
 * puts work in, does not know. */
#include "collectives/watch.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/page.h"
#include "base/text.h"
#include "collectives/backends.h"

#include <stdlib.h>
#include <time.h>

#define LOOK_S 0.005

enum { COMMS_MAX = 8 };

struct comm_watch {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool closing, over; /* over: one has failed, and all were let go */
    struct dt_comm *list[COMMS_MAX];
    int count;
    struct dt_page *page;
};

/* `first` is not well. The other ranks of each communicator are told the cause before any is
 * aborted: whoever finds one aborted knows why. */
static void let_go(struct comm_watch *w, struct dt_comm *first, const struct dt_error *why)
{
    struct dt_error cause = *why;
    if (atomic_load(&first->stopped) == 1) { /* by dt_comm_abort; for the others it is this rank
                                              * that gave up */
        (void)dt_fail(&cause, DT_PEER, "rank %d aborted communicator %s", first->rank, first->name);
        (void)dt_blame(&cause, DT_FAULT_LOST, dt_comm_job_rank(first, first->rank));
    }
    for (int i = 0; i < w->count; i++) {
        comm_keep(w->list[i], why);
        w->list[i]->ops->tell(w->list[i], &cause);
    }
    for (int i = 0; i < w->count; i++) {
        w->list[i]->ops->abort(w->list[i]);
    }
    w->over = true;
}

static void look(struct comm_watch *w, bool *shown)
{
    struct dt_error why = {0};
    bool waits = false;
    for (int i = 0; i < w->count && !w->over; i++) {
        if (dt_comm_poll(w->list[i], &why) != 0) {
            let_go(w, w->list[i], &why);
        }
    }
    for (int i = 0; i < w->count && !w->over; i++) {
        waits = waits || (w->list[i]->ops->waits != NULL && w->list[i]->ops->waits(w->list[i]));
    }
    if (w->page != NULL && waits != *shown) {
        *shown = waits;
        (void)atomic_fetch_add(&w->page->in_collective, waits ? 1 : (uint32_t)-1);
    }
}

static void *watch(void *argument)
{
    struct comm_watch *w = argument;
    bool shown = false;
    (void)pthread_mutex_lock(&w->lock);
    while (!w->closing) {
        look(w, &shown);
        struct timespec until = dt_timespec(dt_now_s() + LOOK_S);
        (void)pthread_cond_timedwait(&w->wake, &w->lock, &until);
    }
    if (shown) {
        (void)atomic_fetch_sub(&w->page->in_collective, 1);
    }
    (void)pthread_mutex_unlock(&w->lock);
    return NULL;
}

int comm_watch_begin(struct dt_comm *c, struct dt_error *err)
{
    if (c->ops->start == NULL) {
        return 0;
    }
    struct comm_watch *w = c->parent != NULL ? c->parent->watch : NULL;
    if (w == NULL) {
        pthread_condattr_t clock;
        w = dt_alloc(sizeof *w);
        w->page = c->page;
        w->list[w->count++] = c;
        (void)pthread_mutex_init(&w->lock, NULL);
        (void)pthread_condattr_init(&clock);
        (void)pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
        (void)pthread_cond_init(&w->wake, &clock);
        (void)pthread_condattr_destroy(&clock);
        if (pthread_create(&w->thread, NULL, watch, w) != 0) {
            free(w);
            return dt_fail(err, DT_IO, "cannot start the thread that looks after peers");
        }
        c->watch = w;
        return 0;
    }
    (void)pthread_mutex_lock(&w->lock);
    bool room = w->count < COMMS_MAX;
    if (room) {
        w->list[w->count++] = c;
        c->watch = w;
    }
    (void)pthread_mutex_unlock(&w->lock);
    return room ? 0 : dt_fail(err, DT_INVALID, "more than %d groups", COMMS_MAX - 1);
}

void comm_watch_end(struct dt_comm *c)
{
    struct comm_watch *w = c->watch;
    if (w == NULL) {
        return;
    }
    c->watch = NULL;
    (void)pthread_mutex_lock(&w->lock);
    int kept = 0;
    for (int i = 0; i < w->count; i++) {
        if (w->list[i] != c) {
            w->list[kept++] = w->list[i];
        }
    }
    w->count = kept;
    w->closing = kept == 0;
    (void)pthread_cond_signal(&w->wake);
    (void)pthread_mutex_unlock(&w->lock);
    if (kept == 0) { /* groups are closed before their parent */
        (void)pthread_join(w->thread, NULL);
        (void)pthread_cond_destroy(&w->wake);
        (void)pthread_mutex_destroy(&w->lock);
        free(w);
    }
}
