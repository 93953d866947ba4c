// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QScrollBar>
#include <QWidget>
#include <cstdint>
#include <optional>

#include "backend/model/run_state.h"

namespace bulkhead::ui {

/// A lane per replica over time: what it did, when survivors stood still, faults and incidents, and
/// below the lanes every commit. Reads the state it is given at paint time; the owner calls
/// update() when it changed. Keys: left and right pan, up and down scroll the lanes, + and - zoom,
/// Home the whole run, End the present.
class LaneTimeline final : public QWidget {
    Q_OBJECT
  public:
    explicit LaneTimeline(QWidget* parent = nullptr);

    /// `state` outlives the widget or the next call; null: nothing to show.
    void setState(const model::RunState* state);
    /// Call when the state moved on: a following view moves along.
    void advance();
    void setCursorTime(std::optional<int64_t> timeNs);

    /// Shown stretch, Unix nanoseconds.
    void setRange(int64_t beginNs, int64_t endNs);
    int64_t beginNs() const { return begin_; }
    int64_t endNs() const { return end_; }
    bool following() const { return follow_; }

    void zoom(double factor);
    void pan(double share);
    void showAll();
    void followPresent();
    QSize sizeHint() const override { return {720, 260}; }
    QSize minimumSizeHint() const override { return {320, 140}; }

  Q_SIGNALS:
    /// The operator pointed at a moment; nothing: back to the present.
    void cursorPicked(std::optional<int64_t> timeNs);
    void incidentPicked(quint64 incident);
    void rangeChanged();

  protected:
    void paintEvent(QPaintEvent* event) override;
    void resizeEvent(QResizeEvent* event) override;
    void keyPressEvent(QKeyEvent* event) override;
    void wheelEvent(QWheelEvent* event) override;
    void mousePressEvent(QMouseEvent* event) override;
    void mouseMoveEvent(QMouseEvent* event) override;
    void mouseReleaseEvent(QMouseEvent* event) override;
    bool event(QEvent* event) override;

  private:
    QRect plot() const;
    int laneHeight() const;
    QRect lane(size_t i) const;
    bool isInSight(size_t i) const;
    void placeScrollBar();
    double x(int64_t timeNs) const;
    int64_t timeAt(double x) const;
    void zoomAt(double factor, double x);
    QString wordsAt(const QPoint& at) const;
    QString severalWords(int32_t replica, const model::LaneInterval& several) const;
    /// Says what all survivors waited for; empty: for one that was lost.
    QString stallWords(const model::StallInterval& stall) const;
    /// The reason for which no replica trained then; empty: they did.
    QString jobWordsAt(int64_t timeNs, int32_t replica) const;
    void paintAxis(QPainter& painter) const;
    void paintLane(QPainter& painter, size_t i) const;
    void paintStalls(QPainter& painter) const;
    void paintPhases(QPainter& painter) const;
    /// Stretches that are kept as one have the share of training as their lower part.
    void paintSeveral(QPainter& painter, const QRectF& bar,
                      const model::LaneInterval& several) const;
    /// Over what the lanes of replicas that were training then show.
    void paintOverTraining(QPainter& painter, int64_t beginNs, int64_t endNs, int32_t but,
                           const QBrush& brush, const QString& words) const;
    void paintMarks(QPainter& painter) const;
    void paintCommits(QPainter& painter) const;
    void paintCursor(QPainter& painter) const;

    const model::RunState* state_ = nullptr;
    QScrollBar* scroll_;
    int64_t begin_ = 0;
    int64_t end_ = 0;
    bool follow_ = true;
    bool all_ = true;  ///< following with the whole run in sight, until zoomed
    std::optional<int64_t> cursor_;
    std::optional<QPoint> pressed_;
    bool dragged_ = false;
};

}  // namespace bulkhead::ui
