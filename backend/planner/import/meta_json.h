// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "backend/planner/data/recording.h"
#include "backend/planner/import/import.h"
#include "backend/planner/import/input.h"
#include "backend/planner/import/json_fields.h"

/// Routing as npy arrays described by a JSON file beside them: this project's own form for recorded
/// routing (certain), as in ../shared/data/moe. Three shapes of it:
///
/// - domains:  {"model", "moe_layers" or "layers", "experts", "top_k", "layout",
///              "domains": {NAME: {"file": NPY, "sequence_lengths": [...], "tokens"?}}}
/// - requests: {... as above, "file"?: NPY (default: the folder's only one), "requests":
///              [{"tokens", "offset"?, "dataset"?, "category"?, "id"?, "prefill"?}]}; the domain is
///              "domain", else "dataset". "decode only" in the layout: no token is prompt.
/// - counts:   {"layers": [numbers], "counts": {MODEL: {DOMAIN: [layer][expert]}}} (OLMoE's)
///
/// Arrays are whole numbers of any width, [layer, token, k] or [token, layer, k] as "layout" says,
/// or as only one fits. Ids are logical, layers MoE layers. Refusals name file and place.
namespace bulkhead::planner {

/// Returns whether a JSON object is one of the three shapes.
[[nodiscard]] bool looksLikeMeta(const Json& json);

/// The option `modelName` picks one of several models' counts ("": the first by name), `domain`
/// labels requests that have none.
[[nodiscard]] absl::StatusOr<Recording> readMeta(const Json& json, std::string_view file,
                                                 const Files& files, const ImportOptions& options);

}  // namespace bulkhead::planner
