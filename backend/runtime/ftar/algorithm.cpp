// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/ftar/algorithm.h"

namespace bulkhead::runtime {
namespace {

/// Below it two meetings of all cost less than the bytes that a host's sum saves.
constexpr size_t kHierarchicalFrom = 256u << 10;
/// Where everybody sends to everybody, the slices of many peers get short and come all at once.
constexpr size_t kRingMembers = 9;
constexpr size_t kRingFrom = 64u << 20;

}  // namespace

bool Workplace::inPlace(std::span<const size_t> members) const {
    if (mesh->spec().heap == nullptr) return false;
    for (const size_t m : members)
        if (mesh->tcp(m) != nullptr) return false;
    return true;
}

absl::Status Workplace::round(const RoundTag& tag, std::span<const Rounds::Give> give,
                              std::span<const Rounds::Get> get) const {
    absl::Status status = rounds->run(tag, give, get, timeout->current());
    if (status.ok()) timeout->observe(rounds->lastWait());
    return status;
}

Algorithm choose(const MeshFacts& mesh, size_t bytes) {
    if (mesh.tiers && bytes >= kHierarchicalFrom) return Algorithm::kHierarchical;
    if (mesh.overTcp && mesh.members >= kRingMembers && bytes >= kRingFrom) return Algorithm::kRing;
    return Algorithm::kDirect;
}

}  // namespace bulkhead::runtime
