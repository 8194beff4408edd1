/* See the header. */
#include "kernels/cuda/dnn_packs.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>

struct dt_dnn_pack {
    struct dt_dnn_pack *next;
    void *addresses[DT_DNN_UIDS_MOST];
    void *descriptor;
};

static size_t bucket_of(void *const *addresses, int uids)
{
    uint64_t sum = 0;
    for (int i = 0; i < uids; i++) {
        sum = (sum ^ (uint64_t)(uintptr_t)addresses[i] >> 4) * 0x9e3779b97f4a7c15u;
    }
    return (size_t)(sum >> 32) % DT_DNN_PACKS;
}

void dt_dnn_packs_drop(const struct dt_dnn *api, struct dt_dnn_packs *packs)
{
    for (int i = 0; i < DT_DNN_PACKS; i++) {
        for (struct dt_dnn_pack *k = packs->each[i], *next; k != NULL; k = next) {
            next = k->next;
            dt_dnn_drop(api, k->descriptor);
            free(k);
        }
        packs->each[i] = NULL;
    }
    packs->count = 0;
}

int dt_dnn_packs_find(const struct dt_dnn *api, struct dt_dnn_packs *packs, void *const *addresses, int uids,
                      void **out)
{
    size_t bucket = bucket_of(addresses, uids), bytes = (size_t)uids * sizeof addresses[0];
    struct dt_dnn_pack *k = packs->each[bucket];
    while (k != NULL && memcmp((const void *)k->addresses, (const void *)addresses, bytes) != 0) {
        k = k->next;
    }
    if (k == NULL) {
        int64_t names[DT_DNN_UIDS_MOST];
        void *named[DT_DNN_UIDS_MOST], *descriptor = NULL;
        int64_t count = 0;
        for (int i = 1; i < uids; i++) {
            if (addresses[i] != NULL) {
                names[count] = i;
                named[count++] = addresses[i];
            }
        }
        int status = dt_dnn_pack(api, count, names, named, addresses[0], &descriptor);
        if (status != DT_DNN_SUCCESS) {
            return status;
        }
        /* the caller's addresses do not recur, so drop all packs; executions in progress no longer
         * need theirs */
        if (packs->count == 16 * DT_DNN_PACKS) {
            dt_dnn_packs_drop(api, packs);
        }
        k = dt_alloc(sizeof *k);
        memcpy((void *)k->addresses, (const void *)addresses, bytes);
        k->descriptor = descriptor;
        k->next = packs->each[bucket];
        packs->each[bucket] = k;
        packs->count++;
    }
    *out = k->descriptor;
    return DT_DNN_SUCCESS;
}
