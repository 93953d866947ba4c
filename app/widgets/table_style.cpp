// SPDX-License-Identifier: GPL-3.0-only
#include "app/widgets/table_style.h"

#include <QHeaderView>
#include <QPainter>
#include <QTableView>
#include <QTreeView>

#include "app/models/roles.h"
#include "app/widgets/theme.h"

namespace bulkhead::ui {
namespace {

constexpr int kRowHeight = 24;
constexpr int kMark = 9;

}  // namespace

void paintMark(QPainter& painter, const QPointF& c, Tone tone, const QColor& color) {
    painter.save();
    painter.setRenderHint(QPainter::Antialiasing);
    constexpr double r = kMark / 2.0;
    painter.setPen(Qt::NoPen);
    painter.setBrush(color);
    switch (tone) {
        case Tone::kGood:
            painter.drawEllipse(c, r - 0.5, r - 0.5);
            break;
        case Tone::kBusy:
            painter.drawPolygon(QPolygonF(
                {{c.x() - r + 1, c.y() - r}, {c.x() + r, c.y()}, {c.x() - r + 1, c.y() + r}}));
            break;
        case Tone::kNotice:
            painter.drawRect(QRectF(c.x() - r + 1, c.y() - r + 1, 2 * r - 2, 2 * r - 2));
            break;
        case Tone::kWarning:
            painter.drawPolygon(QPolygonF({{c.x(), c.y() - r - 0.5},
                                           {c.x() + r + 0.5, c.y()},
                                           {c.x(), c.y() + r + 0.5},
                                           {c.x() - r - 0.5, c.y()}}));
            break;
        case Tone::kBad:
            painter.setPen(QPen(color, 2.2, Qt::SolidLine, Qt::RoundCap));
            painter.drawLine(c + QPointF(-r + 1, -r + 1), c + QPointF(r - 1, r - 1));
            painter.drawLine(c + QPointF(-r + 1, r - 1), c + QPointF(r - 1, -r + 1));
            break;
        case Tone::kMuted:
        case Tone::kNeutral:
            painter.setPen(QPen(color, 1.5));
            painter.setBrush(Qt::NoBrush);
            painter.drawEllipse(c, r - 1, r - 1);
            break;
    }
    painter.restore();
}

void ToneDelegate::paint(QPainter* painter, const QStyleOptionViewItem& option,
                         const QModelIndex& index) const {
    QStyleOptionViewItem o = option;
    initStyleOption(&o, index);
    const Tokens& t = theme().tokens();
    const bool selected = o.state & QStyle::State_Selected;
    if (selected)
        painter->fillRect(o.rect, t.selection);
    else if (o.features & QStyleOptionViewItem::Alternate)
        painter->fillRect(o.rect, t.raised);
    const QVariant toneData = index.data(kToneRole);
    const Tone tone = toneData.isValid() ? static_cast<Tone>(toneData.toInt()) : Tone::kNeutral;
    QRect r = o.rect.adjusted(8, 0, -8, 0);
    if (index.data(kPillRole).toBool()) {
        const QVariant state = index.data(kStateRole);
        const QColor color =
            state.isValid() ? t.of(static_cast<model::ReplicaState>(state.toInt())) : t.of(tone);
        paintMark(*painter, QPointF(r.left() + kMark / 2.0, r.center().y() + 0.5), tone, color);
        r.setLeft(r.left() + kMark + 6);
    }
    painter->setPen(tone == Tone::kGood || tone == Tone::kBusy ? t.text : t.of(tone));
    painter->setFont(o.font);
    painter->drawText(r, static_cast<int>(o.displayAlignment | Qt::AlignVCenter),
                      o.fontMetrics.elidedText(o.text, Qt::ElideRight, r.width()));
}

QSize ToneDelegate::sizeHint(const QStyleOptionViewItem& option, const QModelIndex& index) const {
    QSize size = QStyledItemDelegate::sizeHint(option, index);
    size.setHeight(kRowHeight);
    size.setWidth(size.width() + 16 + (index.data(kPillRole).toBool() ? kMark + 6 : 0));
    return size;
}

void styleTable(QTableView* view, const QString& accessibleName) {
    view->setAccessibleName(accessibleName);
    view->setItemDelegate(new ToneDelegate(view));
    view->setShowGrid(false);
    view->setSelectionBehavior(QAbstractItemView::SelectRows);
    view->setSelectionMode(QAbstractItemView::SingleSelection);
    view->setEditTriggers(QAbstractItemView::NoEditTriggers);
    view->setTabKeyNavigation(false);
    view->setVerticalScrollMode(QAbstractItemView::ScrollPerPixel);
    view->setWordWrap(false);
    view->verticalHeader()->hide();
    view->verticalHeader()->setDefaultSectionSize(kRowHeight);
    view->verticalHeader()->setSectionResizeMode(QHeaderView::Fixed);
    view->horizontalHeader()->setHighlightSections(false);
    view->horizontalHeader()->setStretchLastSection(true);
}

void styleTree(QTreeView* view, const QString& accessibleName) {
    view->setAccessibleName(accessibleName);
    view->setItemDelegate(new ToneDelegate(view));
    view->setUniformRowHeights(true);
    view->setEditTriggers(QAbstractItemView::NoEditTriggers);
    view->setSelectionMode(QAbstractItemView::SingleSelection);
    view->setAllColumnsShowFocus(true);
    view->setIndentation(16);
    view->header()->setStretchLastSection(true);
}

}  // namespace bulkhead::ui
