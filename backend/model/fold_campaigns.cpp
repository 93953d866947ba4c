// SPDX-License-Identifier: Apache-2.0
#include "backend/model/fold.h"
#include "backend/model/parse_number.h"

namespace bulkhead::model {

std::string campaignFault(uint64_t campaign, uint64_t planned) {
    return concat("campaign ", campaign, ", fault ", planned);
}

uint64_t plannedOf(std::string_view by, uint64_t campaign) {
    const std::string head = concat("campaign ", campaign, ", fault ");
    if (!by.starts_with(head)) return 0;
    return parseNumber<uint64_t>(by.substr(head.size())).value_or(0);
}

namespace fold_detail {
namespace {

CampaignView* campaignOf(RunState& s, uint64_t id) {
    return const_cast<CampaignView*>(findCampaign(s, id));
}

}  // namespace

bool fold(RunState& s, int64_t at, const CampaignStarted& e) {
    if (e.campaign == 0 || findCampaign(s, e.campaign) || e.plan.size() > Limits::kPlannedFaults)
        return false;
    CampaignView view;
    view.started = withText(e, &CampaignStarted::name);
    view.started.about = text(e.about);
    view.started.requestId = text(e.requestId);
    view.started.by = text(e.by);
    for (PlannedFault& planned : view.started.plan) {
        planned.spec.node = text(planned.spec.node);
        planned.spec.atPhase = text(planned.spec.atPhase);
    }
    view.startedNs = at;
    s.campaigns.push(std::move(view));
    return true;
}

bool fold(RunState& s, int64_t at, const CampaignSkipped& e) {
    CampaignView* campaign = campaignOf(s, e.campaign);
    if (!campaign || campaign->ended || e.planned == 0 ||
        e.planned > campaign->started.plan.size() ||
        campaign->skipped.size() >= campaign->started.plan.size())
        return false;
    campaign->skipped.push_back({at, e.planned, text(e.why)});
    return true;
}

bool fold(RunState& s, int64_t at, const CampaignEnded& e) {
    constexpr size_t kMostVerdicts = EnumNames<CampaignCheck>::kNames.size();
    CampaignView* campaign = campaignOf(s, e.campaign);
    if (!campaign || campaign->ended || e.verdicts.size() > kMostVerdicts) return false;
    CampaignEnded kept = withText(e, &CampaignEnded::why);
    for (CampaignVerdict& verdict : kept.verdicts) verdict.words = text(verdict.words);
    campaign->ended = std::move(kept);
    campaign->endedNs = at == 0 ? 1 : at;
    return true;
}

}  // namespace fold_detail
}  // namespace bulkhead::model
