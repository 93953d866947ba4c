// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/ftar/algorithm.h"

namespace bulkhead::runtime {
namespace {

/// Below it two more meetings cost more than the bytes they save (a guess). From 1 to 64 MiB tiers
/// took a quarter less of the processors than kDirect (loopback, 4 ranks as if on 2 hosts).
constexpr size_t kHierarchicalFrom = 256u << 10;
/// Over loopback a ring takes longer than kDirect at any size: more meetings, and memory does not
/// mind who sends to whom. A network does: with many members everybody's slices get short and come
/// in at all others' ports at once. That is reasoned, not measured.
constexpr size_t kRingMembers = 9;
constexpr size_t kRingFrom = 64u << 20;

}  // namespace

bool AllReduceContext::inPlace(std::span<const size_t> members) const {
    if (mesh->spec().heap == nullptr) return false;
    for (const size_t m : members)
        if (mesh->tcp(m) != nullptr) return false;
    return true;
}

absl::Status AllReduceContext::round(const RoundTag& tag, std::span<const Rounds::Give> give,
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
