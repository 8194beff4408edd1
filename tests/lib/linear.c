/* Wing and Gong's search (1993): some operation that began before any other ended comes first;
 * try each such, and go on with the rest. Lowe's memory (2017) makes it fast: a set of
 * operations that are done and the value they left need to be looked at once only. */
#include "tests/lib/linear.h"

#include "base/file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

struct search {
    const struct linear_op *ops;
    size_t count, pending; /* pending: answered operations that are not done */
    uint64_t *done;        /* a bit per operation, and the value behind them */
    size_t words;
    XXH128_hash_t *seen;
    size_t seen_count, seen_capacity, budget;
};

/* What becomes of the value; false: the answer was another one. */
static bool apply(const struct linear_op *o, int64_t *value)
{
    int64_t old = *value, answer;
    bool there = old != LINEAR_NOTHING;
    switch (o->kind) {
    case LINEAR_SET:
        *value = o->value;
        return true;
    case LINEAR_ADD:
        answer = *value = (there ? old : 0) + o->value;
        break;
    case LINEAR_COMPARE_SET: /* of an absent key it gives back what was expected */
        if (there ? old == o->expected : o->expected == LINEAR_NOTHING) {
            *value = o->value;
        }
        answer = *value != LINEAR_NOTHING ? *value : o->expected;
        break;
    case LINEAR_GET:
        answer = old;
        break;
    case LINEAR_WAIT:
        return there;
    case LINEAR_DELETE:
        *value = LINEAR_NOTHING;
        answer = there;
        break;
    default:
        answer = there;
    }
    return o->end == LINEAR_NEVER || o->answer == answer;
}

static bool is_done(const struct search *s, size_t i)
{
    return (s->done[i / 64] >> (i % 64) & 1) != 0;
}

static void grow(struct search *s)
{
    XXH128_hash_t *old = s->seen;
    size_t old_capacity = s->seen_capacity;
    s->seen_capacity = old_capacity > 0 ? old_capacity * 2 : 1024;
    s->seen = dt_alloc(s->seen_capacity * sizeof *s->seen);
    for (size_t i = 0; i < old_capacity; i++) {
        if ((old[i].low64 | old[i].high64) != 0) {
            size_t at = old[i].low64 & (s->seen_capacity - 1);
            while ((s->seen[at].low64 | s->seen[at].high64) != 0) {
                at = (at + 1) & (s->seen_capacity - 1);
            }
            s->seen[at] = old[i];
        }
    }
    free(old);
}

/* Notes what is done with the value it left; false: that was noted before. */
static bool is_new(struct search *s, int64_t value)
{
    if (s->seen_count * 2 >= s->seen_capacity) {
        grow(s);
    }
    s->done[s->words] = (uint64_t)value;
    XXH128_hash_t h = XXH3_128bits(s->done, (s->words + 1) * sizeof *s->done);
    size_t at = h.low64 & (s->seen_capacity - 1);
    for (; (s->seen[at].low64 | s->seen[at].high64) != 0; at = (at + 1) & (s->seen_capacity - 1)) {
        if (XXH128_isEqual(s->seen[at], h)) {
            return false;
        }
    }
    s->seen[at] = h;
    s->seen_count++;
    return true;
}

static bool search(struct search *s, size_t first, int64_t value)
{
    if (s->pending == 0) {
        return true;
    }
    if (!is_new(s, value) || s->seen_count > s->budget) {
        return false;
    }
    while (is_done(s, first)) {
        first++;
    }
    int64_t end = LINEAR_NEVER; /* the earliest of those that are not done */
    for (size_t i = first; i < s->count && s->ops[i].start <= end; i++) {
        const struct linear_op *o = &s->ops[i];
        int64_t next = value;
        if (is_done(s, i)) {
            continue;
        }
        end = o->end < end ? o->end : end;
        if (apply(o, &next)) {
            s->done[i / 64] |= (uint64_t)1 << (i % 64);
            s->pending -= o->end != LINEAR_NEVER;
            if (search(s, first, next)) {
                return true;
            }
            s->pending += o->end != LINEAR_NEVER;
            s->done[i / 64] &= ~((uint64_t)1 << (i % 64));
        }
    }
    return false;
}

static int by_start(const void *a, const void *b)
{
    int64_t x = ((const struct linear_op *)a)->start, y = ((const struct linear_op *)b)->start;
    return (x > y) - (x < y);
}

enum linear_verdict linear_check(struct linear_op *ops, size_t count, size_t budget)
{
    struct search s = {.ops = ops, .count = count, .words = count / 64 + 1, .budget = budget};
    qsort(ops, count, sizeof *ops, by_start);
    for (size_t i = 0; i < count; i++) {
        s.pending += ops[i].end != LINEAR_NEVER;
    }
    s.done = dt_alloc((s.words + 1) * sizeof *s.done);
    bool yes = search(&s, 0, LINEAR_NOTHING);
    free(s.done);
    free(s.seen);
    return yes ? LINEAR_YES : s.seen_count > budget ? LINEAR_UNDECIDED : LINEAR_NO;
}

static void print_value(const char *before, int64_t value)
{
    printf(value == LINEAR_NOTHING ? "%snothing" : "%s%" PRId64, before, value);
}

void linear_print(const struct linear_op *ops, size_t count)
{
    static const char *const names[] = {"set", "add", "compare_set", "get", "check", "wait", "delete"};
    for (size_t i = 0; i < count; i++) {
        const struct linear_op *o = &ops[i];
        printf("%12" PRId64 " ", o->start - ops[0].start);
        o->end == LINEAR_NEVER ? (void)printf("       never ") : (void)printf("%12" PRId64 " ", o->end - ops[0].start);
        printf("%s", names[o->kind]);
        if (o->kind == LINEAR_COMPARE_SET) {
            print_value(" ", o->expected);
        }
        if (o->kind <= LINEAR_COMPARE_SET) {
            print_value(" ", o->value);
        }
        if (o->end != LINEAR_NEVER && o->kind != LINEAR_SET && o->kind != LINEAR_WAIT) {
            print_value(" -> ", o->answer);
        }
        printf("\n");
    }
}
