/* The choice of a snapshot for ranks of several hosts: each says what its host has, and one decides for all. */
#include "worker/checkpoints/snapshot.h"

#include <inttypes.h>
#include <stdio.h>

static bool is_newer(const struct snapshot_id *a, const struct snapshot_id *b)
{
    return a->round != b->round ? a->round > b->round : a->step > b->step;
}

static bool offers_it(const struct snapshot_offer *offer, const struct snapshot_id *id)
{
    bool has = false;
    for (int i = 0; i < offer->count; i++) {
        has = has || (offer->of[i].round == id->round && offer->of[i].step == id->step);
    }
    return has;
}

/* The first of `count` ranks that does not offer it; -1: all do. */
static int first_without(const struct snapshot_offer *offers, int count, const struct snapshot_id *id)
{
    for (int r = 0; r < count; r++) {
        if (!offers_it(&offers[r], id)) {
            return r;
        }
    }
    return -1;
}

/* The first rank of the first group whose ranks all offer it; -1: there is none. */
static int group_with(const struct snapshot_offer *offers, int ranks, int group, const struct snapshot_id *id)
{
    for (int first = 0; first + group <= ranks; first += group) {
        if (first_without(offers + first, group, id) < 0) {
            return first;
        }
    }
    return -1;
}

bool snapshots_choose(const struct snapshot_offer *offers, int ranks, int group, struct snapshot_id *out, int *root,
                      int *missing)
{
    const struct snapshot_id none = {-1, -1};
    struct snapshot_id newest = none, sent = none, all = none; /* of any rank, of a group, of all ranks */
    *root = *missing = -1;
    for (int i = 0; i < 2 * ranks; i++) {
        const struct snapshot_offer *offer = &offers[i / 2];
        const struct snapshot_id *id = &offer->of[i % 2];
        if (i % 2 >= offer->count) {
            continue;
        }
        newest = is_newer(id, &newest) ? *id : newest;
        if (is_newer(id, &all) && first_without(offers, ranks, id) < 0) {
            all = *id;
        }
        int from = is_newer(id, &sent) ? group_with(offers, ranks, group, id) : -1;
        if (from >= 0) {
            sent = *id;
            *root = from;
        }
    }
    if (all.round >= sent.round) { /* of the same round it is at most one snapshot behind, and nothing travels */
        sent = all;
        *root = -1;
    }
    *out = sent;
    *missing = sent.round < 0 && newest.round >= 0 ? first_without(offers, ranks, &newest) : -1;
    return sent.round >= 0;
}

void snapshots_say(const struct snapshot_offer *offer, struct dt_text *out)
{
    for (int i = 0; i < offer->count; i++) {
        dt_text_printf(out, "%s%" PRId64 ":%" PRId64, i > 0 ? "," : "", offer->of[i].round, offer->of[i].step);
    }
}

bool snapshots_hear(const char *text, struct snapshot_offer *out)
{
    int64_t round[2], step[2];
    int end = 0;
    *out = (struct snapshot_offer){.count = 0};
    if (*text == '\0') {
        return true;
    }
    bool two = sscanf(text, "%" SCNd64 ":%" SCNd64 ",%" SCNd64 ":%" SCNd64 "%n", &round[0], &step[0], &round[1],
                      &step[1], &end) == 4 &&
               text[end] == '\0';
    bool one = !two && sscanf(text, "%" SCNd64 ":%" SCNd64 "%n", &round[0], &step[0], &end) == 2 && text[end] == '\0';
    out->count = two ? 2 : one ? 1 : 0;
    for (int i = 0; i < out->count; i++) {
        out->of[i] = (struct snapshot_id){round[i], step[i]};
    }
    return one || two;
}
