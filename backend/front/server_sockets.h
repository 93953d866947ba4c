// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/unique_fd.h"
#include "backend/front/front.h"

namespace bulkhead::front {

/// "7400" -> {"127.0.0.1", "7400"}, "[::1]:7400" -> {"::1", "7400"}; InvalidArgument for what is no
/// address.
absl::StatusOr<std::pair<std::string, std::string>> tcpAddress(const std::string& text);

/// Accepts the server's connections in gRPC's place: gRPC 1.51 closes a listener for good when one
/// accept finds no free descriptor. Here that is waited out. Part of the descriptors stays free
/// for the process itself, and a part beyond that for the Unix socket, so that callers over the
/// network cannot lock out an operator on this machine; a connection beyond its part is closed at
/// once, and the log says so, at most once a minute.
/// A connection over the network comes to Front with its first byte. Until then it is a descriptor
/// and nothing else; at most kMostWaiting wait so, and the oldest of the host that has most gives
/// way. Those that have said something wait likewise until Front lets them in.
/// Thread: one owner; `local` and what Front does for strangers are called on a thread of its own.
class ServerSockets {
  public:
    /// Takes over a connection that came over a Unix socket.
    using Local = std::function<void(UniqueFd)>;
    static constexpr size_t kMostWaiting = 256;

    /// `silence`: a connection over the network that waits for so long is closed.
    explicit ServerSockets(Front& front,
                           std::chrono::milliseconds silence = std::chrono::seconds(5));
    ~ServerSockets();  ///< no call of `local` follows, and strangers are not served any more

    /// Serves a socket file of mode 0600, replacing one that nobody serves any more. AlreadyExists
    /// when another process serves there. Returns "unix:PATH".
    absl::StatusOr<std::string> listenUnix(const std::string& path);
    /// Port 0: any free one. AlreadyExists when the address is in use, InvalidArgument when it is
    /// no address of this machine. Returns "host:port" with the port that was bound.
    absl::StatusOr<std::string> listenTcp(const std::string& text);
    /// True when one of the TCP addresses is not of loopback.
    bool reachedFromElsewhere() const { return reachedFromElsewhere_; }
    /// Call once, when all addresses are bound.
    void start(Local local);

    uint64_t refused() const { return refused_; }  ///< connections closed for want of descriptors

  private:
    struct Socket {
        UniqueFd fd;
        bool local = false;
    };
    struct Waiting {
        UniqueFd fd;
        Peer peer;
        std::chrono::steady_clock::time_point until;
        bool spoke = false;
    };
    void run();
    void acceptAll(const Socket& from);
    void await(int fd);
    void hear(const pollfd* ready);
    int waitMs() const;

    Front& front_;
    const std::chrono::milliseconds silence_;
    std::deque<Waiting> waiting_;  ///< the one that came first in front
    std::vector<Socket> sockets_;
    std::vector<UniqueFd> locks_;     ///< of `paths_`
    std::vector<std::string> paths_;  ///< of the socket files; they go with the object
    UniqueFd wake_;
    Local local_;
    std::thread thread_;
    std::atomic<uint64_t> refused_{0};
    bool reachedFromElsewhere_ = false;
    bool exhausted_ = false;  ///< the last accept found no descriptor
};

}  // namespace bulkhead::front
