// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "plugins/cuda/cuda_machine.h"
#include "plugins/cuda/driver.h"
#include "plugins/cuda/ftar/plane_api.h"
#include "plugins/cuda/group.h"
#include "plugins/cuda/kernels.h"
#include "plugins/cuda/memory.h"

namespace bulkhead::cuda {
namespace {

absl::Status check(int32_t index) {
    const absl::StatusOr<int32_t> gpus = countGpus();
    if (!gpus.ok()) return gpus.status();
    if (index < 0 || index >= *gpus)
        return absl::UnavailableError(absl::StrCat("there is no GPU ", index, ", only ", *gpus,
                                                   "; check CUDA_VISIBLE_DEVICES"));
    if (absl::Status s = fromCuda(cudaSetDevice(index), absl::StrCat("GPU ", index)); !s.ok())
        return s;
    cudaDeviceProp properties{};
    if (absl::Status s = fromCuda(cudaGetDeviceProperties(&properties, index), "GPU"); !s.ok())
        return s;
    if (properties.major < 8)
        return absl::UnavailableError(absl::StrCat(
            properties.name, " has compute capability ", properties.major, ".", properties.minor,
            ", this plugin needs 8.0; use device \"cpu\" or another GPU"));
    return fromCuda(loadKernels(), "loading kernels");
}

bulkhead_status open(const bulkhead_host* host, int32_t index, bulkhead_device** out) {
    if (out == nullptr) return BULKHEAD_INVALID;
    *out = nullptr;
    // Before the driver starts, as kernels.h says of our own kernels: those of cuBLAS too would be
    // loaded at their first use, and wait for an idle GPU while an exchange's kernel waits for its
    // peers. Who has set it otherwise is not overruled.
    (void)::setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    auto device = std::unique_ptr<bulkhead_device>(new (std::nothrow) bulkhead_device());
    if (device == nullptr) return BULKHEAD_OUT_OF_MEMORY;
    if (host != nullptr) device->host = *host;
    device->index = index;
    try {
        const absl::Status status = check(index);
        if (status.ok()) *out = device.release();
        return status.ok() ? BULKHEAD_OK : report(device.get(), status);
    } catch (...) {
        return report(device.get(), absl::InternalError("unexpected error inside the CUDA device"));
    }
}

void close(bulkhead_device* device) {
    delete device;
}

bulkhead_status describe(bulkhead_device* device, bulkhead_device_info* out) {
    std::memset(out, 0, sizeof *out);
    return guarded(device, [&]() -> absl::Status {
        cudaDeviceProp properties{};
        if (absl::Status s =
                fromCuda(cudaGetDeviceProperties(&properties, device->index), "describe");
            !s.ok())
            return s;
        std::string(properties.name).copy(out->name, sizeof out->name - 1);
        out->memory_total = properties.totalGlobalMem;
        out->memory_used = device->used.load(std::memory_order_relaxed);
        return absl::OkStatus();
    });
}

bulkhead_status createStream(bulkhead_device* device, bulkhead_stream** out) {
    *out = nullptr;
    return guarded(device, [&]() -> absl::Status {
        auto stream = std::make_unique<bulkhead_stream>();
        absl::Status s =
            fromCuda(cudaStreamCreateWithFlags(&stream->stream, cudaStreamNonBlocking), "stream");
        if (s.ok()) *out = stream.release();
        return s;
    });
}

void destroyStream(bulkhead_device* device, bulkhead_stream* stream) {
    if (stream == nullptr) return;
    (void)guarded(device, [&] { return fromCuda(cudaStreamDestroy(stream->stream), "stream"); });
    delete stream;
}

bulkhead_status synchronize(bulkhead_device* device, bulkhead_stream* stream) {
    return guarded(device, [&] {
        return fromCuda(cudaStreamSynchronize(streamOf(stream)), "waiting for the GPU");
    });
}

const bulkhead_data_plane_api kPlaneApi = planeApi(openPlane);

const bulkhead_device_api kApi = {
    BULKHEAD_DEVICE_ABI,
    sizeof(bulkhead_device_api),
    "cuda",
    open,
    close,
    describe,
    allocate,
    release,
    createStream,
    destroyStream,
    synchronize,
    copy,
    zero,
    reduceCopy,
    createGroup,
    destroyGroup,
    abortGroup,
    allGather,
    reduceScatter,
    allToAll,
    barrier,
};

}  // namespace
}  // namespace bulkhead::cuda

extern "C" __attribute__((visibility("default"))) const bulkhead_device_api*
bulkhead_device_get_api(uint32_t abiVersion) {
    return abiVersion == BULKHEAD_DEVICE_ABI ? &bulkhead::cuda::kApi : nullptr;
}

extern "C" __attribute__((visibility("default"))) const bulkhead_data_plane_api*
bulkhead_data_plane_get_api(uint32_t abiVersion) {
    return abiVersion == BULKHEAD_DATA_PLANE_ABI ? &bulkhead::cuda::kPlaneApi : nullptr;
}
