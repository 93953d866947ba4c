// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QStringList>
#include <QWidget>
#include <optional>
#include <vector>

class QMenu;

namespace bulkhead::ui {

/// One layer's experts as chips on the shards that hold them.
struct BoardLayer {
    struct Chip {
        int expert = 0;
        int shard = 0;
        int from = 0;      ///< where it lies now
        double share = 1;  ///< tokens over the layer's mean
        double tokens = 0;
        int pinned = -1;             ///< shard that an operator wants it on; -1: any
        std::vector<int> forbidden;  ///< shards that it may not be on
        bool keepsRules() const;
        bool operator==(const Chip&) const = default;
    };
    QString name;
    std::vector<Chip> chips;   ///< [expert]
    std::vector<double> load;  ///< [shard] as shown, copies over the mean shard's
    std::vector<double> loadNow;
    bool operator==(const BoardLayer&) const = default;
};

/// A row for each shard: its load, and its experts as chips coloured as in the heat map. A chip
/// that would move has a frame, and leaves an outline where it lies. Chips are dragged to another
/// row; by keyboard, arrows choose one and Shift with up or down moves it. A dot says that a chip
/// is pinned, a struck ring that it is forbidden somewhere, both red where it is not so as shown.
/// The menu of a chip moves, pins, forbids and frees it. The text twin is the table of the layer's
/// experts.
class PlacementBoard final : public QWidget {
    Q_OBJECT
  public:
    explicit PlacementBoard(QWidget* parent = nullptr);

    void set(BoardLayer layer);
    void setCurrent(int expert);
    int current() const { return current_; }
    /// Allows chips to be pinned, forbidden and freed.
    void setRulable(bool rulable) { rulable_ = rulable; }
    bool hasHeightForWidth() const override { return true; }
    int heightForWidth(int width) const override;
    QSize sizeHint() const override { return {420, heightForWidth(420)}; }
    QSize minimumSizeHint() const override { return {260, 96}; }

    /// Where things are, for whoever points at them.
    QRect chipRect(int expert) const;
    QRect rowRect(int shard) const;

  Q_SIGNALS:
    void currentChanged(int expert);
    /// The operator wants the expert there.
    void moved(int expert, int shard);
    /// The operator wants it to stay there, or to keep away; or takes all that back.
    void ruled(int expert, int shard, bool pins);
    void freed(int expert);

  protected:
    void paintEvent(QPaintEvent* event) override;
    void resizeEvent(QResizeEvent* event) override;
    void keyPressEvent(QKeyEvent* event) override;
    void mousePressEvent(QMouseEvent* event) override;
    void mouseMoveEvent(QMouseEvent* event) override;
    void mouseReleaseEvent(QMouseEvent* event) override;
    void contextMenuEvent(QContextMenuEvent* event) override;
    bool event(QEvent* event) override;

  private:
    struct Spot {
        int expert;
        int shard;
        bool ghost;  ///< it lies here and would leave
        QRect rect;
    };
    struct Arrangement {
        std::vector<Spot> spots;
        std::vector<QRect> rows;
        int height = 0;
    };
    Arrangement arranged(int width) const;
    void arrange();
    int shards() const { return static_cast<int>(layer_.load.size()); }
    int shardAt(const QPoint& at) const;
    int expertAt(const QPoint& at) const;
    void step(int by);
    QString words(int expert) const;
    void paintRow(QPainter& painter, int shard) const;
    void paintChip(QPainter& painter, const Spot& spot) const;
    void paintRules(QPainter& painter, const QRect& rect, const BoardLayer::Chip& chip,
                    const QColor& ink) const;
    void fillMenu(QMenu& menu);

    BoardLayer layer_;
    Arrangement arrangement_;
    int current_ = 0;
    QPoint pressed_;
    std::optional<QPoint> dragged_;
    bool rulable_ = true;
};

}  // namespace bulkhead::ui
