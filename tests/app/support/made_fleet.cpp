// SPDX-License-Identifier: GPL-3.0-only
#include "tests/app/support/made_fleet.h"

#include <algorithm>
#include <cstdio>
#include <random>

namespace bulkhead::test {
namespace {

constexpr int64_t kStartNs = 1'790'000'000'000'000'000;
constexpr int64_t kNowNs = kStartNs + 3'600'000'000'000;
constexpr int32_t kFetching = 7;
constexpr int32_t kDrained = 10;
constexpr uint64_t kGigabyte = 1'000'000'000;

std::string nodeName(size_t index) {
    char name[32];
    std::snprintf(name, sizeof name, "gpu-%05zu", index);
    return name;
}

bool isOneIn(std::mt19937& random, uint32_t many) {
    return random() % many == 0;
}

double noise(std::mt19937& random) {
    return static_cast<double>(random() % 2001) / 1000 - 1;
}

}  // namespace

model::Event nextSample(const model::RunState& state, uint32_t seed) {
    std::mt19937 random(seed);
    model::FleetSampled fleet;
    fleet.ranks.reserve(state.ranks.size());
    for (const model::RankView& view : state.ranks) {
        if (view.pid == 0) continue;
        const model::ReplicaView* replica = model::findReplica(state, view.rank.replica);
        const bool trains = replica->state == model::ReplicaState::kTraining;
        const bool isFirst = view.rank == RankId{0, 1};
        model::RankSample rank;
        rank.rank = view.rank;
        rank.incarnation = view.incarnation;
        rank.phase = trains ? model::RankPhase::kCompute : model::RankPhase::kFetch;
        rank.step = 1200;
        rank.beatAgeMs = isFirst ? 1460 : 60 + 40 * noise(random);
        rank.progressAgeMs = isFirst ? 2210 : 140 + 90 * noise(random);
        if (trains) rank.tokensPerSecond = isFirst ? 233 : 620 + 25 * noise(random);
        if (trains && isOneIn(random, 9000)) rank.tokensPerSecond = 350 + 60 * noise(random);
        rank.cpuPercent = 90;
        rank.rssBytes = 14 * kGigabyte;
        rank.gpuBytes = static_cast<uint64_t>((62 + 2 * noise(random)) * kGigabyte);
        rank.gpuPercent = trains ? 95 + 4 * noise(random) : 8 + 6 * noise(random);
        rank.gpus = view.gpus;
        fleet.ranks.push_back(std::move(rank));
    }
    for (const model::NodeView& view : state.nodes) {
        model::NodeSample node;
        node.node = view.node;
        for (uint32_t g = 0; g < view.slots; ++g) {
            model::GpuSample gpu;
            gpu.gpu = g;
            gpu.temperatureCelsius = isOneIn(random, 8000) ? 91 : 64 + 5 * noise(random);
            gpu.busyPercent = 95;
            node.gpus.push_back(std::move(gpu));
        }
        fleet.nodes.push_back(std::move(node));
    }
    model::Event event;
    event.seq = state.seq + 1;
    event.timeNs = state.lastEventNs + 1'000'000'000;
    event.body = std::move(fleet);
    return event;
}

model::RunState madeFleet(FleetSize size) {
    std::mt19937 random(11);
    model::RunState state;
    state.seq = 1;
    state.startedNs = kStartNs;
    state.lastEventNs = kNowNs;
    state.phase = model::JobPhase::kTraining;
    state.spec.shards = static_cast<uint32_t>(size.ranks);
    size_t node = 0;
    for (int32_t r = 0; r < size.replicas; ++r) {
        model::ReplicaView& replica = state.replicas.emplace_back();
        replica.replica = r;
        replica.incarnation = 1;
        replica.state = r == kFetching  ? model::ReplicaState::kFetching
                        : r == kDrained ? model::ReplicaState::kDrained
                                        : model::ReplicaState::kTraining;
        replica.step = 1200;
        for (int32_t s = 0; s < size.ranks; ++s) {
            if (s % size.gpusPerNode == 0) {
                model::NodeView& view = state.nodes.emplace_back();
                view.node = nodeName(node++);
                view.slots = static_cast<uint32_t>(size.gpusPerNode);
            }
            model::RankView& rank = state.ranks.emplace_back();
            rank.rank = {r, s};
            rank.incarnation = 1;
            rank.node = state.nodes.back().node;
            rank.gpus = {static_cast<uint32_t>(s % size.gpusPerNode)};
            rank.pid = r == kDrained ? 0 : 1000 + s;
            if (r == kDrained || !isOneIn(random, 12000)) continue;
            rank.pid = 0;
            rank.phase = model::RankPhase::kGone;
            rank.lastExit = model::RankExited{rank.rank, 1, 1000 + s, 0, 9, false};
            rank.exitedNs = kNowNs - static_cast<int64_t>(random() % 600) * 1'000'000'000;
        }
        replica.node = state.ranks.back().node;
    }
    model::apply(state, nextSample(state, 5));
    return state;
}

}  // namespace bulkhead::test
