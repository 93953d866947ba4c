// SPDX-License-Identifier: Apache-2.0
// The machine of gpu/machine.h on an NVIDIA GPU: kernels by their number, products by cuBLAS.
#include "plugins/llama_moe/gpu/machine.h"

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <new>

#include "plugins/llama_moe/cuda/kernels.h"

namespace bulkhead::llama_moe::gpu {

struct Machine {
    bulkhead_host host{};
    int device = 0;
    int processors = 0;  ///< of the device
    cublasHandle_t blas = nullptr;
    bulkhead_status status = BULKHEAD_OK;  ///< of the first error that was not told yet
    char line[256] = "";

    void keep(bulkhead_status code, const char* what, const char* why, const char* remedy) {
        if (status != BULKHEAD_OK) return;
        status = code;
        std::snprintf(line, sizeof line, "llama_moe on GPU %d, %s: %s; %s", device, what, why,
                      remedy);
    }
    bool keep(cudaError_t code, const char* what) {
        if (code == cudaSuccess) return true;
        const bool noGpu = code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver ||
                           code == cudaErrorSystemDriverMismatch;
        if (code == cudaErrorMemoryAllocation)
            keep(BULKHEAD_OUT_OF_MEMORY, what, cudaGetErrorString(code),
                 "use a smaller model or micro_batch");
        else
            keep(noGpu ? BULKHEAD_UNAVAILABLE : BULKHEAD_INTERNAL, what, cudaGetErrorString(code),
                 noGpu ? "check nvidia-smi, or use device \"cpu\"" : "the rank must start again");
        return false;
    }
    bool keep(cublasStatus_t code, const char* what) {
        if (code == CUBLAS_STATUS_SUCCESS) return true;
        if (code == CUBLAS_STATUS_ALLOC_FAILED)
            keep(BULKHEAD_OUT_OF_MEMORY, what, cublasGetStatusString(code),
                 "use a smaller model or micro_batch");
        else
            keep(BULKHEAD_INTERNAL, what, cublasGetStatusString(code), "the rank must start again");
        return false;
    }
    bool start(void* workspace, size_t bytes);
};

namespace {

bool tell(Machine& machine) {
    if (machine.host.error != nullptr) machine.host.error(machine.host.context, machine.line);
    return false;
}

}  // namespace

bool Machine::start(void* workspace, size_t bytes) {
    cudaPointerAttributes attributes{};
    if (!keep(cudaPointerGetAttributes(&attributes, workspace), "finding the GPU")) return false;
    if (attributes.type != cudaMemoryTypeDevice) {
        keep(BULKHEAD_INVALID, "finding the GPU", "the workspace is not memory of a GPU",
             "use a device \"cuda\" with this machine");
        return false;
    }
    device = attributes.device;
    // A sum whose halves are rounded before they are added would not be one in float32.
    const auto math = static_cast<cublasMath_t>(CUBLAS_DEFAULT_MATH |
                                                CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
    return keep(cudaSetDevice(device), "cudaSetDevice") &&
           keep(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device),
                "finding the GPU") &&
           keep(loadKernels(), "loading kernels") && keep(cublasCreate(&blas), "opening cuBLAS") &&
           keep(cublasSetStream(blas, nullptr), "opening cuBLAS") &&
           // After the stream, which would set it back. Memory of our own: results then do not
           // depend on what else cuBLAS has in use.
           keep(cublasSetWorkspace(blas, workspace, bytes), "opening cuBLAS") &&
           keep(cublasSetMathMode(blas, math), "opening cuBLAS");
}

namespace {

void close(Machine* machine) {
    if (machine->blas != nullptr) (void)cublasDestroy(machine->blas);
    delete machine;
}

bulkhead_status open(const bulkhead_host* host, void* workspace, size_t bytes, Machine** out) {
    *out = nullptr;
    auto* machine = new (std::nothrow) Machine;
    if (machine == nullptr) return BULKHEAD_OUT_OF_MEMORY;
    if (host != nullptr) machine->host = *host;
    if (machine->start(workspace, bytes)) {
        *out = machine;
        return BULKHEAD_OK;
    }
    tell(*machine);
    const bulkhead_status status = machine->status;
    close(machine);
    return status;
}

void launch(Machine* machine, Kernel kernel, const void* body, uint32_t blocks) {
    if (machine->keep(cudaSetDevice(machine->device), "cudaSetDevice"))
        machine->keep(launchKernel(kernel, body, blocks), nameOf(kernel));
}

/// Row-major C = op(A) op(B) is column-major C^T = op(B)^T op(A)^T.
cublasStatus_t multiply(cublasHandle_t blas, const MatrixProduct& p) {
    const auto turn = [](uint32_t yes) { return yes != 0 ? CUBLAS_OP_T : CUBLAS_OP_N; };
    const auto count = [](uint64_t value) { return static_cast<int64_t>(value); };
    const cudaDataType_t typeC = p.wide != 0 ? CUDA_R_32F : CUDA_R_16BF;
    return cublasGemmEx_64(blas, turn(p.turnB), turn(p.turnA), count(p.n), count(p.m), count(p.k),
                           &p.alpha, p.b, CUDA_R_16BF, count(p.ldb), p.a, CUDA_R_16BF, count(p.lda),
                           &p.beta, p.c, typeC, count(p.ldc), CUBLAS_COMPUTE_32F,
                           CUBLAS_GEMM_DEFAULT);
}

void product(Machine* machine, const MatrixProduct* product) {
    if (machine->keep(cudaSetDevice(machine->device), "cudaSetDevice"))
        machine->keep(multiply(machine->blas, *product), "a matrix product");
}

bulkhead_status check(Machine* machine) {
    const bulkhead_status status = machine->status;
    if (status != BULKHEAD_OK) tell(*machine);
    machine->status = BULKHEAD_OK;
    return status;
}

void spare(Machine* machine, uint32_t processors) {
    const int left = std::max(1, machine->processors - static_cast<int>(processors));
    machine->keep(cublasSetSmCountTarget(machine->blas, processors == 0 ? 0 : left),
                  "leaving room for an exchange");
}

constexpr MachineApi kApi{kMachineBuild, open, close, launch, product, check, spare};

}  // namespace
}  // namespace bulkhead::llama_moe::gpu

extern "C" __attribute__((visibility("default"))) const bulkhead::llama_moe::gpu::MachineApi*
bulkhead_llama_moe_get_machine() {
    return &bulkhead::llama_moe::gpu::kApi;
}
