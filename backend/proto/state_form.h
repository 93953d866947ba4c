// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "backend/model/run_state.h"

/// Encodes a RunState for the wire (service.proto, StateForm). Thread: stateless, any.
namespace bulkhead::proto {

constexpr uint32_t kApiVersion = 1;

/// A digest of every field name and type of the described RunState, in order. Two programs whose
/// fingerprints are equal read each other's binary form.
const std::string& stateFingerprint();

[[nodiscard]] std::string encodeState(const model::RunState& state, bool json);

/// InvalidArgument or FailedPrecondition when the bytes are no state of this build.
[[nodiscard]] absl::StatusOr<model::RunState> decodeState(std::string_view bytes, bool json);

}  // namespace bulkhead::proto
