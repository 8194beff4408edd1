/* Graphs are not faked yet: who asks for one is told so, as by a driver that cannot, and goes on without. */
#include "tests/softgpu/runtime.h"

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t, enum cudaStreamCaptureMode)
{
    return softgpu_error(cudaErrorNotSupported);
}

cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t *graph)
{
    *graph = nullptr;
    return softgpu_error(cudaErrorNotSupported);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t, enum cudaStreamCaptureStatus *status)
{
    *status = cudaStreamCaptureStatusNone;
    return softgpu_enter("cudaStreamIsCapturing");
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *, cudaGraph_t, unsigned long long)
{
    return softgpu_error(cudaErrorNotSupported);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t)
{
    return softgpu_error(cudaErrorNotSupported);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t)
{
    return softgpu_error(cudaErrorNotSupported);
}

cudaError_t cudaGraphDestroy(cudaGraph_t)
{
    return softgpu_error(cudaErrorNotSupported);
}
}
