// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/planner/data/recording.h"
#include "backend/planner/import/input.h"

/// Any recording of routing there is a reader for. Errors are InvalidArgument, or
/// readAtMost's (`mostBytes`), or ResourceExhausted where memory ends, and read "FILE: PLACE:
/// cause". `source` begins with the path as given. Thread: any; files are read, nothing is kept
/// open or executed.
namespace bulkhead::planner {

struct ImportOptions {
    /// Model properties that a recording lacks and the user or the model catalogue adds: numbers of
    /// layers, experts and top-k, of the MoE layers. Values in the recording must agree with them.
    std::optional<ModelShape> model;
    uint32_t decoderLayers = 0;  ///< of that model, dense ones too; 0: not known
    std::string modelName;  ///< which of several models in one file; "" : the only or first one
    std::string domain;     ///< label of what is in this file, where it has none of its own
    uint64_t mostBytes = uint64_t{4} << 30;  ///< of one file; of JSON also kMostJsonLines
};

/// Largest file of JSON Lines: its lines become some ten times their size in memory.
inline constexpr uint64_t kMostJsonLines = uint64_t{1} << 30;

/// A file, or a folder that holds one recording in several files. The form is found from the
/// content; the header of each reader describes it.
[[nodiscard]] absl::StatusOr<Recording> importRecording(const std::filesystem::path& path,
                                                        const ImportOptions& options = {});

/// The same without a disk: `name` is one of `files`.
[[nodiscard]] absl::StatusOr<Recording> importFile(std::string_view name, const Files& files,
                                                   const ImportOptions& options = {});

/// Files of one dump of SGLang's recorder, one a rank (sglang_recorder.h).
[[nodiscard]] absl::StatusOr<Recording> importRanks(const std::vector<std::string>& names,
                                                    const Files& files,
                                                    const ImportOptions& options = {});

}  // namespace bulkhead::planner
