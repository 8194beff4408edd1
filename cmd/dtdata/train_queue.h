/* The pairs that wait to be merged, in the order of their counts. Only the foremost are a heap in
 * memory; the others lie unsorted in a store until their turn comes. */
#ifndef DT_CMD_DTDATA_TRAIN_QUEUE_H
#define DT_CMD_DTDATA_TRAIN_QUEUE_H

#include "cmd/dtdata/train_store.h"

/* A pair with the pieces it was found in. One pair may have several candidates. */
struct candidate {
    int64_t count; /* when it was put in */
    uint64_t pair;
    uint64_t list; /* of its pieces: where it begins, and how many they are */
    uint64_t list_count;
};

struct queue {
    struct store *store;
    struct candidate *heap; /* counts of at least `threshold` */
    size_t heap_count, heap_most, heap_capacity;
    int64_t threshold;
    struct candidate *waiting; /* counts below */
    size_t waiting_count, waiting_capacity;
};

int queue_open(struct queue *q, struct store *store, struct dt_error *err);
void queue_close(struct queue *q);
int queue_add(struct queue *q, const struct candidate *c, struct dt_error *err);
/* Takes the first: the largest count, then the smallest pair, then the smallest list. 1: there was
 * one; 0: the queue is empty; -1. */
int queue_take(struct queue *q, struct candidate *out, struct dt_error *err);

#endif
