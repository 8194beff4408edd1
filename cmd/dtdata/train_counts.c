/* See the header. A run holds, for each piece: its size (4 bytes), its count (8), its bytes. */
#include "cmd/dtdata/train_counts.h"

#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { HEAD_BYTES = 12, LEAST_BUFFER = 4096, FIRST_SLOTS = 1024 };

/* ---- the table ---- */

/* The place of an entry counts in units of 8 bytes. Entries are never empty: place 0 is the free slot. */
struct slot {
    uint32_t hash, place;
};

struct entry {
    uint64_t count;
    uint32_t size;
    char bytes[];
};

struct piece_table {
    struct slot *slots;
    size_t slot_count, used, limit;
    char *entries; /* reserved for more than it may use; only what is written takes memory */
    size_t entries_bytes, reserved;
};

static struct entry *entry_at(const struct piece_table *t, uint32_t place)
{
    return (struct entry *)(void *)(t->entries + (size_t)place * 8);
}

struct piece_table *piece_table_open(size_t limit_bytes)
{
    struct piece_table *t = dt_alloc(sizeof *t);
    t->limit = limit_bytes > 65536 ? limit_bytes : 65536;
    if (t->limit > (size_t)30 << 30) {
        t->limit = (size_t)30 << 30; /* places have 32 bits */
    }
    t->reserved = t->limit;
    t->slot_count = FIRST_SLOTS;
    t->slots = dt_alloc(FIRST_SLOTS * sizeof *t->slots);
    t->entries = mmap(NULL, t->reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (t->entries == MAP_FAILED) {
        t->entries = NULL;
        t->reserved = 0;
    }
    t->entries_bytes = 8;
    return t;
}

void piece_table_close(struct piece_table *t)
{
    if (t != NULL) {
        if (t->entries != NULL) {
            (void)munmap(t->entries, t->reserved);
        }
        free(t->slots);
        free(t);
    }
}

bool piece_table_empty(const struct piece_table *t)
{
    return t->used == 0;
}

static void add_slots(struct piece_table *t)
{
    size_t count = t->slot_count * 2;
    struct slot *slots = dt_alloc(count * sizeof *slots);
    for (size_t i = 0; i < t->slot_count; i++) {
        if (t->slots[i].place != 0) {
            size_t at = t->slots[i].hash & (count - 1);
            while (slots[at].place != 0) {
                at = (at + 1) & (count - 1);
            }
            slots[at] = t->slots[i];
        }
    }
    free(t->slots);
    t->slots = slots;
    t->slot_count = count;
}

/* Makes room for one more entry. */
static bool make_room(struct piece_table *t, size_t bytes)
{
    bool more_slots = t->used >= t->slot_count / 2;
    /* the old ones while they grow; the memory of the sort */
    size_t slots = t->slot_count * sizeof *t->slots * (more_slots ? 3 : 2);
    if (t->entries == NULL || t->entries_bytes + bytes + slots > t->limit) {
        if (t->used > 0) {
            return false;
        }
        if (t->entries_bytes + bytes > t->reserved) { /* one piece larger than all */
            size_t size = t->entries_bytes + bytes;
            void *at = t->entries == NULL ? mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                                          : mremap(t->entries, t->reserved, size, MREMAP_MAYMOVE);
            t->entries = at == MAP_FAILED ? dt_realloc(NULL, SIZE_MAX) : at; /* ends the program as dt_alloc does */
            t->reserved = size;
        }
    }
    if (more_slots) {
        add_slots(t);
    }
    return true;
}

bool piece_table_add(struct piece_table *t, const char *piece, size_t size)
{
    uint32_t hash = (uint32_t)XXH3_64bits(piece, size);
    size_t at = hash & (t->slot_count - 1);
    for (; t->slots[at].place != 0; at = (at + 1) & (t->slot_count - 1)) {
        struct entry *e = entry_at(t, t->slots[at].place);
        if (t->slots[at].hash == hash && e->size == size && memcmp(e->bytes, piece, size) == 0) {
            e->count++;
            return true;
        }
    }
    size_t bytes = (sizeof(struct entry) + size + 7) / 8 * 8;
    if (!make_room(t, bytes)) {
        return false;
    }
    for (at = hash & (t->slot_count - 1); t->slots[at].place != 0; at = (at + 1) & (t->slot_count - 1)) {
    }
    struct entry *e = entry_at(t, (uint32_t)(t->entries_bytes / 8));
    e->count = 1;
    e->size = (uint32_t)size;
    memcpy(e->bytes, piece, size);
    t->slots[at] = (struct slot){hash, (uint32_t)(t->entries_bytes / 8)};
    t->entries_bytes += bytes;
    t->used++;
    return true;
}

static int by_bytes(const char *a, size_t a_size, const char *b, size_t b_size)
{
    int order = memcmp(a, b, a_size < b_size ? a_size : b_size);
    return order != 0 ? order : a_size < b_size ? -1 : a_size > b_size;
}

static int by_entry(const void *a, const void *b, void *table)
{
    const struct entry *x = entry_at(table, ((const struct slot *)a)->place);
    const struct entry *y = entry_at(table, ((const struct slot *)b)->place);
    return by_bytes(x->bytes, x->size, y->bytes, y->size);
}

/* ---- writing ---- */

struct run_writer {
    const char *path;
    int fd;
    char *buffer;
    size_t used, capacity;
    int64_t bytes;
    XXH3_state_t *hash;
};

static int writer_open(struct run_writer *w, const char *path, size_t buffer_bytes, struct dt_error *err)
{
    *w = (struct run_writer){.path = path, .capacity = buffer_bytes > LEAST_BUFFER ? buffer_bytes : LEAST_BUFFER};
    w->fd = dt_file_create(path, err);
    if (w->fd < 0) {
        return -1;
    }
    w->buffer = dt_alloc(w->capacity);
    w->hash = XXH3_createState();
    (void)XXH3_64bits_reset(w->hash);
    return 0;
}

static int writer_flush(struct run_writer *w, struct dt_error *err)
{
    (void)XXH3_64bits_update(w->hash, w->buffer, w->used);
    int result = dt_file_write_all(w->fd, w->buffer, w->used, w->path, err);
    w->bytes += (int64_t)w->used;
    w->used = 0;
    return result;
}

static int writer_put(struct run_writer *w, const void *data, size_t size, struct dt_error *err)
{
    for (const char *at = data; size > 0;) {
        size_t n = w->capacity - w->used < size ? w->capacity - w->used : size;
        memcpy(w->buffer + w->used, at, n);
        w->used += n;
        at += n;
        size -= n;
        if (w->used == w->capacity && writer_flush(w, err) != 0) {
            return -1;
        }
    }
    return 0;
}

static int writer_add(struct run_writer *w, const char *piece, size_t size, uint64_t count, struct dt_error *err)
{
    char head[HEAD_BYTES];
    uint32_t short_size = (uint32_t)size;
    memcpy(head, &short_size, 4);
    memcpy(head + 4, &count, 8);
    return writer_put(w, head, sizeof head, err) == 0 ? writer_put(w, piece, size, err) : -1;
}

/* good: completes the file; otherwise removes it. */
static int writer_close(struct run_writer *w, bool good, struct run_info *out, struct dt_error *err)
{
    int result = good ? writer_flush(w, err) : -1;
    if (result == 0 && fsync(w->fd) != 0) {
        result = dt_fail_errno(err, "%s", w->path);
    }
    if (close(w->fd) != 0 && result == 0) {
        result = dt_fail_errno(err, "%s", w->path);
    }
    if (result == 0) {
        *out = (struct run_info){.bytes = w->bytes, .hash = XXH3_64bits_digest(w->hash)};
    } else {
        (void)unlink(w->path);
    }
    (void)XXH3_freeState(w->hash);
    free(w->buffer);
    return result;
}

int piece_table_write(struct piece_table *t, const char *path, struct run_info *out, struct dt_error *err)
{
    struct run_writer w;
    size_t n = 0;
    for (size_t i = 0; i < t->slot_count; i++) { /* the slots become the sorted list; the table ends */
        if (t->slots[i].place != 0) {
            t->slots[n++] = t->slots[i];
        }
    }
    qsort_r(t->slots, n, sizeof *t->slots, by_entry, t);
    int result = writer_open(&w, path, 65536, err);
    if (result == 0) {
        for (size_t i = 0; result == 0 && i < n; i++) {
            const struct entry *e = entry_at(t, t->slots[i].place);
            result = writer_add(&w, e->bytes, e->size, e->count, err);
        }
        result = writer_close(&w, result == 0, out, err);
    }
    memset(t->slots, 0, t->slot_count * sizeof *t->slots);
    t->used = 0;
    t->entries_bytes = 8;
    return result;
}

/* ---- reading ---- */

struct run_reader {
    char *path;
    int fd;
    struct run_info info;
    char *buffer;
    size_t capacity, at, end;
    int64_t read_bytes;
    XXH3_state_t *hash;
    /* of the piece that run_next gave last */
    size_t size;
    uint64_t count;
};

int run_open(struct run_reader **out, const char *path, const struct run_info *info, size_t buffer_bytes,
             struct dt_error *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || fstat(fd, &st) != 0) {
        (void)dt_fail_errno(err, "%s", path);
        if (fd >= 0) {
            (void)close(fd);
        }
        return -1;
    }
    if (st.st_size != info->bytes) {
        (void)close(fd);
        return dt_fail(err, DT_INVALID, "%s: %lld bytes, but %lld were written; remove the folder and start again",
                       path, (long long)st.st_size, (long long)info->bytes);
    }
    struct run_reader *r = dt_alloc(sizeof *r);
    r->path = dt_strdup(path);
    r->fd = fd;
    r->info = *info;
    r->capacity = buffer_bytes > LEAST_BUFFER ? buffer_bytes : LEAST_BUFFER;
    r->buffer = dt_alloc(r->capacity);
    r->hash = XXH3_createState();
    (void)XXH3_64bits_reset(r->hash);
    *out = r;
    return 0;
}

/* Makes at least `least` bytes available at r->at. 0: they are there; 1: the file ends before. */
static int fill(struct run_reader *r, size_t least, struct dt_error *err)
{
    if (r->end - r->at >= least) {
        return 0;
    }
    memmove(r->buffer, r->buffer + r->at, r->end - r->at);
    r->end -= r->at;
    r->at = 0;
    if (least > r->capacity) {
        r->capacity = least;
        r->buffer = dt_realloc(r->buffer, r->capacity);
    }
    while (r->end < least) {
        ssize_t n = read(r->fd, r->buffer + r->end, r->capacity - r->end);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return dt_fail_errno(err, "%s", r->path);
        }
        if (n == 0) {
            return 1;
        }
        (void)XXH3_64bits_update(r->hash, r->buffer + r->end, (size_t)n);
        r->read_bytes += n;
        r->end += (size_t)n;
    }
    return 0;
}

static int damaged(const struct run_reader *r, struct dt_error *err)
{
    return dt_fail(err, DT_INVALID, "%s: damaged; remove the folder and start again", r->path);
}

int run_next(struct run_reader *r, const char **piece, size_t *size, uint64_t *count, struct dt_error *err)
{
    int state = fill(r, HEAD_BYTES, err);
    if (state != 0) {
        bool whole = r->at == r->end && r->read_bytes == r->info.bytes && XXH3_64bits_digest(r->hash) == r->info.hash;
        return state < 0 ? -1 : whole ? 0 : damaged(r, err);
    }
    uint32_t short_size;
    memcpy(&short_size, r->buffer + r->at, 4);
    memcpy(&r->count, r->buffer + r->at + 4, 8);
    r->size = short_size;
    if ((int64_t)r->size > r->info.bytes) {
        return damaged(r, err);
    }
    state = fill(r, HEAD_BYTES + r->size, err);
    if (state != 0) {
        return state < 0 ? -1 : damaged(r, err);
    }
    *piece = r->buffer + r->at + HEAD_BYTES;
    *size = r->size;
    *count = r->count;
    r->at += HEAD_BYTES + r->size;
    return 1;
}

void run_close(struct run_reader *r)
{
    if (r != NULL) {
        (void)close(r->fd);
        (void)XXH3_freeState(r->hash);
        free(r->buffer);
        free(r->path);
        free(r);
    }
}

/* ---- merging ---- */

struct source {
    struct run_reader *reader;
    const char *piece;
    size_t size;
    uint64_t count;
};

static bool before(const struct source *a, const struct source *b)
{
    return by_bytes(a->piece, a->size, b->piece, b->size) < 0;
}

/* A heap with the smallest piece at its root. */
static void sink(struct source *heap, size_t count, size_t at)
{
    for (size_t child; (child = 2 * at + 1) < count; at = child) {
        child += child + 1 < count && before(&heap[child + 1], &heap[child]);
        if (!before(&heap[child], &heap[at])) {
            return;
        }
        struct source other = heap[at];
        heap[at] = heap[child];
        heap[child] = other;
    }
}

/* Advances the root; *count becomes one less at its end. */
static int advance(struct source *heap, size_t *count, struct dt_error *err)
{
    int state = run_next(heap[0].reader, &heap[0].piece, &heap[0].size, &heap[0].count, err);
    if (state == 0) {
        run_close(heap[0].reader);
        heap[0] = heap[--*count];
        heap[*count].reader = NULL;
    }
    sink(heap, *count, 0);
    return state < 0 ? -1 : 0;
}

static int merge_all(struct source *heap, size_t *count, struct run_writer *w, struct dt_error *err)
{
    struct dt_text piece;
    uint64_t sum = 0;
    int result = 0;
    dt_text_init(&piece);
    for (bool any = false; result == 0 && *count > 0;) {
        bool same = any && by_bytes(piece.data, piece.size, heap[0].piece, heap[0].size) == 0;
        if (any && !same) {
            result = writer_add(w, piece.data, piece.size, sum, err);
        }
        if (!same) {
            dt_text_reset(&piece);
            dt_text_add(&piece, heap[0].piece, heap[0].size);
            sum = 0;
        }
        any = true;
        sum += heap[0].count;
        result = result == 0 ? advance(heap, count, err) : result;
        if (result == 0 && *count == 0) {
            result = writer_add(w, piece.data, piece.size, sum, err);
        }
    }
    dt_text_clear(&piece);
    return result;
}

int run_merge(const char *const *paths, const struct run_info *infos, size_t count, const char *path,
              size_t buffer_bytes, struct run_info *out, struct dt_error *err)
{
    struct source *heap = dt_alloc((count + 1) * sizeof *heap);
    struct run_writer w;
    size_t open = 0, room = buffer_bytes / (count + 1);
    int result = 0;
    for (size_t i = 0; result == 0 && i < count; i++) {
        struct source *x = &heap[open];
        result = run_open(&x->reader, paths[i], &infos[i], room, err);
        if (result == 0) {
            int state = run_next(x->reader, &x->piece, &x->size, &x->count, err);
            open++;
            if (state == 0) {
                run_close(x->reader);
                x->reader = NULL;
                open--;
            }
            result = state < 0 ? -1 : 0;
        }
    }
    for (size_t i = open; result == 0 && i-- > 0;) {
        sink(heap, open, i);
    }
    if (result == 0 && (result = writer_open(&w, path, room, err)) == 0) {
        result = merge_all(heap, &open, &w, err);
        result = writer_close(&w, result == 0, out, err);
    }
    for (size_t i = 0; i < open; i++) {
        run_close(heap[i].reader);
    }
    free(heap);
    return result;
}
