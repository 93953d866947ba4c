// SPDX-License-Identifier: GPL-3.0-only
#include "app/models/campaign_rows.h"

#include <QStringList>
#include <algorithm>

#include "app/models/units.h"
#include "app/models/words.h"
#include "backend/campaign/judge.h"
#include "backend/model/command_text.h"

namespace bulkhead::ui {
namespace {

Cell outcomeCell(const model::CampaignView& c) {
    if (!c.ended) return {tr("In progress"), Tone::kBusy, true};
    return {label(c.ended->outcome), tone(c.ended->outcome), true};
}

Cell fateCell(const model::CampaignView& campaign, const campaign::FaultFate& fate) {
    if (fate.skipped != nullptr)
        return {tr("skipped: %1").arg(toQt(fate.skipped->why)), Tone::kMuted, false};
    if (fate.fault == nullptr)
        return {campaign.ended ? tr("not injected") : tr("to come"), Tone::kMuted, false};
    if (fate.fault->endedNs == 0) return {tr("active"), Tone::kWarning, true};
    return {toQt(fate.fault->outcome), Tone::kNeutral, false};
}

}  // namespace

std::vector<RowsModel::Row> campaignRows(const model::RunState& state, int64_t nowNs) {
    std::vector<RowsModel::Row> rows;
    for (const model::CampaignView& c : state.campaigns) {
        const auto p = campaign::progressOf(state, c, nowNs);
        rows.push_back({{QStringLiteral("#%1").arg(c.started.campaign), Tone::kMuted, false},
                        {toQt(c.started.name), Tone::kNeutral, false},
                        {formatElapsed(c.startedNs - state.startedNs), Tone::kMuted, false},
                        {formatMs(p.elapsedMs), Tone::kNeutral, false},
                        {tr("%1 of %2").arg(p.injected).arg(p.planned), Tone::kNeutral, false},
                        {formatShare(p.effectiveTime), Tone::kNeutral, false},
                        outcomeCell(c)});
    }
    std::reverse(rows.begin(), rows.end());
    return rows;
}

std::vector<RowsModel::Row> verdictRows(const model::RunState& state,
                                        const model::CampaignView& campaign, int64_t nowNs) {
    std::vector<RowsModel::Row> rows;
    for (const model::CampaignVerdict& v : campaign::judge(state, campaign, nowNs))
        rows.push_back({{label(v.check), Tone::kNeutral, false},
                        {label(v.state), tone(v.state), true},
                        {toQt(v.words), Tone::kNeutral, false}});
    return rows;
}

std::vector<RowsModel::Row> fateRows(const model::RunState& state,
                                     const model::CampaignView& campaign) {
    std::vector<RowsModel::Row> rows;
    for (const campaign::FaultFate& fate : campaign::fatesOf(state, campaign)) {
        QStringList incidents;
        if (fate.fault != nullptr)
            for (const uint64_t id : fate.fault->incidents)
                incidents << QStringLiteral("#%1").arg(id);
        const Tone tone = fate.fault == nullptr ? Tone::kMuted : Tone::kNeutral;
        rows.push_back(
            {{QString::number(fate.planned), Tone::kMuted, false},
             {formatElapsed(static_cast<int64_t>(fate.atMs) * 1'000'000), Tone::kMuted, false},
             {toQt(model::describe(fate.spec)), tone, false},
             {incidents.isEmpty() ? noFigure() : incidents.join(QStringLiteral(", ")), tone, false},
             fateCell(campaign, fate)});
    }
    return rows;
}

QString stageWords(const model::RunState& state, const model::CampaignView& campaign,
                   int64_t nowNs) {
    const auto p = campaign::progressOf(state, campaign, nowNs);
    const QString duration = formatMs(static_cast<double>(campaign.started.durationMs));
    switch (p.stage) {
        case campaign::Stage::kInjecting:
            return tr("Injecting, %1 of %2").arg(formatMs(p.elapsedMs), duration);
        case campaign::Stage::kSettling:
            return tr("Settling: waiting until all are back, at most %1")
                .arg(formatMs(static_cast<double>(campaign.started.settleMs)));
        case campaign::Stage::kOver:
            break;
    }
    const QString words =
        tr("%1 after %2").arg(label(campaign.ended->outcome), formatMs(p.elapsedMs));
    return campaign.ended->why.empty() ? words
                                       : words + QStringLiteral(": ") + toQt(campaign.ended->why);
}

Tone stageTone(const model::CampaignView& campaign) {
    return campaign.ended ? tone(campaign.ended->outcome) : Tone::kBusy;
}

int stagePermille(const model::CampaignView& campaign, int64_t nowNs) {
    if (campaign.ended || campaign.started.durationMs == 0) return 1000;
    const double part = model::durationMs(campaign.startedNs, nowNs) /
                        static_cast<double>(campaign.started.durationMs);
    return static_cast<int>(std::clamp(part, 0.0, 1.0) * 1000);
}

}  // namespace bulkhead::ui
