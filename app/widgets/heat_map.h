// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QWidget>

#include "app/models/expert_grid.h"

namespace bulkhead::ui {

/// Layer x expert loads as coloured cells, with a legend in figures. An even load is the quiet
/// colour; blue is less, orange more than the mean. Arrow keys move the current cell, which is read
/// out as the widget's accessible description; its text twin is ExpertTableModel.
class HeatMap final : public QWidget {
    Q_OBJECT
  public:
    explicit HeatMap(QWidget* parent = nullptr);

    void set(ExpertGrid grid);
    /// Small pictures have neither legend nor axis words.
    void setCompact(bool compact);
    QSize sizeHint() const override;
    QSize minimumSizeHint() const override;

    /// Share at which colour saturates; the legend says so.
    static constexpr double kFull = 3.0;
    static QColor colorOf(double share);

  Q_SIGNALS:
    void currentChanged(int layer, int expert);

  protected:
    void paintEvent(QPaintEvent* event) override;
    void keyPressEvent(QKeyEvent* event) override;
    void mousePressEvent(QMouseEvent* event) override;
    bool event(QEvent* event) override;

  private:
    QRect plot() const;
    QRect cell(int layer, int expert) const;
    bool hit(const QPoint& at, int& layer, int& expert) const;
    QString words(int layer, int expert) const;
    void setCurrent(int layer, int expert);
    void paintLegend(QPainter& painter) const;

    ExpertGrid grid_;
    int layer_ = 0;
    int expert_ = 0;
    bool compact_ = false;
};

}  // namespace bulkhead::ui
