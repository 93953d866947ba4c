// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/coordinator/telemetry.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

namespace bulkhead::runtime {
namespace {

/// Most choices that an event carries: 64 Ki choices are some 300 KB of JSON in a run file.
constexpr uint64_t kChoicesPerEvent = 1 << 16;

std::optional<double> ageMs(MonoNs since, MonoNs now) {
    if (since == 0) return std::nullopt;
    return std::round(static_cast<double>(now - since) / kMillisecond);
}

/// Digits that say nothing cost most of a run file.
std::optional<double> rounded(std::optional<double> value) {
    if (value) *value = std::round(*value * 10) / 10;
    return value;
}

}  // namespace

void FleetBook::started(RankId rank, uint32_t incarnation) {
    Rank fresh;
    fresh.last.rank = rank;
    fresh.last.incarnation = incarnation;
    fresh.changed = true;
    ranks_[rank] = std::move(fresh);
}

void FleetBook::exited(RankId rank, uint32_t incarnation) {
    const auto it = ranks_.find(rank);
    if (it == ranks_.end() || it->second.last.incarnation != incarnation) return;
    it->second.changed = true;
    it->second.last.phase = model::RankPhase::kGone;
    it->second.last.tokensPerSecond.reset();
    it->second.last.cpuPercent.reset();
    it->second.last.rssBytes.reset();
    it->second.last.gpuPercent.reset();
    it->second.last.gpuBytes.reset();
    it->second.last.gpus.clear();
}

void FleetBook::beat(const protocol::Beat& beat, MonoNs now) {
    Rank& rank = ranks_[beat.rank];
    if (beat.incarnation < rank.last.incarnation) return;
    rank.last.rank = beat.rank;
    rank.last.incarnation = beat.incarnation;
    rank.last.phase = static_cast<model::RankPhase>(beat.phase);
    if (rank.beatAt == 0 || beat.progress != rank.progress) rank.progressAt = now;
    rank.last.step = beat.step;
    rank.progress = beat.progress;
    rank.beatAt = now;
}

void FleetBook::sampled(const ProcessSample& sample) {
    const auto it = ranks_.find(sample.process.rank);
    if (it == ranks_.end() || it->second.last.incarnation != sample.process.incarnation) return;
    it->second.last.cpuPercent = rounded(sample.cpuPercent);
    it->second.last.rssBytes = sample.rssBytes;
    it->second.last.gpuPercent = sample.gpuPercent;
    it->second.last.gpuBytes = sample.gpuBytes;
    it->second.last.gpus = sample.gpus;
}

void FleetBook::committed(const protocol::fact::StepCommitted& step, uint32_t shards) {
    for (auto& [id, rank] : ranks_) rank.last.tokensPerSecond.reset();
    if (step.stepMs <= 0 || shards == 0) return;
    for (const protocol::ReplicaVote& vote : step.votes)
        for (auto& [id, rank] : ranks_)
            if (id.replica == vote.replica)
                rank.last.tokensPerSecond =
                    rounded(static_cast<double>(vote.tokens) / shards / step.stepMs * 1000);
}

std::vector<RankId> FleetBook::chosen() {
    const size_t most = std::max(kRanksAtOnce, (ranks_.size() + 15) / 16);
    std::vector<RankId> out;
    if (ranks_.size() <= most) {
        for (const auto& [id, rank] : ranks_) out.push_back(id);
        return out;
    }
    out = std::exchange(stood_, {});
    for (size_t n = 0; n < most / 2; ++n) {
        auto next = ranks_.upper_bound(turn_);
        if (next == ranks_.end()) next = ranks_.begin();
        out.push_back(turn_ = next->first);
    }
    std::vector<std::pair<MonoNs, RankId>> since;
    since.reserve(ranks_.size());
    for (const auto& [id, rank] : ranks_) {
        if (rank.changed) out.push_back(id);
        if (rank.beatAt != 0 && rank.last.phase != model::RankPhase::kGone)
            since.emplace_back(std::min(rank.beatAt, rank.progressAt), id);
    }
    const size_t still = std::min(most / 4, since.size());
    std::ranges::nth_element(since, since.begin() + static_cast<ptrdiff_t>(still));
    for (size_t n = 0; n < still; ++n) stood_.push_back(since[n].second);
    out.insert(out.end(), stood_.begin(), stood_.end());
    std::ranges::sort(out);
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
}

model::FleetSampled FleetBook::sample(MonoNs now, bool withNodes) {
    model::FleetSampled fleet;
    for (const RankId& id : chosen()) {
        Rank& rank = ranks_.at(id);
        rank.changed = false;
        model::RankSample line = rank.last;
        line.beatAgeMs = ageMs(rank.beatAt, now);
        line.progressAgeMs = ageMs(rank.progressAt, now);
        fleet.ranks.push_back(std::move(line));
    }
    if (withNodes)
        for (const auto& [name, node] : nodes_) fleet.nodes.push_back(node);
    return fleet;
}

MonoNs FleetBook::lastBeat(RankId rank) const {
    const auto it = ranks_.find(rank);
    return it == ranks_.end() ? 0 : it->second.beatAt;
}

void ExpertBook::describe(const protocol::ModelDescribed& model, uint32_t domains) {
    moeLayers_ = model.moeLayers;
    experts_ = model.experts;
    domains_ = domains;
    counts_.clear();
}

void ExpertBook::committed(const protocol::fact::StepCommitted& step) {
    const size_t size = size_t{moeLayers_} * domains_ * experts_;
    if (size == 0) return;
    for (const protocol::ReplicaVote& vote : step.votes) {
        if (vote.expertCounts.size() != size) continue;
        counts_.resize(size);
        for (size_t i = 0; i < size; ++i) counts_[i] += vote.expertCounts[i];
    }
    step_ = step.record.step;
}

void RoutingBook::describe(const protocol::ModelDescribed& model) {
    choices_ = uint64_t{model.moeLayers} * model.topK;
}

uint32_t RoutingBook::tokensOf(size_t ranks) const {
    if (left_ == 0 || choices_ == 0 || ranks == 0) return 0;
    const uint64_t most = kChoicesPerEvent / choices_ / ranks;
    return static_cast<uint32_t>(
        std::clamp<uint64_t>(left_ / ranks, 1, std::max<uint64_t>(1, most)));
}

std::optional<model::RoutingSampled> RoutingBook::committed(
    const protocol::fact::StepCommitted& step) {
    model::RoutingSampled sampled;
    sampled.step = step.record.step;
    for (const protocol::ReplicaVote& vote : step.votes)
        for (const RoutedSample& sample : vote.routed) {
            if (left_ == 0 || choices_ == 0) break;
            left_ -= std::min<uint64_t>(left_, sample.experts.size() / choices_);
            sampled.samples.push_back(sample);
        }
    sampled.tokensLeft = left_;
    if (sampled.samples.empty()) return std::nullopt;
    return sampled;
}

std::optional<model::ExpertLoads> ExpertBook::take() {
    if (counts_.empty()) return std::nullopt;
    return model::ExpertLoads{step_, moeLayers_, domains_, experts_, std::exchange(counts_, {})};
}

}  // namespace bulkhead::runtime
