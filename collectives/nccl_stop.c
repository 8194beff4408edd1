/* Calls that may take their time, and leaving. NCCL's communicators are not blocking: a call returns at once, and its work is through when the state is no longer
 * "in progress". Whoever waits looks at the state, at the other ranks, at orders and at the clock; so nobody ever sits inside NCCL.
 *
 * Stopping: ncclCommRevoke where the version has it (what is on the device ends, nothing is freed), else or when that takes too long ncclCommAbort. Both run in
 * a thread of their own, since an abort may hang: then its communicator is left where it is, until the process ends. */
#include "collectives/nccl.h"
#include "collectives/shm.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define REVOKE_S 5.0 /* then it is aborted */
#define END_S 10.0   /* what closing may take */

static const struct timespec short_pause = {.tv_nsec = 50000};

/* For who must not wait for a call that holds it. */
static bool lock_soon(struct nccl *n, int64_t nanoseconds)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    nanoseconds += until.tv_nsec;
    until.tv_sec += (time_t)(nanoseconds / 1000000000);
    until.tv_nsec = (long)(nanoseconds % 1000000000);
    return pthread_mutex_timedlock(&n->lock, &until) == 0;
}

/* First line of what NCCL says itself; it may have nothing to say. */
static void detail(struct nccl *n, nccl_comm handle, char *out, size_t out_bytes)
{
    out[0] = '\0';
    if (!lock_soon(n, 100000000)) {
        return;
    }
    const char *text = n->dead ? NULL : n->lib->last_error(handle);
    (void)snprintf(out, out_bytes, "%s%.*s", text != NULL && text[0] != '\0' ? ": " : "", (int)strcspn(text != NULL ? text : "", "\n"),
                   text != NULL ? text : "");
    (void)pthread_mutex_unlock(&n->lock);
}

static enum dt_status status_of(int result)
{
    switch (result) {
    case NCCL_INVALID_ARGUMENT:
    case NCCL_INVALID_USAGE:
        return DT_INVALID;
    case NCCL_REMOTE_ERROR:
        return DT_PEER;
    default:
        return DT_IO; /* device, network, NCCL itself: another try may work */
    }
}

static int result_error(struct dt_comm *c, nccl_comm handle, int result, const char *what, struct dt_error *err)
{
    struct nccl *n = c->state;
    char more[300];
    struct dt_text where;
    dt_text_init(&where);
    nccl_describe(c, &where);
    detail(n, handle, more, sizeof more);
    (void)dt_fail(err, status_of(result), "communicator %s: rank %d%s: NCCL %s: %s: %s%.200s", c->name, shm_shown(c, c->rank), dt_text_str(&where),
                  n->lib->number, what, n->lib->error_string(result), more);
    dt_text_clear(&where);
    return -1;
}

/* The state of one handle: NCCL_IN_PROGRESS while a call goes on, or before there is a handle; -1 when it was stopped. */
static int state_of(struct nccl *n, enum nccl_which which)
{
    int state = NCCL_IN_PROGRESS, rc = NCCL_SUCCESS;
    if (n->dead || pthread_mutex_trylock(&n->lock) != 0) {
        return n->dead ? -1 : NCCL_IN_PROGRESS;
    }
    nccl_comm handle = __atomic_load_n(&n->handles[which], __ATOMIC_ACQUIRE); /* NCCL's thread sets it */
    if (n->dead) {
        state = -1;
    } else if (handle != NULL) {
        rc = n->lib->async_error(handle, &state);
    }
    (void)pthread_mutex_unlock(&n->lock);
    return rc != NCCL_SUCCESS ? rc : state;
}

int nccl_first(struct nccl *n, struct dt_error *err)
{
    (void)pthread_mutex_lock(&n->facts_lock);
    int rc = 0;
    if (n->why.status != DT_OK) {
        *err = n->why;
        rc = -1;
    } else if (n->stopping) {
        rc = dt_fail(err, DT_STOPPED, "the communicator was stopped");
    }
    (void)pthread_mutex_unlock(&n->facts_lock);
    return rc;
}

int nccl_look(struct dt_comm *c, struct dt_error *err)
{
    struct nccl *n = c->state;
    for (int i = 0; i < NCCL_HANDLES; i++) {
        int state = state_of(n, (enum nccl_which)i); /* in progress, too, where there is none */
        if (state == -1) {
            return nccl_first(n, err);
        }
        if (state != NCCL_SUCCESS && state != NCCL_IN_PROGRESS) {
            return result_error(c, n->handles[i], state, "on the device or between ranks", err);
        }
    }
    return 0;
}

int nccl_settle(struct dt_comm *c, enum nccl_which which, int rc, double timeout_s, const char *what, struct dt_error *err)
{
    struct nccl *n = c->state;
    double begin_s = dt_now_s(), looked_s = begin_s;
    int state = state_of(n, which);
    state = state != -1 && rc != NCCL_SUCCESS && rc != NCCL_IN_PROGRESS ? rc : state;
    while (state == NCCL_IN_PROGRESS) {
        double now_s = dt_now_s();
        if (now_s - looked_s >= NCCL_LOOK_S) {
            looked_s = now_s;
            if (n->control->ops->poll(n->control, err) != 0) {
                (void)dt_wrap(err, "%s", what);
                return nccl_give_up(c, err);
            }
        }
        if (dt_comm_stopped(c, err) != 0) {
            return -1;
        }
        if (now_s - begin_s >= timeout_s) {
            struct dt_text where;
            dt_text_init(&where);
            nccl_describe(c, &where);
            (void)dt_fail(err, DT_TIMEOUT, "communicator %s: rank %d%s: NCCL %s: %s: no end in %.3g s", c->name, shm_shown(c, c->rank),
                          dt_text_str(&where), n->lib->number, what, timeout_s);
            dt_text_clear(&where);
            return nccl_give_up(c, err);
        }
        if (now_s - begin_s > 20e-6) { /* most calls are through at once */
            (void)nanosleep(&short_pause, NULL);
        }
        state = state_of(n, which);
    }
    if (state == -1) {
        return dt_comm_stopped(c, err) != 0 ? -1 : nccl_first(n, err);
    }
    if (state != NCCL_SUCCESS) {
        (void)result_error(c, n->handles[which], state, what, err);
        return nccl_give_up(c, err);
    }
    return 0;
}

/* ---- leaving ---- */

/* All handles first, then until all are at rest. */
static bool revoke(struct nccl *n)
{
    double until_s = dt_now_s() + REVOKE_S;
    bool well = n->lib->revoke != NULL && n->opened;
    for (int i = 0; well && i < NCCL_HANDLES; i++) {
        int state = NCCL_SUCCESS, rc = NCCL_SUCCESS;
        if (n->handles[i] == NULL) {
            continue;
        }
        if (n->lib->async_error(n->handles[i], &state) != NCCL_SUCCESS || state == NCCL_IN_PROGRESS) {
            return false; /* in the middle of another call: only an abort ends that */
        }
        rc = n->lib->revoke(n->handles[i], 0);
        well = rc == NCCL_SUCCESS || rc == NCCL_IN_PROGRESS;
    }
    for (int i = 0; well && i < NCCL_HANDLES; i++) {
        int state = NCCL_SUCCESS;
        while (n->handles[i] != NULL && n->lib->async_error(n->handles[i], &state) == NCCL_SUCCESS && state == NCCL_IN_PROGRESS &&
               dt_now_s() < until_s) {
            (void)nanosleep(&short_pause, NULL);
        }
        well = state != NCCL_IN_PROGRESS;
    }
    return well;
}

static void abort_all(struct nccl *n)
{
    for (int i = NCCL_HANDLES - 1; i >= 0; i--) {
        if (n->handles[i] != NULL) {
            (void)n->lib->abort(n->handles[i]);
            n->handles[i] = NULL;
        }
    }
}

/* Waits for a call that goes on, but not for one that does not come back: the abort ends what it waits for. */
static void *stop_main(void *argument)
{
    struct nccl *n = argument;
    bool locked = lock_soon(n, 1000000000);
    n->dead = true;
    if (locked) {
        (void)pthread_mutex_unlock(&n->lock);
    }
    if (!revoke(n)) {
        abort_all(n);
    }
    atomic_store(&n->at_rest, true);
    return NULL;
}

void nccl_stop(struct dt_comm *c)
{
    struct nccl *n = c->state;
    (void)pthread_mutex_lock(&n->facts_lock);
    bool begin = !n->stopping && n->lib != NULL;
    n->stopping = true;
    (void)pthread_mutex_unlock(&n->facts_lock);
    if (begin && pthread_create(&n->stopper, NULL, stop_main, n) != 0) {
        (void)stop_main(n); /* no thread to be had: then here */
        atomic_store(&n->at_rest, true);
        n->stopper = pthread_self();
    } else if (n->lib == NULL) {
        atomic_store(&n->at_rest, true);
    }
}

static void tell(struct dt_comm *control, const struct dt_error *why)
{
    if (control->ops->tell != NULL && control->state != NULL) {
        control->ops->tell(control, why);
    }
}

int nccl_give_up(struct dt_comm *c, struct dt_error *err)
{
    struct nccl *n = c->state;
    (void)pthread_mutex_lock(&n->facts_lock);
    bool first = n->why.status == DT_OK;
    if (first) {
        n->why = *err;
    } else {
        *err = n->why;
    }
    (void)pthread_mutex_unlock(&n->facts_lock);
    if (first) {
        tell(n->control, err); /* before the device is let go: whoever finds garbage knows why */
    }
    nccl_stop(c);
    return -1;
}

static bool wait_for_rest(struct nccl *n, double until_s)
{
    while (!atomic_load(&n->at_rest) && dt_now_s() < until_s) {
        (void)nanosleep(&short_pause, NULL);
    }
    return atomic_load(&n->at_rest);
}

static void *abort_main(void *argument)
{
    struct nccl *n = argument;
    abort_all(n);
    atomic_store(&n->at_rest, true);
    return NULL;
}

bool nccl_end(struct dt_comm *c)
{
    struct nccl *n = c->state;
    struct dt_error err;
    bool well = n->opened && !n->stopping && atomic_load(&c->stopped) == 0;
    for (int i = NCCL_HANDLES - 1; well && i >= 0; i--) {
        if (n->handles[i] == NULL) {
            continue;
        }
        (void)pthread_mutex_lock(&n->lock);
        int rc = n->lib->finalize(n->handles[i]);
        (void)pthread_mutex_unlock(&n->lock);
        well = nccl_settle(c, (enum nccl_which)i, rc, END_S, "ncclCommFinalize", &err) == 0;
        if (well) {
            (void)n->lib->destroy(n->handles[i]);
            n->handles[i] = NULL;
        }
    }
    if (n->handles[NCCL_MAIN] == NULL && n->handles[NCCL_GATHER] == NULL && !n->stopping) {
        return true;
    }
    nccl_stop(c);
    bool rest = wait_for_rest(n, dt_now_s() + END_S);
    if (rest && n->lib != NULL && !pthread_equal(n->stopper, pthread_self())) {
        (void)pthread_join(n->stopper, NULL);
    }
    if (rest && (n->handles[NCCL_MAIN] != NULL || n->handles[NCCL_GATHER] != NULL)) { /* it was revoked: now what it holds is freed */
        pthread_t thread;
        atomic_store(&n->at_rest, false);
        rest = pthread_create(&thread, NULL, abort_main, n) == 0 && wait_for_rest(n, dt_now_s() + END_S);
        if (rest) {
            (void)pthread_join(thread, NULL);
        }
    }
    if (!rest) {
        dt_log(DT_LOG_WARN, "comm", "communicator %s: NCCL %s does not come back from ncclCommAbort; it is left as it is until the process ends",
               c->name, n->lib->number);
    }
    return rest;
}
