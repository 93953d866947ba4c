// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QLabel>
#include <QPainter>
#include <QStyle>

namespace bulkhead::ui {

/// One line of plain text that gives way: what has no room ends in an ellipsis, and the tooltip has
/// all of it unless it says more.
class ElidedLabel final : public QLabel {
  public:
    using QLabel::QLabel;
    QSize minimumSizeHint() const override { return {kLeast, QLabel::minimumSizeHint().height()}; }

  protected:
    void paintEvent(QPaintEvent*) override {
        QPainter painter(this);
        const QString shown = fontMetrics().elidedText(text(), Qt::ElideRight, width());
        style()->drawItemText(&painter, rect(), Qt::AlignLeft | Qt::AlignVCenter, palette(),
                              isEnabled(), shown, foregroundRole());
        if (shown != text() && toolTip().isEmpty()) setToolTip(text());
    }

  private:
    static constexpr int kLeast = 24;
};

}  // namespace bulkhead::ui
