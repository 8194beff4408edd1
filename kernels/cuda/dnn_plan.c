/* Asks cuDNN's heuristics for engines, and makes plans. */
#include "kernels/cuda/dnn_plan.h"

#include <string.h>

int dt_dnn_candidates_by(const struct dt_dnn *api, const struct dt_dnn_graph *g, const struct dt_dnn_place *place,
                         enum dt_dnn_heuristic how, void *out[DT_DNN_CANDIDATES], int *count)
{
    for (int i = 0; i < DT_DNN_CANDIDATES; i++) {
        out[i] = NULL;
    }
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
    /* the library fills existing descriptors */
    while (status == DT_DNN_SUCCESS && made < DT_DNN_CANDIDATES) {
        status = dt_dnn_make(api, DT_DNN_ENGINECFG, &out[made]);
        made += status == DT_DNN_SUCCESS;
    }
    if (status == DT_DNN_SUCCESS) {
        status = api->cudnnBackendGetAttribute(question, DT_DNN_ENGINEHEUR_RESULTS, DT_DNN_TYPE_DESCRIPTOR, made,
                                               &found, out);
    }
    *count = status != DT_DNN_SUCCESS ? 0
             : found < made           ? (int)found
                                      : made; /* it may also count those for which there was no
                                               * room */
    for (int i = *count; i < made; i++) {
        dt_dnn_drop(api, out[i]);
        out[i] = NULL;
    }
    dt_dnn_drop(api, question);
    return status;
}

int dt_dnn_candidates(const struct dt_dnn *api, const struct dt_dnn_graph *g, const struct dt_dnn_place *place,
                      void *out[DT_DNN_CANDIDATES], int *count)
{
    int status = dt_dnn_candidates_by(api, g, place, DT_DNN_HEUR_A, out, count);
    return *count > 0 || dt_dnn_broke_down(status)
               ? status
               : dt_dnn_candidates_by(api, g, place, DT_DNN_HEUR_FALLBACK, out, count);
}

/* ---- configurations as numbers ---- */

static int get(const struct dt_dnn *api, void *descriptor, enum dt_dnn_attribute name, enum dt_dnn_kind kind,
               int64_t room, int64_t *count, void *values)
{
    *count = 0;
    return api->cudnnBackendGetAttribute(descriptor, (int)name, (int)kind, room, count, values);
}

static int read_engine(const struct dt_dnn *api, void *config, struct dt_dnn_config *out, unsigned *notes)
{
    void *engine = NULL;
    int each[16];
    int64_t count = 0;
    int status = dt_dnn_make(api, DT_DNN_ENGINE, &engine); /* the library fills it */
    if (status == DT_DNN_SUCCESS) {
        status = get(api, config, DT_DNN_ENGINECFG_ENGINE, DT_DNN_TYPE_DESCRIPTOR, 1, &count, (void *)&engine);
    }
    if (status == DT_DNN_SUCCESS) {
        status = get(api, engine, DT_DNN_ENGINE_GLOBAL_INDEX, DT_DNN_TYPE_INT64, 1, &count, &out->engine);
    }
    if (status == DT_DNN_SUCCESS) {
        status = get(api, engine, DT_DNN_ENGINE_NUMERICAL_NOTE, DT_DNN_TYPE_NUMERICAL_NOTE, 16, &count, each);
    }
    *notes = 0;
    for (int i = 0; status == DT_DNN_SUCCESS && i < count && i < 16; i++) {
        *notes |= each[i] >= 0 && each[i] < 32 ? 1u << each[i] : 0;
    }
    dt_dnn_drop(api, engine);
    return status;
}

static int read_knobs(const struct dt_dnn *api, void *config, struct dt_dnn_config *out)
{
    void *knobs[DT_DNN_KNOBS + 1] = {NULL};
    int64_t count = 0, one;
    int status = DT_DNN_SUCCESS, type = 0;
    for (int i = 0; i <= DT_DNN_KNOBS && status == DT_DNN_SUCCESS; i++) {
        status = dt_dnn_make(api, DT_DNN_KNOB_CHOICE, &knobs[i]);
    }
    /* asked with too little room, it counts only the knobs for which there is room */
    if (status == DT_DNN_SUCCESS) {
        status = get(api, config, DT_DNN_ENGINECFG_KNOB_CHOICES, DT_DNN_TYPE_DESCRIPTOR, DT_DNN_KNOBS + 1, &count,
                     (void *)knobs);
    }
    if (status == DT_DNN_SUCCESS && count > DT_DNN_KNOBS) {
        status = DT_DNN_NOT_SUPPORTED;
    }
    for (int i = 0; i < count && status == DT_DNN_SUCCESS; i++) {
        status = get(api, knobs[i], DT_DNN_KNOB_CHOICE_KNOB_TYPE, DT_DNN_TYPE_KNOB_TYPE, 1, &one, &type);
        out->knobs[i].type = type;
        if (status == DT_DNN_SUCCESS) {
            status =
                get(api, knobs[i], DT_DNN_KNOB_CHOICE_KNOB_VALUE, DT_DNN_TYPE_INT64, 1, &one, &out->knobs[i].value);
        }
    }
    out->knob_count = count;
    for (int i = 0; i <= DT_DNN_KNOBS; i++) {
        dt_dnn_drop(api, knobs[i]);
    }
    return status;
}

int dt_dnn_config_read(const struct dt_dnn *api, void *config, struct dt_dnn_config *out, unsigned *notes)
{
    memset(out, 0, sizeof *out);
    int status = read_engine(api, config, out, notes);
    return status == DT_DNN_SUCCESS ? read_knobs(api, config, out) : status;
}

/* Makes a descriptor that the graph owns. */
static int make_later(struct dt_dnn_graph *g, enum dt_dnn_descriptor type, void **out)
{
    *out = NULL;
    if (g->later_count == DT_DNN_LATER) {
        return DT_DNN_NOT_SUPPORTED;
    }
    int status = dt_dnn_make(g->api, type, out);
    if (status == DT_DNN_SUCCESS) {
        g->later[g->later_count++] = *out;
    }
    return status;
}

static int make_engine(struct dt_dnn_graph *g, const struct dt_dnn_place *place, int64_t index, void **out)
{
    int status = make_later(g, DT_DNN_ENGINE, out);
    if (status == DT_DNN_SUCCESS) {
        status = dt_dnn_set(g->api, *out, DT_DNN_ENGINE_OPERATION_GRAPH, DT_DNN_TYPE_DESCRIPTOR, 1, &g->graph);
    }
    if (status == DT_DNN_SUCCESS) {
        status = dt_dnn_set(g->api, *out, DT_DNN_ENGINE_GLOBAL_INDEX, DT_DNN_TYPE_INT64, 1, &index);
    }
    if (status == DT_DNN_SUCCESS && place->handle == NULL) {
        status = dt_dnn_set(g->api, *out, DT_DNN_ENGINE_DEVICEPROP, DT_DNN_TYPE_DESCRIPTOR, 1, &place->described);
    }
    return status == DT_DNN_SUCCESS ? g->api->cudnnBackendFinalize(*out) : status;
}

static int make_knob(struct dt_dnn_graph *g, int64_t number, int64_t value, void **out)
{
    int status = make_later(g, DT_DNN_KNOB_CHOICE, out), type = (int)number;
    if (status == DT_DNN_SUCCESS) {
        status = dt_dnn_set(g->api, *out, DT_DNN_KNOB_CHOICE_KNOB_TYPE, DT_DNN_TYPE_KNOB_TYPE, 1, &type);
    }
    if (status == DT_DNN_SUCCESS) {
        status = dt_dnn_set(g->api, *out, DT_DNN_KNOB_CHOICE_KNOB_VALUE, DT_DNN_TYPE_INT64, 1, &value);
    }
    return status == DT_DNN_SUCCESS ? g->api->cudnnBackendFinalize(*out) : status;
}

int dt_dnn_config_make(struct dt_dnn_graph *g, const struct dt_dnn_place *place, const struct dt_dnn_config *numbers,
                       void **out)
{
    void *engine = NULL, *knobs[DT_DNN_KNOBS] = {NULL}, *config = NULL;
    *out = NULL;
    int status = make_engine(g, place, numbers->engine, &engine);
    for (int i = 0; i < numbers->knob_count && status == DT_DNN_SUCCESS; i++) {
        status = make_knob(g, numbers->knobs[i].type, numbers->knobs[i].value, &knobs[i]);
    }
    if (status == DT_DNN_SUCCESS) {
        status = make_later(g, DT_DNN_ENGINECFG, &config);
    }
    if (status == DT_DNN_SUCCESS) {
        status = dt_dnn_set(g->api, config, DT_DNN_ENGINECFG_ENGINE, DT_DNN_TYPE_DESCRIPTOR, 1, (const void *)&engine);
    }
    if (status == DT_DNN_SUCCESS && numbers->knob_count > 0) {
        status = dt_dnn_set(g->api, config, DT_DNN_ENGINECFG_KNOB_CHOICES, DT_DNN_TYPE_DESCRIPTOR, numbers->knob_count,
                            (const void *)knobs);
    }
    if (status == DT_DNN_SUCCESS) {
        status = g->api->cudnnBackendFinalize(config);
    }
    *out = status == DT_DNN_SUCCESS ? config : NULL;
    return status;
}

int dt_dnn_plan(const struct dt_dnn *api, void *config, const struct dt_dnn_place *place, void **out,
                size_t *work_bytes)
{
    void *plan = NULL;
    int64_t count = 0, bytes = 0;
    *out = NULL;
    int status = dt_dnn_make(api, DT_DNN_EXECUTION_PLAN, &plan);
    if (status == DT_DNN_SUCCESS) {
        status =
            place->handle != NULL
                ? dt_dnn_set(api, plan, DT_DNN_EXECUTION_PLAN_HANDLE, DT_DNN_TYPE_HANDLE, 1, &place->handle)
                : dt_dnn_set(api, plan, DT_DNN_EXECUTION_PLAN_DEVICEPROP, DT_DNN_TYPE_DESCRIPTOR, 1, &place->described);
    }
    if (status == DT_DNN_SUCCESS) {
        status = dt_dnn_set(api, plan, DT_DNN_EXECUTION_PLAN_ENGINE_CONFIG, DT_DNN_TYPE_DESCRIPTOR, 1, &config);
    }
    if (status == DT_DNN_SUCCESS) {
        status = api->cudnnBackendFinalize(plan);
    }
    if (status == DT_DNN_SUCCESS) {
        status = api->cudnnBackendGetAttribute(plan, DT_DNN_EXECUTION_PLAN_WORKSPACE_SIZE, DT_DNN_TYPE_INT64, 1, &count,
                                               &bytes);
    }
    if (status != DT_DNN_SUCCESS) {
        dt_dnn_drop(api, plan);
        return status;
    }
    *out = plan;
    *work_bytes = (size_t)bytes;
    return DT_DNN_SUCCESS;
}

int dt_dnn_pack(const struct dt_dnn *api, int64_t count, const int64_t *uids, void *const *addresses, void *work,
                void **out)
{
    void *pack = NULL;
    *out = NULL;
    int status = dt_dnn_make(api, DT_DNN_VARIANT_PACK, &pack);
    if (status == DT_DNN_SUCCESS) {
        status = dt_dnn_set(api, pack, DT_DNN_VARIANT_PACK_UNIQUE_IDS, DT_DNN_TYPE_INT64, count, uids);
    }
    if (status == DT_DNN_SUCCESS) {
        status = dt_dnn_set(api, pack, DT_DNN_VARIANT_PACK_DATA_POINTERS, DT_DNN_TYPE_VOID_PTR, count,
                            (const void *)addresses);
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
