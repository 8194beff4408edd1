/* Who is lost, and letting streams go that wait for one. Any thread may ask: the host while it
 * waits, and the thread that looks while the host is elsewhere (watch.c). What is found stays
 * found: shared memory keeps it (`failed`, `released`), a process that has ended comes no more,
 * and an order only grows. */
#include "collectives/peer.h"

#include "base/clock.h"
#include "base/text.h"
#include "collectives/shm.h"

#define FAR 0x40000000u /* steps ahead: more than any stream waits for */
#define RELEASE_S 0.002

static void write_words(struct dt_comm *c)
{
    struct peer *p = c->state;
    uint32_t far = atomic_load(&p->step) + FAR;
    for (int r = 0; r < c->size; r++) {
        __atomic_store_n(&p->sides[r]->ready, far, __ATOMIC_RELEASE);
        __atomic_store_n(&p->sides[r]->done, far, __ATOMIC_RELEASE);
    }
}

static void *release(void *argument)
{
    struct dt_comm *c = argument;
    while (!atomic_load(&((struct peer *)c->state)->closing)) {
        write_words(c);
        dt_sleep_s(RELEASE_S); /* again: a peer's stream may still write what it was told before */
    }
    return NULL;
}

/* Under the lock. */
static void release_streams(struct dt_comm *c)
{
    struct peer *p = c->state;
    if (p->opened && !p->releasing) {
        atomic_store(&p->sides[c->rank]->released, 1); /* before the first word: whoever sees a
                                                        * stream run dry asks for this next */
        write_words(c);
        p->releasing = pthread_create(&p->releaser, NULL, release, c) == 0;
    }
}

/* This rank's stream has come to a step, and a peer has not within the time: who? */
static int check_clock(struct dt_comm *c, struct dt_error *err)
{
    struct peer *p = c->state;
    uint32_t mine = peer_word(&p->sides[c->rank]->ready);
    double now_s = dt_now_s();
    struct dt_text missing;
    if (mine != p->seen_ready) {
        p->seen_ready = mine;
        p->seen_s = now_s;
        return 0;
    }
    if (now_s - p->seen_s < c->timeout_s) {
        return 0;
    }
    dt_text_init(&missing);
    for (int r = 0; r < c->size; r++) {
        if ((int32_t)(peer_word(&p->sides[r]->ready) - mine) < 0) {
            dt_text_printf(&missing, "%srank %d", missing.size > 0 ? ", " : "", shm_shown(c, r));
        }
    }
    int rc = 0;
    if (missing.size > 0) {
        rc = dt_fail(err, DT_TIMEOUT, "communicator %s: after %.3g s without %s", c->name, c->timeout_s,
                     dt_text_str(&missing));
    }
    dt_text_clear(&missing);
    return rc;
}

/* Whoever gives up says why before that. */
static int check_released(struct dt_comm *c, struct dt_error *err)
{
    struct peer *p = c->state;
    for (int r = 0; r < c->size; r++) {
        if (r != c->rank && atomic_load(&p->sides[r]->released) != 0) {
            (void)dt_fail(err, DT_PEER, "communicator %s: rank %d has given up", c->name, shm_shown(c, r));
            (void)dt_blame(err, DT_FAULT_LOST, dt_comm_job_rank(c, r));
            (void)shm_look(p->control, err);
            return -1;
        }
    }
    return 0;
}

int peer_poll(struct dt_comm *c, struct dt_error *err)
{
    struct peer *p = c->state;
    (void)pthread_mutex_lock(&p->lock);
    int rc = shm_look(p->control, err) != 0 || check_released(c, err) != 0 || check_clock(c, err) != 0 ? -1 : 0;
    if (rc != 0) {
        shm_fail(p->control, err);
        release_streams(c);
    }
    (void)pthread_mutex_unlock(&p->lock);
    return rc;
}

void peer_tell(struct dt_comm *c, const struct dt_error *why)
{
    shm_fail(((struct peer *)c->state)->control, why);
}

void peer_abort(struct dt_comm *c)
{
    struct peer *p = c->state;
    p->control->ops->abort(p->control);
    (void)pthread_mutex_lock(&p->lock);
    release_streams(c);
    (void)pthread_mutex_unlock(&p->lock);
}

bool peer_waits(struct dt_comm *c)
{
    const struct peer *p = c->state;
    const struct peer_side *own = p->sides[c->rank];
    uint32_t ready = peer_word(&own->ready), done = peer_word(&own->done);
    for (int r = 0; r < c->size; r++) {
        if ((int32_t)(peer_word(&p->sides[r]->ready) - ready) < 0 ||
            (int32_t)(peer_word(&p->sides[r]->done) - done) < 0) {
            return true;
        }
    }
    return false;
}

void peer_look_open(struct peer *p)
{
    p->seen_s = dt_now_s();
}

void peer_look_close(struct peer *p)
{
    if (p->releasing) {
        atomic_store(&p->closing, true);
        (void)pthread_join(p->releaser, NULL);
    }
}
