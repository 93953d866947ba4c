// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QWidget>
#include <optional>
#include <vector>

#include "app/models/series.h"

namespace bulkhead::ui {

/// Percentages over counts on a logarithmic scale: a few lines, points of others beside them, and
/// the place where one is. y is 0 to 100.
class ScaleChart final : public QWidget {
    Q_OBJECT
  public:
    struct Line {
        QString name;
        Points points;  ///< x > 0, ascending
        int color = 0;  ///< index into Tokens::series
    };
    struct Mark {
        QPointF at;
        QString name;    ///< beside the point, in front
        QString source;  ///< below it, muted
    };
    struct Here {
        QPointF at;
        QString name;
    };

    ScaleChart(const QString& title, const QString& unit, QWidget* parent = nullptr);
    void set(std::vector<Line> lines, std::vector<Mark> marks, std::optional<Here> here);
    QSize sizeHint() const override { return {480, 320}; }
    QSize minimumSizeHint() const override { return {260, 130}; }

  protected:
    void paintEvent(QPaintEvent* event) override;

  private:
    QRectF plot() const;
    QPointF place(QPointF value) const;
    void paintHead(QPainter& painter) const;
    void paintScales(QPainter& painter) const;
    void paintHere(QPainter& painter) const;
    void paintMark(QPainter& painter, const Mark& mark) const;

    QString title_;
    QString unit_;
    std::vector<Line> lines_;
    std::vector<Mark> marks_;
    std::optional<Here> here_;
    double least_ = 1;
    double greatest_ = 10;
};

}  // namespace bulkhead::ui
