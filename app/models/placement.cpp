// SPDX-License-Identifier: GPL-3.0-only
#include "app/models/placement.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "app/models/expert_grid.h"
#include "app/models/units.h"
#include "app/models/words.h"
#include "backend/model/expert_rules.h"

namespace bulkhead::ui {
namespace {

constexpr double kHot = 1.15;  // busiest over mean that the planner allows by default

QString timesMean(double load) {
    return formatNumber(load, 2) + QStringLiteral("\u202f\u00d7");
}

QString shareOrDash(double share) {
    return share < 0 ? noFigure() : formatShare(share);
}

QString bytesOrDash(double bytes) {
    return bytes < 0 ? noFigure() : formatBytes(static_cast<uint64_t>(std::llround(bytes)));
}

/// "-23.4 %" of what it was; better or worse where less is better.
Cell changeCell(double now, double then) {
    if (now <= 0 || then < 0) return {noFigure(), Tone::kMuted, false};
    const double change = then / now - 1;
    if (std::abs(change) < 0.0005) return {tr("none"), Tone::kMuted, false};
    const QString sign = change < 0 ? QStringLiteral("\u2212") : QStringLiteral("+");
    return {sign + formatShare(std::abs(change)), change < 0 ? Tone::kGood : Tone::kWarning, false};
}

QString rangeWords(const planner::Range& range, const std::function<QString(double)>& words) {
    return tr("%1 to %2").arg(words(range.low), words(range.high));
}

Cell muted(const QString& text) {
    return {text, Tone::kMuted, false};
}

Cell loadCell(double load) {
    return {timesMean(load), load > kHot ? Tone::kWarning : Tone::kNeutral, false};
}

double bytesPerStep(const model::TrafficSum& sum) {
    return sum.steps == 0 ? -1 : static_cast<double>(sum.bytes) / static_cast<double>(sum.steps);
}

size_t cell(const Placement& p, int layer, int expert) {
    return static_cast<size_t>(layer) * p.job.counts.experts + static_cast<size_t>(expert);
}

uint64_t movesOf(const Placement& p, int layer) {
    uint64_t moves = 0;
    for (int e = 0; e < p.experts(); ++e) moves += p.moves(layer, e);
    return moves;
}

}  // namespace

double PlacementSide::load() const {
    double sum = 0;
    for (const planner::LayerFigures& layer : layers) sum += layer.maxOverMean();
    return layers.empty() ? 1 : sum / static_cast<double>(layers.size());
}

double PlacementSide::worstLoad() const {
    double worst = 1;
    for (const planner::LayerFigures& layer : layers) worst = std::max(worst, layer.maxOverMean());
    return worst;
}

bool Placement::moves(int layer, int expert) const {
    const size_t at = cell(*this, layer, expert);
    return shown().expertShard[at] != now.expertShard[at];
}

double Placement::tokens(int layer, int expert) const {
    double sum = 0;
    for (uint32_t d = 0; d < job.counts.domains; ++d)
        sum += job.counts.at(static_cast<uint32_t>(layer), d, static_cast<uint32_t>(expert));
    return sum;
}

double Placement::share(int layer, int expert) const {
    const size_t cells = size_t{job.counts.domains} * job.counts.experts;
    const auto at =
        job.counts.values.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(layer) * cells);
    const double all = std::accumulate(at, at + static_cast<std::ptrdiff_t>(cells), 0.0);
    return all > 0 ? tokens(layer, expert) * job.counts.experts / all : 1;
}

Placement placementOf(const model::RunState& state, planner::LiveJob job,
                      const std::optional<PlacementChange>& change) {
    Placement p;
    const std::vector<int32_t>& shard = change ? change->expertShard : job.expertShard;
    const std::vector<uint32_t>& share = change ? change->domainShare : job.domainShare;
    for (uint32_t l = 0; l < job.counts.layers; ++l)
        p.names << mixtureName(state.model, static_cast<int>(l));
    p.now = {job.expertShard, planner::layerFigures(job, job.expertShard, job.domainShare)};
    if (change) p.then = PlacementSide{shard, planner::layerFigures(job, shard, share)};
    p.preview = planner::planWith(job, shard, share, change ? change->optimism : 0).preview;
    p.staying = planner::planWith(job, job.expertShard, job.domainShare).preview.forecast;
    p.grouped = !job.domainShare.empty();
    p.groupedThen = !share.empty();
    p.job = std::move(job);
    return p;
}

QString previewWords(const Placement& p) {
    const planner::LivePreview& v = p.preview;
    if (!p.then) return {};
    QString words = v.expertsMoved == 0
                        ? tr("No expert moves.")
                        : tr("%1 of %2 experts move in each replica, %3.")
                              .arg(formatCount(v.expertsMoved), formatCount(v.experts),
                                   formatBytes(v.bytesMoved));
    if (p.groupedThen)
        words += u' ' + tr("Samples go to the shards of their domain.");
    else if (p.grouped)
        words += u' ' + tr("Samples go to any shard again.");
    if (planner::routingMoves(v))
        words +=
            u' ' + tr("Routing moves: remote copies %1 by the older of the counted steps, %2 by "
                      "the newer; expect the prediction to be off by as much.")
                       .arg(formatShare(v.remoteOlder), formatShare(v.remoteNewer));
    for (const std::string& note : planner::forecastNotes(v.forecast)) {
        QString sentence = toQt(note);
        sentence[0] = sentence[0].toUpper();
        words += u' ' + sentence + u'.';
    }
    return words;
}

QString progressWords(const planner::LiveFrontProgress& progress) {
    QString words = progress.done == 0
                        ? tr("Looking at how much steps differ.")
                        : tr("Plan %1 of %2.").arg(progress.done).arg(progress.of - 1);
    if (progress.best >= 0)
        words += u' ' + tr("Best so far: %1 of copies remote.").arg(formatShare(progress.best));
    const QString more = moreWords(progress.more);
    return more.isEmpty() ? words : words + u' ' + more;
}

QString moreWords(double more) {
    if (more < 0.0005) return {};
    return tr("As long a search again would bring about %1.").arg(formatShare(more));
}

std::vector<RowsModel::Row> gainRows(const Placement& p) {
    const planner::LivePreview& v = p.preview;
    const planner::LiveForecast& f = v.forecast;
    const bool then = p.then.has_value();
    struct Proposed {
        double value = -1;
        const planner::Range* range = nullptr;
        double counted = -1;  // in the counted steps alone
    };
    const auto row = [&](const QString& name, double now, const Proposed& proposed,
                         const std::function<QString(double)>& words) -> RowsModel::Row {
        const auto known = [&](double x) {
            return then && x >= 0 ? Cell{words(x), Tone::kNeutral, false} : muted(noFigure());
        };
        return {{name, Tone::kNeutral, false},
                {words(now), Tone::kNeutral, false},
                known(proposed.value),
                then && proposed.range != nullptr && f.hasRange
                    ? Cell{rangeWords(*proposed.range, words), Tone::kNeutral, false}
                    : muted(noFigure()),
                known(proposed.counted),
                then ? changeCell(now, proposed.value) : muted(noFigure())};
    };
    RowsModel::Row measured = row(tr("Remote copies, measured"), v.remoteMeasured, {}, shareOrDash);
    measured.back() = muted(p.job.traffic.steps > 0
                                ? tr("the last %1 steps").arg(formatCount(p.job.traffic.steps))
                                : noFigure());
    const double worst = p.now.worstLoad(), worstThen = p.shown().worstLoad();
    return {
        std::move(measured),
        row(tr("Remote copies, expected"), v.remoteNow,
            {f.remote.mean, &f.remote, f.remoteInSample}, shareOrDash),
        row(tr("All-to-all a step, all replicas"), v.bytesPerStep, {v.bytesPerStepPredicted},
            bytesOrDash),
        row(tr("Busiest shard over mean, mean of layers"), p.staying.load.mean,
            {f.load.mean, &f.load, f.loadInSample}, timesMean),
        row(tr("Busiest shard over mean, worst layer, as counted"), worst, {worstThen}, timesMean)};
}

std::vector<RowsModel::Row> layerRows(const Placement& p) {
    std::vector<RowsModel::Row> rows;
    for (int l = 0; l < p.layers(); ++l) {
        const auto i = static_cast<size_t>(l);
        const planner::LayerFigures& now = p.now.layers[i];
        const planner::LayerFigures& then = p.shown().layers[i];
        const uint64_t moves = movesOf(p, l);
        const bool both = p.then.has_value();
        rows.push_back(
            {{p.names.value(l), Tone::kNeutral, false},
             {formatShare(now.remote), Tone::kNeutral, false},
             both ? Cell{formatShare(then.remote), Tone::kNeutral, false} : muted(noFigure()),
             loadCell(now.maxOverMean()),
             both ? loadCell(then.maxOverMean()) : muted(noFigure()),
             both ? Cell{formatCount(moves), moves > 0 ? Tone::kBusy : Tone::kMuted, false}
                  : muted(noFigure())});
    }
    return rows;
}

std::vector<RowsModel::Row> expertRows(const Placement& p, int layer) {
    std::vector<RowsModel::Row> rows;
    for (int e = 0; e < p.experts(); ++e) {
        const size_t at = cell(p, layer, e);
        const bool moves = p.moves(layer, e);
        const double share = p.share(layer, e);
        rows.push_back({{QStringLiteral("E%1").arg(e), Tone::kNeutral, false},
                        {tr("Shard %1").arg(p.shown().expertShard[at]),
                         moves ? Tone::kBusy : Tone::kNeutral, moves},
                        moves
                            ? Cell{tr("Shard %1").arg(p.now.expertShard[at]), Tone::kNeutral, false}
                            : muted(noFigure()),
                        {timesMean(share), share >= 2 ? Tone::kWarning : Tone::kNeutral, false},
                        {formatCount(static_cast<uint64_t>(std::llround(p.tokens(layer, e)))),
                         Tone::kNeutral, false}});
    }
    return rows;
}

std::vector<RowsModel::Row> homeRows(const Placement& p) {
    std::vector<RowsModel::Row> rows;
    for (const planner::DomainHomeRow& home : p.preview.homes) {
        RowsModel::Row row{{toQt(home.domain), Tone::kNeutral, false}};
        for (const double share : home.share)
            row.push_back(share > 0 ? Cell{formatShare(share), Tone::kNeutral, false}
                                    : muted(noFigure()));
        rows.push_back(std::move(row));
    }
    return rows;
}

std::vector<RowsModel::Row> frontRows(const planner::LiveFront& front) {
    std::vector<RowsModel::Row> rows;
    for (size_t i = 0; i < front.points.size(); ++i) {
        const planner::LiveFrontPoint& p = front.points[i];
        const planner::LiveForecast& f = p.plan.preview.forecast;
        const bool best = i == front.recommended;
        rows.push_back({{toQt(p.name), Tone::kNeutral, false},
                        {formatShare(f.remote.mean), Tone::kNeutral, false},
                        f.hasRange ? Cell{rangeWords(f.remote, formatShare), Tone::kNeutral, false}
                                   : muted(noFigure()),
                        loadCell(p.load),
                        {formatCount(p.plan.preview.expertsMoved), Tone::kNeutral, false},
                        !p.keepsRules ? Cell{tr("does not keep the pins"), Tone::kWarning, false}
                        : best        ? Cell{tr("Recommended"), Tone::kGood, true}
                        : p.onFront   ? Cell{tr("a fair exchange"), Tone::kNeutral, false}
                                      : muted(tr("beaten by another"))});
    }
    return rows;
}

std::vector<RowsModel::Row> ruleRows(const Placement& p) {
    std::vector<RowsModel::Row> rows;
    for (const model::ExpertRule& rule : p.job.rules) {
        const std::vector<int32_t>& shard = p.shown().expertShard;
        const bool kept = model::brokenRule({&rule, 1}, shard, p.job.counts.experts) == nullptr;
        const auto layer = static_cast<int>(rule.layer), expert = static_cast<int>(rule.expert);
        rows.push_back(
            {{p.names.value(layer), Tone::kNeutral, false},
             {QStringLiteral("E%1").arg(expert), Tone::kNeutral, false},
             {(rule.pins ? tr("pinned to shard %1") : tr("forbidden on shard %1")).arg(rule.shard),
              Tone::kNeutral, false},
             {tr("shard %1").arg(p.shown().expertShard[cell(p, layer, expert)]), Tone::kNeutral,
              false},
             kept ? Cell{tr("kept"), Tone::kGood, true}
                  : Cell{tr("no; propose a plan"), Tone::kWarning, true}});
    }
    return rows;
}

QString waitingHeadline(const model::RunState& state, const model::ProposalView& proposal) {
    return tr("Routing has drifted: a plan was proposed after step %1, at %2")
        .arg(formatCount(proposal.plan.step), formatElapsed(proposal.timeNs - state.startedNs));
}

QString waitingWords(const model::RunState& state, const model::ProposalView& proposal) {
    const model::PlanProposed& plan = proposal.plan;
    QString why = toQt(plan.why);
    if (!why.isEmpty()) why[0] = why[0].toUpper();
    return tr("%1. It would move %2 of %3 experts, %4 in each replica; remote copies %5 \u2192 %6.")
        .arg(why, formatCount(plan.expertsMoved),
             formatCount(uint64_t{state.model.moeLayers} * state.model.experts),
             formatBytes(plan.bytesMoved), shareOrDash(plan.measuredRemote),
             shareOrDash(plan.predictedRemote));
}

std::vector<RowsModel::Row> layoutRows(const model::RunState& state) {
    std::vector<RowsModel::Row> rows;
    for (const model::LayoutView& v : state.layouts) {
        const double measured = v.after.remoteShare();
        const bool both = measured >= 0 && v.predictedRemote > 0;
        const double off = both ? measured / v.predictedRemote - 1 : 0;
        rows.push_back(
            {{formatCount(v.layout), Tone::kNeutral, false},
             {formatCount(v.step), Tone::kNeutral, false},
             {formatElapsed(v.timeNs - state.startedNs), Tone::kMuted, false},
             v.ok ? Cell{tr("Applied"), Tone::kGood, true} : Cell{tr("Failed"), Tone::kBad, true},
             {formatCount(v.expertsMoved), Tone::kNeutral, false},
             {formatBytes(v.bytesMoved), Tone::kNeutral, false},
             {v.grouped ? tr("by domain") : tr("anywhere"), Tone::kNeutral, false},
             {shareOrDash(v.before.remoteShare()), Tone::kNeutral, false},
             {shareOrDash(v.predictedRemote), Tone::kNeutral, false},
             {shareOrDash(measured), Tone::kNeutral, false},
             both ? Cell{(off < 0 ? QStringLiteral("\u2212") : QStringLiteral("+")) +
                             formatShare(std::abs(off)),
                         Tone::kNeutral, false}
                  : muted(noFigure()),
             {bytesOrDash(bytesPerStep(v.before)), Tone::kNeutral, false},
             {bytesOrDash(bytesPerStep(v.after)), Tone::kNeutral, false},
             {toQt(v.why), Tone::kNeutral, false}});
    }
    std::reverse(rows.begin(), rows.end());
    return rows;
}

}  // namespace bulkhead::ui
