// SPDX-License-Identifier: GPL-3.0-only
#include "app/models/gpu_rows.h"

#include <QStringList>
#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "app/models/units.h"
#include "app/models/words.h"
#include "backend/model/gpu_text.h"

namespace bulkhead::ui {
namespace {

template <class T>
QString figure(const std::optional<T>& value, const char* unit) {
    return formatOptional(value, [unit](T v) {
        return formatNumber(static_cast<double>(v), 0) + QString::fromUtf8(unit);
    });
}

bool computesOn(const model::RankView& rank, const model::NodeView& node, uint32_t gpu) {
    return rank.pid != 0 && std::find(rank.gpus.begin(), rank.gpus.end(), gpu) != rank.gpus.end() &&
           rank.node == node.node;
}

/// The last trouble of that GPU; null: none.
const model::GpuTroubleView* troubleOf(const model::RunState& state, const model::NodeView& node,
                                       const model::GpuSample& gpu) {
    for (size_t i = state.gpuTroubles.size(); i-- > 0;) {
        const model::GpuTroubled& trouble = state.gpuTroubles[i].trouble;
        if (trouble.node == node.node && trouble.gpu == gpu.gpu) return &state.gpuTroubles[i];
    }
    return nullptr;
}

QString troubleWords(const model::GpuTroubleView& view) {
    return tr("%1 (at %2)")
        .arg(toQt(model::troubleText(view.trouble)), formatClock(view.timeNs).left(8));
}

/// Ranks on a node are looked for among `candidates`. Its parts keep together where the line is
/// wrapped.
QString gpuLine(const model::RunState& state, const model::NodeView& node,
                const model::GpuSample& gpu,
                const std::vector<const model::RankView*>& candidates) {
    std::vector<RankId> ranks;
    for (const model::RankView* rank : candidates)
        if (computesOn(*rank, node, gpu.gpu)) ranks.push_back(rank->rank);
    const auto percent = [](double value) { return formatShare(value / 100); };
    QStringList parts = {tr("%1 busy").arg(formatOptional(gpu.busyPercent, percent)),
                         tr("%1 of %2")
                             .arg(formatOptional(gpu.memoryUsedBytes, formatBytes),
                                  formatOptional(gpu.memoryTotalBytes, formatBytes)),
                         figure(gpu.temperatureCelsius, " \u00b0C"),
                         figure(gpu.powerWatts, " W"),
                         tr("clock %1").arg(figure(gpu.clockMhz, " MHz")),
                         tr("memory clock %1").arg(figure(gpu.memoryClockMhz, " MHz")),
                         tr("ECC errors %1").arg(figure(gpu.eccUncorrected, "")),
                         tr("Xid %1").arg(figure(gpu.lastXid, ""))};
    for (QString& part : parts) part.replace(u' ', QChar::Nbsp);
    if (const model::GpuTroubleView* trouble = troubleOf(state, node, gpu))
        parts.push_front(QStringLiteral("<b>%1</b>").arg(troubleWords(*trouble).toHtmlEscaped()));
    const QString name = gpu.name.empty() ? QString() : u' ' + toQt(gpu.name).toHtmlEscaped();
    return tr("<b>GPU %1</b>%2, %3: %4")
        .arg(gpu.gpu)
        .arg(name, ranks.empty() ? tr("no rank") : ranksInWords(ranks),
             parts.join(QStringLiteral(", ")));
}

std::vector<const model::RankView*> ranksOn(const model::RunState& state,
                                            const std::set<std::string_view>& nodes) {
    std::vector<const model::RankView*> there;
    for (const model::RankView& rank : state.ranks)
        if (nodes.contains(rank.node)) there.push_back(&rank);
    return there;
}

}  // namespace

QString ranksInWords(const std::vector<RankId>& ranks) {
    constexpr size_t kMost = 32;
    QStringList names;
    for (size_t i = 0; i < std::min(ranks.size(), kMost); ++i) names << rankName(ranks[i]);
    const QString words = names.join(QStringLiteral(", "));
    return ranks.size() > kMost ? tr("%1 and %2 more").arg(words, formatCount(ranks.size() - kMost))
                                : words;
}

QStringList gpuLines(const model::RunState& state, const model::NodeView& node) {
    if (!node.sample || node.sample->gpus.empty())
        return {tr("GPUs: %1 (%2)").arg(noFigure(), toQt(model::whyNoGpus(node)).toHtmlEscaped())};
    const auto there = ranksOn(state, {node.node});
    QStringList lines;
    for (const bool troubled : {true, false})
        for (const model::GpuSample& gpu : node.sample->gpus)
            if ((troubleOf(state, node, gpu) != nullptr) == troubled)
                lines << gpuLine(state, node, gpu, there);
    return lines;
}

QStringList gpuLines(const model::RunState& state, int replica, int shard) {
    constexpr size_t kMost = 32;
    // The replica's own ranks, of very many.
    std::set<std::pair<std::string_view, uint32_t>> used;
    auto rank = std::lower_bound(
        state.ranks.begin(), state.ranks.end(), RankId{replica, std::max(shard, 0)},
        [](const model::RankView& view, const RankId& id) { return view.rank < id; });
    for (; rank != state.ranks.end() && rank->rank.replica == replica &&
           (shard < 0 || rank->rank.shard == shard);
         ++rank)
        if (rank->pid != 0)
            for (const uint32_t gpu : rank->gpus) used.emplace(rank->node, gpu);
    std::vector<std::pair<const model::NodeView*, const model::GpuSample*>> shown;
    std::set<std::string_view> nodes;
    size_t more = 0;
    const model::NodeView* node = nullptr;
    for (const auto& [name, index] : used) {
        if (node == nullptr || node->node != name) node = model::findNode(state, name);
        if (node == nullptr || !node->sample) continue;
        for (const model::GpuSample& gpu : node->sample->gpus) {
            if (gpu.gpu != index) continue;
            if (shown.size() == kMost) {
                ++more;
                continue;
            }
            shown.emplace_back(node, &gpu);
            nodes.insert(node->node);
        }
    }
    const auto there = ranksOn(state, nodes);
    QStringList lines;
    for (const auto& [on, gpu] : shown) lines << gpuLine(state, *on, *gpu, there);
    if (more > 0) lines << tr("and %1 GPUs more").arg(formatCount(more));
    return lines;
}

std::optional<double> gpuBusy(const model::NodeView& node) {
    double sum = 0;
    int told = 0;
    if (node.sample)
        for (const model::GpuSample& gpu : node.sample->gpus)
            if (gpu.busyPercent) {
                sum += *gpu.busyPercent;
                ++told;
            }
    return told > 0 ? std::optional(sum / told) : std::nullopt;
}

QString gpuNews(const model::RunState& state) {
    for (size_t i = state.gpuTroubles.size(); i-- > 0;) {
        const model::GpuTroubleView& view = state.gpuTroubles[i];
        const model::NodeView* node = model::findNode(state, view.trouble.node);
        if (node == nullptr || node->state != model::NodeState::kUp ||
            model::severityOf(view.trouble) < model::Severity::kError)
            continue;
        return tr("%1: %2").arg(toQt(model::gpuName(view.trouble)), troubleWords(view));
    }
    return {};
}

}  // namespace bulkhead::ui
