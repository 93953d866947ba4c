// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "backend/common/clock.h"
#include "backend/common/threads.h"
#include "backend/history/run_store.h"
#include "backend/model/listing.h"
#include "backend/service/feed.h"

namespace bulkhead::service {

/// A run read back from its file under a clock the operator can pause, seek and speed up. It feeds
/// readers exactly as a live job does. It begins at the run's beginning, paused, and pauses itself
/// at the end; a run that is still written can be played on from there. Thread: any; it owns one.
class Replay {
  public:
    /// Opens a run. Errors as RunReader::open and findRun; NotFound also for a run without events.
    static absl::StatusOr<std::unique_ptr<Replay>> open(const std::filesystem::path& file,
                                                        const std::string& run, const Clock& clock);
    ~Replay();

    const std::shared_ptr<Feed>& feed() const { return feed_; }

    /// Returns where it stands after obeying; a seek that takes long tells of its progress by the
    /// feed's position. InvalidArgument for a speed outside 0.01..10,000, NotFound for a step the
    /// run never committed and once it ended, Aborted for a seek that a later one took the place
    /// of, and the history's own errors.
    absl::StatusOr<model::ReplayPosition> control(const model::ReplayControl& order);

    /// Obeys nothing more: what is waited for or under way is answered at once.
    void end();

    /// Nobody has watched it for this long, in nanoseconds; 0 while somebody does.
    MonoNs unwatchedFor() const;

  private:
    Replay(std::unique_ptr<history::RunReader> reader, history::StoredRun info, const Clock& clock);

    void run();
    absl::Status obey(const model::ReplayControl& order);
    absl::Status seek(const model::ReplayControl& order);
    absl::StatusOr<model::RunState> load(uint64_t seq);
    bool isOvertaken() const;
    absl::Status advance(int64_t untilNs);
    absl::Status fill();
    int64_t runTime() const;
    void anchor(int64_t timeNs);
    void publish(bool always);

    const std::unique_ptr<history::RunReader> reader_;  ///< only its thread uses it
    history::StoredRun info_;
    const Clock& clock_;
    const std::shared_ptr<Feed> feed_ = std::make_shared<Feed>();

    // Fields that only the replay thread uses.
    model::ReplayPosition position_;
    std::deque<model::Event> ahead_;
    int64_t anchorRunNs_ = 0;  ///< time of the run ...
    MonoNs anchorRealNs_ = 0;  ///< ... at this moment
    MonoNs publishedNs_ = 0;

    mutable Mutex mutex_;
    ConditionVariable wake_;
    bool ending_ ABSL_GUARDED_BY(mutex_) = false;
    struct Order {
        model::ReplayControl control;
        std::promise<absl::StatusOr<model::ReplayPosition>> answer;
    };
    std::deque<Order> orders_ ABSL_GUARDED_BY(mutex_);
    mutable MonoNs lastWatchedNs_ ABSL_GUARDED_BY(mutex_) = 0;
    std::thread thread_;
};

}  // namespace bulkhead::service
