// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

/// The course of a job around its kills, in terms that fit any job, so that two are measured in
/// the same way. Times are Unix nanoseconds. Pure; thread: a value with one owner.
namespace bulkhead::bench {

struct Timeline {
    struct Moment {
        int64_t ns = 0;
        int32_t replica = 0;
    };
    struct Commit {
        int64_t ns = 0;
        int32_t replica = 0;       ///< that saw it
        bool contributed = false;  ///< its gradient is in the step
    };
    std::vector<Commit> commits;  ///< in any order
    std::vector<Moment> thrown;   ///< a batch that the replica had computed, in no step
    std::vector<Moment> kills;    ///< in order
    std::vector<Moment> starts;   ///< of processes, the first ones included
};

/// Median of all replicas' times from commit to commit; 0 without commits.
double medianStepMs(const Timeline& timeline);

struct KillCost {
    /// The longest that any survivor saw no commit, from the last before the kill to the first
    /// after the victim's return; less a median step, at least 0.
    double stallMs = 0;
    double batchesLost = 0;   ///< that survivors threw away in that time
    double backMs = 0;        ///< from the kill to the victim's first contribution
    double afterStartMs = 0;  ///< from its restart to that
};
/// nullopt: the victim never came back, or nobody survived.
std::optional<KillCost> costOf(const Timeline& timeline, const Timeline::Moment& kill);

}  // namespace bulkhead::bench
