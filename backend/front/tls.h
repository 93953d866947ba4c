// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/access/watched_file.h"
#include "backend/common/clock.h"
#include "backend/common/threads.h"

struct ssl_ctx_st;
struct ssl_st;

namespace bulkhead::front {

/// TLS 1.3 of a server whose certificates lie in a folder (backend/access/certificates.h). The
/// files are read again when they changed, so that a renewed certificate needs no restart; while
/// they cannot be used, those before count, and the log says why. Callers may show a certificate:
/// one that `ca.pem` does not vouch for ends the handshake; the gate judges whose it is. Thread:
/// any.
class ServerTls {
  public:
    /// Fails as access::checkCertificates() does, and for a certificate without host names.
    static absl::StatusOr<std::unique_ptr<ServerTls>> open(std::filesystem::path folder,
                                                           const Clock& clock);
    /// A new connection takes this; never null.
    std::shared_ptr<ssl_ctx_st> now();

  private:
    using AllSeen = std::array<access::FileStamp, 3>;
    ServerTls(std::filesystem::path folder, const Clock& clock)
        : folder_(std::move(folder)), clock_(clock) {}
    AllSeen look() const;
    absl::StatusOr<std::shared_ptr<ssl_ctx_st>> read() const;

    const std::filesystem::path folder_;
    const Clock& clock_;
    Mutex mutex_;
    AllSeen seen_ ABSL_GUARDED_BY(mutex_);
    std::shared_ptr<ssl_ctx_st> context_ ABSL_GUARDED_BY(mutex_);
};

/// The server's end of one TLS connection, without a socket. Thread: one at a time.
class ServerTlsSession {
  public:
    explicit ServerTlsSession(const std::shared_ptr<ssl_ctx_st>& context);
    ServerTlsSession(const ServerTlsSession&) = delete;

    /// Takes bytes of the wire; what they say is appended to `plain`. Unavailable when the other
    /// end said that it ends, InvalidArgument for what is no TLS, was changed on the way or asks
    /// for too much work. takeOutput() then has what the other end should hear of it.
    [[nodiscard]] absl::Status receive(std::string_view wire, std::string& plain);
    /// Only once established().
    [[nodiscard]] absl::Status send(std::string_view plain);
    /// Says that this end ends.
    void end();
    /// Bytes for the wire; empty when there are none.
    std::string takeOutput();
    bool established() const { return established_; }
    /// The certificate that the other end showed, as PEM; empty: none. Valid once established().
    std::string certificate() const;

  private:
    struct Callbacks;
    friend class ServerTls;
    std::unique_ptr<ssl_st, void (*)(ssl_st*)> ssl_;
    bool established_ = false;
    int messages_ = 0;  ///< of the handshake's kind that came after it
};

}  // namespace bulkhead::front
