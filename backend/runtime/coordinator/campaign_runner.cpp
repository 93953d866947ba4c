// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/coordinator/campaign_runner.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "backend/campaign/plan.h"
#include "backend/model/command_text.h"
#include "backend/model/units.h"

namespace bulkhead::runtime {
namespace {

using model::ReplicaState;

/// A fault whose time has come waits so long for the job to be able to bear it.
constexpr double kPatienceMs = 20'000;

bool hasProcesses(ReplicaState state) {
    switch (state) {
        case ReplicaState::kStarting:
        case ReplicaState::kFetching:
        case ReplicaState::kReplaying:
        case ReplicaState::kProven:
        case ReplicaState::kTraining:
            return true;
        default:
            return false;
    }
}

/// Needs nothing of its target but a process to signal.
bool isFromOutside(model::FaultKind kind) {
    return kind == model::FaultKind::kKillRank || kind == model::FaultKind::kKillReplica ||
           kind == model::FaultKind::kHang;
}

}  // namespace

const model::CampaignView& CampaignRunner::view() const {
    return *model::findCampaign(hands_.state(), active_);
}

void CampaignRunner::take(const model::CampaignStarted& plan) {
    active_ = plan.campaign;
    waiting_.clear();
    open_.clear();
    hit_.clear();
    early_.clear();
    ended_ = false;
    awayMs_ = 0;
    for (size_t i = 0; i < plan.plan.size(); ++i) waiting_[i + 1] = {plan.plan[i], ""};
}

void CampaignRunner::restore(const std::map<uint64_t, std::string>& owners) {
    const model::RunState& state = hands_.state();
    if (state.campaigns.empty() || state.campaigns.back().ended) return;
    const model::CampaignView& campaign = state.campaigns.back();
    take(campaign.started);
    awayMs_ = model::durationMs(state.lastEventNs, hands_.unixNs());
    for (const auto& fate : campaign::fatesOf(state, campaign))
        if (fate.fault != nullptr || fate.skipped != nullptr) waiting_.erase(fate.planned);
    for (const auto& [id, by] : owners)
        if (const uint64_t planned = model::plannedOf(by, active_); planned != 0) {
            waiting_.erase(planned);
            open_[id] = planned;
        }
}

absl::StatusOr<uint64_t> CampaignRunner::start(model::CampaignStarted plan) {
    const model::RunState& state = hands_.state();
    if (active())
        return absl::AlreadyExistsError(absl::StrCat(
            "campaign ", active_, " (", view().started.name,
            ") goes on in this job; wait for its end, or stop it: bulkheadctl campaign stop"));
    plan.campaign = state.campaigns.empty() ? 1 : state.campaigns.back().started.campaign + 1;
    const uint64_t id = plan.campaign;
    hands_.emit(plan, model::Severity::kNotice);
    if (model::findCampaign(state, id) == nullptr)
        return absl::InternalError("the campaign was not taken into the run's history");
    take(plan);
    tick();
    return id;
}

absl::Status CampaignRunner::abort(uint64_t campaign, const std::string& by) {
    if (!active() || campaign != active_)
        return absl::NotFoundError(absl::StrCat("campaign ", campaign, " is over, or never was"));
    waiting_.clear();
    endLasting();
    finish(model::CampaignOutcome::kAborted, absl::StrCat("stopped by ", by), false);
    return absl::OkStatus();
}

void CampaignRunner::jobEnds(const std::string& why) {
    if (!active()) return;
    finish(model::CampaignOutcome::kCutOff,
           absl::StrCat("the job ended before the campaign did", why.empty() ? "" : ": ", why),
           false);
}

uint32_t CampaignRunner::doomed() const {
    uint32_t n = 0;
    for (const model::ReplicaView& r : hands_.state().replicas) {
        const auto hit = hit_.find(r.replica);
        n +=
            r.state == ReplicaState::kTraining && hit != hit_.end() && hit->second == r.incarnation;
    }
    return n;
}

std::string CampaignRunner::heldBackBy(const model::FaultSpec& fault) const {
    const model::RunState& state = hands_.state();
    if (state.phase != model::JobPhase::kTraining)
        return absl::StrCat("the job was ", std::string(enumName(state.phase)));
    if (fault.replica >= 0) {
        const model::ReplicaView* r = model::findReplica(state, fault.replica);
        const ReplicaState now = r == nullptr ? ReplicaState::kAbsent : r->state;
        const bool usable = isFromOutside(fault.kind) && fault.atPhase.empty()
                                ? hasProcesses(now)
                                : now == ReplicaState::kTraining;
        if (!usable)
            return absl::StrCat("replica ", fault.replica, " was ", std::string(enumName(now)));
        if (const auto hit = hit_.find(fault.replica);
            hit != hit_.end() && hit->second == r->incarnation)
            return absl::StrCat("replica ", fault.replica, " was about to be lost already");
    }
    const model::Preflight check = hands_.preflight(fault);
    if (!check.allowed) return check.refusal;
    const uint32_t out = doomed();
    const uint32_t left = check.contributorsAfter > out ? check.contributorsAfter - out : 0;
    if (campaign::losesReplica(fault) && left < view().started.keepTraining)
        return absl::StrCat("it would have left ", left, " of ", state.spec.replicas,
                            " replicas training");
    return "";
}

void CampaignRunner::put(uint64_t planned, const Waiting& waiting) {
    const std::string by = model::campaignFault(active_, planned);
    const model::FaultSpec& fault = waiting.fault.spec;
    early_.clear();
    const auto id = hands_.inject(fault, by, by);
    if (!id.ok()) return skip(planned, std::string(id.status().message()));
    if (const auto over = early_.find(*id); over == early_.end())
        open_[*id] = planned;
    else if (model::findFault(hands_.state(), *id) == nullptr)
        return skip(planned, over->second);
    if (!campaign::losesReplica(fault)) return;
    for (const model::ReplicaView& r : hands_.state().replicas) {
        const std::vector<std::string> nodes = model::nodesOf(hands_.state(), r);
        if (r.replica == fault.replica || std::ranges::find(nodes, fault.node) != nodes.end())
            hit_[r.replica] = r.incarnation;
    }
}

void CampaignRunner::skip(uint64_t planned, const std::string& why) {
    hands_.emit(model::CampaignSkipped{active_, planned, why}, model::Severity::kInfo);
}

void CampaignRunner::putDue(double elapsedMs) {
    std::vector<uint64_t> due;
    for (const auto& [planned, waiting] : waiting_)
        if (static_cast<double>(waiting.fault.atMs) <= elapsedMs) due.push_back(planned);
    for (const uint64_t planned : due) {
        Waiting& waiting = waiting_.at(planned);
        waiting.why = heldBackBy(waiting.fault.spec);
        const double late = elapsedMs - static_cast<double>(waiting.fault.atMs);
        if (!waiting.why.empty() && late < kPatienceMs) continue;
        const Waiting now = std::move(waiting);
        waiting_.erase(planned);
        if (now.why.empty() && late < kPatienceMs)
            put(planned, now);
        else if (now.why.empty())
            skip(planned, "no controller was there when its time had come");
        else
            skip(planned,
                 absl::StrCat(now.why, ", for ", static_cast<int>(kPatienceMs / 1000), " s"));
        if (!active()) return;
    }
}

void CampaignRunner::endLasting() {
    ended_ = true;
    const std::map<uint64_t, uint64_t> open = open_;
    // endFault() fails for faults that are over or cannot be revoked: nothing is left to undo.
    for (const auto& [id, _] : open) (void)hands_.endFault(id);
}

void CampaignRunner::tick() {
    if (!active()) return;
    const model::CampaignStarted& plan = view().started;
    const double elapsed = model::durationMs(view().startedNs, hands_.unixNs());
    const double duration = static_cast<double>(plan.durationMs);
    const double settle = static_cast<double>(plan.settleMs);
    if (awayMs_ > 0 && elapsed - awayMs_ < duration && elapsed > duration + settle)
        return finish(model::CampaignOutcome::kCutOff,
                      absl::StrCat("no controller was there for ", model::humanDuration(awayMs_),
                                   ", until the campaign's time was over"),
                      false);
    if (elapsed < duration) return putDue(elapsed);
    if (!ended_) {
        std::map<uint64_t, Waiting> left = std::exchange(waiting_, {});
        for (const auto& [planned, waiting] : left)
            skip(planned, waiting.why.empty() ? "the campaign's time was over" : waiting.why);
        endLasting();
    }
    const auto progress = campaign::progressOf(hands_.state(), view(), hands_.unixNs());
    const bool settled = open_.empty() && progress.openIncidents == 0 &&
                         hands_.state().phase == model::JobPhase::kTraining;
    if (settled) return finish(model::CampaignOutcome::kPassed, "", true);
    if (elapsed > duration + settle)
        finish(model::CampaignOutcome::kFailed,
               absl::StrCat("the job had not settled after ", model::humanDuration(settle), ": ",
                            progress.openIncidents, " incidents and ", open_.size(),
                            " faults were open, and it was ",
                            std::string(enumName(hands_.state().phase))),
               true);
}

void CampaignRunner::observe(const model::Event& event) {
    if (!active()) return;
    const auto* ended = std::get_if<model::FaultEnded>(&event.body);
    if (ended == nullptr) return;
    const auto it = open_.find(ended->fault);
    if (it == open_.end()) {
        early_[ended->fault] = ended->outcome;
        return;
    }
    const uint64_t planned = it->second;
    open_.erase(it);
    const model::FaultView* fault = model::findFault(hands_.state(), ended->fault);
    if (fault == nullptr) return skip(planned, ended->outcome);
    // It passed, and the replica is still there.
    if (fault->spec.kind == model::FaultKind::kHang ||
        fault->spec.kind == model::FaultKind::kCutNetwork)
        hit_.erase(fault->spec.replica);
}

void CampaignRunner::finish(model::CampaignOutcome outcome, const std::string& why, bool isJudged) {
    const model::RunState& state = hands_.state();
    model::CampaignEnded end;
    end.campaign = active_;
    end.outcome = outcome;
    end.why = why;
    if (isJudged) {
        end.verdicts = campaign::judge(state, view(), hands_.unixNs(), true, hands_.ledger());
        std::string failed = why;
        for (const model::CampaignVerdict& v : end.verdicts)
            if (v.state == model::VerdictState::kFailed)
                absl::StrAppend(&failed, failed.empty() ? "" : "; ", std::string(enumName(v.check)),
                                ": ", v.words);
        if (!failed.empty()) end.outcome = model::CampaignOutcome::kFailed;
        end.why = failed;
        if (awayMs_ >= 1000)
            absl::StrAppend(&end.why, end.why.empty() ? "" : "; ", "no controller was there for ",
                            model::humanDuration(awayMs_), " of it");
    } else {
        end.verdicts = campaign::judge(state, view(), hands_.unixNs());
    }
    active_ = 0;
    waiting_.clear();
    open_.clear();
    hit_.clear();
    const bool passed = end.outcome == model::CampaignOutcome::kPassed;
    hands_.emit(std::move(end), passed ? model::Severity::kNotice : model::Severity::kWarning);
}

}  // namespace bulkhead::runtime
