// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QAbstractItemModel>
#include <vector>

#include "app/models/fleet_cells.h"
#include "app/models/run_feed.h"

namespace bulkhead::ui {

/// Replicas, and below each its ranks; then the nodes they run on. Copies what it shows on
/// refresh(), so that a view never reads a state that moves under it.
class FleetModel final : public QAbstractItemModel {
    Q_OBJECT
  public:
    using enum FleetColumns::Column;
    static constexpr int kColumns = kPid + 1;

    explicit FleetModel(const RunFeed& feed, QObject* parent = nullptr);

    /// Takes over the feed's present state; cheap, and keeps selection where rows stay the same.
    void refresh();
    QModelIndex indexOf(int replica, int shard = -1) const;
    QModelIndex indexOf(const QString& node) const;
    /// True when any rank or node reports GPU figures; the column can be hidden otherwise.
    bool hasGpu() const { return hasGpu_; }

    QModelIndex index(int row, int column, const QModelIndex& parent = {}) const override;
    QModelIndex parent(const QModelIndex& child) const override;
    int rowCount(const QModelIndex& parent = {}) const override;
    int columnCount(const QModelIndex& parent = {}) const override;
    QVariant data(const QModelIndex& index, int role) const override;
    QVariant headerData(int section, Qt::Orientation orientation, int role) const override;

  private:
    std::vector<FleetRow> takeReplicas() const;
    std::vector<FleetNode> takeNodes(const std::vector<FleetRow>& rows) const;
    QVariant toneOf(const FleetRow& row, const model::RankFigures* rank, int column) const;
    QVariant nodeData(const FleetNode& row, int column, int role) const;

    const RunFeed& feed_;
    std::vector<FleetRow> rows_;
    std::vector<FleetNode> nodes_;
    double progressLimitMs_ = 0;
    double beatLimitMs_ = 0;
    bool hasGpu_ = false;
};

}  // namespace bulkhead::ui
