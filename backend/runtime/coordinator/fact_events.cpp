// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/coordinator/fact_events.h"

#include "backend/runtime/coordinator/spec_options.h"

namespace bulkhead::runtime {
namespace {

namespace fact = protocol::fact;
using model::Severity;
using Result = std::optional<TranslatedFact>;

Severity severityOf(model::JobPhase phase) {
    switch (phase) {
        case model::JobPhase::kWaiting:
        case model::JobPhase::kPaused:
            return Severity::kWarning;
        case model::JobPhase::kFailed:
            return Severity::kError;
        default:
            return Severity::kNotice;
    }
}

Severity severityOf(model::ReplicaState state) {
    switch (state) {
        case model::ReplicaState::kBackingOff:
            return Severity::kWarning;
        case model::ReplicaState::kFailed:
            return Severity::kError;
        default:
            return Severity::kNotice;
    }
}

void addUp(std::vector<uint64_t>& sum, const std::vector<uint64_t>& part) {
    if (sum.size() < part.size()) sum.resize(part.size());
    for (size_t i = 0; i < part.size(); ++i) sum[i] += part[i];
}

model::StepCommitted stepCommitted(const fact::StepCommitted& f) {
    model::StepCommitted e;
    e.record = f.record;
    e.loss = f.loss;
    e.gradNorm = f.gradNorm;
    e.learningRate = f.learningRate;
    e.stepMs = f.stepMs;
    e.commitMs = f.commitMs;
    e.tokensPerSecond = f.tokensPerSecond;
    e.effectiveTime = f.effectiveTime;
    e.domainLoss = f.domainLoss;
    e.scalars = f.scalars;
    e.parity = f.parity;
    e.link = f.link;
    if (!f.votes.empty()) {
        const protocol::ReplicaVote& vote = f.votes.front();
        for (size_t s = 0; s < vote.gradSquares.size(); ++s)
            e.shards.push_back({static_cast<int32_t>(s),
                                s < vote.hashes.size() ? vote.hashes[s] : 0, vote.gradSquares[s]});
    }
    for (size_t i = 0; i < f.votes.size(); ++i) {
        const protocol::ReplicaVote& v = f.votes[i];
        addUp(e.traffic.copies, v.traffic.copies);
        addUp(e.traffic.remote, v.traffic.remote);
        e.traffic.bytes += v.traffic.bytes;
        e.replicas.push_back({v.replica, v.computeMs, v.exchangeMs, v.exposedMs,
                              i < f.voteMs.size() ? f.voteMs[i] : 0, v.applyMs, v.waitedOnMs,
                              v.waitedOn, v.bytes});
    }
    return e;
}

struct Translator {
    const FactContext& context;

    Result operator()(const fact::JobPhaseChanged& f) const {
        const auto phase = static_cast<model::JobPhase>(f.phase);
        return {{model::JobPhaseChanged{phase, f.why}, severityOf(phase)}};
    }
    Result operator()(const fact::LineageOpened& f) const {
        return {{model::LineageOpened{f.lineage, f.fromStep, f.term, f.why, f.link},
                 f.undone > 0 ? Severity::kError : Severity::kNotice}};
    }
    Result operator()(const fact::ReplicaChanged& f) const {
        const auto state = static_cast<model::ReplicaState>(f.state);
        return {{model::ReplicaChanged{f.replica, f.incarnation, state, context.nodeOf(f.replica),
                                       f.step, f.why},
                 severityOf(state)}};
    }
    Result operator()(const fact::QuorumDecided& f) const {
        return {{model::QuorumDecided{f.step, f.epoch, f.attempt, f.layout, f.contributors,
                                      f.joiners, f.lrFactor, f.explanation},
                 Severity::kInfo}};
    }
    Result operator()(const fact::StepCommitted& f) const {
        return {{stepCommitted(f), f.record.skip ? Severity::kWarning : Severity::kInfo}};
    }
    Result operator()(const fact::StepRedone& f) const {
        return {{model::StepRedone{f.step, f.epoch, f.attempt, f.lost, f.samplesReturned, f.why},
                 Severity::kWarning}};
    }
    Result operator()(const fact::EvidenceSeen& f) const {
        return {{model::EvidenceSeen{static_cast<model::EvidenceKind>(f.kind), f.replica, f.shard,
                                     f.reporter, f.detail},
                 Severity::kWarning}};
    }
    Result operator()(const fact::IncidentOpened& f) const {
        return {{model::IncidentOpened{f.incident, f.replica, f.incarnation, f.step,
                                       static_cast<model::EvidenceKind>(f.cause), 0, f.title},
                 Severity::kWarning}};
    }
    Result operator()(const fact::IncidentPhase& f) const {
        // One reading of the clocks: two would stretch or turn round a phase of no length.
        const int64_t end = context.unixNs(f.end);
        return {{model::IncidentPhase{f.incident, static_cast<model::IncidentPhaseKind>(f.phase),
                                      end - (f.end - f.begin), end},
                 Severity::kInfo}};
    }
    Result operator()(const fact::IncidentClosed& f) const {
        return {{model::IncidentClosed{f.incident, f.survivorStallMs, f.rejoinMs, f.replicaSeconds,
                                       f.samplesRedone, f.outcome},
                 Severity::kNotice}};
    }
    Result operator()(const fact::CatchUpProgress& f) const {
        return {{model::CatchUpProgress{f.replica, f.incarnation, f.snapshotStep, f.bytesDone,
                                        f.bytesTotal, f.step, f.sources},
                 Severity::kInfo}};
    }
    Result operator()(const fact::PoliciesChanged& f) const {
        return {{model::PoliciesChanged{modelPolicies(f.policies, context.policies), f.why},
                 Severity::kNotice}};
    }
    Result operator()(const fact::OperatorAnswered&) const { return std::nullopt; }
    Result operator()(const fact::CheckpointWritten& f) const {
        return {{model::CheckpointWritten{f.done.step, f.done.replica, f.done.path, f.done.bytes,
                                          f.done.ms, f.done.ok, f.done.error},
                 f.done.ok ? Severity::kInfo : Severity::kError}};
    }
    Result operator()(const fact::StepsSuspect& f) const {
        return {{model::StepsSuspect{f.first, f.last, f.why}, Severity::kWarning}};
    }
    Result operator()(const fact::RangeQuarantined& f) const {
        return {{model::RangeQuarantined{f.range, f.why, f.link}, Severity::kWarning}};
    }
    Result operator()(const fact::InvariantBroken& f) const {
        return {{model::InvariantBroken{f.invariant, f.detail}, Severity::kError}};
    }
    Result operator()(const fact::LayoutChanged& f) const {
        return {{model::LayoutChanged{f.step, f.layout, f.ok, f.bytesMoved, f.expertShard, f.why,
                                      f.domainShare, f.predictedRemote},
                 f.ok ? Severity::kNotice : Severity::kWarning}};
    }
    Result operator()(const fact::ParityDisputed& f) const {
        return {{model::ParityDisputed{f.dispute, f.link}, Severity::kWarning}};
    }
    Result operator()(const fact::ParityPaced& f) const {
        return {{model::ParityPaced{f.everySteps, f.hashMs, f.stepMs}, Severity::kInfo}};
    }
    Result operator()(const fact::RunFinished& f) const {
        return {
            {model::RunFinished{f.ok, f.why, f.step}, f.ok ? Severity::kNotice : Severity::kError}};
    }
};

}  // namespace

std::optional<TranslatedFact> translate(const protocol::Fact& fact, const FactContext& context) {
    return std::visit(Translator{context}, fact);
}

}  // namespace bulkhead::runtime
