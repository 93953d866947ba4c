// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "backend/common/threads.h"
#include "backend/common/unique_fd.h"

namespace bulkhead::service {

/// Connections over the network on which nobody has signed in yet. gRPC 1.51 reads whatever they
/// send, without a bound on calls that are opened and cut off at once or on requests that wait for
/// their refusal. So the kernel hands on no more of a connection than kMostBytes and one, and one
/// that sent so much, or is older than its time, is closed under gRPC. Thread: signedIn() any, the
/// others one.
class Strangers {
  public:
    /// A TLS handshake with a chain of certificates and a first call fit in.
    static constexpr uint64_t kMostBytes = 16 << 10;
    static constexpr size_t kMost = 16;
    /// After so long one gives way to others that wait: the oldest of the host that has most.
    static constexpr std::chrono::milliseconds kTurn{250};

    /// `time`: from add() to signedIn(). `closed`: why the connection of this peer was, for the
    /// audit; called by look() and add().
    using Closed = std::function<void(const std::string& peer, const std::string& why)>;
    explicit Strangers(Closed closed, std::chrono::milliseconds time = std::chrono::seconds(5));

    /// False: as many as may be are there, and all of them have come just now.
    bool hasRoom();
    /// A connection that gRPC is about to have, when hasRoom(). `peer` as
    /// grpc::ServerContextBase::peer() writes it, which the caller knows from the same descriptor.
    /// Its listening socket had TCP_SAVE_SYN: without that the kernel hands on what comes within
    /// a millisecond or so of the end.
    void add(int fd, const std::string& peer);
    void signedIn(const std::string& peer);

    /// Closes those that have to be.
    void look();
    /// Until look() is due; -1: for nothing.
    int waitMs() const;

  private:
    struct Stranger {
        UniqueFd fd;  ///< a second descriptor of the connection
        std::string peer;
        std::chrono::steady_clock::time_point until;
    };
    using All = std::vector<Stranger>;
    void putOut(Stranger stranger, const std::string& why);
    All::iterator leastWelcome() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

    const Closed closed_;
    const std::chrono::milliseconds time_;
    std::optional<std::chrono::steady_clock::time_point> trimAt_;  ///< memory is given back
    mutable LeafMutex mutex_;
    All all_ ABSL_GUARDED_BY(mutex_);  ///< the one that came first in front
};

}  // namespace bulkhead::service
