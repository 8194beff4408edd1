/* Steps of the shared-memory backend: arriving, waiting (spinning for a moment, then asleep on a
 * futex), and knowing who is missing and why. Every look of a waiting rank, 20 a second, sees
 * the page's order, an abort, a failure of any rank and the death of a peer. */
#include "collectives/shm.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/page.h"
#include "base/text.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NAMED_MAX 4
#define SAY_S 10.0

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void futex_wait(_Atomic uint32_t *word, uint32_t seen, double timeout_s)
{
    struct timespec t = dt_timespec(timeout_s);
    (void)syscall(SYS_futex, word, FUTEX_WAIT, seen, &t, NULL, 0);
}

void shm_wake(struct shm *s)
{
    (void)syscall(SYS_futex, &s->header->arrived, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void shm_fail(struct dt_comm *c, const struct dt_error *why)
{
    struct shm *s = c->state;
    struct shm_header *h = s->header;
    uint32_t none = 0;
    if (atomic_compare_exchange_strong(&h->failed, &none, 1)) {
        h->failed_rank = dt_comm_job_rank(c, c->rank);
        h->failed_status = (int32_t)why->status;
        h->failed_blame = why->blame;
        (void)snprintf(h->failed_text, sizeof(h->failed_text), "%s", why->text);
        atomic_store(&h->failed, 2);
    }
    shm_wake(s);
}

/* Without a pidfd: a zombie still answers to kill(pid, 0), so ask for its state. */
static bool gone_by_proc(int pid)
{
    char path[32], line[512];
    (void)snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    FILE *f = fopen(path, "re");
    if (f == NULL) {
        return true;
    }
    size_t n = fread(line, 1, sizeof(line) - 1, f);
    (void)fclose(f);
    line[n] = 0;
    const char *end = strrchr(line, ')');
    return end != NULL && end[1] == ' ' && (end[2] == 'Z' || end[2] == 'X');
}

static bool gone(struct shm *s, int rank)
{
    struct shm_slot *slot = shm_slot(s, rank);
    if (atomic_load(&slot->joined) == 0 || slot->pid == getpid()) {
        return false;
    }
    if (s->pidfds[rank] < 0) {
        return gone_by_proc(slot->pid);
    }
    struct pollfd p = {.fd = s->pidfds[rank], .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

/* Has not arrived at the step everybody waits for. */
static bool missing(const struct shm *s, int rank)
{
    return (int32_t)(atomic_load(&shm_slot(s, rank)->step) - s->step) < 0;
}

static void describe(const struct dt_comm *c, int rank, struct dt_text *out)
{
    const struct shm_slot *slot = shm_slot(c->state, rank);
    dt_text_printf(out, "rank %d", shm_shown(c, rank));
    if (c->parent != NULL) {
        dt_text_printf(out, " (rank %d of %s)", shm_shown(c->parent, c->members[rank]), c->parent->name);
    }
    int64_t number = atomic_load(&slot->number);
    if (atomic_load(&slot->joined) == 0) {
        dt_text_puts(out, ", which has not come yet");
    } else if (number == 0) {
        dt_text_puts(out, ", which has started no collective yet");
    } else {
        const struct shm_what *w = &slot->what[number & 1];
        char name[SHM_NAME_WORDS * 8 + 1] = "";
        for (int i = 0; i < SHM_NAME_WORDS; i++) {
            uint64_t word = atomic_load_explicit(&w->name[i], memory_order_relaxed);
            memcpy(name + i * 8, &word, 8);
        }
        dt_text_printf(out, ", last in %s %s (number %lld)", dt_coll_name((enum dt_coll)atomic_load(&w->kind)), name,
                       (long long)atomic_load(&slot->shown));
    }
}

/* "rank 3, last in all_reduce grads 2 (number 117); rank 5, ...; and 3 more" */
static void describe_missing(const struct dt_comm *c, struct dt_text *out)
{
    int count = 0;
    for (int r = 0; r < c->size; r++) {
        if (r == c->rank || !missing(c->state, r)) {
            continue;
        }
        if (count++ < NAMED_MAX) {
            dt_text_puts(out, count > 1 ? "; " : "");
            describe(c, r, out);
        }
    }
    if (count > NAMED_MAX) {
        dt_text_printf(out, "; and %d more", count - NAMED_MAX);
    }
}

static void say_where(const struct shm_call *call, char *out, size_t out_bytes)
{
    if (call->number > 0) {
        (void)snprintf(out, out_bytes, "%s %s (number %lld)", call->what, call->name, (long long)call->number);
    } else {
        (void)snprintf(out, out_bytes, "%s %s", call->what, call->name);
    }
}

/* The cheap part of a look: is there a reason to leave in our own memory? */
static bool told(const struct dt_comm *c)
{
    struct shm *s = c->state;
    return atomic_load_explicit(&s->header->failed, memory_order_relaxed) != 0 ||
           atomic_load_explicit(&c->stopped, memory_order_relaxed) != 0 ||
           (c->page != NULL && atomic_load_explicit(&c->page->order, memory_order_relaxed) >= DT_ORDER_ABORT);
}

/* What was told, as an error; 0 when nothing. */
static int hear(struct dt_comm *c, struct dt_error *err)
{
    struct shm *s = c->state;
    if (c->page != NULL && atomic_load(&c->page->order) >= DT_ORDER_ABORT) {
        atomic_store(&shm_slot(s, c->rank)->left, SHM_ORDERED);
        shm_wake(s);
        return dt_fail(err, DT_STOPPED, "the round is over");
    }
    if (atomic_load(&c->stopped) != 0) {
        return dt_fail(err, DT_STOPPED, "communicator %s was aborted", c->name);
    }
    struct shm_header *h = s->header;
    if (atomic_load(&h->failed) == 0) {
        return 0;
    }
    double until_s = dt_now_s() + SHM_LOOK_S;
    while (atomic_load(&h->failed) != 2) { /* a rank writes why it fails: a few hundred bytes */
        if (dt_now_s() > until_s) {
            return dt_fail(err, DT_PEER, "a rank has failed and did not come to say why");
        }
        relax();
    }
    (void)dt_fail(err, dt_status_of(h->failed_status), "%.*s", (int)sizeof(h->failed_text), h->failed_text);
    err->blame = h->failed_blame;
    return h->failed_rank == dt_comm_job_rank(c, c->rank) ? -1
                                                          : dt_blame_heard(err, &h->failed_blame, h->failed_rank, -1);
}

/* Fails when a rank that has not arrived never will. */
static int look_after_missing(struct dt_comm *c, struct dt_error *err)
{
    struct shm *s = c->state;
    for (int r = 0; r < c->size; r++) {
        if (r == c->rank || !missing(s, r)) {
            continue;
        }
        struct shm_slot *slot = shm_slot(s, r);
        uint32_t left = atomic_load(&slot->left);
        bool dead = left == SHM_HERE && gone(s, r);
        if ((left == SHM_HERE && !dead) || !missing(s, r)) { /* it may have arrived before it
                                                              * left */
            continue;
        }
        struct dt_text who;
        dt_text_init(&who);
        describe(c, r, &who);
        if (dead) {
            (void)dt_fail(err, DT_PEER, "%s, is gone: process %d has ended", dt_text_str(&who), slot->pid);
        } else if (left == SHM_ORDERED) {
            (void)dt_fail(err, DT_STOPPED, "%s, was told that the round is over", dt_text_str(&who));
        } else {
            (void)dt_fail(err, DT_PEER, "%s, has closed communicator %s", dt_text_str(&who), c->name);
        }
        dt_text_clear(&who);
        return dt_blame(err, DT_FAULT_LOST, dt_comm_job_rank(c, r));
    }
    return 0;
}

static int wait_asleep(struct dt_comm *c, const struct shm_call *call, uint32_t target, struct dt_error *err)
{
    struct shm *s = c->state;
    double start_s = dt_now_s(), look_s = start_s + SHM_LOOK_S, say_s = start_s + SAY_S;
    for (;;) {
        uint32_t seen = atomic_load(&s->header->arrived);
        if ((int32_t)(seen - target) >= 0) {
            return 0;
        }
        if (told(c) && hear(c, err) != 0) {
            return -1;
        }
        futex_wait(&s->header->arrived, seen, SHM_LOOK_S);
        double now_s = dt_now_s();
        if (now_s < look_s) {
            continue;
        }
        look_s = now_s + SHM_LOOK_S;
        if (look_after_missing(c, err) != 0) {
            struct dt_error why;
            if (told(c) && hear(c, &why) != 0) { /* the better reason, and the cause of the other */
                *err = why;
                return -1;
            }
            shm_fail(c, err);
            return -1;
        }
        if (now_s < say_s && now_s - start_s < call->timeout_s) {
            continue;
        }
        struct dt_text who;
        char where[128];
        dt_text_init(&who);
        describe_missing(c, &who);
        say_where(call, where, sizeof(where));
        int rc = 0;
        if ((int32_t)(atomic_load(&s->header->arrived) - target) >= 0) {
            rc = 0;
        } else if (now_s - start_s >= call->timeout_s) {
            rc = dt_fail(err, DT_TIMEOUT, "no end in %g s; missing: %s", call->timeout_s, dt_text_str(&who));
            shm_fail(c, err);
        } else {
            dt_log(DT_LOG_WARN, "comm", "%s %s: has waited %.0f s, gives up after %.0f s; missing: %s", c->name, where,
                   now_s - start_s, call->timeout_s, dt_text_str(&who));
            say_s = now_s + SAY_S;
        }
        dt_text_clear(&who);
        if (rc != 0) {
            return rc;
        }
    }
}

static int wait_for(struct dt_comm *c, const struct shm_call *call, uint32_t target, struct dt_error *err)
{
    struct shm *s = c->state;
    _Atomic uint32_t *arrived = &s->header->arrived;
    double end_s = 0;
    /* Where spinning was in vain (the peer shares this core, or is late), spin for less; now and
     * then try again. */
    double limit_s = s->wait_count++ % 32 == 0 ? s->spin_s : s->spin_now_s;
    for (int i = 1;; i++) {
        if ((int32_t)(atomic_load_explicit(arrived, memory_order_acquire) - target) >= 0) {
            s->spin_now_s = limit_s < s->spin_s / 2 ? limit_s * 2 : s->spin_s;
            return 0;
        }
        relax();
        if (i % 8 == 0) {
            double now_s = dt_now_s();
            end_s = end_s > 0 ? end_s : now_s + limit_s;
            if (now_s >= end_s || told(c)) {
                break;
            }
        }
    }
    s->spin_now_s = s->spin_now_s > s->spin_s / 16 ? s->spin_now_s / 2 : s->spin_now_s;
    atomic_fetch_add(&s->header->sleepers, 1);
    int rc = wait_asleep(c, call, target, err);
    atomic_fetch_sub(&s->header->sleepers, 1);
    return rc;
}

int shm_step(struct dt_comm *c, const struct shm_call *call, struct dt_error *err)
{
    struct shm *s = c->state;
    struct shm_header *h = s->header;
    if (told(c) && hear(c, err) != 0) {
        return dt_wrap(err, "%s %s", call->what, call->name);
    }
    uint32_t target = ++s->step * (uint32_t)c->size; /* wraps around, as arrived does */
    uint32_t now = atomic_fetch_add(&h->arrived, 1) + 1;
    /* Only now: whoever is killed in between has arrived, and is not waited for. */
    atomic_store_explicit(&shm_slot(s, c->rank)->step, s->step, memory_order_release);
    int rc = 0;
    if (now == target) {
        if (atomic_load(&h->sleepers) != 0) {
            shm_wake(s);
        }
    } else {
        rc = wait_for(c, call, target, err);
    }
    if (rc != 0) {
        char where[128];
        say_where(call, where, sizeof(where));
        (void)dt_wrap(err, "%s", where);
    }
    return rc;
}

int shm_look(struct dt_comm *c, struct dt_error *err)
{
    struct shm *s = c->state;
    if (told(c) && hear(c, err) != 0) {
        return -1;
    }
    for (int r = 0; r < c->size; r++) {
        struct shm_slot *slot = shm_slot(s, r);
        if (r != c->rank && gone(s, r) && atomic_load(&slot->left) == SHM_HERE) {
            (void)dt_fail(err, DT_PEER, "communicator %s: rank %d is gone: process %d has ended", c->name,
                          shm_shown(c, r), slot->pid);
            (void)dt_blame(err, DT_FAULT_LOST, dt_comm_job_rank(c, r));
            shm_fail(c, err);
            return -1;
        }
    }
    return 0;
}
