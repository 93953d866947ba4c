// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/planner/data/recording.h"
#include "backend/planner/import/import.h"
#include "backend/planner/import/input.h"
#include "backend/planner/import/json_fields.h"

/// Responses of a server started with --enable-return-routed-experts, saved as JSON: one response a
/// file, an array of them, or one a line.
///
/// - vLLM (docs.vllm.ai, v0.21 "Routed Experts Replay": quite sure): "prompt_routed_experts"
///   [prompt, MoE layers, k] and "choices"[i]."routed_experts" [generated, MoE layers, k]. Arrays
///   are nested lists; clients of later versions also show base64 of an npy file over prompt and
///   generated tokens together, and {"encoding": "base64", "dtype", "shape", "data"} (sure that
///   they occur, not which version writes which). With n > 1 the prompt counts with the first
///   choice.
/// - SGLang: "meta_info"."routed_experts" (also inside "choices"[i], or "sglext"): base64 of flat
///   little-endian int32, (prompt + completion - 1) x decoder layers x k (seen in its clients:
///   quite sure). k must be given with the model. Dense layers are found by having no k different
///   experts and are left out; layerNumbers keeps the engine's numbers.
///
/// The last generated token is never run and has no row. A "domain" string may be added to a
/// response. Without a model, experts are one more than the largest id; the notes say so. Ids are
/// the router's: logical (both engines capture before the mapping to replicas: quite sure, stated
/// in the notes).
namespace bulkhead::planner {

/// Returns whether a JSON value is such a response, or an array of them.
[[nodiscard]] bool looksLikeResponse(const Json& json);

/// Responses and the place of each in its file ("line 3", "[2]", "").
struct Response {
    const Json* json = nullptr;
    std::string where;
};

[[nodiscard]] absl::StatusOr<Recording> readResponses(const std::vector<Response>& responses,
                                                      std::string_view source,
                                                      const ImportOptions& options);

}  // namespace bulkhead::planner
