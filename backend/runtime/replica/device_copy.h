// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/threads.h"
#include "backend/runtime/checkpoint/state_bytes.h"
#include "backend/runtime/replica/plugin_host.h"
#include "bulkhead/device.h"

namespace bulkhead::runtime {

/// A device that is open, for those who use its memory; what it names outlives them. `what` tells
/// in an error what was being done.
struct OpenDevice {
    const bulkhead_device_api* api = nullptr;
    bulkhead_device* device = nullptr;
    PluginLog* log = nullptr;

    [[nodiscard]] absl::StatusOr<void*> take(bulkhead_memory kind, uint64_t bytes,
                                             std::string_view what) const;
    /// Between any of its memories and the host's, behind what the default stream does; returns
    /// when it is done.
    [[nodiscard]] absl::Status copy(void* to, const void* from, size_t bytes,
                                    std::string_view what) const;
    /// Returns when the default stream has done all that it was given.
    [[nodiscard]] absl::Status wait(std::string_view what) const;
};

/// Copies out of a device while it computes, one after another, on streams of their own and by a
/// thread of its own: piece by piece through two of pinned memory, or a whole state straight into
/// pinned memory that was taken for it before, where its readers find it. Whoever changes what is
/// copied awaits the copy before.
/// Thread: one; a StateBytes that was lent memory ends on any.
class DeviceCopy {
  public:
    /// Puts bytes [at, at + bytes) on `stream`, on their way to `to`, memory of kind HOST.
    using Put = std::function<bulkhead_status(uint64_t at, uint64_t bytes, void* to,
                                              bulkhead_stream* stream)>;
    /// Once, in the end; after an error what was taken is not whole.
    using Done = std::function<void(const absl::Status&)>;
    /// All called on the copying thread.
    struct Order {
        uint64_t bytes = 0;
        Put put;
        /// Gets them, part by part in order.
        std::function<void(std::span<const std::byte>)> take;
        Done done;
    };
    [[nodiscard]] static absl::StatusOr<std::unique_ptr<DeviceCopy>> create(
        const OpenDevice& device);
    /// Waits as await() does. Memory that is lent then is left to the process's end.
    ~DeviceCopy();

    /// Takes pinned memory for states of so many bytes, one at a time. May take seconds and wait
    /// for all that the device does, so it is called before the device is at work. Where the host
    /// has not got that much to spare, it says so, and states go piece by piece.
    void makeRoom(uint64_t bytes);

    /// Behind those before it.
    void begin(Order order);
    /// begin() for what `from`, memory of the device, holds: `to` lives until `done` was called.
    void begin(std::span<const float> from, std::span<float> to, Done done);
    /// begin() for a whole state: `to` lives until `done` was called. It is lent the room that
    /// was made, unless somebody still reads the state before there; then, or where there is none,
    /// the state goes piece by piece into memory of its own.
    void snapshot(uint64_t bytes, Put put, StateBytes* to, Done done);
    /// The room that was made, for a state that comes from elsewhere; memory of its own where
    /// there is none, or somebody reads a state there. Thread: any, after makeRoom().
    StateBytes lend(uint64_t bytes);
    /// Returns when all are done, `done` among it.
    void await();
    /// Those that are not done end with Cancelled, at their next part. Returns as await() does.
    void giveUp();

  private:
    /// Two parts of this size are on their way at a time: others' copies, training's among them,
    /// wait a sixth of a millisecond for those before them.
    static constexpr size_t kPieceBytes = 4 << 20;
    struct Piece {
        void* memory = nullptr;
        bulkhead_stream* stream = nullptr;
        std::span<const std::byte> coming;
    };
    struct Room;
    struct Ordered {
        Order order;
        std::byte* straight = nullptr;  ///< pinned; null: piece by piece
        uint64_t number = 0;
    };
    explicit DeviceCopy(const OpenDevice& device) : device_(device) {}
    absl::Status prepare();
    void run();
    void queue(Ordered ordered);
    absl::Status copy(const Ordered& ordered);
    absl::Status empty(Piece& piece, const Order& order);

    const OpenDevice device_;
    std::array<Piece, 2> pieces_;
    std::shared_ptr<Room> room_;  ///< null: none was made
    Mutex mutex_;
    ConditionVariable changed_;
    std::deque<Ordered> orders_ ABSL_GUARDED_BY(mutex_);  ///< the first is under way
    uint64_t begun_ ABSL_GUARDED_BY(mutex_) = 0;
    uint64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
    std::atomic<uint64_t> givenUp_{0};  ///< the last of those that were
    bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
    std::thread thread_;
};

}  // namespace bulkhead::runtime
