/* Tells which rank is in which collective. NCCL does not tell which rank it waits for. So each
 * rank's stream writes two numbers into memory that the ranks of its host share: the collective
 * it has reached, and the last one it has finished. Beside them lies a description of what each
 * rank is about to do. The rank that comes later compares it with its own, since NCCL would hang
 * or compute nonsense if they differed. Of other hosts, the control tells when they fail or are
 * gone. */
#include "collectives/nccl.h"
#include "collectives/tcp.h"

#include "base/clock.h"
#include "base/text.h"
#include "collectives/backends.h"
#include "kernels/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAMED_MAX 4
/* ranks on the missing rank's host give up first, because they can name it */
#define OTHERS_MORE_S 2.0

static struct nccl_side *side(const struct nccl *n, int i)
{
    return (struct nccl_side *)(void *)((char *)n->sides + (size_t)i * n->side_stride);
}

static int rank_of(const struct dt_comm *c, int i)
{
    const struct nccl *n = c->state;
    return shm_shown(c, n->side_ranks != NULL ? n->side_ranks[i] : i);
}

static uint32_t look(const uint32_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

int nccl_watch_open(struct dt_comm *c, struct dt_error *err)
{
    struct nccl *n = c->state;
    const struct dt_comm *local = n->control;
    size_t bytes = (sizeof(struct nccl_side) + 4095) / 4096 * 4096;
    void *own = NULL;
    if (n->control->ops->alloc(n->control, bytes, &own, err) != 0) {
        return -1;
    }
    if (n->control->ops == &dt_comm_tcp) {
        const struct tcp *t = n->control->state;
        local = t->inner;
        n->side_ranks = t->hosts[t->here].ranks;
    }
    n->side_count = local->size;
    n->own_side = local->rank;
    n->side_stride = bytes;
    n->sides = own;
    if (local->ops == &dt_comm_shm) {
        const struct shm *s = local->state;
        n->side_stride = s->arenas[s->arena_count - 1].stride;
        n->sides = (struct nccl_side *)(void *)((char *)own - (size_t)n->own_side * n->side_stride);
    }
    n->seen_s = dt_now_s();
    if (dt_device_pin(c->device, n->sides, n->side_stride * (size_t)n->side_count, err) != 0) {
        n->sides = NULL;
        return -1;
    }
    return 0;
}

void nccl_watch_close(struct dt_comm *c)
{
    struct nccl *n = c->state;
    if (n->sides != NULL) {
        dt_device_unpin(c->device, n->sides);
        n->sides = NULL;
    }
}

void nccl_mark(struct dt_comm *c, struct dt_stream *s, bool done)
{
    struct nccl *n = c->state;
    struct nccl_side *own = side(n, n->own_side);
    dt_stream_write_word(s, done ? &own->done : &own->ready, n->step);
}

/* Reads what side i has published for collective `number`. False: side i has not come to that
 * number, or has overwritten it. */
static bool read_notice(const struct nccl *n, int i, uint32_t number, uint64_t *digest, char out[NCCL_TEXT_BYTES])
{
    const struct nccl_notice *x = &side(n, i)->notices[number % NCCL_RING];
    uint64_t words[NCCL_TEXT_WORDS];
    if (atomic_load(&x->number) != number) {
        return false;
    }
    *digest = atomic_load(&x->digest);
    for (int k = 0; k < NCCL_TEXT_WORDS; k++) {
        words[k] = atomic_load(&x->text[k]);
    }
    memcpy(out, words, NCCL_TEXT_BYTES);
    out[NCCL_TEXT_BYTES - 1] = '\0';
    return atomic_load(&x->number) == number;
}

int nccl_publish(struct dt_comm *c, const struct dt_collective *x, struct dt_error *err)
{
    struct nccl *n = c->state;
    struct nccl_notice *mine = &side(n, n->own_side)->notices[n->step % NCCL_RING];
    uint64_t h = shm_mix(shm_mix(shm_mix(1, n->step), (uint64_t)x->count),
                         (uint64_t)x->kind << 32 | (uint64_t)x->type << 16 | (uint64_t)x->op);
    h = shm_mix(h, (uint64_t)(x->kind == DT_BROADCAST ? x->root : 0));
    for (const char *p = x->name; *p != '\0'; p++) {
        h = shm_mix(h, (uint64_t)(unsigned char)*p);
    }
    char ours[NCCL_TEXT_BYTES] = "", theirs[NCCL_TEXT_BYTES];
    uint64_t words[NCCL_TEXT_WORDS], digest;
    (void)snprintf(ours, sizeof ours, "%s %.40s of %lld %s", dt_coll_name(x->kind), x->name, (long long)x->count,
                   dt_dtype_name(x->type));
    memcpy(words, ours, sizeof words);
    atomic_store(&mine->number, 0); /* 0 marks it as being written */
    for (int i = 0; i < NCCL_TEXT_WORDS; i++) {
        atomic_store(&mine->text[i], words[i]);
    }
    atomic_store(&mine->digest, h);
    atomic_store(&mine->number, n->step);
    for (int i = 0; i < n->side_count; i++) {
        if (i != n->own_side && read_notice(n, i, n->step, &digest, theirs) && digest != h) {
            return dt_fail(err, DT_INVALID,
                           "communicator %s: the ranks disagree on collective %u: rank %d does %s, rank %d does %s",
                           c->name, n->step, shm_shown(c, c->rank), ours, rank_of(c, i), theirs);
        }
    }
    return 0;
}

/* ", in all_reduce grads 3 of 100 F32 (number 118)" */
static void describe_side(const struct nccl *n, int i, uint32_t number, const char *before, struct dt_text *out)
{
    char text[NCCL_TEXT_BYTES];
    uint64_t digest;
    if (number == 0) {
        dt_text_puts(out, ", which has come to no collective yet");
    } else if (read_notice(n, i, number, &digest, text)) {
        dt_text_printf(out, "%s%s (number %u)", before, text, number);
    } else {
        dt_text_printf(out, "%snumber %u", before, number);
    }
}

void nccl_describe(struct dt_comm *c, struct dt_text *out)
{
    const struct nccl *n = c->state;
    if (n->sides == NULL) {
        return;
    }
    const struct nccl_side *own = side(n, n->own_side);
    uint32_t ready = look(&own->ready);
    if (ready != look(&own->done)) {
        describe_side(n, n->own_side, ready, ", in ", out);
    }
}

bool nccl_waits(struct dt_comm *c)
{
    const struct nccl *n = c->state;
    const struct nccl_side *own = side(n, n->own_side);
    return look(&own->ready) != look(&own->done);
}

/* Seconds for which this rank's stream has stood in collective `ready`, as far as we have
 * looked. */
static double stands_s(struct nccl *n, uint32_t ready, uint32_t done)
{
    double now_s = dt_now_s();
    (void)pthread_mutex_lock(&n->facts_lock);
    if (ready == done || ready != n->seen_ready || done != n->seen_done) {
        n->seen_ready = ready;
        n->seen_done = done;
        n->seen_s = now_s;
    }
    double seconds = now_s - n->seen_s;
    (void)pthread_mutex_unlock(&n->facts_lock);
    return seconds;
}

/* Lists the ranks of this host that have not reached collective `ready`. Returns how many. */
static int describe_missing(const struct dt_comm *c, uint32_t ready, struct dt_text *out)
{
    const struct nccl *n = c->state;
    int count = 0;
    for (int i = 0; i < n->side_count; i++) {
        uint32_t theirs = look(&side(n, i)->ready);
        if ((int32_t)(theirs - ready) < 0 && count++ < NAMED_MAX) {
            dt_text_printf(out, "%srank %d", count > 1 ? "; " : "", rank_of(c, i));
            describe_side(n, i, theirs, ", last in ", out);
        }
    }
    if (count > NAMED_MAX) {
        dt_text_printf(out, "; and %d more", count - NAMED_MAX);
    }
    return count;
}

int nccl_check_clock(struct dt_comm *c, struct dt_error *err)
{
    struct nccl *n = c->state;
    const struct nccl_side *own = side(n, n->own_side);
    uint32_t ready = look(&own->ready), done = look(&own->done);
    double stood_s = stands_s(n, ready, done);
    if (stood_s < c->timeout_s || ready == done) {
        return 0;
    }
    struct dt_text where, missing;
    int rc = 0;
    dt_text_init(&where);
    dt_text_init(&missing);
    int count = describe_missing(c, ready, &missing);
    bool all_here = n->side_count == c->size;
    if (count > 0 || all_here || stood_s >= c->timeout_s + OTHERS_MORE_S) {
        describe_side(n, n->own_side, ready, ", in ", &where);
        if (count == 0) {
            dt_text_puts(&missing, all_here
                                       ? "nobody, all ranks are in it and NCCL does not end"
                                       : "nobody of this host, so a rank of another one is late, or NCCL does not end");
        }
        rc = dt_fail(err, DT_TIMEOUT, "communicator %s: rank %d%s: no end in %.3g s; missing: %s", c->name,
                     shm_shown(c, c->rank), dt_text_str(&where), c->timeout_s, dt_text_str(&missing));
    }
    dt_text_clear(&where);
    dt_text_clear(&missing);
    return rc;
}
