/* Calls that take time, and leaving. NCCL's communicators are not blocking: a call returns at once,
 * and its work is complete when the state is no longer "in progress". The waiting thread polls the
 * state, the other ranks, the page's orders and the clock. So no thread ever blocks inside NCCL.
 *
 * Stopping calls ncclCommRevoke where the version has it, which ends what is on the device and
 * frees nothing. Without it, or when it takes too long, ncclCommAbort follows. Both run in a thread
 * of their own, since an abort may hang. A communicator whose abort hangs is left until the process
 * ends. ncclCommDestroy is run the same way. */
#include "collectives/nccl.h"
#include "collectives/shm.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "kernels/device.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define REVOKE_S 5.0 /* longest time of a revoke, before the abort */
#define END_S 10.0   /* longest time of closing */
/* how long to wait for the control to name a lost rank, when NCCL fails first */
#define CAUSE_S 0.2
/* Since 2.23 NCCL starts a thread to enqueue each collective, which takes tens of microseconds. */
#define SPIN_S 2e-4

static const struct timespec short_pause = {.tv_nsec = 50000};

/* Takes the lock, but does not wait for a call that keeps it for longer. It tries again and again: the thread
 * sanitizer does not know pthread_mutex_clocklock, and pthread_mutex_timedlock follows a clock that can be set. */
static bool lock_soon(struct nccl *n, double seconds)
{
    double until_s = dt_now_s() + seconds;
    while (pthread_mutex_trylock(&n->lock) != 0) {
        if (dt_now_s() >= until_s) {
            return false;
        }
        (void)nanosleep(&short_pause, NULL);
    }
    return true;
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
        return DT_IO; /* device, network, NCCL itself: a restart may work */
    }
}

/* The control of c. For a group that is still being split off, its parent's control. */
static struct dt_comm *hosts_of(struct dt_comm *c)
{
    while (!((struct nccl *)c->state)->control_open && c->parent != NULL) {
        c = c->parent;
    }
    return ((struct nccl *)c->state)->control;
}

/* Reads NCCL's last error text. NCCL makes buffers with the first collectives, when the job has
 * taken the rest of the GPU. */
static bool lacks_memory(int result, const char *more)
{
    return result == NCCL_UNHANDLED_CUDA_ERROR &&
           (strstr(more, "out of memory") != NULL || strstr(more, "CUDA calloc") != NULL ||
            strstr(more, "CUDA malloc") != NULL);
}

/* Makes the error of a failed NCCL call. The failure may be a consequence of a lost rank that the
 * control does not know of yet. So wait CAUSE_S: what the control says by then is the cause. */
static int result_error(struct dt_comm *c, int result, const char *what, struct dt_error *err)
{
    struct nccl *n = c->state;
    struct dt_comm *hosts = hosts_of(c);
    const char *more = n->lib->last_error(NULL); /* the last error of the process; may be empty */
    struct dt_text where;
    for (double end_s = dt_now_s() + CAUSE_S; dt_now_s() < end_s;) {
        if (dt_comm_stopped(c, err) != 0 || hosts->ops->poll(hosts, err) != 0) {
            return -1;
        }
        dt_sleep_s(0.002);
    }
    dt_text_init(&where);
    nccl_describe(c, &where);
    more = more != NULL ? more : "";
    bool full = lacks_memory(result, more), named = result == NCCL_UNHANDLED_CUDA_ERROR && n->device_name[0] != '\0';
    (void)dt_fail(err, full ? DT_NO_MEMORY : status_of(result),
                  "communicator %s: rank %d%s: NCCL %s: %s: %s%s%s%s%.*s%s", c->name, shm_shown(c, c->rank),
                  dt_text_str(&where), n->lib->number, what, n->lib->error_string(result), named ? " of " : "",
                  named ? n->device_name : "", more[0] != '\0' ? ": " : "", (int)strcspn(more, "\n"), more,
                  full ? "; leave it more of the GPU (training.batch_size_per_gpu), or let it take less "
                         "(training.collective_sms, NCCL_NVLS_ENABLE=0)"
                       : "");
    err->device = named ? DT_DEVICE_FAILED : 0;
    dt_text_clear(&where);
    return -1;
}

/* The state of one handle: NCCL_IN_PROGRESS while a call is in progress, or before there is a
 * handle. -1: it was stopped. */
static int state_of(struct nccl *n, enum nccl_which which)
{
    int state = NCCL_IN_PROGRESS, rc = NCCL_SUCCESS;
    if (n->dead || pthread_mutex_trylock(&n->lock) != 0) {
        return n->dead ? -1 : NCCL_IN_PROGRESS;
    }
    /* a thread of NCCL sets the handle */
    nccl_comm handle = __atomic_load_n(&n->handles[which], __ATOMIC_ACQUIRE);
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
    } else if (atomic_load(&n->stopping)) {
        rc = dt_fail(err, DT_STOPPED, "the communicator was stopped");
    }
    (void)pthread_mutex_unlock(&n->facts_lock);
    return rc;
}

int nccl_look(struct dt_comm *c, struct dt_error *err)
{
    struct nccl *n = c->state;
    for (int i = 0; i < NCCL_HANDLES; i++) {
        /* also NCCL_IN_PROGRESS if there is no such handle */
        int state = state_of(n, (enum nccl_which)i);
        if (state == -1) {
            return nccl_first(n, err);
        }
        if (state != NCCL_SUCCESS && state != NCCL_IN_PROGRESS) {
            return result_error(c, state, "on the device or between ranks", err);
        }
    }
    return 0;
}

int nccl_settle(struct dt_comm *c, enum nccl_which which, int rc, double timeout_s, const char *what,
                struct dt_error *err)
{
    struct nccl *n = c->state;
    struct dt_comm *hosts = hosts_of(c);
    double begin_s = dt_now_s(), looked_s = begin_s;
    int state = state_of(n, which);
    state = state != -1 && rc != NCCL_SUCCESS && rc != NCCL_IN_PROGRESS ? rc : state;
    while (state == NCCL_IN_PROGRESS) {
        double now_s = dt_now_s();
        if (now_s - looked_s >= NCCL_LOOK_S) {
            looked_s = now_s;
            if (hosts->ops->poll(hosts, err) != 0) {
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
            (void)dt_fail(err, DT_TIMEOUT, "communicator %s: rank %d%s: NCCL %s: %s: no end in %.3g s", c->name,
                          shm_shown(c, c->rank), dt_text_str(&where), n->lib->number, what, timeout_s);
            dt_text_clear(&where);
            return nccl_give_up(c, err);
        }
        if (now_s - begin_s < SPIN_S) {
            (void)sched_yield();
        } else {
            (void)nanosleep(&short_pause, NULL);
        }
        state = state_of(n, which);
    }
    if (state == -1) {
        return dt_comm_stopped(c, err) != 0 ? -1 : nccl_first(n, err);
    }
    if (state != NCCL_SUCCESS) {
        (void)result_error(c, state, what, err);
        return nccl_give_up(c, err);
    }
    return 0;
}

/* ---- leaving ---- */

/* Revokes all handles first, then waits for all of them. */
static bool revoke(struct nccl *n)
{
    double until_s = dt_now_s() + REVOKE_S;
    bool well = n->lib->revoke != NULL && n->opened;
    for (int i = 0; well && i < NCCL_HANDLES; i++) {
        int state = NCCL_SUCCESS, rc = NCCL_SUCCESS;
        if (n->handles[i] == NULL) {
            continue;
        }
        if (n->lib->async_error(n->handles[i], &state) != NCCL_SUCCESS || state != NCCL_SUCCESS) {
            /* ncclCommRevoke is only for communicators that are well: not failed, and no call in
             * progress */
            return false;
        }
        rc = n->lib->revoke(n->handles[i], 0);
        well = rc == NCCL_SUCCESS || rc == NCCL_IN_PROGRESS;
    }
    for (int i = 0; well && i < NCCL_HANDLES; i++) {
        int state = NCCL_SUCCESS;
        while (n->handles[i] != NULL && n->lib->async_error(n->handles[i], &state) == NCCL_SUCCESS &&
               state == NCCL_IN_PROGRESS && dt_now_s() < until_s) {
            (void)nanosleep(&short_pause, NULL);
        }
        well = state != NCCL_IN_PROGRESS;
    }
    return well;
}

/* Before 2.19 an abort frees memory that a call in progress in another thread still uses. Then
 * return false; nothing is on the device during such a call. */
static bool may_abort(const struct nccl *n, nccl_comm handle)
{
    int state = NCCL_SUCCESS;
    return n->lib->version >= 21900 ||
           (n->lib->async_error(handle, &state) == NCCL_SUCCESS && state != NCCL_IN_PROGRESS);
}

static void abort_one(struct nccl *n, enum nccl_which which)
{
    if (n->handles[which] != NULL && may_abort(n, n->handles[which])) {
        (void)n->lib->abort(n->handles[which]);
        n->handles[which] = NULL;
    } else if (n->handles[which] != NULL) {
        atomic_store(&n->rest, NCCL_LEFT);
    }
}

/* Sets the device, as the first thing a thread does: NCCL restores the device that it finds, and a
 * new thread's device is GPU 0. Once the thread has done so, the device may be closed. */
static void take_device(struct nccl *n)
{
    int begins = NCCL_BEGINS;
    dt_device_use(n->device);
    (void)atomic_compare_exchange_strong(&n->rest, &begins, NCCL_GOES_ON);
}

static void *abort_gather(void *argument)
{
    struct nccl *n = argument;
    take_device(n);
    abort_one(n, NCCL_GATHER);
    return NULL;
}

/* Aborts both handles, in two threads. An abort waits for the kernels of its communicator, which
 * may stand behind kernels that the other handle's abort ends. If the closing thread has given up
 * waiting, the device may be closed, so no second thread is started: the handles are aborted one
 * after the other. */
static void abort_all(struct nccl *n)
{
    pthread_t gather;
    int going = NCCL_GOES_ON;
    bool beside = n->handles[NCCL_GATHER] != NULL && atomic_compare_exchange_strong(&n->rest, &going, NCCL_BEGINS);
    if (beside && pthread_create(&gather, NULL, abort_gather, n) != 0) {
        beside = false;
        take_device(n);
    }
    abort_one(n, NCCL_MAIN);
    if (beside) {
        (void)pthread_join(gather, NULL);
    } else {
        abort_one(n, NCCL_GATHER); /* the handle may have been split off meanwhile */
    }
}

static void come_to_rest(struct nccl *n)
{
    int going = NCCL_GOES_ON;
    (void)atomic_compare_exchange_strong(&n->rest, &going, NCCL_AT_REST);
}

/* Waits a moment for a call in progress. If the call does not return, the abort ends what the call
 * waits for. */
static void *stop_main(void *argument)
{
    struct nccl *n = argument;
    take_device(n);
    bool locked = lock_soon(n, 1);
    n->dead = true;
    if (locked) {
        (void)pthread_mutex_unlock(&n->lock);
    }
    if (!revoke(n)) {
        abort_all(n);
    }
    come_to_rest(n);
    return NULL;
}

static void *abort_main(void *argument)
{
    struct nccl *n = argument;
    take_device(n);
    abort_all(n);
    come_to_rest(n);
    return NULL;
}

static void *destroy_main(void *argument)
{
    struct nccl *n = argument;
    take_device(n);
    for (int i = NCCL_HANDLES - 1; i >= 0; i--) {
        if (n->handles[i] != NULL) {
            (void)n->lib->destroy(n->handles[i]);
            n->handles[i] = NULL;
        }
    }
    come_to_rest(n);
    return NULL;
}

/* Runs fn(n) in a detached thread; n->rest tells when it has ended. */
static void in_thread(struct nccl *n, void *(*fn)(void *))
{
    pthread_t thread;
    pthread_attr_t alone;
    (void)pthread_attr_init(&alone);
    (void)pthread_attr_setdetachstate(&alone, PTHREAD_CREATE_DETACHED);
    atomic_store(&n->rest, NCCL_BEGINS);
    if (pthread_create(&thread, &alone, fn, n) != 0) {
        (void)fn(n); /* no thread can be started: run it here */
    }
    (void)pthread_attr_destroy(&alone);
}

void nccl_stop(struct dt_comm *c)
{
    struct nccl *n = c->state;
    if (!atomic_exchange(&n->stopping, true) && n->lib != NULL) {
        in_thread(n, stop_main);
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
        struct dt_comm *hosts = hosts_of(c);
        /* Tell them before the streams are released: a rank that finds garbage must know why. */
        hosts->ops->tell(hosts, err);
    }
    nccl_stop(c);
    return -1;
}

bool nccl_await_rest(struct dt_comm *c)
{
    struct nccl *n = c->state;
    double until_s = dt_now_s() + END_S;
    for (int rest; ((rest = atomic_load(&n->rest)) == NCCL_GOES_ON || rest == NCCL_BEGINS) && dt_now_s() < until_s;) {
        (void)nanosleep(&short_pause, NULL);
    }
    return atomic_load(&n->rest) == NCCL_AT_REST;
}

static bool has_handles(const struct nccl *n)
{
    return n->handles[NCCL_MAIN] != NULL || n->handles[NCCL_GATHER] != NULL;
}

static bool finalize(struct dt_comm *c)
{
    struct nccl *n = c->state;
    struct dt_error err;
    for (int i = NCCL_HANDLES - 1; i >= 0; i--) {
        if (n->handles[i] == NULL) {
            continue;
        }
        (void)pthread_mutex_lock(&n->lock);
        int rc = n->lib->finalize(n->handles[i]);
        (void)pthread_mutex_unlock(&n->lock);
        if (nccl_settle(c, (enum nccl_which)i, rc, END_S, "ncclCommFinalize", &err) != 0) {
            return false;
        }
    }
    return true;
}

bool nccl_end(struct dt_comm *c)
{
    struct nccl *n = c->state;
    bool rest = true;
    /* NCCL may put this group's communicator here until the parent is at rest. */
    if (n->splitting) {
        rest = nccl_await_rest(c->parent);
    }
    if (rest && n->opened && !atomic_load(&n->stopping) && atomic_load(&c->stopped) == 0 && finalize(c)) {
        in_thread(n, destroy_main);
        rest = nccl_await_rest(c);
    } else if (rest && (atomic_load(&n->stopping) || has_handles(n))) { /* test `stopping` first: the
                                                                 * thread that stops may be
                                                                 * writing the handles */
        nccl_stop(c);
        rest = nccl_await_rest(c);
        /* The handles were only revoked, or one was made late. Free what they hold. */
        if (rest && has_handles(n)) {
            in_thread(n, abort_main);
            rest = nccl_await_rest(c);
        }
    }
    if (!rest) {
        int going = NCCL_GOES_ON;
        /* from here on no other thread sets the device */
        (void)atomic_compare_exchange_strong(&n->rest, &going, NCCL_LEFT);
        dt_log(DT_LOG_WARN, "comm",
               "communicator %s: NCCL %s does not end it; it is left as it is until the process ends", c->name,
               n->lib->number);
    }
    return rest;
}
