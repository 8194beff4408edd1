/* Asks cuDNN's heuristics and makes plans. */
#include "kernels/cuda/dnn_plan.h"

#include <stdbool.h>

/* One question to the heuristics; configurations go to out. */
static int ask(const struct dt_dnn *api, const struct dt_dnn_graph *g, const struct dt_dnn_place *place, enum dt_dnn_heuristic how,
               void *out[DT_DNN_CANDIDATES])
{
    void *question = NULL;
    int mode = (int)how;
    int64_t count = 0, made = 0;
    bool good = dt_dnn_make(api, DT_DNN_ENGINEHEUR, &question) == DT_DNN_SUCCESS &&
                dt_dnn_set(api, question, DT_DNN_ENGINEHEUR_OPERATION_GRAPH, DT_DNN_TYPE_DESCRIPTOR, 1, &g->graph) == DT_DNN_SUCCESS &&
                dt_dnn_set(api, question, DT_DNN_ENGINEHEUR_MODE, DT_DNN_TYPE_HEUR_MODE, 1, &mode) == DT_DNN_SUCCESS &&
                (place->handle != NULL ||
                 dt_dnn_set(api, question, DT_DNN_ENGINEHEUR_DEVICEPROP, DT_DNN_TYPE_DESCRIPTOR, 1, &place->described) == DT_DNN_SUCCESS) &&
                api->cudnnBackendFinalize(question) == DT_DNN_SUCCESS;
    for (int i = 0; i < DT_DNN_CANDIDATES; i++) {
        out[i] = NULL;
    }
    while (good && made < DT_DNN_CANDIDATES && dt_dnn_make(api, DT_DNN_ENGINECFG, &out[made]) == DT_DNN_SUCCESS) {
        made++; /* the library fills in descriptors that are there */
    }
    if (!good || api->cudnnBackendGetAttribute(question, DT_DNN_ENGINEHEUR_RESULTS, DT_DNN_TYPE_DESCRIPTOR, made, &count, out) != DT_DNN_SUCCESS) {
        count = 0;
    }
    count = count < made ? count : made; /* it may count what there was no room for */
    for (int64_t i = count; i < made; i++) {
        dt_dnn_drop(api, out[i]);
        out[i] = NULL;
    }
    dt_dnn_drop(api, question);
    return (int)count;
}

int dt_dnn_candidates(const struct dt_dnn *api, const struct dt_dnn_graph *g, const struct dt_dnn_place *place, void *out[DT_DNN_CANDIDATES])
{
    int count = ask(api, g, place, DT_DNN_HEUR_A, out);
    return count > 0 ? count : ask(api, g, place, DT_DNN_HEUR_FALLBACK, out);
}

int dt_dnn_plan(const struct dt_dnn *api, void *config, const struct dt_dnn_place *place, void **out, size_t *work_bytes)
{
    void *plan = NULL;
    int64_t count = 0, bytes = 0;
    *out = NULL;
    int status = dt_dnn_make(api, DT_DNN_EXECUTION_PLAN, &plan);
    if (status == DT_DNN_SUCCESS) {
        status = place->handle != NULL ? dt_dnn_set(api, plan, DT_DNN_EXECUTION_PLAN_HANDLE, DT_DNN_TYPE_HANDLE, 1, &place->handle)
                                       : dt_dnn_set(api, plan, DT_DNN_EXECUTION_PLAN_DEVICEPROP, DT_DNN_TYPE_DESCRIPTOR, 1, &place->described);
    }
    if (status == DT_DNN_SUCCESS) {
        status = dt_dnn_set(api, plan, DT_DNN_EXECUTION_PLAN_ENGINE_CONFIG, DT_DNN_TYPE_DESCRIPTOR, 1, &config);
    }
    if (status == DT_DNN_SUCCESS) {
        status = api->cudnnBackendFinalize(plan);
    }
    if (status == DT_DNN_SUCCESS) {
        status = api->cudnnBackendGetAttribute(plan, DT_DNN_EXECUTION_PLAN_WORKSPACE_SIZE, DT_DNN_TYPE_INT64, 1, &count, &bytes);
    }
    if (status != DT_DNN_SUCCESS) {
        dt_dnn_drop(api, plan);
        return status;
    }
    *out = plan;
    *work_bytes = (size_t)bytes;
    return DT_DNN_SUCCESS;
}

int dt_dnn_pack(const struct dt_dnn *api, int64_t count, const int64_t *uids, void *const *addresses, void *work, void **out)
{
    void *pack = NULL;
    *out = NULL;
    int status = dt_dnn_make(api, DT_DNN_VARIANT_PACK, &pack);
    if (status == DT_DNN_SUCCESS) {
        status = dt_dnn_set(api, pack, DT_DNN_VARIANT_PACK_UNIQUE_IDS, DT_DNN_TYPE_INT64, count, uids);
    }
    if (status == DT_DNN_SUCCESS) {
        status = dt_dnn_set(api, pack, DT_DNN_VARIANT_PACK_DATA_POINTERS, DT_DNN_TYPE_VOID_PTR, count, (const void *)addresses);
    }
    if (status == DT_DNN_SUCCESS) {
        status = dt_dnn_set(api, pack, DT_DNN_VARIANT_PACK_WORKSPACE, DT_DNN_TYPE_VOID_PTR, 1, (const void *)&work);
    }
    if (status == DT_DNN_SUCCESS) {
        status = api->cudnnBackendFinalize(pack);
    }
    if (status != DT_DNN_SUCCESS) {
        dt_dnn_drop(api, pack);
        return status;
    }
    *out = pack;
    return DT_DNN_SUCCESS;
}
