// SPDX-License-Identifier: Apache-2.0
#include "backend/model/fold.h"

namespace bulkhead::model::fold_detail {
namespace {

bool keepsCatchUp(ReplicaState state) {
    return state == ReplicaState::kFetching || state == ReplicaState::kReplaying ||
           state == ReplicaState::kProven;
}

bool isLoss(const RunState& s, ReplicaState from, ReplicaState to) {
    const bool ending = s.phase == JobPhase::kStopping || s.phase == JobPhase::kFinished;
    return !ending && from == ReplicaState::kTraining && to != ReplicaState::kTraining &&
           to != ReplicaState::kDrained && to != ReplicaState::kHeld;
}

void extendLane(ReplicaView& view, int64_t at, const ReplicaChanged& e) {
    if (!view.lane.empty()) {
        LaneInterval& last = view.lane.back();
        const bool same = last.state == e.state && last.incarnation == e.incarnation;
        if (same && last.endNs == 0) return;
        if (last.endNs == 0) last.endNs = std::max(at, last.beginNs);
    }
    view.lane.push({e.state, at, 0, e.incarnation, e.step});
}

size_t outputLinesPerRank(const RunState& s) {
    return std::max<size_t>(2, Limits::kOutputLines / std::max<size_t>(1, s.ranks.size()));
}

void take(RankView& view, int64_t at, const RankSample& sample) {
    view.incarnation = sample.incarnation;
    view.phase = sample.phase;
    view.step = sample.step;
    view.sampledNs = at;
    view.beatAgeMs = sample.beatAgeMs;
    view.progressAgeMs = sample.progressAgeMs;
    view.tokensPerSecond = sample.tokensPerSecond;
    view.cpuPercent = sample.cpuPercent;
    view.rssBytes = sample.rssBytes;
    view.gpuPercent = sample.gpuPercent;
    view.gpuBytes = sample.gpuBytes;
    view.gpus = sample.gpus;
    if (view.gpus.size() > Limits::kGpusPerNode) view.gpus.resize(Limits::kGpusPerNode);
}

void clearFigures(RankView& view) {
    view.tokensPerSecond.reset();
    view.cpuPercent.reset();
    view.rssBytes.reset();
    view.gpuPercent.reset();
    view.gpuBytes.reset();
    view.gpus.clear();
}

/// False: no such node, or more GPUs than a node has.
bool take(RunState& s, int64_t at, const NodeSample& sample) {
    const std::string name = text(sample.node);
    const auto node =
        std::lower_bound(s.nodes.begin(), s.nodes.end(), name,
                         [](const NodeView& n, const std::string& k) { return n.node < k; });
    if (node == s.nodes.end() || node->node != name) return false;
    // The last words of an agent that has gone may come after it.
    if (node->state == NodeState::kLost) return true;
    if (sample.gpus.size() > Limits::kGpusPerNode) return false;
    node->sample = sample;
    node->sample->node = name;
    node->sample->noGpus = text(sample.noGpus);
    for (GpuSample& gpu : node->sample->gpus) gpu.name = text(gpu.name);
    node->sampledNs = at;
    return true;
}

}  // namespace

bool fold(RunState& s, int64_t at, const NodeChanged& e) {
    const std::string name = text(e.node);
    auto it = std::lower_bound(s.nodes.begin(), s.nodes.end(), name,
                               [](const NodeView& n, const std::string& k) { return n.node < k; });
    const bool known = it != s.nodes.end() && it->node == name;
    if (e.state == NodeState::kForgotten) {
        if (known) s.nodes.erase(it);
        return known;
    }
    if (!known) {
        if (s.nodes.size() >= Limits::kNodes) return false;
        it = s.nodes.insert(it, NodeView{});
        it->node = name;
        it->sinceNs = at;
    }
    if (it->state != e.state) it->sinceNs = at;
    it->address = text(e.address);
    it->slots = e.slots;
    it->state = e.state;
    it->why = text(e.why);
    if (e.state == NodeState::kLost) it->sample.reset();
    return true;
}

bool fold(RunState& s, int64_t at, const GpuTroubled& e) {
    if (e.ranks.size() > Limits::kRanks) return false;
    GpuTroubleView view{at, e};
    view.trouble.node = text(e.node);
    view.trouble.name = text(e.name);
    s.gpuTroubles.push(std::move(view));
    return true;
}

bool fold(RunState& s, int64_t, const ProgramSeen& e) {
    s.programs.push({text(e.node), text(e.path), text(e.sha256), text(e.before), e.rank});
    return true;
}

bool fold(RunState& s, int64_t at, const ReplicaChanged& e) {
    ReplicaView* view = replicaOf(s, e.replica);
    if (!view) return false;
    if (isLoss(s, view->state, e.state)) ++view->losses;
    if (view->state != e.state || view->incarnation != e.incarnation || view->sinceNs == 0)
        view->sinceNs = at;
    extendLane(*view, at, e);
    view->state = e.state;
    view->incarnation = e.incarnation;
    // One that starts may wait for a node.
    if (!e.node.empty() || e.state == ReplicaState::kStarting) view->node = text(e.node);
    view->step = e.step;
    view->why = text(e.why);
    if (!keepsCatchUp(e.state)) view->catchUp.reset();
    return true;
}

bool fold(RunState& s, int64_t at, const RankStarted& e) {
    RankView* view = rankOf(s, e.rank);
    if (!view) return false;
    view->incarnation = e.incarnation;
    view->pid = e.pid;
    view->node = text(e.node);
    view->phase = RankPhase::kStarting;
    view->startedNs = at;
    view->sampledNs = 0;
    view->beatAgeMs.reset();
    view->progressAgeMs.reset();
    clearFigures(*view);
    if (e.gpu) view->gpus = {*e.gpu};
    return true;
}

bool fold(RunState& s, int64_t at, const RankExited& e) {
    RankView* view = rankOf(s, e.rank);
    if (!view) return false;
    if (!e.expected) addTo(s.counters.rankExits, 1);
    view->lastExit = e;
    view->exitedNs = at;
    // The exit of an older process may be reported after its successor has started.
    if (e.incarnation < view->incarnation) return true;
    view->pid = 0;
    view->phase = RankPhase::kGone;
    clearFigures(*view);
    return true;
}

bool fold(RunState& s, int64_t at, const RankOutput& e) {
    RankView* view = rankOf(s, e.rank);
    if (!view) return false;
    view->output.pushBounded({at, e.incarnation, e.isStderr, shortened(e.line, Limits::kLineText)},
                             outputLinesPerRank(s));
    return true;
}

bool fold(RunState& s, int64_t at, const FleetSampled& e) {
    if (e.ranks.size() > Limits::kRanks || e.nodes.size() > Limits::kNodes) return false;
    bool allGood = true;
    for (const NodeSample& sample : e.nodes) allGood = take(s, at, sample) && allGood;
    size_t next = 0;  // samples come in the order of the ranks, mostly of all of them
    for (const RankSample& sample : e.ranks) {
        const bool inOrder = next < s.ranks.size() && s.ranks[next].rank == sample.rank;
        RankView* view = inOrder ? &s.ranks[next] : rankOf(s, sample.rank);
        if (view) next = static_cast<size_t>(view - s.ranks.data()) + 1;
        if (!view) {
            allGood = false;
        } else if (sample.incarnation >= view->incarnation) {
            take(*view, at, sample);
        }
    }
    return allGood;
}

bool fold(RunState& s, int64_t at, const CatchUpProgress& e) {
    if (e.sources.size() > static_cast<size_t>(Limits::kReplicas)) return false;
    ReplicaView* view = replicaOf(s, e.replica);
    if (!view) return false;
    const bool goesOn = view->catchUp && view->catchUp->snapshotStep == e.snapshotStep &&
                        view->incarnation == e.incarnation;
    const int64_t since = goesOn ? view->catchUp->sinceNs : at;
    view->catchUp =
        CatchUpView{e.snapshotStep, e.bytesDone, e.bytesTotal, e.step, e.sources, since, at};
    view->step = std::max(view->step, e.step);
    return true;
}

ReplicaView* replicaOf(RunState& s, int32_t replica) {
    if (replica < 0 || replica >= Limits::kReplicas) return nullptr;
    auto it = std::lower_bound(s.replicas.begin(), s.replicas.end(), replica,
                               [](const ReplicaView& v, int32_t id) { return v.replica < id; });
    if (it == s.replicas.end() || it->replica != replica) {
        it = s.replicas.insert(it, ReplicaView{});
        it->replica = replica;
    }
    return &*it;
}

RankView* rankOf(RunState& s, RankId rank) {
    if (rank.replica < 0 || rank.replica >= Limits::kReplicas || rank.shard < 0 ||
        rank.shard >= Limits::kShards)
        return nullptr;
    auto it = std::lower_bound(s.ranks.begin(), s.ranks.end(), rank,
                               [](const RankView& v, const RankId& id) { return v.rank < id; });
    if (it == s.ranks.end() || it->rank != rank) {
        if (s.ranks.size() >= Limits::kRanks) return nullptr;
        it = s.ranks.insert(it, RankView{});
        it->rank = rank;
    }
    return &*it;
}

}  // namespace bulkhead::model::fold_detail
