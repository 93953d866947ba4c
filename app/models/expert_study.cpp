// SPDX-License-Identifier: GPL-3.0-only
#include "app/models/expert_study.h"

#include <cmath>
#include <numeric>
#include <span>

#include "app/models/expert_grid.h"
#include "app/models/labels.h"
#include "app/models/units.h"
#include "app/models/words.h"
#include "backend/planner/characterise/measures.h"
#include "backend/planner/data/routing_view.h"

namespace bulkhead::ui {
namespace {

constexpr double kFar = 0.5;

Cell plain(const QString& text) {
    return {text, Tone::kNeutral, false};
}

QString times(double x) {
    return formatNumber(x, 2) + QStringLiteral("\u202f\u00d7");
}

/// Each expert's share of the row's tokens, over the mean expert's.
double overMean(std::span<const uint64_t> row, size_t expert) {
    const double sum = std::accumulate(row.begin(), row.end(), 0.0);
    return sum > 0 ? static_cast<double>(row[expert]) * static_cast<double>(row.size()) / sum : 0;
}

/// Adds loads by phase, from the requests that have both prompt and generated tokens.
void addPhases(const planner::Routing& routing, ExpertStudy& study) {
    std::vector<uint32_t> both;
    for (uint32_t r = 0; r < routing.requests().size(); ++r) {
        const planner::Request& request = routing.requests()[r];
        const uint64_t prompt = request.prefillTokens.value_or(0);
        if (prompt > 0 && prompt < request.tokens) both.push_back(r);
    }
    if (both.empty()) return;
    const planner::RoutingView view = planner::requestsOf(routing, both);
    const planner::Counts prefill = planner::countsOf(planner::prefillOf(view));
    const planner::Counts decode = planner::countsOf(planner::decodeOf(view));
    for (uint32_t l = 0; l < prefill.layers(); ++l) {
        std::vector<QPointF>& points = study.byPhase.emplace_back();
        for (size_t e = 0; e < prefill.experts(); ++e)
            points.emplace_back(overMean(prefill.row(l), e), overMean(decode.row(l), e));
    }
}

/// Adds the loads in total, and by domain if the recording tells them.
void addLoads(const planner::Recording& recording, ExpertStudy& study) {
    const auto add = [&](const planner::Counts& counts) {
        const auto values = counts.values();
        study.loads.push_back(gridOf(study.layers, {values.begin(), values.end()}));
    };
    add(planner::totalCounts(recording));
    if (!recording.routing || study.domains.size() < 2 ||
        recording.routing->domains().size() != static_cast<size_t>(study.domains.size()))
        return;
    for (const planner::Counts& counts :
         planner::countsByDomain(planner::wholeOf(*recording.routing)))
        add(counts);
}

}  // namespace

ExpertStudy studyOf(const model::RunState& state) {
    const model::ExpertView& view = state.experts;
    ExpertStudy study;
    study.source = tr("The running job's counts up to step %1").arg(formatCount(view.step));
    for (uint32_t d = 0; d < view.domains; ++d)
        study.domains << (d < state.spec.domains.size() ? toQt(state.spec.domains[d].name)
                                                        : tr("Domain %1").arg(d));
    const size_t cells = size_t{view.moeLayers} * view.domains * view.experts;
    if (view.domains < 2 || cells == 0 || view.total.size() != cells) return study;
    const auto row = [&](uint32_t layer, uint32_t domain) {
        return std::span(view.total)
            .subspan((size_t{layer} * view.domains + domain) * view.experts, view.experts);
    };
    study.distance.assign(view.domains, std::vector<double>(view.domains));
    for (uint32_t a = 0; a < view.domains; ++a)
        for (uint32_t b = 0; b < view.domains; ++b) {
            if (a == b) {
                study.distance[a][b] = std::nan("");
                continue;
            }
            for (uint32_t l = 0; l < view.moeLayers; ++l)
                study.distance[a][b] +=
                    planner::jensenShannon(row(l, a), row(l, b)) / view.moeLayers;
        }
    return study;
}

ExpertStudy studyOf(const planner::Recording& recording) {
    const planner::Characterisation c = planner::characterise(recording);
    ExpertStudy study;
    study.source = toQt(c.source);
    for (const planner::DomainLoad& domain : c.domains) study.domains << toQt(domain.name);
    if (c.domainMatrix) {
        study.distance = c.domainMatrix->distance;
        study.diagonalIsHalves = c.domainMatrix->diagonalIsHalves;
    }
    study.together = c.coactivation;
    study.phases = c.phases;
    for (uint32_t l = 0; l < c.shape.layers; ++l)
        study.layers
            << tr("Layer %1").arg(l < c.shape.layerNumbers.size() ? c.shape.layerNumbers[l] : l);
    addLoads(recording, study);
    if (recording.routing) addPhases(*recording.routing, study);
    return study;
}

std::vector<RowsModel::Row> distanceRows(const ExpertStudy& study) {
    std::vector<RowsModel::Row> rows;
    for (size_t a = 0; a < study.distance.size(); ++a) {
        RowsModel::Row row{plain(study.domains.value(static_cast<int>(a)))};
        for (size_t b = 0; b < study.distance[a].size(); ++b) {
            const double d = study.distance[a][b];
            if (std::isnan(d))
                row.push_back({noFigure(), Tone::kMuted, false});
            else
                row.push_back({formatNumber(d, 3),
                               a == b      ? Tone::kMuted
                               : d >= kFar ? Tone::kNotice
                                           : Tone::kNeutral,
                               a != b && d >= kFar});
        }
        rows.push_back(std::move(row));
    }
    return rows;
}

std::vector<RowsModel::Row> togetherRows(const ExpertStudy& study) {
    std::vector<RowsModel::Row> rows;
    if (!study.together) return rows;
    for (const planner::ExpertPair& p : study.together->strongest)
        rows.push_back({plain(tr("Layer %1").arg(p.layer)),
                        plain(QStringLiteral("E%1").arg(p.first)),
                        plain(QStringLiteral("E%1").arg(p.second)), plain(formatCount(p.tokens)),
                        plain(times(p.lift))});
    return rows;
}

std::vector<RowsModel::Row> phaseRows(const ExpertStudy& study, int layer) {
    std::vector<RowsModel::Row> rows;
    if (layer < 0 || layer >= static_cast<int>(study.byPhase.size())) return rows;
    const std::vector<QPointF>& points = study.byPhase[static_cast<size_t>(layer)];
    for (size_t e = 0; e < points.size(); ++e)
        rows.push_back({plain(QStringLiteral("E%1").arg(e)), plain(times(points[e].x())),
                        plain(times(points[e].y()))});
    return rows;
}

QString distanceWords(const ExpertStudy& study) {
    if (study.distance.empty())
        return tr("%1: there are not two domains to compare.").arg(study.source);
    QString words = tr("%1. Jensen-Shannon distance of the domains' expert popularity, mean of the "
                       "layers: 0 alike, 1 nothing in common.")
                        .arg(study.source);
    if (study.diagonalIsHalves)
        words += u' ' + tr("The diagonal compares two halves of one domain.");
    return words;
}

QString togetherWords(const ExpertStudy& study) {
    if (!study.together)
        return tr("%1: which experts a token uses together is not told there. Open a recording of "
                  "routing, token by token, of a model that uses two experts or more a token.")
            .arg(study.source);
    return tr("%1. One expert of a token tells %2 of the uncertainty about another of the same "
              "layer; %3 of pairs occur at least twice as often as by chance. The strongest pairs, "
              "from %4 tokens:")
        .arg(study.source, formatShare(study.together->information),
             formatShare(study.together->lifted), formatCount(study.together->sampledTokens));
}

QString phaseWords(const ExpertStudy& study) {
    if (study.phases && !study.byPhase.empty())
        return tr("%1. Correlation of expert popularity between %2: %3 of all requests together, "
                  "%4 within a request, %5 to another request.")
            .arg(study.source, toQt(study.phases->between), formatNumber(study.phases->pooled, 2),
                 formatNumber(study.phases->perRequest, 2),
                 formatNumber(study.phases->otherRequest, 2));
    if (study.phases)
        return tr("%1 does not say where prompts end. In its stead, correlation between %2: %3.")
            .arg(study.source, toQt(study.phases->between), formatNumber(study.phases->pooled, 2));
    return tr("%1: prefill and decode are not told apart there; training has no such phases. Open "
              "a recording of a server's routing.")
        .arg(study.source);
}

}  // namespace bulkhead::ui
