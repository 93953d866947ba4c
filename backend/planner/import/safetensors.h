// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "backend/planner/import/tensor.h"

namespace bulkhead::planner {

/// Tensors of a safetensors file by name (huggingface/safetensors' description; certain): 8 bytes
/// of header length, a JSON header {NAME: {"dtype", "shape", "data_offsets": [begin, end]},
/// "__metadata__"?}, then the data, little-endian. Refused, naming file and tensor: headers over
/// 100 MB (the format's own limit), ranges outside the data, overlapping or not as long as the
/// shape says, gaps. Of the dtypes, whole numbers, BOOL, F32 and F64 are read. Points into `bytes`.
[[nodiscard]] absl::StatusOr<std::map<std::string, Tensor, std::less<>>> parseSafetensors(
    std::string_view bytes, std::string_view file);

}  // namespace bulkhead::planner
