// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/planner/data/recording.h"
#include "backend/planner/import/import.h"
#include "backend/planner/import/input.h"

/// Dumps of SGLang's expert distribution recorder (python/sglang/srt/eplb/expert_distribution.py,
/// seen in several versions of 2025-26; the fields read here are in all of them: quite sure).
///
/// - stat, stat_approx: {"logical_count": [steps, layers, experts] or [layers, experts], ...},
/// already
///   summed over ranks, logical ids. Steps of the circular buffer that were never used are zero and
///   are left out. One window a step.
/// - per_pass: one file a rank, {"records": [{"forward_pass_id", "rank", "global_physical_count"
///   [layers, physical]}], "last_physical_to_logical_map" [layers, physical]}; a pass is the sum
///   over its ranks. One window a pass.
/// - per_token: the same with "topk_ids_of_layer" [layers, tokens, 8], physical, padded with -1,
/// and
///   "extend_seq_lens", "forward_mode". Gives routing. Requests: each piece of a prefill pass is
///   one (requests have no names in the dump, so chunks of one prompt are not joined); the decode
///   tokens of a pass cannot be told apart and are one together. Ranks that saw just the same
///   tokens (tensor parallel attention) count once.
///
/// Physical ids become logical by the map of the file, which is the one in force at the end; if the
/// engine rebalanced while recording, earlier passes are mapped wrongly, and the notes say so. The
/// layer axis counts all decoder layers: layers in which nothing was routed are dense and left out,
/// layerNumbers keeps the engine's numbers of the others.
namespace bulkhead::planner {

/// Returns whether bytes begin as a zip archive, which all these dumps are.
[[nodiscard]] bool looksLikeTorch(std::string_view bytes);

/// `names`: the files of one dump, one a rank.
[[nodiscard]] absl::StatusOr<Recording> readSglang(const std::vector<std::string>& names,
                                                   const Files& files,
                                                   const ImportOptions& options);

}  // namespace bulkhead::planner
