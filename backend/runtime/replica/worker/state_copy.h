// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/runtime/replica/plugin_host.h"
#include "bulkhead/workload.h"

namespace bulkhead::runtime {

/// Copies a workload's state out of its device while the workload computes: through two pieces of
/// pinned memory, each on a stream of its own, by a thread of its own. Whoever changes the state
/// calls await() before.
/// Thread: one, that of the workload.
class StateCopy {
  public:
    struct Source {
        const bulkhead_workload_api* api = nullptr;  ///< with export_state_on
        bulkhead_workload* workload = nullptr;
        const bulkhead_device_api* deviceApi = nullptr;
        bulkhead_device* device = nullptr;
        PluginLog* log = nullptr;
    };
    /// What `source` names outlives it.
    [[nodiscard]] static absl::StatusOr<std::unique_ptr<StateCopy>> create(const Source& source);
    /// As await().
    ~StateCopy();

    /// Fills `to` with the state's `bytes` as they are now; `done` is called on the thread, once,
    /// and `to` lives until then. Waits for the copy before.
    void begin(uint64_t bytes, std::vector<std::byte>* to, std::function<void(absl::Status)> done);
    /// Returns when there is no copy under way and its `done` has returned.
    void await();

  private:
    static constexpr size_t kPieceBytes = 16 << 20;
    struct Piece {
        void* memory = nullptr;
        bulkhead_stream* stream = nullptr;
        size_t bytes = 0;  ///< on their way
    };
    struct Job {
        uint64_t bytes = 0;
        std::vector<std::byte>* to = nullptr;
        std::function<void(absl::Status)> done;
    };
    explicit StateCopy(const Source& source) : source_(source) {}
    absl::Status prepare();
    void run();
    absl::Status copy(const Job& job);
    absl::Status take(Piece& piece, std::vector<std::byte>* to);

    const Source source_;
    std::array<Piece, 2> pieces_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::optional<Job> job_;  ///< until its `done` has returned
    bool stopping_ = false;
    std::thread thread_;
};

}  // namespace bulkhead::runtime
