// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "backend/client/failure.h"

namespace grpc {
class Status;
}

namespace bulkhead::client {

/// The one place where a grpc::Status becomes words for a person. `title` says what was tried,
/// `target` where. Precondition: not OK.
Failure failureOf(const grpc::Status& status, std::string title, const std::string& target);

}  // namespace bulkhead::client
