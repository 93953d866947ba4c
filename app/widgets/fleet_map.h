// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QCache>
#include <QImage>
#include <QWidget>
#include <array>
#include <optional>

#include "app/models/fleet_figures.h"
#include "app/models/map_layout.h"
#include "app/widgets/theme.h"

namespace bulkhead::ui {

/// The whole fleet on one screen: replicas, their nodes, in them a cell per rank, coloured by one
/// figure; the legend says its scale. Its text twin is the table of FleetModel.
/// Wheel, + and - zoom, dragging and Shift with arrows pan, Home shows the whole fleet. Arrows move
/// the current rank, which is read out as the accessible description; the map follows it. Enter or
/// a double click go to its replica, then to its node. Paints from tiles, so that panning costs
/// what comes into sight.
class FleetMap final : public QWidget {
    Q_OBJECT
  public:
    static constexpr size_t kShades = 64;

    explicit FleetMap(QWidget* parent = nullptr);

    /// Takes over the present state, which outlives the widget or the next call and is read for
    /// tool tips later. Keeps what is in sight while ranks stay where they are.
    void setFleet(const model::RunState& state, FleetFigure figure, double unseenMs = 0);
    /// Ranks that do not match are dimmed; nullopt: none is.
    void setMatch(std::optional<FleetMatch> match);
    /// `shard` -1: a whole replica; `replica` -1: the node, or nothing where that is empty.
    void setSelected(int replica, int shard, const QString& node = {});

    const FleetShape& shape() const { return shape_; }
    const FleetFigures& figures() const { return figures_; }
    const MapLayout& layoutOfMap() const { return layout_; }
    int level() const { return level_; }
    QPoint offset() const { return offset_; }
    /// The cell of a rank in this widget's coordinates, if it is there.
    QRect cellOf(RankId rank) const;
    QString currentWords() const;

    void zoom(int levels);
    void zoom(int levels, QPoint about);
    void pan(QPoint by);
    void showAll();
    /// The largest zoom at which the replica is in sight as a whole, or the node of the rank.
    void goTo(int replica, int shard = -1);
    /// Pans as little as brings the rank into sight.
    void reveal(RankId rank);

    QSize sizeHint() const override { return {720, 320}; }
    QSize minimumSizeHint() const override { return {240, 96}; }

    /// Colours of a figure, from good to bad.
    static std::array<QColor, kShades> shades();
    static QColor colorOf(RankCondition condition);

  Q_SIGNALS:
    /// The operator chose a rank, or with `shard` -1 a replica.
    void picked(int replica, int shard);
    void nodePicked(const QString& node);

  protected:
    void paintEvent(QPaintEvent* event) override;
    void resizeEvent(QResizeEvent* event) override;
    void keyPressEvent(QKeyEvent* event) override;
    void wheelEvent(QWheelEvent* event) override;
    void mousePressEvent(QMouseEvent* event) override;
    void mouseMoveEvent(QMouseEvent* event) override;
    void mouseReleaseEvent(QMouseEvent* event) override;
    void mouseDoubleClickEvent(QMouseEvent* event) override;
    bool event(QEvent* event) override;

  private:
    static constexpr int kLegend = 28;       ///< height of the strip at the bottom
    static constexpr double kDimmed = 0.22;  ///< share of its colour that a dimmed cell keeps

    struct Title {
        QString name;
        QString state;
        model::ReplicaState value = model::ReplicaState::kAbsent;
        bool operator==(const Title&) const = default;
    };

    QRect plot() const;
    void layOut();
    void forgetTiles();
    void setLevel(int level, QPoint about, std::optional<uint32_t> place);
    void moveTo(QPoint offset);
    void move(int dx, int dy);
    /// Selects what is there: a rank, by its title a node, else a replica.
    void pick(const QPoint& at);
    std::optional<uint32_t> current() const;
    void setCurrent(uint32_t place);
    MapHit hitAt(const QPoint& at) const;
    QString tip(const MapHit& hit) const;
    QString wordsOf(uint32_t place) const;
    uint32_t worstAt(uint32_t place) const;
    const QImage& tile(int column, int row);
    QImage paintTile(const QRect& area) const;
    void paintBlock(QPainter& painter, QImage& image, uint32_t replica, const QRect& area) const;
    /// The place of a title in its block, or in a strip as wide as that.
    QRect titleOf(const QRect& block) const;
    int titleBand() const { return layout_.at(level_).blockTitle + Space::kHalf; }
    /// The title of a block that begins above or left of what is in sight stays at its edge, on
    /// this strip of the widget; empty where it does not.
    QRect titleAtEdge(uint32_t replica) const;
    void paintTitle(QPainter& painter, uint32_t replica, QRect line) const;
    void paintTitlesAtEdge(QPainter& painter) const;
    void paintUnit(QPainter& painter, QImage& image, uint32_t unit, const QRect& area) const;
    void paintCell(QPainter& painter, const QRect& cell, uint32_t place) const;
    void fill(QImage& image, const QRect& area, const QRect& cell, uint32_t place) const;
    void paintSelection(QPainter& painter) const;
    void paintLegend(QPainter& painter) const;
    int paintScale(QPainter& painter, QRect line) const;
    int paintStates(QPainter& painter, QRect line) const;
    QColor colorAt(uint32_t place) const;

    const model::RunState* state_ = nullptr;
    double unseenMs_ = 0;
    FleetShape shape_;
    FleetFigures figures_;
    std::vector<Title> titles_;
    std::optional<FleetMatch> match_;
    MapLayout layout_;
    int level_ = 0;
    QPoint offset_;  ///< of the map, at the plot's top left corner
    int replica_ = -1;
    int shard_ = -1;
    QString node_;
    std::optional<QPoint> pressed_;
    bool dragged_ = false;
    int wheel_ = 0;  ///< eighths of a degree that are no step yet
    std::array<QRgb, kShades> shades_{};
    std::array<QRgb, kShades> dimmedShades_{};
    std::array<QRgb, kRankConditions> states_{};
    std::array<QRgb, kRankConditions> dimmedStates_{};
    QCache<quint64, QImage> tiles_;
};

}  // namespace bulkhead::ui
