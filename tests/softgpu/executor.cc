/* One block at a time, its threads as fibers. Which thread goes on when one waits is the
 * schedule (SOFTGPU_ORDER):
 *   0  ascending, warps in step: the simplest, for debugging
 *   1  blocks and threads descending, and one warp runs ahead as far as it can
 *   2+ as 1, from a random place in a random direction (SOFTGPU_SEED)
 * A missing barrier mostly passes with 0 and gives wrong values with the others. */
#include "tests/softgpu/executor.h"

#include "tests/softgpu/fiber.h"
#include "tests/softgpu/sanitize.h"
#include "tests/softgpu/shared.h"
#include "tests/softgpu/softgpu.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

__thread uint3 softgpu_thread_index, softgpu_block_index;
__thread uint3 softgpu_block_size, softgpu_grid_size;

namespace
{

enum { THREADS_MAX = 1024, WARPS_MAX = 32, GROUPS = 4, SYNCS = 8, COPIES_MAX = 128 };
enum state : unsigned char { FRESH, READY, IN_BARRIER, IN_WARP, DONE };

struct thread {
    struct fiber *fiber;
    uint3 index;
    enum state state;
    const char *file, *operation; /* where it waits */
    int line;
    int copy_first, copy_count, copy_group; /* of its late copies; groups committed so far */
};

struct warp {
    unsigned lanes, runnable, done;
    struct softgpu_group groups[GROUPS]; /* in flight where the mask is not 0 */
    unsigned syncs;                      /* groups so far */
    char clocks[SYNCS][8];               /* addresses for the thread sanitizer, one after the
                                          * other */
};

struct machine {
    struct fiber host, *current;
    struct fiber fibers[THREADS_MAX], *idle[THREADS_MAX];
    int fiber_count, idle_count;
    struct thread threads[THREADS_MAX];
    struct warp warps[WARPS_MAX];
    struct softgpu_copy (*copies)[COPIES_MAX];
    const struct softgpu_work *work;
    int thread_count, warp_count, running, done;
    int order, direction, first_lane, first_warp;
    int waiting, voted; /* in the barrier */
    unsigned barriers;  /* passed so far */
    int votes[2];
    const char *barrier_file;
    int barrier_line;
    char barrier_clock[2][8], begin_clock[8], end_clock[8];
    uint64_t random;
    int rotation; /* of threads over fibers, for the thread sanitizer */
};

__thread struct machine *own;

int setting(const char *name)
{
    const char *text = getenv(name);
    return text != nullptr ? atoi(text) : 0;
}

uint64_t next_random(struct machine *m)
{
    m->random += 0x9e3779b97f4a7c15u;
    uint64_t x = m->random;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* The first set bit from `start` on, in the direction of this block, around the end; -1 for
 * none. */
int scan(unsigned bits, int start, int direction)
{
    if (bits == 0) {
        return -1;
    }
    unsigned turned =
        direction > 0 ? bits >> start | bits << (-start & 31) : bits << (31 - start) | bits >> ((start + 1) & 31);
    return (direction > 0 ? start + __builtin_ctz(turned) : start - __builtin_clz(turned)) & 31;
}

struct thread *running_thread()
{
    return &own->threads[own->running];
}

/* ---- the schedule ---- */

int pick_in_warp(struct machine *m, int w, int from)
{
    int lane = scan(m->warps[w].runnable, from, m->direction);
    return lane < 0 ? -1 : w * 32 + lane;
}

/* Warps from `w` on, in this block's direction. */
int pick_from_warp(struct machine *m, int w, int count)
{
    for (int i = 0; i < count; i++) {
        int at = ((w + m->direction * i) % m->warp_count + m->warp_count) % m->warp_count;
        int t = pick_in_warp(m, at, m->first_lane);
        if (t >= 0) {
            return t;
        }
    }
    return -1;
}

/* Who runs after the running thread, which waits or is done; -1: nobody can. */
int pick(struct machine *m)
{
    int w = m->running >> 5, lane = m->running & 31;
    if (m->order == 0) {
        unsigned later = lane == 31 ? 0 : m->warps[w].runnable & ~0u << (lane + 1);
        int at = scan(later, 0, 1);
        if (at >= 0) {
            return w * 32 + at;
        }
        return pick_from_warp(m, w + 1, m->warp_count);
    }
    int t = pick_in_warp(m, w, (lane + m->direction) & 31);
    return t >= 0 ? t : pick_from_warp(m, w + m->direction, m->warp_count);
}

void restore_index()
{
    softgpu_thread_index = running_thread()->index;
}

[[noreturn]] void die_waiting(struct machine *m)
{
    char text[400];
    int length = 0, shown = 0;
    for (int i = 0; i < m->thread_count && shown < 4; i++) {
        const struct thread *t = &m->threads[i];
        if (t->state == IN_BARRIER || t->state == IN_WARP) {
            length += snprintf(text + length, sizeof text - (size_t)length, "%s thread %d waits at line %d (%s)",
                               shown > 0 ? "," : "", i, t->line, t->state == IN_WARP ? "warp" : "barrier");
            shown++;
        }
    }
    softgpu_die("threads wait for ever:%s", text);
}

void fiber_main(void *argument);

#ifdef SOFTGPU_TSAN
/* No fiber runs two threads of a block, so that the sanitizer tells them apart. From order 2 on
 * a thread has another fiber in each block, so that it tells two blocks' threads of the same
 * index apart, too. */
int watched_count(const struct machine *m)
{
    return m->thread_count > 64 || m->order < 2 ? m->thread_count : 64;
}

int watched_fiber(struct machine *m, int thread)
{
    return (thread + m->rotation) % watched_count(m);
}
#endif

struct fiber *opened(struct machine *m, struct fiber *f)
{
    if (f->stack == nullptr && fiber_open(f, fiber_main, m) != 0) {
        softgpu_die("no memory for a stack");
    }
    return f;
}

/* Leaves the fiber of a thread that waits, or is done, for the next thread. */
void leave(struct machine *m, bool done)
{
    int next = pick(m);
    struct fiber *from = m->current;
    if (next < 0) {
        if (m->done < m->thread_count) {
            die_waiting(m);
        }
        m->idle[m->idle_count++] = from;
        m->current = &m->host;
        fiber_switch(from, &m->host);
        return;
    }
    m->warps[next >> 5].runnable &= ~(1u << (next & 31));
    m->running = next;
    struct thread *t = &m->threads[next];
#ifndef SOFTGPU_TSAN
    if (t->state == FRESH && done) {
        return; /* the loop of this fiber runs it */
    }
#endif
    if (done) {
        m->idle[m->idle_count++] = from;
    }
    if (t->state == FRESH) {
#ifdef SOFTGPU_TSAN
        t->fiber = &m->fibers[watched_fiber(m, next)];
#else
        t->fiber = opened(m, m->idle_count > 0 ? m->idle[--m->idle_count] : &m->fibers[m->fiber_count++]);
#endif
    }
    m->current = t->fiber;
    fiber_switch(from, t->fiber);
    restore_index();
}

void wait_as(struct machine *m, enum state state, const char *operation, const char *file, int line)
{
    struct thread *t = running_thread();
    t->state = state;
    t->operation = operation;
    t->file = file;
    t->line = line;
    int self = m->running;
    leave(m, false);
    m->running = self;
    t->state = READY;
}

/* ---- a thread ---- */

void end_thread(struct machine *m)
{
    struct thread *t = running_thread();
    struct warp *w = &m->warps[m->running >> 5];
    unsigned bit = 1u << (m->running & 31);
    if (t->copy_count > 0) {
        softgpu_die("thread %d ends with %d copies that it never waited for", m->running, t->copy_count);
    }
    for (int i = 0; i < GROUPS; i++) {
        if (w->groups[i].mask & bit) {
            softgpu_die("thread %d returned while its warp waits for it in %s at line %d", m->running,
                        w->groups[i].operation, w->groups[i].line);
        }
    }
    t->state = DONE;
    w->done |= bit;
    m->done++;
    if (m->waiting > 0) {
        softgpu_die("a thread returned while %d others wait in __syncthreads at line %d", m->waiting, m->barrier_line);
    }
}

void fiber_main(void *argument)
{
    struct machine *m = (struct machine *)argument;
    for (;;) {
        restore_index();
        tsan_acquire(m->begin_clock);
        running_thread()->fiber = m->current;
        m->work->run(m->work->call);
        tsan_release(m->end_clock);
        end_thread(m);
        leave(m, true);
    }
}

struct machine *open_machine()
{
    if (own == nullptr) {
        void *p =
            mmap(nullptr, sizeof *own, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        void *copies = mmap(nullptr, sizeof *own->copies * THREADS_MAX, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED || copies == MAP_FAILED) {
            softgpu_die("no memory for an executor");
        }
        own = (struct machine *)p;
        own->copies = (struct softgpu_copy(*)[COPIES_MAX])copies;
        own->order = setting("SOFTGPU_ORDER");
        own->random = (uint64_t)setting("SOFTGPU_SEED");
        fiber_adopt(&own->host);
        shared_open();
    }
    return own;
}

void choose_schedule(struct machine *m)
{
    uint64_t r = m->order >= 2 ? next_random(m) : 0;
    m->direction = m->order == 0 || (m->order >= 2 && (r & 1)) ? 1 : -1;
    m->first_lane = m->order == 0 ? 0 : m->order == 1 ? 31 : (int)(r >> 8 & 31);
    m->first_warp = m->order == 0   ? 0
                    : m->order == 1 ? m->warp_count - 1
                                    : (int)((r >> 16 & 0xffff) % (unsigned)m->warp_count);
}

void run_block(struct machine *m)
{
    const struct softgpu_work *w = m->work;
    choose_schedule(m);
    m->done = m->waiting = m->voted = 0;
    if (shared_begin(w->shared_bytes)) {
        tsan_release(m->begin_clock); /* for this block's threads the arena is new; what other
                                       * blocks did is not in it */
    }
    for (int i = 0; i < m->warp_count; i++) {
        int left = m->thread_count - i * 32;
        m->warps[i].lanes = m->warps[i].runnable = left >= 32 ? ~0u : (1u << left) - 1;
        m->warps[i].done = 0;
        for (int g = 0; g < GROUPS; g++) {
            m->warps[i].groups[g].mask = 0;
        }
    }
    for (int i = 0; i < m->thread_count; i++) {
        struct thread *t = &m->threads[i];
        t->state = FRESH;
        t->copy_first = t->copy_count = t->copy_group = 0;
    }
    int first = pick_from_warp(m, m->first_warp, m->warp_count);
    m->warps[first >> 5].runnable &= ~(1u << (first & 31));
    m->running = first;
    struct fiber *f;
#ifdef SOFTGPU_TSAN
    m->rotation = m->order >= 2 ? (int)(next_random(m) & 63) : 0;
    f = &m->fibers[watched_fiber(m, first)];
    m->idle_count = 0;
#else
    f = opened(m, m->idle_count > 0 ? m->idle[--m->idle_count] : &m->fibers[m->fiber_count++]);
#endif
    m->threads[first].fiber = f;
    m->current = f;
    fiber_switch(&m->host, f);
    shared_end();
}

} // namespace

void softgpu_execute(const struct softgpu_work *w)
{
    struct machine *m = open_machine();
    m->work = w;
    m->thread_count = (int)(w->block.x * w->block.y * w->block.z);
    m->warp_count = (m->thread_count + 31) / 32;
    softgpu_block_size = w->block;
    softgpu_grid_size = w->grid;
    for (int i = 0; i < m->thread_count; i++) {
        unsigned n = (unsigned)i;
        m->threads[i].index = {n % w->block.x, n / w->block.x % w->block.y, n / w->block.x / w->block.y};
    }
#ifdef SOFTGPU_TSAN
    for (int i = 0; i < watched_count(m); i++) {
        opened(m, &m->fibers[i]); /* by none of the kernel's threads: who opens one is ordered
                                   * before it */
    }
#endif
    tsan_release(m->begin_clock);
    uint64_t count = (uint64_t)w->grid.x * w->grid.y * w->grid.z;
    uint64_t first = m->order >= 2 ? next_random(m) % count : m->order == 1 ? count - 1 : 0;
    bool down = m->order == 1 || (m->order >= 2 && (next_random(m) & 1));
    for (uint64_t i = 0; i < count; i++) {
        uint64_t at = down ? (first + count - i) % count : (first + i) % count;
        softgpu_block_index = {(unsigned)(at % w->grid.x), (unsigned)(at / w->grid.x % w->grid.y),
                               (unsigned)(at / w->grid.x / w->grid.y)};
        run_block(m);
    }
    tsan_acquire(m->end_clock);
    m->work = nullptr;
}

void softgpu_execute_no_more(void)
{
    struct machine *m = own;
    if (m == nullptr) {
        return;
    }
    for (int i = 0; i < THREADS_MAX; i++) {
        if (m->fibers[i].stack != nullptr) {
            fiber_close(&m->fibers[i]);
        }
    }
    shared_close();
    munmap(m->copies, sizeof *m->copies * THREADS_MAX);
    munmap(m, sizeof *m);
    own = nullptr;
}

int softgpu_linear_index(void)
{
    return own->running;
}

void softgpu_die(const char *fmt, ...)
{
    char text[700];
    int n = 0;
    if (own != nullptr && own->work != nullptr) {
        uint3 b = softgpu_block_index;
        n = snprintf(text, sizeof text, "softgpu: kernel %s block (%u,%u,%u): ", own->work->name, b.x, b.y, b.z);
    } else {
        n = snprintf(text, sizeof text, "softgpu: ");
    }
    va_list args;
    va_start(args, fmt);
    n += vsnprintf(text + n, sizeof text - (size_t)n - 1, fmt, args);
    va_end(args);
    n = n < (int)sizeof text - 1 ? n : (int)sizeof text - 2;
    text[n] = '\n';
    if (write(2, text, (size_t)n + 1) < 0) {
    }
    /* Not abort: the line is the message, a core of a thousand stacks helps nobody. Nor _exit,
     * of which the thread sanitizer has its own. */
    syscall(SYS_exit_group, SOFTGPU_EXIT);
    __builtin_unreachable();
}

/* ---- barriers and warps ---- */

/* Literals, of which another translation unit may have its own. */
static bool same(const char *a, const char *b)
{
    return a == b || strcmp(a, b) == 0;
}

int softgpu_barrier(const char *file, int line, int x)
{
    struct machine *m = own;
    unsigned turn = m->barriers & 1;
    if (m->done > 0) {
        softgpu_die("a thread returned before __syncthreads at line %d", line);
    }
    if (m->waiting == 0) {
        m->barrier_file = file;
        m->barrier_line = line;
    } else if (m->barrier_line != line || !same(m->barrier_file, file)) {
        softgpu_die("threads meet at different __syncthreads: lines %d and %d", line, m->barrier_line);
    }
    tsan_release(m->barrier_clock[turn]);
    m->voted += x != 0;
    if (++m->waiting < m->thread_count) {
        wait_as(m, IN_BARRIER, "__syncthreads", file, line);
    } else {
        m->votes[turn] = m->voted;
        m->voted = m->waiting = 0;
        m->barriers++;
        for (int i = 0; i < m->warp_count; i++) {
            m->warps[i].runnable = m->warps[i].lanes;
        }
        m->warps[m->running >> 5].runnable &= ~(1u << (m->running & 31));
    }
    tsan_acquire(m->barrier_clock[turn]);
    return m->votes[turn];
}

/* A call: with the thread sanitizer on, gcc takes no fence in code that is watched. */
void softgpu_fence(void)
{
    static char clock[8];
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    tsan_release(clock);
    tsan_acquire(clock);
}

static void check_group(const struct softgpu_group *g, unsigned mask, int lane, const char *operation, int line)
{
    if ((mask & g->arrived) != 0 && (g->mask >> lane & 1)) {
        softgpu_die("lanes of a warp meet at different operations: %s at line %d and %s at line %d", operation, line,
                    g->operation, g->line);
    }
}

void softgpu_collect(unsigned mask, const char *operation, const char *file, int line, const void *in, void *out,
                     void (*compute)(struct softgpu_group *))
{
    struct machine *m = own;
    struct warp *w = &m->warps[m->running >> 5];
    int lane = m->running & 31;
    if (!(mask >> lane & 1)) {
        softgpu_die("%s at line %d: lane %d is not in its own mask %#x", operation, line, lane, mask);
    }
    if (mask & ~w->lanes) {
        softgpu_die("%s at line %d: mask %#x names lanes that the block does not have (%#x)", operation, line, mask,
                    w->lanes);
    }
    if (mask & w->done) {
        softgpu_die("%s at line %d: mask %#x names lanes that returned (%#x)", operation, line, mask, w->done);
    }
    struct softgpu_group *g = nullptr, *vacant = nullptr;
    for (int i = 0; i < GROUPS; i++) {
        struct softgpu_group *x = &w->groups[i];
        if (x->mask == 0) {
            vacant = x;
        } else if (x->mask == mask && x->line == line && same(x->operation, operation) && same(x->file, file) &&
                   !(x->arrived >> lane & 1)) {
            g = x;
        } else {
            check_group(x, mask, lane, operation, line);
        }
    }
    if (g == nullptr) {
        if (vacant == nullptr) {
            softgpu_die("%s at line %d: more than %d groups of one warp are under way", operation, line, GROUPS);
        }
        g = vacant;
        g->mask = mask;
        g->arrived = 0;
        g->operation = operation;
        g->file = file;
        g->line = line;
        g->clock = w->clocks[w->syncs++ % SYNCS];
    }
    char *clock = g->clock;
    g->in[lane] = in;
    g->out[lane] = out;
    g->arrived |= 1u << lane;
    if (compute == nullptr) {
        tsan_release(clock);
    }
    if (g->arrived != mask) {
        wait_as(m, IN_WARP, operation, file, line);
    } else {
        if (compute != nullptr) {
            tsan_ignore_begin();
            compute(g);
            tsan_ignore_end();
        }
        g->mask = 0;
        w->runnable |= mask & ~(1u << lane);
    }
    if (compute == nullptr) {
        tsan_acquire(clock);
    }
}

/* ---- late copies ---- */

void softgpu_copy_begin(void *dst, const void *src, int source_bytes)
{
    struct machine *m = own;
    struct thread *t = running_thread();
    if ((uintptr_t)src % 16 != 0) {
        softgpu_die("dt_cp_async16: the source is not aligned to 16 bytes");
    }
    if (source_bytes < 0 || source_bytes > 16) {
        softgpu_die("dt_cp_async16: %d bytes", source_bytes);
    }
    if (t->copy_count == COPIES_MAX) {
        softgpu_die("dt_cp_async16: more than %d copies of a thread are under way", COPIES_MAX);
    }
    m->copies[m->running][(t->copy_first + t->copy_count++) % COPIES_MAX] = {dst, src, source_bytes, t->copy_group};
}

void softgpu_copy_commit(void)
{
    running_thread()->copy_group++;
}

bool softgpu_copy_next(int pending, struct softgpu_copy *out)
{
    struct thread *t = running_thread();
    const struct softgpu_copy *first = &own->copies[own->running][t->copy_first];
    if (t->copy_count == 0 || first->group >= t->copy_group - pending) {
        return false;
    }
    *out = *first;
    t->copy_first = (t->copy_first + 1) % COPIES_MAX;
    t->copy_count--;
    return true;
}
