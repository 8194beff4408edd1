/* Each rank puts its line into the store, rank 0 makes a table of them, and all read that. A line is the bytes of
 * a struct, as all ranks run the same program. */
#include "worker/engine/gpu_share.h"

#include "base/proc.h"
#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OPEN_TIMEOUT_S 300.0
#define KEY_BYTES 64

/* Rank 0: everybody's line, in the order of ranks. */
static int collect(struct dt_store *store, const char *key, int size, struct dt_text *table, struct dt_error *err)
{
    size_t count = (size_t)size;
    char(*names)[KEY_BYTES] = dt_alloc(count * sizeof *names);
    const char **keys = dt_alloc(count * sizeof *keys);
    struct dt_text *lines = dt_alloc(count * sizeof *lines);
    for (size_t r = 0; r < count; r++) {
        (void)snprintf(names[r], sizeof names[r], "%s/%zu", key, r);
        keys[r] = names[r];
        dt_text_init(&lines[r]);
    }
    int rc = dt_store_multi_get(store, keys, count, lines, OPEN_TIMEOUT_S, err);
    for (size_t r = 0; r < count; r++) {
        dt_text_add(table, lines[r].data, lines[r].size);
        dt_text_clear(&lines[r]);
    }
    free(lines);
    free(keys);
    free(names);
    return rc;
}

/* A rank's GPU: its machine, UUID, bus address and memory; empty and 0 what is not known. */
struct line {
    char machine[64], uuid[64], bus[32];
    double bytes;
};

static int exchange(struct dt_store *store, const char *key, int rank, int size, const struct line *own,
                    struct dt_text *table, struct dt_error *err)
{
    char own_key[KEY_BYTES];
    (void)snprintf(own_key, sizeof own_key, "%s/%d", key, rank);
    if (dt_store_set(store, own_key, own, sizeof *own, err) != 0) {
        return -1;
    }
    if (rank != 0) {
        return dt_store_get(store, key, table, OPEN_TIMEOUT_S, err);
    }
    return collect(store, key, size, table, err) == 0 ? dt_store_set(store, key, table->data, table->size, err) : -1;
}

static int by_gpu(const void *a, const void *b)
{
    const struct line *const *x = a, *const *y = b;
    int order = strcmp((*x)->machine, (*y)->machine);
    order = order != 0 ? order : strcmp((*x)->uuid, (*y)->uuid);
    return order != 0 ? order : (*x > *y) - (*x < *y);
}

static bool same(const struct line *a, const struct line *b)
{
    return strcmp(a->machine, b->machine) == 0 && strcmp(a->uuid, b->uuid) == 0 && *a->uuid != 0;
}

/* The first pair in the order of ranks, and who is beside us. */
static void compare(struct gpu_share *out, const struct line *lines, int rank, int size)
{
    const struct line **sorted = dt_alloc((size_t)size * sizeof *sorted);
    for (int r = 0; r < size; r++) {
        sorted[r] = &lines[r];
        out->ranks += r != rank && same(&lines[r], &lines[rank]);
    }
    qsort(sorted, (size_t)size, sizeof *sorted, by_gpu);
    for (int i = 0, here = 1; i < size; i++) {
        here = i > 0 && same(sorted[i - 1], sorted[i]) ? here + 1 : 1;
        out->share_bytes = sorted[i]->bytes > 0 ? fmin(out->share_bytes, sorted[i]->bytes / here) : out->share_bytes;
    }
    for (int i = 0; i + 1 < size; i++) {
        int first = (int)(sorted[i] - lines);
        if (same(sorted[i], sorted[i + 1]) && (out->first < 0 || first < out->first)) {
            out->first = first;
            out->second = (int)(sorted[i + 1] - lines);
            memcpy(out->bus, sorted[i]->bus, sizeof out->bus);
        }
    }
    free(sorted);
}

/* The first rank of this machine whose GPU is none that this process sees, or -1. */
static int find_unseen(const struct line *lines, int rank, int size, const struct dt_device *d)
{
    int count = 0, unseen = -1;
    if (dt_device_count(d->ops->name, &count, NULL) != 0) {
        return -1;
    }
    struct dt_device_place *seen = dt_alloc((size_t)count * sizeof *seen);
    for (int i = 0; i < count; i++) {
        (void)dt_device_place(d->ops->name, i, &seen[i]);
    }
    for (int r = 0; r < size && unseen < 0; r++) {
        bool found = strcmp(lines[r].machine, lines[rank].machine) != 0 || *lines[r].uuid == 0;
        for (int i = 0; i < count && !found; i++) {
            found = strcmp(seen[i].uuid, lines[r].uuid) == 0;
        }
        unseen = found ? -1 : r;
    }
    free(seen);
    return unseen;
}

static int look(struct gpu_share *out, const struct dt_text *table, int rank, int size, const struct dt_device *device,
                struct dt_error *err)
{
    size_t bytes = (size_t)size * sizeof(struct line);
    if (table->size != bytes) {
        return dt_fail(err, DT_INVALID, "the store's table of GPUs has %zu bytes for %d ranks, not %zu", table->size,
                       size, bytes);
    }
    struct line *lines = dt_alloc(bytes);
    memcpy(lines, table->data, bytes);
    for (int r = 0; r < size; r++) {
        struct line *l = &lines[r];
        l->machine[sizeof l->machine - 1] = l->uuid[sizeof l->uuid - 1] = l->bus[sizeof l->bus - 1] = 0;
    }
    compare(out, lines, rank, size);
    out->unseen = find_unseen(lines, rank, size, device);
    free(lines);
    return 0;
}

int gpu_share_look(struct gpu_share *out, struct dt_store *store, const struct dt_page *page, int rank, int size,
                   struct dt_device *device, struct dt_error *err)
{
    size_t free_bytes, total_bytes = 0;
    bool sized = dt_device_memory(device, &free_bytes, &total_bytes) && total_bytes > 0;
    *out = (struct gpu_share){.ranks = 1, .first = -1, .second = -1, .unseen = -1};
    out->share_bytes = sized ? (double)total_bytes : INFINITY;
    struct dt_device_place place;
    struct line own = {.bytes = (double)total_bytes};
    struct dt_text table;
    char key[KEY_BYTES], boot[DT_BOOT_ID_BYTES];
    if (size == 1) {
        return 0;
    }
    dt_text_init(&table);
    /* the boot id: the same for all containers of a machine */
    (void)snprintf(own.machine, sizeof own.machine, "%s", dt_proc_boot_id(boot));
    if (dt_device_place(device->ops->name, device->options.index, &place)) {
        (void)snprintf(own.uuid, sizeof own.uuid, "%s", place.uuid);
        (void)snprintf(own.bus, sizeof own.bus, "%s", place.bus);
    }
    (void)snprintf(key, sizeof key, "gpu/%u", page->round);
    int rc = exchange(store, key, rank, size, &own, &table, err);
    rc =
        rc == 0 ? look(out, &table, rank, size, device, err) : dt_wrap(err, "waiting for all ranks to open their GPUs");
    dt_text_clear(&table);
    return rc;
}
