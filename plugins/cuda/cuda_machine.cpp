// SPDX-License-Identifier: Apache-2.0
#include "plugins/cuda/cuda_machine.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"
#include "plugins/cuda/ftar/plane_api.h"
#include "plugins/cuda/kernels.h"
#include "plugins/cuda/memory.h"

namespace bulkhead::cuda {
namespace {

/// Tells this process from all others that ever offer it memory.
uint64_t processId() {
    static const uint64_t id = [] {
        std::random_device random;
        return (uint64_t{random()} << 32) | random();
    }();
    return id;
}

/// The allocation around `at`, as the driver knows it; the runtime has no such question.
absl::StatusOr<Machine::Block> blockAround(const void* at) {
    using Range = int (*)(unsigned long long*, size_t*, unsigned long long);
    static const auto range = reinterpret_cast<Range>(
        dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), "cuMemGetAddressRange_v2"));
    if (range == nullptr)
        return absl::InternalError("the CUDA driver lacks cuMemGetAddressRange; update it");
    unsigned long long base = 0;
    size_t bytes = 0;
    if (const int code = range(&base, &bytes, reinterpret_cast<unsigned long long>(at)); code != 0)
        return absl::UnavailableError(
            absl::StrCat("a peer's GPU memory is not there (driver error ", code, ")"));
    return Machine::Block{reinterpret_cast<std::byte*>(base), bytes, true};
}

/// The same share of a small GPU as of a large one.
absl::StatusOr<uint32_t> usualNearBlocks(const bulkhead_device* device) {
    cudaDeviceProp gpu{};
    if (absl::Status s = fromCuda(cudaGetDeviceProperties(&gpu, device->index), "GPU"); !s.ok())
        return s;
    const auto share =
        static_cast<uint32_t>(gpu.multiProcessorCount) * kUsualNearBlocks / kProcessorsOfLargeGpu;
    return std::clamp(share, kUsualBlocks, kUsualNearBlocks);
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaMachine>> CudaMachine::create(bulkhead_device* device) {
    std::unique_ptr<CudaMachine> machine(new CudaMachine(device));
    if (absl::Status s = machine->enter(); !s.ok()) return s;
    int least = 0, greatest = 0;
    absl::Status s = fromCuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "stream");
    if (s.ok())
        s = fromCuda(
            cudaStreamCreateWithPriority(&machine->stream_, cudaStreamNonBlocking, greatest),
            "stream");
    if (!s.ok()) return s;
    const absl::MutexLock lock(&device->mutex);
    ++device->planes;
    return machine;
}

CudaMachine::~CudaMachine() {
    if (stream_ == nullptr || !enter().ok()) return;
    ignore(cudaStreamDestroy(stream_));
    {
        const absl::MutexLock lock(&device_->mutex);
        if (--device_->planes > 0) return;
    }
    cuda::epochBegan(device_);
    freeLeaving(device_);
}

void CudaMachine::epochBegan() {
    cuda::epochBegan(device_);
}

bool CudaMachine::givesBack() {
    const absl::MutexLock lock(&device_->mutex);
    return !device_->leaving.empty();
}

void CudaMachine::membersMet() {
    if (enter().ok()) freeLeaving(device_);
}

absl::Status CudaMachine::enter() const {
    return fromCuda(cudaSetDevice(device_->index), "cudaSetDevice");
}

absl::StatusOr<void*> CudaMachine::allocatePinned(size_t bytes) {
    if (absl::Status s = enter(); !s.ok()) return s;
    void* memory = nullptr;
    if (absl::Status s =
            fromCuda(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped),
                     absl::StrCat("pinning ", bytes, " bytes of host memory"));
        !s.ok())
        return s;
    std::memset(memory, 0, bytes);
    return memory;
}

void CudaMachine::freePinned(void* memory) {
    if (enter().ok()) ignore(cudaFreeHost(memory));
}

absl::Status CudaMachine::launch(Queue* queue, uint32_t blocks, uint64_t run) {
    if (absl::Status s = enter(); !s.ok()) return s;
    return fromCuda(launchFtar(queue, blocks, run, stream_), "starting FTAR's kernel");
}

absl::Status CudaMachine::health() {
    if (absl::Status s = enter(); !s.ok()) return s;
    const cudaError_t now = cudaStreamQuery(stream_);
    return now == cudaErrorNotReady ? absl::OkStatus() : fromCuda(now, "FTAR's kernel");
}

absl::StatusOr<Place> CudaMachine::place(const void* memory, size_t bytes) {
    const std::optional<PeerBlock> block = peerBlockOf(device_, memory, bytes);
    if (!block)
        return absl::InvalidArgumentError(
            "an exchange needs memory of kind BULKHEAD_MEMORY_PEER of this device");
    Place place;
    place.process = processId();
    place.base = reinterpret_cast<uint64_t>(block->base);
    place.offset = reinterpret_cast<uint64_t>(memory) - place.base;
    static_assert(sizeof block->handle == sizeof place.handle);
    std::memcpy(place.handle.data(), &block->handle, sizeof block->handle);
    return place;
}

absl::StatusOr<Machine::Block> CudaMachine::map(const Place& place) {
    if (absl::Status s = enter(); !s.ok()) return s;
    if (place.process == processId()) return own(place);
    cudaIpcMemHandle_t handle{};
    std::memcpy(&handle, place.handle.data(), sizeof handle);
    void* base = nullptr;
    if (const cudaError_t code =
            cudaIpcOpenMemHandle(&base, handle, cudaIpcMemLazyEnablePeerAccess);
        code != cudaSuccess) {
        (void)cudaGetLastError();
        return absl::UnavailableError(
            absl::StrCat("a peer's GPU memory cannot be mapped: ", cudaGetErrorString(code),
                         "; if its GPU is out of reach, use transport \"tcp\""));
    }
    absl::StatusOr<Block> block = blockAround(base);
    if (!block.ok()) ignore(cudaIpcCloseMemHandle(base));
    return block;
}

absl::StatusOr<Machine::Block> CudaMachine::own(const Place& place) const {
    const auto* at = reinterpret_cast<const void*>(place.base);
    cudaPointerAttributes attributes{};
    if (absl::Status s = fromCuda(cudaPointerGetAttributes(&attributes, at), "a peer's memory");
        !s.ok())
        return s;
    if (attributes.type != cudaMemoryTypeDevice)
        return absl::UnavailableError("a peer's GPU memory is not there");
    if (attributes.device != device_->index) {
        const cudaError_t code = cudaDeviceEnablePeerAccess(attributes.device, 0);
        if (code == cudaErrorPeerAccessAlreadyEnabled)
            (void)cudaGetLastError();
        else if (absl::Status s = fromCuda(code, "reaching a peer's GPU"); !s.ok())
            return s;
    }
    absl::StatusOr<Block> block = blockAround(at);
    if (block.ok()) block->imported = false;
    return block;
}

void CudaMachine::unmap(const Block& block) {
    if (block.imported && enter().ok()) ignore(cudaIpcCloseMemHandle(block.base));
}

bulkhead_status openPlane(bulkhead_device* device, uint32_t blocks, bulkhead_plane** out) {
    *out = nullptr;
    return guarded(device, [&]() -> absl::Status {
        absl::StatusOr<std::unique_ptr<CudaMachine>> machine = CudaMachine::create(device);
        if (!machine.ok()) return machine.status();
        DataPlane::Options options;
        options.blocks = blocks == 0 ? kUsualBlocks : blocks;
        absl::StatusOr<uint32_t> nearBlocks = blocks == 0 ? usualNearBlocks(device) : blocks;
        if (!nearBlocks.ok()) return nearBlocks.status();
        options.nearBlocks = *nearBlocks;
        static_assert(kUsualNearBlocks == 2 * BULKHEAD_EXCHANGE_PROCESSORS);
        absl::StatusOr<std::unique_ptr<DataPlane>> plane =
            DataPlane::create(std::move(*machine), options);
        if (!plane.ok()) return plane.status();
        *out = new bulkhead_plane{std::move(*plane), {}};
        return absl::OkStatus();
    });
}

}  // namespace bulkhead::cuda
