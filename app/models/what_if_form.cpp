// SPDX-License-Identifier: GPL-3.0-only
#include "app/models/what_if_form.h"

#include <QCoreApplication>
#include <algorithm>
#include <cmath>

#include "app/models/labels.h"
#include "app/models/units.h"

namespace bulkhead::ui {
namespace {

enum class Scale {
    kEven,      ///< least, least + step, ...
    kDoubling,  ///< 8, 12, 16, 24, 32, ...
    kLadder,    ///< 1, 1.2, 1.5, 2, ... of each power of ten
    kLadderOr0,
};

struct Range {
    const char* key;
    bool inFront;
    Scale scale;
    double least;
    double greatest;
    double step = 0;
};

constexpr Range kRanges[] = {
    {"gpusPerReplica", true, Scale::kDoubling, 8, 65536},
    {"replicas", true, Scale::kEven, 1, 64, 1},
    {"failuresPer1000NodeDays", true, Scale::kLadderOr0, 0.1, 100},
    {"restartS", true, Scale::kLadderOr0, 1, 10000},
    {"fetchGBps", true, Scale::kLadder, 0.01, 100},
    {"spares", true, Scale::kEven, 0, 8, 1},
    {"stateGBPerGpu", false, Scale::kLadderOr0, 0.1, 100},
    {"detectS", false, Scale::kLadderOr0, 0.01, 1000},
    {"silentDetectS", false, Scale::kLadderOr0, 0.01, 1000},
    {"silentShare", false, Scale::kEven, 0, 1, 0.01},
    {"reformS", false, Scale::kLadderOr0, 0.01, 1000},
    {"redoS", false, Scale::kLadderOr0, 0.01, 1000},
    {"lostStepShare", false, Scale::kEven, 0, 1, 0.05},
    {"rejoinWaitS", false, Scale::kLadderOr0, 0.01, 1000},
    {"initS", false, Scale::kLadderOr0, 0.1, 1000},
    {"replayS", false, Scale::kLadderOr0, 0.1, 1000},
    {"restartAllS", false, Scale::kLadderOr0, 1, 10000},
    {"checkpointEveryS", false, Scale::kLadderOr0, 60, 100000},
    {"checkpointStallS", false, Scale::kLadderOr0, 0.01, 1000},
    {"sharedShare", false, Scale::kEven, 0, 1, 0.01},
    {"replicasPerShare", false, Scale::kEven, 1, 12, 1},
    {"stepS", false, Scale::kLadder, 0.1, 1000},
    {"samplesPerStep", false, Scale::kDoubling, 16, 131072},
    {"gpusPerNode", false, Scale::kDoubling, 1, 64},
};

std::vector<double> valuesOf(const Range& r) {
    std::vector<double> values;
    const auto add = [&](double value) {
        if (value >= r.least * (1 - 1e-9) && value <= r.greatest * (1 + 1e-9))
            values.push_back(value);
    };
    switch (r.scale) {
        case Scale::kEven:
            for (int i = 0; i <= std::lround((r.greatest - r.least) / r.step); ++i)
                add(r.least + i * r.step);
            break;
        case Scale::kDoubling:
            for (double value = r.least; value <= r.greatest; value *= 2) {
                add(value);
                if (value >= 2) add(value * 1.5);
            }
            break;
        case Scale::kLadderOr0:
            values.push_back(0);
            [[fallthrough]];
        case Scale::kLadder:
            for (int power = -3; power <= 6; ++power)
                for (const int tenths : {10, 12, 15, 20, 25, 30, 40, 50, 60, 80})
                    // Divided by whole numbers, so that 0.1 is the 0.1 that a person types.
                    add(power < 1 ? tenths / std::pow(10.0, 1 - power)
                                  : tenths * std::pow(10.0, power - 1));
            break;
    }
    return values;
}

QString translated(const char* text) {
    return QCoreApplication::translate("whatif", text);
}

bool isShare(const model::WhatIfParameter& p) {
    return p.unit.empty() && p.max == 1 && !p.whole;
}

}  // namespace

const std::vector<Knob>& knobs() {
    static const std::vector<Knob> list = [] {
        std::vector<Knob> made;
        for (const Range& range : kRanges)
            for (const model::WhatIfParameter& p : model::whatIfParameters())
                if (p.key == range.key) made.push_back({&p, range.inFront, valuesOf(range)});
        return made;
    }();
    return list;
}

int positionOf(const Knob& knob, double value) {
    const auto above = std::ranges::lower_bound(knob.values, value);
    if (above == knob.values.begin()) return 0;
    const auto below = std::prev(above);
    const bool up = above != knob.values.end() && *above - value <= value - *below;
    return static_cast<int>((up ? above : below) - knob.values.begin());
}

double valueOf(const Knob& knob, const model::WhatIf& scenario) {
    return knob.parameter->field == &model::WhatIf::failuresPer1000NodeDays
               ? model::failureRate(scenario)
               : scenario.*knob.parameter->field;
}

QString words(const model::WhatIfParameter& p, double value) {
    if (p.unit == "s") return formatMs(value * 1000);
    if (p.whole) return formatCount(static_cast<uint64_t>(std::llround(value)));
    if (isShare(p)) return formatShare(value);
    const QString number = QString::number(value, 'g', 3);
    return p.unit.empty() ? number : number + QChar(0x202F) + toQt(p.unit);
}

QString sourceWords(const model::WhatIfPreset& preset, const Knob& knob,
                    const model::WhatIf& scenario) {
    const model::WhatIfParameter& p = *knob.parameter;
    const double kept = valueOf(knob, preset.scenario);
    const double now = valueOf(knob, scenario);
    QString source = toQt(model::whatIfSource(preset.name, p.key));
    if (p.field == &model::WhatIf::failuresPer1000NodeDays && preset.scenario.intervalS > 0)
        source = toQt(model::whatIfSource(preset.name, "intervalS"));
    if (source.isEmpty())
        source = kept == 0 ? translated("nothing is assumed") : translated("no source needed");
    if (std::abs(now - kept) <= 1e-9 * std::abs(kept)) return source;
    return translated("Set here. %1 has %2: %3").arg(toQt(preset.title), words(p, kept), source);
}

QString idleWords(const Knob& knob, const model::WhatIf& scenario) {
    using model::WhatIf;
    constexpr std::pair<double WhatIf::*, double WhatIf::*> kNeeds[] = {
        {&WhatIf::fetchGBps, &WhatIf::stateGBPerGpu},
        {&WhatIf::silentDetectS, &WhatIf::silentShare},
        {&WhatIf::replicasPerShare, &WhatIf::sharedShare},
        {&WhatIf::checkpointStallS, &WhatIf::checkpointEveryS}};
    for (const auto& [field, needed] : kNeeds) {
        if (knob.parameter->field != field || scenario.*needed > 0) continue;
        for (const model::WhatIfParameter& p : model::whatIfParameters())
            if (p.field == needed)
                return translated("Changes nothing while \u201c%1\u201d is 0.").arg(toQt(p.label));
    }
    return {};
}

const std::vector<const model::WhatIfPreset*>& startingPoints() {
    static const std::vector<const model::WhatIfPreset*> list = [] {
        std::vector<const model::WhatIfPreset*> made;
        for (const model::WhatIfPreset& p : model::whatIfPresets())
            if (!p.title.starts_with(' ')) made.push_back(&p);
        return made;
    }();
    return list;
}

QString label(model::TimeLoss loss) {
    switch (loss) {
        case model::TimeLoss::kDetect:
            return translated("Detection");
        case model::TimeLoss::kReform:
            return translated("New quorum");
        case model::TimeLoss::kRedo:
            return translated("Exchange again");
        case model::TimeLoss::kRejoin:
            return translated("Rejoin");
        case model::TimeLoss::kOutage:
            return translated("Replicas out");
        case model::TimeLoss::kRestart:
            return translated("Whole restart");
        case model::TimeLoss::kRedoneWork:
            return translated("Trained twice");
        case model::TimeLoss::kCheckpoint:
            return translated("Checkpoints");
    }
    return {};
}

QString label(model::WhatIfRecovery recovery) {
    return recovery == model::WhatIfRecovery::kFaultTolerant ? translated("The others train on")
                                                             : translated("Everybody restarts");
}

QString label(model::FailureSpacing spacing) {
    return spacing == model::FailureSpacing::kEven ? translated("Evenly spaced")
                                                   : translated("Independent (exponential)");
}

}  // namespace bulkhead::ui
