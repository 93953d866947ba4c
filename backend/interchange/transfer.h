// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/common/file_system.h"

/// Checkpoints as files that others read, and back. docs/checkpoints.md says what is in them.
namespace bulkhead::interchange {

enum class Form { kSafetensors, kTorch };

struct ExportOrder {
    std::string manifest;
    Form form = Form::kSafetensors;
    std::string out;
    bool optimizer = false;
    std::optional<int32_t> shard;  ///< only what this one holds, as it holds it
    bool replace = false;
};

/// A name for the file, from the checkpoint's run and step: "demo-step20.safetensors".
[[nodiscard]] absl::StatusOr<std::string> exportName(const FileSystem& files,
                                                     const ExportOrder& order);

struct Exported {
    std::string run;
    uint64_t step = 0;
    uint64_t tensors = 0;
    uint64_t bytes = 0;  ///< of the file
};

[[nodiscard]] absl::StatusOr<Exported> exportCheckpoint(const FileSystem& files,
                                                        const ExportOrder& order);

struct ImportOrder {
    std::string file;  ///< safetensors
    std::string like;  ///< manifest of a checkpoint that has what the file lacks; empty: none
    std::string out;   ///< folder to make
    bool freshOptimizer = false;  ///< nothing of what it keeps of each parameter is taken over
    bool replace = false;
    int64_t unixNs = 0;  ///< now
};

struct Imported {
    std::string manifest;
    uint64_t step = 0;
    uint32_t shards = 0;
    std::vector<std::string> hashes;  ///< of the states, by shard
    std::string optimizer;            ///< where it is from, in words
    /// State hashes that a whole state's file gives for its tensors, when they have others: it was
    /// changed since it was exported, or is damaged. Empty: they agree, or it gives none.
    std::string changed;
};

/// A checkpoint of the same job and step from which a run can begin. InvalidArgument naming file,
/// tensor, what was expected and the remedy; what was begun is removed.
[[nodiscard]] absl::StatusOr<Imported> importCheckpoint(FileSystem& files,
                                                        const ImportOrder& order);

}  // namespace bulkhead::interchange
