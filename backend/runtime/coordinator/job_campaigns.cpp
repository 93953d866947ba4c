// SPDX-License-Identifier: Apache-2.0
// The campaigns of JobCoordinator: what one would do, its begin and its stop, its hands.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "backend/campaign/plan.h"
#include "backend/model/names.h"
#include "backend/runtime/coordinator/job_coordinator.h"
#include "backend/runtime/coordinator/spec_options.h"
#include "backend/runtime/protocol/data_ledger.h"

namespace bulkhead::runtime {
namespace {

campaign::JobShape shapeOf(const JobStatus& status) {
    campaign::JobShape shape{status.spec.replicas, status.spec.shards, {}, status.policies};
    for (const NodeStatus& node : status.nodes)
        if (node.state != model::NodeState::kLost) shape.nodes.push_back(node.node);
    return shape;
}

std::string refusalOf(const JobStatus& status, const model::CampaignStarted& plan,
                      const std::vector<std::string>& lasting, bool active) {
    if (status.phase == model::JobPhase::kFinished || status.phase == model::JobPhase::kFailed)
        return "the job has ended; a campaign needs a running one";
    if (!status.spec.takesFaults()) return std::string(kFaultsAreOff);
    if (active) return "a campaign goes on in this job already; wait for its end or stop it";
    if (status.policies.recovery == model::RecoveryPolicy::kRestartAll)
        return "the job's recovery is restart_all: every loss would stop it whole; set it to ft "
               "first";
    if (!lasting.empty() && !plan.allowLasting)
        return absl::StrCat("not all of it can be undone: ", model::joined(lasting, "; "),
                            "; allow that expressly, or take it out of the file");
    return "";
}

}  // namespace

absl::StatusOr<model::CampaignPreflight> JobCoordinator::preflightCampaign(
    const model::CampaignText& text) const {
    const JobStatus now = status();
    const campaign::JobShape shape = shapeOf(now);
    auto plan = campaign::makePlan(text, shape);
    if (!plan.ok()) return plan.status();
    const std::vector<std::string> lasting = campaign::lastingOf(*plan, shape);
    model::CampaignPreflight out;
    model::Preflight& p = out.preflight;
    p = beginPreflight(now);
    setContributors(p, now, std::min(p.contributorsBefore, plan->keepTraining));
    p.title = absl::StrCat("Run fault campaign ", plan->name, " on ", beginning_.run);
    p.effect = campaign::effectOf(*plan, shape);
    if (!lasting.empty())
        absl::StrAppend(&p.effect, " What stays: ", model::joined(lasting, "; "), ".");
    p.refusal = refusalOf(now, *plan, lasting, campaigns_.active());
    p.allowed = p.refusal.empty();
    out.campaign = *std::move(plan);
    return out;
}

absl::StatusOr<uint64_t> JobCoordinator::startCampaign(const model::CampaignText& text,
                                                       uint64_t expectedRevision,
                                                       const std::string& requestId,
                                                       const std::string& by) {
    for (const model::CampaignView& earlier : state_.campaigns)
        if (!requestId.empty() && earlier.started.requestId == requestId)
            return earlier.started.campaign;
    auto check = preflightCampaign(text);
    if (!check.ok()) return check.status();
    if (expectedRevision != 0 && expectedRevision != check->preflight.revision)
        return absl::AbortedError(absl::StrCat(
            "the job has changed since you looked (revision ", check->preflight.revision, ", not ",
            expectedRevision, "); look again and repeat if you still mean it"));
    if (!check->preflight.allowed) return absl::FailedPreconditionError(check->preflight.refusal);
    check->campaign.requestId = requestId;
    check->campaign.by = by;
    return campaigns_.start(std::move(check->campaign));
}

absl::Status JobCoordinator::stopCampaign(uint64_t campaign, const std::string& by) {
    return campaigns_.abort(campaign, by);
}

/// Folded again from the file: what a coordinator that came now would find.
campaign::LedgerFinding JobCoordinator::readLedger() const {
    const auto bytes = around_.files.read(beginning_.dir + "/commit.log");
    if (!bytes.ok()) return {false, std::string(bytes.status().message())};
    const auto decoded = protocol::decodeLog(*bytes);
    if (!decoded.ok()) return {false, std::string(decoded.status().message())};
    const protocol::Options options = machineOptions(beginning_.spec, around_.secret);
    const auto past = protocol::recoverState(decoded->entries, options.replicas + options.spares,
                                             options.domains);
    if (!past.ok()) return {false, std::string(past.status().message())};
    const auto ledger = protocol::DataLedger::restore(past->ledger, {});
    if (!ledger.ok()) return {false, std::string(ledger.status().message())};
    uint64_t samples = 0;
    for (const SampleRange& range : past->ledger.committed) samples += range.end - range.begin;
    return {true, absl::StrCat("the commit log tiles the data: ", samples,
                               " samples exactly once up to step ", past->step)};
}

CampaignRunner::Hands JobCoordinator::campaignHands() {
    CampaignRunner::Hands h;
    h.inject = [this](const model::FaultSpec& fault, const std::string& by,
                      const std::string& requestId) { return inject(fault, 0, requestId, by); };
    h.endFault = [this](uint64_t fault) { return faults_.end(fault); };
    h.preflight = [this](const model::FaultSpec& fault) { return preflight(status(), fault); };
    h.ledger = [this] { return readLedger(); };
    h.emit = [this](model::EventBody body, model::Severity severity) {
        emit(std::move(body), severity);
    };
    h.unixNs = [this] { return around_.reactor.clock().unixNs(); };
    h.state = [this]() -> const model::RunState& { return state_; };
    return h;
}

}  // namespace bulkhead::runtime
