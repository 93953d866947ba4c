// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/threads.h"
#include "backend/runtime/replica/state_store.h"
#include "backend/runtime/replica/state_wire.h"

namespace bulkhead::runtime {

/// Serves the pieces and deltas of a StateStore to joiners, on threads of its own: training never
/// waits for it. They have the priority of training: with a lower one a joiner never catches up on
/// a machine whose cores are all taken. Refuses whoever does not know a joiner's key, and a wrong
/// shard, version or step in one line, and goes on. Thread: construct and destroy on one thread;
/// the rest from any.
class StateServer {
  public:
    /// Binds `host` on a free port. Unavailable naming the address when that fails. `store` and
    /// `network` must outlive the server.
    static absl::StatusOr<std::unique_ptr<StateServer>> start(const std::string& host,
                                                              int32_t shard, StateStore* store,
                                                              StateNetwork& network);
    /// Ends all connections and joins their threads.
    ~StateServer();

    /// "ip:port" as joiners reach it.
    const std::string& address() const { return address_; }

    /// An injected network cut: while set, every connection is dropped and none is accepted.
    void setCut(bool cut);

    uint64_t bytesServed() const { return bytesServed_; }

  private:
    struct Connection {
        std::unique_ptr<StateStream> stream;  ///< reset under mutex_ by its thread, which ends then
        Thread thread;
        std::atomic<bool> proven{false};  ///< knows a joiner's key
        std::atomic<bool> done{false};
    };

    StateServer(std::unique_ptr<StateListener> listener, int32_t shard, StateStore* store);
    void accept();
    void serve(Connection* connection);
    absl::Status answer(StateStream* stream, const StateRequest& request);
    absl::Status answerSnapshot(StateStream* stream, const StateRequest& request);
    absl::Status answerDelta(StateStream* stream, const StateRequest& request);
    void reap() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
    bool makeRoom() ABSL_LOCKS_EXCLUDED(mutex_);

    const std::unique_ptr<StateListener> listener_;
    const std::string address_;
    int32_t shard_;
    StateStore* store_;
    std::atomic<bool> stopping_{false};
    std::atomic<bool> cut_{false};
    std::atomic<uint64_t> bytesServed_{0};
    Mutex mutex_;
    ConditionVariable stopped_;
    std::list<Connection> connections_ ABSL_GUARDED_BY(mutex_);
    Thread acceptor_;
};

}  // namespace bulkhead::runtime
