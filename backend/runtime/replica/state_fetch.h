// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/clock.h"
#include "backend/common/threads.h"
#include "backend/runtime/replica/state_store.h"
#include "backend/runtime/replica/state_wire.h"

namespace bulkhead::runtime {

struct FetchSource {
    int32_t replica = 0;
    std::string address;  ///< of the state server of the same shard
};

struct FetchOptions {
    int32_t shard = 0;
    Secret key;
    uint64_t lineage = 0;
    uint64_t step = 0;            ///< of the snapshot
    uint64_t layout = 0;          ///< of its experts
    uint64_t bytesPerSecond = 0;  ///< over all sources; 0: no cap
    uint64_t pieceBytes = 1 << 20;
    uint32_t connections = 1;   ///< over all sources; each has one at least
    uint32_t timeoutMs = 5000;  ///< a source silent for so long is given up
    /// Bytes done and in all, from the fetching threads, one at a time.
    std::function<void(uint64_t done, uint64_t total)> progress;
    /// Gives the state's memory. May be empty: the state has memory of its own.
    std::function<StateBytes(uint64_t bytes)> room;
    /// While true nothing is asked: an injected network cut. May be empty.
    std::function<bool()> cut;
    StateNetwork* network = &stateSockets();  ///< outlives the fetch
};

/// Pulls one shard's snapshot from all sources at once, then deltas one by one. A piece that fails
/// or whose checksum is wrong is asked of another source; a source is given up after three failures
/// or when it says the snapshot is gone; one that holds it in another layout is not asked for it.
/// Pieces that arrived stay: run() may be called again with
/// other sources and goes on where it stopped.
/// Thread: one caller; cancel() from any.
class StateFetch {
  public:
    explicit StateFetch(FetchOptions options, const Clock& clock);
    ~StateFetch();

    /// The whole snapshot, its hash checked; then it is the caller's alone. Unavailable listing
    /// every source's reason when none is left; NotFound when every source says it is gone; Aborted
    /// after cancel().
    [[nodiscard]] absl::StatusOr<std::shared_ptr<const StateSnapshot>> run(
        const std::vector<FetchSource>& sources);

    /// The delta of `step` from whichever source answers; waits up to `patienceMs` for one that is
    /// still to come. NotFound: out of every source's window, or not there in time.
    [[nodiscard]] absl::StatusOr<Delta> delta(uint64_t step,
                                              const std::vector<FetchSource>& sources,
                                              uint32_t patienceMs);

    /// Memory that a delta was in, for one that is still to come. Any thread.
    void recycle(Floats memory);

    /// Applies to connections from now on. Any thread.
    void setKey(const Secret& key);

    /// Ends run() and delta() at once, now and later.
    void cancel();

    uint64_t bytesDone() const { return bytesDone_; }
    /// Bytes by replica, of the runs that have returned. Thread: the caller of run().
    std::vector<std::pair<int32_t, uint64_t>> bytesBySource() const { return bySource_; }

  private:
    struct Piece {
        uint64_t offset = 0;
        uint64_t bytes = 0;
        bool done = false;
        bool taken = false;
    };
    struct Link {
        FetchSource source;
        std::unique_ptr<StateStream> stream;  ///< null: not connected
        uint64_t bytes = 0;
    };

    class InUse;
    absl::StatusOr<StateAnswer> ask(Link* link, const StateRequest& request);
    absl::Status describe(std::vector<Link>* links);
    /// So many go to each source of so many.
    size_t connectionsEach(size_t sources) const;
    /// While no thread of run() pulls, as complete(): neither takes the mutex, where a simulation
    /// would switch threads.
    void adopt(const StateAnswer& answer) ABSL_NO_THREAD_SAFETY_ANALYSIS;
    bool complete() const ABSL_NO_THREAD_SAFETY_ANALYSIS;
    absl::Status pull(Link* link);
    absl::Status pullPiece(Link* link, Piece* piece);
    absl::Status receive(Link* link, const StateAnswer& answer, std::byte* to);
    /// Over these connections to one source.
    absl::StatusOr<Delta> deltaFrom(std::span<Link> links, uint64_t step, uint32_t patienceMs);
    Piece* takePiece();
    void pace(uint64_t bytes);
    Credential credential() const;
    StateRequest request(StateAsk ask, uint64_t step) const;

    FetchOptions options_;
    const Clock& clock_;
    std::atomic<bool> cancelled_{false};
    std::atomic<uint64_t> bytesDone_{0};

    mutable Mutex mutex_;
    Secret key_ ABSL_GUARDED_BY(mutex_);
    ConditionVariable changed_;
    std::shared_ptr<StateSnapshot> state_;  ///< set before the threads that fill it begin
    std::vector<Piece> pieces_ ABSL_GUARDED_BY(mutex_);
    std::vector<std::pair<int32_t, uint64_t>> bySource_;
    MonoNs nextSendNs_ ABSL_GUARDED_BY(mutex_) = 0;
    std::vector<Floats> spare_ ABSL_GUARDED_BY(mutex_);
    std::vector<StateStream*> waiting_ ABSL_GUARDED_BY(mutex_);  ///< in use, for cancel
    /// Kept open between deltas: those of one source behind each other.
    std::vector<Link> deltaLinks_;
};

}  // namespace bulkhead::runtime
