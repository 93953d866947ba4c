// SPDX-License-Identifier: Apache-2.0
#include "backend/model/fold.h"

namespace bulkhead::model::fold_detail {
namespace {

/// A job may be much larger than what a state shows rank by rank; then ranks appear as they report.
bool canListRanks(const JobSpec& spec) {
    return static_cast<uint64_t>(spec.replicas) * spec.shards <= Limits::kRanks;
}

void enter(RunState& s, int64_t at, JobPhase phase) {
    if (!s.phases.empty() && s.phases.back().phase == phase && s.phases.back().endNs == 0) return;
    if (!s.phases.empty()) s.phases.back().endNs = std::max(at, s.phases.back().beginNs);
    s.phases.push({phase, at, 0});
    s.phase = phase;
    s.phaseSinceNs = at;
}

}  // namespace

bool fold(RunState& s, int64_t at, const RunStarted& e) {
    s.spec = e.spec;
    s.version = text(e.version);
    s.host = text(e.host);
    s.resumedFrom = text(e.resumedFrom);
    s.policies = e.spec.policies;
    s.policiesSinceNs = at;
    s.policiesWhy = "as the job file says";
    enter(s, at, JobPhase::kStarting);
    s.explanation.clear();
    s.finished.reset();
    if (e.spec.replicas > static_cast<uint32_t>(Limits::kReplicas) ||
        e.spec.shards > static_cast<uint32_t>(Limits::kShards))
        return false;
    for (uint32_t r = 0; r < e.spec.replicas; ++r) {
        ReplicaView* view = replicaOf(s, static_cast<int32_t>(r));
        if (view->lane.empty()) {
            view->sinceNs = at;
            view->lane.push({ReplicaState::kAbsent, at, 0, 0, 0});
        }
        for (uint32_t shard = 0; canListRanks(e.spec) && shard < e.spec.shards; ++shard)
            if (!rankOf(s, {static_cast<int32_t>(r), static_cast<int32_t>(shard)})) return false;
    }
    return true;
}

bool fold(RunState& s, int64_t, const ModelDescribed& e) {
    s.model = e.model;
    s.model.name = text(e.model.name);
    if (s.model.expertShard.size() > Limits::kExpertCells) s.model.expertShard.clear();
    return true;
}

bool fold(RunState& s, int64_t at, const JobPhaseChanged& e) {
    enter(s, at, e.phase);
    s.explanation = text(e.why);
    return true;
}

bool fold(RunState& s, int64_t at, const OperatorActed& e) {
    Action action = e.action;
    action.node = text(action.node);
    action.policy = text(action.policy);
    action.value = text(action.value);
    // The list of actions leaves the experts' placement to LayoutChanged.
    action.expertShard.clear();
    action.domainShare.clear();
    action.rules.clear();
    if (e.done()) noteAction(s, e.action);
    s.actions.push({at, std::move(action), text(e.requestId), text(e.by), text(e.outcome)});
    return true;
}

bool fold(RunState& s, int64_t at, const PoliciesChanged& e) {
    s.policies = e.policies;
    s.policiesSinceNs = at;
    s.policiesWhy = text(e.why);
    return true;
}

bool fold(RunState& s, int64_t at, const CheckpointWritten& e) {
    CheckpointWritten kept = withText(e, &CheckpointWritten::path);
    kept.error = text(kept.error);
    s.checkpoints.push({at, std::move(kept)});
    addTo(e.ok ? s.counters.checkpoints : s.counters.checkpointsFailed, 1);
    return true;
}

bool fold(RunState& s, int64_t at, const InvariantBroken& e) {
    s.broken.push({at, text(e.invariant), text(e.detail)});
    return true;
}

bool fold(RunState& s, int64_t at, const RunFinished& e) {
    s.finished = withText(e, &RunFinished::why);
    enter(s, at, e.ok ? JobPhase::kFinished : JobPhase::kFailed);
    s.explanation = s.finished->why;
    for (ReplicaView& replica : s.replicas)
        if (!replica.lane.empty() && replica.lane.back().endNs == 0) replica.lane.back().endNs = at;
    return true;
}

}  // namespace bulkhead::model::fold_detail
