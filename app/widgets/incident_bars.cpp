// SPDX-License-Identifier: GPL-3.0-only
#include "app/widgets/incident_bars.h"

#include <QPainter>
#include <QStringList>
#include <algorithm>

#include "app/models/labels.h"
#include "app/models/units.h"
#include "app/widgets/theme.h"

namespace bulkhead::ui {
namespace {

constexpr int kGutter = 80;
constexpr int kBar = 14;
constexpr int kHeight = 128;
constexpr double kLeastWidth = 3;

}  // namespace

IncidentBars::IncidentBars(QWidget* parent) : QWidget(parent) {
    setAccessibleName(tr("Phases of the incident"));
    setMinimumHeight(kHeight);
    setMaximumHeight(kHeight);
    connect(&theme(), &Theme::changed, this, qOverload<>(&QWidget::update));
}

void IncidentBars::set(std::optional<model::IncidentView> incident) {
    incident_ = std::move(incident);
    QStringList words;
    if (incident_)
        for (const model::PhaseView& phase : incident_->phases)
            words << label(phase.phase) + u' ' + formatMs(phase.ms());
    setAccessibleDescription(words.join(QStringLiteral(", ")));
    update();
}

void IncidentBars::paintEvent(QPaintEvent*) {
    QPainter painter(this);
    const Tokens& t = theme().tokens();
    painter.fillRect(rect(), t.surface);
    if (!incident_) {
        painter.setPen(t.muted);
        painter.drawText(rect().adjusted(Space::kTwo, 0, -Space::kTwo, 0), Qt::AlignCenter,
                         tr("Select an incident to see its phases."));
        return;
    }
    painter.setFont(Theme::font(0, QFont::Medium));
    painter.setPen(t.text);
    const QString title = QStringLiteral("#%1  ").arg(incident_->incident) + toQt(incident_->title);
    painter.drawText(
        QRect(Space::kTwo, 6, width() - 2 * Space::kTwo, 20), Qt::AlignVCenter,
        painter.fontMetrics().elidedText(title, Qt::ElideRight, width() - 2 * Space::kTwo));
    paintRow(painter, 34, true);
    if (incident_->replica >= 0) paintRow(painter, 82, false);
}

void IncidentBars::paintRow(QPainter& painter, int top, bool survivors) const {
    const Tokens& t = theme().tokens();
    painter.setFont(Theme::font(-1));
    painter.setPen(t.muted);
    painter.drawText(QRect(Space::kTwo, top, kGutter, kBar), Qt::AlignVCenter,
                     survivors ? tr("Survivors") : replicaName(incident_->replica));
    double total = 0;
    std::vector<model::PhaseView> phases;
    for (const model::PhaseView& phase : incident_->phases)
        if (isSurvivorPhase(phase.phase) == survivors) {
            phases.push_back(phase);
            total += std::max(phase.ms(), 0.0);
        }
    const int left = Space::kTwo + kGutter;
    const int sumWidth = survivors ? 96 : 72;
    const double room =
        width() - left - sumWidth - Space::kTwo - kLeastWidth * static_cast<double>(phases.size());
    if (phases.empty()) {
        painter.drawText(QRect(left, top, 300, kBar), Qt::AlignVCenter,
                         survivors ? tr("did not stand still") : tr("nothing reported yet"));
        return;
    }
    double at = left;
    int textAt = left;
    for (const model::PhaseView& phase : phases) {
        const double width = kLeastWidth + (total > 0 ? room * phase.ms() / total : 0);
        painter.fillRect(QRectF(at, top, width - 1, kBar), t.of(phase.phase));
        at += width;
        const QString words = label(phase.phase) + u' ' + formatMs(phase.ms());
        const int advance = painter.fontMetrics().horizontalAdvance(words);
        painter.fillRect(QRect(textAt, top + kBar + 9, 7, 7), t.of(phase.phase));
        painter.setPen(t.muted);
        painter.drawText(QRect(textAt + 11, top + kBar + 4, advance + 4, 17), Qt::AlignVCenter,
                         words);
        textAt += advance + 11 + 14;
    }
    // The exchange that is done again trains: what stood still is the table's figure.
    painter.setPen(t.text);
    painter.drawText(
        QRect(width() - sumWidth - 8, top, sumWidth, kBar), Qt::AlignRight | Qt::AlignVCenter,
        survivors ? tr("stall %1").arg(formatMs(incident_->survivorStallMs)) : formatMs(total));
}

}  // namespace bulkhead::ui
