// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QWidget>
#include <vector>

#include "app/widgets/fleet_map.h"

class QComboBox;
class QLabel;
class QLineEdit;
class QSettings;
class QToolButton;

namespace bulkhead::ui {

/// The fleet's map with its tools: the figure it is coloured by, a field that finds ranks, and the
/// worst ranks to go to.
class FleetMapPanel final : public QWidget {
    Q_OBJECT
  public:
    static constexpr size_t kWorst = 5;

    explicit FleetMapPanel(QSettings& settings, QWidget* parent = nullptr);

    void setFleet(const model::RunState& state, double unseenMs);
    FleetMap& map() { return *map_; }
    void focusFind();
    /// Goes to the worst rank, each time to the next of them.
    void goToNextWorst();

  Q_SIGNALS:
    void picked(int replica, int shard);
    void nodePicked(const QString& node);

  private:
    FleetFigure figure() const;
    void chooseFigure();
    void find();
    void fillWorst();
    void goTo(size_t worst);

    QSettings& settings_;
    const model::RunState* state_ = nullptr;
    double unseenMs_ = 0;
    QComboBox* figure_;
    QLineEdit* find_;
    QLabel* found_;
    QLabel* worstTitle_;
    QWidget* chipRow_;
    std::vector<QToolButton*> chips_;
    std::vector<RankId> worst_;
    size_t nextWorst_ = 0;
    FleetMap* map_;
};

}  // namespace bulkhead::ui
