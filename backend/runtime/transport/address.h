// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/clock.h"
#include "backend/common/unique_fd.h"

/// Socket addresses as text: "ip:port" (IPv4 dotted or "[::1]:port") and "unix:/path".
namespace bulkhead::runtime {

struct SocketAddress {
    sockaddr_storage storage{};
    socklen_t length = 0;
    int family() const { return storage.ss_family; }
    const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

/// InvalidArgument naming the text and the accepted forms.
[[nodiscard]] absl::StatusOr<SocketAddress> parseAddress(const std::string& text);

/// The same with an IP address in the place of a host name, IPv4 before IPv6: "host:port" or
/// "host". IP addresses and Unix paths stay as they are. Unavailable when the name is not known.
/// Blocks.
[[nodiscard]] absl::StatusOr<std::string> resolveHost(const std::string& address);

/// A non-blocking, close-on-exec listening socket. AlreadyExists when the port is taken or a living
/// process answers on the Unix path; Unavailable for other refusals of the kernel.
[[nodiscard]] absl::StatusOr<UniqueFd> listenOn(const std::string& address, int backlog = 256);

/// The text of a bound socket's own address ("127.0.0.1:40112"), with the port the kernel chose.
[[nodiscard]] std::string localAddress(int fd);
/// The same of the other end; of a Unix socket that connected, which has no name, this end's.
[[nodiscard]] std::string remoteAddress(int fd);

/// A non-blocking socket whose connect has begun (or succeeded); wait for writability and ask
/// socketError(). `localIp` may be empty. Unavailable when refused at once.
[[nodiscard]] absl::StatusOr<UniqueFd> beginConnect(const std::string& address,
                                                    const std::string& localIp);
/// SO_ERROR: 0 when connected.
[[nodiscard]] int socketError(int fd);

/// No delay for small messages, keepalive that notices a vanished host within about a minute.
/// Does nothing on Unix sockets.
void tuneStream(int fd);

/// Breaks a TCP connection when bytes wait for an acknowledgement for so long.
void breakUnanswered(int fd, MonoNs after);

/// Makes the coming close() send a reset instead of an orderly end.
void resetOnClose(int fd);

}  // namespace bulkhead::runtime
