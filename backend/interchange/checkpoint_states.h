// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/common/file_system.h"
#include "backend/interchange/state_plan.h"
#include "backend/runtime/checkpoint/checkpoint.h"

namespace bulkhead::interchange {

/// The value of a number of the state, as JSON text: null, true, 3, 0.5, "inf", "-inf" or "nan".
std::string numberJson(std::span<const std::byte> bytes);
/// InvalidArgument for other JSON.
[[nodiscard]] absl::StatusOr<std::vector<std::byte>> numberBytes(const std::string& json);

/// The tensors of a checkpoint that lies on disk, whole or of one shard. At most one shard's state
/// or one tensor is in memory at a time.
class CheckpointStates {
  public:
    /// Errors of readManifest(), readTensorTable() and joinTables(); NotFound for a shard that is
    /// not there. `files` outlives it.
    [[nodiscard]] static absl::StatusOr<CheckpointStates> open(const FileSystem& files,
                                                               const std::string& manifestPath,
                                                               std::optional<int32_t> shard);

    const runtime::CheckpointManifest& manifest() const { return manifest_; }
    const StatePlan& plan() const { return plan_; }
    /// Those that were read, as text, by shard.
    const std::vector<runtime::TensorTable>& tables() const { return tables_; }

    /// DataLoss when a state is not the one that the manifest names, by its hash.
    [[nodiscard]] absl::Status checkHashes() const;

    /// The whole tensor, row by row. FailedPrecondition when the shards have different ones.
    [[nodiscard]] absl::StatusOr<std::vector<std::byte>> read(const StateTensor& tensor) const;

  private:
    absl::StatusOr<std::vector<std::byte>> readPiece(const StateTensor& tensor,
                                                     const StateTensor::Piece& piece) const;

    const FileSystem* files_ = nullptr;
    std::string path_;
    runtime::CheckpointManifest manifest_;
    std::vector<runtime::CheckpointFile> shards_;  ///< those of the plan
    std::vector<runtime::TensorTable> tables_;
    StatePlan plan_;
};

}  // namespace bulkhead::interchange
