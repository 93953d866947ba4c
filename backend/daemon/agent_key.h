// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "backend/common/secret.h"

/// The key of one node's agent, as its file has it: NODE:KEY, 64 hexadecimal digits. An agent that
/// has it needs no copy of the controller's secret, and can act as no other node's. Pure.
namespace bulkhead::daemon {

/// Derived from the controller's secret.
Secret agentKey(const std::string& token, const std::string& node);
std::string agentKeyText(const std::string& token, const std::string& node);
/// InvalidArgument for a text that is none, FailedPrecondition for another node's.
absl::StatusOr<Secret> parseAgentKey(const std::string& text, const std::string& node);

}  // namespace bulkhead::daemon
