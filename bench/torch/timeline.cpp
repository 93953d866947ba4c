// SPDX-License-Identifier: Apache-2.0
#include "bench/torch/timeline.h"

#include <algorithm>
#include <limits>
#include <map>

#include "bench/report.h"

namespace bulkhead::bench {
namespace {

double ms(int64_t ns) {
    return static_cast<double>(ns) / 1e6;
}

/// By replica, in order.
std::map<int32_t, std::vector<int64_t>> commitsOf(const Timeline& timeline) {
    std::map<int32_t, std::vector<int64_t>> by;
    for (const Timeline::Commit& c : timeline.commits) by[c.replica].push_back(c.ns);
    for (auto& [_, times] : by) std::sort(times.begin(), times.end());
    return by;
}

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

/// The longest between two of the commits that bracket [from, until]; 0 where none do.
int64_t longestGap(const std::vector<int64_t>& commits, int64_t from, int64_t until) {
    int64_t longest = 0;
    for (size_t i = 1; i < commits.size(); ++i)
        if (commits[i] > from && commits[i - 1] < until)
            longest = std::max(longest, commits[i] - commits[i - 1]);
    return longest;
}

}  // namespace

double medianStepMs(const Timeline& timeline) {
    std::vector<double> steps;
    for (const auto& [_, times] : commitsOf(timeline))
        for (size_t i = 1; i < times.size(); ++i) steps.push_back(ms(times[i] - times[i - 1]));
    return spreadOf(std::move(steps)).median;
}

std::optional<KillCost> costOf(const Timeline& timeline, const Timeline::Moment& kill) {
    int64_t start = kNever, back = kNever;
    for (const Timeline::Moment& s : timeline.starts)
        if (s.replica == kill.replica && s.ns > kill.ns) start = std::min(start, s.ns);
    for (const Timeline::Commit& c : timeline.commits)
        if (c.replica == kill.replica && c.contributed && c.ns > start) back = std::min(back, c.ns);
    if (back == kNever) return std::nullopt;

    KillCost cost;
    int64_t longest = 0;
    for (const auto& [replica, times] : commitsOf(timeline))
        if (replica != kill.replica) longest = std::max(longest, longestGap(times, kill.ns, back));
    if (longest == 0) return std::nullopt;
    cost.stallMs = std::max(0.0, ms(longest) - medianStepMs(timeline));
    for (const Timeline::Moment& t : timeline.thrown)
        if (t.replica != kill.replica && t.ns > kill.ns && t.ns < back) ++cost.batchesLost;
    cost.backMs = ms(back - kill.ns);
    cost.afterStartMs = ms(back - start);
    return cost;
}

}  // namespace bulkhead::bench
