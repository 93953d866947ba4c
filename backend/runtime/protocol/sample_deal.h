// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "backend/common/types.h"

/// Assigns the samples of a lease to the shards of a replica. Pure: a function of the lease and
/// of what the quorum says, so that all shards of a replica agree and each sample is computed once.
namespace bulkhead::protocol {

/// (domain, index of the sample).
using Sample = std::pair<uint32_t, uint64_t>;

/// Samples by shard; every sample of `ranges` once, and no shard has more than
/// ceil(samples / shards).
///
/// `domainShare`, [domain][shard], says what part of a domain's samples each shard should compute
/// (any unit; a domain's parts do not sum to 0): where a sample is at home follows from its index
/// alone, in even proportion over any stretch of the stream. A sample whose home is full goes to
/// the shard with room that has the largest part of its domain. Empty: dealt round robin, so that
/// each shard gets its part of every domain.
[[nodiscard]] std::vector<std::vector<Sample>> dealSamples(
    const std::vector<SampleRange>& ranges, uint32_t shards,
    const std::vector<uint32_t>& domainShare);

/// InvalidArgument unless it is empty or has domains x shards entries with something for every
/// domain.
[[nodiscard]] absl::Status checkDomainShare(const std::vector<uint32_t>& domainShare,
                                            uint32_t domains, uint32_t shards);

}  // namespace bulkhead::protocol
