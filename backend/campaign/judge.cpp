// SPDX-License-Identifier: Apache-2.0
#include "backend/campaign/judge.h"

#include <algorithm>
#include <cstdio>

#include "backend/model/command_text.h"
#include "backend/model/ett.h"
#include "backend/model/names.h"
#include "backend/model/units.h"

namespace bulkhead::campaign {
namespace {

using model::CampaignCheck;
using model::CampaignVerdict;
using model::concat;
using model::humanDuration;
using model::VerdictState;

std::string percent(double part) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f %%", part * 100);
    return text;
}

/// A state keeps its last steps only, and what was forgotten is not idle.
int64_t rememberedFrom(const model::RunState& state, int64_t beginNs) {
    const bool forgot = state.steps.total() > state.steps.size() && !state.steps.empty();
    return forgot ? std::max(beginNs, state.steps[0].timeNs) : beginNs;
}

std::string counted(size_t n, std::string_view one) {
    return concat(n, " ", one, n == 1 ? "" : "s");
}

class Judge {
  public:
    Judge(const model::RunState& state, const model::CampaignView& campaign, int64_t nowNs,
          bool isLast)
        : state_(state),
          campaign_(campaign),
          criteria_(campaign.started.criteria),
          nowNs_(nowNs),
          isLast_(isLast),
          incidents_(incidentsOf(state, campaign)) {}

    CampaignVerdict faults() const {
        const Progress progress = progressOf(state_, campaign_, nowNs_);
        const double part = progress.planned == 0 ? 0
                                                  : static_cast<double>(progress.injected) /
                                                        static_cast<double>(progress.planned);
        return verdict(CampaignCheck::kFaults, part, criteria_.minInjected,
                       isLast_ && part < criteria_.minInjected,
                       concat(progress.injected, " of ", counted(progress.planned, "planned fault"),
                              " took effect, at least ", percent(criteria_.minInjected)));
    }

    CampaignVerdict invariants() const {
        size_t broken = 0;
        std::string first;
        for (const model::InvariantView& v : state_.broken)
            if (isWithin(v.timeNs) && ++broken == 1) first = concat(v.invariant, ": ", v.detail);
        return verdict(CampaignCheck::kInvariants, static_cast<double>(broken), 0, broken > 0,
                       broken == 0 ? concat("none of I1 to I6 broken in ", commitsWords())
                                   : concat(broken, " broken, first ", first));
    }

    /// A mismatch that a fault planted must be found; one that nobody planted must not be.
    CampaignVerdict hashes() const {
        size_t planted = 0;
        std::string bad;
        for (const model::IncidentView* i : incidents_) {
            if (i->cause != model::EvidenceKind::kParityMismatch) continue;
            if (isPlanted(*i))
                ++planted;
            else if (bad.empty())
                bad = concat("incident ", i->incident, " answers to no fault: ", i->title);
        }
        for (const model::InvariantView& v : state_.broken)
            if (isWithin(v.timeNs) && v.invariant == "I3" && bad.empty()) bad = v.detail;
        const std::string found =
            planted == 0 ? "" : concat("; ", counted(planted, "planted bit"), " found");
        return verdict(
            CampaignCheck::kHashes, bad.empty() ? 0 : 1, 0, !bad.empty(),
            bad.empty() ? concat("equal on all contributors in ", commitsWords(), found) : bad);
    }

    CampaignVerdict ledger(const std::optional<LedgerFinding>& finding) const {
        std::string bad;
        for (const model::InvariantView& v : state_.broken)
            if (isWithin(v.timeNs) && v.invariant == "I2" && bad.empty()) bad = v.detail;
        if (bad.empty() && finding && !finding->exact) bad = finding->words;
        if (bad.empty() && isLast_ && !finding) bad = "the commit log was not read";
        return verdict(CampaignCheck::kLedger, bad.empty() ? 0 : 1, 0, !bad.empty(),
                       !bad.empty() ? bad
                       : finding    ? finding->words
                                    : concat("every sample at most once in ", commitsWords()));
    }

    CampaignVerdict effectiveTime() const {
        const double value = effectiveTimeOf(state_, campaign_.startedNs, nowNs_);
        const int64_t from = rememberedFrom(state_, campaign_.startedNs);
        const std::string part =
            from == campaign_.startedNs
                ? ""
                : concat(" over the last ", humanDuration(model::durationMs(from, nowNs_)));
        return verdict(
            CampaignCheck::kEffectiveTime, value, criteria_.minEffectiveTime,
            isLast_ && value < criteria_.minEffectiveTime,
            concat(percent(value), part, ", at least ", percent(criteria_.minEffectiveTime)));
    }

    CampaignVerdict stall() const {
        double longest = 0;
        uint64_t of = 0;
        for (const model::IncidentView* i : incidents_)
            if (i->survivorStallMs > longest) longest = i->survivorStallMs, of = i->incident;
        return bounded(CampaignCheck::kStall, longest, criteria_.maxStallMs,
                       of == 0 ? std::string("nobody stood still")
                               : concat(humanDuration(longest), " (incident ", of, ")"));
    }

    CampaignVerdict rejoin() const {
        double longest = 0;
        const model::IncidentView* of = nullptr;
        const model::IncidentView* open = nullptr;
        for (const model::IncidentView* i : incidents_) {
            const double ms =
                i->closedNs != 0 ? i->rejoinMs : model::durationMs(i->openedNs, nowNs_);
            if (i->closedNs == 0 && i->replica >= 0) open = i;
            if (ms > longest) longest = ms, of = i;
        }
        std::string words = of == nullptr
                                ? std::string("nobody was lost")
                                : concat(humanDuration(longest), " (incident ", of->incident, ")");
        if (open != nullptr) words += concat(", r", open->replica, " not back yet");
        CampaignVerdict v =
            bounded(CampaignCheck::kRejoin, longest, criteria_.maxRejoinMs, std::move(words));
        if (isLast_ && open != nullptr) v.state = VerdictState::kFailed;
        return v;
    }

  private:
    bool isWithin(int64_t ns) const { return ns >= campaign_.startedNs && ns <= nowNs_; }

    bool isPlanted(const model::IncidentView& incident) const {
        const model::FaultView* fault = model::findFault(state_, incident.fault);
        return fault != nullptr && fault->spec.kind == model::FaultKind::kFlipParameter;
    }

    std::string commitsWords() const {
        size_t commits = 0;
        for (size_t i = state_.steps.size(); i-- > 0;) {
            if (state_.steps[i].timeNs < campaign_.startedNs) break;
            ++commits;
        }
        return counted(commits, "commit");
    }

    CampaignVerdict bounded(CampaignCheck check, double measured, uint64_t limit,
                            const std::string& words) const {
        return verdict(check, measured, static_cast<double>(limit),
                       measured > static_cast<double>(limit),
                       concat(words, ", at most ", humanDuration(static_cast<double>(limit))));
    }

    CampaignVerdict verdict(CampaignCheck check, double measured, double limit, bool failed,
                            std::string words) const {
        const VerdictState state = failed    ? VerdictState::kFailed
                                   : isLast_ ? VerdictState::kPassed
                                             : VerdictState::kOpen;
        return {check, state, measured, limit, std::move(words)};
    }

    const model::RunState& state_;
    const model::CampaignView& campaign_;
    const model::CampaignCriteria& criteria_;
    int64_t nowNs_;
    bool isLast_;
    std::vector<const model::IncidentView*> incidents_;
};

}  // namespace

double effectiveTimeOf(const model::RunState& state, int64_t beginNs, int64_t endNs) {
    beginNs = rememberedFrom(state, beginNs);
    const double wallMs = model::durationMs(beginNs, endNs);
    if (!(wallMs > 0)) return 1;
    model::EffectiveTime time;
    for (const model::StepPoint& p : state.steps) {
        if (p.timeNs <= beginNs || p.timeNs > endNs || p.superseded) continue;
        const double within = std::min(p.stepMs, model::durationMs(beginNs, p.timeNs));
        time.addStep(within, std::min(p.stallMs, within), p.contributors, state.spec.replicas);
    }
    for (const model::StepSpan& span : state.superseded) {
        if (span.timeNs < beginNs || span.timeNs > endNs) continue;
        for (const model::StepPoint& p : state.steps)
            if (p.superseded && p.timeNs <= beginNs && p.lineage == span.lineage &&
                p.step > span.first && p.step <= span.last)
                time.takeBack(p.stepMs, p.stallMs, p.contributors, state.spec.replicas);
    }
    return std::clamp(time.usefulMs() / wallMs, 0.0, 1.0);
}

std::vector<const model::IncidentView*> incidentsOf(const model::RunState& state,
                                                    const model::CampaignView& campaign) {
    std::vector<const model::IncidentView*> out;
    for (const model::IncidentView& i : state.incidents)
        if (i.openedNs >= campaign.startedNs &&
            (campaign.endedNs == 0 || i.openedNs <= campaign.endedNs))
            out.push_back(&i);
    return out;
}

std::vector<FaultFate> fatesOf(const model::RunState& state, const model::CampaignView& campaign) {
    std::vector<FaultFate> out;
    for (const model::PlannedFault& p : campaign.started.plan)
        out.push_back({out.size() + 1, p.atMs, p.spec, nullptr, nullptr});
    for (const model::FaultView& fault : state.faults) {
        const uint64_t planned = model::plannedOf(fault.by, campaign.started.campaign);
        if (planned > 0 && planned <= out.size()) out[planned - 1].fault = &fault;
    }
    for (const model::SkippedView& skipped : campaign.skipped)
        if (skipped.planned > 0 && skipped.planned <= out.size())
            out[skipped.planned - 1].skipped = &skipped;
    return out;
}

Progress progressOf(const model::RunState& state, const model::CampaignView& campaign,
                    int64_t nowNs) {
    const int64_t until = campaign.endedNs != 0 ? campaign.endedNs : nowNs;
    Progress out;
    out.elapsedMs = model::durationMs(campaign.startedNs, until);
    out.stage = campaign.endedNs != 0 ? Stage::kOver
                : out.elapsedMs < static_cast<double>(campaign.started.durationMs)
                    ? Stage::kInjecting
                    : Stage::kSettling;
    out.planned = campaign.started.plan.size();
    out.skipped = campaign.skipped.size();
    for (const FaultFate& fate : fatesOf(state, campaign)) {
        if (fate.fault == nullptr) continue;
        ++out.injected;
        out.acting += fate.fault->endedNs == 0;
    }
    for (const model::IncidentView* i : incidentsOf(state, campaign))
        out.openIncidents += i->closedNs == 0;
    out.effectiveTime = effectiveTimeOf(state, campaign.startedNs, until);
    return out;
}

std::vector<CampaignVerdict> judge(const model::RunState& state,
                                   const model::CampaignView& campaign, int64_t nowNs, bool isLast,
                                   const std::optional<LedgerFinding>& ledger) {
    if (campaign.ended) return campaign.ended->verdicts;
    const Judge judge(state, campaign, nowNs, isLast);
    std::vector<CampaignVerdict> out{judge.faults(), judge.invariants(), judge.hashes(),
                                     judge.ledger(ledger)};
    const model::CampaignCriteria& criteria = campaign.started.criteria;
    if (criteria.minEffectiveTime > 0) out.push_back(judge.effectiveTime());
    if (criteria.maxStallMs > 0) out.push_back(judge.stall());
    if (criteria.maxRejoinMs > 0) out.push_back(judge.rejoin());
    return out;
}

}  // namespace bulkhead::campaign
