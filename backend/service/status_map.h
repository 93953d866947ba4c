// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"

namespace grpc {
class ServerContextBase;
class Status;
}  // namespace grpc

namespace bulkhead::service {

/// Attaches what the client shows beside the cause. `component` is "token", "version", "job",
/// "run", "replay" ...; `object` names which one.
[[nodiscard]] absl::Status withDetail(absl::Status status, std::string component,
                                      std::string object, std::string hint = {});

/// The one place where an absl::Status becomes a grpc::Status: the same code, the cause as its
/// message, and an ErrorDetail (service.proto). A message that reads "cause; remedy" is split
/// there unless a hint was attached. Texts that a caller made long are shortened.
grpc::Status toGrpc(const absl::Status& status);

/// Ends a call whose handler is not ours, or still writes: at once, past what waits for its reader.
/// The caller is told `status` without an ErrorDetail.
void endNow(grpc::ServerContextBase& context, const absl::Status& status);

}  // namespace bulkhead::service
