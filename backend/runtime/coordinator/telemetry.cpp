// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/coordinator/telemetry.h"

#include <algorithm>
#include <utility>

namespace bulkhead::runtime {
namespace {

/// Most choices that an event carries: 64 Ki choices are some 300 KB of JSON in a run file.
constexpr uint64_t kChoicesPerEvent = 1 << 16;

std::optional<double> ageMs(MonoNs since, MonoNs now) {
    if (since == 0) return std::nullopt;
    return static_cast<double>(now - since) / kMillisecond;
}

}  // namespace

void FleetBook::started(RankId rank, uint32_t incarnation) {
    Rank fresh;
    fresh.last.rank = rank;
    fresh.last.incarnation = incarnation;
    ranks_[rank] = std::move(fresh);
}

void FleetBook::exited(RankId rank, uint32_t incarnation) {
    const auto it = ranks_.find(rank);
    if (it == ranks_.end() || it->second.last.incarnation != incarnation) return;
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
    it->second.last.cpuPercent = sample.cpuPercent;
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
                    static_cast<double>(vote.tokens) / shards / step.stepMs * 1000;
}

model::FleetSampled FleetBook::sample(MonoNs now, bool withNodes) const {
    model::FleetSampled fleet;
    for (const auto& [id, rank] : ranks_) {
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
