/* covers: kernels/cuda/attention_graph.c kernels/cuda/convolution_graph.c kernels/cuda/dnn_plan.c kernels/cuda/dnn_graph.c */
/* run: computes */
/* The graphs of attention and of convolutions against the real cuDNN, without a GPU: for every shape that models of
 * ours have, on three generations of GPUs that are only described, the library must propose
 * engines, and some are compiled to plans. Every version that is here is asked, each in a
 * process of its own; a stub
 * stands for the driver (tests/softgpu/driver_stub.c).   run: timeout 400   run: nosan: the library is not built for sanitizers */
#include "base/error.h"
#include "base/text.h"
#include "kernels/cuda/attention_graph.h"
#include "kernels/cuda/convolution_graph.h"
#include "kernels/cuda/dnn_plan.h"

#include <dlfcn.h>
#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { LIBRARIES = 8 };
static char *libraries[LIBRARIES];
static int library_count;

static void look_for(const char *pattern)
{
    glob_t found;
    if (glob(pattern, 0, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc && library_count < LIBRARIES; i++) {
            char *path = realpath(found.gl_pathv[i], NULL);
            bool known = false;
            for (int k = 0; k < library_count; k++) {
                known = known || strcmp(libraries[k], path) == 0;
            }
            if (known) {
                free(path);
            } else {
                libraries[library_count++] = path;
            }
        }
    }
    globfree(&found);
}

static void find_libraries(void)
{
    const char *peers = getenv("DTRUN_PEERS"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME"),
               *given = getenv("DTRUN_CUDNN");
    char *in_peers = peers != NULL && *peers != '\0'
                         ? dt_format("%s/lib/python3*/site-packages/nvidia/cudnn/lib/libcudnn.so.9", peers)
                     : cache != NULL && *cache != '\0'
                         ? dt_format("%s/dtrun/peers/lib/python3*/site-packages/nvidia/cudnn/lib/libcudnn.so.9", cache)
                         : dt_format("%s/.cache/dtrun/peers/lib/python3*/site-packages/nvidia/cudnn/lib/libcudnn.so.9",
                                     home != NULL ? home : "");
    look_for(given != NULL ? given : "");
    look_for("/usr/local/cuda/lib64/libcudnn.so.9");
    look_for("/usr/lib/*-linux-gnu/libcudnn.so.9");
    look_for(in_peers);
    free(in_peers);
}

/* ---- one library in a child ---- */

struct library {
    struct dt_dnn api;
    const char *path;
};

static const struct {
    int capability, sm_count, shared_bytes;
} devices[] = {{800, 108, 166912}, {900, 132, 232448}, {1000, 148, 232448}};
enum { DEVICES = sizeof devices / sizeof devices[0] };

static void *describe(const struct library *l, int device)
{
    void *out = NULL;
    char *text = dt_format("{\"version\": 1, \"cudnn_version\": %zu, \"maxBlockSize\": [1024, 1024, 64], "
                           "\"maxGridSize\": [2147483647, 65535, 65535], \"regsPerBlock\": "
                           "65536, \"multiProcessorCount\": %d, \"warpSize\": 32, \"maxSharedMemoryPerBlock\": 49152, "
                           "\"maxSharedMemoryPerBlockOptin\": %d, "
                           "\"reservedSharedMemoryPerBlock\": 1024, \"maxRegistersPerSM\": 65536, \"maxCtasPerSM\": "
                           "32, \"maxThreadsPerBlock\": 1024, "
                           "\"maxThreadsPerSM\": 2048, \"pciDeviceId\": 0, \"isTccDriver\": 0, \"supportCoopLaunch\": "
                           "1, \"totalGlobalMem\": 80000000000, "
                           "\"smClockRateKHz\": 1980000, \"memClockRateKHz\": 2619000, \"l2CacheSize\": 52428800, "
                           "\"cudaDeviceId\": 0, \"deviceVer\": %d, "
                           "\"driverVer\": "
                           "13000, \"deviceName\": \"described\"}",
                           l->api.cudnnGetVersion(), devices[device].sm_count, devices[device].shared_bytes,
                           devices[device].capability);
    if (dt_dnn_make(&l->api, DT_DNN_DEVICEPROP, &out) != 0 ||
        dt_dnn_set(&l->api, out, DT_DNN_DEVICEPROP_JSON_REPRESENTATION, DT_DNN_TYPE_CHAR, (int64_t)strlen(text) + 1,
                   text) != 0 ||
        l->api.cudnnBackendFinalize(out) != 0) {
        char why[200] = "";
        l->api.cudnnGetLastErrorString(why, sizeof why);
        (void)fprintf(stderr, "%s: does not take the description of a device: %s\n", l->path, why);
        out = NULL;
    }
    free(text);
    return out;
}

enum pass { FORWARD, BACKWARD, BACKWARD_SUMS, PASSES };
static const char *const pass_names[] = {"forward", "backward", "backward that sums"};

/* The graph of a pass, to be cleared, and the engines that are proposed for it, each to be
 * dropped: how many; -1: the graph itself is refused. */
static int propose(const struct library *l, const struct dt_dnn_place *place, const struct dt_attention_graph *s,
                   enum pass pass, struct dt_dnn_graph *g, void *found[DT_DNN_CANDIDATES], struct dt_error *err)
{
    int count = -1;
    dt_dnn_graph_init(g, &l->api);
    if (pass == FORWARD) {
        dt_attention_forward_graph(g, s);
    } else {
        dt_attention_backward_graph(g, s, pass == BACKWARD_SUMS);
    }
    if (dt_dnn_graph_finish(g, NULL, err) == 0) {
        (void)dt_dnn_candidates(&l->api, g, place, found, &count);
    }
    return count;
}

static void drop_all(const struct library *l, struct dt_dnn_graph *g, void *found[DT_DNN_CANDIDATES])
{
    for (int i = 0; i < DT_DNN_CANDIDATES; i++) {
        dt_dnn_drop(&l->api, found[i]);
    }
    dt_dnn_graph_clear(g);
}

/* How many engines are proposed; -1: the graph itself is refused. work_bytes given: also the
 * plan of the first one, and what it wants. */
static int engines(const struct library *l, void *described, const struct dt_attention_graph *s, enum pass pass,
                   size_t *work_bytes, char *why, size_t why_bytes)
{
    struct dt_dnn_graph g;
    struct dt_error err = {0};
    struct dt_dnn_place place = {.described = described};
    void *found[DT_DNN_CANDIDATES] = {NULL}, *plan = NULL;
    int count = propose(l, &place, s, pass, &g, found, &err);
    (void)snprintf(why, why_bytes, "%s", err.text);
    if (count > 0 && work_bytes != NULL) {
        int status = dt_dnn_plan(&l->api, found[0], &place, &plan, work_bytes);
        if (status != 0) {
            (void)snprintf(why, why_bytes, "its plan: status %d", status);
            count = -1;
        }
    }
    dt_dnn_drop(&l->api, plan);
    drop_all(l, &g, found);
    return count;
}

static bool look(const struct library *l, int device, void *described, const struct dt_attention_graph *s,
                 enum pass pass, size_t *work_bytes)
{
    char why[300];
    int count = engines(l, described, s, pass, work_bytes, why, sizeof why);
    if (count <= 0) {
        (void)fprintf(stderr,
                      "%s: compute capability %d: batch %lld, %lld positions, %lld heads (%lld of keys) of size %lld, "
                      "causal %d: %s: %d engines %s\n",
                      l->path, devices[device].capability, (long long)s->batch, (long long)s->positions,
                      (long long)s->heads, (long long)s->kv_heads, (long long)s->head_size, s->causal, pass_names[pass],
                      count, why);
    }
    return count > 0;
}

/* ---- what is asked ---- */

static bool passes(const struct library *l, int device, void *described, const struct dt_attention_graph *s)
{
    bool good = true;
    for (int p = FORWARD; p < PASSES; p++) {
        good = look(l, device, described, s, (enum pass)p, NULL) && good;
    }
    return good;
}

/* GPT-2 124M, 350M, 774M, 1558M; small ones of examples and tests; lengths that are a multiple
 * of nothing. */
static bool gpt2(const struct library *l, int device, void *described)
{
    static const int64_t heads[] = {2, 4, 6, 12, 16, 20, 25},
                         positions[] = {2, 33, 64, 100, 128, 250, 256, 500, 512, 1000, 1024, 2048};
    bool good = true;
    for (size_t h = 0; h < sizeof heads / sizeof heads[0]; h++) {
        for (size_t t = 0; t < sizeof positions / sizeof positions[0]; t++) {
            if (getenv("DTRUN_ALL") == NULL && (h + t + (size_t)device) % 6 != 0) {
                continue; /* each number of heads and of positions still meets some of the others */
            }
            struct dt_attention_graph s = {.batch = t % 3 == 0 ? 1 : 64 / heads[h],
                                           .positions = positions[t],
                                           .heads = heads[h],
                                           .kv_heads = heads[h],
                                           .head_size = 64,
                                           .causal = true};
            good = passes(l, device, described, &s) && good;
        }
    }
    return good;
}

static bool head_sizes(const struct library *l, int device, void *described)
{
    static const int64_t sizes[] = {8, 16, 24, 32, 40, 48, 80, 96, 112, 128};
    bool good = true;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (int causal = 0; causal < 2; causal++) {
            struct dt_attention_graph s = {.batch = 3,
                                           .positions = i % 2 == 0 ? 512 : 77,
                                           .heads = 6,
                                           .kv_heads = 6,
                                           .head_size = sizes[i],
                                           .causal = causal != 0};
            good = passes(l, device, described, &s) && good;
        }
    }
    return good;
}

/* Llama 1.2B, 3.2B, 8B; BERT-base. */
static bool other_models(const struct library *l, int device, void *described)
{
    static const struct dt_attention_graph shapes[] = {
        {8, 4096, 32, 8, 64, true, false}, {4, 4096, 24, 8, 128, true, false},   {1, 8192, 32, 8, 128, true, false},
        {2, 333, 6, 1, 64, true, false},   {128, 512, 12, 12, 64, false, false}, {8, 1024, 12, 12, 64, true, true}};
    bool good = true;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        good = passes(l, device, described, &shapes[i]) && good;
    }
    return good;
}

/* What we do not give to it, it would not take either. */
static bool refused(const struct library *l, int device, void *described)
{
    static const struct dt_attention_graph shapes[] = {{2, 64, 4, 4, 20, true, false}, {2, 64, 4, 3, 64, true, false}};
    char why[300];
    bool good = true;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        for (int p = FORWARD; p < PASSES; p++) {
            int count = engines(l, described, &shapes[i], (enum pass)p, NULL, why, sizeof why);
            if (count > 0) {
                (void)fprintf(stderr, "%s: compute capability %d: shape %zu: %s: %d engines\n", l->path,
                              devices[device].capability, i, pass_names[p], count);
                good = false;
            }
        }
    }
    return good;
}

/* Plans of the first engine: kernels compile, and the work they want is what attention_dnn.c
 * cuts batches by. */
static bool compiled(const struct library *l, int device, void *described)
{
    static const struct dt_attention_graph shapes[] = {{4, 1000, 12, 12, 64, true, false},
                                                       {4, 320, 12, 12, 64, true, false},
                                                       {2, 300, 8, 2, 128, true, false},
                                                       {2, 300, 8, 2, 128, true, true}};
    bool good = true;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        if (getenv("DTRUN_ALL") == NULL && i % DEVICES != (size_t)device) {
            continue; /* each shape is compiled for one of them */
        }
        const struct dt_attention_graph *s = &shapes[i];
        size_t forward = 0, backward = 0;
        good = look(l, device, described, s, FORWARD, &forward) && look(l, device, described, s, BACKWARD, &backward) &&
               good;
        size_t expected = dt_attention_backward_bytes(s);
        if (forward > 4096 || backward > expected) {
            (void)fprintf(
                stderr, "%s: compute capability %d: shape %zu: forward wants %zu bytes of work, backward %zu, of %zu\n",
                l->path, devices[device].capability, i, forward, backward, expected);
            good = false;
        }
    }
    return good;
}

/* What a plan file keeps of a proposal is enough to have it again: numbers that differ between
 * the proposals, of which its plan is made, with the same work memory. Plans are made of the first
 * and the last proposal; with DTRUN_ALL=1 of all. */
static bool made_again(const struct library *l, int device, void *described, const struct dt_attention_graph *s,
                       enum pass pass)
{
    struct dt_dnn_graph g;
    struct dt_error err = {0};
    struct dt_dnn_place place = {.described = described};
    struct dt_dnn_config numbers[DT_DNN_CANDIDATES];
    void *found[DT_DNN_CANDIDATES] = {NULL};
    int count = propose(l, &place, s, pass, &g, found, &err), good = 0;
    for (int i = 0; i < count; i++) {
        void *config = NULL, *plans[2] = {NULL, NULL};
        size_t work[2] = {0, 1};
        unsigned notes;
        bool differs = true, planned = getenv("DTRUN_ALL") != NULL || i == 0 || i == count - 1;
        int status = dt_dnn_config_read(&l->api, found[i], &numbers[i], &notes);
        status = status == 0 ? dt_dnn_config_make(&g, &place, &numbers[i], &config) : status;
        if (planned) {
            status = status == 0 ? dt_dnn_plan(&l->api, found[i], &place, &plans[0], &work[0]) : status;
            status = status == 0 ? dt_dnn_plan(&l->api, config, &place, &plans[1], &work[1]) : status;
        } else {
            work[1] = work[0];
        }
        for (int k = 0; k < i; k++) {
            differs = differs && memcmp(&numbers[i], &numbers[k], sizeof numbers[i]) != 0;
        }
        good += status == 0 && differs && work[0] == work[1];
        if (status != 0 || !differs || work[0] != work[1]) {
            (void)fprintf(stderr,
                          "%s: compute capability %d: %s: proposal %d: engine %lld, %lld knobs: status %d, work %zu "
                          "and %zu, differs %d\n",
                          l->path, devices[device].capability, pass_names[pass], i, (long long)numbers[i].engine,
                          (long long)numbers[i].knob_count, status, work[0], work[1], differs);
        }
        dt_dnn_drop(&l->api, plans[0]);
        dt_dnn_drop(&l->api, plans[1]);
    }
    drop_all(l, &g, found);
    return count > 0 && good == count;
}

static bool numbers_suffice(const struct library *l, int device, void *described)
{
    static const struct dt_attention_graph s = {8, 1024, 12, 12, 64, true, false};
    if (devices[device].capability != 900) { /* where most are proposed; each costs a second */
        return true;
    }
    bool good = made_again(l, device, described, &s, FORWARD);
    return made_again(l, device, described, &s, BACKWARD) && good;
}

/* ---- convolutions ---- */

static const char *const convolving[] = {"forward", "gradient of images", "gradient of weights"};

/* Whether notes are those of an engine that may compute it: in an order, summed in fp32, without TF32. */
static bool exact(unsigned notes)
{
    return (notes & (1u << DT_DNN_NONDETERMINISTIC | 1u << DT_DNN_REDUCED_PRECISION_REDUCTION |
                     1u << DT_DNN_TENSOR_CORE | 1u << DT_DNN_DOWN_CONVERT_INPUTS)) == 0;
}

static bool ordered(unsigned notes)
{
    return (notes & (1u << DT_DNN_NONDETERMINISTIC | 1u << DT_DNN_REDUCED_PRECISION_REDUCTION)) == 0;
}

/* Looks for an engine that may compute it, as kernels/cuda/convolution_dnn.c does, and makes the plan of the first. */
static bool has_engine(const struct library *l, void *described, const struct dt_convolution_graph *c, bool tf32,
                       bool planned)
{
    static const enum dt_dnn_heuristic all[] = {DT_DNN_HEUR_A, DT_DNN_HEUR_FALLBACK};
    struct dt_dnn_graph g;
    struct dt_dnn_place place = {.described = described};
    struct dt_error err = {0};
    bool found = false;
    dt_dnn_graph_init(&g, &l->api);
    dt_convolution_graph(&g, c);
    int status = dt_dnn_graph_finish(&g, NULL, &err);
    for (int h = 0; h < 2 && status == 0; h++) {
        void *proposals[DT_DNN_CANDIDATES] = {NULL};
        int count = 0;
        (void)dt_dnn_candidates_by(&l->api, &g, &place, all[h], proposals, &count);
        for (int i = 0; i < count; i++) {
            struct dt_dnn_config numbers;
            unsigned notes = 0;
            void *config = NULL, *plan = NULL;
            size_t work;
            if (!found && dt_dnn_config_read(&l->api, proposals[i], &numbers, &notes) == 0 &&
                (c->type != DT_DNN_FLOAT || tf32 ? ordered(notes) : exact(notes))) {
                found = !planned || (dt_dnn_config_make(&g, &place, &numbers, &config) == 0 &&
                                     dt_dnn_plan(&l->api, config, &place, &plan, &work) == 0);
            }
            dt_dnn_drop(&l->api, plan);
            dt_dnn_drop(&l->api, proposals[i]);
        }
    }
    dt_dnn_graph_clear(&g);
    if (!found) {
        (void)fprintf(stderr, "%s: %lld images of %lld x %lld, %lld windows of %lld: type %d, %s: %s\n", l->path,
                      (long long)c->windows.batch, (long long)c->windows.height, (long long)c->windows.channels,
                      (long long)c->out, (long long)c->windows.size, (int)c->type, convolving[c->pass],
                      status != 0 ? err.text : "no engine");
    }
    return found;
}

/* All convolutions of ResNets, and channels that are a multiple of nothing, in each type. Gradients of images are
 * also added to what was there. */
static bool convolutions(const struct library *l, int device, void *described)
{
    static const struct {
        int64_t batch, side, in, out, size, stride;
        bool planar;
    } shapes[] = {{32, 224, 3, 64, 7, 2, true},   {64, 32, 3, 64, 3, 1, true},     {32, 56, 64, 64, 3, 1, false},
                  {32, 56, 64, 128, 3, 2, false}, {32, 56, 256, 512, 1, 2, false}, {32, 7, 512, 512, 3, 1, false},
                  {3, 9, 10, 18, 3, 1, false},    {2, 7, 5, 7, 3, 2, false}};
    static const enum dt_dnn_type types[] = {DT_DNN_FLOAT, DT_DNN_FLOAT, DT_DNN_BFLOAT16, DT_DNN_HALF};
    bool good = true;
    for (int i = 0; i < (int)(sizeof shapes / sizeof shapes[0]) * 4 * 3; i++) {
        int n = i / 12, pass = i % 3;
        int64_t side = shapes[n].side, size = shapes[n].size, stride = shapes[n].stride,
                outputs = (side + 2 * (size / 2) - size) / stride + 1;
        struct dt_convolution_graph c = {
            .windows = {shapes[n].batch, side, side, shapes[n].in, outputs, outputs, size, stride, size / 2},
            .out = shapes[n].out,
            .pass = (enum dt_dnn_pass)pass,
            .planar = shapes[n].planar,
            .type = types[i / 3 % 4]};
        if (shapes[n].planar && pass == DT_DNN_DATA) {
            continue; /* nobody asks for the gradient of pixels */
        }
        bool planned = getenv("DTRUN_ALL") != NULL || (i + device) % 7 == 0;
        good = has_engine(l, described, &c, i / 3 % 4 == 1, planned) && good;
        c.adds = pass == DT_DNN_DATA;
        good = (!c.adds || has_engine(l, described, &c, i / 3 % 4 == 1, planned)) && good;
    }
    return good;
}

/* ---- one library after the other ---- */

static const struct {
    const char *name;
    bool (*check)(const struct library *l, int device, void *described);
} checks[] = {{"GPT-2", gpt2},     {"head sizes", head_sizes},   {"other models", other_models}, {"refused", refused},
              {"plans", compiled}, {"numbers", numbers_suffice}, {"convolutions", convolutions}};

/* In a child, as a process has room for one version. Its exit code. */
static int ask(const char *path)
{
    struct library l = {.path = path};
    struct dt_error err = {0};
    const struct dt_dnn *api;
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = '\0';
    char *end = strstr(self, "/tests/unit_dnn"),
         *driver = dt_format("%.*s/tools/driver/libcuda.so.1", end != NULL ? (int)(end - self) : 0, self);
    /* who loads this name later is given the same one */
    void *stub = dlopen(driver, RTLD_NOW | RTLD_GLOBAL);
    free(driver);
    if (stub == NULL) {
        (void)fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    (void)setenv("DTRUN_CUDNN", path, 1); /* as a run finds it, with what it wants beside */
    api = dt_dnn_load(&err);
    if (api == NULL) {
        (void)fprintf(stderr, "%s: left out: %s\n", path, err.text);
        return strstr(err.text, "is the least") != NULL ? 0 : 1;
    }
    l.api = *api;
    if (dt_dnn_compiler_missing() != NULL) {
        (void)fprintf(stderr, "%s: %s is not here\n", path, dt_dnn_compiler_missing());
        return 1;
    }
    int code = 0;
    for (int d = 0; d < DEVICES; d++) {
        void *described = describe(&l, d);
        for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++) {
            if (described == NULL || !checks[i].check(&l, d, described)) {
                (void)fprintf(stderr, "%s: compute capability %d: %s: not as expected\n", path, devices[d].capability,
                              checks[i].name);
                code = 1;
            }
        }
        dt_dnn_drop(&l.api, described);
    }
    return code;
}

static void test_libraries(void **unused)
{
    (void)unused;
    if (library_count == 0) {
        print_message("skipped: cuDNN is not here (libcudnn.so.9, or DTRUN_CUDNN)\n");
        skip();
    }
    for (int i = 0; i < library_count; i++) {
        (void)fflush(stdout);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            _exit(ask(libraries[i]));
        }
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
            fail_msg("%s: status %x", libraries[i], (unsigned)status);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_libraries)};
    find_libraries();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
