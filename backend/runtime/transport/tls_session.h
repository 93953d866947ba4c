// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "backend/runtime/transport/credential.h"

struct ssl_st;

namespace bulkhead::runtime {

/// One end of a TLS 1.3 connection. Both ends prove that they know the key of one identity, with a
/// key exchange of X25519 besides, so that who learns the key later cannot read what was sent
/// before. Without a socket, for who must not block: bytes of the wire go in and come out of
/// receive(), send() and takeOutput(). With one that blocks: readAll() and writeAll(). Thread: one
/// at a time.
class TlsSession {
  public:
    /// The end that connects. Without a socket its first bytes are in takeOutput() at once.
    explicit TlsSession(const Credential& credential, int socket = -1);
    /// The end that listens. Outlived by what `keyOf` needs. Without a socket it costs next to
    /// nothing until the first bytes come: whoever connects and says nothing holds no memory.
    explicit TlsSession(KeyOf keyOf, int socket = -1);
    ~TlsSession();
    TlsSession(const TlsSession&) = delete;

    /// Takes bytes of the wire; what they say is appended to `plain`. PermissionDenied when the
    /// handshake fails for want of a common key, DataLoss for bytes that are no TLS or were changed
    /// on the way. After an error takeOutput() has what the other end should hear of it.
    [[nodiscard]] absl::Status receive(std::string_view wire, std::string& plain);
    /// Only once established(): appends to the output.
    [[nodiscard]] absl::Status send(std::string_view plain);
    /// Bytes that have to be written to the wire next; empty when there are none.
    std::string takeOutput();

    /// Errors of receive(); Unavailable when the other end is gone, DeadlineExceeded when the
    /// socket's time limit passes without a byte.
    [[nodiscard]] absl::Status readAll(void* data, size_t bytes);
    [[nodiscard]] absl::Status writeAll(const void* data, size_t bytes);

    bool established() const;
    /// The end that connected; valid once established().
    const std::string& identity() const { return identity_; }

  private:
    struct Callbacks;
    void begin(bool listens, int socket);
    absl::Status failure();
    absl::Status broken(int result);

    std::unique_ptr<ssl_st, void (*)(ssl_st*)> ssl_;  ///< null: the listening end has heard nothing
    std::string identity_;
    Secret key_;
    KeyOf keyOf_;
    bool wasEstablished_ = false;  ///< before the bytes that were received last
};

}  // namespace bulkhead::runtime
