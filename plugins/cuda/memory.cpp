// SPDX-License-Identifier: Apache-2.0
#include "plugins/cuda/memory.h"

#include "absl/strings/str_cat.h"
#include "plugins/cuda/kernels.h"

namespace bulkhead::cuda {
namespace {

/// The driver hands out smaller blocks from shared pages, and exporting one would export its
/// neighbours: what peers may map has its pages to itself.
constexpr size_t kPeerPage = size_t{2} << 20;

absl::Status take(bulkhead_memory kind, size_t bytes, void** out) {
    const std::string what = absl::StrCat("allocating ", bytes, " bytes");
    if (bytes > SIZE_MAX / 2) return fromCuda(cudaErrorMemoryAllocation, what);
    const size_t some = bytes == 0 ? 1 : bytes;
    if (kind == BULKHEAD_MEMORY_HOST) {
        absl::Status s =
            fromCuda(cudaHostAlloc(out, some, cudaHostAllocPortable | cudaHostAllocMapped), what);
        if (s.ok()) memset(*out, 0, some);
        return s;
    }
    const size_t page = kind == BULKHEAD_MEMORY_PEER ? kPeerPage : 1;
    const size_t whole = (some + page - 1) / page * page;
    if (absl::Status s = fromCuda(cudaMalloc(out, whole), what); !s.ok()) return s;
    absl::Status s = fromCuda(cudaMemset(*out, 0, whole), "zeroing new memory");
    // Other streams do not wait for the default one.
    if (s.ok()) s = fromCuda(cudaStreamSynchronize(nullptr), "zeroing new memory");
    if (!s.ok()) ignore(cudaFree(*out));
    return s;
}

}  // namespace

bulkhead_status allocate(bulkhead_device* device, bulkhead_memory kind, size_t bytes, void** out) {
    *out = nullptr;
    return guarded(device, [&]() -> absl::Status {
        void* memory = nullptr;
        if (absl::Status s = take(kind, bytes, &memory); !s.ok()) return s;
        bulkhead_device::Block block{kind, bytes, {}};
        if (kind == BULKHEAD_MEMORY_PEER)
            if (absl::Status s = fromCuda(cudaIpcGetMemHandle(&block.handle, memory),
                                          "making memory that peers may map");
                !s.ok()) {
                ignore(cudaFree(memory));
                return s;
            }
        const absl::MutexLock lock(&device->mutex);
        device->blocks[memory] = block;
        device->used.fetch_add(bytes, std::memory_order_relaxed);
        *out = memory;
        return absl::OkStatus();
    });
}

void release(bulkhead_device* device, void* memory) {
    if (memory == nullptr) return;
    (void)guarded(device, [&]() -> absl::Status {
        bulkhead_device::Block block;
        {
            const absl::MutexLock lock(&device->mutex);
            const auto it = device->blocks.find(memory);
            if (it == device->blocks.end())
                return absl::InvalidArgumentError("free: this memory is not from this device");
            block = it->second;
            device->blocks.erase(it);
            if (block.kind == BULKHEAD_MEMORY_PEER && device->planes > 0) {
                device->retired[memory] = block;
                return absl::OkStatus();
            }
        }
        device->used.fetch_sub(block.bytes, std::memory_order_relaxed);
        return fromCuda(
            block.kind == BULKHEAD_MEMORY_HOST ? cudaFreeHost(memory) : cudaFree(memory), "free");
    });
}

void epochBegan(bulkhead_device* device) {
    const absl::MutexLock lock(&device->mutex);
    device->leaving.merge(device->retired);
}

void freeLeaving(bulkhead_device* device) {
    std::map<void*, bulkhead_device::Block> blocks;
    {
        const absl::MutexLock lock(&device->mutex);
        blocks.swap(device->leaving);
    }
    for (const auto& [memory, block] : blocks) {
        ignore(cudaFree(memory));
        device->used.fetch_sub(block.bytes, std::memory_order_relaxed);
    }
}

bulkhead_status copy(bulkhead_device* device, void* to, const void* from, size_t bytes,
                     bulkhead_stream* stream) {
    return guarded(device, [&] {
        return fromCuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, streamOf(stream)),
                        absl::StrCat("copying ", bytes, " bytes"));
    });
}

bulkhead_status zero(bulkhead_device* device, void* to, size_t bytes, bulkhead_stream* stream) {
    return guarded(device, [&] {
        return fromCuda(cudaMemsetAsync(to, 0, bytes, streamOf(stream)),
                        absl::StrCat("zeroing ", bytes, " bytes"));
    });
}

bulkhead_status reduceCopy(bulkhead_device* device, void* to, const void* const* from,
                           int32_t sources, size_t count, bulkhead_dtype fromType,
                           bulkhead_dtype toType, bulkhead_stream* stream) {
    return guarded(device, [&]() -> absl::Status {
        const auto narrow = [](bulkhead_dtype type) { return type == BULKHEAD_BF16; };
        const auto summed = [](bulkhead_dtype type) {
            return type == BULKHEAD_F32 || type == BULKHEAD_BF16;
        };
        const bool plain =
            fromType == toType && fromType >= BULKHEAD_F64 && fromType <= BULKHEAD_U8;
        if (sources < 1 || sources > static_cast<int32_t>(kMaxSources) ||
            !(plain || (summed(fromType) && summed(toType))))
            return absl::InvalidArgumentError(
                absl::StrCat("reduce_copy: expected 1 to ", kMaxSources,
                             " sources, F32 and BF16 in any mix, or F64, I32 or U8 on both sides"));
        if (count == 0) return absl::OkStatus();
        const auto many = static_cast<uint32_t>(sources);
        if (plain)
            return fromCuda(launchPlainSum(to, from, many, count, fromType, streamOf(stream)),
                            "reduce_copy");
        Sum sum{};
        sum.to = reinterpret_cast<uint64_t>(to);
        sum.count = count;
        sum.narrow = narrow(fromType) ? ~uint64_t{0} : 0;
        sum.sources = many;
        sum.narrowTo = narrow(toType);
        for (uint32_t s = 0; s < many; ++s) sum.from[s] = reinterpret_cast<uint64_t>(from[s]);
        return fromCuda(launchSum(sum, streamOf(stream)), "reduce_copy");
    });
}

std::optional<PeerBlock> peerBlockOf(bulkhead_device* device, const void* memory, size_t bytes) {
    const absl::MutexLock lock(&device->mutex);
    auto it = device->blocks.upper_bound(const_cast<void*>(memory));
    if (it == device->blocks.begin()) return std::nullopt;
    --it;
    const auto begin = reinterpret_cast<uintptr_t>(it->first);
    const auto at = reinterpret_cast<uintptr_t>(memory);
    const bool inside = it->second.kind == BULKHEAD_MEMORY_PEER && bytes <= it->second.bytes &&
                        at - begin <= it->second.bytes - bytes;
    if (!inside) return std::nullopt;
    return PeerBlock{it->first, it->second.handle};
}

}  // namespace bulkhead::cuda
