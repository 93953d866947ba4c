// SPDX-License-Identifier: GPL-3.0-only
#include "app/models/what_if_study.h"

#include <algorithm>
#include <cmath>

#include "app/models/labels.h"
#include "backend/model/run_figures.h"

namespace bulkhead::ui {
namespace {

constexpr double kDays = 54;
constexpr uint64_t kSeed = 1;
constexpr double kDayS = 86400;
/// Failures and checkpoints, times replicas: what a simulation costs, a tenth of a microsecond
/// each.
constexpr double kMostWork = 200'000;
constexpr double kCurveWork = 20'000;
constexpr double kMostCurveDays = 540;
constexpr int kCurvePoints = 20;
constexpr double kFewestGpus = 4096;
constexpr double kMostGpus = 524'288;

double daysFor(const model::WhatIf& s, double work, double most) {
    const double perDay = kDayS / model::failureIntervalS(s) +
                          (s.checkpointEveryS > 0 ? kDayS / s.checkpointEveryS : 0);
    return std::min(most, work / std::max((s.replicas + s.spares) * perDay, 1e-9));
}

double atSize(model::WhatIf s, double gpus) {
    s.failuresPer1000NodeDays = model::failureRate(s);
    s.intervalS = 0;
    s.gpusPerReplica = gpus / s.replicas;
    return 100 * model::simulate(s, daysFor(s, kCurveWork, kMostCurveDays), kSeed).effective;
}

Points curveOf(model::WhatIf s, model::WhatIfRecovery recovery, const model::WhatIfResult& known) {
    const double here = gpusOf(s);
    const double least = std::min(kFewestGpus, here / 2);
    const double greatest = std::max(kMostGpus, here * 2);
    const bool own = s.recovery == recovery;
    s.recovery = recovery;
    Points curve;
    for (int i = 0; i < kCurvePoints; ++i) {
        const double gpus = least * std::pow(greatest / least, i / (kCurvePoints - 1.0));
        curve.push_back({gpus, atSize(s, gpus)});
    }
    const QPointF point(here, own ? 100 * known.effective : atSize(s, here));
    curve.insert(std::ranges::upper_bound(curve, here, {}, &QPointF::x), point);
    return curve;
}

}  // namespace

double gpusOf(const model::WhatIf& s) {
    return s.replicas * s.gpusPerReplica;
}

WhatIfStudy studyOf(const model::WhatIf& scenario) {
    WhatIfStudy study;
    study.scenario = scenario;
    study.days = daysFor(scenario, kMostWork, kDays);
    study.result = model::simulate(scenario, study.days, kSeed);
    study.faultTolerant = curveOf(scenario, model::WhatIfRecovery::kFaultTolerant, study.result);
    study.restartAll = curveOf(scenario, model::WhatIfRecovery::kRestartAll, study.result);
    return study;
}

std::vector<PublishedPoint> publishedPoints() {
    std::vector<PublishedPoint> points;
    for (const model::WhatIfPreset& p : model::whatIfPresets())
        if (p.name == "published_sync" || p.name == "published_ft")
            points.push_back({{gpusOf(p.scenario), 100 * p.published},
                              toQt(p.title).section(u',', 0, 0),
                              QStringLiteral("arXiv 2602.00277")});
    return points;
}

WhatIfFigures figuresOf(const WhatIfStudy& study) {
    WhatIfFigures f;
    const model::WhatIfResult& r = study.result;
    f.effective = r.effective;
    f.redone = static_cast<uint64_t>(std::llround(std::max(r.samplesRedone, 0.0)));
    if (study.scenario.recovery == model::WhatIfRecovery::kRestartAll) {
        f.stallMs = study.scenario.restartAllS * 1000;
        return f;
    }
    if (r.failures > 0) f.stallMs = r.stallS * 1000;
    f.returnMs = model::outageS(study.scenario) * 1000;
    return f;
}

WhatIfFigures liveFigures(const model::RunState& state) {
    WhatIfFigures f;
    if (!state.lastCommit) return f;
    const model::RunFigures run = model::figuresOf(state);
    const uint64_t closed = state.counters.incidents - state.counters.incidentsOpen;
    f.effective = run.effectiveTime;
    if (closed > 0) f.stallMs = run.survivorStallMs / static_cast<double>(closed);
    f.returnMs = run.meanRejoinMs;
    f.redone = run.samplesRedone;
    return f;
}

}  // namespace bulkhead::ui
