// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace grpc {
class ServerContextBase;
namespace experimental {
class ServerInterceptorFactoryInterface;
}
}  // namespace grpc

namespace bulkhead::service {

/// Who may call. Over TCP, whoever shows the token; over the Unix socket, whoever may open it (its
/// mode is 0600). TLS and roles would enter here. Immutable; thread: any.
class Gate {
  public:
    /// Empty token: there is no TCP listener, and nobody is asked.
    explicit Gate(std::string token) : token_(std::move(token)) {}

    /// OK, or Unauthenticated for a missing or wrong token, or FailedPrecondition for a caller
    /// built for another API version.
    absl::Status admit(const grpc::ServerContextBase& context) const;

    /// For services that are not ours (health, reflection): a call without the token ends at once
    /// with the same status as admit() gives.
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>>
    interceptors() const;

    bool holdsToken(const grpc::ServerContextBase& context) const;

  private:
    std::string token_;
};

/// Compares in a time that depends on the lengths only.
bool sameSecret(std::string_view a, std::string_view b);

/// The first line of a token file of mode 0600; creates it with a fresh random token when it does
/// not exist. PermissionDenied when others can read it, InvalidArgument when it holds no token.
absl::StatusOr<std::string> loadOrCreateToken(const std::string& file);

}  // namespace bulkhead::service
