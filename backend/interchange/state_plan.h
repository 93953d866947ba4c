// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/runtime/checkpoint/tensor_table.h"

/// The places of each tensor of a whole model in the states of its shards, from their tables. Pure.
namespace bulkhead::interchange {

struct StateTensor {
    std::string name;
    runtime::TensorKind kind = runtime::TensorKind::kParameter;
    std::vector<runtime::PathWord> path;
    std::string dtype;
    std::vector<uint64_t> shape;

    struct Piece {
        size_t shard = 0;
        uint64_t offset = 0;  ///< in the shard's state, in bytes
        runtime::TensorPart::Box box;
    };
    std::vector<Piece> pieces;
    /// Each shard has the tensor for itself, and does not say that it is a part of one. They are
    /// one tensor if their bytes are equal.
    bool copies = false;

    uint64_t bytes() const { return *runtime::tensorBytes(dtype, shape); }
    uint64_t bytesOf(const Piece& piece) const {
        return *runtime::tensorBytes(dtype, piece.box.extent);
    }
    bool isNumber() const { return dtype == runtime::kNumberDtype; }
    bool isModel() const {
        return kind == runtime::TensorKind::kParameter || kind == runtime::TensorKind::kBuffer;
    }
};

struct StatePlan {
    std::string model;
    std::vector<uint64_t> stateBytes;  ///< by shard
    std::vector<StateTensor> tensors;
    std::vector<std::pair<std::string, std::string>> aliases;
    std::vector<runtime::TensorConstant> constants;
};

/// FailedPrecondition naming the tensor when nobody knows how its parts make one; DataLoss when the
/// parts do not cover it or contradict each other. `where` is for the message.
[[nodiscard]] absl::StatusOr<StatePlan> joinTables(const std::vector<runtime::TensorTable>& tables,
                                                   const std::string& where);

/// The table as if there were no other shard: a part is a tensor of its own.
runtime::TensorTable asAlone(runtime::TensorTable table);

/// Copies the elements of the box between the whole tensor and the piece.
void takeFromPiece(const StateTensor& tensor, const StateTensor::Piece& piece,
                   std::span<const std::byte> from, std::span<std::byte> whole);
void putIntoPiece(const StateTensor& tensor, const StateTensor::Piece& piece,
                  std::span<const std::byte> whole, std::span<std::byte> to);

}  // namespace bulkhead::interchange
