// SPDX-License-Identifier: Apache-2.0
#include "backend/model/run_state.h"

#include "backend/common/codec.h"
#include "backend/common/fingerprint.h"
#include "backend/model/fold.h"

namespace bulkhead::model {
namespace {

/// Ids count from 1, so an element sits where its id says unless the stream was odd.
template <class Kept>
auto byId(const Kept& ring, uint64_t id, uint64_t Kept::value_type::*field) -> const
    typename Kept::value_type* {
    if (ring.empty() || id == 0) return nullptr;
    const uint64_t first = ring[0].*field;
    if (id >= first && id - first < ring.size()) {
        const auto& guess = ring[static_cast<size_t>(id - first)];
        if (guess.*field == id) return &guess;
    }
    for (size_t i = ring.size(); i-- > 0;)
        if (ring[i].*field == id) return &ring[i];
    return nullptr;
}

void repair(ExpertView& view) {
    const uint64_t rows = static_cast<uint64_t>(view.moeLayers) * view.domains;
    const bool fits = rows > 0 && view.experts > 0 && rows <= Limits::kExpertCells &&
                      rows * view.experts <= Limits::kExpertCells;
    const size_t cells = fits ? static_cast<size_t>(rows * view.experts) : 0;
    const bool agrees = fits && view.latest.size() == cells && view.total.size() == cells &&
                        view.stretches.size() <= ExpertView::kStretches &&
                        std::all_of(view.stretches.begin(), view.stretches.end(),
                                    [&](const auto& it) { return it.loads.size() == cells; });
    if (!agrees) view = ExpertView{};
    view.history.repair();
}

/// Ascending by key, each once, none out of bounds.
template <class T, class Key, class Good>
void tidy(std::vector<T>& items, size_t limit, Key key, Good good) {
    std::erase_if(items, [&](const T& item) { return !good(item); });
    const auto follows = [&](const T& a, const T& b) { return !(key(a) < key(b)); };
    const bool isTidy = std::adjacent_find(items.begin(), items.end(), follows) == items.end();
    if (isTidy && items.size() <= limit) return;
    std::stable_sort(items.begin(), items.end(),
                     [&](const T& a, const T& b) { return key(a) < key(b); });
    items.erase(std::unique(items.begin(), items.end(),
                            [&](const T& a, const T& b) { return key(a) == key(b); }),
                items.end());
    if (items.size() > limit) items.resize(limit);
}

}  // namespace

void apply(RunState& state, const Event& event) {
    if (state.counters.events == 0) state.startedNs = event.timeNs;
    state.lastEventNs = event.timeNs;
    state.seq = event.seq;
    fold_detail::addTo(state.counters.events, 1);
    if (event.severity == Severity::kWarning) fold_detail::addTo(state.counters.warnings, 1);
    if (event.severity == Severity::kError) fold_detail::addTo(state.counters.errors, 1);
    const bool good = std::visit(
        [&](const auto& body) { return fold_detail::fold(state, event.timeNs, body); }, event.body);
    if (!good) fold_detail::addTo(state.counters.malformed, 1);
}

const ReplicaView* findReplica(const RunState& state, int32_t replica) {
    auto it = std::lower_bound(state.replicas.begin(), state.replicas.end(), replica,
                               [](const ReplicaView& v, int32_t id) { return v.replica < id; });
    return it != state.replicas.end() && it->replica == replica ? &*it : nullptr;
}

std::vector<std::string> nodesOf(const RunState& state, const ReplicaView& replica) {
    std::vector<std::string> nodes;
    auto rank = std::lower_bound(state.ranks.begin(), state.ranks.end(), replica.replica,
                                 [](const RankView& v, int32_t id) { return v.rank.replica < id; });
    for (; rank != state.ranks.end() && rank->rank.replica == replica.replica; ++rank)
        if (rank->incarnation >= replica.incarnation && !rank->node.empty() &&
            std::find(nodes.begin(), nodes.end(), rank->node) == nodes.end())
            nodes.push_back(rank->node);
    if (nodes.empty() && !replica.node.empty()) nodes.push_back(replica.node);
    return nodes;
}

const RankView* findRank(const RunState& state, RankId rank) {
    auto it = std::lower_bound(state.ranks.begin(), state.ranks.end(), rank,
                               [](const RankView& v, const RankId& id) { return v.rank < id; });
    return it != state.ranks.end() && it->rank == rank ? &*it : nullptr;
}

const NodeView* findNode(const RunState& state, std::string_view name) {
    auto it = std::lower_bound(state.nodes.begin(), state.nodes.end(), name,
                               [](const NodeView& v, std::string_view n) { return v.node < n; });
    return it != state.nodes.end() && it->node == name ? &*it : nullptr;
}

const IncidentView* findIncident(const RunState& state, uint64_t incident) {
    return byId(state.incidents, incident, &IncidentView::incident);
}

const FaultView* findFault(const RunState& state, uint64_t fault) {
    return byId(state.faults, fault, &FaultView::fault);
}

const CampaignView* findCampaign(const RunState& state, uint64_t campaign) {
    for (size_t i = state.campaigns.size(); i-- > 0;)
        if (state.campaigns[i].started.campaign == campaign) return &state.campaigns[i];
    return nullptr;
}

double predictedRemote(const RunState& state, uint64_t layout) {
    for (size_t i = state.layouts.size(); i-- > 0;)
        if (state.layouts[i].ok && state.layouts[i].layout == layout)
            return state.layouts[i].predictedRemote;
    return -1;
}

uint32_t contributors(const RunState& state) {
    return state.quorum ? static_cast<uint32_t>(state.quorum->contributors.size()) : 0;
}

std::optional<StallInterval> frozenStretch(const RunState& s) {
    constexpr double kLeastMs = 3000, kLeastSteps = 8, kMostMs = 1e12;
    if (s.phase != JobPhase::kTraining || s.lastCommitNs == 0) return std::nullopt;
    const double typical = s.typicalStepMs > 0 && s.typicalStepMs < kMostMs ? s.typicalStepMs : 0;
    const double late =
        durationMs(std::max(s.lastCommitNs, s.phaseSinceNs), s.lastEventNs) - typical;
    if (late < std::max(kLeastMs, kLeastSteps * typical) || late > kMostMs) return std::nullopt;
    const int64_t due = s.lastEventNs - static_cast<int64_t>(late * 1e6);
    return StallInterval{0, IncidentPhaseKind::kDetect, -1, due, s.lastEventNs};
}

uint64_t modelFingerprint() {
    static const uint64_t hash = shapeHash<RunState>() ^ (shapeHash<Event>() * 3);
    return hash;
}

std::string encodeKeyframe(const RunState& state) {
    // The position of a ring's oldest element is no part of the state: equal states give equal
    // bytes.
    RunState ordered = state;
    repair(ordered);
    Encoder encoder;
    encoder.put(modelFingerprint());
    encoder.put(ordered);
    return std::move(encoder).take();
}

absl::StatusOr<RunState> decodeKeyframe(std::string_view bytes) {
    constexpr size_t kHead = sizeof(uint64_t);
    if (bytes.size() < kHead)
        return absl::InvalidArgumentError("a keyframe is cut short; fold from the start instead");
    const absl::StatusOr<uint64_t> fingerprint = decode<uint64_t>(bytes.substr(0, kHead));
    if (!fingerprint.ok()) return fingerprint.status();
    if (*fingerprint != modelFingerprint())
        return absl::FailedPreconditionError("the keyframe was written by another version");
    absl::StatusOr<RunState> state = decode<RunState>(bytes.substr(kHead));
    if (state.ok()) repair(*state);
    return state;
}

void repair(RunState& s) {
    tidy(
        s.nodes, Limits::kNodes, [](const NodeView& v) { return v.node; },
        [](const NodeView&) { return true; });
    tidy(
        s.replicas, Limits::kReplicas, [](const ReplicaView& v) { return v.replica; },
        [](const ReplicaView& v) { return v.replica >= 0 && v.replica < Limits::kReplicas; });
    tidy(
        s.ranks, Limits::kRanks, [](const RankView& v) { return v.rank; },
        [](const RankView& v) { return v.rank.replica >= 0 && v.rank.shard >= 0; });
    for (NodeView& node : s.nodes)
        if (node.sample && node.sample->gpus.size() > Limits::kGpusPerNode)
            node.sample->gpus.resize(Limits::kGpusPerNode);
    for (ReplicaView& replica : s.replicas) replica.lane.repair();
    for (RankView& rank : s.ranks) rank.output.repair();
    const auto repairAll = [](auto&... rings) { (rings.repair(), ...); };
    repairAll(s.phases, s.steps, s.earlierSteps, s.suspect, s.superseded, s.quarantined, s.redos,
              s.incidents, s.stalls, s.faults, s.actions, s.checkpoints, s.broken, s.recentEvidence,
              s.campaigns, s.layouts, s.proposals, s.gpuTroubles, s.programs);
    s.earlierSteps.dropIf(
        [](const StepStretch& x) { return x.last < x.first || x.endNs < x.beginNs; });
    repair(s.experts);
    for (std::vector<int32_t>* placement : {&s.expertShard, &s.shardBefore})
        if (placement->size() > Limits::kExpertCells) placement->clear();
    for (std::vector<uint32_t>* share : {&s.domainShare, &s.shareBefore})
        if (share->size() > Limits::kExpertCells) share->clear();
    if (s.model.expertShard.size() > Limits::kExpertCells) s.model.expertShard.clear();
    if (s.expertRules.size() > Limits::kExpertRules) s.expertRules.clear();
}

}  // namespace bulkhead::model
