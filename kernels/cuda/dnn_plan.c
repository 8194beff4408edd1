/* Asks cuDNN's heuristics and makes plans. */
#include "kernels/cuda/dnn_plan.h"

/* One question to the heuristics; configurations go to out. The library's status. */
static int ask(const struct dt_dnn *api, const struct dt_dnn_graph *g, const struct dt_dnn_place *place, enum dt_dnn_heuristic how,
               void *out[DT_DNN_CANDIDATES], int *count)
{
    void *question = NULL;
    int mode = (int)how, made = 0;
    int64_t found = 0;
    int status = dt_dnn_make(api, DT_DNN_ENGINEHEUR, &question);
    if (status == DT_DNN_SUCCESS) {
        status = dt_dnn_set(api, question, DT_DNN_ENGINEHEUR_OPERATION_GRAPH, DT_DNN_TYPE_DESCRIPTOR, 1, &g->graph);
    }
    if (status == DT_DNN_SUCCESS) {
        status = dt_dnn_set(api, question, DT_DNN_ENGINEHEUR_MODE, DT_DNN_TYPE_HEUR_MODE, 1, &mode);
    }
    if (status == DT_DNN_SUCCESS && place->handle == NULL) {
        status = dt_dnn_set(api, question, DT_DNN_ENGINEHEUR_DEVICEPROP, DT_DNN_TYPE_DESCRIPTOR, 1, &place->described);
    }
    if (status == DT_DNN_SUCCESS) {
        status = api->cudnnBackendFinalize(question);
    }
    while (status == DT_DNN_SUCCESS && made < DT_DNN_CANDIDATES) { /* the library fills in descriptors that are there */
        status = dt_dnn_make(api, DT_DNN_ENGINECFG, &out[made]);
        made += status == DT_DNN_SUCCESS;
    }
    if (status == DT_DNN_SUCCESS) {
        status = api->cudnnBackendGetAttribute(question, DT_DNN_ENGINEHEUR_RESULTS, DT_DNN_TYPE_DESCRIPTOR, made, &found, out);
    }
    *count = status != DT_DNN_SUCCESS ? 0 : found < made ? (int)found : made; /* it may count what there was no room for */
    for (int i = *count; i < made; i++) {
        dt_dnn_drop(api, out[i]);
        out[i] = NULL;
    }
    dt_dnn_drop(api, question);
    return status;
}

int dt_dnn_candidates(const struct dt_dnn *api, const struct dt_dnn_graph *g, const struct dt_dnn_place *place, void *out[DT_DNN_CANDIDATES],
                      int *count)
{
    for (int i = 0; i < DT_DNN_CANDIDATES; i++) {
        out[i] = NULL;
    }
    int status = ask(api, g, place, DT_DNN_HEUR_A, out, count);
    return *count > 0 || dt_dnn_broke_down(status) ? status : ask(api, g, place, DT_DNN_HEUR_FALLBACK, out, count);
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
