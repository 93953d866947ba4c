// SPDX-License-Identifier: GPL-3.0-only
#include "app/widgets/lane_timeline.h"

#include <QHelpEvent>
#include <QKeyEvent>
#include <QPainter>
#include <QToolTip>
#include <algorithm>
#include <cmath>

#include "app/models/labels.h"
#include "app/models/units.h"
#include "app/widgets/table_style.h"
#include "app/widgets/theme.h"

namespace bulkhead::ui {
namespace {

constexpr int kGutter = 88;
constexpr int kAxis = 26;
constexpr int kCommitRow = 30;
constexpr int kMaxLane = 40;
constexpr int kMinLane = 9;
constexpr int64_t kLeastSpan = 20'000'000;            // 20 ms
constexpr int64_t kFirstSpan = 30'000'000'000;        // before anything is known
constexpr double kFollowMargin = 0.03;

/// Tick distance in ns that leaves `least` pixels between ticks.
int64_t tickStep(double nsPerPixel, int least) {
    static constexpr double kSteps[] = {1e6,  2e6,  5e6,  1e7,  2e7,  5e7,   1e8,   2e8,   5e8,
                                        1e9,  2e9,  5e9,  1e10, 1.5e10, 3e10, 6e10, 1.2e11, 3e11,
                                        6e11, 1.8e12, 3.6e12, 1.08e13, 2.16e13, 8.64e13};
    for (const double step : kSteps)
        if (step / nsPerPixel >= least) return static_cast<int64_t>(step);
    return 86'400'000'000'000;
}

QString tickText(int64_t ns, int64_t step) {
    if (step >= 100'000'000) return formatElapsed(ns);
    return formatElapsed(ns) + QStringLiteral("%1").arg(ns / 1'000'000 % 100, 2, 10, QChar(u'0'));
}

bool isTrainingAt(const model::ReplicaView& replica, int64_t timeNs) {
    for (const model::LaneInterval& i : replica.lane)
        if (i.beginNs <= timeNs && (i.endNs == 0 || timeNs < i.endNs))
            return i.state == model::ReplicaState::kTraining;
    return false;
}

}  // namespace

LaneTimeline::LaneTimeline(QWidget* parent) : QWidget(parent) {
    setFocusPolicy(Qt::StrongFocus);
    setAccessibleName(tr("Timeline of replicas"));
    setAccessibleDescription(
        tr("A lane per replica; the incident table below says the same in words"));
    setAttribute(Qt::WA_OpaquePaintEvent);
    connect(&theme(), &Theme::changed, this, qOverload<>(&QWidget::update));
}

void LaneTimeline::setState(const model::RunState* state) {
    state_ = state;
    follow_ = true;
    all_ = true;
    advance();
}

void LaneTimeline::advance() {
    if (state_ != nullptr && follow_) {
        const int64_t now = std::max(state_->lastEventNs, state_->startedNs + kFirstSpan / 10);
        if (all_) begin_ = state_->startedNs;
        const int64_t span = all_ ? now - begin_ : end_ - begin_;
        end_ = now + static_cast<int64_t>(static_cast<double>(span) * kFollowMargin);
        if (!all_) begin_ = end_ - span;
    }
    if (state_ != nullptr) {
        // A few lanes do not need all the height there is.
        const auto lanes = std::max<int>(static_cast<int>(state_->replicas.size()), 3);
        setMaximumHeight(kAxis + lanes * kMaxLane + kCommitRow + 8);
    }
    update();
}

void LaneTimeline::setCursorTime(std::optional<int64_t> timeNs) {
    cursor_ = timeNs;
    update();
}

void LaneTimeline::setRange(int64_t beginNs, int64_t endNs) {
    if (endNs - beginNs < kLeastSpan) endNs = beginNs + kLeastSpan;
    begin_ = beginNs;
    end_ = endNs;
    follow_ = false;
    update();
    Q_EMIT rangeChanged();
}

void LaneTimeline::zoom(double factor) {
    zoomAt(factor, cursor_ ? x(*cursor_) : follow_ ? plot().right() : plot().center().x());
}

void LaneTimeline::zoomAt(double factor, double at) {
    const bool stays = follow_;
    const auto fixed = static_cast<double>(timeAt(at));
    const auto place = [&](int64_t t) {
        return static_cast<int64_t>(fixed + (static_cast<double>(t) - fixed) / factor);
    };
    setRange(place(begin_), place(end_));
    all_ = false;
    follow_ = stays;
    if (follow_) advance();
}

void LaneTimeline::pan(double share) {
    const auto by = static_cast<int64_t>(static_cast<double>(end_ - begin_) * share);
    setRange(begin_ + by, end_ + by);
}

void LaneTimeline::showAll() {
    follow_ = true;
    all_ = true;
    advance();
    Q_EMIT rangeChanged();
}

void LaneTimeline::followPresent() {
    follow_ = true;
    advance();
    Q_EMIT cursorPicked(std::nullopt);
    Q_EMIT rangeChanged();
}

QRect LaneTimeline::plot() const {
    return rect().adjusted(kGutter, kAxis, -Space::kOne, -kCommitRow);
}

QRect LaneTimeline::lane(size_t i) const {
    const auto count = static_cast<int>(state_->replicas.size());
    const QRect p = plot();
    const int height = std::clamp(p.height() / std::max(count, 1), kMinLane, kMaxLane);
    return {p.left(), p.top() + static_cast<int>(i) * height, p.width(), height};
}

double LaneTimeline::x(int64_t timeNs) const {
    const QRect p = plot();
    return p.left() + static_cast<double>(timeNs - begin_) * p.width() /
                          static_cast<double>(std::max<int64_t>(end_ - begin_, 1));
}

int64_t LaneTimeline::timeAt(double px) const {
    const QRect p = plot();
    return begin_ + static_cast<int64_t>((px - p.left()) * static_cast<double>(end_ - begin_) /
                                         std::max(p.width(), 1));
}

void LaneTimeline::paintEvent(QPaintEvent*) {
    QPainter painter(this);
    painter.fillRect(rect(), theme().tokens().surface);
    if (state_ == nullptr || end_ <= begin_) return;
    painter.setFont(Theme::font(-1));
    paintAxis(painter);
    for (size_t i = 0; i < state_->replicas.size(); ++i)
        if (lane(i).top() < plot().bottom()) paintLane(painter, i);
    painter.setClipRect(plot().adjusted(0, -kAxis, 0, kCommitRow));
    paintStalls(painter);
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

void LaneTimeline::paintAxis(QPainter& painter) const {
    const Tokens& t = theme().tokens();
    const QRect p = plot();
    const int64_t step =
        tickStep(static_cast<double>(end_ - begin_) / std::max(p.width(), 1), 88);
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
    painter.setClipping(false);
    if (r.height() >= 14 || i % 4 == 0) {
        paintMark(painter, QPointF(Space::kTwo, r.center().y() + 0.5), tone(replica.state),
                  t.of(replica.state));
        painter.setPen(t.text);
        painter.drawText(QRect(28, r.top(), kGutter - 28, r.height()), Qt::AlignVCenter,
                         tr("Replica %1").arg(replica.replica));
    }
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
        if (interval.state == model::ReplicaState::kBackingOff ||
            interval.state == model::ReplicaState::kHeld ||
            interval.state == model::ReplicaState::kDrained)
            painter.fillRect(bar, QBrush(t.surface, Qt::BDiagPattern));
        const QString words = label(interval.state);
        if (bar.width() < painter.fontMetrics().horizontalAdvance(words) + 12 ||
            r.height() < 20)
            continue;
        painter.setPen(normal ? t.muted
                       : color.lightnessF() > 0.45F ? QColor(0x10181f) : QColor(0xf7f9fa));
        painter.drawText(bar.adjusted(6, 0, -4, 0), Qt::AlignVCenter | Qt::AlignLeft, words);
    }
}

void LaneTimeline::paintStalls(QPainter& painter) const {
    const Tokens& t = theme().tokens();
    for (const model::StallInterval& stall : state_->stalls) {
        if (stall.endNs < begin_ || stall.beginNs > end_) continue;
        const double left = x(stall.beginNs);
        const double width = std::max(x(stall.endNs) - left, 1.5);
        for (size_t i = 0; i < state_->replicas.size(); ++i) {
            const model::ReplicaView& replica = state_->replicas[i];
            if (replica.replica == stall.replica || !isTrainingAt(replica, stall.beginNs)) continue;
            const QRect r = lane(i);
            const int inset = r.height() > 20 ? 4 : 1;
            const bool exchange = stall.phase == model::IncidentPhaseKind::kReexchange;
            painter.fillRect(QRectF(left, r.top() + inset, width, r.height() - 2 * inset),
                             exchange ? t.replay : t.stall);
        }
    }
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
        if (!row || incident.openedNs < begin_ || incident.openedNs > end_) continue;
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

void LaneTimeline::keyPressEvent(QKeyEvent* event) {
    switch (event->key()) {
        case Qt::Key_Left: return pan(-0.1);
        case Qt::Key_Right: return pan(0.1);
        case Qt::Key_Plus:
        case Qt::Key_Equal: return zoom(1.5);
        case Qt::Key_Minus: return zoom(1 / 1.5);
        case Qt::Key_Home: return showAll();
        case Qt::Key_End: return followPresent();
        case Qt::Key_Escape: return void(Q_EMIT cursorPicked(std::nullopt));
        default: QWidget::keyPressEvent(event);
    }
}

void LaneTimeline::wheelEvent(QWheelEvent* event) {
    if (event->modifiers() & Qt::ShiftModifier)
        pan(-event->angleDelta().y() / 1200.0);
    else
        zoomAt(std::pow(1.0015, event->angleDelta().y()), event->position().x());
    event->accept();
}

void LaneTimeline::mousePressEvent(QMouseEvent* event) {
    pressed_ = event->pos();
    dragged_ = false;
}

void LaneTimeline::mouseMoveEvent(QMouseEvent* event) {
    if (!pressed_ || state_ == nullptr) return;
    const int by = pressed_->x() - event->pos().x();
    if (!dragged_ && std::abs(by) < 4) return;
    dragged_ = true;
    pan(static_cast<double>(by) / std::max(plot().width(), 1));
    pressed_ = event->pos();
}

void LaneTimeline::mouseReleaseEvent(QMouseEvent* event) {
    const bool click = pressed_ && !dragged_;
    pressed_.reset();
    if (!click || state_ == nullptr || event->pos().x() < plot().left()) return;
    Q_EMIT cursorPicked(timeAt(event->pos().x()));
    for (const model::IncidentView& incident : state_->incidents)
        if (std::abs(x(incident.openedNs) - event->pos().x()) < 5)
            Q_EMIT incidentPicked(incident.incident);
}

QString LaneTimeline::wordsAt(const QPoint& at) const {
    if (state_ == nullptr || at.x() < plot().left()) return {};
    const int64_t time = timeAt(at.x());
    for (size_t i = 0; i < state_->replicas.size(); ++i) {
        if (!lane(i).contains(at)) continue;
        for (const model::LaneInterval& v : state_->replicas[i].lane) {
            const int64_t end = v.endNs == 0 ? state_->lastEventNs : v.endNs;
            if (time < v.beginNs || time > end) continue;
            return tr("Replica %1: %2 for %3, incarnation %4, from step %5")
                .arg(state_->replicas[i].replica)
                .arg(label(v.state), formatMs(static_cast<double>(end - v.beginNs) / 1e6))
                .arg(v.incarnation)
                .arg(v.step);
        }
    }
    return {};
}

bool LaneTimeline::event(QEvent* event) {
    if (event->type() == QEvent::ToolTip) {
        const auto* help = static_cast<QHelpEvent*>(event);
        const QString words = wordsAt(help->pos());
        if (words.isEmpty())
            QToolTip::hideText();
        else
            QToolTip::showText(help->globalPos(), words, this);
        return true;
    }
    return QWidget::event(event);
}

}  // namespace bulkhead::ui
