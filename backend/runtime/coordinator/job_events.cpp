// SPDX-License-Identifier: Apache-2.0
// The telling half of JobCoordinator: the machine's facts and its own observations as events.
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backend/model/command_text.h"
#include "backend/model/expert_rules.h"
#include "backend/model/gpu_text.h"
#include "backend/runtime/coordinator/fact_events.h"
#include "backend/runtime/coordinator/job_coordinator.h"
#include "backend/runtime/coordinator/job_past.h"
#include "backend/runtime/coordinator/spec_options.h"
#include "spdlog/spdlog.h"

namespace bulkhead::runtime {
namespace {

/// FleetSampled comes twice a second, ExpertLoads with every other one.
constexpr uint32_t kTicksPerExpertLoads = 2;
/// ... and what nodes say of themselves, which changes slowly and is long, with every fourth.
constexpr uint32_t kTicksPerNodes = 4;

}  // namespace

int64_t JobCoordinator::unixNs(MonoNs at) const {
    const Clock& clock = around_.reactor.clock();
    return clock.unixNs() - (clock.now() - at);
}

/// Not later than now, whatever the clock of the node says.
MonoNs JobCoordinator::monoNs(int64_t unixNs) const {
    const Clock& clock = around_.reactor.clock();
    return clock.now() - std::max<int64_t>(0, clock.unixNs() - unixNs);
}

void JobCoordinator::emit(model::EventBody body, model::Severity severity) {
    if (auto* committed = std::get_if<model::StepCommitted>(&body))
        committed->predictedRemote = model::predictedRemote(state_, committed->record.layout);
    const model::Event event{++seq_, around_.reactor.clock().unixNs(), severity, std::move(body)};
    model::apply(state_, event);
    if (around_.sink != nullptr) around_.sink->onEvent(beginning_.run, event);
    if (observer_) observer_(event);
    campaigns_.observe(event);
}

void JobCoordinator::tell(MonoNs at, const protocol::Fact& fact) {
    if (const auto* answer = std::get_if<protocol::fact::OperatorAnswered>(&fact)) {
        answer_ = *answer;
        return;
    }
    const FactContext context{[this](MonoNs t) { return unixNs(t); },
                              [this](int32_t replica) { return nodeOf(replica); },
                              beginning_.spec.policies};
    auto event = translate(fact, context);
    if (!event) return;
    if (auto* opened = std::get_if<model::IncidentOpened>(&event->body)) {
        explainIncident(*opened, at);
        // Two hosts may not reach each other: the next start does best on a third.
        const auto placed = placed_.find(opened->replica);
        if (opened->cause == model::EvidenceKind::kCommitFailed && placed != placed_.end())
            for (const std::string& node : placed->second.nodes) around_.pool.doubt(node);
    }
    if (auto* phase = std::get_if<model::IncidentPhase>(&event->body)) {
        widenDetection(*phase);
    }
    if (auto* closed = std::get_if<model::IncidentClosed>(&event->body)) {
        const auto unseen = unseenMs_.find(closed->incident);
        if (unseen != unseenMs_.end() && closed->survivorStallMs > 0)
            closed->survivorStallMs += unseen->second;
        unseenMs_.erase(closed->incident);
    }
    if (auto* written = std::get_if<model::CheckpointWritten>(&event->body);
        written && !written->ok)
        if (const uint64_t fault = faults_.acting(model::FaultKind::kFillDisk); fault != 0)
            written->error += absl::StrCat("; fault ", fault, " fills the disk");
    if (const auto* finished = std::get_if<model::RunFinished>(&event->body)) {
        if (auto loads = experts_.take()) emit(*std::move(loads), model::Severity::kInfo);
        campaigns_.jobEnds(finished->why);
    }
    emit(std::move(event->body), event->severity);
    if (const auto* committed = std::get_if<protocol::fact::StepCommitted>(&fact)) told(*committed);
}

void JobCoordinator::told(const protocol::fact::StepCommitted& fact) {
    checkInvariants(fact);
    fleet_.committed(fact, beginning_.spec.shards);
    experts_.committed(fact);
    if (auto sampled = routing_.committed(fact)) emit(*std::move(sampled), model::Severity::kInfo);
    injectPlanned();
    faults_.stepCommitted(fact.record.step);
}

/// With the first commit, when there is something to break.
void JobCoordinator::injectPlanned() {
    if (faults_.planned()) return;
    std::vector<model::FaultSpec> planned;
    for (const std::string& text : beginning_.spec.faults)
        if (const auto fault = model::parseFault(text); fault.ok()) planned.push_back(*fault);
    if (const absl::Status s = faults_.plan(planned, machine_.committedStep()); !s.ok())
        spdlog::warn("run {}: its faults are not kept: {}", beginning_.run,
                     std::string(s.message()));
}

/// A run's first event, or what the coordinator before could not tell any more.
void JobCoordinator::goOnTelling() {
    if (state_.seq == 0) {
        char host[256] = "";
        (void)::gethostname(host, sizeof host - 1);
        emit(model::RunStarted{beginning_.spec, around_.version, host, beginning_.resumedFrom},
             model::Severity::kNotice);
    }
    if (!lost_.empty()) report(protocol::Violation{"I6", lost_});
    const std::vector<protocol::LogEntry> entries = std::exchange(untold_, {});
    if (!recovered_) return;
    tellMissing(entries);
    const model::Policies policies = modelPolicies(machine_.policies(), beginning_.spec.policies);
    if (policies != state_.policies)
        emit(model::PoliciesChanged{policies, "as ordered before the coordinator was lost"},
             model::Severity::kNotice);
}

/// The log is durable before anybody is told: what it has behind the last step that history knows
/// may be missing there.
void JobCoordinator::tellMissing(const std::vector<protocol::LogEntry>& entries) {
    const FactContext context{[this](MonoNs t) { return unixNs(t); },
                              [this](int32_t replica) { return nodeOf(replica); },
                              beginning_.spec.policies};
    for (size_t i = firstUntold(entries, state_); i < entries.size(); ++i) {
        const auto fact = untoldFact(entries, i, state_);
        if (!fact) continue;
        auto event = translate(*fact, context);
        if (!event) continue;
        emit(std::move(event->body), event->severity);
    }
}

void JobCoordinator::checkInvariants(const protocol::fact::StepCommitted& fact) {
    report(invariants_.committed(fact.record));
    if (fact.record.step > 1)
        for (const protocol::ReplicaVote& vote : fact.votes)
            report(invariants_.hashes(fact.record.lineage, fact.record.step - 1, vote.replica,
                                      vote.hashes));
    report(protocol::InvariantChecker::ledger(machine_.ledger()));
}

void JobCoordinator::report(const std::optional<protocol::Violation>& violation) {
    if (!violation) return;
    emit(model::InvariantBroken{violation->invariant, violation->detail}, model::Severity::kError);
}

void JobCoordinator::explainIncident(model::IncidentOpened& incident, MonoNs at) {
    // A GPU that failed takes its ranks along: what follows within this is likely its doing.
    constexpr int64_t kGpuExplainsNs = 10 * kSecond;
    for (size_t i = state_.gpuTroubles.size(); i-- > 0;) {
        const model::GpuTroubled& trouble = state_.gpuTroubles[i].trouble;
        if (unixNs(at) - trouble.seenNs > kGpuExplainsNs) break;
        const auto concerned = [&](RankId rank) { return rank.replica == incident.replica; };
        if (std::none_of(trouble.ranks.begin(), trouble.ranks.end(), concerned)) continue;
        absl::StrAppend(&incident.title, "; ", model::gpuName(trouble), " had ",
                        model::troubleText(trouble));
        break;
    }
    const auto cause = faults_.explain(incident.replica, unixNs(at));
    if (!cause) return;
    incident.fault = cause->fault;
    // Silent corruption keeps no replica waiting before it is detected.
    if (incident.cause != model::EvidenceKind::kParityMismatch &&
        incident.cause != model::EvidenceKind::kNonFinite)
        stalling_.insert(incident.incident);
    incidentFaultNs_[incident.incident] = cause->effectNs;
}

void JobCoordinator::widenDetection(model::IncidentPhase& phase) {
    // The machine knows the first evidence; that the fault came before it only we know.
    const auto fault = incidentFaultNs_.find(phase.incident);
    if (phase.phase != model::IncidentPhaseKind::kDetect || fault == incidentFaultNs_.end()) return;
    if (fault->second < phase.beginNs) {
        if (stalling_.contains(phase.incident))
            unseenMs_[phase.incident] =
                static_cast<double>(phase.beginNs - fault->second) / kMillisecond;
        phase.beginNs = fault->second;
    }
    stalling_.erase(phase.incident);
    incidentFaultNs_.erase(fault);
}

void JobCoordinator::sampleFleet() {
    emit(fleet_.sample(around_.reactor.now(), fleetTicks_ % kTicksPerNodes == 0),
         model::Severity::kInfo);
    if (++fleetTicks_ % kTicksPerExpertLoads != 0) return;
    if (auto loads = experts_.take()) emit(*std::move(loads), model::Severity::kInfo);
    propose();
}

/// The plan is made on another thread, from what the proposer kept of the state: a large one takes
/// seconds.
void JobCoordinator::propose() {
    if (!around_.proposer || !proposed_ || finished_ || state_.model.expertsFixed) return;
    const uint64_t step = machine_.committedStep();
    if (state_.phase != model::JobPhase::kTraining || step < proposeFrom_) return;
    ProposalTask task = around_.proposer(state_);
    if (!task) return;
    proposed_ = false;
    proposeFrom_ = step + beginning_.spec.plan.cooldownSteps;  // also when nothing comes of it
    std::weak_ptr<bool> alive = alive_;
    proposing_ = std::jthread([this, alive, task = std::move(task)] {
        auto plan = task();
        around_.reactor.post([this, alive, plan = std::move(plan)]() mutable {
            if (alive.expired()) return;
            proposed_ = true;
            // Experts have moved meanwhile, or were pinned: it was made for how things were.
            if (!plan || plan->layout != state_.layout || finished_) return;
            if (model::brokenRule(state_.expertRules, plan->expertShard, state_.model.experts))
                return;
            emit(*std::move(plan), model::Severity::kNotice);
        });
    });
}

}  // namespace bulkhead::runtime
