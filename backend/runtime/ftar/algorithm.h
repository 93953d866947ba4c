// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/runtime/ftar/adaptive_timeout.h"
#include "backend/runtime/ftar/device_plane.h"
#include "backend/runtime/ftar/method.h"
#include "backend/runtime/transport/rounds.h"

namespace bulkhead::runtime {

/// The context of an all-reduce at one member: one membership's connections. All outlive it.
struct AllReduceContext {
    const PeerMesh* mesh = nullptr;
    Rounds* rounds = nullptr;
    const AbortSignal* abort = nullptr;
    AdaptiveTimeout* timeout = nullptr;
    WireType wire = WireType::kFloat32;
    size_t roundBytes = 0;   ///< the most that goes through a slot or over TCP in one round
    size_t directBytes = 0;  ///< likewise where all members read each other's heaps in place

    /// All of these read the heaps of one another: no piece has to fit into a slot.
    bool inPlace(std::span<const size_t> members) const;
    /// One round; a wait of a usual length is what the timeout learns from.
    absl::Status round(const RoundTag& tag, std::span<const Rounds::Give> give,
                       std::span<const Rounds::Get> get) const;
};

/// One way to make everybody's inputs into the same sum. Threads: one at a time.
class AllReduce {
  public:
    virtual ~AllReduce() = default;
    /// As Exchange::reduce(), of which it is the inside.
    [[nodiscard]] virtual absl::Status run(const RoundTag& tag, std::span<const float> in,
                                           std::span<float> out) = 0;
};

std::unique_ptr<AllReduce> makeDirect(const AllReduceContext& work);
/// All peers must be connected over TCP.
std::unique_ptr<AllReduce> makeRing(const AllReduceContext& work);
/// Null where no host has two members, or only one host has any.
std::unique_ptr<AllReduce> makeHierarchical(const AllReduceContext& work);

/// Input and output are in the memory of `device`, which outlives it, as does `staging`, of which
/// it takes all that it needs now.
absl::StatusOr<std::unique_ptr<AllReduce>> makeDeviceDirect(const AllReduceContext& work,
                                                            const DevicePlane& device,
                                                            StagingPool& staging);

/// The facts of a membership that the choice depends on: equal at all its members.
struct MeshFacts {
    size_t members = 0;
    bool overTcp = false;  ///< all of it
    bool tiers = false;    ///< makeHierarchical() can
};
/// The algorithm that kAuto stands for, for a bucket of so many bytes. Thresholds:
/// bench/results/ftar.md. Pure.
Algorithm choose(const MeshFacts& mesh, size_t bytes);

}  // namespace bulkhead::runtime
