// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/protocol/parity.h"

#include <algorithm>
#include <utility>

namespace bulkhead::protocol {
namespace {

void addDifferences(const Hashes& a, const Hashes& b, std::vector<int32_t>& shards) {
    for (size_t s = 0; s < std::min(a.size(), b.size()); ++s) {
        const auto shard = static_cast<int32_t>(s);
        if (a[s] != b[s] && std::find(shards.begin(), shards.end(), shard) == shards.end())
            shards.push_back(shard);
    }
    std::sort(shards.begin(), shards.end());
}

}  // namespace

ParityResult compareHashes(const std::map<int32_t, Hashes>& byReplica) {
    ParityResult result;
    std::vector<std::pair<const Hashes*, size_t>> groups;
    for (const auto& [replica, hashes] : byReplica) {
        auto it = std::find_if(groups.begin(), groups.end(),
                               [&own = hashes](const auto& g) { return *g.first == own; });
        if (it == groups.end())
            groups.emplace_back(&hashes, 1);
        else
            ++it->second;
    }
    if (groups.empty()) return result;
    const auto largest =
        std::max_element(groups.begin(), groups.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    const bool majority = 2 * largest->second > byReplica.size();
    if (majority) result.agreed = *largest->first;
    if (groups.size() == 1) return result;
    result.outcome = majority ? ParityResult::Outcome::kMinority : ParityResult::Outcome::kTie;
    for (const auto& [replica, hashes] : byReplica) {
        if (hashes == *largest->first) continue;
        if (majority) result.odd.push_back(replica);
        addDifferences(hashes, *largest->first, result.shards);
    }
    return result;
}

uint32_t occasionsPerTaken(uint32_t now, double ms, double stepMs, uint32_t everySteps,
                           uint32_t most) {
    constexpr double kShare = 0.01;
    const double each = kShare * stepMs * std::max(1u, everySteps);  // most for one occasion
    while (now < most && ms > each * now) now *= 2;
    while (now > 1 && 4 * ms <= each * now) now /= 2;
    return now;
}

std::vector<ParityGroup> groupHashes(const std::map<int32_t, Hashes>& byReplica,
                                     const std::map<int32_t, uint32_t>& incarnations) {
    std::vector<ParityGroup> groups;
    for (const auto& [replica, hashes] : byReplica) {
        auto group =
            std::find_if(groups.begin(), groups.end(),
                         [&own = hashes](const ParityGroup& g) { return g.hashes == own; });
        if (group == groups.end()) group = groups.insert(group, ParityGroup{hashes, {}, {}});
        group->replicas.push_back(replica);
        group->incarnations.push_back(incarnations.at(replica));
    }
    return groups;
}

void AgreedHashes::note(uint64_t step, Hashes hashes) {
    last_ = std::max(last_, step);
    steps_[step] = std::move(hashes);
    while (steps_.size() > window_) steps_.erase(steps_.begin());
}

const Hashes* AgreedHashes::find(uint64_t step) const {
    const auto it = steps_.find(step);
    return it == steps_.end() ? nullptr : &it->second;
}

}  // namespace bulkhead::protocol
