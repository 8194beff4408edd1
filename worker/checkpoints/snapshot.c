#include "worker/checkpoints/snapshot.h"

#include "base/file.h"
#include "base/snapshots.h"
#include "worker/checkpoints/manifest.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

enum { HEADER_BYTES = 4096, LAYOUT = 1 };
#define COMPLETE 0x31504e5354445453ull

struct facts { /* no padding: their bytes are summed */
    int64_t layout, rank, ranks, round, step, file_bytes, head_bytes, entry_bytes;
    uint64_t texts_sum;
};

struct header {
    _Atomic uint64_t complete; /* COMPLETE, or not */
    struct facts facts;
    uint64_t sum; /* of the facts */
};
_Static_assert(sizeof(struct header) <= HEADER_BYTES, "a header is one page");

struct snapshots {
    int fd, rank, workers;
    struct header **headers; /* two for each worker */
    char **maps;             /* the rest of the regions of an open checkpoint, by rank; else null */
    size_t *map_bytes;
};

static int64_t region(int rank, int half)
{
    return (2 * rank + half) * DT_SNAPSHOT_REGION;
}

int snapshots_open(struct snapshots **out, int rank, struct dt_error *err)
{
    struct snapshots *s = dt_alloc(sizeof *s);
    s->rank = rank;
    s->fd = dt_snapshots_attach(&s->workers, err);
    int rc = s->fd < 0 ? -1 : 0;
    if (rc == 0 && rank >= s->workers) {
        rc = dt_fail(err, DT_INVALID, "snapshots: memory for %d workers, and this is rank %d", s->workers, rank);
    }
    if (rc == 0) {
        s->headers = dt_alloc((size_t)s->workers * 2 * sizeof(void *));
        s->maps = dt_alloc((size_t)s->workers * sizeof(void *));
        s->map_bytes = dt_alloc((size_t)s->workers * sizeof *s->map_bytes);
    }
    for (int i = 0; rc == 0 && i < 2 * s->workers; i++) {
        void *at = mmap(NULL, HEADER_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, region(i / 2, i % 2));
        rc = at == MAP_FAILED ? dt_fail_errno(err, "snapshots: a header") : 0;
        s->headers[i] = rc == 0 ? at : NULL;
    }
    if (rc != 0) {
        snapshots_close(s);
        return -1;
    }
    *out = s;
    return 0;
}

static void unmap(struct snapshots *s)
{
    for (int i = 0; s->maps != NULL && i < s->workers; i++) {
        if (s->maps[i] != NULL) {
            (void)munmap(s->maps[i], s->map_bytes[i]);
            s->maps[i] = NULL;
        }
    }
}

void snapshots_close(struct snapshots *s)
{
    if (s == NULL) {
        return;
    }
    unmap(s);
    for (int i = 0; s->headers != NULL && i < 2 * s->workers; i++) {
        if (s->headers[i] != NULL) {
            (void)munmap(s->headers[i], HEADER_BYTES);
        }
    }
    if (s->fd >= 0) {
        (void)close(s->fd);
    }
    free(s->map_bytes);
    free(s->maps);
    free(s->headers);
    free(s);
}

/* The facts of a complete region; false: it is not. */
static bool read_facts(const struct snapshots *s, int rank, int half, struct facts *out)
{
    const struct header *h = s->headers[2 * rank + half];
    if (atomic_load(&h->complete) != COMPLETE) {
        return false;
    }
    *out = h->facts;
    const int64_t most = DT_SNAPSHOT_REGION / 4;
    return h->sum == XXH3_64bits(out, sizeof *out) && out->layout == LAYOUT && out->rank == rank && out->step >= 0 &&
           out->file_bytes > 0 && out->file_bytes < most && out->head_bytes > 0 && out->head_bytes < most &&
           out->entry_bytes > 0 && out->entry_bytes < most;
}

/* The rank's region of the snapshot of which rank 0 has `of`; -1: there is none. */
static int half_of(const struct snapshots *s, int rank, const struct facts *of)
{
    struct facts x;
    for (int half = 0; half < 2; half++) {
        if (read_facts(s, rank, half, &x) && x.step == of->step && x.round == of->round && x.ranks == of->ranks) {
            return half;
        }
    }
    return -1;
}

static bool is_whole(const struct snapshots *s, const struct facts *of)
{
    if (of->ranks < 1 || of->ranks > s->workers) {
        return false;
    }
    for (int r = 1; r < of->ranks; r++) {
        if (half_of(s, r, of) < 0) {
            return false;
        }
    }
    return true;
}

int64_t snapshots_newest(const struct snapshots *s)
{
    int64_t newest = -1;
    struct facts x;
    for (int half = 0; half < 2; half++) {
        if (read_facts(s, 0, half, &x) && x.step > newest && is_whole(s, &x)) {
            newest = x.step;
        }
    }
    return newest;
}

void snapshots_keep(struct snapshots *s, int64_t step)
{
    struct facts x;
    for (int half = 0; half < 2; half++) {
        if (read_facts(s, s->rank, half, &x) && x.step != step) {
            atomic_store(&s->headers[2 * s->rank + half]->complete, 0);
        }
    }
}

/* The region that holds nothing, or the older of two. */
static int next_half(const struct snapshots *s)
{
    struct facts x[2];
    bool whole[2];
    for (int half = 0; half < 2; half++) {
        whole[half] = read_facts(s, s->rank, half, &x[half]);
    }
    return whole[0] && (!whole[1] || x[1].step < x[0].step);
}

int snapshots_write(struct snapshots *s, const struct checkpoint_state *state, int rank, int ranks,
                    const struct checkpoint_slice *slices, int slice_count, struct dt_error *err)
{
    int half = next_half(s);
    struct header *h = s->headers[2 * rank + half];
    struct facts x = {.layout = LAYOUT, .rank = rank, .ranks = ranks, .round = state->round, .step = state->step};
    struct dt_text head, entry;
    dt_text_init(&head);
    dt_text_init(&entry);
    unmap(s);
    atomic_store(&h->complete, 0);
    int rc = lseek(s->fd, region(rank, half) + HEADER_BYTES, SEEK_SET) >= 0 ? 0 : dt_fail_errno(err, "lseek");
    rc = rc == 0 ? checkpoint_write_fd(s->fd, rank, ranks, slices, slice_count, &entry, &x.file_bytes, err) : rc;
    if (rc == 0) {
        manifest_head(&head, state);
        x.head_bytes = (int64_t)head.size;
        x.entry_bytes = (int64_t)entry.size;
        dt_text_add(&head, entry.data, entry.size);
        x.texts_sum = XXH3_64bits(head.data, head.size);
        rc = dt_file_write_all(s->fd, head.data, head.size, "texts", err);
    }
    if (rc == 0) {
        h->facts = x;
        h->sum = XXH3_64bits(&x, sizeof x);
        atomic_store(&h->complete, COMPLETE);
    }
    dt_text_clear(&entry);
    dt_text_clear(&head);
    return rc == 0 ? 0 : dt_wrap(err, "snapshot of step %" PRId64, state->step);
}

/* A rank's region in memory, its file, and its texts: the head (of rank 0) and the entry. */
static int map_part(struct snapshots *s, int rank, const struct facts *of, struct checkpoint_bytes *file,
                    struct dt_text *head, char **entry, struct dt_error *err)
{
    struct facts x;
    int half = half_of(s, rank, of);
    if (half < 0 || !read_facts(s, rank, half, &x)) {
        return dt_fail(err, DT_NOT_FOUND, "snapshot of step %" PRId64 ": rank %d's part is not complete", of->step,
                       rank);
    }
    size_t size = (size_t)(x.file_bytes + x.head_bytes + x.entry_bytes);
    void *at = mmap(NULL, HEADER_BYTES + size, PROT_READ, MAP_SHARED, s->fd, region(rank, half));
    if (at == MAP_FAILED) {
        return dt_fail_errno(err, "snapshot of step %" PRId64, of->step);
    }
    s->maps[rank] = at;
    s->map_bytes[rank] = HEADER_BYTES + size;
    const char *texts = s->maps[rank] + HEADER_BYTES + x.file_bytes;
    if (XXH3_64bits(texts, (size_t)(x.head_bytes + x.entry_bytes)) != x.texts_sum) {
        return dt_fail(err, DT_INVALID, "snapshot of step %" PRId64 ": rank %d's part was changed", of->step, rank);
    }
    *file = (struct checkpoint_bytes){s->maps[rank] + HEADER_BYTES, (size_t)x.file_bytes};
    if (rank == 0) {
        dt_text_add(head, texts, (size_t)x.head_bytes);
    }
    *entry = dt_format("%.*s", (int)x.entry_bytes, texts + x.head_bytes);
    return 0;
}

int snapshots_checkpoint(struct snapshots *s, int64_t step, struct checkpoint **out, struct dt_error *err)
{
    struct facts of;
    char name[64];
    unmap(s);
    (void)snprintf(name, sizeof name, "snapshot of step %" PRId64, step);
    bool there = false;
    for (int half = 0; half < 2 && !there; half++) {
        there = read_facts(s, 0, half, &of) && of.step == step && is_whole(s, &of);
    }
    if (!there) {
        return dt_fail(err, DT_NOT_FOUND, "%s: is not complete", name);
    }
    int ranks = (int)of.ranks, rc = 0;
    struct checkpoint_bytes *files = dt_alloc((size_t)ranks * sizeof *files);
    char **entries = dt_alloc((size_t)ranks * sizeof *entries);
    struct dt_text text;
    dt_text_init(&text);
    for (int r = 0; r < ranks && rc == 0; r++) {
        rc = map_part(s, r, &of, &files[r], &text, &entries[r], err);
    }
    if (rc == 0) {
        manifest_end(&text, (const char *const *)entries, ranks);
        rc = checkpoint_open_memory(out, name, &text, files, ranks, err);
    }
    for (int r = 0; r < ranks; r++) {
        free(entries[r]);
    }
    dt_text_clear(&text);
    free(entries);
    free(files);
    return rc;
}
