// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "backend/common/unique_fd.h"
#include "backend/front/allowance.h"
#include "backend/front/host_turns.h"
#include "backend/front/tls.h"

namespace bulkhead::front {

/// The other end of a connection over the network.
struct Peer {
    std::string name;  ///< as grpc::ServerContextBase::peer() writes one
    Host host = 0;
};
/// The other end of a connection that was just accepted.
Peer peerOf(int fd);

/// A connection over the network, which gRPC does not have itself: it has one end of a pair of
/// sockets, and what comes at either side goes on from here. So TLS ends here, gRPC sees nobody who
/// does not speak HTTP/2, and of what is sent to it each frame is counted and may have to wait: who
/// sends is slowed down then, by TCP. It holds at most some 100 KB: nothing is read from one side
/// while the other takes nothing. Nothing here blocks. Thread: one at a time.
class Connection {
  public:
    using Time = std::chrono::steady_clock::time_point;
    /// Takes gRPC's end. Called when the other end has said that it speaks HTTP/2, and over TLS
    /// after the handshake, so that certificate() is known.
    using ToGrpc = std::function<void(Connection&, UniqueFd)>;
    /// When gRPC has closed, the other end may take the rest, and close, for so long after each
    /// piece that it took.
    static constexpr std::chrono::seconds kLinger{2};
    /// Frames that belong to no call may wait for so long, one after the other: then they are a
    /// flood, of which the network may hold much more, also when whoever sent it is gone.
    static constexpr std::chrono::seconds kBacklog{10};
    static constexpr std::chrono::seconds kPause{2};
    /// When the other end has closed, gRPC may take so long to do so.
    static constexpr std::chrono::seconds kLeaves{30};

    /// `tls` null: plain text.
    Connection(UniqueFd socket, const std::shared_ptr<ssl_ctx_st>& tls,
               std::shared_ptr<Share> share, ToGrpc toGrpc);

    /// Moves what can be moved, a piece of each side at most.
    void pump(Time now);
    /// Closes the side of the network.
    void cut(Time now);

    /// Nobody is there any more: neither the other end, nor gRPC.
    bool isOver() const { return !socket_.valid() && !grpc_.valid(); }
    /// Says why it was closed from here; empty: it was not.
    const std::string& fault() const { return fault_; }
    /// poll() should wait for this. A side that is not waited for has -1.
    struct Waits {
        int socket = -1;
        short socketFor = 0;
        int grpc = -1;
        short grpcFor = 0;
    };
    Waits waits() const;
    /// pump() again after so long at most: a frame waits for its allowance, or one side for the
    /// other's end; -1: nothing waits for a time.
    int waitMs() const { return paused_ ? kPausedMs : closing_ ? kClosingMs : -1; }

    /// gRPC's name for the other end of what it has: "unix-abstract:...".
    const std::string& grpcName() const { return grpcName_; }
    const std::string& certificate() const { return certificate_; }  ///< PEM; empty: none
    /// A frame that begins a call waits for its allowance, or another one does.
    bool callWaits() const { return paused_ && callWaits_; }
    bool frameWaits() const { return paused_ && !callWaits_; }
    /// Nothing is read of the network any more once so many bytes have come; a piece more may come.
    void readAtMost(uint64_t bytes) { most_ = bytes; }
    bool wantsMore() const { return received_ >= most_; }
    uint64_t received() const { return received_; }  ///< bytes of the wire

  private:
    static constexpr int kPausedMs = 5;
    static constexpr int kClosingMs = 100;

    bool mayRead() const;
    void readSocket(Time now);
    void beginHttp2(Time now);
    bool makePair();
    void passFrames(Time now);
    void writeGrpc(Time now);
    void readGrpc(Time now);
    void writeSocket(Time now);
    void grpcIsGone(Time now);
    void fail(std::string why, Time now);

    UniqueFd socket_;
    UniqueFd grpc_;  ///< our end of the pair
    std::unique_ptr<ServerTlsSession> tls_;
    const std::shared_ptr<Share> share_;
    ToGrpc toGrpc_;  ///< null: it was called
    std::string grpcName_;
    std::string certificate_;
    std::string fault_;
    std::string in_;      ///< plain text for gRPC
    size_t passed_ = 0;   ///< of that, what may go
    size_t ofFrame_ = 0;  ///< bytes of the frame that passed last, which have not come yet
    std::string out_;     ///< for the wire
    uint64_t received_ = 0;
    uint64_t most_ = UINT64_MAX;
    bool paused_ = false;
    bool callWaits_ = false;
    bool grpcIsFull_ = false;
    bool grpcEnds_ = false;  ///< it has closed its end; bytes of it may be left
    Time waited_;            ///< when a frame that belongs to no call did last
    Time backlogSince_;
    std::optional<Time> closing_;  ///< one side has closed; the other is cut off then
};

}  // namespace bulkhead::front
