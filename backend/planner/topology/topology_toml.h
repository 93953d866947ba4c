// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "backend/planner/topology/topology.h"

namespace bulkhead::planner {

/// Reads a topology:
///
///     name = "two racks"
///     [[level]]                       # from the inside: the host first
///     name = "host"
///     count = 8                       # GPUs in a host
///     gigabytes_per_second = 450
///     microseconds = 2
///     [[level]]
///     name = "rack"
///     count = 4                       # hosts in a rack
///     gigabytes_per_second = 50
///     microseconds = 6
///
/// or, instead of levels above the host, a matrix between nodes:
///
///     [matrix]                        # rows: from; columns: to; the diagonal is not read
///     gigabytes_per_second = [[0, 50], [50, 0]]
///     microseconds = [[0, 6], [6, 0]]
///
/// InvalidArgument "FILE:LINE: ..." naming the field and what was expected; a key that is not known
/// is refused too. At most 1 MB of text. Thread: any.
inline constexpr uint64_t kMostTopologyBytes = 1'000'000;
[[nodiscard]] absl::StatusOr<Topology> parseTopology(std::string_view toml,
                                                     const std::string& file);

/// The same text back; parseTopology(formatTopology(t)) gives t.
[[nodiscard]] std::string formatTopology(const Topology& topology);

}  // namespace bulkhead::planner
