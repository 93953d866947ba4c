// SPDX-License-Identifier: GPL-3.0-only
#include "app/models/fleet_figures.h"

#include <QStringList>
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

#include "app/models/units.h"
#include "app/models/words.h"

namespace bulkhead::ui {
namespace {

constexpr double kNoValue = std::numeric_limits<double>::quiet_NaN();
constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kCoolCelsius = 70;
constexpr double kHotCelsius = 90;
constexpr double kFullLoad = 100;
constexpr double kIdleLoad = 50;
constexpr double kRecentErrorMs = 60e3;
constexpr double kOldErrorMs = 24 * 3600e3;

bool isGone(const model::RankView& rank) {
    return rank.pid == 0 || rank.phase == model::RankPhase::kGone;
}

bool isSampled(const model::RankView& rank) {
    return !isGone(rank) && rank.sampledNs != 0;
}

template <class T>
double valueOf(const std::optional<T>& value) {
    return value ? static_cast<double>(*value) : kNoValue;
}

RankCondition conditionOf(const model::RunState& state, const model::ReplicaView* replica,
                          const model::RankView& rank, double unseenMs) {
    using enum model::ReplicaState;
    switch (replica == nullptr ? kAbsent : replica->state) {
        case kAbsent:
        case kDrained:
        case kHeld:
            return RankCondition::kOut;
        case kBackingOff:
            return RankCondition::kBackingOff;
        case kFailed:
            return RankCondition::kFailed;
        case kStarting:
            return RankCondition::kStarting;
        case kFetching:
            return isGone(rank) ? RankCondition::kGone : RankCondition::kFetching;
        case kReplaying:
            return isGone(rank) ? RankCondition::kGone : RankCondition::kReplaying;
        case kProven:
            return isGone(rank) ? RankCondition::kGone : RankCondition::kJoining;
        case kTraining:
            break;
    }
    if (isGone(rank)) return RankCondition::kGone;
    const model::Timeouts& timeouts = state.spec.timeouts;
    const bool late = rank.beatAgeMs.value_or(0) + unseenMs > timeouts.heartbeatMs / 2.0 ||
                      rank.progressAgeMs.value_or(0) + unseenMs > timeouts.progressFloorMs / 2.0;
    return rank.sampledNs != 0 && late ? RankCondition::kLate : RankCondition::kTraining;
}

/// The time of each rank's last error that somebody reported; its process's end is not among them.
std::map<RankId, int64_t> reportedErrors(const model::RunState& state) {
    std::map<RankId, int64_t> last;
    const auto note = [&](RankId rank, int64_t at) {
        int64_t& known = last[rank];
        known = std::max(known, at);
    };
    for (const model::GpuTroubleView& view : state.gpuTroubles)
        for (const RankId& rank : view.trouble.ranks) note(rank, view.timeNs);
    for (const model::EvidenceView& view : state.recentEvidence)
        if (view.evidence.shard >= 0)
            note({view.evidence.replica, view.evidence.shard}, view.timeNs);
    return last;
}

double errorAgeMs(const model::RunState& state, const model::RankView& rank,
                  const std::map<RankId, int64_t>& reported) {
    int64_t at = rank.lastExit && !rank.lastExit->expected ? rank.exitedNs : 0;
    if (!reported.empty())
        if (const auto it = reported.find(rank.rank); it != reported.end())
            at = std::max(at, it->second);
    return at == 0 ? kNever : model::durationMs(at, state.lastEventNs);
}

/// The worst figure of the rank's GPUs; NaN: none tells.
template <class Get>
double ofGpus(const model::RankView& rank, const model::NodeView* node, bool greatest, Get get) {
    double result = kNoValue;
    if (node == nullptr || !node->sample || isGone(rank)) return result;
    for (const model::GpuSample& gpu : node->sample->gpus) {
        if (std::find(rank.gpus.begin(), rank.gpus.end(), gpu.gpu) == rank.gpus.end()) continue;
        const std::optional<double> value = get(gpu);
        if (value) result = greatest ? std::fmax(result, *value) : std::fmin(result, *value);
    }
    return result;
}

double valueOf(const model::RunState& state, const model::RankView& rank,
               const model::NodeView* node, FleetFigure figure, bool gpuMemory, double unseenMs,
               const std::map<RankId, int64_t>& reported) {
    switch (figure) {
        case FleetFigure::kState:
            return kNoValue;
        case FleetFigure::kLastError:
            return errorAgeMs(state, rank, reported);
        case FleetFigure::kTemperature:
            return ofGpus(rank, node, true,
                          [](const model::GpuSample& gpu) { return gpu.temperatureCelsius; });
        case FleetFigure::kGpuLoad:
            if (isSampled(rank) && rank.gpuPercent) return *rank.gpuPercent;
            return ofGpus(rank, node, false,
                          [](const model::GpuSample& gpu) { return gpu.busyPercent; });
        default:
            break;
    }
    if (!isSampled(rank)) return kNoValue;
    switch (figure) {
        case FleetFigure::kThroughput:
            return valueOf(rank.tokensPerSecond);
        case FleetFigure::kProgressAge:
            return valueOf(rank.progressAgeMs) + unseenMs;
        case FleetFigure::kBeatAge:
            return valueOf(rank.beatAgeMs) + unseenMs;
        case FleetFigure::kMemory:
            return gpuMemory ? valueOf(rank.gpuBytes) : valueOf(rank.rssBytes);
        default:
            return kNoValue;
    }
}

double median(const std::vector<float>& values) {
    std::vector<float> known;
    known.reserve(values.size());
    std::copy_if(values.begin(), values.end(), std::back_inserter(known),
                 [](float v) { return std::isfinite(v); });
    if (known.empty()) return 0;
    const auto middle = known.begin() + static_cast<std::ptrdiff_t>(known.size() / 2);
    std::nth_element(known.begin(), middle, known.end());
    return *middle;
}

FleetScale scaleOf(const model::RunState& state, FleetFigure figure,
                   const std::vector<float>& values) {
    const model::Timeouts& timeouts = state.spec.timeouts;
    switch (figure) {
        case FleetFigure::kState:
            return {0, 1};
        case FleetFigure::kThroughput: {
            const double usual = median(values);
            return {usual, usual / 2};
        }
        case FleetFigure::kProgressAge:
            return {0, std::max<double>(timeouts.progressFloorMs,
                                        timeouts.progressMultiple * state.typicalStepMs)};
        case FleetFigure::kBeatAge:
            return {0, static_cast<double>(timeouts.heartbeatMs)};
        case FleetFigure::kMemory: {
            const double usual = median(values);
            return {usual, usual * 1.5};
        }
        case FleetFigure::kTemperature:
            return {kCoolCelsius, kHotCelsius};
        case FleetFigure::kGpuLoad:
            return {kFullLoad, kIdleLoad};
        case FleetFigure::kLastError:
            return {kOldErrorMs, kRecentErrorMs, true};
    }
    return {};
}

bool isLost(RankCondition condition) {
    return condition == RankCondition::kGone || condition == RankCondition::kFailed;
}

/// The first of two ranks is the worse one; false where they are alike.
bool isWorse(const FleetFigures& figures, uint32_t a, uint32_t b) {
    if (figures.badness[a] != figures.badness[b]) return figures.badness[a] > figures.badness[b];
    if (figures.figure == FleetFigure::kState) return false;
    if (std::isnan(figures.values[a]) != std::isnan(figures.values[b]))
        return std::isnan(figures.values[a]);
    const float x = figures.values[a];
    const float y = figures.values[b];
    return figures.scale.worst > figures.scale.best ? x > y : x < y;
}

}  // namespace

QString label(FleetFigure figure) {
    static constexpr std::array<const char*, kFleetFigures> kWords = {
        QT_TRANSLATE_NOOP("models", "State"),        QT_TRANSLATE_NOOP("models", "Throughput"),
        QT_TRANSLATE_NOOP("models", "Progress age"), QT_TRANSLATE_NOOP("models", "Heartbeat age"),
        QT_TRANSLATE_NOOP("models", "Memory"),       QT_TRANSLATE_NOOP("models", "GPU temperature"),
        QT_TRANSLATE_NOOP("models", "GPU load"),     QT_TRANSLATE_NOOP("models", "Last error")};
    return tr(kWords.at(static_cast<size_t>(figure)));
}

QString label(RankCondition condition) {
    switch (condition) {
        case RankCondition::kTraining:
            return label(model::ReplicaState::kTraining);
        case RankCondition::kJoining:
            return label(model::ReplicaState::kProven);
        case RankCondition::kReplaying:
            return label(model::ReplicaState::kReplaying);
        case RankCondition::kFetching:
            return label(model::ReplicaState::kFetching);
        case RankCondition::kStarting:
            return label(model::ReplicaState::kStarting);
        case RankCondition::kOut:
            return tr("Out");
        case RankCondition::kBackingOff:
            return label(model::ReplicaState::kBackingOff);
        case RankCondition::kLate:
            return tr("Late");
        case RankCondition::kGone:
            return label(model::RankPhase::kGone);
        case RankCondition::kFailed:
            return label(model::ReplicaState::kFailed);
    }
    return QStringLiteral("?");
}

QChar letter(RankCondition condition) {
    return QStringLiteral("TJRFSOBLGX").at(static_cast<int>(condition));
}

float badness(RankCondition condition) {
    static constexpr std::array<float, kRankConditions> kOf = {0,    0.1F, 0.2F, 0.25F, 0.3F,
                                                               0.4F, 0.7F, 0.8F, 0.9F,  1};
    return kOf.at(static_cast<size_t>(condition));
}

float FleetScale::badnessOf(double value) const {
    if (std::isinf(value)) return 0;
    double low = best;
    double high = worst;
    if (logarithmic) {
        value = std::log(std::max(value, 1.0));
        low = std::log(std::max(low, 1.0));
        high = std::log(std::max(high, 1.0));
    }
    if (high == low) return 0;
    return static_cast<float>(std::clamp((value - low) / (high - low), 0.0, 1.0));
}

FleetFigures fleetFigures(const model::RunState& state, const FleetShape& shape, FleetFigure figure,
                          double unseenMs) {
    FleetFigures out;
    out.figure = figure;
    const size_t count = shape.ranks.size();
    out.values.assign(count, std::numeric_limits<float>::quiet_NaN());
    out.badness.assign(count, FleetFigures::kNone);
    out.conditions.resize(count);
    if (figure == FleetFigure::kMemory)
        out.ofGpu = std::any_of(state.ranks.begin(), state.ranks.end(),
                                [](const model::RankView& r) { return r.gpuBytes.has_value(); });
    const bool ofNodes = figure == FleetFigure::kTemperature || figure == FleetFigure::kGpuLoad;
    const auto reported =
        figure == FleetFigure::kLastError ? reportedErrors(state) : std::map<RankId, int64_t>();
    for (const FleetShape::Replica& replica : shape.replicas) {
        const model::ReplicaView* view = model::findReplica(state, replica.replica);
        for (uint32_t g = replica.firstGroup; g < replica.firstGroup + replica.groups; ++g) {
            const FleetShape::Group& group = shape.groups[g];
            const model::NodeView* node = ofNodes ? model::findNode(state, group.node) : nullptr;
            for (uint32_t place = group.first; place < group.first + group.count; ++place) {
                const model::RankView& rank = state.ranks[shape.source[place]];
                out.conditions[place] = conditionOf(state, view, rank, unseenMs);
                out.values[place] = static_cast<float>(
                    valueOf(state, rank, node, figure, out.ofGpu, unseenMs, reported));
            }
        }
    }
    out.scale = scaleOf(state, figure, out.values);
    for (size_t place = 0; place < count; ++place) {
        if (figure == FleetFigure::kState)
            out.badness[place] = badness(out.conditions[place]);
        else if (!std::isnan(out.values[place]))
            out.badness[place] = out.scale.badnessOf(out.values[place]);
        else if (isLost(out.conditions[place]))
            out.badness[place] = 1;  // a rank that tells nothing because it is lost is not unknown
        out.known += out.badness[place] >= 0;
        ++out.counts[static_cast<size_t>(out.conditions[place])];
    }
    return out;
}

QString figureWords(FleetFigure figure, double value) {
    if (std::isnan(value)) return noFigure();
    if (std::isinf(value)) return tr("no error");
    switch (figure) {
        case FleetFigure::kState:
            return noFigure();
        case FleetFigure::kThroughput:
            return formatTokenRate(value);
        case FleetFigure::kProgressAge:
        case FleetFigure::kBeatAge:
            return formatMs(value);
        case FleetFigure::kMemory:
            return formatBytes(static_cast<uint64_t>(std::max(value, 0.0)));
        case FleetFigure::kTemperature:
            return formatNumber(value, 0) + QStringLiteral("\u202f\u00b0C");
        case FleetFigure::kGpuLoad:
            return formatShare(value / 100);
        case FleetFigure::kLastError:
            return formatAge(value / 1e3);
    }
    return noFigure();
}

QString figureWords(const FleetFigures& figures, uint32_t place) {
    const bool untold = std::isnan(figures.values[place]) && isLost(figures.conditions[place]);
    return figures.figure == FleetFigure::kState || untold
               ? label(figures.conditions[place])
               : figureWords(figures.figure, figures.values[place]);
}

std::vector<uint32_t> worstRanks(const FleetFigures& figures, size_t most) {
    // States and errors that are as they should be are no outliers; of other figures there is
    // always a worst one.
    const bool onlyBad = figures.figure == FleetFigure::kState;
    const bool onlyFinite = figures.figure == FleetFigure::kLastError;
    std::vector<uint32_t> places;
    for (uint32_t place = 0; place < figures.badness.size(); ++place) {
        if (figures.badness[place] < 0 || (onlyBad && figures.badness[place] == 0) ||
            (onlyFinite && !std::isfinite(figures.values[place])))
            continue;
        places.push_back(place);
    }
    const auto end = places.begin() + static_cast<std::ptrdiff_t>(std::min(most, places.size()));
    std::partial_sort(places.begin(), end, places.end(), [&](uint32_t a, uint32_t b) {
        return isWorse(figures, a, b) || (!isWorse(figures, b, a) && a < b);
    });
    places.erase(end, places.end());
    return places;
}

uint32_t worstOf(const FleetFigures& figures, uint32_t first, uint32_t count) {
    uint32_t worst = first;
    for (uint32_t place = first + 1; place < first + count; ++place)
        if (isWorse(figures, place, worst)) worst = place;
    return worst;
}

QString rankWords(const model::RunState& state, RankId id, double unseenMs) {
    const model::RankView* rank = model::findRank(state, id);
    if (rank == nullptr) return {};
    const model::ReplicaView* replica = model::findReplica(state, id.replica);
    const std::string& nodeName = nodeOf(*rank, replica);
    const model::NodeView* node = model::findNode(state, nodeName);
    const auto reported = reportedErrors(state);
    const bool ofGpu = rank->gpuBytes.has_value();
    QStringList lines;
    lines << tr("%1 on %2: %3")
                 .arg(rankName(id), nodeName.empty() ? tr("no node") : toQt(nodeName),
                      label(conditionOf(state, replica, *rank, unseenMs)));
    for (int i = 1; i < kFleetFigures; ++i) {
        const auto figure = static_cast<FleetFigure>(i);
        const double value = valueOf(state, *rank, node, figure, ofGpu, unseenMs, reported);
        QString words = figureWords(figure, value);
        if (figure == FleetFigure::kLastError && std::isfinite(value))
            words = tr("%1 ago").arg(words);
        lines << tr("%1: %2").arg(label(figure), words);
    }
    return lines.join(u'\n');
}

}  // namespace bulkhead::ui
