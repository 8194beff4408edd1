/* Calls that may take their time, and leaving. NCCL's communicators are not blocking: a call
 * returns at once, and its work is through when the state is no longer "in progress". Whoever
 * waits looks at the state, at the other ranks, at orders and at the clock; so nobody ever sits
 * inside NCCL.
 *
 * Stopping: ncclCommRevoke where the version has it (what is on the device ends, nothing is
 * freed), else or when that takes too long ncclCommAbort. Both run in a thread of their own,
 * since an abort may hang: then its communicator is left where it is, until the process ends. So
 * does ncclCommDestroy. */
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

#define REVOKE_S 5.0 /* then it is aborted */
#define END_S 10.0   /* what closing may take */
#define CAUSE_S 0.2  /* what the hosts have to say who is lost, when NCCL fails first */
/* since 2.23 each collective is put in by a thread that NCCL starts for it, which takes tens of
 * microseconds */
#define SPIN_S 2e-4

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

/* The communicator of the hosts by which c's ranks are asked and told; of a group that is still
 * being split off, its parent's. */
static struct dt_comm *hosts_of(struct dt_comm *c)
{
    while (!((struct nccl *)c->state)->control_open && c->parent != NULL) {
        c = c->parent;
    }
    return ((struct nccl *)c->state)->control;
}

/* By NCCL's last word: buffers are made with the first collectives, when the rest of the GPU is
 * taken. */
static bool lacks_memory(int result, const char *more)
{
    return result == NCCL_UNHANDLED_CUDA_ERROR &&
           (strstr(more, "out of memory") != NULL || strstr(more, "CUDA calloc") != NULL ||
            strstr(more, "CUDA malloc") != NULL);
}

/* NCCL has failed. That may be the echo of a lost rank, and come before the hosts know of it:
 * what they say within CAUSE_S is the cause. */
static int result_error(struct dt_comm *c, int result, const char *what, struct dt_error *err)
{
    struct nccl *n = c->state;
    struct dt_comm *hosts = hosts_of(c);
    const char *more = n->lib->last_error(NULL); /* the process's last one; may be empty */
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

/* The state of one handle: NCCL_IN_PROGRESS while a call goes on, or before there is a handle;
 * -1 when it was stopped. */
static int state_of(struct nccl *n, enum nccl_which which)
{
    int state = NCCL_IN_PROGRESS, rc = NCCL_SUCCESS;
    if (n->dead || pthread_mutex_trylock(&n->lock) != 0) {
        return n->dead ? -1 : NCCL_IN_PROGRESS;
    }
    /* NCCL's thread sets it */
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
        int state = state_of(n, (enum nccl_which)i); /* in progress, too, where there is none */
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
        if (n->lib->async_error(n->handles[i], &state) != NCCL_SUCCESS || state != NCCL_SUCCESS) {
            return false; /* in the middle of another call, or failed: ncclCommRevoke is for what
                           * is well */
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

/* False: before 2.19 an abort by another thread than the one whose call goes on frees what that
 * call uses; nothing is on the device then. */
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

/* The calling thread's first: NCCL puts back whichever device it finds, and a thread's own one
 * is GPU 0. Afterwards the device may be closed. */
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

/* Side by side: an abort waits for what its communicator has on the device, which may stand
 * behind what the other one's abort ends. One after the other where nobody waits for it any
 * more: the device may be closed. */
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
        abort_one(n, NCCL_GATHER); /* it may have been split off meanwhile */
    }
}

static void come_to_rest(struct nccl *n)
{
    int going = NCCL_GOES_ON;
    (void)atomic_compare_exchange_strong(&n->rest, &going, NCCL_AT_REST);
}

/* Waits for a call that goes on, but not for one that does not come back: the abort ends what it
 * waits for. */
static void *stop_main(void *argument)
{
    struct nccl *n = argument;
    take_device(n);
    bool locked = lock_soon(n, 1000000000);
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

/* fn(n) in a thread that nobody joins; n->rest tells when it is through. */
static void in_thread(struct nccl *n, void *(*fn)(void *))
{
    pthread_t thread;
    pthread_attr_t alone;
    (void)pthread_attr_init(&alone);
    (void)pthread_attr_setdetachstate(&alone, PTHREAD_CREATE_DETACHED);
    atomic_store(&n->rest, NCCL_BEGINS);
    if (pthread_create(&thread, &alone, fn, n) != 0) {
        (void)fn(n); /* no thread to be had: then here */
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
        hosts->ops->tell(hosts, err); /* before the device is let go: whoever finds garbage knows
                                       * why */
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
    if (n->splitting) { /* until its parent is at rest, NCCL may still put this group's
                         * communicator here */
        rest = nccl_await_rest(c->parent);
    }
    if (rest && n->opened && !atomic_load(&n->stopping) && atomic_load(&c->stopped) == 0 && finalize(c)) {
        in_thread(n, destroy_main);
        rest = nccl_await_rest(c);
    } else if (rest && (atomic_load(&n->stopping) || has_handles(n))) { /* in this order: who stops it
                                                                         * may be writing them */
        nccl_stop(c);
        rest = nccl_await_rest(c);
        if (rest && has_handles(n)) { /* it was revoked, or one came late: now what they hold is
                                       * freed */
            in_thread(n, abort_main);
            rest = nccl_await_rest(c);
        }
    }
    if (!rest) {
        int going = NCCL_GOES_ON;
        /* no thread more takes the device */
        (void)atomic_compare_exchange_strong(&n->rest, &going, NCCL_LEFT);
        dt_log(DT_LOG_WARN, "comm",
               "communicator %s: NCCL %s does not end it; it is left as it is until the process ends", c->name,
               n->lib->number);
    }
    return rest;
}
