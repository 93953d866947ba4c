// SPDX-License-Identifier: GPL-3.0-only
#include "app/widgets/incident_bars.h"

#include <QPainter>
#include <QStringList>
#include <algorithm>

#include "app/models/labels.h"
#include "app/models/units.h"
#include "app/widgets/theme.h"
#include "backend/model/incident_phases.h"

namespace bulkhead::ui {
namespace {

constexpr int kGutter = 80;
constexpr int kBar = 14;
constexpr int kHeight = 128;
constexpr int kSum = 116;  ///< for the words at the right
constexpr double kLeastWidth = 3;
constexpr double kGap = 5;  ///< between what stood still and what trains again

using Phases = std::vector<model::PhaseView>;

/// The survivors' phases or the replica's own.
Phases phasesOf(const model::IncidentView& incident, bool survivors) {
    Phases phases;
    // A replica for which nobody waited is no stall of the others, whatever was reported of it.
    if (survivors && incident.closedNs != 0 && !model::survivorsStood(incident)) return phases;
    for (const model::PhaseView& phase : incident.phases)
        if (model::isSurvivorPhase(phase.phase) == survivors) phases.push_back(phase);
    return phases;
}

bool isAgain(const model::PhaseView& phase) {
    return phase.phase == model::IncidentPhaseKind::kReexchange;
}

QString phaseWords(const model::PhaseView& phase) {
    const QString words = label(phase.phase) + u' ' + formatMs(phase.ms());
    return isAgain(phase) ? IncidentBars::tr("then %1").arg(words) : words;
}

QString listed(const Phases& phases) {
    QStringList words;
    for (const model::PhaseView& phase : phases) words << phaseWords(phase);
    return words.join(QStringLiteral(", "));
}

double totalMs(const Phases& phases) {
    double total = 0;
    for (const model::PhaseView& phase : phases) total += phase.ms();
    return total;
}

/// The card's figure: detect, decide and re-form, without the exchange that is done again.
QString stoodStill(const model::IncidentView& incident) {
    return IncidentBars::tr("stood still %1").arg(formatMs(incident.survivorStallMs));
}

/// An incident of the whole job has no survivors.
QString survivorsOf(const model::IncidentView& incident) {
    return incident.replica < 0 ? IncidentBars::tr("All replicas") : IncidentBars::tr("Survivors");
}

QString survivorWords(const model::IncidentView& incident) {
    const Phases phases = phasesOf(incident, true);
    return survivorsOf(incident) + QStringLiteral(": ") +
           (phases.empty() ? IncidentBars::tr("did not stand still")
                           : stoodStill(incident) + QStringLiteral(" (") + listed(phases) + u')');
}

QString ownWords(const model::IncidentView& incident) {
    if (incident.replica < 0) return {};
    const Phases phases = phasesOf(incident, false);
    return QStringLiteral("; ") + replicaName(incident.replica) + QStringLiteral(": ") +
           (phases.empty() ? IncidentBars::tr("nothing reported yet") : listed(phases));
}

/// Framed: that time trains.
void paintPhase(QPainter& painter, const QRectF& box, const model::PhaseView& phase) {
    const QColor color = theme().tokens().of(phase.phase);
    if (!isAgain(phase)) return painter.fillRect(box, color);
    painter.setPen(color);
    painter.setBrush(Qt::NoBrush);
    painter.drawRect(box.adjusted(0.5, 0.5, -0.5, -0.5));
}

}  // namespace

IncidentBars::IncidentBars(QWidget* parent) : QWidget(parent) {
    setAccessibleName(tr("Phases of the incident"));
    setMinimumHeight(kHeight);
    setMaximumHeight(kHeight);
    connect(&theme(), &Theme::changed, this, qOverload<>(&QWidget::update));
}

void IncidentBars::set(std::optional<model::IncidentView> incident) {
    incident_ = std::move(incident);
    setAccessibleDescription(incident_ ? survivorWords(*incident_) + ownWords(*incident_)
                                       : QString());
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
                     survivors ? survivorsOf(*incident_) : replicaName(incident_->replica));
    const Phases phases = phasesOf(*incident_, survivors);
    const double total = totalMs(phases);
    const bool again = std::any_of(phases.begin(), phases.end(), isAgain);
    const int left = Space::kTwo + kGutter;
    const double room = width() - left - kSum - Space::kTwo - (again ? kGap : 0) -
                        kLeastWidth * static_cast<double>(phases.size());
    if (phases.empty()) {
        painter.drawText(QRect(left, top, 300, kBar), Qt::AlignVCenter,
                         survivors ? tr("did not stand still") : tr("nothing reported yet"));
        return;
    }
    double at = left;
    int textAt = left;
    for (const model::PhaseView& phase : phases) {
        const double width = kLeastWidth + (total > 0 ? room * phase.ms() / total : 0);
        if (isAgain(phase)) at += kGap;
        paintPhase(painter, QRectF(at, top, width - 1, kBar), phase);
        at += width;
        const QString words = phaseWords(phase);
        const int advance = painter.fontMetrics().horizontalAdvance(words);
        paintPhase(painter, QRectF(textAt, top + kBar + 9, 7, 7), phase);
        painter.setPen(t.muted);
        painter.drawText(QRect(textAt + 11, top + kBar + 4, advance + 4, 17), Qt::AlignVCenter,
                         words);
        textAt += advance + 11 + 14;
    }
    painter.setPen(t.text);
    painter.drawText(QRect(width() - kSum - 8, top, kSum, kBar), Qt::AlignRight | Qt::AlignVCenter,
                     survivors ? stoodStill(*incident_) : formatMs(total));
}

}  // namespace bulkhead::ui
