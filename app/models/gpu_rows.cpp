// SPDX-License-Identifier: GPL-3.0-only
#include "app/models/gpu_rows.h"

#include <QStringList>
#include <algorithm>

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
    return rank.pid != 0 && rank.node == node.node &&
           std::find(rank.gpus.begin(), rank.gpus.end(), gpu) != rank.gpus.end();
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

/// Its parts keep together where the line is wrapped.
QString gpuLine(const model::RunState& state, const model::NodeView& node,
                const model::GpuSample& gpu) {
    QStringList ranks;
    for (const model::RankView& rank : state.ranks)
        if (computesOn(rank, node, gpu.gpu)) ranks << rankName(rank.rank);
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
        .arg(name, ranks.isEmpty() ? tr("no rank") : ranks.join(QStringLiteral(", ")),
             parts.join(QStringLiteral(", ")));
}

}  // namespace

QStringList gpuLines(const model::RunState& state, const model::NodeView& node) {
    if (!node.sample || node.sample->gpus.empty())
        return {tr("GPUs: %1 (%2)").arg(noFigure(), toQt(model::whyNoGpus(node)).toHtmlEscaped())};
    QStringList lines;
    for (const bool troubled : {true, false})
        for (const model::GpuSample& gpu : node.sample->gpus)
            if ((troubleOf(state, node, gpu) != nullptr) == troubled)
                lines << gpuLine(state, node, gpu);
    return lines;
}

QStringList gpuLines(const model::RunState& state, int replica, int shard) {
    std::vector<const model::RankView*> wanted;
    for (const model::RankView& rank : state.ranks)
        if (rank.rank.replica == replica && (shard < 0 || rank.rank.shard == shard) &&
            !rank.gpus.empty())
            wanted.push_back(&rank);
    QStringList lines;
    for (const model::NodeView& node : state.nodes) {
        if (!node.sample) continue;
        for (const model::GpuSample& gpu : node.sample->gpus)
            if (std::any_of(wanted.begin(), wanted.end(), [&](const model::RankView* rank) {
                    return computesOn(*rank, node, gpu.gpu);
                }))
                lines << gpuLine(state, node, gpu);
    }
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
