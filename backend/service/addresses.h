// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace bulkhead::service {

/// A lock on a Unix socket's place, held while it lives: two daemons must not unlink each other's
/// socket. Released by the kernel when the process dies.
class SocketLock {
  public:
    /// AlreadyExists when another process serves there.
    static absl::StatusOr<SocketLock> take(const std::string& socket);
    SocketLock() = default;
    SocketLock(SocketLock&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
    SocketLock& operator=(SocketLock&& other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }
    ~SocketLock();

  private:
    int fd_ = -1;
};

/// "7400" -> "127.0.0.1:7400"; InvalidArgument for what is no address.
absl::StatusOr<std::string> tcpAddress(const std::string& text);

/// AlreadyExists, naming the address and what to do, when it cannot be bound now. (gRPC only says
/// that it failed.)
absl::Status checkFree(const std::string& address);

}  // namespace bulkhead::service
