// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <map>
#include <new>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "bulkhead/device.h"

/// One GPU as the device ABI shows it. Threads: any.
struct bulkhead_device {
    bulkhead_host host{};
    int index = 0;
    std::atomic<uint64_t> used{0};
    absl::Mutex mutex;
    struct Block {
        bulkhead_memory kind = BULKHEAD_MEMORY_DEVICE;
        size_t bytes = 0;             ///< as asked for
        cudaIpcMemHandle_t handle{};  ///< kind PEER: by which other processes find it
    };
    std::map<void*, Block> blocks ABSL_GUARDED_BY(mutex);
    /// Blocks of kind PEER that were given back, which peers may still map: freed once all members
    /// of an epoch that began later have added in it, for by then they have unmapped what is not
    /// named there.
    std::map<void*, Block> retired ABSL_GUARDED_BY(mutex);
    std::map<void*, Block> leaving
        ABSL_GUARDED_BY(mutex);  ///< those of `retired` from before the epoch that is open
    int planes ABSL_GUARDED_BY(mutex) = 0;  ///< where there is none, no peer maps anything
};

struct bulkhead_stream {
    cudaStream_t stream = nullptr;
};

namespace bulkhead::cuda {

/// Ok, or what CUDA says, with `what` before it and a remedy after it where there is one.
absl::Status fromCuda(cudaError_t code, const std::string& what);

/// A call that is given up fails without a word, and leaves no last error to somebody else's next
/// call.
inline void ignore(cudaError_t code) {
    if (code != cudaSuccess) (void)cudaGetLastError();
}

/// Tells the host the line and gives the code its kind has in the ABI.
bulkhead_status report(const bulkhead_device* device, const absl::Status& status) noexcept;

/// Runs `body`, a function to absl::Status, with the device current on this thread; nothing that is
/// thrown leaves it.
template <class Body>
bulkhead_status guarded(const bulkhead_device* device, Body&& body) noexcept {
    try {
        absl::Status status = fromCuda(cudaSetDevice(device->index), "cudaSetDevice");
        if (status.ok()) status = body();
        return report(device, status);
    } catch (const std::bad_alloc&) {
        return report(device, absl::ResourceExhaustedError("out of host memory"));
    } catch (...) {
        return report(device, absl::InternalError("unexpected error inside the CUDA device"));
    }
}

inline cudaStream_t streamOf(const bulkhead_stream* stream) {
    return stream == nullptr ? nullptr : stream->stream;
}

}  // namespace bulkhead::cuda
