/* Windows in a room: which bytes of the array are where, and what has to happen before they are used,
 * changed, written or replaced. Only the host thread looks at this; the order of the work itself is in
 * events. */
#include "worker/engine/homes/windows.h"

#include "base/text.h"
#include "worker/engine/homes/transfer.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { FINISH_S = 60 }; /* of a few portions: a disk that takes longer is lost */
enum { PAGE = TRANSFER_PAGE_BYTES, WINDOWS_MOST = HOME_PIECES_MOST + 32 };

struct window {
    bool there;
    size_t at, size_bytes;       /* of the array */
    size_t offset;               /* in the room: offset % PAGE is at % PAGE */
    int pieces;                  /* of it that are brought now */
    size_t changed, changed_end; /* given back, and not on its way out yet */
    bool out;                    /* `stored` was recorded */
    struct dt_event *filled, *used, *stored;
};

struct piece {
    size_t at, size_bytes;
    enum home_use use;
    struct window *in;
};

struct windows {
    struct dt_stream *in, *out;
    char *room;
    size_t room_bytes, size_bytes;
    size_t ahead_bytes; /* 0: nothing is read ahead */
    bool overlaps_reads, overlaps_writes;
    struct windows_rest rest;
    struct window window[WINDOWS_MOST];
    struct piece piece[HOME_PIECES_MOST];
    int piece_count;
    size_t next;     /* where the room's next window goes */
    size_t last_end; /* of what was brought last */
    int replaced;    /* the window whose turn it is, when all are there */
};

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t whole_pages(size_t n)
{
    return (n + PAGE - 1) / PAGE * PAGE;
}

size_t windows_room_bytes(const struct home_settings *settings, size_t size_bytes, size_t most_bytes)
{
    if (size_bytes == 0) {
        return 0;
    }
    size_t gap = settings->whole_pages ? 0 : PAGE,
           ahead = whole_pages(least(settings->portion_bytes, size_bytes)) + gap;
    size_t pieces = least(HOME_PIECES_MOST, most_bytes / HOME_PIECE_BYTES + 1);
    return whole_pages(least(most_bytes, size_bytes)) + (pieces + 1) * gap + (size_t)(settings->buffers - 1) * ahead;
}

int windows_open(struct windows **out, const struct home *h, struct world *w, void *room, struct dt_stream *in,
                 struct dt_stream *out_stream, const struct windows_rest *rest, struct dt_error *err)
{
    struct windows *x = dt_alloc(sizeof *x);
    *out = x;
    x->in = in;
    x->out = out_stream;
    x->room = room;
    x->room_bytes = windows_room_bytes(h->settings, h->size_bytes, h->most_bytes);
    x->size_bytes = h->size_bytes;
    x->ahead_bytes = h->settings->reads_ahead ? h->settings->portion_bytes : 0;
    x->overlaps_reads = h->settings->overlaps_reads;
    x->overlaps_writes = h->settings->overlaps_writes;
    x->rest = *rest;
    for (int i = 0; i < WINDOWS_MOST; i++) {
        struct window *v = &x->window[i];
        if (dt_event_open(w->device, &v->filled, err) != 0 || dt_event_open(w->device, &v->used, err) != 0 ||
            dt_event_open(w->device, &v->stored, err) != 0) {
            return -1;
        }
    }
    return 0;
}

void windows_close(struct windows *x)
{
    if (x != NULL) {
        (void)dt_stream_finish(x->in, FINISH_S, NULL);
        (void)dt_stream_finish(x->out, FINISH_S, NULL);
    }
    for (int i = 0; x != NULL && i < WINDOWS_MOST; i++) {
        dt_event_close(x->window[i].filled);
        dt_event_close(x->window[i].used);
        dt_event_close(x->window[i].stored);
    }
    free(x);
}

/* ---- out ---- */

static void store(struct windows *x, struct window *v)
{
    if (v->changed == v->changed_end) {
        return;
    }
    size_t offset = v->offset + (v->changed - v->at);
    dt_event_wait(v->used, x->out);
    x->rest.out(x->rest.context, x->out, x->room + offset, offset, v->changed, v->changed_end - v->changed);
    dt_event_record(v->stored, x->out);
    v->out = true;
    v->changed = v->changed_end = 0;
    if (!x->overlaps_writes) {
        dt_event_wait(v->stored, x->in);
    }
}

/* What comes in from here on comes after all that was done with the window. */
static void await(struct windows *x, struct window *v)
{
    store(x, v);
    dt_event_wait(v->used, x->in);
    if (v->out) {
        dt_event_wait(v->stored, x->in);
    }
}

/* ---- in ---- */

static bool overlap(size_t a, size_t a_bytes, size_t b, size_t b_bytes)
{
    return a < b + b_bytes && b < a + a_bytes;
}

/* The first place from `from` on for a window of `at`. */
static size_t fit(size_t from, size_t at)
{
    return from + (at + PAGE - from % PAGE) % PAGE;
}

static const struct window *in_use_at(const struct windows *x, size_t offset, size_t size_bytes)
{
    for (int i = 0; i < WINDOWS_MOST; i++) {
        const struct window *v = &x->window[i];
        if (v->there && v->pieces > 0 && overlap(v->offset, v->size_bytes, offset, size_bytes)) {
            return v;
        }
    }
    return NULL;
}

/* Looks for a place from the last one on, and then from the start. */
static bool find_place(const struct windows *x, size_t at, size_t size_bytes, size_t *out)
{
    size_t place = fit(x->next, at);
    for (int rounds = 0; rounds < 2;) {
        if (place + size_bytes > x->room_bytes) {
            place = fit(0, at);
            rounds++;
            continue;
        }
        const struct window *v = in_use_at(x, place, size_bytes);
        if (v == NULL) {
            *out = place;
            return true;
        }
        place = fit(v->offset + v->size_bytes, at);
    }
    return false;
}

/* Another window has these bytes from now on. */
static void yield_bytes(struct windows *x, struct window *v, size_t at, size_t size_bytes)
{
    await(x, v);
    if (v->pieces == 0) {
        v->there = false;
    } else if (v->at < at) { /* what is in use of it lies before, or behind */
        v->size_bytes = at - v->at;
    } else {
        size_t cut = least(at + size_bytes - v->at, v->size_bytes);
        v->at += cut;
        v->offset += cut;
        v->size_bytes -= cut;
    }
}

static struct window *free_window(struct windows *x)
{
    for (int i = 0; i < WINDOWS_MOST; i++) {
        if (!x->window[i].there) {
            return &x->window[i];
        }
    }
    do {
        x->replaced = (x->replaced + 1) % WINDOWS_MOST;
    } while (x->window[x->replaced].pieces > 0);
    await(x, &x->window[x->replaced]);
    return &x->window[x->replaced];
}

/* Null: there is no place. */
static struct window *open_window(struct windows *x, size_t at, size_t size_bytes, bool fill)
{
    size_t offset;
    if (!find_place(x, at, size_bytes, &offset)) {
        return NULL;
    }
    for (int i = 0; i < WINDOWS_MOST; i++) {
        struct window *v = &x->window[i];
        if (v->there && overlap(v->at, v->size_bytes, at, size_bytes)) {
            yield_bytes(x, v, at, size_bytes);
        }
        if (v->there && overlap(v->offset, v->size_bytes, offset, size_bytes)) {
            await(x, v);
            v->there = false;
        }
    }
    struct window *v = free_window(x);
    struct window opened = {.there = true, .at = at, .size_bytes = size_bytes, .offset = offset};
    opened.filled = v->filled;
    opened.used = v->used;
    opened.stored = v->stored;
    *v = opened;
    x->next = offset + size_bytes;
    if (fill) {
        x->rest.in(x->rest.context, x->in, x->room + offset, offset, at, size_bytes);
    }
    dt_event_record(v->filled, x->in);
    return v;
}

static struct window *window_of(struct windows *x, size_t at, size_t size_bytes)
{
    for (int i = 0; i < WINDOWS_MOST; i++) {
        struct window *v = &x->window[i];
        if (v->there && v->at <= at && at + size_bytes <= v->at + v->size_bytes) {
            return v;
        }
    }
    return NULL;
}

/* Fills the window behind this one, if nothing of it is there and there is a place. */
static void read_ahead(struct windows *x, const struct window *v)
{
    size_t at = v->at + v->size_bytes, size_bytes = least(x->ahead_bytes, x->size_bytes - at);
    for (int i = 0; i < WINDOWS_MOST; i++) {
        const struct window *o = &x->window[i];
        if (size_bytes == 0 || (o->there && overlap(o->at, o->size_bytes, at, size_bytes))) {
            return;
        }
    }
    (void)open_window(x, at, size_bytes, true);
}

void *windows_bring(struct windows *x, size_t at, size_t size_bytes, enum home_use use, struct dt_stream *user)
{
    if (x == NULL || size_bytes == 0) {
        return x != NULL ? x->room : NULL;
    }
    assert(at + size_bytes <= x->size_bytes);
    bool goes_on = at == 0 || at == x->last_end, ahead = use != HOME_WRITE && goes_on;
    struct window *v = window_of(x, at, size_bytes);
    if (v == NULL && ahead && x->piece_count == 0 && size_bytes < x->ahead_bytes) {
        v = open_window(x, at, least(x->ahead_bytes, x->size_bytes - at), true);
    }
    if (v == NULL) {
        v = open_window(x, at, size_bytes, use != HOME_WRITE);
    }
    x->last_end = at + size_bytes;
    if (v == NULL || x->piece_count == HOME_PIECES_MOST) {
        dt_stream_fail(user, DT_INTERNAL, "home: more is brought at a time than was planned for");
        return x->room;
    }
    x->piece[x->piece_count++] = (struct piece){at, size_bytes, use, v};
    v->pieces++;
    if (ahead) {
        read_ahead(x, v);
    }
    struct dt_error why;
    if (dt_stream_failed(x->out, &why)) { /* also where these bytes are still in the room */
        dt_stream_fail_with(user, &why);
    }
    dt_event_wait(v->filled, user);
    dt_event_wait(v->used, user); /* the last one may have been given back for another stream */
    if (use != HOME_READ && v->out) {
        dt_event_wait(v->stored, user);
    }
    return x->room + v->offset + (at - v->at);
}

void windows_back(struct windows *x, size_t at, size_t size_bytes, struct dt_stream *after)
{
    int i = 0;
    if (x == NULL || size_bytes == 0) {
        return;
    }
    while (i < x->piece_count && !(x->piece[i].at == at && x->piece[i].size_bytes == size_bytes)) {
        i++;
    }
    if (i == x->piece_count) { /* the bring has failed */
        return;
    }
    struct piece p = x->piece[i];
    struct window *v = p.in;
    x->piece[i] = x->piece[--x->piece_count];
    v->pieces--;
    bool changed = p.use == HOME_WRITE || p.use == HOME_CHANGE, joins = changed && v->changed_end == at;
    if (changed && !joins) {
        store(x, v);
        v->changed = at;
    }
    dt_event_wait(v->used, after); /* an event has one record: this one includes those before */
    dt_event_record(v->used, after);
    v->changed_end = changed ? at + size_bytes : v->changed_end;
    if (v->pieces == 0) {
        store(x, v);
    }
    if (!x->overlaps_reads) {
        dt_event_wait(v->used, x->in);
    }
}

void windows_ahead(struct windows *x, size_t at, size_t size_bytes)
{
    bool wanted = x != NULL && x->overlaps_reads && size_bytes > 0;
    for (int i = 0; i < WINDOWS_MOST && wanted; i++) {
        const struct window *v = &x->window[i];
        wanted = !v->there || !overlap(v->at, v->size_bytes, at, size_bytes);
    }
    if (wanted) {
        (void)open_window(x, at, size_bytes, true);
    }
}

void *windows_empty(struct windows *x, struct dt_stream *user)
{
    for (int i = 0; i < WINDOWS_MOST; i++) {
        struct window *v = &x->window[i];
        if (v->there) {
            assert(v->pieces == 0);
            await(x, v);
            v->there = false;
        }
    }
    x->next = x->last_end = 0;
    dt_event_record(x->window[0].filled, x->in); /* behind all that came in, and was waited for */
    dt_event_wait(x->window[0].filled, user);
    return x->room;
}
