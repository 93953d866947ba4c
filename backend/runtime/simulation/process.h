// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "backend/runtime/protocol/replica_fold.h"
#include "backend/runtime/simulation/rng.h"
#include "backend/runtime/simulation/values.h"
#include "backend/runtime/simulation/words.h"

namespace bulkhead::simulation {

/// A shard's state as it is copied: to joiners, to checkpoints, to be replayed from. `tainted`:
/// somebody flipped a bit in it or in what it came from, so it may differ from the truth.
struct StateCopy {
    uint64_t lineage = 0;
    uint64_t step = 0;
    uint64_t layout = 0;
    uint64_t state = 0;
    bool tainted = false;
    uint64_t hash() const { return moved(state, layout); }
};

struct Delta {
    CommitRecord record;
    Sum sum{};
};

using SharedInput = std::shared_ptr<const RankInput>;

/// One rank: the protocol's machine and a pretended worker around it. Its training thread does one
/// thing after the other (`busyUntil`), as the real one does.
struct Process {
    Process(RankId i, uint32_t inc, size_t onNode, const Options& o, uint64_t seed)
        : id(i),
          node(onNode),
          incarnation(inc),
          machine(RankConfig{i, inc, o.shards, o.timeouts.orphanMs}),
          rng(seed) {
        if (i.shard == 0) fold = std::make_unique<ReplicaFold>(i.replica, inc, o.shards);
    }

    RankId id;
    size_t node = 0;
    uint32_t incarnation = 0;
    RankMachine machine;
    const RankMachine* real = nullptr;  ///< the machine of a real rank that lives
    std::unique_ptr<ReplicaFold> fold;
    Rng rng;

    /// The machine that decides.
    const RankMachine& rules() const { return real != nullptr ? *real : machine; }
    /// The real rank ends: its machine stays to be looked at as it is now.
    void showLast() {
        if (real != nullptr) machine = *std::exchange(real, nullptr);
    }

    bool alive = true;
    int exitCode = 0;      ///< when it exits by itself
    bool reported = true;  ///< its agent told of its end, or it lives
    bool hung = false;
    double slow = 1;
    double clockRate = 1;
    std::vector<SharedInput> inbox;                            ///< while hung
    std::vector<std::shared_ptr<const ToLeader>> parts;        ///< likewise, of a leader's siblings
    std::deque<absl::AnyInvocable<void(Process&)>> postponed;  ///< tasks that came due meanwhile
    uint64_t highestTerm = 0;                                  ///< of any message that reached it
    uint64_t progress = 0;
    MonoNs busyUntil = 0;

    bool connected = false;  ///< to the coordinator
    bool knowsLink = false;  ///< as it was told, which is later
    /// It lived when the log lost what it had: its state may be of steps that are no more.
    bool ofLostPast = false;
    MonoNs orphanSince = 0;  ///< no coordinator takes it, and it knows; 0: one does, or never did

    StateCopy now;
    bool hasState = false;
    StateCopy clean;  ///< as `now` was when it came to be: what flips since is not in it
    std::optional<StateCopy> before;  ///< the last applied record
    std::optional<BeginStep> work;
    bool computing = false;
    bool computed = false;
    uint64_t generation = 0;  ///< of the computation
    Sum gradient{};           ///< retained until the commit
    Sum reduced{};            ///< bucket by bucket, whatever came last
    bool overflow = false;
    bool sumIn = false;    ///< the exchange in work completed
    uint64_t nanNext = 0;  ///< so many gradients to come are not finite
    bool flipGradientNext = false;

    std::map<uint64_t, Delta> deltas;
    std::map<uint64_t, StateCopy> snapshots;
    uint64_t fetchGeneration = 0;
    bool fetching = false;
    bool fetched = false;
    std::optional<Fetch> fetch;
};

}  // namespace bulkhead::simulation
