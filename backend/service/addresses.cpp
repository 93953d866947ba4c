// SPDX-License-Identifier: Apache-2.0
#include "backend/service/addresses.h"

#include <fcntl.h>
#include <netdb.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace bulkhead::service {

absl::StatusOr<SocketLock> SocketLock::take(const std::string& socket) {
    const std::string path = socket + ".lock";
    SocketLock lock;
    lock.fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (lock.fd_ < 0)
        return absl::PermissionDeniedError("socket " + socket +
                                           " cannot be made: " + std::strerror(errno) +
                                           "; choose another place with --socket");
    if (::flock(lock.fd_, LOCK_EX | LOCK_NB) != 0)
        return absl::AlreadyExistsError("another daemon serves unix:" + socket +
                                        "; use that one, stop it, or choose another --socket");
    return lock;
}

SocketLock::~SocketLock() {
    if (fd_ >= 0) ::close(fd_);
}

absl::StatusOr<std::string> tcpAddress(const std::string& text) {
    const size_t colon = text.rfind(':');
    const std::string host =
        colon == std::string::npos || colon == 0 ? "127.0.0.1" : text.substr(0, colon);
    const std::string port = colon == std::string::npos ? text : text.substr(colon + 1);
    if (port.empty() || port.size() > 5 || port.find_first_not_of("0123456789") != port.npos ||
        std::stoi(port) > 65535)
        return absl::InvalidArgumentError("\"" + text +
                                          "\" is no address to listen on; write host:port or port");
    return host + ":" + port;
}

absl::Status checkFree(const std::string& address) {
    const size_t colon = address.rfind(':');
    std::string host = address.substr(0, colon);
    if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
    addrinfo* found = nullptr;
    if (::getaddrinfo(host.c_str(), address.substr(colon + 1).c_str(), &hints, &found) != 0)
        return absl::InvalidArgumentError("the host of " + address +
                                          " is not known; use an address of this machine");
    int error = 0;
    const int fd = ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int on = 1;
    ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (fd < 0 || ::bind(fd, found->ai_addr, found->ai_addrlen) != 0 || ::listen(fd, 1) != 0)
        error = errno;
    if (fd >= 0) ::close(fd);
    ::freeaddrinfo(found);
    if (error == EADDRINUSE)
        return absl::AlreadyExistsError("address " + address +
                                        " is in use; stop who uses it or listen on another port");
    if (error != 0)
        return absl::InvalidArgumentError("cannot listen on " + address + ": " +
                                          std::strerror(error) +
                                          "; use an address of this machine and a port above 1023");
    return absl::OkStatus();
}

}  // namespace bulkhead::service
