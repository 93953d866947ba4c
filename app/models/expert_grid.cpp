// SPDX-License-Identifier: GPL-3.0-only
#include "app/models/expert_grid.h"

#include <QCoreApplication>
#include <algorithm>

#include "app/models/labels.h"
#include "app/models/roles.h"
#include "app/models/units.h"

namespace bulkhead::ui {
namespace {

std::vector<double> countsOf(const model::ExpertView& view, LoadWindow window) {
    const std::vector<uint64_t> counts = window == LoadWindow::kRecent   ? view.recent()
                                         : window == LoadWindow::kLatest ? view.latest
                                                                         : view.total;
    return {counts.begin(), counts.end()};
}

}  // namespace

QString mixtureName(const model::ModelInfo& model, int mixture) {
    const auto i = static_cast<size_t>(mixture);
    return i < model.mixtureLayers.size() && model.mixtureLayers.size() == model.moeLayers
               ? QCoreApplication::translate("experts", "Layer %1").arg(model.mixtureLayers[i])
               : QCoreApplication::translate("experts", "Mixture %1").arg(mixture);
}

ExpertGrid expertGrid(const model::RunState& state, LoadWindow window, int domain) {
    const model::ExpertView& view = state.experts;
    const std::vector<double> counts = countsOf(view, window);
    const size_t experts = view.experts;
    const size_t domains = view.domains;
    if (counts.empty() || counts.size() != view.moeLayers * domains * experts) return {};
    QStringList names;
    std::vector<double> tokens(view.moeLayers * experts);
    for (size_t layer = 0; layer < view.moeLayers; ++layer) {
        names << mixtureName(state.model, static_cast<int>(layer));
        for (size_t d = 0; d < domains; ++d) {
            if (domain >= 0 && d != static_cast<size_t>(domain)) continue;
            for (size_t e = 0; e < experts; ++e)
                tokens[layer * experts + e] += counts[(layer * domains + d) * experts + e];
        }
    }
    return gridOf(std::move(names), std::move(tokens));
}

ExpertGrid gridOf(QStringList names, std::vector<double> tokens) {
    ExpertGrid grid;
    grid.layers = static_cast<int>(names.size());
    grid.names = std::move(names);
    grid.tokens = std::move(tokens);
    const size_t experts =
        grid.layers == 0 ? 0 : grid.tokens.size() / static_cast<size_t>(grid.layers);
    grid.experts = static_cast<int>(experts);
    grid.share.assign(grid.tokens.size(), 0);
    for (size_t layer = 0; layer < static_cast<size_t>(grid.layers); ++layer) {
        double total = 0;
        double most = 0;
        for (size_t e = 0; e < experts; ++e) total += grid.tokens[layer * experts + e];
        for (size_t e = 0; e < experts && total > 0; ++e) {
            const size_t i = layer * experts + e;
            grid.share[i] = grid.tokens[i] * static_cast<double>(experts) / total;
            most = std::max(most, grid.share[i]);
        }
        grid.imbalance.push_back(most);
    }
    return grid;
}

void ExpertTableModel::set(ExpertGrid grid) {
    if (grid == grid_) return;
    if (grid.layers == grid_.layers && grid.experts == grid_.experts && !grid.empty()) {
        grid_ = std::move(grid);
        Q_EMIT dataChanged(index(0, 0), index(grid_.layers - 1, grid_.experts));
        return;
    }
    beginResetModel();
    grid_ = std::move(grid);
    endResetModel();
}

int ExpertTableModel::rowCount(const QModelIndex& parent) const {
    return parent.isValid() ? 0 : grid_.layers;
}

int ExpertTableModel::columnCount(const QModelIndex& parent) const {
    return parent.isValid() || grid_.empty() ? 0 : grid_.experts + 1;
}

QVariant ExpertTableModel::data(const QModelIndex& index, int role) const {
    if (!checkIndex(index, CheckIndexOption::IndexIsValid)) return {};
    if (role == Qt::TextAlignmentRole) return QVariant(Qt::AlignRight | Qt::AlignVCenter);
    const int layer = index.row();
    const bool summary = index.column() == 0;
    const double value =
        summary ? grid_.imbalance[static_cast<size_t>(layer)] : grid_.at(layer, index.column() - 1);
    if (role == Qt::DisplayRole) return formatNumber(value, 2);
    if (role == kToneRole && summary && value >= 2) return static_cast<int>(Tone::kWarning);
    if (role == Qt::ToolTipRole || role == Qt::AccessibleTextRole) {
        if (summary)
            return tr("%1: busiest expert has %2 times the mean")
                .arg(grid_.names[layer], formatNumber(value, 2));
        return tr("%1, expert %2: %3 times the mean, %4 tokens")
            .arg(grid_.names[layer])
            .arg(index.column() - 1)
            .arg(formatNumber(value, 2),
                 formatCount(static_cast<uint64_t>(grid_.tokensAt(layer, index.column() - 1))));
    }
    return {};
}

QVariant ExpertTableModel::headerData(int section, Qt::Orientation orientation, int role) const {
    if (role == Qt::TextAlignmentRole) return QVariant(Qt::AlignRight | Qt::AlignVCenter);
    if (role != Qt::DisplayRole) return {};
    if (orientation == Qt::Vertical) return grid_.names.value(section);
    return section == 0 ? tr("Busiest") : QStringLiteral("E%1").arg(section - 1);
}

}  // namespace bulkhead::ui
