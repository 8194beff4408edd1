/* Advice about an error of the runtime, if there is more to say than its name. */
#include "kernels/cuda/stream.h"

const char *cuda_advice(cudaError_t rc)
{
    switch (rc) {
    case cudaErrorDevicesUnavailable:
        return "; another program has it for itself (compute mode exclusive or prohibited: nvidia-smi -q -d COMPUTE), "
               "or it hangs";
    case cudaErrorSystemDriverMismatch:
        return "; the driver in the kernel and its library are of different versions: reboot, or reload the driver's "
               "module";
    case cudaErrorSystemNotReady:
        return "; the switches between the GPUs are not up: systemctl status nvidia-fabricmanager";
    case cudaErrorCompatNotSupportedOnDevice:
        return "; the compatibility library (cuda-compat) does not serve this GPU: take it out of LD_LIBRARY_PATH, or "
               "install a newer driver";
    case cudaErrorNoKernelImageForDevice:
        return "; this program was not built for it: make clean, and build with a toolkit that knows it";
    case cudaErrorUnsupportedPtxVersion:
        return "; the driver is older than the toolkit that this was built with: install a newer one";
    case cudaErrorPeerAccessUnsupported:
    case cudaErrorTooManyPeers:
        return "; these GPUs do not read each other's memory (nvidia-smi topo -p2p r): use training.collectives=nccl, "
               "which has other ways";
    case cudaErrorECCUncorrectable:
        return "; its memory has errors: nvidia-smi --gpu-reset, and doctor says whether the card is worn out";
    case cudaErrorNvlinkUncorrectable:
        return "; nvidia-smi nvlink -e says which link";
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorHardwareStackError:
    case cudaErrorLaunchFailure:
    case cudaErrorAssert:
        return "; a kernel failed: when it comes again at the same step it is our mistake, on the same GPU the card's";
    case cudaErrorLaunchTimeout:
        return "; the driver ends kernels that take long, because a display hangs on this GPU: use another one";
    case cudaErrorMpsConnectionFailed:
    case cudaErrorMpsRpcFailure:
    case cudaErrorMpsServerNotReady:
        return "; start MPS anew (nvidia-cuda-mps-control), or unset CUDA_MPS_PIPE_DIRECTORY";
    case cudaErrorMpsMaxClientsReached:
    case cudaErrorMpsMaxConnectionsReached:
        return "; MPS has as many clients as it takes: start fewer ranks";
    case cudaErrorOperatingSystem:
    case cudaErrorUnknown:
        return "; the kernel's log (dmesg) may say more";
    default:
        return "";
    }
}
