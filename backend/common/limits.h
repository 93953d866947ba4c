// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// Limits of the data plane. A job's check refuses a job beyond them before any process starts; the
/// data plane keeps to them.
namespace bulkhead {

/// Members of one exchange (replicas and spares of a job), and of a replica's group (its shards).
constexpr uint32_t kMaxGroupMembers = 64;

/// TCP connections of one pair of ranks.
constexpr uint32_t kMaxPairConnections = 16;

}  // namespace bulkhead
