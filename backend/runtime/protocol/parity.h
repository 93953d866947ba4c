// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "backend/common/types.h"

namespace bulkhead::protocol {

/// State hashes by shard, of one replica after one step.
using Hashes = std::vector<uint64_t>;

struct ParityResult {
    enum class Outcome {
        kAgree,
        kMinority,  ///< `odd` differ from a majority of the others: they go
        kTie,       ///< no majority: each replays its last step
    };
    Outcome outcome = Outcome::kAgree;
    std::vector<int32_t> odd;     ///< ascending
    std::vector<int32_t> shards;  ///< where they differ, ascending
    Hashes agreed;                ///< of the majority; empty on a tie
};

/// Compares hashes of the same step. Pure; O(replicas x shards). A majority is more than half.
ParityResult compareHashes(const std::map<int32_t, Hashes>& byReplica);

/// Of so many occasions one is taken, when that takes `ms` and there is an occasion every
/// `everySteps` steps of `stepMs`: so few that it costs at most a hundredth of the steps, and one
/// of `most` at least. A power of two, so that what was due stays due when it shrinks. `now` is the
/// number so far: it shrinks only where half of it would cost half of that.
uint32_t occasionsPerTaken(uint32_t now, double ms, double stepMs, uint32_t everySteps,
                           uint32_t most);

/// Replicas grouped by the hashes they reported: `incarnations` has every replica of `byReplica`.
/// In the order of each group's lowest replica.
std::vector<ParityGroup> groupHashes(const std::map<int32_t, Hashes>& byReplica,
                                     const std::map<int32_t, uint32_t>& incarnations);

/// States were found to differ after step `upTo`, and had last agreed after step `after`: what was
/// written of the steps between may be either side's.
struct DisputedSteps {
    uint64_t after = 0;
    uint64_t upTo = 0;
    bool operator==(const DisputedSteps&) const = default;
    bool contains(uint64_t step) const { return step > after && step <= upTo; }
};

/// Hashes that the contributors agreed on, for proving joiners; of a contributor that votes alone,
/// its own. A checkpoint of such a step with other hashes does not count: the job went on from the
/// voted state, and nobody can know which of the two is right. Memory: the last `window` steps; the
/// log has all that were voted on.
class AgreedHashes {
  public:
    AgreedHashes() = default;
    explicit AgreedHashes(size_t window) : window_(window) {}
    void note(uint64_t step, Hashes hashes);
    const Hashes* find(uint64_t step) const;
    /// 0: none yet. Stays when the hashes are cleared.
    uint64_t lastAgreed() const { return last_; }
    void clear() { steps_.clear(); }

  private:
    size_t window_ = 64;
    uint64_t last_ = 0;
    std::map<uint64_t, Hashes> steps_;
};

}  // namespace bulkhead::protocol
