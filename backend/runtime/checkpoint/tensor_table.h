// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/file_system.h"

/// The tensor table of a shard: which named tensors its state's bytes are. It lies beside the
/// shard's file as `shard-N.tensors.json`; nothing that trains reads it. docs/checkpoints.md
/// describes the file.
namespace bulkhead::runtime {

enum class TensorKind {
    kParameter,
    kBuffer,
    kOptimizer,  ///< of the optimizer or a scheduler
    kNumber,     ///< likewise, a number as kNumberDtype
    kPresence,   ///< a number: true when the optimizer has what lies below its path
};

/// 16 bytes: an int64 that says which (0 None, 1 a truth value, 2 an integer, 3 a float), then the
/// value as int64 or float64.
constexpr const char* kNumberDtype = "NUMBER";
constexpr uint64_t kNumberBytes = 16;

/// One step of the way to a value in nested dictionaries (a name) and lists (an index).
using PathWord = std::variant<std::string, uint64_t>;

/// The elements of a tensor that one shard holds. Row by row without gaps.
struct TensorPart {
    std::string name;  ///< unique in the table
    TensorKind kind = TensorKind::kParameter;
    std::vector<PathWord> path;   ///< of a checkpoint of torch.save; model tensors have none
    std::string dtype;            ///< as in safetensors, "F32"; or kNumberDtype
    std::vector<uint64_t> shape;  ///< of the whole tensor
    uint64_t offset = 0;          ///< in the shard's state, in bytes

    /// Elements [begin, begin + extent) of each dimension; a flat one has a single dimension, the
    /// elements of the whole tensor in order.
    struct Box {
        bool flat = false;
        std::vector<uint64_t> begin;
        std::vector<uint64_t> extent;
        bool operator==(const Box&) const = default;
    };
    /// None: all of the tensor, as far as this shard knows.
    std::optional<Box> box;
    /// A layout in its program's words, of which nobody here knows what lies where; else empty.
    std::string unknownLayout;
};

/// A value that the state does not hold because it never changes, as JSON text.
struct TensorConstant {
    std::vector<PathWord> path;
    std::string json;
};

struct TensorTable {
    std::string model;  ///< its name, for people
    uint64_t stateBytes = 0;
    std::vector<TensorPart> tensors;
    std::vector<std::pair<std::string, std::string>> aliases;  ///< another name of a model tensor
    std::vector<TensorConstant> constants;
};

std::string tensorTableText(const TensorTable& table);

/// DataLoss naming `path`, the field, and what was expected. Offsets are checked against the
/// state's size, and that no two tensors share a byte.
[[nodiscard]] absl::StatusOr<TensorTable> parseTensorTable(const std::string& path,
                                                           const std::string& text);

/// The table's path, from the shard's file.
std::string tensorTablePath(const std::string& shardFile);

/// FailedPrecondition, with the remedy, for a checkpoint that was written without one.
[[nodiscard]] absl::StatusOr<TensorTable> readTensorTable(const FileSystem& files,
                                                          const std::string& shardFile);

/// Bytes of an element; 0: no such dtype.
uint64_t elementBytes(const std::string& dtype);

/// Bytes of so many elements in all these dimensions; nullopt: 2^63 or more, or no such dtype.
std::optional<uint64_t> tensorBytes(const std::string& dtype, const std::vector<uint64_t>& shape);

}  // namespace bulkhead::runtime
