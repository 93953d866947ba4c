// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/planner/data/recording.h"
#include "backend/planner/import/import.h"
#include "backend/planner/import/torch_file.h"

/// The per_token part of sglang_recorder.h.
namespace bulkhead::planner {

inline constexpr char kMapNote[] =
    "Physical ids became logical by the map in force at the end of the recording; passes before a "
    "rebalancing would be mapped wrongly.";

struct SglangRank {
    std::string name;
    uint64_t bytes = 0;  ///< of the file
    const TorchFile* torch = nullptr;
    const PickleDict* dict = nullptr;
};

/// The dicts in "records". InvalidArgument when there is no such list, or something else is in it,
/// or one dict twice (a pickle can say so, and a small file would become a long recording).
[[nodiscard]] absl::StatusOr<std::vector<const PickleDict*>> recordsOf(const TorchFile& torch,
                                                                       const PickleDict& dict,
                                                                       std::string_view file);

/// Adds what a record holds to `sum`; InvalidArgument when records together hold more than the
/// file.
[[nodiscard]] absl::Status addHeld(const Tensor& tensor, uint64_t fileBytes, std::string_view where,
                                   uint64_t& sum);

[[nodiscard]] absl::StatusOr<Recording> readSglangTokens(const std::vector<SglangRank>& ranks,
                                                         const Tensor& map,
                                                         const ImportOptions& options);

}  // namespace bulkhead::planner
