// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/threads.h"
#include "backend/runtime/replica/plugin_host.h"
#include "bulkhead/device.h"

namespace bulkhead::runtime {

/// Copies out of a device while it computes, one after another: through two pieces of pinned
/// memory, each on a stream of its own, by a thread of its own. Whoever changes what is copied
/// awaits the copy before.
/// Thread: one.
class DeviceCopy {
  public:
    struct Device {
        const bulkhead_device_api* api = nullptr;
        bulkhead_device* device = nullptr;
        PluginLog* log = nullptr;
    };
    /// All called on the copying thread.
    struct Order {
        uint64_t bytes = 0;
        /// Puts bytes [at, at + bytes) on `stream`, on their way to `to`, memory of kind HOST.
        std::function<bulkhead_status(uint64_t at, uint64_t bytes, void* to,
                                      bulkhead_stream* stream)>
            put;
        /// Gets them, part by part in order.
        std::function<void(std::span<const std::byte>)> take;
        /// Once, in the end; after an error what was taken is not whole.
        std::function<void(const absl::Status&)> done;
    };
    /// The objects that `device` names outlive it.
    [[nodiscard]] static absl::StatusOr<std::unique_ptr<DeviceCopy>> create(const Device& device);
    /// Errors as await().
    ~DeviceCopy();

    /// Behind those before it; its number, from 1.
    uint64_t begin(Order order);
    /// Returns when that one and all before it are done, `done` among it. 0: at once.
    void await(uint64_t number);
    /// ... and when all are.
    void await();

  private:
    static constexpr size_t kPieceBytes = 16 << 20;
    struct Piece {
        void* memory = nullptr;
        bulkhead_stream* stream = nullptr;
        size_t bytes = 0;  ///< on their way
    };
    explicit DeviceCopy(const Device& device) : device_(device) {}
    absl::Status prepare();
    void run();
    absl::Status copy(const Order& order);
    absl::Status empty(Piece& piece, const Order& order);

    const Device device_;
    std::array<Piece, 2> pieces_;
    Mutex mutex_;
    ConditionVariable changed_;
    std::deque<Order> orders_ ABSL_GUARDED_BY(mutex_);  ///< the first is under way
    uint64_t begun_ ABSL_GUARDED_BY(mutex_) = 0;
    uint64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
    bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
    std::thread thread_;
};

}  // namespace bulkhead::runtime
