// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// What the data plane can do at most. A job's check refuses what goes beyond, before any process
/// starts; the data plane keeps to it.
namespace bulkhead {

/// Of one exchange, so replicas and spares of a job; and of a replica's group, so its shards.
constexpr uint32_t kMaxGroupMembers = 64;

/// TCP connections of one pair of ranks.
constexpr uint32_t kMaxPairConnections = 16;

}  // namespace bulkhead
