// SPDX-License-Identifier: GPL-3.0-only
#include "app/widgets/share_bar.h"

#include <QPainter>
#include <QStringList>
#include <algorithm>

#include "app/models/units.h"
#include "app/widgets/theme.h"

namespace bulkhead::ui {
namespace {

constexpr int kBar = 20;
constexpr int kLine = 20;
constexpr int kSwatch = 9;
constexpr int kNameAt = kSwatch + 6;
constexpr int kGap = 10;  // between a name and its share
constexpr int kCellGap = 24;
constexpr double kLeast = 2;  // of a part that is there

}  // namespace

ShareBar::ShareBar(const QString& accessibleName, QWidget* parent) : QWidget(parent) {
    setAccessibleName(accessibleName);
    QSizePolicy policy(QSizePolicy::Preferred, QSizePolicy::Fixed);
    policy.setHeightForWidth(true);
    setSizePolicy(policy);
    connect(&theme(), &Theme::changed, this, qOverload<>(&QWidget::update));
}

void ShareBar::set(std::vector<Part> parts, const QString& nothing) {
    std::erase_if(parts, [](const Part& part) { return part.share <= 0; });
    std::ranges::stable_sort(parts, std::ranges::greater(), &Part::share);
    parts_ = std::move(parts);
    nothing_ = nothing;
    QStringList words;
    for (const Part& part : parts_) words << part.name + u' ' + formatShare(part.share);
    setAccessibleDescription(parts_.empty() ? nothing_ : words.join(QStringLiteral(", ")));
    updateGeometry();
    update();
}

int ShareBar::cellWidth() const {
    const QFontMetrics metrics(Theme::font());
    int name = 0;
    int share = 0;
    for (const Part& part : parts_) {
        name = std::max(name, metrics.horizontalAdvance(part.name));
        share = std::max(share, metrics.horizontalAdvance(formatShare(part.share)));
    }
    return kNameAt + name + kGap + share;
}

int ShareBar::columns(int width) const {
    return std::clamp((width + kCellGap) / (cellWidth() + kCellGap), 1, 4);
}

int ShareBar::heightForWidth(int width) const {
    const int n = columns(width);
    const int rows = std::max((static_cast<int>(parts_.size()) + n - 1) / n, 1);
    return kBar + Space::kOne + rows * kLine;
}

QSize ShareBar::sizeHint() const {
    return {480, heightForWidth(480)};
}

QSize ShareBar::minimumSizeHint() const {
    return {cellWidth(), kBar + Space::kOne + kLine};
}

void ShareBar::paintEvent(QPaintEvent*) {
    QPainter painter(this);
    const Tokens& t = theme().tokens();
    painter.fillRect(QRect(0, 0, width(), kBar), t.raised);
    painter.setFont(Theme::font());
    if (parts_.empty()) {
        painter.setPen(t.muted);
        painter.drawText(QRect(0, kBar + Space::kOne, width(), kLine), Qt::AlignVCenter, nothing_);
        return;
    }
    double total = 0;
    for (const Part& part : parts_) total += part.share;
    const double room = width() - kLeast * static_cast<double>(parts_.size());
    const int cell = cellWidth();
    const int wide = columns(width());
    double at = 0;
    for (size_t i = 0; i < parts_.size(); ++i) {
        const Part& part = parts_[i];
        const double length = kLeast + room * part.share / total;
        painter.fillRect(QRectF(at, 0, std::max(length - 1, 1.0), kBar), t.*part.color);
        at += length;
        const int column = static_cast<int>(i) % wide;
        const int top = kBar + Space::kOne + static_cast<int>(i) / wide * kLine;
        const QRect box(column * (cell + kCellGap), top, cell, kLine);
        painter.fillRect(QRect(box.left(), top + (kLine - kSwatch) / 2, kSwatch, kSwatch),
                         t.*part.color);
        painter.setPen(t.muted);
        painter.drawText(box.adjusted(kNameAt, 0, 0, 0), Qt::AlignVCenter, part.name);
        painter.setPen(t.text);
        painter.drawText(box, Qt::AlignRight | Qt::AlignVCenter, formatShare(part.share));
    }
}

}  // namespace bulkhead::ui
