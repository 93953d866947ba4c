// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "backend/common/limits.h"
#include "backend/runtime/transport/tcp_connection.h"

namespace bulkhead::runtime {

/// At most so many connections to one peer.
constexpr uint32_t kMaxConnections = kMaxPairConnections;

/// All connections to one peer. A message is cut into one part for each, but into none below
/// `leastPart` bytes: a short one goes over the first alone. Both ends have equally many, each has
/// the same index at both, and both cut alike. Never blocks. Threads: one at a time.
class TcpPeer {
  public:
    /// `connections`: 1 to kMaxConnections.
    TcpPeer(std::vector<std::unique_ptr<TcpConnection>> connections, size_t leastPart);

    /// Starts the next round; `out` and `in` stay valid until done().
    void begin(const RoundTag& tag, bool more, std::span<const std::byte> out,
               std::span<std::byte> in);

    /// Appends one entry per connection, with what advance() could use.
    void appendWaits(std::vector<pollfd>& waits) const;
    /// Handles the results of poll() for those entries.
    void onPolled(std::span<const pollfd> found);
    size_t connections() const { return lanes_.size(); }

    /// Sends what can be sent, and takes what has come where onPolled() said so. Errors as
    /// TcpConnection::advance().
    [[nodiscard]] absl::Status advance();

    bool done() const;
    /// The peer's `more` of this round; valid once done().
    bool peerWantsMore() const { return lanes_.front().connection->peerWantsMore(); }
    uint64_t staleFrames() const;
    /// Grows with every byte that moves either way.
    uint64_t moved() const;
    /// Closes with resets, as an injected fault does.
    void breakOff();

  private:
    struct Lane {
        std::unique_ptr<TcpConnection> connection;
        bool used = false;  // in this round
        bool readable = false;
        bool open() const { return used && !connection->done(); }
    };
    const size_t leastPart_;
    std::vector<Lane> lanes_;
};

}  // namespace bulkhead::runtime
