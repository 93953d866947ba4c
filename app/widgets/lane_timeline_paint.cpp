// SPDX-License-Identifier: GPL-3.0-only
#include <QPainter>
#include <algorithm>

#include "app/models/labels.h"
#include "app/models/units.h"
#include "app/widgets/lane_metrics.h"
#include "app/widgets/lane_timeline.h"
#include "app/widgets/table_style.h"
#include "app/widgets/theme.h"

namespace bulkhead::ui {

using namespace lanes;

namespace {

/// Tick distance in ns that leaves `least` pixels between ticks.
int64_t tickStep(double nsPerPixel, int least) {
    static constexpr double kSteps[] = {
        1e6,  2e6,    5e6,  1e7,  2e7,    5e7,  1e8,  2e8,    5e8,    1e9,     2e9,     5e9,
        1e10, 1.5e10, 3e10, 6e10, 1.2e11, 3e11, 6e11, 1.8e12, 3.6e12, 1.08e13, 2.16e13, 8.64e13};
    for (const double step : kSteps)
        if (step / nsPerPixel >= least) return static_cast<int64_t>(step);
    return 86'400'000'000'000;
}

QString tickText(int64_t ns, int64_t step) {
    if (step >= 100'000'000) return formatElapsed(ns);
    return formatElapsed(ns) + QStringLiteral("%1").arg(ns / 1'000'000 % 100, 2, 10, QChar(u'0'));
}

bool isTrainingAt(const model::ReplicaView& replica, int64_t timeNs) {
    const auto after =
        std::upper_bound(replica.lane.begin(), replica.lane.end(), timeNs,
                         [](int64_t t, const model::LaneInterval& i) { return t < i.beginNs; });
    if (after == replica.lane.begin()) return false;
    const model::LaneInterval& i = *std::prev(after);
    return (i.endNs == 0 || timeNs < i.endNs) && i.state == model::ReplicaState::kTraining;
}

}  // namespace

void LaneTimeline::paintEvent(QPaintEvent*) {
    QPainter painter(this);
    painter.fillRect(rect(), theme().tokens().surface);
    if (state_ == nullptr || end_ <= begin_) return;
    painter.setFont(Theme::font(-1));
    paintAxis(painter);
    for (size_t i = 0; i < state_->replicas.size(); ++i)
        if (isInSight(i)) paintLane(painter, i);
    painter.setClipRect(plot());
    paintPhases(painter);
    paintStalls(painter);
    painter.setClipRect(plot().adjusted(0, -kAxis, 0, kCommitRow));
    paintMarks(painter);
    paintCommits(painter);
    paintCursor(painter);
    if (hasFocus()) {
        painter.setClipping(false);
        painter.setPen(theme().tokens().accent);
        painter.setBrush(Qt::NoBrush);
        painter.drawRect(rect().adjusted(0, 0, -1, -1));
    }
}

bool LaneTimeline::isInSight(size_t i) const {
    return lane(i).bottom() >= plot().top() && lane(i).top() <= plot().bottom();
}

void LaneTimeline::paintAxis(QPainter& painter) const {
    const Tokens& t = theme().tokens();
    const QRect p = plot();
    const int64_t step = tickStep(static_cast<double>(end_ - begin_) / std::max(p.width(), 1), 88);
    const int64_t origin = state_->startedNs;
    const int64_t firstTick = (begin_ - origin + step - 1) / step;
    for (int64_t k = std::max<int64_t>(firstTick, 0);; ++k) {
        const int64_t time = origin + k * step;
        if (time > end_) break;
        const int at = static_cast<int>(x(time));
        painter.setPen(blend(t.surface, t.border, 0.7));
        painter.drawLine(at, kAxis - 4, at, p.bottom() + 1);
        painter.setPen(t.muted);
        painter.drawText(QRect(at - 44, 2, 88, kAxis - 6), Qt::AlignCenter,
                         tickText(k * step, step));
    }
}

void LaneTimeline::paintLane(QPainter& painter, size_t i) const {
    const Tokens& t = theme().tokens();
    const model::ReplicaView& replica = state_->replicas[i];
    const QRect r = lane(i);
    painter.setClipRect(plot().adjusted(-kGutter, 0, 0, 0));
    paintMark(painter, QPointF(Space::kTwo, r.center().y() + 0.5), tone(replica.state),
              t.of(replica.state));
    painter.setPen(t.text);
    painter.drawText(QRect(28, r.top(), kGutter - 28, r.height()), Qt::AlignVCenter,
                     tr("Replica %1").arg(replica.replica));
    painter.setClipRect(plot());
    const int inset = r.height() > 20 ? 4 : 1;
    for (const model::LaneInterval& interval : replica.lane) {
        const int64_t end = interval.endNs == 0 ? state_->lastEventNs : interval.endNs;
        if (end < begin_ || interval.beginNs > end_) continue;
        if (interval.state == model::ReplicaState::kAbsent) continue;
        const double left = std::max(x(interval.beginNs), plot().left() - 4.0);
        const double right = std::min(x(end), plot().right() + 4.0);
        const QRectF bar(left, r.top() + inset, std::max(right - left, 1.5),
                         r.height() - 2 * inset);
        const bool normal = interval.state == model::ReplicaState::kTraining;
        const QColor color = t.of(interval.state);
        // Training is the normal case and stays quiet; everything else shows in full colour.
        const QColor fill = normal ? blend(t.surface, color, 0.30) : color;
        painter.fillRect(bar, fill);
        if (interval.stretches > 1) {
            paintSeveral(painter, bar, interval);
            continue;
        }
        if (normal) {
            painter.setPen(color);
            painter.drawLine(bar.bottomLeft(), bar.bottomRight());
        }
        if (interval.state == model::ReplicaState::kBackingOff ||
            interval.state == model::ReplicaState::kHeld ||
            interval.state == model::ReplicaState::kDrained)
            painter.fillRect(bar, QBrush(t.surface, Qt::BDiagPattern));
        const QString words = label(interval.state);
        if (bar.width() < painter.fontMetrics().horizontalAdvance(words) + 12 || r.height() < 20)
            continue;
        painter.setPen(inkOn(fill));
        painter.drawText(bar.adjusted(6, 0, -4, 0), Qt::AlignVCenter | Qt::AlignLeft, words);
    }
}

void LaneTimeline::paintSeveral(QPainter& painter, const QRectF& bar,
                                const model::LaneInterval& several) const {
    const Tokens& t = theme().tokens();
    const double whole = model::durationMs(several.beginNs, several.endNs);
    const double trained = whole > 0 ? std::clamp(several.trained() / whole, 0.0, 1.0) : 0;
    const QRectF lost(bar.left(), bar.top(), bar.width(), bar.height() * (1 - trained));
    painter.fillRect(bar, blend(t.surface, t.of(model::ReplicaState::kTraining), 0.30));
    painter.fillRect(lost, t.stall);
    painter.fillRect(bar, QBrush(t.surface, Qt::BDiagPattern));
}

void LaneTimeline::paintOverTraining(QPainter& painter, int64_t beginNs, int64_t endNs, int32_t but,
                                     const QBrush& brush, const QString& words) const {
    if (endNs < begin_ || beginNs > end_) return;
    const Tokens& t = theme().tokens();
    const double left = std::max(x(beginNs), plot().left() - 4.0);
    const double width = std::max(std::min(x(endNs), plot().right() + 4.0) - left, 1.5);
    const bool fits = width > painter.fontMetrics().horizontalAdvance(words) + 12;
    for (size_t i = 0; i < state_->replicas.size(); ++i) {
        const model::ReplicaView& replica = state_->replicas[i];
        if (replica.replica == but || !isInSight(i) || !isTrainingAt(replica, beginNs)) continue;
        const QRect r = lane(i);
        const int inset = r.height() > 20 ? 4 : 1;
        const QRectF bar(left, r.top() + inset, width, r.height() - 2 * inset);
        if (brush.style() != Qt::SolidPattern) painter.fillRect(bar, t.surface);
        painter.fillRect(bar, brush);
        if (words.isEmpty() || !fits || r.height() < 20) continue;
        const QRectF line = bar.adjusted(6, 0, -4, 0);
        QRectF box = painter.boundingRect(line, Qt::AlignVCenter | Qt::AlignLeft, words);
        painter.fillRect(box.adjusted(-3, 0, 3, 0), t.surface);
        painter.setPen(t.text);
        painter.drawText(line, Qt::AlignVCenter | Qt::AlignLeft, words);
    }
}

void LaneTimeline::paintPhases(QPainter& painter) const {
    const Tokens& t = theme().tokens();
    for (const model::JobInterval& phase : state_->phases) {
        if (!stands(phase.phase)) continue;
        const int64_t end = phase.endNs == 0 ? state_->lastEventNs : phase.endNs;
        paintOverTraining(painter, phase.beginNs, end, -1, QBrush(t.muted, Qt::BDiagPattern),
                          label(phase.phase));
    }
}

void LaneTimeline::paintStalls(QPainter& painter) const {
    const Tokens& t = theme().tokens();
    const auto paint = [&](const model::StallInterval& stall) {
        const bool exchange = stall.phase == model::IncidentPhaseKind::kReexchange;
        paintOverTraining(painter, stall.beginNs, stall.endNs, stall.replica,
                          exchange ? t.replay : t.stall, stallWords(stall));
    };
    for (const model::StallInterval& stall : state_->stalls) paint(stall);
    if (const auto frozen = model::frozenStretch(*state_)) paint(*frozen);
}

void LaneTimeline::paintMarks(QPainter& painter) const {
    const Tokens& t = theme().tokens();
    painter.setRenderHint(QPainter::Antialiasing);
    const auto laneOf = [&](int32_t replica) -> std::optional<size_t> {
        for (size_t i = 0; i < state_->replicas.size(); ++i)
            if (state_->replicas[i].replica == replica) return i;
        return std::nullopt;
    };
    for (const model::IncidentView& incident : state_->incidents) {
        const auto row = laneOf(incident.replica);
        if (!row || !isInSight(*row) || incident.openedNs < begin_ || incident.openedNs > end_)
            continue;
        const double at = x(incident.openedNs);
        const QRect r = lane(*row);
        painter.setPen(QPen(t.bad, 1.5));
        painter.drawLine(QPointF(at, r.top() + 1), QPointF(at, r.bottom()));
    }
    painter.setPen(Qt::NoPen);
    for (const model::FaultView& fault : state_->faults) {
        if (fault.injectedNs < begin_ || fault.injectedNs > end_) continue;
        const auto row = laneOf(fault.spec.replica);
        const double at = x(fault.injectedNs);
        if (row && !isInSight(*row)) continue;
        const double top = row ? lane(*row).top() : kAxis - 4;
        painter.setBrush(t.bad);
        painter.drawPolygon(QPolygonF({{at - 5, top - 3}, {at + 5, top - 3}, {at, top + 5}}));
    }
    painter.setRenderHint(QPainter::Antialiasing, false);
}

void LaneTimeline::paintCommits(QPainter& painter) const {
    const Tokens& t = theme().tokens();
    const int top = height() - kCommitRow + 6;
    painter.setClipping(false);
    painter.setPen(t.muted);
    painter.drawText(QRect(Space::kTwo, top - 4, kGutter - Space::kTwo, kCommitRow - 4),
                     Qt::AlignVCenter, tr("Commits"));
    painter.setClipRect(plot().adjusted(0, 0, 0, kCommitRow));
    int lastPixel = -10;
    int lastText = -100;
    for (const model::StepStretch& stretch : state_->earlierSteps) {
        if (stretch.endNs < begin_ || stretch.beginNs > end_) continue;
        const double left = std::max(x(stretch.beginNs), plot().left() - 4.0);
        const double right = std::min(x(stretch.endNs), plot().right() + 4.0);
        painter.fillRect(QRectF(left, top, std::max(right - left, 1.0), stretch.odd ? 9 : 6),
                         stretch.odd ? t.warning : blend(t.surface, t.accent, 0.55));
    }
    const size_t count = state_->steps.size();
    for (size_t i = 0; i < count; ++i) {
        const model::StepPoint& point = state_->steps[i];
        if (point.timeNs < begin_ || point.timeNs > end_) continue;
        const int at = static_cast<int>(x(point.timeNs));
        if (at == lastPixel) continue;
        const bool odd = point.attempt > 1 || point.skip || point.suspect || point.superseded;
        painter.setPen(odd ? t.warning : blend(t.surface, t.accent, 0.55));
        painter.drawLine(at, top, at, top + (odd ? 9 : 6));
        lastPixel = at;
        if (at - lastText < 64 || point.step % 5 != 0) continue;
        painter.setPen(t.faint);
        painter.drawText(QRect(at - 30, top + 8, 60, 14), Qt::AlignHCenter | Qt::AlignTop,
                         formatCount(point.step));
        lastText = at;
    }
}

void LaneTimeline::paintCursor(QPainter& painter) const {
    if (!cursor_ || *cursor_ < begin_ || *cursor_ > end_) return;
    const Tokens& t = theme().tokens();
    const int at = static_cast<int>(x(*cursor_));
    painter.setPen(QPen(t.accent, 1));
    painter.drawLine(at, kAxis - 6, at, height() - 8);
    const QString words = formatElapsed(*cursor_ - state_->startedNs);
    const int width = painter.fontMetrics().horizontalAdvance(words) + 12;
    const QRect tag(std::clamp(at - width / 2, plot().left(), plot().right() - width), 2, width,
                    18);
    painter.fillRect(tag, t.accent);
    painter.setPen(t.onAccent);
    painter.drawText(tag, Qt::AlignCenter, words);
}

}  // namespace bulkhead::ui
