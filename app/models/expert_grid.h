// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QAbstractTableModel>
#include <QStringList>
#include <cstdint>
#include <vector>

#include "backend/model/run_state.h"

namespace bulkhead::ui {

enum class LoadWindow { kRecent, kLatest, kTotal };

/// Expert loads of all domains or of one, as shares of the layer's mean: 1 is an even load.
struct ExpertGrid {
    int layers = 0;
    int experts = 0;
    QStringList names;              ///< of the layers, as the model counts its decoder layers
    std::vector<double> share;      ///< [layer][expert]; 1: even
    std::vector<double> tokens;     ///< [layer][expert]
    std::vector<double> imbalance;  ///< [layer]: busiest share
    double at(int layer, int expert) const {
        return share[static_cast<size_t>(layer) * static_cast<size_t>(experts) +
                     static_cast<size_t>(expert)];
    }
    double tokensAt(int layer, int expert) const {
        return tokens[static_cast<size_t>(layer) * static_cast<size_t>(experts) +
                      static_cast<size_t>(expert)];
    }
    bool empty() const { return share.empty(); }
    bool operator==(const ExpertGrid&) const = default;
};

/// From tokens, [layer][expert]; as many layers as names.
ExpertGrid gridOf(QStringList names, std::vector<double> tokens);
/// `domain` -1: all. Empty before the first loads. Pure; thread: any.
ExpertGrid expertGrid(const model::RunState& state, LoadWindow window, int domain);

/// "Layer 3": the decoder layer a mixture stands in, from 0 as in the names of its parameters;
/// "Mixture 1", counted from 0, when the workload does not tell.
QString mixtureName(const model::ModelInfo& model, int mixture);

/// The heat map as a table: for the keyboard, the screen reader, and exact figures.
class ExpertTableModel final : public QAbstractTableModel {
    Q_OBJECT
  public:
    using QAbstractTableModel::QAbstractTableModel;
    void set(ExpertGrid grid);

    int rowCount(const QModelIndex& parent = {}) const override;
    int columnCount(const QModelIndex& parent = {}) const override;
    QVariant data(const QModelIndex& index, int role) const override;
    QVariant headerData(int section, Qt::Orientation orientation, int role) const override;

  private:
    ExpertGrid grid_;
};

}  // namespace bulkhead::ui
