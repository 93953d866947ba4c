// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/common/file_system.h"

/// The header of a safetensors file: 8 bytes of its length, little-endian, then JSON {NAME:
/// {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__"?: {KEY: TEXT}}, then the data.
/// Written and read here for tensors of any dtype; the planner's reader knows numbers alone.
namespace bulkhead::interchange {

constexpr uint64_t kLongestSafetensorsHeader = 100'000'000;  ///< the format's own limit

struct SafetensorsEntry {
    std::string name;
    std::string dtype;
    std::vector<uint64_t> shape;
    uint64_t begin = 0, end = 0;  ///< in the data
};

struct SafetensorsHeader {
    std::map<std::string, std::string> metadata;
    std::vector<SafetensorsEntry> entries;  ///< by `begin`
    uint64_t dataBegin = 0;                 ///< in the file
};

/// With the length before it, padded so that the data begins at a multiple of 8. InvalidArgument
/// when it would be longer than the format allows.
[[nodiscard]] absl::StatusOr<std::string> safetensorsHeaderText(const SafetensorsHeader& header);

/// Reads what `text`, the JSON alone, says of a file of `fileBytes`; nothing else is looked at.
/// InvalidArgument naming `path`, the tensor and what was expected for: other JSON, a name twice,
/// an unknown dtype, a shape that its range does not hold, ranges that lie outside of the data,
/// over each other or apart. Memory is bounded by the text's length.
[[nodiscard]] absl::StatusOr<SafetensorsHeader> parseSafetensorsHeader(std::string_view text,
                                                                       uint64_t fileBytes,
                                                                       const std::string& path);

/// Likewise of the file at `path`; also InvalidArgument for a file that is too short or a header
/// that is too long.
[[nodiscard]] absl::StatusOr<SafetensorsHeader> readSafetensorsHeader(const FileSystem& files,
                                                                      const std::string& path);

}  // namespace bulkhead::interchange
