// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "backend/common/threads.h"
#include "backend/model/listing.h"
#include "backend/model/run_state.h"

namespace bulkhead::v1 {
class Event;
class WatchUpdate;
}  // namespace bulkhead::v1

namespace bulkhead::service {

/// Is told that there is something new. wake() may come from any thread, also several at once.
class Listener {
  public:
    virtual ~Listener() = default;
    virtual void wake() = 0;
};

struct FeedLimits {
    size_t events = 4096;
    size_t bytes = 8u << 20;
};

/// One run as it unfolds, for any number of readers: the folded state and the last events. A reader
/// has no queue of its own but a place in the feed's; one whose place has been overwritten is
/// conflated: it gets the state of now instead. So a slow reader costs nothing, whoever it is.
/// Thread: push, reset and setPosition from one thread at a time; everything else from any.
class Feed {
  public:
    /// A reader's place.
    struct Cursor {
        uint64_t generation = 0;
        uint64_t seq = 0;
        uint64_t position = 0;
        bool json = false;
        /// Its first `sent` bytes have gone; the rest goes before anything else.
        std::shared_ptr<const std::string> state;
        size_t sent = 0;
    };

    /// Of one message, but for a single event that is larger by itself: readers with gRPC's default
    /// limit of 4 MiB can follow a job of any size.
    static constexpr size_t kMostBytes = 256u << 10;

    explicit Feed(FeedLimits limits = {}) : limits_(limits) {}
    virtual ~Feed() = default;

    /// The state is now this one; every reader gets it as a snapshot.
    void reset(model::RunState state);
    /// The next event, folded in and kept for readers. Ignored when seq is not beyond the state's.
    void push(const model::Event& event);
    void setPosition(const model::ReplayPosition& position);
    /// No more will come; readers are told `why` after the rest.
    void end(absl::Status why);

    /// Fills in this reader's next update, at most about kMostBytes; false when it has everything.
    bool next(Cursor& cursor, v1::WatchUpdate& update) const;
    /// Set once end() was called and this reader has everything.
    std::optional<absl::Status> ended(const Cursor& cursor) const;

    void add(Listener* listener);
    /// Returns when no wake() of it runs any more. Not from inside wake().
    void remove(Listener* listener);
    size_t listeners() const;

  private:
    struct Kept {
        uint64_t seq = 0;
        size_t bytes = 0;
        std::unique_ptr<const v1::Event> event;
        Kept(uint64_t s, size_t b, std::unique_ptr<const v1::Event> e);
        Kept(Kept&&) noexcept;
        ~Kept();
    };

    /// The state as a message has it, made once for all readers who come while few events follow.
    struct Made {
        uint64_t generation = 0;
        uint64_t seq = 0;
        std::shared_ptr<const std::string> text;
    };

    void wakeAll();
    bool nextLocked(Cursor& cursor, v1::WatchUpdate& update) const
        ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
    Made madeState(bool json) const;
    bool isFollowed(const Made& made) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
    uint64_t oldest() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

    const FeedLimits limits_;
    mutable Mutex mutex_;
    std::optional<model::RunState> state_ ABSL_GUARDED_BY(mutex_);
    uint64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;
    std::deque<Kept> recent_ ABSL_GUARDED_BY(mutex_);
    size_t recentBytes_ ABSL_GUARDED_BY(mutex_) = 0;
    std::optional<model::ReplayPosition> position_ ABSL_GUARDED_BY(mutex_);
    uint64_t positionVersion_ ABSL_GUARDED_BY(mutex_) = 0;
    std::optional<absl::Status> ended_ ABSL_GUARDED_BY(mutex_);

    mutable Mutex makingMutex_;                                       ///< before mutex_
    mutable std::array<Made, 2> made_ ABSL_GUARDED_BY(makingMutex_);  ///< codec, JSON

    mutable Mutex listenersMutex_;
    std::vector<Listener*> listeners_ ABSL_GUARDED_BY(listenersMutex_);
};

}  // namespace bulkhead::service
