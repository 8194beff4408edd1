/* Graphs: a capture of the stream in thread-local mode, so that other threads may call the runtime
 * meanwhile. If the runtime or a library refuses an operation during the capture, the stream does
 * not fail (stream.c keeps the error in `refused`): the capture is dropped, and nothing of it has
 * run. */
#include "base/text.h"
#include "kernels/cuda/stream.h"

#include <stdlib.h>

struct cuda_graph {
    struct dt_graph base; /* the kernels of the graph use the work memory of its stream */
    cudaGraphExec_t native;
};

static int begin(struct dt_stream *base, struct dt_error *err)
{
    struct cuda_stream *s = (struct cuda_stream *)base;
    if (cuda_lane_failed(s->device, s->lane, err)) {
        return -1;
    }
    cuda_device_use(s->device);
    cudaError_t rc = cudaStreamBeginCapture(s->native, cudaStreamCaptureModeThreadLocal);
    if (rc != cudaSuccess) {
        return cuda_fail(s->device, err, rc, "graph");
    }
    s->refused = (struct dt_error){.status = DT_OK};
    s->capturer = pthread_self();
    __atomic_store_n(&s->capturing, true, __ATOMIC_RELEASE);
    return 0;
}

/* False if an operation was refused or the stream has failed: later kernels are not in the
 * graph. */
static bool is_whole(const struct cuda_stream *s, struct dt_error *err)
{
    if (s->refused.status != DT_OK) {
        *err = s->refused;
        return false;
    }
    return !cuda_lane_failed(s->device, s->lane, err);
}

static int end(struct dt_stream *base, struct dt_graph **out, struct dt_error *err)
{
    struct cuda_stream *s = (struct cuda_stream *)base;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t native = NULL;
    struct dt_error ignored = {0};
    err = err != NULL ? err : &ignored;
    __atomic_store_n(&s->capturing, false, __ATOMIC_RELEASE);
    cudaError_t rc = cudaStreamEndCapture(s->native, &graph);
    bool whole = is_whole(s, err);
    if (whole && rc == cudaSuccess) {
        rc = cudaGraphInstantiate(&native, graph, 0);
    }
    if (whole && rc != cudaSuccess) {
        (void)cuda_fail(s->device, err, rc, "graph");
    }
    if (graph != NULL) {
        (void)cudaGraphDestroy(graph);
    }
    (void)cudaGetLastError();
    if (native == NULL) {
        return -1;
    }
    struct cuda_graph *g = dt_alloc(sizeof *g);
    g->base.stream = base;
    g->native = native;
    *out = &g->base;
    return 0;
}

static void launch(struct dt_graph *base)
{
    struct cuda_graph *g = (struct cuda_graph *)base;
    struct cuda_stream *s = (struct cuda_stream *)base->stream;
    if (!cuda_lane_failed(s->device, s->lane, NULL)) {
        cuda_device_use(s->device);
        cuda_check(s, cudaGraphLaunch(g->native, s->native), "graph");
    }
}

static void close_graph(struct dt_graph *base)
{
    struct cuda_graph *g = (struct cuda_graph *)base;
    cuda_device_use(((struct cuda_stream *)base->stream)->device);
    (void)cudaGraphExecDestroy(g->native);
    (void)cudaGetLastError();
    free(g);
}

const struct dt_device_graphs dt_cuda_graphs = {.begin = begin, .end = end, .launch = launch, .close = close_graph};
