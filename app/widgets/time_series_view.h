// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QWidget>
#include <functional>
#include <optional>
#include <vector>

#include "app/models/series.h"

class QChart;
class QLabel;
class QLineSeries;
class QValueAxis;

namespace bulkhead::ui {

class CursorChartView;

/// One chart: title, newest figure, up to six lines over steps. Points are decimated to the pixels
/// there are and handed over whole, once per refresh; nothing is animated.
class TimeSeriesView final : public QWidget {
    Q_OBJECT
  public:
    struct Line {
        QString name;  ///< empty: no legend entry
        Points points;
        int color = 0;  ///< index into Tokens::series
        bool faint = false;
        bool dashed = false;
        bool operator==(const Line&) const = default;
    };
    using Format = std::function<QString(double)>;

    TimeSeriesView(const QString& title, const QString& unit, Format format,
                   QWidget* parent = nullptr);

    void set(std::vector<Line> lines);
    /// Lower limit of y is 0.
    void setFromZero(bool fromZero) { fromZero_ = fromZero; }
    /// No figure is greater than this, so the scale does not go beyond it.
    void setMost(double most) { most_ = most; }
    void setCursorStep(std::optional<double> step);
    /// Steps to show, first and last; nothing: all.
    struct Range {
        double first = 0;
        double last = 0;
        bool operator==(const Range&) const = default;
    };
    void setShown(std::optional<Range> range);

    /// Full precision, one column per line, units in the header.
    QString csv() const;
    QSize sizeHint() const override { return {360, 200}; }

  Q_SIGNALS:
    void stepPicked(double step);
    void exportWanted(bool picture);

  protected:
    void contextMenuEvent(QContextMenuEvent* event) override;
    void resizeEvent(QResizeEvent* event) override;

  private:
    void restyle();
    void rescale();
    void fill();
    /// Points of the line that are shown, and one beyond on each side.
    Points shownOf(const Line& line) const;
    void showFigure();
    QLineSeries* lineAt(size_t i);

    QString title_;
    QString unit_;
    Format format_;
    std::vector<Line> lines_;
    std::vector<QLineSeries*> series_;
    QLabel* figure_;
    QLabel* legend_;
    QChart* chart_;
    CursorChartView* view_;
    QValueAxis* x_;
    QValueAxis* y_;
    std::optional<double> cursor_;
    bool fromZero_ = false;
    std::optional<double> most_;
    std::optional<Range> shown_;
};

}  // namespace bulkhead::ui
