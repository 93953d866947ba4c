// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QWidget>
#include <optional>

#include "backend/model/run_views.h"

namespace bulkhead::ui {

/// One incident's phases as two bars, the survivors' and the replica's, each to its own scale, with
/// every duration in words. Of the survivors' only what is filled stood still, as the card says;
/// the exchange that is done again is framed. Without an incident it says so.
class IncidentBars final : public QWidget {
    Q_OBJECT
  public:
    explicit IncidentBars(QWidget* parent = nullptr);
    void set(std::optional<model::IncidentView> incident);
    QSize sizeHint() const override { return {480, 132}; }
    QSize minimumSizeHint() const override { return {320, 132}; }

  protected:
    void paintEvent(QPaintEvent* event) override;

  private:
    void paintRow(QPainter& painter, int top, bool survivors) const;

    std::optional<model::IncidentView> incident_;
};

}  // namespace bulkhead::ui
