// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/access/access_list.h"
#include "backend/access/watched_file.h"
#include "backend/front/front.h"
#include "backend/service/auditor.h"

namespace google::protobuf {
class Message;
}
namespace grpc {
class ServerContextBase;
namespace experimental {
class ServerInterceptorFactoryInterface;
}
}  // namespace grpc

namespace bulkhead::service {

/// Somebody who called and was recognised.
struct Caller {
    std::string name;
    access::Role role = access::Role::kViewer;
    bool faults = false;
    std::string via;   ///< "socket", "token" or "certificate"
    std::string peer;  ///< the other end of the connection
};

using AccessFile = access::WatchedFile<access::AccessList>;
/// Serial numbers that a crl.pem revokes.
using RevokedFile = access::WatchedFile<std::vector<std::string>>;

/// Who calls, and may they? Over the Unix socket, whoever may open it (its mode is 0600) is this
/// user, an administrator. Over TCP, callers show the daemon's own token (an administrator too),
/// a token of the access file, or a certificate whose common name is in it. What a method needs
/// stands beside it in service.proto. Refusals, and the first call of each connection over TCP, go
/// into the audit. Thread: any.
class Gate {
  public:
    struct Options {
        std::string token;                     ///< the daemon's own; empty: none
        std::unique_ptr<AccessFile> access;    ///< null: nobody
        std::unique_ptr<RevokedFile> revoked;  ///< null: none
    };
    Gate(Options options, Auditor& auditor, front::Front& front, const Clock& clock);

    /// The caller, or Unauthenticated (nobody it knows), PermissionDenied (not allowed this), or
    /// FailedPrecondition for a caller built for another API version. `request` is of the method
    /// that is called; no two have the same type.
    absl::StatusOr<Caller> admit(const grpc::ServerContextBase& context,
                                 const google::protobuf::Message& request) const;

    /// For services that are not ours (health, reflection): a call of nobody known ends at once
    /// with the same status as admit() gives.
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>>
    interceptors() const;

    absl::StatusOr<Caller> identify(const grpc::ServerContextBase& context) const;

    /// gRPC begins this call, which ends when the result is destroyed.
    std::shared_ptr<void> begins(const grpc::ServerContextBase& context) const;

  private:
    /// Over TCP: what the connection or the call proves.
    absl::StatusOr<Caller> proved(const grpc::ServerContextBase& context,
                                  const front::Front::Known& other) const;
    absl::StatusOr<Caller> withToken(const std::string& shown) const;
    absl::StatusOr<Caller> withCertificate(const access::Certificate& shown) const;
    absl::StatusOr<Caller> unlessExpired(const access::Principal& principal, const char* via) const;

    const Options options_;
    Auditor& auditor_;
    front::Front& front_;
    const Clock& clock_;
    const Caller owner_;  ///< this process's user
};

/// "Jobs/StopJob": the method whose requests have the type of this one; empty: there is none.
std::string methodOf(const google::protobuf::Message& request);

/// Compares in a time that depends on the lengths only.
bool sameSecret(std::string_view a, std::string_view b);

/// The first line of a token file of mode 0600. NotFound when there is none, PermissionDenied when
/// others can read it, InvalidArgument when it holds no token.
absl::StatusOr<std::string> loadToken(const std::string& file);
/// Likewise; makes it with a fresh random token when it is not there.
absl::StatusOr<std::string> loadOrCreateToken(const std::string& file);

}  // namespace bulkhead::service
