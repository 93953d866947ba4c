// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "backend/planner/data/recording.h"
#include "backend/planner/import/import.h"
#include "backend/planner/import/input.h"
#include "backend/planner/import/json_fields.h"

/// TensorRT-LLM's expert statistics (EXPERT_STATISTIC_ITER_RANGE and EXPERT_STATISTIC_PATH;
/// tensorrt_llm/_torch/expert_statistic.py, read in two versions: certain): meta_info.json
/// {"num_experts", "num_experts_per_token"} and one rankR.safetensors a rank with a tensor
/// "ITERATION_LAYER" of counts [experts] for each. Ids are logical (the router's), layers the
/// model's own numbers (DeepSeek-R1: 3..60), which layerNumbers keeps. Ranks are summed. One window
/// an iteration. Files rankR_raw.safetensors of newer versions are passed over, and the notes say
/// so.
namespace bulkhead::planner {

[[nodiscard]] bool looksLikeTrtllm(const Json& meta);

/// `json` is meta_info.json; the ranks' files lie beside it.
[[nodiscard]] absl::StatusOr<Recording> readTrtllm(const Json& json, std::string_view file,
                                                   const Files& files,
                                                   const ImportOptions& options);

}  // namespace bulkhead::planner
