// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "backend/planner/data/recording.h"
#include "backend/planner/import/import.h"

/// Routing or counts as JSON Lines, one value a line; empty lines are passed over. Three kinds:
///
/// - requests (this project's own form; certain): a first line {"routing": MODEL}, then a line a
///   request {"experts": [token][layer][k], "id"?, "domain"?, "prefill"?}. MODEL is {"model"?,
///   "layers", "experts", "top_k", "layer_numbers"?, "hidden"?, "expert_bytes"?, "router_groups"?,
///   "groups_per_token"?}.
/// - counts (own): a first line {"counts_of": MODEL}, in which top_k may be left out, or none; then
///   a line a window {"counts": [layer][expert], "label"?, "domain"?, "phase"?: "prefill" |
///   "decode"}.
/// - tokens, as some tracers write them (seen in the wild; nobody's standard): {"type": "route",
///   "req_id", "token_idx", "layer", "topk_ids", ...}, in any order; other types are passed over.
///   Layers are numbered as the tracer did: those that occur are the MoE layers, in order.
/// - responses of vLLM and SGLang: see returned_routing.h.
///
/// Refusals name file and line.
namespace bulkhead::planner {

[[nodiscard]] absl::StatusOr<Recording> readJsonLines(std::string_view bytes, std::string_view file,
                                                      const ImportOptions& options);

}  // namespace bulkhead::planner
