// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QStyledItemDelegate>

#include "app/models/labels.h"

class QTableView;
class QTreeView;

namespace bulkhead::ui {

/// Paints cells by our roles: tone as colour, pill as a dot before the text (its shape says the
/// tone as well: round, ring, diamond).
class ToneDelegate final : public QStyledItemDelegate {
    Q_OBJECT
  public:
    using QStyledItemDelegate::QStyledItemDelegate;
    void paint(QPainter* painter, const QStyleOptionViewItem& option,
               const QModelIndex& index) const override;
    QSize sizeHint(const QStyleOptionViewItem& option, const QModelIndex& index) const override;
};

/// Row height, headers, selection by row, delegate: how all our tables look.
void styleTable(QTableView* view, const QString& accessibleName);
void styleTree(QTreeView* view, const QString& accessibleName);

/// A state's mark, told apart by shape as well as by colour: disc for good, triangle for under way,
/// square for notice, diamond for a warning, cross for bad, ring for the rest.
void paintMark(QPainter& painter, const QPointF& center, Tone tone, const QColor& color);

}  // namespace bulkhead::ui
