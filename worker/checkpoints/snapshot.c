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

enum { HEADER_BYTES = 4096, LAYOUT = 2 };
#define COMPLETE 0x31504e5354445453ull

struct facts { /* no padding: their bytes are summed */
    int64_t layout, rank, ranks, first, count, round, step, file_bytes, head_bytes, entry_bytes;
    uint64_t launch_sum, texts_sum;
};

struct header {
    _Atomic uint64_t complete; /* COMPLETE, or not */
    struct facts facts;
    uint64_t sum; /* of the facts */
};
_Static_assert(sizeof(struct header) <= HEADER_BYTES, "a header is one page");

struct snapshots {
    int fd, place, workers; /* place: of this worker among those of the host */
    uint64_t launch_sum;
    struct header **headers; /* two for each worker */
    char **maps;             /* the rest of the regions of an open checkpoint, by place; else null */
    size_t *map_bytes;
};

static int64_t region(int place, int half)
{
    return (2 * place + half) * DT_SNAPSHOT_REGION;
}

int snapshots_open(struct snapshots **out, int local_rank, const char *launch, struct dt_error *err)
{
    struct snapshots *s = dt_alloc(sizeof *s);
    s->place = local_rank;
    s->launch_sum = XXH3_64bits(launch, strlen(launch));
    s->fd = dt_snapshots_attach(&s->workers, err);
    int rc = s->fd < 0 ? -1 : 0;
    if (rc == 0 && local_rank >= s->workers) {
        rc = dt_fail(err, DT_INVALID, "snapshots: memory for %d workers, and this is local rank %d", s->workers,
                     local_rank);
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
static bool read_facts(const struct snapshots *s, int place, int half, struct facts *out)
{
    const struct header *h = s->headers[2 * place + half];
    if (atomic_load(&h->complete) != COMPLETE) {
        return false;
    }
    *out = h->facts;
    const int64_t most = DT_SNAPSHOT_REGION / 4;
    return h->sum == XXH3_64bits(out, sizeof *out) && out->layout == LAYOUT && out->launch_sum == s->launch_sum &&
           out->rank == out->first + place && out->step >= 0 && out->file_bytes > 0 && out->file_bytes < most &&
           out->head_bytes > 0 && out->head_bytes < most && out->entry_bytes > 0 && out->entry_bytes < most;
}

/* A worker's region of the snapshot of which another one has `of`; -1: there is none. */
static int half_of(const struct snapshots *s, int place, const struct facts *of)
{
    struct facts x;
    for (int half = 0; half < 2; half++) {
        if (read_facts(s, place, half, &x) && x.step == of->step && x.round == of->round && x.ranks == of->ranks &&
            x.first == of->first && x.count == of->count) {
            return half;
        }
    }
    return -1;
}

static bool is_whole(const struct snapshots *s, const struct facts *of)
{
    if (of->count < 1 || of->count > s->workers) {
        return false;
    }
    for (int i = 0; i < of->count; i++) {
        if (half_of(s, i, of) < 0) {
            return false;
        }
    }
    return true;
}

int snapshots_list(const struct snapshots *s, struct snapshot_part out[2])
{
    int count = 0;
    struct facts x;
    for (int half = 0; half < 2; half++) {
        if (read_facts(s, 0, half, &x) && is_whole(s, &x)) {
            out[count++] = (struct snapshot_part){{x.round, x.step}, (int)x.ranks, (int)x.first, (int)x.count};
        }
    }
    if (count == 2 && (out[1].id.round > out[0].id.round ||
                       (out[1].id.round == out[0].id.round && out[1].id.step > out[0].id.step))) {
        struct snapshot_part older = out[0];
        out[0] = out[1];
        out[1] = older;
    }
    return count;
}

void snapshots_keep(struct snapshots *s, const struct snapshot_id *id)
{
    for (int half = 0; half < 2; half++) {
        struct header *h = s->headers[2 * s->place + half];
        struct facts x;
        if (id == NULL || !read_facts(s, s->place, half, &x) || x.step != id->step || x.round != id->round) {
            atomic_store(&h->complete, 0);
        }
    }
}

/* The region that holds nothing, or the older of two. */
static int next_half(const struct snapshots *s)
{
    struct facts x[2];
    bool whole[2];
    for (int half = 0; half < 2; half++) {
        whole[half] = read_facts(s, s->place, half, &x[half]);
    }
    return whole[0] && (!whole[1] || x[1].round < x[0].round || (x[1].round == x[0].round && x[1].step < x[0].step));
}

int snapshots_write(struct snapshots *s, const struct checkpoint_state *state, int rank, int ranks, int local_size,
                    const struct checkpoint_slice *slices, int slice_count, struct dt_error *err)
{
    int half = next_half(s);
    struct header *h = s->headers[2 * s->place + half];
    struct facts x = {.layout = LAYOUT,
                      .rank = rank,
                      .ranks = ranks,
                      .first = rank - s->place,
                      .count = local_size,
                      .round = state->round,
                      .step = state->step,
                      .launch_sum = s->launch_sum};
    struct dt_text head, entry;
    dt_text_init(&head);
    dt_text_init(&entry);
    unmap(s);
    atomic_store(&h->complete, 0);
    int rc = lseek(s->fd, region(s->place, half) + HEADER_BYTES, SEEK_SET) >= 0 ? 0 : dt_fail_errno(err, "lseek");
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

/* A worker's region in memory, its file, and its texts: the head (of the first worker) and the entry. */
static int map_part(struct snapshots *s, int place, const struct facts *of, struct checkpoint_bytes *file,
                    struct dt_text *head, char **entry, struct dt_error *err)
{
    struct facts x;
    int half = half_of(s, place, of);
    if (half < 0 || !read_facts(s, place, half, &x)) {
        return dt_fail(err, DT_NOT_FOUND, "snapshot of step %" PRId64 ": rank %" PRId64 "'s part is not complete",
                       of->step, of->first + place);
    }
    size_t size = (size_t)(x.file_bytes + x.head_bytes + x.entry_bytes);
    void *at = mmap(NULL, HEADER_BYTES + size, PROT_READ, MAP_SHARED, s->fd, region(place, half));
    if (at == MAP_FAILED) {
        return dt_fail_errno(err, "snapshot of step %" PRId64, of->step);
    }
    s->maps[place] = at;
    s->map_bytes[place] = HEADER_BYTES + size;
    const char *texts = s->maps[place] + HEADER_BYTES + x.file_bytes;
    if (XXH3_64bits(texts, (size_t)(x.head_bytes + x.entry_bytes)) != x.texts_sum) {
        return dt_fail(err, DT_INVALID, "snapshot of step %" PRId64 ": rank %" PRId64 "'s part was changed", of->step,
                       of->first + place);
    }
    *file = (struct checkpoint_bytes){s->maps[place] + HEADER_BYTES, (size_t)x.file_bytes};
    if (place == 0) {
        dt_text_add(head, texts, (size_t)x.head_bytes);
    }
    *entry = dt_format("%.*s", (int)x.entry_bytes, texts + x.head_bytes);
    return 0;
}

static int find(const struct snapshots *s, const struct snapshot_id *id, struct facts *out, struct dt_error *err)
{
    for (int half = 0; half < 2; half++) {
        if (read_facts(s, 0, half, out) && out->step == id->step && out->round == id->round && is_whole(s, out)) {
            return 0;
        }
    }
    return dt_fail(err, DT_NOT_FOUND, "snapshot of step %" PRId64 ": is not complete", id->step);
}

int snapshots_head(const struct snapshots *s, const struct snapshot_id *id, struct dt_text *out, struct dt_error *err)
{
    struct facts of;
    if (find(s, id, &of, err) != 0) {
        return -1;
    }
    size_t size = (size_t)(of.head_bytes + of.entry_bytes);
    char *texts = dt_alloc(size);
    int64_t at = region(0, half_of(s, 0, &of)) + HEADER_BYTES + of.file_bytes;
    bool good = pread(s->fd, texts, size, at) == (ssize_t)size && XXH3_64bits(texts, size) == of.texts_sum;
    if (good) {
        dt_text_add(out, texts, (size_t)of.head_bytes);
    }
    free(texts);
    return good ? 0 : dt_fail(err, DT_INVALID, "snapshot of step %" PRId64 ": its state was changed", id->step);
}

static int open_named(const struct snapshot_id *id, const struct dt_text *text, const struct checkpoint_bytes *files,
                      int count, struct checkpoint **out, struct dt_error *err)
{
    char name[64];
    (void)snprintf(name, sizeof name, "snapshot of step %" PRId64, id->step);
    return checkpoint_open_memory(out, name, text, files, count, err);
}

int snapshots_checkpoint(struct snapshots *s, const struct snapshot_id *id, struct checkpoint **out,
                         struct dt_error *err)
{
    struct facts of;
    unmap(s);
    if (find(s, id, &of, err) != 0) {
        return -1;
    }
    int count = (int)of.count, rc = 0;
    struct checkpoint_bytes *files = dt_alloc((size_t)count * sizeof *files);
    char **entries = dt_alloc((size_t)count * sizeof *entries);
    struct dt_text text;
    dt_text_init(&text);
    for (int i = 0; i < count && rc == 0; i++) {
        rc = map_part(s, i, &of, &files[i], &text, &entries[i], err);
    }
    if (rc == 0) {
        manifest_end(&text, (const char *const *)entries, count);
        rc = open_named(id, &text, files, count, out, err);
    }
    for (int i = 0; i < count; i++) {
        free(entries[i]);
    }
    dt_text_clear(&text);
    free(entries);
    free(files);
    return rc;
}

int snapshots_state(const struct snapshot_id *id, const struct dt_text *head, struct checkpoint **out,
                    struct dt_error *err)
{
    struct dt_text text;
    dt_text_init(&text);
    dt_text_add(&text, head->data, head->size);
    manifest_end(&text, NULL, 0);
    int rc = open_named(id, &text, NULL, 0, out, err);
    dt_text_clear(&text);
    return rc;
}
