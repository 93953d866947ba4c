// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/unique_fd.h"

namespace bulkhead::service {

/// "7400" -> {"127.0.0.1", "7400"}, "[::1]:7400" -> {"::1", "7400"}; InvalidArgument for what is no
/// address.
absl::StatusOr<std::pair<std::string, std::string>> tcpAddress(const std::string& text);

/// Accepts the server's connections in gRPC's place: gRPC 1.51 closes a listener for good when one
/// accept finds no free descriptor. Here that is waited out. Part of the descriptors stays free
/// for the process itself, and a part beyond that for the Unix socket, so that callers over the
/// network cannot lock out an operator on this machine; a connection beyond its part is closed at
/// once, and the log says so, at most once a minute.
/// Thread: one owner; `accepted` is called on a thread of its own.
class ServerSockets {
  public:
    /// Takes the descriptor over. `local`: it came over a Unix socket.
    using Accepted = std::function<void(int fd, bool local)>;

    ServerSockets();
    ~ServerSockets();  ///< no call of `accepted` follows

    /// Serves a socket file of mode 0600, replacing one that nobody serves any more. AlreadyExists
    /// when another process serves there. Returns "unix:PATH".
    absl::StatusOr<std::string> listenUnix(const std::string& path);
    /// Port 0: any free one. AlreadyExists when the address is in use, InvalidArgument when it is
    /// no address of this machine. Returns "host:port" with the port that was bound.
    absl::StatusOr<std::string> listenTcp(const std::string& text);
    /// True when one of the TCP addresses is not of loopback.
    bool reachedFromElsewhere() const { return reachedFromElsewhere_; }
    /// Call once, when all addresses are bound.
    void start(Accepted accepted);

    uint64_t refused() const { return refused_; }  ///< connections closed for want of descriptors

  private:
    struct Socket {
        UniqueFd fd;
        bool local = false;
    };
    void run();
    void acceptAll(const Socket& from);

    std::vector<Socket> sockets_;
    std::vector<UniqueFd> locks_;     ///< of `paths_`
    std::vector<std::string> paths_;  ///< of the socket files; they go with the object
    UniqueFd wake_;
    Accepted accepted_;
    std::thread thread_;
    std::atomic<uint64_t> refused_{0};
    bool reachedFromElsewhere_ = false;
    bool exhausted_ = false;  ///< the last accept found no descriptor
};

}  // namespace bulkhead::service
